"""The options of a CTC decoder on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from sottovoce.decoding.ctc.search_options import SearchEngine
from sottovoce.options.schema import Option

if TYPE_CHECKING:
    from sottovoce.ctc.models import Case, Level

_emissions = partial(Option, group="Emissions")
_search = partial(Option, group="Search")
_model = partial(Option, group="Language models")
_words = partial(Option, group="Words")


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """The options that `decode` and `tune` share; names are those of `CtcOptions` and `CtcFusionOptions`."""

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
