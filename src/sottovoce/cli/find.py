"""`sottovoce find`: search for a spoken phrase."""

from __future__ import annotations

import json as json_
from pathlib import Path

import click

from sottovoce.cli.flags import SectionedCommand, given_as
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import LANGUAGE, MODEL, ModelOptions, open_model
from sottovoce.cli.progress import for_each_file, source_of
from sottovoce.formats.paragraphs import clock
from sottovoce.options.schema import Option

NOT_FOUND = 1
"""Exit code without a match, as in grep."""
SEARCH = (
    Option(
        "Least similarity of the words and the phrase; 1 is equal letters.",
        key="least_score",
        kind="number",
        default=0.7,
        most=1.0,
        above=0.0,
    ),
    Option("One JSON document for each place.", key="as_json", flag="--json", kind="flag"),
)


@click.command(cls=SectionedCommand, sections={"Model": MODEL, "Language": LANGUAGE, "Search": SEARCH})
@click.argument("recording")
@click.argument("phrase")
@click.pass_context
def find(
    context: click.Context,
    /,
    recording: str,
    phrase: str,
    language: str,
    least_score: float,
    json: bool,
    **given: object,
) -> int:
    """Find a spoken phrase: start, end, similarity, and the words.

    RECORDING is transcribed first; a transcript (json, srt, vtt) is searched directly. Words are compared by
    their letters, so misrecognised words are found too. The exit code is 1 if nothing is found.
    """
    from sottovoce.alignment.phrases import Match, find_phrase
    from sottovoce.formats.files import READABLE, load_transcript
    from sottovoce.types import Transcript

    # Fail early for a phrase without letters.
    find_phrase(Transcript((), "", 0.0, ""), phrase, least_score=least_score)
    found: list[Match] = []

    def work(name: str) -> None:
        if Path(name).suffix.lower() in READABLE:
            matches = find_phrase(load_transcript(name), phrase, least_score=least_score)
        else:
            model = open_model(given_as(ModelOptions, given))
            matches = model.find(source_of(name), phrase, least_score=least_score, language=language)
        found.extend(matches)
        for match in matches:
            click.echo(as_json(match, name, phrase) if json else as_line(match))
        if not matches and not json:
            click.echo(f"{name}: no match for '{phrase}'", err=True)

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
        return json_.dumps(entry, ensure_ascii=False)

    code = for_each_file([recording], work, invocation=invocation_of(context))
    return code or (0 if found else NOT_FOUND)


def time(seconds: float) -> str:
    hundredths = round(seconds * 100)
    return f"{clock(hundredths // 100)}.{hundredths % 100:02}"
