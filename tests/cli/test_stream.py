"""The live command: sources, sinks, logs, exit codes."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from sottovoce.audio.io import load_audio
from sottovoce.cli import stream
from sottovoce.cli.invocation import say, say_error
from sottovoce.cli.main import run
from sottovoce.cli.stream import EmittedWords, LiveView, append_log, caught_up, file_pieces, n_joined
from sottovoce.errors import OptionError
from sottovoce.runtime.update_interval import UpdateIntervalController
from sottovoce.types import SAMPLE_RATE, Final, LanguageChanged, Partial, Samples, Transcript, Unstable, Word
from tests.audio.media import encoded_bytes, wav_bytes
from tests.cli.conftest import Call
from tests.speakers.somebody import one_speaker

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
QUICK = ["--model", "nano", "--dtype", "float32", "--chunk-ms", "2000"]


Event = dict[str, Any]
Live = Callable[..., list[Event]]


@pytest.fixture
def live(call: Call) -> Live:
    """The events of a live session in English over the clip, or another source."""

    def events(*words: object, source: Path | str = CLIP) -> list[Event]:
        output = call("stream", source, *QUICK, "--languages", "en", "--jsonl", *words)
        return [json.loads(line) for line in output.out.splitlines()]

    return events


def said(events: list[Event]) -> str:
    return " ".join(str(event["text"]) for event in events if event["type"] == "final")


def test_a_file_becomes_events_and_a_log_line(tmp_path: Path, live: Live) -> None:
    log, heard, document = tmp_path / "log.jsonl", tmp_path / "heard.wav", tmp_path / "talk.json"
    events = live("--log", log, "--save-audio", heard, "-o", document)
    assert Transcript.load(document).text == said(events)
    kinds = {event["type"] for event in events}
    assert kinds <= {"partial", "final", "speech_started", "speech_ended"}
    assert "final" in kinds
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert {event["utterance"] for event in events} == {1}
    partials = "".join(str(e["text"]) for e in events if e["type"] == "partial").split()
    (logged,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert logged["prediction"].split() == partials
    assert len(logged["delays"]) == len(logged["elapsed"]) == len(partials)
    assert logged["delays"] == sorted(logged["delays"])
    with wave.open(str(heard)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    np.testing.assert_allclose(samples / 32767, load_audio(CLIP), atol=1e-4)


def test_a_saved_session_has_the_text_before_its_second_pass(tmp_path: Path) -> None:
    read = tuple(
        Word(f" {text}", i, i + 1.0, 1.0, "en", speaker="AB"[i // 2]) for i, text in enumerate("abc")
    )
    committed = (Word(" x", 0.0, 1.0, 1.0, "en"),)
    emitted, path = EmittedWords(), tmp_path / "talk.json"
    emitted.take([Final(0.0, 3.0, "a b c", "en", read, 3.0, committed=committed, is_read=True)], 0.0)
    stream.save(emitted, path, "nano")
    segments = Transcript.load(path).segments
    assert [segment.text for segment in segments] == [" a b", " c"]
    assert [segment.committed for segment in segments] == ["x", None]


def test_an_eagerness_tells_where_a_turn_ends(tmp_path: Path, live: Live) -> None:
    quiet = tmp_path / "quiet.wav"
    quiet.write_bytes(wav_bytes(np.concatenate([load_audio(CLIP), np.zeros(4 * SAMPLE_RATE, np.float32)])))
    *_, final, ended, turn = live("--eagerness", "high", source=quiet)
    assert [event["type"] for event in (final, ended, turn)] == ["final", "speech_ended", "turn_ended"]
    assert 0.5 < turn["probability"] <= 1.0
    assert (turn["start"], turn["emission_time"]) == (ended["start"], ended["emission_time"])
    assert run(["stream", str(quiet), *QUICK, "--eagerness", "extreme"]) == 2


def test_standard_input_is_the_same_as_the_file(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    pcm = (load_audio(CLIP) * 32768).clip(-32768, 32767).astype("<i2").tobytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(pcm)))
    assert live(source="-") == live()


@pytest.mark.parametrize(
    ("kind", "codec", "is_fifo"), [("wav", "pcm_s16le", True), ("webm", "libopus", False)]
)
def test_a_pipe_of_a_sound_file_is_decoded(
    kind: str, codec: str, is_fifo: bool, tmp_path: Path, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, source = encoded_bytes(load_audio(CLIP).repeat(3), rate=48_000, container=kind, codec=codec), "-"
    if is_fifo:
        source = str(tmp_path / "pipe")
        os.mkfifo(source)
        threading.Thread(target=lambda: Path(source).write_bytes(data), daemon=True).start()
    else:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert said(live(source=source)).startswith("The garden is")


def test_a_pipe_of_samples_without_a_header(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (load_audio(CLIP) * 32767).astype(">i2").tobytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    text = said(live("--input-format", "s16be:16000", source="-"))
    assert text == "The garden is quiet in the morning."


@pytest.mark.parametrize("data", [b"", b"no sound\n", b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(9000)])
def test_a_pipe_without_sound_is_one_line_and_exit_code_2(
    data: bytes, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    (line,) = call("stream", "-", *QUICK, code=2).err.strip().splitlines()
    assert line.startswith("error: standard input: expected a sound file or 16-bit PCM at 16 kHz")


class PipeInTime:
    """A pipe that is filled at a speed, and a clock that moves while the model works.

    speed: seconds of sound a second.
    """

    def __init__(self, n_pieces: int, speed: float) -> None:
        self.now_s = 0.0
        self.came = [(np.full(8_000, n, np.float32), n * 0.5 / speed) for n in range(n_pieces)]

    def pushes(self, work_s: float) -> list[Samples]:
        """What a model gets that takes work_s for each push."""
        pushes = []
        waiting = list(self.came)
        while waiting:
            self.now_s = max(self.now_s, waiting[0][1])
            there = [piece for piece in waiting if piece[1] <= self.now_s]
            n = n_joined(there, self.now_s)
            pushes.append(np.concatenate([samples for samples, _ in waiting[:n]]))
            del waiting[:n]
            self.now_s += work_s
        return pushes


@pytest.mark.parametrize("work_s", [0.1, 0.8, 3.0])
def test_a_pipe_that_is_filled_in_time_is_caught_up_with(work_s: float) -> None:
    pipe = PipeInTime(400, speed=1.0)
    pushes = pipe.pushes(work_s)
    np.testing.assert_array_equal(np.concatenate(pushes), np.repeat(np.arange(400), 8_000))
    assert pipe.now_s - pipe.came[-1][1] < 2 * work_s + 1.0, "no more behind than one push"
    assert max(map(len, pushes)) <= 10 * SAMPLE_RATE


def test_bursts_do_not_keep_a_pipe_behind() -> None:
    """Segments of six seconds of a broadcast, each at once."""
    pipe = PipeInTime(480, speed=1.0)
    pipe.came = [(samples, came_s // 6 * 6) for samples, came_s in pipe.came]
    pipe.pushes(0.8)
    assert pipe.now_s - pipe.came[-1][1] < 20.0


@pytest.mark.parametrize("speed", [3.0, 1e6])
def test_a_pipe_that_is_filled_faster_is_not_cut_by_the_clock(speed: float) -> None:
    assert [len(piece) for piece in PipeInTime(100, speed).pushes(2.0)] == [8_000] * 100


def test_pieces_that_a_thread_reads_come_in_order_with_their_error() -> None:
    def pieces() -> Iterator[Samples]:
        yield from (np.full(10, n, np.float32) for n in range(5))
        raise OptionError("the end")

    heard = []
    with pytest.raises(OptionError, match="the end"):
        heard.extend(caught_up(pieces(), Controller(0)))
    assert [int(piece[0]) for piece in heard] == list(range(5))


def test_a_long_recording_through_a_pipe_waits_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_WAITING", 16)
    n_read = 0

    def pieces() -> Iterator[Samples]:
        nonlocal n_read
        while n_read < 20_000:
            n_read += 1
            yield np.full(10, n_read, np.float32)

    taken = caught_up(pieces(), Controller(0))
    assert [int(next(taken)[0]) for _ in range(100)] == list(range(1, 101))
    assert n_read <= 100 + 2 * 16 + 2
    taken.close()
    assert "sottovoce-source" not in [thread.name for thread in threading.enumerate()]


def test_unstable_text_is_shown_beside_the_committed(live: Live) -> None:
    def events(*more: str) -> tuple[list[str], list[Event]]:
        heard = live(*more)
        assert [event.pop("seq") for event in heard] == list(range(len(heard)))
        unstable = [str(event["text"]) for event in heard if event["type"] == "unstable"]
        return unstable, [event for event in heard if event["type"] != "unstable"]

    none, committed = events()
    words, beside_words = events("--captions", "revisable")
    assert none == []
    assert any(words)
    assert words[-1] == "", "nothing unstable is left at the end of an utterance"
    assert beside_words == committed


@pytest.mark.parametrize("encoder", ["auto", "whole", "exact"])
def test_however_audio_is_encoded_it_is_understood(encoder: str, live: Live) -> None:
    assert said(live("--encoder", encoder)) == "The garden is quiet in the morning."


def test_boosted_phrases_come_out(tmp_path: Path, live: Live) -> None:
    """A word that is nowhere without the boost; as text, hotwords only stand before the prompt."""
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("quorl\n", encoding="utf-8")
    assert "quorl" not in said(live("--beam-size", "3"))
    assert "quorl" in said(live("--beam-size", "3", "--hotwords", phrases, "--hotword-weight", "60"))
    assert "quorl" not in said(live("--hotwords", "Gertrude"))


def test_an_ngram_model_takes_part(tmp_path: Path, live: Live) -> None:
    """All of a heavy model's weight on one token: nothing else is said."""
    arpa = tmp_path / "lm.arpa"
    arpa.write_text("\\data\\\nngram 1=4\n\n\\1-grams:\n-9 <unk>\n-9 <s>\n-9 </s>\n-0.1 291\n\n\\end\\\n")
    light, heavy = (said(live("--beam-size", "2", "--lm", arpa, "--lm-weight", n)) for n in (0, 9))
    assert light == said(live("--beam-size", "2"))
    assert light != heavy


def test_words_have_speakers(live: Live, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.speakers.live_speakers.make_live_speakers", one_speaker)
    finals = [event for event in live("--speakers", "auto") if event["type"] == "final"]
    assert {word["speaker"] for final in finals for word in final["words"]} == {"A"}
    assert "] A: " in call("stream", CLIP, *QUICK, "--languages", "en", "--speakers", "2").out


def test_pieces_add_up_to_the_file() -> None:
    audio = np.arange(1000, dtype=np.float32)
    pieces = list(file_pieces(audio, 300, realtime=False))
    assert [len(piece) for piece in pieces] == [300, 300, 300, 100]
    np.testing.assert_array_equal(np.concatenate(pieces), audio)


def test_a_terminal_shows_colours_and_dims_what_may_change() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system="standard")
    word = Word(" hello", 0.0, 0.4, 0.9, "en")
    with LiveView(console) as view:
        view.show([Unstable(0.0, 0.4, " hel", "en", 0.5)])
        view.show([Partial(0.0, 0.4, " hello", "en", (word,), 1.0), LanguageChanged("en", "de", 1.0, 2.0)])
        view.show([Final(0.0, 0.4, "hello", "en", (word,), 1.0), Final(1.0, 1.4, "hallo", "de", (), 2.0)])
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[0m\x1b[36mhello" in shown
    assert "\x1b[0m\x1b[35mhallo" in shown
    assert shown.count("36m hello") == 1, "what has a final is not drawn again"


def test_messages_stand_above_the_live_text(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with LiveView(console) as view:
        view.show([Unstable(0.0, 0.4, " hel", "en", 0.5)])
        say("interrupted")
        say_error("no translation")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2Kinterrupted\n" in shown
    assert "no translation\n" in shown


def test_a_terminal_is_told_of_a_silent_recording(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(stream, "say_on_terminal", lines.append)
    (tmp_path / "silent.wav").write_bytes(wav_bytes(np.zeros(SAMPLE_RATE, np.float32)))
    for source in (tmp_path / "silent.wav", CLIP):
        call("stream", source, *QUICK, "--languages", "en")
    assert lines == ["loading nano …", "note: no speech was found", "loading nano …"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_termination_ends_the_recording_and_what_was_heard_is_said(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The live command hears no end on standard input, and SIGTERM is one. Each utterance has one final.

    SIGKILL: so has each whose final is there, and the words and the audio so far are.
    """
    pcm = (load_audio(CLIP) * 32768).clip(-32768, 32767).astype("<i2").tobytes()
    pcm += bytes(2 * 32_000) + pcm
    heard = tmp_path / "heard.wav"
    command = [sys.executable, "-m", "sottovoce", "stream", "-", *QUICK, "-l", "en", "--jsonl"]
    process = subprocess.Popen(
        [*command, "--finals", "read", "--save-audio", str(heard)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(pcm)
        process.stdin.flush()
        lines = [process.stdout.readline()]
        while lines[-1] and b'"speech_ended"' not in lines[-1]:
            lines.append(process.stdout.readline())
        process.send_signal(number)
        lines += process.stdout.readlines()
        error = process.stderr.read()
    is_killed = number == signal.SIGKILL
    assert process.returncode == (-number if is_killed else 143)
    assert error == (b"" if is_killed else b"terminated: transcribing the rest\n")
    events = [json.loads(line) for line in lines if line.endswith(b"\n")]
    partials, finals = ([event for event in events if event["type"] == kind] for kind in ("partial", "final"))
    n_finals = len(finals) if is_killed else len({event["utterance"] for event in partials})
    numbers = sorted({event["utterance"] for event in partials})[:n_finals]
    assert [event["utterance"] for event in finals] == numbers
    committed = [word for event in finals for word in event["committed"]]
    assert committed == [
        word for event in partials if event["utterance"] in numbers for word in event["words"]
    ]
    assert any(event["words"] for event in partials)
    with wave.open(str(heard)) as file:
        assert file.getnframes() > 0


def test_what_was_there_stays_where_nothing_is_heard(tmp_path: Path, call: Call) -> None:
    """The audio of before is not wiped by a call that fails, and never that of the recording itself."""
    talk = Path(shutil.copy(CLIP, tmp_path / "talk.flac"))
    for words in (
        ["stream", str(tmp_path / "missing.wav"), *QUICK],
        ["stream", str(CLIP), "--model", "nothing"],
        ["stream", str(talk), *QUICK],
    ):
        assert len(call(*words, "--save-audio", talk, code=2).err.strip().splitlines()) == 1
        assert talk.read_bytes() == CLIP.read_bytes()
    new = tmp_path / "new.wav"
    assert run(["stream", str(tmp_path / "missing.wav"), *QUICK, "--save-audio", str(new)]) == 2
    assert not new.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_audio_that_cannot_be_kept_is_one_line(call: Call) -> None:
    """What is said is not lost with it."""
    output = call("stream", CLIP, *QUICK, "-l", "en", "--jsonl", "--save-audio", "/dev/full", code=2)
    (line,) = output.err.strip().splitlines()
    assert line.startswith("error: recording '/dev/full': cannot be written")
    assert any(json.loads(event)["type"] == "final" for event in output.out.splitlines())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_transcript_that_cannot_be_kept_hides_no_audio_that_cannot(tmp_path: Path, call: Call) -> None:
    (tmp_path / "full.srt").symlink_to("/dev/full")
    words = ["stream", CLIP, *QUICK, "-l", "en", "-o", tmp_path / "full.srt", "--save-audio", "/dev/full"]
    lines = call(*words, code=2).err.strip().splitlines()
    names = ("recording '/dev/full'", f"output '{tmp_path / 'full.srt'}'")
    assert lines == [f"error: {name}: cannot be written (No space left on device)" for name in names]


def test_a_log_of_other_bytes_gets_its_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\n")
    append_log(log, EmittedWords(), "talk.wav")
    assert json.loads(log.read_bytes().splitlines()[1])["index"] == 1
    with pytest.raises(OptionError, match=r"--log .*: cannot be written"):
        append_log(tmp_path, EmittedWords(), "talk.wav")


class Controller(UpdateIntervalController):
    """Notes what it is told."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level
        self.waits_s: list[float] = []
        self.works_s: list[float] = []

    def note_wait(self, seconds: float) -> None:
        self.waits_s.append(seconds)

    def note_work(self, seconds: float, now_s: float) -> None:
        self.works_s.append(seconds)


def test_audio_in_real_time_is_measured_and_comes_at_the_interval_of_the_load() -> None:
    piece = np.zeros(800, np.float32)

    def pieces() -> Iterator[Samples]:
        for _ in range(40):
            time.sleep(0.05)
            yield piece

    idle, loaded = Controller(1), Controller(2)
    assert {len(piece) for piece in caught_up(pieces(), idle)} == {800}, "with one beam first"
    assert len(idle.waits_s) == len(idle.works_s) > 30
    taken = [len(piece) for piece in caught_up(pieces(), loaded)]
    assert min(taken[:-1]) >= round(loaded.interval_s * SAMPLE_RATE), "half a second at a time"
    assert sum(taken) == 40 * len(piece)


def test_a_recording_in_a_pipe_is_no_load() -> None:
    controller = Controller(0)
    for _ in caught_up(iter([np.zeros(800, np.float32)] * 40), controller):
        time.sleep(0.005)
    assert not controller.waits_s
