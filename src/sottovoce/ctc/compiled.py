"""The CTC prefix search as compiled code on the CPU (extra `fast`), with identical results.

The search in tensors replaces it on CUDA, with language models without arrays, and without numba.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from sottovoce.ctc.align import CUT_MARGIN, NEVER, Cut, TokenSpans
from sottovoce.ctc.homophones import Homophone, padded
from sottovoce.ctc.options import SearchEngine
from sottovoce.ctc.search import PrefixSearch, PrefixState, first_state
from sottovoce.errors import MissingExtraError
from sottovoce.lm.base import Endings, FlatScorer, Floats, Ints, silent_scorer

if TYPE_CHECKING:
    from sottovoce.ctc.kernel.beams import Beams

logger = logging.getLogger(__name__)

Made = TypeVar("Made")
_RUNS_PER_THREAD = 4
_LEAST_FRAMES = 1000
_WRITTEN = (
    *("blank", "token", "lm", "adjustment", "merged", "length", "last", "arc"),
    *("is_prefix", "is_label_prefix", "scores"),
)
"""Tensors of a state that are written in place."""


@lru_cache(maxsize=1)
def has_compiler() -> bool:
    return importlib.util.find_spec("numba") is not None


class CompiledAlignment(PrefixSearch):
    """`PrefixSearch` with compiled alignment and checks, for language models without arrays."""

    def __init__(self, plain: PrefixSearch) -> None:
        super().__init__(
            plain.n_labels,
            plain.blank,
            plain.beam_size,
            scorer=plain.scorer,
            max_homophones=plain.max_homophones,
            beam_threshold=plain.beam_threshold,
            top_tokens=plain.n_tokens,
        )

    def trusts(self, log_probs: Tensor, lengths: Tensor) -> bool:
        from sottovoce.ctc.kernel.frame_loop import are_plausible

        return are_plausible(log_probs.contiguous().numpy(), lengths.numpy())

    @staticmethod
    def align(
        log_probs: Tensor,
        lengths: Tensor,
        tokens: Tensor,
        n_tokens: Tensor,
        *,
        rows: Tensor,
        blank: int | Tensor,
    ) -> TokenSpans:
        from sottovoce.ctc.kernel.frame_loop import align_rows

        emissions, counts = log_probs.contiguous().numpy(), lengths.numpy()
        labels, n_labels, of = tokens.contiguous().numpy(), n_tokens.numpy(), rows.numpy()
        blanks = _blanks(tokens, blank)
        parts = run_in_threads(
            len(labels),
            emissions.shape[1],
            lambda begin, end: align_rows(
                emissions, counts, labels[begin:end], n_labels[begin:end], of[begin:end], blanks[begin:end]
            ),
        )
        return TokenSpans(*(torch.from_numpy(np.concatenate(each)) for each in zip(*parts, strict=True)))

    @staticmethod
    def common_cut(
        log_probs: Tensor,
        tokens: Tensor,
        n_tokens: Tensor,
        *,
        n_shared: int,
        blank: int | Tensor,
        is_late: bool = False,
    ) -> Cut:
        from sottovoce.ctc.kernel.frame_loop import common_cut_frames

        frames, labels, n_labels = (
            log_probs.contiguous().numpy(),
            tokens.contiguous().numpy(),
            n_tokens.numpy(),
        )
        blanks = _blanks(tokens, blank)
        return Cut(*common_cut_frames(frames, labels, n_labels, n_shared, blanks, CUT_MARGIN, is_late))


class CompiledSearch(CompiledAlignment):
    """`PrefixSearch` with a compiled frame loop; utterances run on as many threads as PyTorch has."""

    def __init__(self, plain: PrefixSearch, scorer: FlatScorer) -> None:
        super().__init__(plain)
        self._flat = scorer
        self._has_run = False

    def start(self, n_batch: int, device: torch.device) -> PrefixState:
        if self.scorer is None:
            return super().start(n_batch, device)
        scores = self._first.repeat(n_batch * self.beam_size, 1)
        return first_state(n_batch, self.beam_size, self.initial_symbol, scores)

    def run(self, state: PrefixState, log_probs: Tensor, lengths: Tensor, n_full: int) -> None:
        n_frames = log_probs.shape[1]
        if not n_frames or not len(lengths):
            return
        state.n_steps += n_frames
        beams = _beams(state, n_frames)
        if self._has_run:
            self._run(beams, log_probs.contiguous(), lengths)
        else:
            from sottovoce.jit import notice_of_compiling

            with notice_of_compiling("the CTC search"):
                self._run(beams, log_probs.contiguous(), lengths)
            self._has_run = True
        state.symbols = torch.from_numpy(beams.histories)

    def endings(self, states: Tensor) -> Endings | None:
        if self.scorer is None:
            return None
        from sottovoce.ctc.kernel.scorer import end_rows

        return Endings(*map(torch.from_numpy, end_rows(states.numpy(), self._flat)))

    def readings(
        self, sequences: Sequence[Sequence[int]], most: int, device: torch.device
    ) -> list[list[Homophone]]:
        from sottovoce.ctc.kernel.scorer import expand_rows

        tokens, lengths = (part.numpy() for part in padded(sequences))
        first, n_labels = self._first[0].contiguous().numpy(), self.n_labels
        parts = run_in_threads(
            len(tokens),
            tokens.shape[1],
            lambda begin, end: expand_rows(
                tokens[begin:end], lengths[begin:end], first, self._flat, most, n_labels
            ),
        )
        return [
            [
                Homophone(tuple(symbols[: len(labels)].tolist()), int(mark), float(score))
                for score, symbols, mark in zip(*rows, strict=True)
                if score > NEVER
            ]
            for labels, rows in zip(sequences, _each_row(parts), strict=True)
        ]

    @cached_property
    def _first(self) -> Tensor:
        assert self.scorer is not None
        return self.scorer.start(1, torch.device("cpu"))

    def _run(self, beams: Beams, log_probs: Tensor, lengths: Tensor) -> None:
        from sottovoce.ctc.kernel.frame_loop import SearchSettings, decode_rows

        settings = SearchSettings(
            blank=self.blank,
            initial_symbol=self.initial_symbol,
            n_labels=self.n_labels,
            beam_size=self.beam_size,
            n_tokens=self.n_tokens,
            max_homophones=self.max_homophones or 0,
            threshold=float("inf") if self.beam_threshold is None else float(self.beam_threshold),
        )
        emissions, counts = log_probs.numpy(), lengths.numpy()
        run_in_threads(
            len(counts),
            emissions.shape[1],
            lambda begin, end: decode_rows(beams, emissions, counts, settings, self._flat, begin, end),
        )


def run_in_threads(n_rows: int, n_frames: int, work: Callable[[int, int], Made]) -> list[Made]:
    """Run `work(begin, end)` on slices of rows, in as many threads as PyTorch has; return results in
    order.

    Each thread gets a few slices, for balance. Work that is shorter than starting a thread runs here.
    """
    n_threads = min(torch.get_num_threads(), n_rows)
    if n_threads <= 1 or n_rows * n_frames < _LEAST_FRAMES:
        return [work(0, n_rows)]
    n_runs = min(_RUNS_PER_THREAD * n_threads, n_rows)
    cuts = [n_rows * i // n_runs for i in range(n_runs + 1)]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(work, cuts[:-1], cuts[1:]))


def _each_row(
    parts: Sequence[tuple[Floats, Ints, Ints]],
) -> Iterator[tuple[Floats, Ints, Ints]]:
    """Return scores (W,), symbols (W, L) and marks (W,) of each label sequence."""
    for part in parts:
        yield from zip(*part, strict=True)


def _blanks(tokens: Tensor, blank: int | Tensor) -> Ints:
    if isinstance(blank, Tensor):
        return blank.contiguous().numpy()
    return np.full((tokens.shape[0], tokens.shape[1] + 1), blank)


def choose_engine(search: PrefixSearch, engine: SearchEngine, device: torch.device) -> PrefixSearch:
    """Choose the implementation of a search by the option `engine`, the device and the language models.

    Raises:
        MissingExtraError: "compiled" without numba.
    """
    if engine == "tensors" or (engine == "auto" and not has_compiler()):
        return search
    if not has_compiler():
        raise MissingExtraError("numba", "fast", "the compiled CTC search")
    if device.type != "cpu":
        return search
    flat = silent_scorer(search.n_labels) if search.scorer is None else search.scorer.flat()
    if flat is None:
        logger.debug("language models without arrays: the search runs in tensors")
        return CompiledAlignment(search)
    return CompiledSearch(search, flat)


def _beams(state: PrefixState, n_frames: int) -> Beams:
    """View the state's tensors as arrays, and allocate histories."""
    from sottovoce.ctc.kernel.beams import Beams

    n_symbols = int(state.length.max()) + n_frames + 2
    histories = state.symbols.new_empty((*state.length.shape, n_symbols))
    for name in _WRITTEN:
        setattr(state, name, getattr(state, name).contiguous())
    return Beams(
        blank=state.blank.numpy(),
        token=state.token.numpy(),
        lm=state.lm.numpy(),
        adjustment=state.adjustment.numpy(),
        merged=state.merged.numpy(),
        length=state.length.numpy(),
        last=state.last.numpy(),
        arc=state.arc.numpy(),
        symbols=state.symbols.contiguous().numpy(),
        histories=histories.numpy(),
        is_prefix=state.is_prefix.numpy(),
        is_label_prefix=state.is_label_prefix.numpy(),
        scores=state.scores.numpy(),
    )
