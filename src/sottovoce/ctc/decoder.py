"""A decoder of the emissions of any CTC model, with language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from sottovoce.backends.registry import choose_device
from sottovoce.ctc.emission_decoder import EmissionDecoder
from sottovoce.ctc.emissions import Emitted, Lengths, as_tensors
from sottovoce.ctc.labels import Labels
from sottovoce.ctc.models import CtcFusionOptions, DecoderParts, Spellings, WordOrTokenModel, load_ngram
from sottovoce.ctc.search_options import CtcOptions
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.neural import WordLanguageModel
from sottovoce.lm.phrase_lists import Hotwords, listed_phrases
from sottovoce.types import Hypothesis


class CtcDecoder(EmissionDecoder):
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
        named = Labels.of(labels, blank)
        where = choose_device(device) if isinstance(device, str) else device
        options = options or CtcOptions()
        options = replace(
            options,
            beam_size=options.beam_size if beam_size is None else beam_size,
            n_best=options.n_best if n_best is None else n_best,
        )
        parts = DecoderParts(named, fusion or CtcFusionOptions(), where)
        model = load_ngram(lm)
        phrases = listed_phrases(hotwords, default_weight=parts.options.hotword_weight)
        beside = load_ngram(label_lm)
        scorer, self.lexicon = parts.scorer(model, lexicon, phrases, unknown_words, beside)
        """The words' tree, made or given; None without a lexicon."""
        words = () if self.lexicon is None else self.lexicon.words
        self._history = parts.history_scorer(neural_lm, model, words)
        super().__init__(
            named, options, scorer=scorer, lexicon=words, history_scorer=self._history, device=where
        )

    def decode(self, log_probs: Emitted, lengths: Lengths | None = None) -> list[list[Hypothesis]]:
        """Decode log-probabilities (B, T, V) or (T, V); return each utterance's hypotheses, best first.

        log_probs: a tensor, a NumPy array or lists. lengths: (B,) frames of each utterance; None: all.

        Raises:
            InputError: these are not log-probabilities of these labels.
        """
        if self._history is not None:
            self._history.forget()
        return super().decode(log_probs, lengths)

    def decode_logits(self, logits: Emitted, lengths: Lengths | None = None) -> list[list[Hypothesis]]:
        """Decode logits (B, T, V), such as those of transformers' `Wav2Vec2ForCTC`; see `decode`."""
        values, counts = as_tensors(logits, lengths, self._device)
        return self.decode(values.float().log_softmax(dim=-1), counts)
