"""The CTC prefix search as compiled code on the CPU (extra `fast`), beside the one in tensors.

Same states, same hypotheses, same scores. Where it does not reach (CUDA, language models without arrays,
no numba) the search in tensors takes over.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from sottovoce.decoding.ctc.graphs import GraphSearch
from sottovoce.decoding.ctc.search import PrefixSearch
from sottovoce.decoding.ctc.search_options import Engine
from sottovoce.decoding.ctc.settling import MARGIN, Cut
from sottovoce.decoding.ctc.state import PrefixState, first_state
from sottovoce.decoding.ctc.times import TokenSpans
from sottovoce.errors import MissingExtraError
from sottovoce.lm.base import Endings, FlatPrefixScorer, FlatScorer, PrefixScorer, silent_scorer

if TYPE_CHECKING:
    from sottovoce.decoding.ctc.kernel.slots import Beams

logger = logging.getLogger(__name__)

Made = TypeVar("Made")
_RUNS_PER_THREAD = 4
_LEAST_FRAMES = 1000
_WRITTEN = (
    *("blank", "token", "lm", "adjustment", "merged", "length", "last", "arc"),
    *("begins", "spells", "scores"),
)
"""What is written in place."""


@lru_cache(maxsize=1)
def has_compiler() -> bool:
    """numba is installed."""
    return importlib.util.find_spec("numba") is not None


class CompiledSearch:
    """`PrefixSearch` with a compiled frame loop; the same parameters and methods.

    Utterances are shared out over torch's number of threads.
    """

    def __init__(self, plain: PrefixSearch) -> None:
        self._plain = plain
        self._has_run = False

    def start(self, n_batch: int, device: torch.device) -> PrefixState:
        """As `PrefixSearch.start`."""
        if device.type != "cpu" or self._flat is None or self._plain.scorer is None:
            return self._plain.start(n_batch, device)
        beam_size = self._plain.beam_size
        return first_state(n_batch, beam_size, self._plain.first, self._first.repeat(n_batch * beam_size, 1))

    def run(self, state: PrefixState, log_probs: Tensor, lengths: Tensor, n_full: int) -> None:
        """As `PrefixSearch.run`."""
        scorer = self._flat if log_probs.device.type == "cpu" else None
        if scorer is None:
            self._plain.run(state, log_probs, lengths, n_full)
            return
        n_frames = log_probs.shape[1]
        if not n_frames or not len(lengths):
            return
        state.n_steps += n_frames
        beams = _beams(state, n_frames)
        if self._has_run:
            self._run(beams, log_probs.contiguous(), lengths, scorer)
        else:
            from sottovoce.jit import compiling_is_told

            with compiling_is_told("the CTC search"):
                self._run(beams, log_probs.contiguous(), lengths, scorer)
            self._has_run = True
        state.symbols = torch.from_numpy(beams.histories)

    def trusts(self, log_probs: Tensor, lengths: Tensor) -> bool:
        """As `PrefixSearch.trusts`; one pass over the emissions."""
        if log_probs.device.type != "cpu":
            return False
        from sottovoce.decoding.ctc.kernel.check import are_plausible

        return are_plausible(log_probs.contiguous().numpy(), lengths.numpy())

    def endings(self, states: Tensor) -> Endings | None:
        """As `PrefixSearch.endings`."""
        scorer = self._flat if states.device.type == "cpu" else None
        if scorer is None or self._plain.scorer is None:
            return self._plain.endings(states)
        from sottovoce.decoding.ctc.kernel.ends import end_rows

        return Endings(*map(torch.from_numpy, end_rows(states.numpy(), scorer)))

    def align(
        self,
        log_probs: Tensor,
        lengths: Tensor,
        tokens: Tensor,
        n_tokens: Tensor,
        *,
        rows: Tensor,
        blank: int,
    ) -> TokenSpans:
        """See `align.align`."""
        if log_probs.device.type != "cpu":
            return self._plain.align(log_probs, lengths, tokens, n_tokens, rows=rows, blank=blank)
        from sottovoce.decoding.ctc.kernel.align import align_rows

        emissions, counts = log_probs.contiguous().numpy(), lengths.numpy()
        said, n_said, of = tokens.contiguous().numpy(), n_tokens.numpy(), rows.numpy()
        parts = shared_out(
            len(said),
            emissions.shape[1],
            lambda begin, end: align_rows(
                emissions, counts, said[begin:end], n_said[begin:end], of[begin:end], blank
            ),
        )
        return TokenSpans(*(torch.from_numpy(np.concatenate(each)) for each in zip(*parts, strict=True)))

    def settled(
        self, log_probs: Tensor, tokens: Tensor, n_tokens: Tensor, n_shared: int, *, is_late: bool
    ) -> Cut:
        """See `settling.settled`."""
        if log_probs.device.type != "cpu":
            return self._plain.settled(log_probs, tokens, n_tokens, n_shared, is_late=is_late)
        from sottovoce.decoding.ctc.kernel.align import settled_frames

        frames, said, n_said = log_probs.contiguous().numpy(), tokens.contiguous().numpy(), n_tokens.numpy()
        blank = self._plain.blank
        return Cut(*settled_frames(frames, said, n_said, n_shared, blank, MARGIN, is_late))

    @cached_property
    def _first(self) -> Tensor:
        """The scorer's state (1, s) before anything is said."""
        assert self._plain.scorer is not None
        return self._plain.scorer.start(1, torch.device("cpu"))

    @cached_property
    def _flat(self) -> FlatScorer | None:
        found = flat_scorer(self._plain.scorer, self._plain.n_labels)
        if found is None:
            logger.debug("language models without arrays: the search runs in tensors")
        return found

    def _run(self, beams: Beams, log_probs: Tensor, lengths: Tensor, scorer: FlatScorer) -> None:
        from sottovoce.decoding.ctc.kernel.search import Settings, decode_rows

        plain = self._plain
        settings = Settings(
            blank=plain.blank,
            first=plain.first,
            n_labels=plain.n_labels,
            beam_size=plain.beam_size,
            n_tokens=plain.n_tokens,
            n_kept=plain.n_kept or 0,
            threshold=float("inf") if plain.beam_threshold is None else float(plain.beam_threshold),
        )
        emissions, counts = log_probs.numpy(), lengths.numpy()
        shared_out(
            len(counts),
            emissions.shape[1],
            lambda begin, end: decode_rows(beams, emissions, counts, settings, scorer, begin, end),
        )


def shared_out(n_rows: int, n_frames: int, work: Callable[[int, int], Made]) -> list[Made]:
    """What `work(begin, end)` makes of runs of rows, in order; torch's number of threads take them in turn.

    There are a few runs for each thread, so that one with longer rows does not keep the others waiting. What
    takes less than a thread takes to start is not shared out.
    """
    n_threads = min(torch.get_num_threads(), n_rows)
    if n_threads <= 1 or n_rows * n_frames < _LEAST_FRAMES:
        return [work(0, n_rows)]
    n_runs = min(_RUNS_PER_THREAD * n_threads, n_rows)
    cuts = [n_rows * i // n_runs for i in range(n_runs + 1)]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(work, cuts[:-1], cuts[1:]))


def fastest(search: PrefixSearch, engine: Engine) -> PrefixSearch | CompiledSearch:
    """The search as the option `engine` wants it. Raises MissingExtraError."""
    if engine == "graphs":
        return GraphSearch(search)
    if engine == "tensors" or (engine == "auto" and not has_compiler()):
        return search
    if not has_compiler():
        raise MissingExtraError("numba", "fast", "the compiled CTC search")
    return CompiledSearch(search)


def flat_scorer(scorer: PrefixScorer | None, n_labels: int) -> FlatScorer | None:
    """The arrays of a scorer, or of none; None where it has none."""
    if scorer is None:
        return silent_scorer(n_labels)
    return scorer.flat() if isinstance(scorer, FlatPrefixScorer) else None


def _beams(state: PrefixState, n_frames: int) -> Beams:
    """The state's tensors as arrays that share their memory, and room for histories."""
    from sottovoce.decoding.ctc.kernel.slots import Beams

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
        begins=state.begins.numpy(),
        spells=state.spells.numpy(),
        scores=state.scores.numpy(),
    )
