"""`sottovoce detect-language`: which language a recording is in, or which one when."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from typing import Any

import click

from sottovoce.api import Model
from sottovoce.cli.options import MODEL, open_model, with_options
from sottovoce.cli.progress import Progress
from sottovoce.errors import SottovoceError


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@with_options(MODEL)
@click.option("--languages", metavar="CODE,CODE,…", help="Choose among these. [default: all of the model]")
@click.option("--timeline", is_flag=True, help="The whole recording, with the times of each language.")
@click.pass_context
def detect_language(context: click.Context, /, files: tuple[str, ...], **given: Any) -> int:
    """Tell which language is spoken: one JSON document a line.

    Without --timeline the first 30 seconds are heard.
    """
    model = open_model(given)
    look = timeline if given["timeline"] else detection
    n_failed = 0
    with Progress(len(files), quiet=sys.stdout.isatty()) as progress:
        for name in files:
            try:
                click.echo(json.dumps(look(model, name, given["languages"]), ensure_ascii=False))
            except SottovoceError as error:
                n_failed += 1
                debug = context.find_root().obj["debug"]
                progress.failed(str(error), traceback.format_exc() if debug else None)
    if not n_failed:
        return 0
    return 2 if n_failed == len(files) else 1


def detection(model: Model, name: str, languages: str | None) -> dict[str, object]:
    """The document of one file."""
    found = model.detect_language(sys.stdin.buffer if name == "-" else name, languages=languages)
    likely = sorted(found.probabilities.items(), key=lambda item: -item[1])[:5]
    return {
        "file": name,
        "language": found.language,
        "probability": round(found.probability, 4),
        "probabilities": {language: round(probability, 4) for language, probability in likely},
        "allowed_mass": round(found.allowed_mass, 4),
        "no_speech_prob": round(found.no_speech_prob, 4),
    }


def timeline(model: Model, name: str, languages: str | None) -> dict[str, object]:
    """The document of one file with the times of each language."""
    spans = list(model.language_spans(sys.stdin.buffer if name == "-" else name, languages=languages))
    seconds: dict[str, float] = {}
    for span in spans:
        seconds[span.language] = seconds.get(span.language, 0.0) + span.end - span.start
    rounded = [{**asdict(span), "probability": round(span.probability, 4)} for span in spans]
    return {
        "file": name,
        "language": max(seconds, key=lambda language: seconds[language]) if seconds else None,
        "timeline": rounded,
    }
