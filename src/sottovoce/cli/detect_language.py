"""`sottovoce detect-language`: the language of a recording, or its timeline."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sottovoce.cli.options import MODEL, SectionedCommand
from sottovoce.cli.progress import source_of, with_model
from sottovoce.options.schema import Option

if TYPE_CHECKING:
    from sottovoce.api import Model

LANGUAGE = (
    Option(
        "Languages to choose from.",
        key="languages",
        kind="languages",
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
    context: click.Context, /, files: tuple[str, ...], languages: str | None, timeline: bool, **_: object
) -> int:
    """Detect the spoken language: one JSON document a line.

    The rules are those of `transcribe`: one language over several windows, or with --timeline all changes.
    """

    def work(model: Model, name: str) -> None:
        found = (languages_over_time if timeline else detection)(model, name, languages)
        click.echo(json.dumps({"file": name, **found}, ensure_ascii=False))

    return with_model(context, files, work, quiet=sys.stdout.isatty())


def detection(model: Model, name: str, languages: str | None) -> dict[str, object]:
    found = model.detect_language(source_of(name), languages=languages)
    likely = Counter(found.probabilities).most_common(5)
    return {
        "language": found.language,
        "probability": round(found.probability, 4),
        "probabilities": {language: round(probability, 4) for language, probability in likely},
        "allowed_mass": round(found.allowed_mass, 4),
        "no_speech_prob": round(found.no_speech_prob, 4),
    }


def languages_over_time(model: Model, name: str, languages: str | None) -> dict[str, object]:
    spans = list(model.language_spans(source_of(name), languages=languages))
    seconds: dict[str, float] = defaultdict(float)
    for span in spans:
        seconds[span.language] += span.end - span.start
    return {
        "language": max(seconds, key=lambda language: seconds[language], default=None),
        "timeline": [{**asdict(span), "probability": round(span.probability, 4)} for span in spans],
    }
