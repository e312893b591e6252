"""A decoder of the emissions of any CTC model, with language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.backends.registry import choose_device
from sottovoce.ctc.models import CtcFusionOptions, DecoderParts, Spellings, WordOrTokenModel, load_ngram
from sottovoce.decoding.ctc.emission_decoder import EmissionDecoder, greedy_decode
from sottovoce.decoding.ctc.emissions import EmissionScaling
from sottovoce.decoding.ctc.labels import Labels
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.decoding.ctc.state import PrefixState
from sottovoce.errors import InputError
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.neural import WordLanguageModel
from sottovoce.lm.phrase_lists import Hotwords, listed_phrases
from sottovoce.types import Hypothesis, Partial

Emitted = (
    Tensor
    | npt.NDArray[np.float16 | np.float32 | np.float64]
    | Sequence[Sequence[float]]
    | Sequence[Sequence[Sequence[float]]]
)
"""Emissions (B, T, V) or (T, V): a tensor, a NumPy array or lists."""
Lengths = Tensor | npt.NDArray[np.int32 | np.int64] | Sequence[int]


class CtcDecoder:
    """Decodes the emissions of any CTC model, with language models.

    labels: one name per output.
    blank: its index, -1 for the last.
    lm: an ARPA file (.gz too), a KenLM binary (extra `kenlm`) or a model.
    label_lm: the same over labels, next to an `lm` over words.
    lexicon: a file as in `lm.lexicon.read_lexicon`, (word, label ids) pairs, or the tree of another
    decoder with the same labels and hotwords. Without one, a word model's vocabulary is spelled in
    characters, and other words are unknown words.
    hotwords: a file, phrases, or phrases with weights per label.
    neural_lm: a Hugging Face causal model's folder or name (extra `neural-lm`) or a model, which replaces
    the n-gram's word scores.
    beam_size, n_best: override the options; None: as the options.
    unknown_words: whether words outside the lexicon are allowed; None: only without a given lexicon.

    Raises:
        OptionError: options that do not fit together.
        LanguageModelError: files or words that cannot be used.
        MissingExtraError: a model whose package is not installed.
    """

    def __init__(
        self,
        labels: Sequence[str],
        blank: int = 0,
        *,
        lm: str | Path | WordOrTokenModel | None = None,
        label_lm: str | Path | WordOrTokenModel | None = None,
        lexicon: str | Path | Spellings | Lexicon | None = None,
        hotwords: Hotwords | None = None,
        neural_lm: str | Path | WordLanguageModel | None = None,
        beam_size: int | None = None,
        n_best: int | None = None,
        unknown_words: bool | None = None,
        fusion: CtcFusionOptions | None = None,
        options: CtcOptions | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.labels = Labels.of(labels, blank)
        self._device = choose_device(device) if isinstance(device, str) else device
        options = options or CtcOptions()
        options = replace(
            options,
            beam_size=options.beam_size if beam_size is None else beam_size,
            n_best=options.n_best if n_best is None else n_best,
        )
        parts = DecoderParts(self.labels, fusion or CtcFusionOptions(), self._device)
        model = load_ngram(lm)
        phrases = listed_phrases(hotwords, default_weight=parts.options.hotword_weight)
        beside = load_ngram(label_lm)
        scorer, self.lexicon = parts.scorer(model, lexicon, phrases, unknown_words, beside)
        """The words' tree, made or given; None without a lexicon."""
        words = () if self.lexicon is None else self.lexicon.words
        self._history = parts.history_scorer(neural_lm, model, words)
        self._decoder = EmissionDecoder(
            self.labels, options, scorer=scorer, lexicon=words, history_scorer=self._history
        )

    @property
    def options(self) -> CtcOptions:
        return self._decoder.options

    def decode(self, log_probs: Emitted, lengths: Lengths | None = None) -> list[list[Hypothesis]]:
        """Decode log-probabilities (B, T, V) or (T, V); return each utterance's hypotheses, best first.

        log_probs: a tensor, a NumPy array or lists. lengths: (B,) frames of each utterance; None: all.

        Raises:
            InputError: these are not log-probabilities of these labels.
        """
        if self._history is not None:
            self._history.forget()
        return self._decoder.decode(*self._tensors(log_probs, lengths))

    def decode_logits(self, logits: Emitted, lengths: Lengths | None = None) -> list[list[Hypothesis]]:
        """Decode logits (B, T, V), such as those of transformers' `Wav2Vec2ForCTC`; see `decode`."""
        values, counts = self._tensors(logits, lengths)
        return self.decode(values.float().log_softmax(dim=-1), counts)

    def greedy(self, log_probs: Emitted, lengths: Lengths | None = None) -> list[Hypothesis]:
        """Decode emissions (B, T, V) or (T, V) greedily, without language models.

        Raises:
            InputError: as `decode`.
        """
        scaling = EmissionScaling.from_options(self.labels, self.options)
        frame_s = self.options.frame_s
        values, counts = self._tensors(log_probs, lengths)
        return greedy_decode(self.labels, values, counts, frame_s=frame_s, scaling=scaling)

    def start(self, n_batch: int = 1) -> PrefixState:
        """Make the state of n_batch streams before their first frame."""
        return self._decoder.start(n_batch, self._device)

    def decode_chunk(
        self, state: PrefixState, log_probs: Emitted, lengths: Lengths | None = None
    ) -> list[str]:
        """Advance the state over the next frames (B, T, V); return the best texts so far, which may
        change.

        Raises:
            InputError: as `decode`.
        """
        return self._decoder.decode_chunk(state, *self._tensors(log_probs, lengths))

    def committed(self, state: PrefixState) -> list[Partial]:
        """Return the words committed since the last call, which no further frame can change.

        `utterance` is the stream's row.
        """
        return self._decoder.committed(state)

    def partials(self, state: PrefixState) -> list[list[Hypothesis]]:
        """Return the n_best texts so far of each stream, best first; the state is unchanged.

        The first is that of `decode_chunk`; tokens and words follow the committed ones.
        """
        return self._decoder.partials(state)

    def finish(self, state: PrefixState) -> list[list[Hypothesis]]:
        """Return the hypotheses of finished streams; the state is unchanged."""
        return self._decoder.finish(state)

    def _tensors(self, emissions: Emitted, lengths: Lengths | None) -> tuple[Tensor, Tensor | None]:
        try:
            values = torch.as_tensor(emissions, device=self._device)
            return values, None if lengths is None else torch.as_tensor(lengths)
        except (TypeError, ValueError) as error:
            raise InputError(f"emissions: expected numbers (B, T, V), got {error}") from error
