"""`sottovoce detect-language`: the language of a recording, or its timeline."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sottovoce.cli.flags import SectionedCommand, given_as
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import MODEL, ModelOptions, open_model
from sottovoce.cli.progress import Progress, for_each_file, source_of
from sottovoce.options.schema import Option

if TYPE_CHECKING:
    from sottovoce.api import Model

LANGUAGE = (
    Option(
        "Languages to choose from.",
        key="languages",
        short="-l --language",
        metavar="CODE,CODE,…",
        unset="default: all of the model",
    ),
    Option("The whole recording, with times of each language.", key="timeline", kind="flag"),
)


@click.command(cls=SectionedCommand, sections={"Model": MODEL, "Language": LANGUAGE})
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.pass_context
def detect_language(
    context: click.Context,
    /,
    files: tuple[str, ...],
    languages: str | None,
    timeline: bool,
    **given: object,
) -> int:
    """Detect the spoken language: one JSON document a line.

    The rules are those of `transcribe`: one language over several windows, or with --timeline all changes.
    """
    model = open_model(given_as(ModelOptions, given))
    look = languages_over_time if timeline else detection
    return for_each_file(
        files,
        lambda name: click.echo(json.dumps(look(model, name, languages), ensure_ascii=False)),
        invocation=invocation_of(context),
        progress=Progress(len(files), quiet=sys.stdout.isatty()),
    )


def detection(model: Model, name: str, languages: str | None) -> dict[str, object]:
    found = model.detect_language(source_of(name), languages=languages)
    likely = sorted(found.probabilities.items(), key=lambda item: -item[1])[:5]
    return {
        "file": name,
        "language": found.language,
        "probability": round(found.probability, 4),
        "probabilities": {language: round(probability, 4) for language, probability in likely},
        "allowed_mass": round(found.allowed_mass, 4),
        "no_speech_prob": round(found.no_speech_prob, 4),
    }


def languages_over_time(model: Model, name: str, languages: str | None) -> dict[str, object]:
    spans = list(model.language_spans(source_of(name), languages=languages))
    seconds: dict[str, float] = {}
    for span in spans:
        seconds[span.language] = seconds.get(span.language, 0.0) + span.end - span.start
    rounded = [{**asdict(span), "probability": round(span.probability, 4)} for span in spans]
    return {
        "file": name,
        "language": max(seconds, key=lambda language: seconds[language]) if seconds else None,
        "timeline": rounded,
    }
