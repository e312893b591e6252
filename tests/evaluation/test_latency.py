"""Runs of a session, and latency metrics against their definitions, worked examples and brute force."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import math
import random
import sys
import time
import tracemalloc
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sottovoce
from sottovoce.audio.io import load_audio
from sottovoce.errors import InputError
from sottovoce.evaluation.scores import (
    FoundSwitch,
    LogLine,
    ReferenceSegment,
    laal,
    resegment,
    run_live,
    stream_laal,
    word_latencies,
)
from sottovoce.text.word_edits import align_words
from sottovoce.types import SAMPLE_RATE, Event, Final, LanguageChanged, Partial, Samples, Unstable, Word


@pytest.mark.parametrize(
    ("delays", "source_s", "n_reference", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], 4.0, 4, 1.0),
        ([5.0] * 10, 5.0, 10, 5.0),
        ([1.0, 4.0, 4.0, 4.0], 4.0, 4, (1.0 + (4.0 - 1.0)) / 2),
        ([7.0, 8.0], 5.0, 2, 7.0),
        ([], 5.0, 2, math.nan),
    ],
    ids=["one word late", "offline", "words after the end count once", "a late first word", "no word"],
)
def test_laal(delays: list[float], source_s: float, n_reference: int, expected: float) -> None:
    """The ideal of the metric is one word earlier than the second of the audio that holds it."""
    assert laal(delays, source_s, n_reference) == pytest.approx(expected, nan_ok=True)


def test_over_generation_is_not_rewarded() -> None:
    # Ten words where the reference has five: the pace is that of the longer side.
    delays = [0.5 * (i + 1) for i in range(10)]
    assert laal(delays, 5.0, 5) == pytest.approx(laal(delays, 5.0, 10))


def edit_distance(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    @functools.cache
    def distance(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        swap = distance(i - 1, j - 1) + (a[i - 1] != b[j - 1])
        return min(swap, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    return distance(len(a), len(b))


def test_an_hour_is_aligned_in_little_memory() -> None:
    """Of a whole table of costs, which for an hour would be 600 MB, a fifth is never held."""
    rng = random.Random(0)
    reference = [str(rng.randrange(500)) for _ in range(2000)]
    hypothesis = [word for word in reference if rng.random() > 0.1]
    tracemalloc.start()
    pairs = align_words(hypothesis, reference)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 0.2 * 8 * len(hypothesis) * len(reference)
    assert [i for i, _ in pairs if i is not None] == list(range(len(hypothesis)))
    assert [j for _, j in pairs if j is not None] == list(range(len(reference)))
    assert sum(i is None or j is None for i, j in pairs) == len(reference) - len(hypothesis)


@pytest.mark.parametrize("seed", range(20))
def test_the_alignment_costs_the_edit_distance_and_keeps_order(seed: int) -> None:
    rng = random.Random(seed)
    a = tuple(rng.choices("abc", k=rng.randint(0, 8)))
    b = tuple(rng.choices("abc", k=rng.randint(0, 8)))
    pairs = align_words(a, b)
    edits = sum(i is None or j is None or a[i] != b[j] for i, j in pairs)
    assert edits == edit_distance(a, b)
    assert [i for i, _ in pairs if i is not None] == list(range(len(a)))
    assert [j for _, j in pairs if j is not None] == list(range(len(b)))


@pytest.mark.parametrize("seed", range(10))
def test_resegmentation_is_the_least_edit_one(seed: int) -> None:
    rng = random.Random(seed)
    segments = [
        ReferenceSegment(tuple(rng.choices("abcd", k=rng.randint(1, 3))), float(k), k + 1.0) for k in range(3)
    ]
    words = tuple(rng.choices("abcd", k=7))
    pieces = resegment(words, segments)
    assert [i for piece in pieces for i in piece] == list(range(7))

    def cost(cuts: tuple[int, ...]) -> int:
        bounds = (0, *cuts, 7)
        return sum(edit_distance(words[bounds[k] : bounds[k + 1]], segments[k].words) for k in range(3))

    ours = cost((pieces[0].stop, pieces[1].stop))
    best = min(cost(cuts) for cuts in itertools.combinations_with_replacement(range(8), 2))
    assert ours == best


def test_stream_laal_puts_each_segment_on_its_own_clock() -> None:
    segments = [ReferenceSegment(("a", "b"), 0.0, 2.0), ReferenceSegment(("c", "d"), 10.0, 12.0)]
    value = stream_laal(["a", "b", "c", "d"], [1.0, 2.0, 11.0, 12.0], segments)
    assert value == pytest.approx(1.0)
    with pytest.raises(InputError, match="delay"):
        stream_laal(["a"], [], segments)


def test_word_latency_is_emission_minus_end_of_right_words() -> None:
    latencies_s = word_latencies(["a", "x", "c"], [1.5, 2.0, 4.0], ["a", "b", "c"], [1.0, 2.0, 3.0])
    assert latencies_s == [0.5, 1.0]
    with pytest.raises(InputError):
        word_latencies(["a"], [1.0], ["a"], [])


def test_a_log_line_is_in_milliseconds_and_counts_its_words() -> None:
    line = LogLine(3, ("guten", "tag"), (1.0, 1.5), (1.1, 1.7), 2.0, "a.wav", "guten tag")
    document = json.loads(line.to_json())
    assert document["prediction"] == "guten tag"
    assert document["delays"] == [1000.0, 1500.0]
    assert document["elapsed"] == [1100.0, 1700.0]
    assert document["source_length"] == 2000.0
    assert document["prediction_length"] == len(document["prediction"].split()) == len(document["delays"])
    assert "\n" not in line.to_json()


class Scripted:
    """Says prepared events at each push, after some work; the last ones at the end."""

    def __init__(self, *events: Sequence[Event], work_s: float = 0.0) -> None:
        self._events = list(events)
        self._work_s = work_s
        self.pieces: list[int] = []

    def push(self, pcm: Samples) -> Sequence[Event]:
        self.pieces.append(len(pcm))
        time.sleep(self._work_s)
        return self._events[len(self.pieces) - 1]

    def close(self) -> Sequence[Event]:
        return self._events[len(self.pieces)]


def partial(text: str, at: float) -> Partial:
    word = Word(text, at - 0.5, at - 0.2, 0.9, "en")
    return Partial(word.start, word.end, text, "en", (word,), at)


AUDIO = np.zeros(round(2.5 * SAMPLE_RATE), np.float32)


def test_words_and_switches_are_collected() -> None:
    session = Scripted(
        [LanguageChanged(None, "en", 0.1, 0.9)],
        [partial(" one", 2.0), Unstable(1.0, 2.0, " tw", "en", 2.0)],
        [partial(" two", 2.5), LanguageChanged("en", "de", 1.5, 2.25)],
        [Final(1.5, 2.3, "one two", "en", (), 2.5)],
    )
    run = run_live(session, AUDIO, chunk_s=1.0)
    assert session.pieces == [16000, 16000, 8000]
    assert run.text == "one two"
    assert run.delays_s == (2.0, 2.5)
    assert run.switches == (FoundSwitch(1.5, 2.25, "en", "de"),)
    assert run.duration_s == 2.5
    assert run.late_updates == 0.0


def test_a_piece_is_given_when_it_is_there() -> None:
    """Who is fast waits for the audio."""
    run = run_live(Scripted([], [partial(" a", 2.0)], [], [partial(" b", 2.5)]), AUDIO, chunk_s=1.0)
    assert run.elapsed_s == pytest.approx((2.0, 2.5), abs=0.1)
    assert run.compute_s < 0.1


def test_who_is_slow_falls_behind() -> None:
    pieces = [[partial(f" {i}", 0.1 * (i + 1))] for i in range(25)]
    run = run_live(Scripted(*pieces, [], work_s=0.12), AUDIO, chunk_s=0.1)
    assert run.elapsed_s[0] >= 0.22
    assert run.elapsed_s[-1] >= 25 * 0.12 + 0.1
    assert run.compute_s >= 25 * 0.12
    assert run.cpu_s < run.compute_s
    assert run.late_updates > 0.5
    assert list(run.elapsed_s) == sorted(run.elapsed_s)


EXAMPLES = Path(__file__).parents[2] / "examples"
CHUNK = 4000


@dataclass
class IncrementalOutput:
    new_tokens: list[str]
    new_string: str
    deleted_tokens: list[str]
    deleted_string: str


class SpeechProcessor:
    def __init__(self, config: SimpleNamespace) -> None:
        self.config = config


@dataclass
class States:
    source: list[float] = field(default_factory=list)
    source_finished: bool = False
    source_sample_rate: int = 0


class SpeechToTextAgent:
    def __init__(self, args: Namespace) -> None:
        self.states = States()
        self.reset()

    def reset(self) -> None:
        self.states.__init__()  # type: ignore[misc]


@dataclass
class WriteAction:
    content: str
    finished: bool


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: object) -> None:
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def audio() -> Samples:
    return load_audio(str(EXAMPLES / "clips" / "en.flac"))


def spoken(audio: Samples) -> str:
    session = sottovoce.load_model("nano").session("en")
    events = [*session.push(audio), *session.close()]
    return "".join(event.text for event in events if isinstance(event, Partial)).strip()


@pytest.mark.long
@pytest.mark.parametrize("captions", [pytest.param("firm", marks=pytest.mark.long), "revisable"])
def test_simulstream_gets_what_a_session_says(
    monkeypatch: pytest.MonkeyPatch, audio: Samples, captions: str
) -> None:
    folder = "simulstream.server.speech_processors"
    module(monkeypatch, folder, SpeechProcessor=SpeechProcessor)
    module(monkeypatch, f"{folder}.incremental_output", IncrementalOutput=IncrementalOutput)
    config = SimpleNamespace(model="nano", speech_chunk_size=0.25, captions=captions)
    kind = example("simulstream_processor").SottovoceProcessor
    kind.load_model(config)
    processor = kind(config)
    processor.set_source_language("en")
    processor.set_target_language("en")
    for _ in range(2):
        tokens: list[str] = []
        outputs = [processor.process_chunk(audio[at : at + CHUNK]) for at in range(0, len(audio), CHUNK)]
        for output in [*outputs, processor.end_of_stream()]:
            n_kept = len(tokens) - len(output.deleted_tokens)
            assert tokens[n_kept:] == output.deleted_tokens
            assert captions == "revisable" or not output.deleted_tokens
            tokens = tokens[:n_kept] + output.new_tokens
        assert processor.tokens_to_string(tokens) == spoken(audio) != ""
        processor.clear()


@pytest.mark.long
def test_simuleval_gets_what_a_session_says(monkeypatch: pytest.MonkeyPatch, audio: Samples) -> None:
    module(monkeypatch, "simuleval.agents", SpeechToTextAgent=SpeechToTextAgent)
    module(monkeypatch, "simuleval.agents.actions", Action=object, ReadAction=object, WriteAction=WriteAction)
    module(monkeypatch, "simuleval.utils", entrypoint=lambda kind: kind)
    args = Namespace(
        model="nano", language="en", latency="balanced", translate=False, source_segment_size=250
    )
    agent = example("simuleval_agent").SottovoceAgent(args)
    for _ in range(2):
        said: list[str] = []
        agent.states.source_sample_rate = 16_000
        for at in range(0, len(audio), CHUNK):
            agent.states.source += audio[at : at + CHUNK].tolist()
            agent.states.source_finished = at + CHUNK >= len(audio)
            action = agent.policy()
            if isinstance(action, WriteAction):
                said.append(action.content)
        assert action.finished
        assert "".join(said).replace(" ", "") == spoken(audio).replace(" ", "") != ""
        agent.reset()
    agent.states.source_sample_rate = 8_000
    with pytest.raises(ValueError, match="expected audio at 16000 Hz, got 8000"):
        agent.policy()
