"""`sottovoce ctc`: decoding of CTC emissions with language models, and tuning of their weights.

Only the options; `ctc_decode` does the work. Imports nothing heavy, so that `--help` is fast.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sottovoce.cli.flags import (
    SectionedCommand,
    check_exclusive,
    flag_of,
    given_as,
    grouped,
    read_list,
    value_of,
)
from sottovoce.cli.options import DecoderOptions
from sottovoce.errors import SottovoceError
from sottovoce.options.schema import Option, options_of
from sottovoce.types import Hypothesis, Word

if TYPE_CHECKING:
    from sottovoce.ctc.decoder import StreamUpdate

DECODER = options_of(DecoderOptions)
SECTIONS = {
    heading: grouped(heading, of=DECODER) for heading in ("Emissions", "Search", "Language models", "Words")
}
OUTPUT = (
    Option("Hypotheses per utterance.", key="nbest", kind="integer", default=1, least=1),
    Option("The likeliest path instead of a search.", key="greedy", kind="flag"),
    Option("Utterances decoded at once.", key="batch_size", kind="integer", default=8, least=1),
    Option(
        "Read each utterance as a stream; a line for each chunk that changes the text.",
        key="stream",
        kind="flag",
    ),
    Option("Milliseconds of a chunk.", key="chunk_ms", kind="number", default=80.0, above=0.0),
)
TRIED = (
    Option("For --lm-weight.", key="lm_weights", kind="numbers", default="0.2,0.4,0.6,0.8,1.0"),
    Option("For --word-score.", key="word_scores", kind="numbers", default="-1,0,1,2"),
    Option("For --neural-weight.", key="neural_weights", kind="numbers", unset="that one alone"),
    Option("For --hotword-weight.", key="hotword_weights", kind="numbers", unset="that one alone"),
)
EXCLUSIVE = {
    "model": ("labels", "blank", "frame_ms", "logits"),
    "greedy": ("lm", "label_lm", "lexicon", "hotwords", "vocabulary_from", "neural_lm", "nbest", "stream"),
}
"""Mutually exclusive options: a model has its own labels, and a greedy path no search."""


class _DecodeByDefault(click.Group):
    """Makes `ctc FILE` an alias of `ctc decode FILE`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, "decode")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["decode", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DecodeByDefault, context_settings={"help_option_names": ["-h", "--help"]})
def ctc() -> None:
    """Decode CTC emissions with language models: `ctc FILE… --labels FILE`.

    `ctc decode --help` lists the options.
    """


@ctc.command("decode", cls=SectionedCommand, sections={**SECTIONS, "Output": OUTPUT})
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_context
def decode(
    context: click.Context,
    /,
    files: tuple[Path, ...],
    nbest: int,
    greedy: bool,
    batch_size: int,
    stream: bool,
    chunk_ms: float,
    **given: object,
) -> int:
    """Decode FILES into one JSON line per hypothesis, best first.

    FILES: .npy, .npz or .csv; - is an .npy from standard input; a.npy,b.npy are the same utterances of
    several networks; recordings with --model.
    """
    check_exclusive(context, EXCLUSIVE)
    from sottovoce.cli.ctc_decode import Utterances, decoded, streamed

    utterances = Utterances.opened(given_as(DecoderOptions, given))
    found: Iterator[tuple[str, Iterator[dict[str, object]] | SottovoceError]]
    if stream:
        updates = streamed(utterances, files, nbest, chunk_ms)
        found = (
            (name, one if isinstance(one, SottovoceError) else _stream_lines(name, one))
            for name, one in updates
        )
    else:
        lists = decoded(utterances, files, nbest, batch_size, greedy)
        found = ((name, one if isinstance(one, SottovoceError) else _lines(name, one)) for name, one in lists)
    n_failed = 0
    for _, lines in found:
        if isinstance(lines, SottovoceError):
            if len(files) == 1:
                raise lines
            click.echo(f"error: {lines}", err=True)
            n_failed += 1
            continue
        for line in lines:
            click.echo(json.dumps(line, ensure_ascii=False))
    return int(n_failed > 0)


def _stream_lines(name: str, update: StreamUpdate) -> Iterator[dict[str, object]]:
    """Yield the line of a chunk that changed the text or committed words, and those of the end."""
    if update.is_final:
        yield from _lines(name, update.hypotheses)
    elif update.changes_text or update.committed:
        yield {
            "id": name,
            "time": round(update.time_s, 3),
            "text": update.text,
            "revised": update.n_revised,
            "committed": [_word(word) for word in update.committed],
            "alternatives": [
                {"text": one.text, "score": round(one.score, 5), "posterior": round(one.posterior or 0.0, 5)}
                for one in update.hypotheses
            ],
        }


def _lines(name: str, found: Sequence[Hypothesis]) -> Iterator[dict[str, object]]:
    return (_line(name, rank, hypothesis) for rank, hypothesis in enumerate(found))


def _word(word: Word) -> dict[str, object]:
    return {
        "word": word.word,
        "start": round(word.start, 3),
        "end": round(word.end, 3),
        "probability": round(word.probability, 4),
    }


def _line(name: str, rank: int, hypothesis: Hypothesis) -> dict[str, object]:
    return {
        "id": name,
        "rank": rank,
        "text": hypothesis.text,
        "score": round(hypothesis.score, 5),
        "acoustic_score": round(hypothesis.acoustic_score, 5),
        "lm_score": round(hypothesis.lm_score, 5),
        "posterior": None if hypothesis.posterior is None else round(hypothesis.posterior, 5),
        "unfinished": hypothesis.is_unfinished,
        "words": [_word(word) for word in hypothesis.words],
        "tokens": list(hypothesis.tokens),
    }


@ctc.command("tune", cls=SectionedCommand, sections={"Values to try": TRIED, **SECTIONS})
@click.argument("manifest", type=click.Path(path_type=Path))
@click.pass_context
def tune(context: click.Context, /, manifest: Path, **given: object) -> None:
    """Try weights over a development set and print the word error rate of each, best last.

    MANIFEST: JSON lines with "emissions" (or "file", with --model) and "text".
    """
    check_exclusive(context, EXCLUSIVE)
    from sottovoce.cli.ctc_decode import Utterances, word_error_rates

    options = given_as(DecoderOptions, given)
    lists = {one.key: value_of(given, one.param, str) for one in TRIED}
    tried = {
        key.removesuffix("s"): read_list("numbers", flag_of(key), text)
        for key, text in lists.items()
        if text is not None
    }
    if options.lm is None:
        del tried["lm_weight"]
    choices = [dict(zip(tried, chosen, strict=True)) for chosen in itertools.product(*tried.values())]
    results = word_error_rates(Utterances.opened(options), manifest, choices)
    with click.progressbar(
        results, length=len(choices), label="weights", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as rows:
        found = list(rows)
    for row in sorted(found, key=lambda row: -row["wer"]):
        click.echo(json.dumps(row))
