"""`sottovoce ctc`: decoding of CTC emissions with language models, and tuning of their weights.

Only the options; `ctc_decode` does the work. Imports nothing heavy, so that `--help` is fast.
"""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from sottovoce.cli.flags import SectionedCommand, check_exclusive, grouped, read_values
from sottovoce.decoding.ctc.search_options import SearchEngine
from sottovoce.options.schema import Option, made, options_of
from sottovoce.types import Hypothesis

if TYPE_CHECKING:
    from sottovoce.ctc.models import Case, Level


_emissions = partial(Option, group="Emissions")
_search = partial(Option, group="Search")
_model = partial(Option, group="Language models")
_words = partial(Option, group="Words")


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    labels: Path | None = _emissions(
        "Labels: one a line, or JSON (a list, or vocab.json).", kind="file"
    ).as_field(None)
    blank: int | None = _emissions("Index of the blank; -1 is the last.", unset="default: 0").as_field(None)
    model: str | None = _emissions(
        "A model with a CTC head, such as nano: the files are then recordings."
    ).as_field(None)
    logits: bool = _emissions("The files hold logits: take log_softmax first.").as_field(False)
    is_normalised: bool = _emissions(
        "Emissions are scores on purpose: do not check them.", flag="--unnormalised", negated=True
    ).as_field(True)
    frame_s: float = _emissions(
        "Milliseconds a frame.", key="frame_ms", above=0.0, cli_default=20.0, reads=lambda ms: ms / 1000
    ).as_field(0.02)
    acoustic_scale: float = _emissions("Times the emissions.").as_field(1.0)
    blank_penalty: float = _emissions("Nats taken off the blank.").as_field(0.0)
    label_priors: Path | None = _emissions(
        "Frequencies of the labels, one a line: divided out.", kind="file"
    ).as_field(None)
    prior_scale: float = _emissions("Exponent of the priors.").as_field(1.0)

    beam_size: int = _search("Beams that stay.", least=1).as_field(16)
    beam_threshold: float | None = _search("Drop beams this far (nats) below the best.").as_field(None)
    top_tokens: int | None = _search("Tokens of a frame to extend by.", least=1).as_field(None)
    blank_skip: float | None = _search(
        "Skip runs of frames that are blank with more than this.", least=0.0, most=1.0
    ).as_field(None)
    engine: SearchEngine = _search("Frame loop.", choices=get_args(SearchEngine)).as_field("auto")
    device: str = _search("cpu, cuda or cuda:N.").as_field("cpu")
    threads: int | None = _search(
        "Threads that share the work.", unset="default: PyTorch's", least=1
    ).as_field(None)

    lm: Path | None = _model("N-gram model: ARPA, ARPA.gz or KenLM binary.", kind="file").as_field(None)
    lm_weight: float = _model("How much --lm counts.").as_field(0.5)
    level: Level = _model(
        "What --lm is over; auto looks at its words.", key="lm_level", choices=("auto", "token", "word")
    ).as_field("auto")
    token_offset: int | None = _model(
        "Words of the n-gram over labels are chr(label + this): 100 for models made by NeMo.", least=0
    ).as_field(None)
    look_ahead: bool = _model(
        "Do not use the n-gram's unigrams inside words.", flag="--no-look-ahead", negated=True
    ).as_field(True)
    label_lm: Path | None = _model(
        "N-gram model over labels, beside an --lm over words.", kind="file"
    ).as_field(None)
    label_lm_weight: float = _model("How much --label-lm counts.").as_field(0.3)
    neural_lm: str | None = _model(
        "Hugging Face causal model: folder, GGUF file or name.", metavar="DIR"
    ).as_field(None)
    neural_weight: float = _model("How much --neural-lm counts.").as_field(0.5)
    lm_kept: float = _model("Share of the n-gram's weight that stays beside the neural model.").as_field(0.0)

    word_score: float = _words("Added for every word.").as_field(0.0)
    lexicon: Path | None = _words(
        "Words and their labels, a word a line; or words alone.", kind="file"
    ).as_field(None)
    unknown_words: bool | None = _words(
        "Whether words outside the lexicon may be said.",
        unset="default: only without --lexicon",
        switch=True,
    ).as_field(None)
    unknown_score: float = _words("Per unknown word.").as_field(-10.0)
    case: Case = _words(
        "Case of the words of --lm and --hotwords.", choices=("keep", "lower", "upper")
    ).as_field("keep")
    hotwords: Path | None = _words(
        "Phrases, one a line; a weight after a tab, `[class] weight` above several.", kind="file"
    ).as_field(None)
    vocabulary_from: tuple[Path, ...] = _words(
        "Documents (PDF, DOCX, text) whose rare words are boosted too.", kind="file", many=True
    ).as_field(())
    hotword_weight: float = _words("What each label of a phrase adds.").as_field(2.0)


DECODER = options_of(DecoderOptions)
SECTIONS = {
    heading: grouped(heading, of=DECODER) for heading in ("Emissions", "Search", "Language models", "Words")
}
OUTPUT = (
    Option("Hypotheses per utterance.", key="nbest", kind="integer", default=1, least=1),
    Option("The likeliest path instead of a search.", key="greedy", kind="flag"),
    Option("Utterances decoded at once.", key="batch_size", kind="integer", default=8, least=1),
)
TRIED = (
    Option("For --lm-weight.", key="lm_weights", kind="numbers", default="0.2,0.4,0.6,0.8,1.0"),
    Option("For --word-score.", key="word_scores", kind="numbers", default="-1,0,1,2"),
    Option("For --neural-weight.", key="neural_weights", kind="numbers", unset="that one alone"),
    Option("For --hotword-weight.", key="hotword_weights", kind="numbers", unset="that one alone"),
)
EXCLUSIVE = {
    "model": ("labels", "blank", "frame_ms", "logits"),
    "greedy": ("lm", "label_lm", "lexicon", "hotwords", "vocabulary_from", "neural_lm", "nbest"),
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
def decode(context: click.Context, /, files: tuple[Path, ...], **given: Any) -> int:
    """Decode FILES into one JSON line per hypothesis, best first.

    FILES: .npy, .npz or .csv; - is an .npy from standard input; recordings with --model.
    """
    check_exclusive(context, EXCLUSIVE)
    from sottovoce.cli.ctc_decode import Utterances, decoded

    utterances = Utterances.opened(made(DecoderOptions, read_values(given, DECODER)))
    n_failed = 0
    for name, outcome in decoded(utterances, files, given["nbest"], given["batch_size"], given["greedy"]):
        if isinstance(outcome, list):
            for rank, hypothesis in enumerate(outcome):
                click.echo(json.dumps(_line(name, rank, hypothesis), ensure_ascii=False))
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


@ctc.command("tune", cls=SectionedCommand, sections={"Values to try": TRIED, **SECTIONS})
@click.argument("manifest", type=click.Path(path_type=Path))
@click.pass_context
def tune(context: click.Context, /, manifest: Path, **given: Any) -> None:
    """Try weights over a development set and print the word error rate of each, best last.

    MANIFEST: JSON lines with "emissions" (or "file", with --model) and "text".
    """
    check_exclusive(context, EXCLUSIVE)
    from sottovoce.cli.ctc_decode import Utterances, word_error_rates

    options = made(DecoderOptions, read_values(given, DECODER))
    lists = read_values(given, TRIED)
    tried = {one.key.removesuffix("s"): lists[one.key] for one in TRIED if lists[one.key] is not None}
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
