"""Speakers of a live session: known as they come, corrected once, the same however the sound is cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sottovoce.errors import OptionError
from sottovoce.options.transcribe import SpeakerOptions
from sottovoce.speakers.live_speakers import LiveSpeakers, make_live_speakers
from sottovoce.types import SAMPLE_RATE, Floats, Samples, Turn, Word
from tests.speakers.tones import ToneSpeakers, ToneVoices, recording

TALK = (Turn(0.0, 4.0, "low"), Turn(4.0, 8.0, "high"), Turn(8.0, 11.0, "low"), Turn(11.0, 15.0, "middle"))


def speakers(options: SpeakerOptions | None = None) -> LiveSpeakers:
    return LiveSpeakers(ToneSpeakers(), ToneVoices(), options)


def words(start_s: float, end_s: float) -> list[Word]:
    """Words of half a second, one after the other."""
    return [Word(" a", at, at + 0.5, 1.0) for at in np.arange(start_s, end_s, 0.5)]


def names(words_with_speakers: Sequence[Word]) -> list[str | None]:
    return [word.speaker for word in words_with_speakers]


def labelled(live: LiveSpeakers, samples: Samples, *, step: int = 8000) -> list[str | None]:
    """The speakers of words, each asked for half a second after its end, or at the end."""
    waiting, speakers_of_words = words(0.0, 15.0), []
    for start in range(0, len(samples), step):
        live.push(samples[start : start + step], is_speech=True)
        due = [word for word in waiting if word.end + 0.5 <= (start + step) / SAMPLE_RATE]
        waiting = waiting[len(due) :]
        speakers_of_words += names(live.label(due))
    return speakers_of_words + names(live.label(waiting))


def test_words_have_speakers_soon_after_they_are_said() -> None:
    labels = labelled(speakers(), recording(TALK, 15.0))
    assert set(labels[2:8]) == {"A"}
    assert set(labels[10:16]) <= {"B", None}
    assert labels[15] == "B"
    assert set(labels[18:22]) == {"A"}
    assert labels[-1] == "C"


def test_a_voice_of_which_little_was_heard_has_no_name_yet() -> None:
    live = speakers()
    assert names(live.label(words(0.0, 1.0))) == [None, None]
    live.push(recording(TALK, 15.0)[:12_000], is_speech=True)
    assert names(live.label(words(0.0, 0.5))) == [None]
    live.push(recording(TALK, 15.0)[12_000:32_000], is_speech=True)
    assert names(live.label(words(0.0, 0.5))) == ["A"]


def test_when_an_utterance_ends_its_speakers_are_known() -> None:
    live = speakers()
    live.push(recording(TALK, 15.0), is_speech=True)
    labels = names(live.relabel(words(0.0, 15.0)))
    assert labels == ["A"] * 8 + ["B"] * 8 + ["A"] * 6 + ["C"] * 8
    two, silent = speakers(SpeakerOptions(n_speakers=2)), speakers()
    two.push(recording(TALK, 15.0), is_speech=True)
    assert set(names(two.relabel(words(0.0, 15.0)))) == {"A", "B"}
    silent.push(recording(TALK, 15.0), is_speech=False)
    assert names(silent.relabel(words(0.0, 15.0))) == [None] * 30
    assert silent.n_samples == 15 * SAMPLE_RATE


def test_names_stay_with_voices() -> None:
    live = speakers()
    samples = recording(TALK, 15.0)
    live.push(samples[: 8 * SAMPLE_RATE], is_speech=True)
    before = names(live.relabel(words(0.0, 8.0)))
    live.push(samples[8 * SAMPLE_RATE :], is_speech=True)
    assert names(live.relabel(words(0.0, 8.0))) == before
    assert names(live.label(words(8.0, 11.0))) == ["A"] * 6


@pytest.mark.parametrize("step", [1600, 5000, 240_000])
def test_however_the_sound_is_cut(step: int) -> None:
    samples = recording(TALK, 15.0)
    whole, cut = speakers(), speakers()
    whole.push(samples, is_speech=True)
    for start in range(0, len(samples), step):
        cut.push(samples[start : start + step], is_speech=True)
    assert names(cut.relabel(words(0.0, 15.0))) == names(whole.relabel(words(0.0, 15.0)))


def test_another_session_knows_the_voices() -> None:
    live = speakers()
    samples = recording(TALK, 15.0)
    live.push(samples, is_speech=True)
    live.start_session()
    assert live.n_samples == 0
    live.push(samples[4 * SAMPLE_RATE : 8 * SAMPLE_RATE], is_speech=True)
    assert set(names(live.label(words(1.0, 4.0)))) == {"B"}


def test_a_long_session_keeps_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.speakers.live_speakers.MOST_REMEMBERED", 20)
    monkeypatch.setattr("sottovoce.speakers.live_speakers.WINDOWS_HELD_S", 6.0)
    live = speakers()
    for _ in range(4):
        live.push(recording(TALK, 15.0), is_speech=True)
    assert len(live._vectors) <= 23
    assert len(live._windows) < 30
    assert set(names(live.relabel(words(56.0, 59.0)))) == {"C"}


def test_other_engines_are_refused() -> None:
    with pytest.raises(OptionError, match="expected the engine 'own'"):
        make_live_speakers(SpeakerOptions(engine="pyannote"))
    live = speakers()
    assert make_live_speakers(live) is live


def test_a_voice_of_long_ago_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.speakers.live_speakers.MOST_REMEMBERED", 20)
    live = speakers()
    live.push(recording(TALK, 15.0)[: 8 * SAMPLE_RATE], is_speech=True)
    long_turn = recording((Turn(0.0, 40.0, "low"),), 40.0)
    for _ in range(3):
        live.push(long_turn, is_speech=True)
        live.relabel(words(live.n_samples / SAMPLE_RATE - 10.0, live.n_samples / SAMPLE_RATE))
    at = live.n_samples / SAMPLE_RATE
    live.push(recording(TALK, 15.0)[4 * SAMPLE_RATE : 8 * SAMPLE_RATE], is_speech=True)
    assert set(names(live.relabel(words(at + 1.0, at + 4.0)))) == {"B"}


def test_voices_are_handed_from_session_to_session() -> None:
    samples = recording(TALK, 15.0)
    before, after = speakers(), speakers()
    before.push(samples[: 8 * SAMPLE_RATE], is_speech=True)
    before.relabel(words(0.0, 8.0))
    assert list(before.voices) == ["A", "B"]
    after.add_voices({"B": before.voices["B"], "Anna": before.voices["A"]})
    after.push(samples, is_speech=True)
    assert names(after.relabel(words(0.0, 15.0))) == ["Anna"] * 8 + ["B"] * 8 + ["Anna"] * 6 + ["A"] * 8


@pytest.mark.parametrize(
    "vector", [np.ones(2, np.float32), np.zeros(3, np.float32), np.full(3, np.nan, np.float32)]
)
def test_vectors_that_are_no_voice_are_refused(vector: Floats) -> None:
    live = speakers()
    with pytest.raises(OptionError, match="voices: expected 3 finite numbers"):
        live.add_voices({"A": vector})
    assert not live.voices


def test_names_are_limited_and_come_once() -> None:
    live = speakers()
    live.add_voices({str(n): np.ones(3, np.float32) for n in range(100)})
    with pytest.raises(OptionError, match="at most 100, got 101"):
        live.add_voices({"another": np.ones(3, np.float32)})
    another = speakers()
    another.add_voices({"Anna": np.ones(3, np.float32)})
    with pytest.raises(OptionError, match="got 'Anna', who is known already"):
        another.add_voices({"Anna": np.ones(3, np.float32)})
