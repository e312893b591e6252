"""The CTC prefix search in the native kernels package, on the CPU, with the same results.

The search in tensors replaces it on CUDA, with language models without arrays, and without the package.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from sottovoce.ctc.align import CUT_MARGIN, NEVER, Cut, TokenSpans
from sottovoce.ctc.homophones import Homophone, padded
from sottovoce.ctc.options import SearchEngine
from sottovoce.ctc.search import PrefixSearch, PrefixState, first_state
from sottovoce.errors import OptionError
from sottovoce.kernels import load_kernels
from sottovoce.lm.base import CACHE_ENTRY, Automaton, Endings, FlatLexicon, FlatScorer, Records

logger = logging.getLogger(__name__)

_LEAST_FRAMES = 1000
"""Fewer frames of all utterances take less time than waking threads."""
_WRITTEN = (
    *("blank", "token", "lm", "adjustment", "merged", "length", "last", "arc"),
    *("is_prefix", "is_label_prefix", "scores"),
)
"""Tensors of a state that are written in place."""
_ARRAYS_OF_MODELS = (
    *("first", "keys", "weights", "targets", "backoff", "parent", "root_weights", "root_targets"),
    *("ends", "ids", "begins"),
)
_DTYPES = (np.int64, np.float32, np.bool_, CACHE_ENTRY)
_ARRAYS_OF_LEXICONS = ("keys", "words", "first_word", "ahead", "word_scores", "may_begin", "may_go_on")


class NativeSearch(PrefixSearch):
    """`PrefixSearch` with a native frame loop; utterances run on as many threads as PyTorch has.

    With language models without arrays only alignment and checks are native.
    """

    def __init__(self, plain: PrefixSearch, kernels: ModuleType) -> None:
        super().__init__(
            plain.n_labels,
            plain.blank,
            plain.beam_size,
            scorer=plain.scorer,
            max_homophones=plain.max_homophones,
            beam_threshold=plain.beam_threshold,
            top_tokens=plain.n_tokens,
        )
        self._kernels = kernels
        self._arrays = FlatScorer(self.n_labels) if self.scorer is None else self.scorer.flat()
        if self._arrays is None:
            logger.debug("language models without arrays: the search runs in tensors")
            return
        words, tokens = ([self._model(*each) for each in part] for part in self._arrays[1:3])
        lexicon = None if self._arrays.lexicon is None else self._lexicon(self._arrays.lexicon)
        self._native = kernels.Scorer(self.n_labels, lexicon, words, tokens)
        if self.scorer is not None:
            self._first = self.scorer.start(1, torch.device("cpu"))
        self._settings = kernels.Settings(
            blank=self.blank,
            initial_symbol=self.initial_symbol,
            n_labels=self.n_labels,
            beam_size=self.beam_size,
            n_tokens=self.n_tokens,
            max_homophones=self.max_homophones or 0,
            threshold=float("inf") if self.beam_threshold is None else self.beam_threshold,
        )

    def start(self, n_batch: int, device: torch.device) -> PrefixState:
        if self.scorer is None or self._arrays is None:
            return super().start(n_batch, device)
        scores = self._first.repeat(n_batch * self.beam_size, 1)
        return first_state(n_batch, self.beam_size, self.initial_symbol, scores)

    def run(self, state: PrefixState, log_probs: Tensor, lengths: Tensor, n_full: int) -> None:
        if self._arrays is None:
            super().run(state, log_probs, lengths, n_full)
            return
        n_rows, n_frames, _ = log_probs.shape
        if not n_rows or not n_frames:
            return
        state.n_steps += n_frames
        for name in _WRITTEN:
            setattr(state, name, getattr(state, name).contiguous())
        symbols = state.symbols.contiguous()
        n_symbols = int(state.length.max()) + n_frames + 2
        histories = symbols.new_empty((*state.length.shape, n_symbols))
        beams = self._kernels.Beams(
            **{name: getattr(state, name).data_ptr() for name in _WRITTEN},
            symbols=symbols.data_ptr(),
            histories=histories.data_ptr(),
            n_symbols=symbols.shape[2],
            n_histories=n_symbols,
        )
        emissions, counts = log_probs.float().contiguous(), lengths.long().contiguous()
        given = self._emissions(emissions, counts)
        self._native.search(self._settings, beams, given, n_rows, _n_threads(n_rows, n_frames))
        state.symbols = histories

    def trusts(self, log_probs: Tensor, lengths: Tensor) -> bool:
        emissions, counts = log_probs.float().contiguous(), lengths.long().contiguous()
        return bool(self._kernels.are_plausible(self._emissions(emissions, counts), len(counts)))

    def endings(self, states: Tensor) -> Endings | None:
        if self.scorer is None or self._arrays is None:
            return super().endings(states)
        shape, states = (len(states), self._native.n_endings), states.contiguous()
        scores, marks = torch.empty(shape), torch.empty(shape, dtype=torch.int64)
        self._native.end(states.data_ptr(), len(states), scores.data_ptr(), marks.data_ptr())
        return Endings(scores, marks)

    def readings(
        self, sequences: Sequence[Sequence[int]], most: int, device: torch.device
    ) -> list[list[Homophone]]:
        if self._arrays is None:
            return super().readings(sequences, most, device)
        tokens, lengths = padded(sequences)
        n, longest = tokens.shape
        scores, marks = torch.empty((n, most)), torch.zeros((n, most), dtype=torch.int64)
        symbols = torch.zeros((n, most, longest), dtype=torch.int64)
        texts = self._texts(tokens, lengths)
        found = (scores.data_ptr(), symbols.data_ptr(), marks.data_ptr())
        self._native.expand(self._first.data_ptr(), texts, most, *found, _n_threads(n, longest))
        rows = zip(sequences, scores.tolist(), symbols.tolist(), marks.tolist(), strict=True)
        return [
            [
                Homophone(tuple(each[: len(labels)]), mark, score)
                for score, each, mark in zip(*of_row, strict=True)
                if score > NEVER
            ]
            for labels, *of_row in rows
        ]

    def align(
        self,
        log_probs: Tensor,
        lengths: Tensor,
        tokens: Tensor,
        n_tokens: Tensor,
        *,
        rows: Tensor,
        blank: int | Tensor,
    ) -> TokenSpans:
        emissions, counts = log_probs.float().contiguous(), lengths.long().contiguous()
        arrays = (tokens.contiguous(), n_tokens.contiguous(), rows.contiguous(), _blanks(tokens, blank))
        first, last = torch.zeros_like(arrays[0]), torch.zeros_like(arrays[0])
        peak, score = torch.zeros(tokens.shape), torch.empty(len(tokens))
        spans = TokenSpans(first, last, peak, score)
        self._kernels.align(
            self._emissions(emissions, counts),
            self._texts(*arrays),
            *(part.data_ptr() for part in spans),
            _n_threads(len(tokens), emissions.shape[1]),
        )
        return spans

    def common_cut(
        self,
        log_probs: Tensor,
        tokens: Tensor,
        n_tokens: Tensor,
        *,
        n_shared: int,
        blank: int | Tensor,
        is_late: bool = False,
    ) -> Cut:
        emissions, counts = log_probs[None].float().contiguous(), torch.tensor([len(log_probs)])
        arrays = (
            tokens.contiguous(),
            n_tokens.contiguous(),
            torch.zeros_like(n_tokens),
            _blanks(tokens, blank),
        )
        texts = self._texts(*arrays)
        given = (self._emissions(emissions, counts), texts, n_shared, CUT_MARGIN)
        return Cut(*self._kernels.common_cut(*given, is_late=is_late))

    def _emissions(self, values: Tensor, lengths: Tensor) -> object:
        return self._kernels.Emissions(*values.shape[1:], values.data_ptr(), lengths.data_ptr())

    def _texts(self, tokens: Tensor, n_tokens: Tensor, *of_emissions: Tensor) -> object:
        """Describe texts; of_emissions: rows and blanks of their alignments."""
        parts = (tokens, n_tokens, *of_emissions)
        return self._kernels.Texts(*tokens.shape, *(part.data_ptr() for part in parts))

    def _model(self, automaton: Automaton, weight: float) -> object:
        of_callback = {}
        if automaton.callback is not None:
            cache, address = automaton.callback
            of_callback = {"cache": _address(cache), "cache_size": len(cache), "callback": address}
        return self._kernels.ModelArrays(
            n_nodes=0 if automaton.parent is None else len(automaton.parent),
            n_ids=len(automaton.root_weights),
            silent=-1 if automaton.silent is None else automaton.silent,
            weight=weight,
            trie=0 if automaton.trie is None else ctypes.addressof(automaton.trie),
            **{name: _address(getattr(automaton, name)) for name in _ARRAYS_OF_MODELS},
            **of_callback,
        )

    def _lexicon(self, lexicon: FlatLexicon) -> object:
        return self._kernels.LexiconArrays(
            n_nodes=len(lexicon.ahead),
            n_words=len(lexicon.word_scores),
            n_words_of=_address(lexicon.n_words),
            **{name: _address(getattr(lexicon, name)) for name in _ARRAYS_OF_LEXICONS},
            **{name: getattr(lexicon, name) for name in ("unknown", "separator", "n_homophones")},
        )


def _address(values: Records | None) -> int:
    if values is None:
        return 0
    assert values.flags.c_contiguous, values.strides
    assert values.dtype in _DTYPES, values.dtype
    return int(values.ctypes.data)


def _n_threads(n_rows: int, n_frames: int) -> int:
    return 1 if n_rows * n_frames < _LEAST_FRAMES else min(torch.get_num_threads(), n_rows)


def _blanks(tokens: Tensor, blank: int | Tensor) -> Tensor:
    if isinstance(blank, Tensor):
        return blank.contiguous()
    return torch.full((tokens.shape[0], tokens.shape[1] + 1), blank)


def choose_engine(search: PrefixSearch, engine: SearchEngine, device: torch.device) -> PrefixSearch:
    """Choose the implementation of a search by the option `engine`, the device and the language models.

    Raises:
        OptionError: "native" without the kernels package.
    """
    if engine == "tensors" or device.type != "cpu":
        return search
    try:
        kernels = load_kernels("ctc")
    except ImportError as error:
        if engine == "native":
            raise OptionError(f"engine native: {error}") from error
        logger.debug("the CTC search runs in tensors: %s", error)
        return search
    return NativeSearch(search, kernels.ctc)
