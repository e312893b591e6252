"""One language: streaming equals offline, nothing lost, doubled or taken back, however audio is cut."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sottovoce.models.dims import BASE, DENSE, EXACT, EncoderMode
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import encoder_mode
from sottovoce.types import SAMPLE_RATE, Unstable
from tests.streaming.sessions import (
    ALIGNATT,
    TOKENIZER,
    Reading,
    held_s,
    run,
    session,
    spoken,
    text,
    utterance_of,
    words_of,
)
from tests.streaming.speech import backend, say, silence


@pytest.mark.quick(4)
@pytest.mark.parametrize("threshold", [10, 25, 200, math.inf])
@pytest.mark.parametrize("chunk_s", [0.2, 1.7])
@pytest.mark.parametrize("careful", [True, False])
def test_all_words_once_and_in_order(threshold: float, chunk_s: float, careful: bool) -> None:
    """By AlignAtt alone, and where words must be sure as well."""
    words = spoken("en", 20)
    options = StreamOptions() if careful else ALIGNATT
    _, read = run(say(words), replace(options, frame_threshold=threshold, chunk_s=chunk_s))
    assert text(read) == words


def test_the_tail_is_flushed() -> None:
    _, read = run(say(["time", "year"])[: -round(0.1 * SAMPLE_RATE)])
    assert text(read) == ["time", "year"]


def test_word_times_are_where_the_words_are() -> None:
    words = spoken("en", 50)
    _, read = run(say(words), StreamOptions(audio_max_len_s=8.0, audio_trim_s=2.0))
    assert text(read) == words
    for i, word in enumerate(read):
        assert abs(word.start - 0.4 * i) <= 0.1, f"word {i} drifted"
        assert min(word.end, 0.4 * i + 0.3) - max(word.start, 0.4 * i) >= 0.08, "most of it is in the word"
    assert all(a.end <= b.start for a, b in pairwise(read))


@pytest.mark.quick(1)
@pytest.mark.parametrize("max_len_s", [3.0, 5.0, 12.0])
def test_trimming_loses_nothing(max_len_s: float) -> None:
    words = spoken("en", 60, seed=3)
    options = StreamOptions(audio_max_len_s=max_len_s, audio_trim_s=max_len_s / 3)
    live, read = run(say(words), options)
    assert text(read) == words
    assert held_s(live) <= max_len_s + 0.5


@pytest.mark.long
def test_dropped_text_becomes_the_prompt_within_its_limit() -> None:
    words = spoken("en", 90, seed=5)
    options = StreamOptions(
        audio_max_len_s=4.0, audio_trim_s=1.0, static_prompt="names and terms", max_context_tokens=50
    )
    live, read = run(say(words), options)
    assert text(read) == words
    prefix = utterance_of(live).prefix("en")
    assert prefix.sot == 51
    said = TOKENIZER.decode(prefix.tokens[1 : prefix.sot])
    assert said.startswith(" names and terms")
    assert (
        " ".join(words).startswith(said.removeprefix(" names and terms").strip().split()[-1])
        or said.split()[-1] in words
    )


def test_an_initial_prompt_moves_out_and_a_static_one_stays() -> None:
    options = StreamOptions(
        init_prompt="once",
        static_prompt="always",
        max_context_tokens=6,
        audio_max_len_s=3.0,
        audio_trim_s=1.0,
    )
    assert TOKENIZER.decode(Reading(options).utterance.prefix("en").tokens) == " always once"
    live, _ = run(say(spoken("en", 60)), options)
    prefix = utterance_of(live).prefix("en")
    prompt = TOKENIZER.decode(prefix.tokens[: prefix.sot])
    assert prompt.startswith(" always")
    assert "once" not in prompt
    assert prefix.sot <= 7


def test_words_wait_until_their_language_is_certain() -> None:
    reading = Reading()
    reading.append(say(spoken("en", 10)))
    window = reading.encode()
    first = reading.read(window, certain_until_s=1.2)
    assert first
    assert all(word.end <= 1.2 for word in first)
    assert [word.word for word in reading.decoder.policy.unstable][:1] == [" " + spoken("en", 10)[len(first)]]
    rest = reading.read(window)
    assert rest
    assert text(first + rest + reading.read(window, final=True)) == spoken("en", 10)


def test_finishing_early_leaves_the_later_audio_unsaid() -> None:
    words = spoken("en", 10)
    reading = Reading()
    reading.append(say(words))
    window = reading.encode(until_sample=round(2.0 * SAMPLE_RATE))
    assert text(reading.read(window, final=True)) == words[:5]


MODES = [
    EXACT,
    EncoderMode(tail_s=0.0),
    EncoderMode(tail_s=0.0, bucket_s=0.5),
    EncoderMode(tail_s=5.0, stride=4, bucket_s=1.0),
    EncoderMode(tail_s=5.0, stride=4, recompute_s=2.5),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_encoders_context_changes_no_word(mode: EncoderMode) -> None:
    words = spoken("en", 20)
    _, read = run(say(words), replace(ALIGNATT, encoder=mode))
    assert text(read) == words


def test_the_encoder_sees_no_more_than_it_needs() -> None:
    reading = Reading(StreamOptions(encoder=EncoderMode(tail_s=0.0, bucket_s=1.0)))
    reading.append(say(spoken("en", 4)))  # 1.6 s
    window = reading.encode()
    assert window.encoded.n_frames == 100
    assert window.n_frames <= 80


def test_padding_follows_the_audio_up_to_the_full_window() -> None:
    reading = Reading(StreamOptions(encoder=EncoderMode(tail_s=0.0, bucket_s=1.0), tail_s=5.0))
    reading.append(say(spoken("en", 4)))
    window = reading.encode()
    assert window.encoded.n_frames == 100 + 250
    assert window.n_frames <= 80
    reading.append(np.zeros(27 * SAMPLE_RATE, np.float32))
    assert reading.encode().encoded.n_frames == 1500


def test_growing_audio_is_encoded_as_the_checkpoint_bears_it_or_as_asked() -> None:
    model, mode = backend(), EncoderMode(tail_s=3.0, stride=2)
    assert encoder_mode(StreamOptions(), model) == model.encoder_mode
    assert encoder_mode(StreamOptions(encoder=mode), model) == mode
    assert encoder_mode(StreamOptions(encoder=mode, tail_s=1.0), model) == replace(mode, tail_s=1.0)


def test_a_tail_of_its_own_is_not_thinned_as_a_full_window_is() -> None:
    """Anchors and stride of base are of padding up to 30 s; behind less of it each frame is computed."""
    mode = encoder_mode(StreamOptions(encoder=BASE, tail_s=DENSE.tail_s), backend())
    assert mode == replace(DENSE, refresh_s=BASE.refresh_s, between_s=BASE.between_s)


@pytest.mark.parametrize("max_len_s", [1.0, 6.0, 10.0, 30.0])
def test_a_cut_suits_what_is_held(max_len_s: float) -> None:
    options = StreamOptions(audio_max_len_s=max_len_s)
    assert options.trim_step_s == min(10.0, max_len_s / 3)
    assert replace(options, audio_trim_s=0.5).trim_step_s == 0.5


def test_audio_without_words_is_cut_too() -> None:
    hum = np.random.default_rng(0).normal(0, 0.003, 20 * SAMPLE_RATE).astype(np.float32)
    words = spoken("en", 10)
    options = replace(ALIGNATT, audio_max_len_s=6.0, audio_trim_s=2.0)
    live, read = run(np.concatenate([hum, say(words)]), options)
    assert text(read) == words
    assert held_s(live) <= 6.5


def test_an_utterance_that_is_never_read_is_cut() -> None:
    utterance = Reading(replace(ALIGNATT, audio_max_len_s=6.0, audio_trim_s=2.0)).utterance
    for _ in range(20):
        utterance.append(silence(1.0))
    assert utterance.end_sample - utterance.start_sample <= 6.0 * SAMPLE_RATE


def test_revisable_captions_go_beyond_the_words_that_are_committed_and_change_none() -> None:
    words = spoken("en", 12)
    audio = say(words)
    shown: dict[str, list[str]] = {}
    for captions in ("firm", "revisable"):
        live = session(["en"], vad=False, captions=captions)
        events = live.push(audio)
        committed = words_of(events)
        unstable = [event.text for event in events if isinstance(event, Unstable)]
        shown[captions] = [*committed, *(unstable[-1].split() if unstable else [])]
        assert shown[captions] == words[: len(shown[captions])]
        assert committed == shown["firm"]
    assert len(shown["revisable"]) > len(shown["firm"])
    assert len(words) - len(shown["revisable"]) <= 2
