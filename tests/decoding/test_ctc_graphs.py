"""Chunks of frames over fixed buffers, recorded and replayed, find what the plain loop finds.

The stand-in for CUDA graphs keeps to their rules: the Python of a step runs once, and a replay repeats its
operations on the same memory, whatever lies there then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.decoding.ctc.emission_decoder import EmissionDecoder
from sottovoce.decoding.ctc.graphs import CHUNK_FRAMES, CudaGraphs, GraphSearch
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.decoding.ctc.text import Labels
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.lm.table import BackoffTable
from sottovoce.lm.word_fusion import WordFusion
from sottovoce.types import Hypothesis
from tests.decoding.enumeration import RandomBigram, emissions
from tests.decoding.test_ctc_engines import LABELS, random_arpa, spellings, uncertain

FUSIONS: dict[str, dict[str, object]] = {
    "no language model": {},
    "hotwords": {"hotwords": {"bad": 3.0, "ab bad": 4.0}},
    "word n-gram": {"lm": True},
    "lexicon, n-gram and hotwords": {"lm": True, "lexicon": spellings(homophones=True), "hotwords": ["cab"]},
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU words are picked out where they end, in shapes that depend on values."""
    if "cuda" not in request.keywords:
        monkeypatch.setattr(WordFusion, "_may_wait", staticmethod(lambda device: False))


@pytest.fixture(autouse=True)
def _as_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read back from tensors while a graph is recorded."""
    monkeypatch.setattr(BackoffTable, "_are_roots", lambda table, nodes: False)


class Recording(TorchDispatchMode):
    """Notes every operation with the tensors that it reads and makes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[
            tuple[Callable[..., object], tuple[object, ...], dict[str, object], object]
        ] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, made))
        return made

    def replay(self) -> None:
        for func, args, kwargs, made in self.operations:
            if any(returned.alias_info is not None for returned in func._schema.returns):  # type: ignore[attr-defined]
                if func._schema.is_mutable:  # type: ignore[attr-defined]
                    func(*args, **kwargs)
                continue  # a view of memory that is written elsewhere
            again = func(*args, **kwargs)
            for old, new in zip(*map(tensors, (made, again)), strict=True):
                old.copy_(new)


def tensors(made: object) -> list[torch.Tensor]:
    return (
        [made]
        if isinstance(made, torch.Tensor)
        else [part for part in made if isinstance(part, torch.Tensor)]
    )  # type: ignore[attr-defined]


class StandIn:
    """A recorder for the CPU."""

    def __init__(self, *, has_lanes: bool = False) -> None:
        self.n_recorded = 0
        self._has_lanes = has_lanes

    def reaches(self, device: torch.device) -> bool:
        return True

    def lane(self, device: torch.device) -> object:
        return threading.get_ident() if self._has_lanes else None

    def record(self, step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        step()
        self.n_recorded += 1
        with Recording() as recording:
            step()
        return recording.replay


def decoders(
    arpa: Path, fusion: dict[str, object], **options: float
) -> tuple[CtcDecoder, CtcDecoder, StandIn]:
    """The plain loop and the replayed one, with the same language models."""
    given = dict(fusion)
    if given.get("lm"):
        arpa.write_text(random_arpa())
        given["lm"] = arpa
    made = [
        CtcDecoder(
            LABELS,
            0,
            beam_size=6,
            n_best=4,
            fusion=CtcFusionOptions(word_score=0.5),
            options=CtcOptions(engine="tensors", **options),  # type: ignore[arg-type]
            **given,  # type: ignore[arg-type]
        )
        for _ in range(2)
    ]
    stand_in = StandIn()
    inside = made[1]._decoder
    inside._search = GraphSearch(inside._search, stand_in)  # type: ignore[arg-type]
    return made[0], made[1], stand_in


def exactly(found: list[list[Hypothesis]]) -> list[list[tuple[object, ...]]]:
    """What must be equal to the last bit, as the operations are the same."""
    return [[(h.tokens, h.score, h.words) for h in best] for best in found]


@pytest.mark.parametrize("name", FUSIONS)
@pytest.mark.parametrize("options", [{}, {"beam_threshold": 5.0, "top_tokens": 3}], ids=["plain", "pruned"])
def test_replayed_chunks_equal_the_plain_loop(name: str, options: dict[str, float], tmp_path: Path) -> None:
    plain, replayed, stand_in = decoders(tmp_path / "words.arpa", FUSIONS[name], **options)
    for seed, n_frames in enumerate((40, 5)):
        log_probs = torch.stack([uncertain(n_frames, 10 * seed + row) for row in range(3)])
        lengths = torch.tensor([n_frames, n_frames // 2, 0])
        expected = plain.decode(log_probs, lengths)
        assert exactly(replayed.decode(log_probs, lengths)) == exactly(expected)
    assert stand_in.n_recorded == 1


@pytest.mark.parametrize("part", [7, CHUNK_FRAMES, 25])
def test_a_stream_goes_on_from_chunk_to_chunk(part: int, tmp_path: Path) -> None:
    plain, replayed, stand_in = decoders(tmp_path / "words.arpa", FUSIONS["word n-gram"])
    log_probs = torch.stack([uncertain(50, row) for row in range(2)])
    state = replayed.start(2)
    other = replayed.start(2)  # of the same shape: they share what was recorded, and nothing else
    for frames in log_probs.split(part, dim=1):
        replayed.decode_chunk(state, frames)
        replayed.decode_chunk(other, frames.flip(0))
    expected = plain.decode(log_probs)
    assert exactly(replayed.finish(state)) == exactly(expected)
    assert exactly(replayed.finish(other)) == exactly(expected[::-1])
    assert stand_in.n_recorded == 1


@pytest.mark.parametrize("has_lanes", [False, True])
def test_threads_share_a_search(has_lanes: bool, tmp_path: Path) -> None:
    """In turn where they share a lane; where each has one, with buffers of its own."""
    plain, replayed, _ = decoders(tmp_path / "words.arpa", FUSIONS["word n-gram"])
    stand_in = StandIn(has_lanes=has_lanes)
    replayed._decoder._search._recorder = stand_in  # type: ignore[union-attr]
    given = [torch.stack([uncertain(40, 10 * i + row) for row in range(2)]) for i in range(4)]
    together = threading.Barrier(4)

    def decoded(log_probs: torch.Tensor) -> list[list[Hypothesis]]:
        together.wait(60)
        return replayed.decode(log_probs)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(decoded, given))
    assert [exactly(each) for each in found] == [exactly(plain.decode(each)) for each in given]
    assert stand_in.n_recorded == (4 if has_lanes else 1)


def test_graphs_are_captured_on_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch is asked for, without a device; graphs of a lane share a pool."""
    asked: list[dict[str, object]] = []
    current, made = FakeStream(1), [FakeStream(2), FakeStream(3), FakeStream(4)]

    @contextmanager
    def graph(_: object, **given: object) -> Iterator[None]:
        asked.append(given)
        yield

    fakes = {
        "Stream": lambda: made[len(asked)],
        "current_stream": lambda device=None: current,
        "graph": graph,
        "CUDAGraph": lambda: FakeStream(0),
        "graph_pool_handle": iter(((0, 1), (0, 2))).__next__,
        "device": lambda device: nullcontext(),
        "stream": lambda stream: nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    recorder, device = CudaGraphs(), torch.device("cuda", 0)
    steps: list[int] = []
    for number in (1, 1, 7):
        current.cuda_stream = number
        recorder.record(lambda: steps.append(1), device)
    assert [each["stream"] for each in asked] == made
    assert [each["pool"] for each in asked] == [(0, 1), (0, 1), (0, 2)]
    assert len(steps) == 3 * 3


class FakeStream:
    """Stands for streams and graphs where there is no device."""

    def __init__(self, number: int) -> None:
        self.cuda_stream = number

    def wait_stream(self, other: FakeStream) -> None: ...

    def replay(self) -> None: ...


def test_histories_outgrow_their_room() -> None:
    """Every size of room is recorded once; a stream, whose histories are committed, needs one."""
    names = Labels(("-", "a", "b"), 0)
    log_probs = emissions(600, 3, 1) * 3
    log_probs[:, 0] -= 4.0
    log_probs = log_probs.log_softmax(dim=1)
    options = CtcOptions(beam_size=4, n_best=4, times=False, engine="tensors")
    plain, replayed = (EmissionDecoder(names, options) for _ in range(2))
    stand_in = StandIn()
    replayed._search = GraphSearch(replayed._search, stand_in)  # type: ignore[arg-type]
    state = replayed.start()
    for frames in log_probs.split(90):
        replayed.decode_chunk(state, frames)
    assert exactly(replayed.finish(state)) == exactly(plain.decode(log_probs))
    assert stand_in.n_recorded == 1
    assert state.symbols.shape[2] == 256
    for n_frames in (90, 300, 600):
        assert exactly(replayed.decode(log_probs[:n_frames])) == exactly(plain.decode(log_probs[:n_frames]))
    assert stand_in.n_recorded == 3


def test_what_cannot_be_recorded_runs_in_the_plain_loop() -> None:
    """Models that do not say that they stay on the device; and devices without graphs."""
    names, log_probs = Labels(("-", "a", "b", "c"), 0), emissions(9, 4, 3)
    options = CtcOptions(beam_size=6, n_best=6, engine="graphs")
    scorer = ShallowFusion([RandomBigram(4, 1)], [0.5])
    assert not scorer.stays_on_device
    on_cpu = EmissionDecoder(names, options, scorer=scorer)
    assert isinstance(on_cpu._search, GraphSearch)
    found = on_cpu.decode(log_probs)
    stand_in = StandIn()
    on_cpu._search._recorder = stand_in
    assert exactly(on_cpu.decode(log_probs)) == exactly(found)
    assert stand_in.n_recorded == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", FUSIONS)
@pytest.mark.parametrize("engine", ["tensors", "graphs"])
def test_cuda_equals_cpu(name: str, engine: str, tmp_path: Path) -> None:
    given = dict(FUSIONS[name])
    if given.get("lm"):
        given["lm"] = tmp_path / "words.arpa"
        (tmp_path / "words.arpa").write_text(random_arpa())
    found = []
    for device, chosen in (("cpu", "tensors"), ("cuda", engine)):
        options = CtcOptions(engine=chosen)  # type: ignore[arg-type]
        decoder = CtcDecoder(LABELS, 0, beam_size=12, n_best=3, options=options, device=device, **given)  # type: ignore[arg-type]
        for n_frames in (40, 70):  # the second is replayed
            log_probs = torch.stack([uncertain(n_frames, row) for row in range(5)])
            found.append(decoder.decode(log_probs, torch.tensor([n_frames, 31, 0, 12, n_frames])))
    for ours, theirs in zip(found[2:], found[:2], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert [h.tokens for h in a] == [h.tokens for h in b]
            assert [h.score for h in a] == pytest.approx([h.score for h in b], rel=1e-4)
