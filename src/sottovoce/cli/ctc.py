"""`sottovoce ctc`: decode the emissions of any CTC model with language models, and tune their weights."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click
import torch
from torch import Tensor

from sottovoce.api import Model, load_model
from sottovoce.cli.ctc_inputs import EmissionSource, read_emissions, recorded_emissions
from sottovoce.ctc import CtcDecoder, CtcFusionOptions, WordOrTokenModel, load_ngram
from sottovoce.decoding.ctc.labels import LabelList, read_labels
from sottovoce.decoding.ctc.options import CtcOptions
from sottovoce.errors import ManifestError, OptionError, SottovoceError
from sottovoce.evaluation.wer import ErrorCounts, align
from sottovoce.types import Hypothesis

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path)


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


DECODER = (
    click.option("--labels", type=_FILE, help="Labels: one a line, or JSON (a list, or vocab.json)."),
    click.option("--blank", type=int, help="Index of the blank; -1 is the last. [default: 0]"),
    click.option("--model", help="A model with a CTC head, such as nano: the files are then recordings."),
    click.option("--logits", is_flag=True, help="The files hold logits: take log_softmax first."),
    click.option("--beam-size", type=click.IntRange(1), default=16, show_default=True),
    click.option("--lm", type=_FILE, help="N-gram model: ARPA, ARPA.gz or KenLM binary."),
    click.option("--lm-weight", type=float, default=0.5, show_default=True),
    click.option("--lm-level", type=click.Choice(["auto", "token", "word"]), default="auto"),
    click.option("--word-score", type=float, default=0.0, show_default=True, help="Added for every word."),
    click.option("--lexicon", type=_FILE, help="Words and their labels, a word a line; or words alone."),
    click.option("--unknown-score", type=float, default=-10.0, show_default=True, help="Per unknown word."),
    click.option("--case", type=click.Choice(["keep", "lower", "upper"]), default="keep", show_default=True),
    click.option("--hotwords", type=_FILE, help="Phrases, one a line, with an optional weight after a tab."),
    click.option(
        "--hotword-weight",
        type=float,
        default=2.0,
        show_default=True,
        help="What each label of a phrase adds.",
    ),
    click.option("--neural-lm", metavar="DIR", help="Hugging Face causal model: folder or name."),
    click.option("--neural-weight", type=float, default=0.5, show_default=True),
    click.option("--beam-threshold", type=float, help="Drop beams this far (nats) below the best."),
    click.option("--top-tokens", type=click.IntRange(1), help="Tokens of a frame to extend by."),
    click.option("--blank-skip", type=float, help="Skip runs of frames that are blank with more than this."),
    click.option("--frame-ms", type=float, default=20.0, show_default=True, help="Milliseconds a frame."),
    click.option("--device", default="cpu", show_default=True),
)


def _decoder_options(command: Decorated) -> Decorated:
    for option in reversed(DECODER):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class DecoderRequest:
    """The options that `decode` and `tune` share."""

    labels: Path | None
    blank: int | None
    model: str | None
    logits: bool
    beam_size: int
    lm: Path | None
    lm_weight: float
    lm_level: str
    word_score: float
    lexicon: Path | None
    unknown_score: float
    case: str
    hotwords: Path | None
    hotword_weight: float
    neural_lm: str | None
    neural_weight: float
    beam_threshold: float | None
    top_tokens: int | None
    blank_skip: float | None
    frame_ms: float
    device: str

    def loaded_model(self) -> Model | None:
        return None if self.model is None else load_model(self.model)

    def label_list(self, model: Model | None) -> LabelList:
        if model is not None and model.ctc_head is not None:
            return LabelList(tuple(model.ctc_head.labels), model.ctc_head.blank)
        if self.labels is None:
            raise OptionError("--labels: expected a file of labels (or --model with a CTC head), got none")
        return read_labels(self.labels)

    def decoder(
        self, labels: LabelList, n_best: int, fusion: CtcFusionOptions, lm: WordOrTokenModel | None
    ) -> CtcDecoder:
        blank = self.blank if self.blank is not None else labels.blank
        return CtcDecoder(
            labels.names,
            0 if blank is None else blank,
            lm=lm,
            lexicon=self.lexicon,
            hotwords=self.hotwords,
            neural_lm=self.neural_lm,
            beam_size=self.beam_size,
            n_best=n_best,
            fusion=fusion,
            options=CtcOptions(
                beam_threshold=self.beam_threshold,
                top_tokens=self.top_tokens,
                blank_skip=self.blank_skip,
                frame_s=self.frame_ms / 1000,
            ),
            device=self.device,
        )

    def fusion(self) -> CtcFusionOptions:
        return CtcFusionOptions(
            lm_weight=self.lm_weight,
            word_score=self.word_score,
            unknown_score=self.unknown_score,
            neural_weight=self.neural_weight,
            hotword_weight=self.hotword_weight,
            level=self.lm_level,  # type: ignore[arg-type]  # click's choices are the same
            case=self.case,  # type: ignore[arg-type]
        )

    def sources(self, files: Sequence[Path], model: Model | None) -> Iterator[EmissionSource]:
        for path in files:
            if model is not None:
                yield recorded_emissions(path, model)
            else:
                yield from read_emissions(path)

    def prepared(self, values: Tensor) -> Tensor:
        return values.log_softmax(dim=-1) if self.logits else values


@ctc.command("decode")
@click.argument("files", nargs=-1, required=True, type=_FILE)
@_decoder_options
@click.option(
    "--nbest", type=click.IntRange(1), default=1, show_default=True, help="Hypotheses per utterance."
)
@click.option("--greedy", is_flag=True, help="The likeliest path instead of a search.")
def decode(files: tuple[Path, ...], nbest: int, greedy: bool, **options: Any) -> int:
    """Decode FILES (.npy, .npz, .csv) into one JSON line per hypothesis, best first."""
    request = DecoderRequest(**options)
    model = request.loaded_model()
    decoder = request.decoder(request.label_list(model), nbest, request.fusion(), load_ngram(request.lm))
    n_failed = 0
    for path in files:
        try:
            for source in request.sources([path], model):
                values = request.prepared(source.values)
                found = decoder.greedy(values) if greedy else decoder.decode(values)[0]
                for rank, hypothesis in enumerate(found):
                    click.echo(json.dumps(_line(source.name, rank, hypothesis), ensure_ascii=False))
        except SottovoceError as error:
            if len(files) == 1:
                raise
            click.echo(f"error: {path}: {error}", err=True)
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
        "words": words,
        "tokens": list(hypothesis.tokens),
    }


@ctc.command("tune")
@click.argument("manifest", type=_FILE)
@_decoder_options
@click.option("--lm-weights", default="0.2,0.4,0.6,0.8,1.0", show_default=True, help="Values to try.")
@click.option("--word-scores", default="-1,0,1,2", show_default=True, help="Values to try.")
def tune(manifest: Path, lm_weights: str, word_scores: str, **options: Any) -> None:
    """Try weights over a development set and print the word error rate of each, best last.

    MANIFEST: JSON lines with "emissions" (or "file", with --model) and "text".
    """
    request = DecoderRequest(**options)
    model = request.loaded_model()
    labels = request.label_list(model)
    paths, texts = _development_set(manifest)
    values = [request.prepared(next(request.sources([path], model)).values) for path in paths]
    lengths = torch.tensor([len(each) for each in values])
    batch = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
    lm = load_ngram(request.lm)
    tried: list[dict[str, float]] = []
    for lm_weight, word_score in itertools.product(_numbers(lm_weights), _numbers(word_scores)):
        fusion = replace(request.fusion(), lm_weight=lm_weight, word_score=word_score)
        found = request.decoder(labels, 1, fusion, lm).decode(batch, lengths)
        rate = _word_error_rate(texts, [best[0].text if best else "" for best in found])
        tried.append({"wer": round(rate, 4), "lm_weight": lm_weight, "word_score": word_score})
    for row in sorted(tried, key=lambda row: -row["wer"]):
        click.echo(json.dumps(row))


def _development_set(manifest: Path) -> tuple[list[Path], list[str]]:
    paths: list[Path] = []
    texts: list[str] = []
    number = 0
    try:
        for line in manifest.read_text(encoding="utf-8").splitlines():
            number += 1
            if line.strip():
                row = json.loads(line)
                paths.append(manifest.parent / str(row.get("emissions") or row["file"]))
                texts.append(str(row["text"]))
    except OSError as error:
        raise ManifestError(f"{manifest}: expected JSON lines, got {error}") from error
    except (ValueError, KeyError, AttributeError) as error:
        raise ManifestError(
            f"{manifest}, line {number}: expected JSON with 'emissions' and 'text', got {error}"
        ) from error
    if not paths:
        raise ManifestError(f"{manifest}: expected at least one utterance, got none")
    return paths, texts


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise OptionError(f"values to try: expected numbers with commas, got {text!r}") from error


def _word_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    counts = [align(r.split(), h.split()) for r, h in zip(references, hypotheses, strict=True)]
    total: ErrorCounts = sum(counts[1:], start=counts[0])
    return total.n_errors / max(total.n_reference, 1)
