"""What an utterance holds: prompts that stay or move out, and text and audio within limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.audio.vad import VadStream
from sottovoce.runtime.calls import DecodeCall, IncrementalEncodeCall, ModelCall
from sottovoce.streaming.commit_policy import HypothesisWord
from sottovoce.streaming.options import LiveOptions, StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.streaming.utterance import MAX_COMMITTED_TOKENS, LiveUtterance
from sottovoce.types import HOP_SAMPLES, SAMPLE_RATE, LanguageChanged, Partial, Word
from tests.runtime.fake import FakeBackend, Script, ScriptedToken
from tests.runtime.noting import Noting
from tests.streaming.sessions import (
    ALIGNATT,
    TOKENIZER,
    Reading,
    held_s,
    listen,
    said_words,
    spoken,
    words_of,
)
from tests.streaming.speech import ToneDetector, backend, hear, say, silence

OPTIONS = StreamOptions(init_prompt="once", static_prompt="always")


def utterance(
    said: dict[str, tuple[int, ...]] | None = None, options: StreamOptions = OPTIONS
) -> LiveUtterance:
    return Reading(options).session._new_decoder(0, said).utterance


def commit(spoken_to: LiveUtterance, text: str, *, language: str = "en", at_s: float = 1.0) -> None:
    word = Word(text, at_s, at_s + 0.3, 0.9, language)
    spoken_to.commit([HypothesisWord(word, tuple(TOKENIZER.encode(text)), 60)])


def prompt(spoken_to: LiveUtterance, language: str = "en") -> str:
    prefix = spoken_to.prefix(language)
    return TOKENIZER.decode([token for token in prefix.tokens[: prefix.sot] if token < TOKENIZER.eot])


def test_an_initial_prompt_stands_where_nothing_was_said() -> None:
    assert prompt(utterance()) == " always once"
    assert prompt(utterance({"en": tuple(TOKENIZER.encode(" said"))})) == " always said"
    assert prompt(utterance({"en": ()})) == " always"


def test_an_initial_prompt_comes_in_no_other_language_once_something_was_said() -> None:
    fresh = utterance()
    assert prompt(fresh) == " always once"
    commit(fresh, " time")
    assert prompt(fresh, "de") == " always"
    asked_before = utterance()
    assert prompt(asked_before, "de") == prompt(asked_before, "en") == " always once"
    commit(asked_before, " und", language="de")
    assert prompt(asked_before, "de") == " always once"
    assert prompt(asked_before, "en") == " always"


def test_an_initial_prompt_does_not_come_back_after_a_loop() -> None:
    lost = utterance()
    commit(lost, " time")
    lost.clear_prompt()
    assert prompt(lost) == prompt(lost, "de") == " always"
    assert prompt(utterance(lost.history)) == " always time"
    assert prompt(utterance(lost.history), "de") == " always"


def test_an_initial_prompt_waits_for_the_first_words() -> None:
    """An utterance that gave none, a cough, has not used it up; nor has one that nobody read."""
    cough = utterance()
    assert prompt(utterance(cough.history)) == " always once"
    prompt(cough)
    assert prompt(utterance(cough.history)) == " always once"
    commit(cough, " time")
    assert prompt(utterance(cough.history)) == " always once time"
    assert prompt(utterance(cough.history), "de") == " always"


def test_what_was_said_is_told_by_language() -> None:
    mixed = utterance({"fr": (1, 2)}, replace(OPTIONS, init_prompt=""))
    commit(mixed, " time")
    commit(mixed, " und", language="de", at_s=2.0)
    prompt(mixed, "en"), prompt(mixed, "de")
    assert mixed.history == {
        "fr": (1, 2),
        "en": tuple(TOKENIZER.encode(" time")),
        "de": tuple(TOKENIZER.encode(" und")),
    }


def test_dropped_words_become_the_prompt_of_their_language() -> None:
    held = utterance(options=replace(OPTIONS, init_prompt=""))
    held.append(silence(5.0))
    commit(held, " time", at_s=1.0)
    commit(held, " und", language="de", at_s=2.0)
    held.drop_before(1.5)
    assert (prompt(held), prompt(held, "de")) == (" always time", " always")
    assert held.prefix("en").committed == ()
    assert held.prefix("de").committed == tuple(TOKENIZER.encode(" und"))
    assert held.start_sample == round(1.5 * SAMPLE_RATE)
    assert held.encoder._state is None


def prefixes(calls: Sequence[ModelCall[object]]) -> list[tuple[str, str, str]]:
    """The language, prompt and committed text of every decoding."""
    requests = []
    for request in [call.given for call in calls if isinstance(call, DecodeCall)]:
        tokens, sot = request.prefix.tokens, request.prefix.sot
        language = TOKENIZER.language_codes[tokens[sot + 1] - TOKENIZER.sot - 1]
        before = TOKENIZER.decode([token for token in tokens[:sot] if token < TOKENIZER.eot])
        requests.append((language, before, TOKENIZER.decode(request.prefix.committed)))
    return requests


def test_an_initial_prompt_is_before_the_first_words_alone() -> None:
    """Through a change of language and pauses, short and long."""
    runtime = Noting(backend())
    options = LiveOptions(("en", "de"), stream=StreamOptions(init_prompt="prelude"))
    live = Session(backend(), TOKENIZER, options, vad=VadStream(model=ToneDetector()), runtime=runtime)
    parts = [("en", 0.8), ("de", 5.0), ("de", 0.8), ("en", 1.0)]
    words = [spoken(language, 10, seed=i) for i, (language, _) in enumerate(parts)]
    audio = [
        part for said, (_, gap_s) in zip(words, parts, strict=True) for part in (say(said), silence(gap_s))
    ]
    events = listen(live, np.concatenate([silence(0.5), *audio]))
    assert words_of(events) == [word for said in words for word in said]
    changed = [event for event in events if isinstance(event, LanguageChanged)]
    assert [event.target for event in changed] == ["en", "de", "en"]
    seen = prefixes(runtime.done)
    assert seen[0][0] == "en"
    assert any("prelude" in before for _, before, _ in seen)
    said_something = False
    for language, before, committed in seen:
        said_something = said_something or bool(committed)
        assert language == "en" or not said_something or "prelude" not in before
    long_pause = next(i for i, (language, before, _) in enumerate(seen) if language == "de" and before)
    assert all("prelude" not in before for language, before, _ in seen[long_pause:] if language == "de")


N_DENSE = 4


def hear_densely(mel: object, row: int = 0) -> Script:
    """Tones, each of which is a word of several tokens."""
    script = hear(mel, row)  # type: ignore[arg-type]
    tail = TOKENIZER.encode("xyzw")[:1] * (N_DENSE - 1)
    tokens = [
        ScriptedToken(id_, token.frame + i)
        for token in script.tokens
        for i, id_ in enumerate((token.id, *tail))
    ]
    return Script(tuple(tokens), script.languages)


@pytest.mark.long
def test_dense_text_is_cut_by_its_tokens() -> None:
    """13 tokens a second, for 18 s: the decoder never runs full, and words come in time."""
    words = spoken("en", 60)
    options = LiveOptions(("en",), stream=replace(ALIGNATT, max_repeats=10_000))
    live = Session(FakeBackend(hear_densely), TOKENIZER, options)
    most_committed, events = 0, []
    audio = say(words, word_s=0.24, gap_s=0.06)
    for start in range(0, len(audio), 8000):
        events += live.push(audio[start : start + 8000])
        assert live._decoder is not None
        most_committed = max(most_committed, live._decoder.utterance.committed.n_tokens)
    latest = max(
        event.emission_time - word.end
        for event in events
        if isinstance(event, Partial)
        for word in event.words
    )
    events += live.close()
    assert [
        word.word.strip()[: len(said)] for word, said in zip(said_words(events), words, strict=True)
    ] == words
    assert most_committed <= MAX_COMMITTED_TOKENS + 3 * 13, "what an update adds, before the next one cuts"
    assert latest <= 2.0
    assert held_s(live) < 15.0, "tokens cut it, not seconds"


def test_committed_text_is_cut_at_the_widest_pause_of_its_middle() -> None:
    held = utterance()
    held.append(silence(25.0))
    for i in range(60):
        commit(held, " time year people", at_s=0.3 * i + (1.0 if i >= 27 else 0.0))
    assert held.committed.n_tokens == 180 > MAX_COMMITTED_TOKENS
    held.append(silence(0.1))
    assert held.start_sample / SAMPLE_RATE == pytest.approx(26 * 0.3 + 0.3 + 0.5, abs=0.021)
    assert held.committed.n_tokens == 3 * 33
    start = held.start_sample
    held.append(silence(0.1))
    assert held.start_sample == start, "once is enough"


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", ["close", "finalize", "pause"])
@pytest.mark.parametrize(
    "beyond_s", [0.01, 0.31, *(pytest.param(long, marks=pytest.mark.long) for long in (0.13, 0.47))]
)
def test_nothing_that_is_encoded_is_longer_than_what_may_be_held(how: str, beyond_s: float) -> None:
    """Speech ends between two updates, when as much is held as may be."""
    held = StreamOptions(audio_max_len_s=6.0, audio_trim_s=2.0, stall_timeout_s=30.0)
    hum = np.random.default_rng(0).normal(0, 0.003, 30 * SAMPLE_RATE).astype(np.float32)
    audio = say(spoken("en", 20)) if how == "pause" else hum
    for seconds in (6.0, 6.5, 7.5, 8.0):
        runtime = Noting(backend())
        options = LiveOptions(("en",), switching="off", stream=held)
        detector = VadStream(model=ToneDetector()) if how == "pause" else None
        live = Session(backend(), TOKENIZER, options, vad=detector, runtime=runtime)
        live.push(audio[: round((seconds + beyond_s) * SAMPLE_RATE)])
        if how == "pause":
            live.push(silence(1.0))
        elif how == "finalize":
            live.finalize()
        live.close()
        encoded = [call for call in runtime.done if isinstance(call, IncrementalEncodeCall)]
        n_frames = max(window.log_mel.shape[1] for call in encoded for window in call.windows)
        assert 4.0 < n_frames * HOP_SAMPLES / SAMPLE_RATE <= held.audio_max_len_s
