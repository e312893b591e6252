"""`sottovoce ctc`: decode the emissions of any CTC model with language models, and tune their weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from sottovoce.cli.ctc_batch import BatchedDecoding, Decoded
from sottovoce.cli.ctc_checks import check_companions, check_greedy, check_tried, check_words
from sottovoce.cli.ctc_request import DECODER, FILE, DecoderRequest
from sottovoce.cli.ctc_tune import DevelopmentSet, combinations, tried
from sottovoce.cli.flags import SectionedCommand, numbers
from sottovoce.ctc import load_ngram
from sottovoce.types import Hypothesis


class _DecodeByDefault(click.Group):
    """`ctc FILE` decodes; other subcommands are named."""

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


@ctc.command(
    "decode",
    cls=SectionedCommand,
    sections={
        **DECODER,
        "Output": (
            click.option(
                "--nbest",
                type=click.IntRange(1),
                default=1,
                show_default=True,
                help="Hypotheses per utterance.",
            ),
            click.option("--greedy", is_flag=True, help="The likeliest path instead of a search."),
            click.option(
                "--batch-size",
                type=click.IntRange(1),
                default=8,
                show_default=True,
                help="Utterances decoded at once.",
            ),
        ),
    },
)
@click.argument("files", nargs=-1, required=True, type=FILE)
def decode(files: tuple[Path, ...], nbest: int, greedy: bool, batch_size: int, **options: Any) -> int:
    """Decode FILES into one JSON line per hypothesis, best first.

    FILES: .npy, .npz or .csv; - is an .npy from standard input; recordings with --model.
    """
    context = click.get_current_context()
    check_companions(context)
    if greedy:
        check_greedy(context)
    request = DecoderRequest(**options)
    request.use_threads()
    model = request.loaded_model()
    decoder = request.decoder(request.label_list(model), nbest, request.fusion(), load_ngram(request.lm))
    check_words(context, decoder)
    n_failed = 0
    for outcome in BatchedDecoding(request, model, decoder, batch_size, greedy).outcomes(files):
        if isinstance(outcome, Decoded):
            for rank, hypothesis in enumerate(outcome.found):
                click.echo(json.dumps(_line(outcome.name, rank, hypothesis), ensure_ascii=False))
            continue
        if len(files) == 1:
            raise outcome
        click.echo(f"error: {outcome}", err=True)
        n_failed += 1
    return int(n_failed > 0)


def _line(name: str, rank: int, hypothesis: Hypothesis) -> dict[str, object]:
    words = [
        {
            "word": word.word,
            "start": round(word.start, 3),
            "end": round(word.end, 3),
            "probability": round(word.probability, 4),
        }
        for word in hypothesis.words
    ]
    return {
        "id": name,
        "rank": rank,
        "text": hypothesis.text,
        "score": round(hypothesis.score, 5),
        "acoustic_score": round(hypothesis.acoustic_score, 5),
        "lm_score": round(hypothesis.lm_score, 5),
        "posterior": None if hypothesis.posterior is None else round(hypothesis.posterior, 5),
        "unfinished": hypothesis.is_unfinished,
        "words": words,
        "tokens": list(hypothesis.tokens),
    }


@ctc.command(
    "tune",
    cls=SectionedCommand,
    sections={
        "Values to try": (
            click.option(
                "--lm-weights", default="0.2,0.4,0.6,0.8,1.0", show_default=True, help="For --lm-weight."
            ),
            click.option("--word-scores", default="-1,0,1,2", show_default=True, help="For --word-score."),
            click.option("--neural-weights", help="For --neural-weight. [that one alone]"),
            click.option("--hotword-weights", help="For --hotword-weight. [that one alone]"),
        ),
        **DECODER,
    },
)
@click.argument("manifest", type=FILE)
def tune(
    manifest: Path,
    lm_weights: str,
    word_scores: str,
    neural_weights: str | None,
    hotword_weights: str | None,
    **options: Any,
) -> None:
    """Try weights over a development set and print the word error rate of each, best last.

    MANIFEST: JSON lines with "emissions" (or "file", with --model) and "text".
    """
    context = click.get_current_context()
    check_companions(context)
    check_tried(context)
    request = DecoderRequest(**options)
    request.use_threads()
    given = {
        "lm_weight": lm_weights if request.lm else None,
        "word_score": word_scores,
        "neural_weight": neural_weights,
        "hotword_weight": hotword_weights,
    }
    choices = combinations(
        {
            name: numbers(f"--{name.replace('_', '-')}s", text)
            for name, text in given.items()
            if text is not None
        }
    )
    model = request.loaded_model()
    dev = DevelopmentSet.read(manifest, request, model)
    results = tried(request, request.label_list(model), dev, choices)
    with click.progressbar(
        results, length=len(choices), label="weights", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as rows:
        found = list(rows)
    for row in sorted(found, key=lambda row: -row["wer"]):
        click.echo(json.dumps(row))
