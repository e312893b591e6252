"""The systems that read recordings in several languages: ours in its modes, and other programs."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.harness.programs import cpp_model, faster_model
from benchmarks.harness.report import Log
from benchmarks.language.mixed_recordings import MixedRecording
from sottovoce.api import Model, as_whisper, load_model
from sottovoce.evaluation.scores import run_live
from sottovoce.models.load import load_checkpoint, write_checkpoint
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.streaming.options import Finals, LiveOptions
from sottovoce.types import Samples

BEAM_SIZE = 5
PARTS = "parts"
LIVE_CHUNK_S = 0.25


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a system made of a recording. words: (start, end, word). spans: (start, end, language). told:
    (start, end) of speech that it says has no words.
    """

    text: str
    words: list[tuple[float, float, str]]
    spans: list[tuple[float, float, str]]
    cpu_s: float
    delays_s: list[float] = field(default_factory=list)
    """Of a live session, audio received when each word came."""
    told: list[tuple[float, float]] = field(default_factory=list)


System = Callable[[Any, Samples], Outcome]
"""Reads a `MixedRecording`, or what else has a name."""


def timed_words(segments: Sequence[Any], at_s: float = 0.0) -> list[tuple[float, float, str]]:
    """Words of segments with their times, `at_s` later."""
    return [(word.start + at_s, word.end + at_s, word.word) for item in segments for word in item.words or ()]


def ours(
    model: Model,
    languages: Callable[[Any], str | None],
    *,
    words: bool = True,
    beam_size: int | None = BEAM_SIZE,
    **options: Any,
) -> System:
    """The file as `transcribe` reads it. words: with their times, for what they show. options: others."""

    def read(recording: Any, samples: Samples) -> Outcome:
        started = time.process_time()
        result = model.transcribe(
            samples,
            language=languages(recording),
            beam_size=beam_size,
            word_timestamps=words,
            options=TranscribeOptions(**options),
        )
        segments = list(result)
        spent = time.process_time() - started
        spans = [(item.start, item.end, item.language) for item in segments]
        reported = list(result.unread or ())
        text = " ".join(item.text for item in segments)
        return Outcome(text, timed_words(segments), spans, spent, told=reported)

    return read


def parts_alone(model: Model) -> System:
    """Every part as a file of its own, its language given."""

    def read(recording: MixedRecording, samples: Samples) -> Outcome:
        outcome = Outcome("", [], [], 0.0)
        for part in recording.parts:
            sound = recording.audio_of(part, samples)
            started = time.process_time()
            segments = list(
                model.transcribe(sound, language=part.language, beam_size=BEAM_SIZE, word_timestamps=True)
            )
            spent = outcome.cpu_s + time.process_time() - started
            words = timed_words(segments, part.start_s)
            text = " ".join([outcome.text, *(item.text for item in segments)])
            span = (part.start_s, part.end_s, part.language)
            outcome = Outcome(text, outcome.words + words, [*outcome.spans, span], spent)
        return outcome

    return read


def live(model: Model, *, finals: Finals = "committed", languages: Sequence[str] | None = None) -> System:
    """A live session. finals: "read": words of the second pass. languages: None: of the recording."""

    def read(recording: MixedRecording, samples: Samples) -> Outcome:
        allowed = recording.languages if languages is None else languages
        options = LiveOptions(final_wait_s=math.inf)
        session = model.session(allowed, switching="restart", finals=finals, options=options)
        created = run_live(session, samples, chunk_s=LIVE_CHUNK_S)
        shown, delays_s = created.words, list(created.delays_s)
        if finals == "read":
            shown, delays_s = created.final_words, []
        words = [(word.start, word.end, word.word) for word in shown]
        spans = [(word.start, word.end, word.language or "") for word in shown]
        return Outcome("".join(word.word for word in shown).strip(), words, spans, created.cpu_s, delays_s)

    return read


def faster_whisper(*, batched: bool = False) -> System:
    """faster-whisper, int8, asked for the language of every window; batched: over speech found first, which
    is what WhisperX does too."""
    folder = Path(tempfile.mkdtemp())
    program = faster_model(load_checkpoint("base"), folder, "int8", 1)

    def read(recording: MixedRecording, samples: Samples) -> Outcome:
        started = time.process_time()
        options: dict[str, Any] = {"multilingual": True, "beam_size": BEAM_SIZE, "word_timestamps": True}
        if batched:
            from faster_whisper import BatchedInferencePipeline

            segments, _ = BatchedInferencePipeline(program).transcribe(samples, batch_size=8, **options)
        else:
            segments, _ = program.transcribe(samples, **options)
        result = list(segments)
        spent = time.process_time() - started
        return Outcome(" ".join(item.text for item in result), timed_words(result), [], spent)

    return read


def whisper_cpp() -> System:
    """whisper.cpp, f16 weights, language found by itself (once, which is all it can)."""
    file = Path(tempfile.mkdtemp()) / "ggml-base.bin"
    write_checkpoint(load_checkpoint("base"), file, "ggml", "f16")
    program = cpp_model(file, BEAM_SIZE, 1)

    def read(recording: MixedRecording, samples: Samples) -> Outcome:
        started = time.process_time()
        result = program.transcribe(samples, language="auto")
        spent = time.process_time() - started
        words = [(item.t0 / 100, item.t1 / 100, item.text) for item in result]
        return Outcome(" ".join(item.text for item in result), words, [], spent)

    return read


@cache
def systems() -> dict[str, Callable[[], System]]:
    """By name, made when they are needed."""
    model = as_whisper(load_model("base", device="cpu"), "systems")

    def listed(recording: MixedRecording) -> str:
        return ",".join(recording.languages)

    return {
        "list": lambda: ours(model, listed),
        "list untimed": lambda: ours(model, listed, words=False),
        "auto": lambda: ours(model, lambda recording: None),
        "auto untimed": lambda: ours(model, lambda recording: None, words=False),
        "given": lambda: ours(model, lambda recording: recording.parts[0].language),
        PARTS: lambda: parts_alone(model),
        "live": lambda: live(model),
        "live auto": lambda: live(model, languages=()),
        "finals": lambda: live(model, finals="read"),
        "finals auto": lambda: live(model, finals="read", languages=()),
        "faster-whisper": faster_whisper,
        "faster-whisper batched": lambda: faster_whisper(batched=True),
        "whisper.cpp": whisper_cpp,
    }


def read_missing(recordings: Sequence[Any], created: Mapping[str, Callable[[], System]], path: Path) -> None:
    """Let systems read recordings, each with a name and samples; results in the log are not made again."""
    log = Log(path)
    for name, make in created.items():
        todo = [item for item in recordings if log.get(name, item.name) is None]
        if not todo:
            continue
        read = make()
        read(todo[0], todo[0].audio())  # warm
        for recording in todo:
            outcome = read(recording, recording.audio())
            log.add(name, recording.name, asdict(outcome))
            print(name, recording.name, f"{outcome.cpu_s:.1f} s", flush=True)


def outcomes(path: Path) -> dict[tuple[str, str], Outcome]:
    """The results in a log, by system and recording."""
    return {key: Outcome(**value) for key, value in Log(path).found.items()}
