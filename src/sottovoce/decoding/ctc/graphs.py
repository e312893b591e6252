"""The CTC prefix search as CUDA graphs: a chunk of frames is recorded once, then replayed.

A frame is more than a hundred small kernels; launching one costs more than running it, and a graph launches
all of a chunk at once. It works on the memory that it was recorded with: beams, emissions and lengths are in
fixed buffers, and a chunk that is not full ends in frames that no utterance has.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from sottovoce.decoding.ctc.prefix_search import PrefixSearch
from sottovoce.decoding.ctc.state import PrefixState
from sottovoce.lm.base import stays_on_device

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

logger = logging.getLogger(__name__)

CHUNK_FRAMES = 16
_LEAST_ROOM = 255
_MAX_CHUNKS = 8
"""Recorded chunks that are cached, one per shape and lane; each occupies memory of the device."""

Step = Callable[[], None]


class Recorder(Protocol):
    """Records a step over fixed buffers, to be replayed without running its Python again."""

    def reaches(self, device: torch.device) -> bool:
        """Tell whether steps on this device can be recorded."""
        ...

    def lane(self, device: torch.device) -> object:
        """Return the queue of work issued now; work of two lanes may run at the same time."""
        ...

    def record(self, step: Step, device: torch.device) -> Step:
        """Record a step; return what replays it. The buffers hold any values afterwards."""
        ...


class CudaGraphs:
    """CUDA graphs: recorded after a warm-up on a side stream, as PyTorch requires.

    Graphs of a stream run one after the other and leave no values but those in their owner's buffers, so they
    share one pool of memory.
    """

    def __init__(self) -> None:
        self._pools: dict[object, _POOL_HANDLE] = {}

    def reaches(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def lane(self, device: torch.device) -> object:
        return (device, torch.cuda.current_stream(device).cuda_stream)

    def record(self, step: Step, device: torch.device) -> Step:
        lane = self.lane(device)
        with torch.cuda.device(device):
            if lane not in self._pools:
                self._pools[lane] = torch.cuda.graph_pool_handle()
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(2):
                    step()
            torch.cuda.current_stream().wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            # A stream of its own: the one that PyTorch takes otherwise is that of every other capture too.
            with torch.cuda.graph(
                graph, pool=self._pools[lane], stream=beside, capture_error_mode="thread_local"
            ):
                step()
        return graph.replay


class GraphSearch(PrefixSearch):
    """`PrefixSearch` whose frames are recorded chunks, one for each batch size and room for histories.

    On devices that the recorder does not reach, and with language models that leave the device, it runs that
    search itself. Threads may share it: chunks of a lane (a CUDA stream) run one after the other, and each
    lane has its own.
    """

    def __init__(self, plain: PrefixSearch, recorder: Recorder | None = None) -> None:
        super().__init__(
            plain.n_labels,
            plain.blank,
            plain.beam_size,
            scorer=plain.scorer,
            max_homophones=plain.max_homophones,
            beam_threshold=plain.beam_threshold,
            top_tokens=plain.n_tokens,
        )
        self._recorder = recorder or CudaGraphs()
        self._is_steady = plain.scorer is None or stays_on_device(plain.scorer)
        self._chunks: dict[tuple[object, ...], _Chunk] = {}
        self._lock = threading.Lock()
        if not self._is_steady:
            logger.debug("language models that leave the device: no graphs of the search")

    @torch.no_grad()
    def run(self, state: PrefixState, log_probs: Tensor, lengths: Tensor, n_full: int) -> None:
        """Advance the state over log_probs (B, T, V); see `PrefixSearch.run`."""
        n_frames, device = log_probs.shape[1], log_probs.device
        if not (self._is_steady and n_frames and len(lengths) and self._recorder.reaches(device)):
            super().run(state, log_probs, lengths, n_full)
            return
        state.reserve(_room(state.n_steps + n_frames))
        with self._lock:  # the device keeps to the order in which a lane is given its work
            chunk = self._chunk_for(state, log_probs)
            chunk.beams.write_beams(state)
            for begin in range(0, n_frames, CHUNK_FRAMES):
                chunk.run(log_probs[:, begin : begin + CHUNK_FRAMES], lengths - begin)
            state.read_beams(chunk.beams)
        state.n_steps += n_frames

    def _chunk_for(self, state: PrefixState, log_probs: Tensor) -> _Chunk:
        lane = self._recorder.lane(log_probs.device)
        key = (state.symbols.shape, state.scores.shape, log_probs.device, lane)
        if key not in self._chunks:
            if len(self._chunks) == _MAX_CHUNKS:
                del self._chunks[next(iter(self._chunks))]
            self._chunks[key] = _Chunk(super().run, state, log_probs, self._recorder)
        return self._chunks[key]


class _Chunk:
    """Frames over fixed buffers: `beams` in and out, emissions (B, `CHUNK_FRAMES`, V), lengths (B,)."""

    def __init__(
        self,
        advance: Callable[[PrefixState, Tensor, Tensor, int], None],
        state: PrefixState,
        log_probs: Tensor,
        recorder: Recorder,
    ) -> None:
        n_batch, _, n_labels = log_probs.shape
        with torch.inference_mode(False):  # so that they can be written in any mode
            self.beams = state.copied_beams()
            self._emissions = log_probs.new_zeros((n_batch, CHUNK_FRAMES, n_labels))
            self._lengths = torch.zeros(n_batch, dtype=torch.int64, device=log_probs.device)
        self._advance = advance
        self._replay = recorder.record(self._step, log_probs.device)

    def run(self, log_probs: Tensor, lengths: Tensor) -> None:
        """Advance the beams over frames (B, t, V), at most `CHUNK_FRAMES`; lengths: frames that remain."""
        n_frames = log_probs.shape[1]
        self._emissions[:, :n_frames].copy_(log_probs)
        self._lengths.copy_(lengths.clamp(max=n_frames))
        self._replay()

    def _step(self) -> None:
        working = self.beams.shared_beams()
        self._advance(working, self._emissions, self._lengths, 0)
        self.beams.write_beams(working)


def _room(n_symbols: int) -> int:
    """Capacity for at least n_symbols, in few sizes, since each needs a recording of its own."""
    room = _LEAST_ROOM
    while room < n_symbols + 1:
        room = 2 * room + 1
    return room
