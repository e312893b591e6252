"""How long does the host work on a second of audio, without the model?

    python -m benchmarks host ../shared --answers answers.pickle
    PYTHONPATH=../before/src python -m benchmarks host ../shared --answers answers.pickle

Answers of a model are recorded at the first use of a question, and repeated from then on; a case is run again
until no question is new. The time of the model and of the ends of its steps is left out. Recordings are clips
of people (`harness.clips`, those that report): --unit minutes, repeated up to --minutes. Prints the processor
milliseconds of each phase for a second of audio, or for an update of a live session, then one JSON line, and
`english` (batches of 16) last.
"""

from __future__ import annotations

import gc
import importlib
import pickle
import tempfile
import threading
import time
import wave
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from hashlib import blake2b
from inspect import isgeneratorfunction
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np

from benchmarks.harness.clips import Clip, clips, joined, spread
from benchmarks.harness.report import add_shared, benchmark_parser, listed, show_json
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.decoding.filters import FORBIDDEN, log_softmax
from sottovoce.decoding.search import AlignAttEnd, BestTokensEnd, best_tokens
from sottovoce.formats.files import save_transcript
from sottovoce.models.backend import (
    Backend,
    EncoderOutput,
    IncrementalResult,
    IncrementalWindow,
    RowPrefix,
    RowsOutput,
    RunningRows,
    StepEnd,
    StepGroup,
    StepPart,
)
from sottovoce.models.dims import AlignmentHeads, Span
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.batching import ON_ACCELERATOR, BatchingRuntime, PendingRequest
from sottovoce.runtime.calls import DirectRuntime, Request
from sottovoce.streaming.alignatt import AttendingRows
from sottovoce.types import HOP_SAMPLES, SAMPLE_RATE, Features, Floats, Ints, Samples, Transcript

T = TypeVar("T")
MODEL = "model"
PHASES = {
    "reading": ("audio.io:AudioReader.__iter__",),
    "voice activity": (
        *("audio.vad:SpeechFinder.push", "audio.vad:SpeechFinder.finish", "audio.vad:SpeechFinder.segments"),
        *("audio.vad:VadStream.push", "audio.vad:VadStream.push_together"),
    ),
    "log-mel": (
        *(f"audio.mel:RecordingFeatures.{name}" for name in ("window", "log_mel", "clamped", "is_blank")),
        *("audio.mel:RecordingFeatures.has", "audio.mel:RecordingFeatures.skip_to"),
        *("streaming.audio_window:MelBuffer.append", "streaming.audio_window:MelBuffer.frames"),
    ),
    "language": (
        *("offline.languages:find_language", "offline.languages:WindowLanguages.divided"),
        *(
            "offline.languages:LanguageFollower.language_of",
            "offline.languages:LanguageFollower.other_language",
        ),
        "streaming.language_tracker:LiveLanguageTracker.update",
    ),
    "batching": ("runtime.batching:CallBatcher.round", "runtime.calls:DirectRuntime.run"),
    "search": (
        *("decoding.decode:WindowBatch.step", "decoding.decode:WindowBatch.admit"),
        *("streaming.alignatt:AlignAttBatch.step", "streaming.alignatt:AlignAttBatch.admit"),
    ),
    "words": ("decoding.alignment:align_stepwise", "offline.transcriber:Transcriber.with_words"),
    "verification": (
        *("offline.verify:SkippedSpeechRecovery.recovered", "offline.pipeline:_Pipeline._spoken"),
    ),
}
"""What begins a phase, which ends where another one begins."""
WRITTEN = ("json", "srt", "txt")
N_PARTS = 8
LIVE_S, CHUNK_S = 20.0, 0.56


@dataclass(frozen=True, slots=True)
class Case:
    files: Sequence[str] = ("english",)
    language: str | None = "en"
    batch_size: int | None = None
    beam_size: int = 1
    words: bool = False

    @property
    def options(self) -> TranscribeOptions:
        """Windows of packed speech in batches, or consecutive windows."""
        if self.batch_size is None:
            return TranscribeOptions()
        return TranscribeOptions(mode="vad", batch_size=self.batch_size)


CASES = {
    "seek": Case(),
    "seek_detected": Case(language=None),
    "seek_three": Case(("three",), None),
    "packed1": Case(batch_size=1),
    "packed16": Case(batch_size=16),
    "packed64": Case(batch_size=64),
    "beams16": Case(batch_size=16, beam_size=5),
    "words16": Case(batch_size=16, words=True),
    "detected16": Case(language=None, batch_size=16),
    "three16": Case(("three",), None, 16),
    "eight": Case([f"part{index}" for index in range(N_PARTS)]),
}
"""An hour of English, language given, greedy; `three` is in three languages, `eight` as many recordings."""


class Phases:
    """Processor time by phase, of every thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._here = threading.local()

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        self._enter(phase)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, phase: str) -> None:
        now_s, here = time.thread_time(), self._here
        stack = here.__dict__.setdefault("stack", [])
        if stack:
            self.seconds[stack[-1]] += now_s - here.since_s
        stack.append(phase)
        here.since_s = now_s

    def _leave(self) -> None:
        now_s, here = time.thread_time(), self._here
        self.seconds[here.stack.pop()] += now_s - here.since_s
        here.since_s = now_s

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            self._enter(phase)
            try:
                return function(*given, **named)
            finally:
                self._leave()

        @wraps(function)
        def steps(*given: Any, **named: Any) -> Generator[Any, Any, Any]:
            generator = function(*given, **named)
            send = call_of(generator)
            sent = None
            while True:
                try:
                    found = send(sent)
                except StopIteration as end:
                    return end.value
                sent = yield found

        def call_of(generator: Generator[Any, Any, Any]) -> Callable[[Any], Any]:
            return self.timed(phase, lambda sent: generator.send(sent))

        return steps if isgeneratorfunction(function) else call

    def watch(self) -> None:
        """Time the functions that begin a phase, of the checkout that is imported."""
        for phase, places in PHASES.items():
            for place in places:
                module, name = place.split(":")
                owner: Any = importlib.import_module(f"sottovoce.{module}")
                *owners, name = name.split(".")
                for each in owners:
                    owner = getattr(owner, each)
                if not hasattr(owner, name):  # of another checkout
                    continue
                timed = self.timed(phase, getattr(owner, name))
                setattr(owner, name, timed)
                if place == "decoding.alignment:align_stepwise":
                    importlib.import_module("sottovoce.runtime.calls").align_stepwise = timed  # type: ignore[attr-defined]


PHASE = Phases()
N_KEPT = 64
"""Windows whose states the model keeps while answers are recorded: some 20 MB each."""


def in_model(function: Callable[..., T]) -> Callable[..., T]:
    return cast("Callable[..., T]", PHASE.timed(MODEL, function))


N_BEST = 512


@dataclass(frozen=True, slots=True)
class ShortLogits:
    """Logits (n, n_vocab) as the best of each row and the mean of the others."""

    n_vocab: int
    tokens: Ints
    best: Floats
    rest: Floats

    @classmethod
    def of(cls, logits: Floats) -> ShortLogits:
        n_best = min(N_BEST, logits.shape[1])
        tokens = np.argpartition(-logits, n_best - 1, axis=1)[:, :n_best]
        best = np.take_along_axis(logits, tokens, axis=1)
        others = np.exp(logits.astype(np.float64))
        np.put_along_axis(others, tokens, 0.0, axis=1)
        rest = np.log(np.maximum(others.sum(axis=1) / max(1, logits.shape[1] - n_best), 1e-30))
        return cls(logits.shape[1], tokens, best, rest.astype(np.float32))

    @property
    def whole(self) -> Floats:
        logits = np.repeat(self.rest[:, None], self.n_vocab, axis=1)
        np.put_along_axis(logits, self.tokens, self.best, axis=1)
        return logits


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """An encoded window: the key of its audio, and how the model encodes it."""

    key: bytes
    n_content: int
    n_frames: int
    encode: Callable[[], EncoderOutput]


@dataclass(eq=False)
class RecordedWindows(EncoderOutput):
    windows: tuple[Window, ...]

    @property
    def n_content_frames(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple([window.n_content for window in self.windows])

    @property
    def n_frames(self) -> int:
        return max(window.n_frames for window in self.windows)

    def rows(self, windows: Sequence[int]) -> RecordedWindows:
        return RecordedWindows(tuple(self.windows[window] for window in windows))

    def joined(self, others: Sequence[EncoderOutput]) -> RecordedWindows:
        more = (window for other in others for window in cast(RecordedWindows, other).windows)
        return RecordedWindows((*self.windows, *more))

    def with_content(self, n_content_frames: tuple[int, ...]) -> RecordedWindows:
        pairs = zip(self.windows, n_content_frames, strict=True)
        return RecordedWindows(tuple(replace(window, n_content=n) for window, n in pairs))

    def limited(self, start: int, end: int) -> RecordedWindows:
        (window,) = self.windows
        key = window.key + repr((start, end)).encode()
        limited = replace(window, key=key, encode=lambda: window.encode().limited(start, end))
        return RecordedWindows((limited,))

    def states_on_host(self) -> Floats:
        return np.concatenate([window.encode().states_on_host() for window in self.windows])


@dataclass(frozen=True, slots=True, eq=False)
class RecordedState:
    """The encoder's cache of a window. compute: what the model returned for it."""

    key: bytes
    n_content_frames: int
    compute: Callable[[], IncrementalResult]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A decoder row.

    begun: the row whose first tokens it took over. state: of the model; None: not computed.
    """

    window: Window
    tokens: tuple[int, ...] = ()
    begun: Row | None = None
    state: RowPrefix | None = None

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def audio(self) -> bytes:
        return self.window.key if self.begun is None else self.window.key + self.begun.audio


class Recorded:
    """A backend that repeats the answers of another one.

    answers: by question. n_asked: of the other one. counts: calls, and the windows or rows in them.
    is_complete: no question is new any more.
    """

    def __init__(self, backend: Backend, answers: dict[Any, Any]) -> None:
        self.backend, self.answers = backend, answers
        self.name, self.runtime, self.dims = backend.name, "recorded answers", backend.dims
        self.own_threads, self.device = backend.own_threads, SimpleNamespace(type="recorded")
        self.alignment_heads, self.tail_s = backend.alignment_heads, backend.tail_s
        self.encoder_mode = backend.encoder_mode
        self.n_asked = 0
        self.is_complete = False
        self.counts: Counter[str] = Counter()
        self._kept: OrderedDict[bytes, Any] = OrderedDict()

    def count(self, part: str, n: int) -> None:
        self.counts[f"calls of the {part}"] += 1
        self.counts["windows" if part == "encoder" else "rows"] += n

    def computed(self, key: bytes, compute: Callable[[], T]) -> T:
        """Return what the model computes, which is kept for the newest windows."""
        if key not in self._kept:
            self._kept[key] = compute()
        self._kept.move_to_end(key)
        while len(self._kept) > N_KEPT:
            self._kept.popitem(last=False)
        return cast(T, self._kept[key])

    @in_model
    def encode(self, features: Features) -> EncoderOutput:
        self.count("encoder", len(features.mel))
        windows = []
        for mel, n in zip(features.mel, features.n_content_frames, strict=True):
            key, n_frames = digest(mel, n), mel.shape[1] // 2
            encode = partial(self.backend.encode, Features(mel[None], (n,)))
            n_content = min(-(-n // 2), n_frames)
            windows.append(Window(key, n_content, n_frames, partial(self.computed, key, encode)))
        return RecordedWindows(tuple(windows))

    @in_model
    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        self.count("encoder", len(windows))
        return [self._grown(window, cast("RecordedState | None", window.state)) for window in windows]

    def _grown(self, window: IncrementalWindow, before: RecordedState | None) -> IncrementalResult:
        key = digest(window.log_mel, window.mode, before and before.key)

        def encode() -> IncrementalResult:
            state = before and before.compute().state
            return self.backend.encode_incremental([replace(window, state=state)])[0]

        compute = partial(self.computed, key, encode)
        if key not in self.answers:
            self.n_asked += 1
            now = compute()
            self.answers[key] = now.state.n_content_frames, now.encoded.n_frames, now.n_computed, now.n_kept
        n_content, n_frames, *counts = self.answers[key]
        encoded = RecordedWindows((Window(key, n_content, n_frames, lambda: compute().encoded),))
        return IncrementalResult(encoded, RecordedState(key, n_content, compute), *counts)

    def rows(self) -> RecordedRows:
        return RecordedRows(self)


class RecordedRows:
    """`EndingRows` of recorded answers."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._rows: list[Row] = []
        self._attending = AttendingRows(self)
        self._forbidden: Ints = np.zeros(0, np.int64)

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    def has_room(self, n_windows: int) -> bool:
        return True

    @in_model
    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        begun = cast("Row | None", prefix)
        tokens = () if begun is None else begun.tokens
        self._rows += [Row(window, tokens, begun) for window in cast(RecordedWindows, encoded).windows]

    @in_model
    def select(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    @in_model
    def cut(self, row: int, n_tokens: int) -> None:
        self._rows[row] = self._first(row, self._rows[row].n_tokens - n_tokens)

    @in_model
    def prefixes_of(self, rows: Sequence[tuple[int, int]]) -> list[RowPrefix | None]:
        return [self._first(*each) for each in rows]

    def _first(self, row: int, n_tokens: int) -> Row:
        return replace(self._rows[row], tokens=self._rows[row].tokens[:n_tokens], state=None)

    def _asked(self, row: Row) -> RunningRows:
        """Return a row of the model in the same state."""
        rows, state, n_tokens = self._recorded.backend.rows(), row.state, row.n_tokens
        if state is None and row.begun is not None:
            (state,) = self._asked(row.begun).prefixes_of([(0, row.begun.n_tokens)])
            n_tokens = row.begun.n_tokens
        elif state is None:
            n_tokens = 0
        rows.admit(row.window.encode(), state)
        if row.tokens[n_tokens:]:
            rows.step([row.tokens[n_tokens:]], [()])
        return rows

    def _answer(
        self, row: Row, new: Sequence[int], about: object, ask: Callable[[Any], Any]
    ) -> tuple[Any, Row]:
        """Return what the model answers to new tokens, and the row with them."""
        question, state = (row.audio, row.tokens, tuple(new), about), None
        tokens = (*row.tokens, *new)
        if question not in self._recorded.answers:
            self._recorded.n_asked += 1
            asked = self._asked(row)
            self._recorded.answers[question] = ask(asked)
            if len(new) == 1:
                (state,) = asked.prefixes_of([(0, len(tokens))])
        return self._recorded.answers[question], replace(row, tokens=tokens, state=state)

    @in_model
    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Ints | None = None,
        capture: AlignmentHeads = (),
        spans: Sequence[Span] | None = None,
    ) -> RowsOutput:
        self._recorded.count("decoder", self.n_rows)
        given: dict[str, Any] = {"vocabulary": vocabulary, "capture": capture}
        n_ids = None if vocabulary is None else len(vocabulary)
        n_frames = [row.window.n_frames for row in self._rows]
        logits, attention, rows = [], [], []
        for row, new, places, span in zip(
            self._rows, tokens, wanted, spans or cast(Sequence[Any], [None] * self.n_rows), strict=True
        ):

            def ask(asked: RunningRows, new: Any = new, places: Any = places, span: Any = span) -> Any:
                output = asked.step([new], [places], spans=None if span is None else [span], **given)
                return ShortLogits.of(output.logits), output.joined.astype(np.float16)

            if not new:
                rows.append(row)
                continue
            (short, joint), after = self._answer(row, new, (tuple(places), n_ids, len(capture), span), ask)
            logits.append(short.whole)
            attention.append(np.pad(joint, ((0, 0), (0, 0), (0, max(n_frames) - joint.shape[2]))))
            rows.append(after if span is None else row)
        self._rows = rows
        joint = np.concatenate(attention, axis=1).astype(np.float32)
        return RowsOutput(np.concatenate(logits), joint, list(map(len, tokens)), n_frames)

    def computes(self, end: StepEnd) -> bool:
        return isinstance(end, AlignAttEnd) or (isinstance(end, BestTokensEnd) and end.fusion is None)

    @in_model
    def begin(self, end: StepEnd, kept: Mapping[int, object]) -> None:
        if isinstance(end, BestTokensEnd):
            self._forbidden = end.forbidden
        elif not self._recorded.is_complete:
            self._attending.begin(end, kept)

    def steps(
        self, tokens: Sequence[Sequence[int]], groups: Sequence[StepGroup], n_steps: int = 1
    ) -> Iterator[Sequence[StepPart]]:
        end = groups[0].end
        yield (
            [self._step(tokens, groups[0].columns, end)]
            if isinstance(end, BestTokensEnd)
            else self._align_att(tokens, groups)
        )

    @in_model
    def _align_att(self, tokens: Sequence[Sequence[int]], groups: Sequence[StepGroup]) -> list[StepPart]:
        """Return the numbers of an `AlignAttEnd`, which the host computes until all questions are known."""
        answers, questions = self._recorded.answers, []
        for group in groups:
            end = cast(AlignAttEnd, group.end)
            about = [(*own[2:], end.n_best, end.reads_prefixes) for own in group.columns.tolist()]
            rows = [(self._rows[row], tuple(tokens[row])) for row in group.rows]
            questions.append(
                [(row.audio, row.tokens, new, each) for (row, new), each in zip(rows, about, strict=True)]
            )
        if not self._recorded.is_complete:
            (parts,) = self._attending.steps(tokens, groups)
            for part, asked in zip(parts, questions, strict=True):
                answers.update(zip(asked, part.outputs[0].copy(), strict=True))
            return [*parts]
        self._recorded.count("decoder", self.n_rows)
        self._rows = [
            replace(row, tokens=(*row.tokens, *new), state=None)
            for row, new in zip(self._rows, tokens, strict=True)
        ]
        parts = []
        for group, asked in zip(groups, questions, strict=True):
            values = np.stack([answers[each] for each in asked])
            kept = asked if cast(AlignAttEnd, group.end).reads_prefixes else ()
            parts.append(StepPart(group.rows, range(len(asked)), (values,), kept))
        return parts

    @in_model
    def _step(self, tokens: Sequence[Sequence[int]], columns: Ints, end: BestTokensEnd) -> StepPart:
        self._recorded.count("decoder", self.n_rows)

        def ask(asked: Any, new: Any, own: Ints) -> Any:
            asked.begin(end, {})
            ((part,),) = asked.steps([new], [StepGroup(end, (0,), [(0,)], own[None])])
            output = part.outputs[0][part.places]
            return allowed(output, own.tolist(), end, self._forbidden) if part.has_logits else output

        results, rows = [], []
        for row, new, own in zip(self._rows, tokens, columns, strict=True):
            about = (*own[:3].tolist(), end.n_best, end.time_begin, self._forbidden.tobytes())
            result, after = self._answer(row, new, about, partial(ask, new=new, own=own))
            results.append(result)
            rows.append(after)
        self._rows = rows
        return StepPart(range(len(rows)), range(len(rows)), (np.concatenate(results),))


def digest(array: Floats, *about: object) -> bytes:
    return blake2b(np.ascontiguousarray(array).tobytes() + repr(about).encode(), digest_size=16).digest()


def allowed(logits: Floats, rules: Sequence[int], end: BestTokensEnd, forbidden: Ints) -> Floats:
    """Compute an end where tokens are tied, or fewer may follow."""
    logits = logits.copy()
    for none in (forbidden, slice(rules[0]), slice(end.time_begin, rules[1]), slice(rules[2], None)):
        logits[:, none] = FORBIDDEN
    logprobs = log_softmax(logits)
    best = best_tokens(logprobs, end.n_best)
    return np.concatenate((np.take_along_axis(logprobs, best, axis=1), best.astype(np.float32)), axis=1)


def repeated(chosen: Sequence[Clip], unit_minutes: float, minutes: float) -> Samples:
    """Join clips to a unit, whole log-mel frames of it, and repeat that up to the minutes."""
    unit, n_samples = joined(chosen, 60 * unit_minutes), int(60 * minutes * SAMPLE_RATE)
    unit = unit[: len(unit) // HOP_SAMPLES * HOP_SAMPLES]
    return np.tile(unit, -(-n_samples // len(unit)))[:n_samples]


def write_files(folder: Path, data: Path, unit_minutes: float, minutes: float) -> None:
    """Write the recordings of `CASES`."""
    spoken = [spread(clips(data, "test", language=language), 200) for language in ("en", "de", "es")]
    mixed = [clip for turn in zip(*spoken, strict=False) for clip in turn]
    english, three = (repeated(of, unit_minutes, minutes) for of in (spoken[0], mixed))
    parts = {f"part{index}": part for index, part in enumerate(np.array_split(english, N_PARTS))}
    for name, samples in {"english": english, "three": three, **parts}.items():
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
            file.writeframes((32767 * samples).clip(-32768, 32767).astype(np.int16).tobytes())


def transcribe(model: Model, case: Case, folder: Path) -> None:
    """Transcribe the recordings of a case to documents, several at once."""
    given: dict[str, Any] = {"language": case.language, "options": case.options, "beam_size": case.beam_size}
    given["word_timestamps"] = case.words
    files = [folder / f"{file}.wav" for file in case.files]
    if len(files) == 1:
        transcripts: Iterable[object] = [model.transcribe(files[0], **given).collect()]
    else:
        transcripts = (found for _, found in model.transcribe_files(files, batch_size=len(files), **given))
    for transcript in transcripts:
        assert isinstance(transcript, Transcript), transcript
        for name in WRITTEN:
            with PHASE.of("writing"):
                save_transcript(transcript, folder / f"out.{name}")


def speak(model: Model, samples: Samples, n_sessions: int) -> None:
    """Push samples to so many live sessions at once, as fast as they take them."""
    runtime, size = BatchingRuntime(model.backend, ON_ACCELERATOR), int(CHUNK_S * SAMPLE_RATE)
    callers = [runtime.caller() for _ in range(n_sessions)]
    sessions = [model.session(["en"], runtime=caller) for caller in callers]

    def answer(requests: Iterable[Request[object]]) -> None:
        done: SimpleQueue[PendingRequest[object]] = SimpleQueue()
        for caller, request in zip(callers, requests, strict=True):
            caller.begin_request(request, done.put)
        for _ in callers:
            done.get().result()

    for at in range(0, len(samples), size):
        answer(session.push_request(samples[at : at + size]) for session in sessions)
    answer(session.end_request() for session in sessions)
    runtime.close()
    runtime.join()


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Return the processor seconds of the host by phase, those of every thread."""
    PHASE.seconds.clear()
    before_s = time.process_time()
    work()
    took_s = time.process_time() - before_s - PHASE.seconds.pop(MODEL, 0.0)
    phases = {phase: PHASE.seconds.get(phase, 0.0) for phase in (*PHASES, "writing")}
    return {**phases, "other": took_s - sum(phases.values()), "all": took_s}


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--unit", type=float, default=6.0, help="minutes of different speech [6]")
    parser.add_argument("--cases", type=listed(), default=[*CASES], help="'': none [all]")
    parser.add_argument("--sessions", type=listed(int), default=[1, 16, 64, 256], help="[1,16,64,256]")
    parser.add_argument("--answers", type=Path, help="file of recorded answers, kept for other runs")
    given = parser.parse_args()
    PHASE.watch()
    model = load_model(given.model, backend="native")
    assert isinstance(model, Model)
    model.test_encoder()
    is_kept = given.answers is not None and given.answers.exists()
    answers = pickle.loads(given.answers.read_bytes()) if is_kept else {}
    recorded = Recorded(model.backend, answers)
    model.backend, model.runtime = recorded, DirectRuntime(recorded)
    figures: dict[str, dict[str, float]] = {}

    def record(work: Callable[[], object]) -> None:
        n_asked, recorded.is_complete = -1, False
        while recorded.n_asked != n_asked:
            n_asked = recorded.n_asked
            work()
        if given.answers is not None:
            given.answers.write_bytes(pickle.dumps(answers))

    def report(case: str, units: float, work: Callable[[], object]) -> None:
        recorded.is_complete = True
        recorded.counts.clear()
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000)  # as in a server
        seconds = measured(work)
        figures[case] = {phase: 1e3 * value / units for phase, value in seconds.items()}
        for phase, value in figures[case].items():
            print(f"{case}, {phase} … {value:.3f} ms", flush=True)
        for name, n in recorded.counts.items():
            figures[case][name] = n / units
            print(f"{case}, {name} … {n / units:.4f}", flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_files(folder, given.shared / "data", given.unit, given.minutes)
        for name in given.cases:
            work = partial(transcribe, model, CASES[name], folder)
            record(work)
            report(name, 60 * given.minutes, work)
        samples = load_audio(folder / "english.wav")[: int(LIVE_S * SAMPLE_RATE)]
    record(partial(speak, model, samples, 1))  # the others ask the same
    for n in given.sessions:
        report(f"live {n}", n * LIVE_S / CHUNK_S, partial(speak, model, samples, n))
    show_json("host", figures)
    if "packed16" in figures:
        print(f"english … {figures['packed16']['all']:.3f} ms")


if __name__ == "__main__":
    main()
