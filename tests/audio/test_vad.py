"""Segments follow Silero's rules; a stream finds the same edges however it is cut."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from sottovoce.audio.io import load_audio, open_audio
from sottovoce.audio.vad import (
    WEIGHTS,
    NativeSilero,
    SileroModel,
    SileroState,
    SileroTables,
    SpeechEdge,
    SpeechSegment,
    VadStream,
    load_silero,
    speech_segments,
)
from sottovoce.errors import AudioError, OptionError, SessionClosedError
from sottovoce.kernels import load_kernels
from sottovoce.options.decoding import WINDOW_SAMPLES, VadOptions, VadStreamOptions
from sottovoce.types import AudioChunk, Floats, Samples
from tests.audio.media import speechlike, wav_bytes

Probabilities: TypeAlias = tuple[Floats, Floats]
CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"


class LoudnessModel:
    """Says that the first sample of each window is its probability of speech."""

    def start(self) -> SileroState:
        return SileroState(*(np.zeros(0, np.float32) for _ in range(3)))

    def probabilities(self, samples: Samples, state: SileroState) -> tuple[Floats, SileroState]:
        return samples[::WINDOW_SAMPLES].copy(), state


def audio_of(probabilities: list[float]) -> np.ndarray:
    return np.repeat(np.array(probabilities, np.float32), WINDOW_SAMPLES)


def segments_of(probabilities: list[float], **options: float) -> list[tuple[int, int]]:
    """Segments in windows, without padding unless asked for."""
    chosen = VadOptions(**{"speech_pad_ms": 0.0, **options})
    segments = speech_segments(audio_of(probabilities), chosen, model=LoudnessModel())
    return [(segment.start_sample // 512, segment.end_sample // 512) for segment in segments]


@pytest.fixture(scope="module")
def silero() -> SileroModel:
    return load_silero()


def test_two_thresholds() -> None:
    """Speech begins at 0.5; 0.4 neither begins nor ends it; below 0.35 it ends."""
    assert segments_of([0.4, 0.5, 0.4, 0.4, 0.3, 0.4, 0.1], min_silence_ms=64) == [(1, 4)]
    assert segments_of([0.4] * 9) == []
    assert segments_of([0.9, 0.2, 0.9], neg_threshold=0.1) == [(0, 3)]


def test_short_silence_does_not_end_and_short_speech_is_dropped() -> None:
    speech = [0.9] * 4 + [0.0] * 3 + [0.9] * 4 + [0.0] * 6
    assert segments_of(speech, min_silence_ms=128) == [(0, 11)]
    assert segments_of(speech, min_silence_ms=64) == [(0, 4), (7, 11)]
    assert segments_of([0.9, 0.0, 0.0, 0.9, 0.9, 0.9, 0.0, 0.0], min_silence_ms=32, min_speech_ms=64) == [
        (3, 6)
    ]


def test_long_speech_is_cut_at_its_longest_pause_and_loses_nothing() -> None:
    speech = [0.9] * 20 + [0.0] * 5 + [0.9] * 20 + [0.0] * 8 + [0.9] * 20
    assert segments_of(speech, max_speech_s=60 * 0.032) == [(0, 45), (53, 73)]
    assert segments_of([0.9] * 100, max_speech_s=41 * 0.032) == [(0, 41), (41, 82), (82, 100)]


@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(st.tuples(st.sampled_from([0.0, 0.4, 0.9]), st.integers(1, 40)), max_size=20),
    pad_ms=st.sampled_from([0.0, 30.0, 200.0]),
    max_speech_s=st.sampled_from([1.0, 2.0, float("inf")]),
)
def test_segments_are_ordered_apart_and_bounded(
    runs: list[tuple[float, int]], pad_ms: float, max_speech_s: float
) -> None:
    audio = audio_of([value for value, length in runs for _ in range(length)])
    options = VadOptions(speech_pad_ms=pad_ms, max_speech_s=max_speech_s, min_silence_ms=300)
    segments = speech_segments(audio, options, model=LoudnessModel())
    assert all(0 <= segment.start_sample < segment.end_sample <= len(audio) for segment in segments)
    assert all(a.end_sample <= b.start_sample for a, b in pairwise(segments))
    assert all(segment.duration_s <= max_speech_s for segment in segments)
    spoken = np.flatnonzero(audio == np.float32(0.9))
    covered = np.zeros(len(audio), bool)
    for segment in segments:
        covered[segment.start_sample : segment.end_sample] = True
    assert covered[spoken].all()


def test_overlap_reaches_into_what_follows() -> None:
    options = VadOptions(speech_pad_ms=0, min_silence_ms=32, overlap_s=0.1)
    segments = speech_segments(audio_of([0.9] * 4 + [0.0] * 4), options, model=LoudnessModel())
    assert segments == [SpeechSegment(0, 4 * 512 + 1_600)]


def networks() -> list[tuple[str, SileroModel]]:
    """In NumPy, and in each instruction set of the kernels."""
    tables = SileroTables.of(load_file(WEIGHTS))
    result = [("numpy", SileroModel(tables))]
    if (kernels := optional_kernels()) is not None:
        result += [(name, NativeSilero(tables)) for name in kernels.built() if kernels.runs_here(name)]
    return result


def optional_kernels() -> ModuleType | None:
    try:
        return load_kernels("silero")
    except ImportError:
        return None


@contextmanager
def computing(name: str) -> Iterator[None]:
    kernels = None if name == "numpy" else load_kernels("silero")
    before = kernels and kernels.in_use()
    if kernels:
        kernels.use(name)
    try:
        yield
    finally:
        if kernels:
            kernels.use(before)


@pytest.mark.parametrize(("name", "network"), networks(), ids=[name for name, _ in networks()])
def test_probabilities_do_not_depend_on_the_batch(name: str, network: SileroModel) -> None:
    samples = speechlike(200 * 512)
    with computing(name):
        together, last = network.probabilities(samples, network.start())
        state, parts = network.start(), []
        for part in np.split(samples, [512 * n for n in (1, 101, 103, 106, 111)]):
            values, state = network.probabilities(part, state)
            parts.append(values)
    np.testing.assert_array_equal(np.concatenate(parts), together)
    np.testing.assert_array_equal(state.cell, last.cell)
    np.testing.assert_array_equal(state.context, last.context)
    assert state.n_windows == last.n_windows == 200


@pytest.mark.parametrize(("name", "network"), networks(), ids=[name for name, _ in networks()])
def test_probabilities_equal_the_package(name: str, network: SileroModel, package: Probabilities) -> None:
    samples, theirs = package
    with computing(name):
        ours, _ = network.probabilities(samples, network.start())
    assert float(ours.max()) > 0.9
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def package() -> Probabilities:
    """Speech, noise and silence, and the probabilities of the package."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    spec = find_spec("silero_vad")
    if spec is None or spec.origin is None:
        pytest.skip("silero-vad is not installed")
    speech = load_audio(CLIP)[: 4 * 16_000]
    noise = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    samples = np.concatenate((speech, noise, np.zeros(16_000, np.float32), 0.2 * speech))
    samples = samples[: len(samples) // 512 * 512]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        scripted = torch.jit.load(Path(spec.origin).parent / "data" / "silero_vad.jit")
        windows = torch.from_numpy(samples).split(512)
        theirs = np.float32([float(scripted(window, 16_000)) for window in windows])
    return samples, theirs


@pytest.mark.parametrize(
    "options",
    [
        VadOptions(),
        VadOptions(min_speech_ms=250, min_silence_ms=100, speech_pad_ms=30),
        VadOptions(threshold=0.8, min_silence_ms=0, speech_pad_ms=0),
    ],
)
def test_segments_equal_those_of_silero(options: VadOptions) -> None:
    generator = np.random.default_rng(0)
    walk = np.cumsum(generator.normal(0, 0.8, 4_000)) / 2
    probabilities = (
        1 / (1 + np.exp(-(walk - np.convolve(walk, np.ones(200) / 200, "same")))) * 0.98
    ).tolist()
    timestamps = pytest.importorskip("silero_vad.utils_vad").get_speech_timestamps_from_probs
    theirs = timestamps(
        np.array(probabilities, np.float32).tolist(),
        threshold=options.threshold,
        min_speech_duration_ms=options.min_speech_ms,
        min_silence_duration_ms=options.min_silence_ms,
        speech_pad_ms=options.speech_pad_ms,
    )
    ours = speech_segments(audio_of(probabilities), options, model=LoudnessModel())
    assert len(ours) > 3
    assert [(s.start_sample, s.end_sample) for s in ours] == [(s["start"], s["end"]) for s in theirs]


def edges_of(probabilities: list[float], **options: float) -> list[tuple[str, int, int]]:
    chosen = VadStreamOptions(**{"pre_roll_ms": 0.0, "post_roll_ms": 0.0, "onset_ms": 0.0, **options})
    stream = VadStream(chosen, model=LoudnessModel())
    edges = stream.push(audio_of(probabilities)) + stream.close()
    return [(edge.kind, edge.sample // 512, edge.detected_sample // 512) for edge in edges]


def test_stream_onset_hangover_and_rolls() -> None:
    probabilities = [0.0] * 4 + [0.9] + [0.0] * 3 + [0.9] * 5 + [0.0] * 6
    assert edges_of(probabilities, hangover_ms=64) == [
        ("start", 4, 5),
        ("end", 5, 7),
        ("start", 8, 9),
        ("end", 13, 15),
    ]
    assert edges_of(probabilities, hangover_ms=64, onset_ms=64) == [("start", 8, 10), ("end", 13, 15)]
    assert edges_of(probabilities, hangover_ms=160) == [("start", 4, 5), ("end", 13, 18)]
    rolled = edges_of(probabilities, hangover_ms=64, pre_roll_ms=320, post_roll_ms=64)
    assert rolled == [("start", 0, 5), ("end", 7, 7), ("start", 7, 9), ("end", 15, 15)]


def test_speech_at_the_end_is_ended_by_close() -> None:
    assert edges_of([0.0, 0.9, 0.9]) == [("start", 1, 2), ("end", 3, 3)]
    stream = VadStream(VadStreamOptions(onset_ms=0), model=LoudnessModel())
    edges = stream.push(np.full(700, 0.9, np.float32)) + stream.close()
    assert edges[-1] == SpeechEdge("end", 700, 700)
    assert stream.close() == []
    with pytest.raises(SessionClosedError):
        stream.push(np.zeros(1, np.float32))
    stream.reset()
    assert stream.push(np.full(512, 0.9, np.float32)) == [SpeechEdge("start", 0, 512)]


@settings(max_examples=6, deadline=None)
@given(cuts=st.lists(st.integers(0, 40_000), max_size=30))
def test_stream_does_not_depend_on_the_cutting(silero: SileroModel, cuts: list[int]) -> None:
    samples = np.tanh(30 * speechlike(40_000, seed=3)).astype(np.float32)
    options = VadStreamOptions(threshold=0.02, neg_threshold=0.01, hangover_ms=100)

    def run(edges: list[int]) -> list[SpeechEdge]:
        stream = VadStream(options, model=silero)
        detected = [edge for a, b in pairwise(edges) for edge in stream.push(samples[a:b])]
        return detected + stream.close()

    whole = run([0, 40_000])
    assert whole
    assert run([0, *sorted(cuts), 40_000]) == whole


@pytest.mark.parametrize("n_streams", [1, 2, 3, 8, 13])
def test_streams_that_are_pushed_together_hear_what_each_hears_alone(
    silero: SileroModel, n_streams: int
) -> None:
    """Bit by bit, whatever the lengths of their pushes; one is digital silence, and one ends early."""
    rng = np.random.default_rng(n_streams)
    audio = [speechlike(20_000, seed=seed) for seed in range(n_streams)]
    audio[-1][5000:] = 0.0
    cuts = [[0, *sorted(rng.integers(0, 20_000, 3).tolist()), 20_000] for _ in audio]
    cuts[0][-2] = 20_000
    alone, together = ([VadStream(model=silero) for _ in audio] for _ in range(2))
    for turn in range(4):
        pieces = [samples[at[turn] : at[turn + 1]] for samples, at in zip(audio, cuts, strict=True)]
        expected = [stream.push(piece) for stream, piece in zip(alone, pieces, strict=True)]
        assert VadStream.push_together(list(zip(together, pieces, strict=True))) == expected
        heard = [stream.probability for stream in together]
        assert heard == [stream.probability for stream in alone]


def test_real_speech_is_found(silero: SileroModel, shared_dir: Path) -> None:
    """Speech between two seconds of silence: found there, offline and live, and nowhere else."""
    speech = _speech(shared_dir)
    silence = np.zeros(32_000, np.float32)
    samples = np.concatenate((silence, speech, silence))
    options = VadOptions(min_silence_ms=500, speech_pad_ms=100)
    segments = speech_segments(samples, options, model=silero)
    assert segments[0].start_sample > 25_000
    assert segments[-1].end_sample < len(samples) - 25_000
    with open_audio(wav_bytes(samples)) as reader:
        by_chunks = speech_segments(reader, options, model=silero)
    assert [s.start_s for s in by_chunks] == pytest.approx([s.start_s for s in segments], abs=0.04)
    stream = VadStream(model=silero)
    edges = stream.push(samples) + stream.close()
    assert [edge.kind for edge in edges] == ["start", "end"] * (len(edges) // 2)
    assert abs(edges[0].sample - segments[0].start_sample) < 16_000


def test_bad_options_and_samples_are_refused() -> None:
    for wrong in (
        {"threshold": 1.0},
        {"neg_threshold": 0.6},
        {"min_silence_ms": -1.0},
        {"max_speech_s": 0.8},
    ):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            VadOptions(**wrong)
    with pytest.raises(OptionError, match="post_roll_ms"):
        VadStreamOptions(hangover_ms=100, post_roll_ms=200)
    with pytest.raises(AudioError, match="NaN"):
        speech_segments(np.array([np.nan], np.float32), model=LoudnessModel())
    with pytest.raises(AudioError, match="shape"):
        VadStream(model=LoudnessModel()).push(np.zeros((2, 2), np.float32))
    assert speech_segments(np.zeros(0, np.float32), model=LoudnessModel()) == []


def _speech(shared_dir: Path) -> np.ndarray:
    path = sorted((shared_dir / "data" / "librispeech-mini").glob("*.opus"))[0]
    samples = load_audio(path)
    return samples[: len(samples) // 512 * 512]


def test_memory_of_chunks_that_were_read_is_freed() -> None:
    """However long nobody speaks: a chunk is forgotten when the next one has come."""
    read: list[weakref.ref[np.ndarray]] = []
    most = 0

    def chunks() -> Iterator[AudioChunk]:
        nonlocal most
        for number in range(100):
            samples = np.zeros(16_000, np.float32)
            read.append(weakref.ref(samples))
            most = max(most, sum(chunk() is not None for chunk in read))
            yield AudioChunk(samples, 16_000 * number)
            del samples

    assert speech_segments(chunks(), model=LoudnessModel()) == []
    assert most <= 2
