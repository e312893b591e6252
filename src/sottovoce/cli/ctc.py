"""`sottovoce ctc`: options; `ctc_decode` does the work. Imports nothing heavy, so that `--help` is fast."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sottovoce.cli.flags import (
    Given,
    SectionedCommand,
    check_exclusive,
    given_as,
    grouped,
    read_values,
    typed_options,
)
from sottovoce.cli.options import DecoderOptions
from sottovoce.ctc.options import CtcFusionOptions, CtcOptions, DecoderConfig
from sottovoce.errors import OptionError, SottovoceError
from sottovoce.options.schema import Option, options_of
from sottovoce.types import Hypothesis, Word

if TYPE_CHECKING:
    from sottovoce.ctc.decoder import StreamUpdate

if TYPE_CHECKING:
    from sottovoce.ctc.tuning import Range

DECODER = tuple(
    option
    for owner in (DecoderOptions, DecoderConfig, CtcOptions, CtcFusionOptions)
    for option in options_of(owner)
)
SECTIONS = {
    heading: grouped(heading, of=DECODER) for heading in ("Emissions", "Search", "Language models", "Words")
}
OUTPUT = (
    Option("Hypotheses per utterance.", key="nbest", kind="integer", default=1, least=1),
    Option("Take the most probable path instead of searching.", key="greedy", kind="flag"),
    Option("Utterances decoded together.", key="batch_size", kind="integer", default=8, least=1),
    Option(
        "Decode each utterance as a stream; print a line for each chunk that changes the text.",
        key="stream",
        kind="flag",
    ),
    Option("Milliseconds of a chunk.", key="chunk_ms", kind="number", default=80.0, above=0.0),
)
TUNING = (
    Option(
        "Weights to tune: `NAME` or `NAME=LOW..HIGH`, separated by commas; also beam_size.",
        key="tune",
        unset="those of the given models",
    ),
    Option("Decodings of the set in a search.", key="decodings", kind="integer", default=64, least=2),
    Option("Folds of the cross-validation.", key="folds", kind="integer", default=5, least=1),
    Option("Random seed of the search.", key="seed", kind="integer", default=0, least=0),
    Option("The decoder.toml to write.", key="output", short="-o", kind="file"),
)
EXCLUSIVE = {
    "model": ("labels", "blank", "frame_ms", "logits"),
    "greedy": ("lm", "label_lm", "lexicon", "hotwords", "vocabulary_from", "neural_lm", "nbest", "stream"),
}
"""Mutually exclusive options."""


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
    several networks. With --model, FILES are recordings.
    """
    check_exclusive(context, EXCLUSIVE)
    from sottovoce.cli.ctc_decode import Utterances, decoded, streamed

    utterances = Utterances.opened(given_as(DecoderOptions, given), _typed(context, given))
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


def _typed(context: click.Context, given: Given) -> dict[str, object]:
    """Return the values of the options that were typed, by key."""
    values, typed = read_values(given, DECODER), typed_options(context)
    return {option.key: values[option.key] for option in DECODER if option.param in typed}


def _stream_lines(name: str, update: StreamUpdate) -> Iterator[dict[str, object]]:
    """Yield the line of a chunk with new or committed words, or the final lines."""
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


@ctc.command("tune", cls=SectionedCommand, sections={"Tuning": TUNING, **SECTIONS})
@click.argument("manifest", type=click.Path(path_type=Path))
@click.pass_context
def tune(
    context: click.Context,
    /,
    manifest: Path,
    tune: str | None,
    decodings: int,
    folds: int,
    seed: int,
    output: Path | None,
    **given: object,
) -> None:
    """Choose the weights of a decoder on a development set, and write its decoder.toml.

    Prints one JSON line: word error rates before and after, and by cross-validation with a 95 % interval.
    MANIFEST: JSON lines with "emissions" (or "file", with --model) and "text"; utterances of one "speaker"
    stay in one fold.
    """
    check_exclusive(context, EXCLUSIVE)
    from sottovoce.cli.ctc_decode import Utterances, tunable, tuned
    from sottovoce.ctc.options import write_config

    utterances = Utterances.opened(given_as(DecoderOptions, given), _typed(context, given))
    ranges = _ranges(tune, tunable(utterances.config, utterances.options.vocabulary_from))
    hidden = not sys.stderr.isatty()
    with click.progressbar(
        length=decodings * (folds + 1), label="tune", file=sys.stderr, hidden=hidden
    ) as bar:
        found = tuned(
            utterances,
            manifest,
            ranges,
            n_folds=folds,
            n_decodings=decodings,
            seed=seed,
            progress=lambda: bar.update(1),
        )
    if output is not None:
        write_config(output, found.config)
    held_out = found.held_out
    row = {
        "wer": _rounded(found.after.rate),
        "before": _rounded(found.before.rate),
        "held_out": held_out and _rounded(held_out.rate),
        "interval": held_out and [_rounded(held_out.low), _rounded(held_out.high)],
        **found.weights,
        "decodings": found.n_decodings,
    }
    click.echo(json.dumps(row))


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 4)


def _ranges(text: str | None, tunable: tuple[str, ...]) -> dict[str, Range]:
    """Read `--tune`. Raises: OptionError."""
    from sottovoce.ctc.tuning import RANGES

    names = (*tunable, "beam_size")
    found: dict[str, Range] = {}
    for part in tunable if text is None else text.split(","):
        name, _, limits = part.strip().partition("=")
        name = name.replace("-", "_")
        if name not in names:
            raise OptionError(f"--tune: expected one of {', '.join(names)}, got '{part.strip()}'")
        found[name] = RANGES[name]
        if limits:
            low, _, high = limits.partition("..")
            try:
                found[name] = replace(RANGES[name], low=float(low), high=float(high))
            except ValueError:
                raise OptionError(f"--tune: expected {name}=LOW..HIGH, got '{part.strip()}'") from None
    return found
