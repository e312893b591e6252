"""`sottovoce find`: where a phrase is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from sottovoce.cli.call import this_call
from sottovoce.cli.each_file import each_file
from sottovoce.cli.options import LANGUAGE, MODEL
from sottovoce.cli.parameters import Finite
from sottovoce.cli.progress import Progress, clock
from sottovoce.cli.sections import SectionedCommand

NOT_FOUND = 1
"""The exit code where a phrase is nowhere, as grep has it."""
SEARCH = (
    click.option(
        "--least-score",
        type=Finite(above=0, most=1),
        default=0.7,
        show_default=True,
        help="How like the phrase the words must be; 1 is the same letters.",
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON document a place, rather than a line."),
)


@click.command(cls=SectionedCommand, sections={"Model": MODEL, "Language": LANGUAGE, "Search": SEARCH})
@click.argument("recording")
@click.argument("phrase")
@click.pass_context
def find(context: click.Context, /, recording: str, phrase: str, **given: Any) -> int:
    """Find where a phrase is said: start, end, how like it is, and the words.

    RECORDING is transcribed for it; a transcript (json, srt, vtt) is searched as it is. Words need not be
    heard right: they are compared by their letters.
    The exit code is 1 where nothing is found.
    """
    from sottovoce.alignment.find import Match, find_phrase
    from sottovoce.cli.options import open_model
    from sottovoce.formats.reading import READABLE, read_transcript
    from sottovoce.types import Transcript

    least = given["least_score"]
    find_phrase(
        Transcript((), "", 0.0, ""), phrase, least_score=least
    )  # a phrase of no letters: before all work

    found: list[Match] = []

    def work(name: str) -> None:
        if Path(name).suffix.lower() in READABLE:
            matches = find_phrase(read_transcript(name), phrase, least_score=least)
        else:
            source = sys.stdin.buffer if name == "-" else name
            matches = open_model(given).find(source, phrase, least_score=least, language=given["language"])
        found.extend(matches)
        for match in matches:
            click.echo(as_line(match) if not given["as_json"] else as_json(match, name, phrase))
        if not matches and not given["as_json"]:
            click.echo(f"{name}: nothing like '{phrase}' was found", err=True)

    def as_line(match: Match) -> str:
        return f"{time(match.start)} - {time(match.end)}  {match.score:4.0%}  {match.text}"

    def as_json(match: Match, name: str, phrase: str) -> str:
        entry = {
            "file": name,
            "phrase": phrase,
            "start": round(match.start, 3),
            "end": round(match.end, 3),
            "score": match.score,
            "text": match.text,
        }
        return json.dumps(entry, ensure_ascii=False)

    code = each_file(
        [recording],
        work,
        progress=Progress(1),
        call=this_call(context),
        advice="--dtype int8 or a smaller --model",
    )
    return code or (0 if found else NOT_FOUND)


def time(seconds: float) -> str:
    """h:mm:ss.cc or m:ss.cc."""
    hundredths = round(seconds * 100)
    return f"{clock(hundredths // 100)}.{hundredths % 100:02}"
