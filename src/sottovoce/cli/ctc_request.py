"""The options that `sottovoce ctc` and `sottovoce ctc tune` share, and the decoder that they ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import click
import torch
from torch import Tensor

from sottovoce.api import Model, load_model
from sottovoce.cli.ctc_inputs import EmissionSource, read_emissions, read_priors, recorded_emissions
from sottovoce.cli.parameters import Finite
from sottovoce.cli.sections import Flag
from sottovoce.ctc import CtcDecoder, CtcFusionOptions, WordOrTokenModel
from sottovoce.decoding.ctc.labels import LabelList, read_labels
from sottovoce.decoding.ctc.search_options import CtcOptions, SearchEngine
from sottovoce.errors import OptionError
from sottovoce.formats.document_words import with_vocabulary
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.neural import WordLanguageModel

FILE = click.Path(path_type=Path)

DECODER: Mapping[str, tuple[Flag, ...]] = {
    "Emissions": (
        click.option("--labels", type=FILE, help="Labels: one a line, or JSON (a list, or vocab.json)."),
        click.option("--blank", type=int, help="Index of the blank; -1 is the last. [default: 0]"),
        click.option("--model", help="A model with a CTC head, such as nano: the files are then recordings."),
        click.option("--logits", is_flag=True, help="The files hold logits: take log_softmax first."),
        click.option(
            "--unnormalised", is_flag=True, help="Emissions are scores on purpose: do not check them."
        ),
        click.option(
            "--frame-ms", type=Finite(above=0), default=20.0, show_default=True, help="Milliseconds a frame."
        ),
        click.option(
            "--acoustic-scale", type=Finite(), default=1.0, show_default=True, help="Times the emissions."
        ),
        click.option(
            "--blank-penalty", type=Finite(), default=0.0, show_default=True, help="Nats taken off the blank."
        ),
        click.option("--label-priors", type=FILE, help="Frequencies of the labels, one a line: divided out."),
        click.option(
            "--prior-scale", type=Finite(), default=1.0, show_default=True, help="Exponent of the priors."
        ),
    ),
    "Search": (
        click.option(
            "--beam-size", type=click.IntRange(1), default=16, show_default=True, help="Beams that stay."
        ),
        click.option("--beam-threshold", type=Finite(), help="Drop beams this far (nats) below the best."),
        click.option("--top-tokens", type=click.IntRange(1), help="Tokens of a frame to extend by."),
        click.option(
            "--blank-skip", type=Finite(0, 1), help="Skip runs of frames that are blank with more than this."
        ),
        click.option(
            "--engine",
            type=click.Choice(get_args(SearchEngine)),
            default="auto",
            show_default=True,
            help="Frame loop.",
        ),
        click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N."),
        click.option(
            "--threads", type=click.IntRange(1), help="Threads that share the work. [default: PyTorch's]"
        ),
    ),
    "Language models": (
        click.option("--lm", type=FILE, help="N-gram model: ARPA, ARPA.gz or KenLM binary."),
        click.option(
            "--lm-weight", type=Finite(), default=0.5, show_default=True, help="How much --lm counts."
        ),
        click.option(
            "--lm-level",
            type=click.Choice(["auto", "token", "word"]),
            default="auto",
            show_default=True,
            help="What --lm is over; auto looks at its words.",
        ),
        click.option(
            "--token-offset",
            type=click.IntRange(0),
            help="Words of the n-gram over labels are chr(label + this): 100 for models made by NeMo.",
        ),
        click.option("--no-look-ahead", is_flag=True, help="Do not use the n-gram's unigrams inside words."),
        click.option("--label-lm", type=FILE, help="N-gram model over labels, beside an --lm over words."),
        click.option(
            "--label-lm-weight",
            type=Finite(),
            default=0.3,
            show_default=True,
            help="How much --label-lm counts.",
        ),
        click.option(
            "--neural-lm", metavar="DIR", help="Hugging Face causal model: folder, GGUF file or name."
        ),
        click.option(
            "--neural-weight",
            type=Finite(),
            default=0.5,
            show_default=True,
            help="How much --neural-lm counts.",
        ),
        click.option(
            "--lm-kept",
            type=Finite(),
            default=0.0,
            show_default=True,
            help="Share of the n-gram's weight that stays beside the neural model.",
        ),
    ),
    "Words": (
        click.option(
            "--word-score", type=Finite(), default=0.0, show_default=True, help="Added for every word."
        ),
        click.option("--lexicon", type=FILE, help="Words and their labels, a word a line; or words alone."),
        click.option(
            "--unknown-words/--no-unknown-words",
            default=None,
            help="Whether words outside the lexicon may be said. [default: only without --lexicon]",
        ),
        click.option(
            "--unknown-score", type=Finite(), default=-10.0, show_default=True, help="Per unknown word."
        ),
        click.option(
            "--case",
            type=click.Choice(["keep", "lower", "upper"]),
            default="keep",
            show_default=True,
            help="Case of the words of --lm and --hotwords.",
        ),
        click.option(
            "--hotwords",
            type=FILE,
            help="Phrases, one a line; a weight after a tab, `[class] weight` above several.",
        ),
        click.option(
            "--vocabulary-from",
            type=FILE,
            multiple=True,
            help="Documents (PDF, DOCX, text) whose rare words are boosted too.",
        ),
        click.option(
            "--hotword-weight",
            type=Finite(),
            default=2.0,
            show_default=True,
            help="What each label of a phrase adds.",
        ),
    ),
}
"""What `decode` and `tune` share, by heading."""


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
    label_lm: Path | None
    label_lm_weight: float
    lm_level: str
    token_offset: int | None
    word_score: float
    lexicon: Path | None
    unknown_words: bool | None
    unknown_score: float
    case: str
    hotwords: Path | None
    vocabulary_from: tuple[Path, ...]
    hotword_weight: float
    neural_lm: str | None
    neural_weight: float
    lm_kept: float
    beam_threshold: float | None
    top_tokens: int | None
    blank_skip: float | None
    acoustic_scale: float
    blank_penalty: float
    label_priors: Path | None
    prior_scale: float
    unnormalised: bool
    no_look_ahead: bool
    engine: SearchEngine
    frame_ms: float
    device: str
    threads: int | None

    def use_threads(self) -> None:
        """Let PyTorch, whose number the search goes by, have as many threads as were asked for."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def loaded_model(self) -> Model | None:
        if self.model is None:
            return None
        # What is tuned over emissions (weights, penalties) was tuned on the states of PyTorch's encoder.
        return load_model(self.model, backend="torch")

    def label_list(self, model: Model | None) -> LabelList:
        """Return the labels of a model's CTC head, or read those of `--labels`. Raises: OptionError."""
        if model is not None and model.ctc_head is not None:
            return LabelList(tuple(model.ctc_head.labels), model.ctc_head.blank)
        if self.labels is None:
            raise OptionError("--labels: expected a file of labels (or --model with a CTC head), got none")
        return read_labels(self.labels)

    def decoder(
        self,
        labels: LabelList,
        n_best: int,
        fusion: CtcFusionOptions,
        lm: WordOrTokenModel | None,
        neural_lm: WordLanguageModel | None = None,
        lexicon: Lexicon | None = None,
    ) -> CtcDecoder:
        """neural_lm, lexicon: in place of those that are named, so that many decoders share one."""
        blank = self.blank if self.blank is not None else labels.blank
        return CtcDecoder(
            labels.names,
            0 if blank is None else blank,
            lm=lm,
            label_lm=self.label_lm,
            lexicon=self.lexicon if lexicon is None else lexicon,
            hotwords=with_vocabulary(
                self.hotwords, self.vocabulary_from, default_weight=fusion.hotword_weight
            ),
            neural_lm=self.neural_lm if neural_lm is None else neural_lm,
            beam_size=self.beam_size,
            n_best=n_best,
            unknown_words=self.unknown_words,
            fusion=fusion,
            options=CtcOptions(
                beam_threshold=self.beam_threshold,
                top_tokens=self.top_tokens,
                blank_skip=self.blank_skip,
                acoustic_scale=self.acoustic_scale,
                blank_penalty=self.blank_penalty,
                label_priors=None if self.label_priors is None else read_priors(self.label_priors),
                prior_scale=self.prior_scale,
                is_normalised=not self.unnormalised,
                frame_s=self.frame_ms / 1000,
                engine=self.engine,
            ),
            device=self.device,
        )

    def fusion(self) -> CtcFusionOptions:
        return CtcFusionOptions(
            lm_weight=self.lm_weight,
            label_lm_weight=self.label_lm_weight,
            word_score=self.word_score,
            unknown_score=self.unknown_score,
            neural_weight=self.neural_weight,
            lm_kept=self.lm_kept,
            hotword_weight=self.hotword_weight,
            look_ahead=not self.no_look_ahead,
            token_offset=self.token_offset,
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
        """Return log-probabilities (T, V) of values (T, V), which are logits where the options say so."""
        return values.log_softmax(dim=-1) if self.logits else values
