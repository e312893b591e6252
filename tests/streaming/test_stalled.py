"""Readings that lose the thread, and audio without words: later words are said, little audio is held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.streaming.utterance import STALL_KEEP_S
from sottovoce.types import SAMPLE_RATE, Event, Floats, Samples
from tests.runtime.fake import FakeBackend, Hear, Script, ScriptedToken
from tests.streaming.sessions import ALIGNATT, held_s, session, spoken, words_of
from tests.streaming.speech import TOKEN_OF, hear, say, silence

FIRST = "time"
"""Windows that begin with this word lose the thread behind `LOST_FROM` frames."""
LOST_FROM = 150


def loses_the_thread(script: Script) -> bool:
    return (
        bool(script.tokens) and script.tokens[0].id == TOKEN_OF[FIRST] and script.tokens[-1].frame > LOST_FROM
    )


def ends_early(mel: Floats, row: int = 0) -> Script:
    """The end of text comes far before the end of the speech."""
    script = hear(mel, row)
    if not loses_the_thread(script):
        return script
    return replace(script, tokens=tuple(token for token in script.tokens if token.frame < LOST_FROM))


def loops(mel: Floats, row: int = 0, every: int = 1) -> Script:
    """The same word again and again, every so many frames, up to the end of the window."""
    script = hear(mel, row)
    if not loses_the_thread(script):
        return script
    sound = [token for token in script.tokens if token.frame < LOST_FROM]
    babble = [ScriptedToken(sound[-1].id, frame) for frame in range(LOST_FROM, mel.shape[1] // 2, every)]
    return replace(script, tokens=(*sound, *babble))


class JumpsBack(FakeBackend):
    """Attends to the beginning of the window where it loses the thread."""

    def _say(self, heard, context, logits):  # type: ignore[no-untyped-def]
        frame = super()._say(heard, context, logits)
        is_lost = bool(heard.tokens) and heard.tokens[0][0] == TOKEN_OF[FIRST] and frame > 2 * LOST_FROM
        return 0 if is_lost else frame


MODELS: dict[str, Callable[[], FakeBackend]] = {
    "ends early": lambda: FakeBackend(ends_early),
    "loops": lambda: FakeBackend(loops),
    "jumps back": lambda: JumpsBack(hear),
}
EVERY_LOSS = pytest.mark.parametrize("loss", MODELS)
OPTIONS = pytest.mark.parametrize("stream", [StreamOptions(), ALIGNATT], ids=["careful", "AlignAtt alone"])


def words_from(first: str, n: int) -> list[str]:
    """So many words, of which the first is nowhere else."""
    rest = [word for word in spoken("en", 3 * n) if word != first]
    kept = [word for word, before in zip(rest, [None, *rest], strict=False) if word != before]
    return [first, *kept[: n - 1]]


def listen(live: Session, audio: Samples, chunk: int = 8000) -> tuple[list[Event], float]:
    """Every event, and the most seconds of audio that were held."""
    events: list[Event] = []
    most_s = 0.0
    for start in range(0, len(audio), chunk):
        events += live.push(audio[start : start + chunk])
        most_s = max(most_s, held_s(live) if live._decoder is not None else 0.0)
    return events + live.close(), most_s


@pytest.mark.quick(2)
@EVERY_LOSS
@OPTIONS
def test_a_reading_that_loses_the_thread_loses_no_later_word(loss: str, stream: StreamOptions) -> None:
    words = words_from(FIRST, 40)  # 16 s
    live = session(["en"], model=MODELS[loss](), stream=stream)
    events, _ = listen(live, np.concatenate([silence(0.5), say(words), silence(1.0)]))
    assert words_of(events) == words


@pytest.mark.long
@EVERY_LOSS
def test_words_come_in_time_again(loss: str) -> None:
    words = words_from(FIRST, 60)  # 24 s
    live = session(["en"], model=MODELS[loss](), stream=ALIGNATT)
    events = live.push(np.concatenate([silence(0.5), say(words)]))
    assert words_of(events) == words[: len(words_of(events))]
    assert len(words_of(events)) >= len(words) - 4


@EVERY_LOSS
@pytest.mark.parametrize("n_words", [9, 16])
def test_an_utterance_that_ends_lost_is_read_once_more(loss: str, n_words: int) -> None:
    """The thread is lost in the last seconds, of which no later reading comes to the rescue."""
    words = words_from(FIRST, n_words)
    live = session(["en"], model=MODELS[loss](), stream=ALIGNATT)
    events, _ = listen(live, np.concatenate([silence(0.5), say(words), silence(1.5), say(["man", "way"])]))
    assert words_of(events) == [*words, "man", "way"]


def test_a_slow_loop_is_found_in_updates_of_half_a_second() -> None:
    """It has the eight tokens of a loop in each update; in shorter ones its words would be committed."""
    words = words_from(FIRST, 40)
    for stream in (StreamOptions(chunk_s=0.5), replace(ALIGNATT, chunk_s=0.5)):
        live = session(["en"], model=FakeBackend(partial(loops, every=3)), stream=stream)
        events, _ = listen(live, np.concatenate([silence(0.5), say(words), silence(1.0)]))
        assert words_of(events) == words


def nothing(mel: Floats, row: int = 0) -> Script:
    return Script()


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("stream", [StreamOptions(), ALIGNATT], ids=["careful", "AlignAtt alone"])
def test_beams_say_what_is_said_and_no_more(stream: StreamOptions, beam_size: int) -> None:
    """Behind the last word the model says that nothing follows; no beam of invented words is better."""
    words = spoken("en", 12)
    live = session(["en"], vad=False, stream=replace(stream, beam_size=beam_size))
    events, _ = listen(live, np.concatenate([say(words), silence(1.5)]))
    assert words_of(events) == words


def babble(mel: Floats, row: int = 0) -> Script:
    """A word at every third frame, where there is no speech."""
    return Script(tuple(ScriptedToken(TOKEN_OF["life"], frame) for frame in range(0, mel.shape[1] // 2, 3)))


def noise(seconds: float) -> Samples:
    return np.random.default_rng(0).normal(0, 0.1, round(seconds * SAMPLE_RATE)).astype(np.float32)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("heard", "vad"),
    [
        (nothing, True),
        (nothing, False),
        (babble, False),
        pytest.param(babble, True, marks=pytest.mark.long),
    ],
)
def test_audio_without_words_is_let_go(heard: Hear, vad: bool) -> None:
    """Noise that is taken for speech: no more is held than `stall_timeout_s` and an update."""
    live = session(["en"], model=FakeBackend(heard), vad=vad)
    _, most_s = listen(live, noise(3 * StreamOptions().stall_timeout_s))
    assert most_s <= StreamOptions().stall_timeout_s + 1.0


@pytest.mark.parametrize(
    ("vad", "chunk_s", "more_s"),
    [
        (True, 0.5, 1.0),
        pytest.param(False, 0.5, 1.0, marks=pytest.mark.long),
        pytest.param(True, 0.25, ALIGNATT.stall_timeout_s, marks=pytest.mark.long),
        pytest.param(False, 0.25, ALIGNATT.stall_timeout_s, marks=pytest.mark.long),
    ],
)
def test_words_after_a_minute_of_noise_are_said(vad: bool, chunk_s: float, more_s: float) -> None:
    """more_s: how old the noise is that is held when speech begins depends on the updates."""
    words = spoken("en", 8)
    live = session(["en"], vad=vad, stream=replace(ALIGNATT, chunk_s=chunk_s))
    events, most_s = listen(live, np.concatenate([noise(30.0), say(words), noise(20.0)]))
    assert words_of(events) == words
    assert most_s <= STALL_KEEP_S + 0.4 * len(words) + ALIGNATT.stall_timeout_s + more_s


def test_silence_that_counts_as_speech_is_read_no_second_time() -> None:
    """Without voice activity control nobody knows that the end is silent; a second reading would invent."""
    heard: list[int] = []

    def listening(mel: Floats, row: int = 0) -> Script:
        heard.append(mel.shape[1])
        return hear(mel, row)

    words = spoken("en", 8)
    live = session(["en"], vad=False, model=FakeBackend(listening), stream=ALIGNATT)
    events = live.push(np.concatenate([say(words), silence(2.0)]))
    before = len(heard)
    events += live.close()
    assert words_of(events) == words
    assert len(heard) - before <= 1
