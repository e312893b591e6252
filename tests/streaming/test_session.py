"""Sessions: pauses, languages, switches; nothing lost, doubled or taken back, however audio is pushed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from sottovoce.audio.vad import VadStream
from sottovoce.errors import AudioError, OptionError, SessionClosedError
from sottovoce.language.probe import ProbeOptions
from sottovoce.streaming.options import LiveOptions, StreamOptions, Switching
from sottovoce.streaming.session import Session
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import (
    SAMPLE_RATE,
    LanguageChanged,
    Partial,
    Samples,
    SpeechEnded,
    SpeechStarted,
)
from tests.runtime.fake import FakeBackend
from tests.streaming.sessions import (
    TOKENIZER,
    changes_of,
    finals_of,
    held_s,
    listen,
    said_words,
    session,
    spoken,
    utterance_of,
    words_of,
)
from tests.streaming.speech import ToneDetector, backend, hear, say, silence

ALL = ("en", "de", "es")


def mixed(
    languages: Sequence[str], n: int, gap_s: float, seed: int = 0
) -> tuple[Samples, list[str], list[float]]:
    """Audio of n words in each language in turn, its words, and the times of the changes."""
    audio, words, changes = [silence(0.4)], [], []
    for i, language in enumerate(languages):
        part = spoken(language, n, seed + i)
        changes.append(sum(map(len, audio)) / SAMPLE_RATE)
        audio += [say(part), silence(gap_s)]
        words += part
    return np.concatenate([*audio, silence(1.0)]), words, changes[1:]


def test_nothing_is_decoded_in_silence() -> None:
    model = FakeBackend(hear)
    live = Session(model, TOKENIZER, LiveOptions(("en",)), vad=VadStream(model=ToneDetector()))
    assert listen(live, silence(20.0)) == []
    assert model.n_encoded == 0


@pytest.mark.quick(3)
@pytest.mark.parametrize("gap_s", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("switching_seed", range(3))
def test_switches_lose_and_double_nothing(gap_s: float, switching_seed: int) -> None:
    rng = random.Random(switching_seed)
    languages = rng.sample(ALL, 3)
    audio, words, times_s = mixed(languages, 10, gap_s, switching_seed)
    events = listen(session(), audio)
    assert words_of(events) == words, "counted words are the sum of the parts"
    changes = changes_of(events)
    assert [change.target for change in changes] == languages
    for change, at in zip(changes[1:], times_s, strict=True):
        assert abs(change.at - at) <= 0.5 + gap_s
        assert change.confirmed_at - at <= 2.5
    labelled = [word.language for event in events if isinstance(event, Partial) for word in event.words]
    expected = [language for language in languages for _ in range(10)]
    assert sum(a != b for a, b in zip(labelled, expected, strict=True)) <= 4


@pytest.mark.quick(3)
@pytest.mark.parametrize("word_s", [0.3, 0.5])
@pytest.mark.parametrize("shift_s", [0.0, 0.08, 0.12, 0.2, 0.28])
def test_a_switch_cuts_no_word_in_two(word_s: float, shift_s: float) -> None:
    """The timeline finds a boundary to half a hop; a word that it falls into is said on one side of it."""
    first, second = spoken("en", 10), spoken("de", 10)
    speech = say(first + second, word_s=word_s)
    audio = np.concatenate([silence(0.8 + shift_s), speech, silence(1.0)])
    stream = StreamOptions(
        chunk_s=0.5
    )  # the model attends to the beginning of a word: sooner, its rest is heard
    probe = ProbeOptions(width_s=2.0, hop_s=0.5, min_width_s=0.5)
    live = session(["en", "de"], probe=probe, stream=stream)
    assert words_of(listen(live, audio)) == first + second


def test_partials_add_up_to_finals_and_time_goes_on() -> None:
    audio, _, _ = mixed(["en", "de"], 8, 0.3)
    events = listen(session(), audio)
    partials = "".join(event.text for event in events if isinstance(event, Partial))
    finals = " ".join(event.text for event in finals_of(events))
    assert partials.split() == finals.split()
    words = [word for event in events if isinstance(event, Partial) for word in event.words]
    assert all(a.end <= b.start + 1e-9 for a, b in pairwise(words))
    emitted = [event.emission_time for event in events if not isinstance(event, LanguageChanged)]
    assert emitted == sorted(emitted)
    for event in events:
        if isinstance(event, Partial):
            assert event.end <= event.emission_time


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("switching", ["off", "restart"])
def test_any_cutting_gives_the_same_events(switching: Switching, seed: int) -> None:
    audio, _, _ = mixed(["de", "en"], 8, 0.2)
    whole = listen(session(switching=switching), audio, len(audio))
    rng = random.Random(seed)
    live, pieces, at = session(switching=switching), [], 0
    while at < len(audio):
        n = rng.choice([0, 1, 160, rng.randint(1, 80000)])
        pieces += live.push(audio[at : at + n])
        at += n
    assert pieces + live.close() == whole


def test_off_detects_once_and_keeps() -> None:
    audio, words, _ = mixed(["de", "en"], 8, 0.2)
    events = listen(session(switching="off"), audio)
    assert [(c.previous, c.target) for c in changes_of(events)] == [(None, "de")]
    assert words_of(events) == words


def test_watching_the_language_changes_no_word() -> None:
    """One language, probe on and off: the same words, times and probabilities."""
    audio = np.concatenate([silence(0.4), say(spoken("en", 25)), silence(1.0)])

    def said(live: Session) -> list[object]:
        return [word for event in listen(live, audio) if isinstance(event, Partial) for word in event.words]

    assert said(session(["en"])) == said(session(["en", "de"]))


def test_a_short_utterance_is_said_too() -> None:
    audio = np.concatenate([silence(0.5), say(["und"]), silence(1.5)])
    events = listen(session(), audio)
    assert words_of(events) == ["und"]
    assert [word.language for final in finals_of(events) for word in final.words] == ["de"]


def test_a_short_pause_is_read_over_and_a_long_one_leaves_a_prompt() -> None:
    """Up to max_pause_s what was said is heard and read again; after more it is text alone."""
    first, second = spoken("en", 6), spoken("en", 6, seed=1)
    for pause_s, max_pause_s, holds in (
        (1.5, 3.0, True),
        (2.5, 3.0, True),
        (6.0, 10.0, True),
        (4.5, 3.0, False),
        (1.5, 0.0, False),
    ):
        live = session(["en"], stream=StreamOptions(max_pause_s=max_pause_s))
        audio = np.concatenate([silence(0.5), say(first), silence(pause_s), say(second)])
        events = live.push(audio)
        prefix = utterance_of(live).prefix("en")
        prompt = TOKENIZER.decode(prefix.tokens[: prefix.sot]).split()
        read_on = TOKENIZER.decode(prefix.committed).split()
        starts_s = utterance_of(live).start_sample / SAMPLE_RATE
        if holds:
            assert prompt == []
            assert read_on[:6] == first
            assert starts_s < 0.5
        else:
            assert prompt == first
            assert not set(first) & set(read_on) - set(second)
            assert starts_s > 2.0 + pause_s
        events += live.close()
        assert words_of(events) == first + second
        assert [event.text.split() for event in finals_of(events)] == [first, second]
        edges = [event for event in events if isinstance(event, SpeechStarted | SpeechEnded)]
        assert [type(edge) for edge in edges] == [SpeechStarted, SpeechEnded] * 2
        assert [edge.utterance for edge in edges] == [1, 1, 2, 2], "whatever is held"


def test_in_a_long_pause_a_session_keeps_the_text_alone() -> None:
    first, second = spoken("en", 6), spoken("en", 6, seed=1)
    live, apart = session(["en"]), session(["en"])
    speech = np.concatenate([silence(0.5), say(first)])
    events = [*live.push(speech), *live.push(silence(20.0))]
    assert utterance_of(live).log_mel().shape[1] < 10
    assert utterance_of(live).encoder._state is None
    events += [*live.push(say(second)), *live.close()]
    assert words_of(events) == first + second
    assert events == listen(apart, np.concatenate([speech, silence(20.0), say(second)]))


@pytest.mark.parametrize(
    "bad",
    [
        np.array([0.0, np.nan], np.float32),
        np.array([np.inf], np.float32),
        np.zeros(10, np.uint8),
        np.zeros((2, 10), np.float32),
        np.zeros(16000 * 601, np.float32),
        [0.0, 1.0],
    ],
)
def test_bad_audio_is_refused_and_the_session_goes_on(bad: Samples) -> None:
    words = spoken("en", 6)
    audio = np.concatenate([silence(0.5), say(words), silence(1.0)])
    live = session(["en"])
    events = live.push(audio[:20000])
    with pytest.raises(AudioError):
        live.push(bad)
    events += live.push(np.zeros(0, np.float32))
    events += live.push(audio[20000:])
    assert words_of(events + live.close()) == words


def test_sessions_share_the_detector_and_nothing_that_it_heard() -> None:
    """Its weights are read once in a process, which took most of the time that a session needs to open."""
    stream, other = VadStream(), VadStream()
    assert stream.model is other.model
    stream.push(say(spoken("en", 4)))
    assert other.n_samples == 0
    assert other.push(silence(1.0)) == VadStream().push(silence(1.0))


def test_after_close_nothing_is_taken() -> None:
    assert session().close() == []
    live = session(["en"])
    live.push(say(["time"]))
    live.close()
    assert live.close() == []
    with pytest.raises(SessionClosedError):
        live.push(silence(0.1))


def test_nothing_is_said_before_the_first_language_is_known() -> None:
    """Words of the language that stands first in the list would come in a language nobody speaks."""
    audio = np.concatenate([silence(0.5), say(spoken("de", 15)), silence(1.0)])
    events = listen(session(["en", "de"], switch_certainty=1.0, first_language_s=2.5), audio)
    kinds = [type(event) for event in events]
    assert kinds.index(LanguageChanged) < kinds.index(Partial)
    assert {word.language for word in said_words(events)} == {"de"}


def test_languages_are_checked() -> None:
    with pytest.raises(OptionError, match="klingon"):
        session(["en", "klingon"])
    with pytest.raises(OptionError, match="once"):
        session(["en", "english"])
    english = Tokenizer.for_model(51864)
    with pytest.raises(OptionError, match="English-only"):
        Session(backend(), english, LiveOptions(("en", "de")))
    assert Session(backend(), english).languages == ("en",)


N_WORDS = 8
"""Of a turn."""


@pytest.mark.long
def test_switches_leave_no_trace() -> None:
    """Flat memory: what is held has bounds, over more than the minute that a timeline keeps."""
    n_switches = 45
    live = session(stream=StreamOptions(chunk_s=1.0, max_context_tokens=20))
    parts = {code: say(spoken(code, N_WORDS)) for code in ("en", "de")}
    words, n_found, held = 0, 0, []
    for i in range(n_switches):
        events = live.push(parts["en" if i % 2 else "de"])
        words += len(words_of(events))
        n_found += len(changes_of(events))
        said = (utterance_of(live).history or {}).values()
        n_samples = live._schedule.buffer.end - live._schedule.buffer.start
        held.append((n_samples, held_s(live), len(live.timeline.frames), sum(map(len, said))))
    words += len(words_of(live.close()))
    assert n_found >= n_switches - 2
    assert words == N_WORDS * n_switches
    n_samples, most_held_s, n_frames, n_context = np.max(held, axis=0)
    assert n_samples <= 12 * SAMPLE_RATE
    assert most_held_s <= 31.0
    assert n_frames <= 60 / 0.25 + 2
    assert n_context <= 2 * 20
