"""One language: streaming equals offline, nothing lost, doubled or taken back, however audio is cut."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from sottovoce.backends.torch import TorchBackend
from sottovoce.errors import OptionError
from sottovoce.models.nano import read_compact
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.stream import Stream
from sottovoce.types import SAMPLE_RATE, Samples, Word
from tests.models import tiny
from tests.streaming.speech import TOKENIZER, WORDS, backend, say, silence


def run(audio: Samples, options: StreamOptions, *, chunk_s: float | None = None) -> tuple[Stream, list[Word]]:
    """Every word of a stream that is updated each chunk."""
    stream = Stream(backend(), TOKENIZER, options)
    step = round((chunk_s or options.chunk_s) * SAMPLE_RATE)
    words: list[Word] = []
    for start in range(0, len(audio), step):
        stream.append(audio[start : start + step])
        window = stream.encode()
        words += stream.commit(window) if window is not None else []
    return stream, words + stream.finish()


def spoken(n: int, seed: int = 0) -> list[str]:
    """Words without immediate repeats, of which two tones would be one."""
    rng = random.Random(seed)
    words = [rng.choice(WORDS["en"])]
    while len(words) < n:
        words.append(rng.choice([word for word in WORDS["en"] if word != words[-1]]))
    return words


def text(words: list[Word]) -> list[str]:
    return "".join(word.word for word in words).split()


@pytest.mark.parametrize("threshold", [10, 25, 200, math.inf])
@pytest.mark.parametrize("chunk_s", [0.2, 1.7])
def test_all_words_once_and_in_order(threshold: float, chunk_s: float) -> None:
    words = spoken(20)
    _, found = run(say(words), StreamOptions(frame_threshold=threshold, chunk_s=chunk_s))
    assert text(found) == words


def test_the_tail_is_flushed() -> None:
    _, found = run(say(["time", "year"])[: -round(0.1 * SAMPLE_RATE)], StreamOptions())
    assert text(found) == ["time", "year"]


def test_word_times_are_where_the_words_are() -> None:
    words = spoken(50)
    _, found = run(say(words), StreamOptions(audio_max_len_s=8.0, audio_trim_s=2.0))
    assert text(found) == words
    for i, word in enumerate(found):
        middle = 0.4 * i + 0.15
        assert abs(word.start - middle) <= 0.08, f"word {i} drifted"
    assert all(a.end <= b.start for a, b in pairwise(found))


@pytest.mark.parametrize("max_len_s", [3.0, 5.0, 12.0])
def test_trimming_loses_nothing(max_len_s: float) -> None:
    words = spoken(60, seed=3)
    options = StreamOptions(audio_max_len_s=max_len_s, audio_trim_s=max_len_s / 3)
    stream, found = run(say(words), options)
    assert text(found) == words
    assert stream.end_sample - stream.start_sample <= (max_len_s + 0.5) * SAMPLE_RATE


def test_dropped_text_becomes_the_prompt_within_its_limit() -> None:
    words = spoken(250, seed=5)
    options = StreamOptions(audio_max_len_s=4.0, audio_trim_s=1.0, static_prompt="names and terms")
    stream, found = run(say(words), options)
    assert text(found) == words
    prefix = stream.prefix()
    assert prefix.sot <= 224
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
    stream = Stream(backend(), TOKENIZER, options)
    assert TOKENIZER.decode(stream.prefix().tokens) == " always once"
    stream, _ = run(say(spoken(60)), options)
    prompt = TOKENIZER.decode(stream.prefix().tokens[: stream.prefix().sot])
    assert prompt.startswith(" always")
    assert "once" not in prompt
    assert stream.prefix().sot <= 7


def test_silence_says_nothing() -> None:
    _, found = run(silence(5.0), StreamOptions())
    assert found == []


def test_words_wait_until_they_are_settled() -> None:
    stream = Stream(backend(), TOKENIZER, StreamOptions())
    stream.append(say(spoken(10)))
    window = stream.encode()
    assert window is not None
    first = stream.commit(window, settled_until_s=1.2)
    assert first
    assert all(word.end <= 1.2 for word in first)
    rest = stream.commit(window)
    assert text(first + rest + stream.finish()) == spoken(10)


def test_finishing_early_leaves_the_later_audio_unsaid() -> None:
    words = spoken(10)
    stream = Stream(backend(), TOKENIZER, StreamOptions())
    stream.append(say(words))
    assert text(stream.finish(until_sample=round(2.0 * SAMPLE_RATE))) == words[:5]


@pytest.mark.parametrize("bucket", [None, 0.02, 1.0, 5.0])
def test_the_encoders_context_changes_no_word(bucket: float | None) -> None:
    words = spoken(20)
    _, found = run(say(words), StreamOptions(context_bucket_s=bucket))
    assert text(found) == words


def test_the_encoder_sees_no_more_than_it_needs() -> None:
    stream = Stream(backend(), TOKENIZER, StreamOptions(context_bucket_s=1.0))
    stream.append(say(spoken(4)))  # 1.6 s
    window = stream.encode()
    assert window is not None
    assert window.encoded.n_frames == 100
    assert window.n_frames <= 80


def test_padding_follows_the_audio_up_to_the_full_window() -> None:
    stream = Stream(backend(), TOKENIZER, StreamOptions(context_bucket_s=1.0, tail_s=5.0))
    stream.append(say(spoken(4)))
    window = stream.encode()
    assert window is not None
    assert window.encoded.n_frames == 100 + 250
    assert window.n_frames <= 80
    stream.append(np.zeros(27 * SAMPLE_RATE, np.float32))
    window = stream.encode()
    assert window is not None
    assert window.encoded.n_frames == 1500


def test_whisper_asks_for_padding_and_nano_for_none() -> None:
    for checkpoint, tail_s in ((tiny.checkpoint(), 5.0), (read_compact(), 0.0)):
        backend = TorchBackend.from_checkpoint(checkpoint, device=tiny.CPU, dtype=torch.float32)
        assert backend.tail_s == tail_s


@pytest.mark.parametrize("seed", range(3))
def test_frames_do_not_depend_on_how_audio_came(seed: int) -> None:
    rng = random.Random(seed)
    audio = say(spoken(20)) + np.random.default_rng(seed).normal(0, 0.01, 128000).astype(np.float32)
    whole, pieces = (Stream(backend(), TOKENIZER, StreamOptions()) for _ in range(2))
    whole.append(audio)
    at = 0
    while at < len(audio):
        n = rng.randint(1, 20000)
        pieces.append(audio[at : at + n])
        at += n
    assert whole._held._mels.frames().equal(pieces._held._mels.frames())


@pytest.mark.parametrize(
    "bad",
    [
        {"chunk_s": 0.0},
        {"frame_threshold": -1},
        {"frame_threshold": math.nan},
        {"audio_max_len_s": 31.0},
        {"beam_size": 0},
        {"max_context_tokens": 224},
        {"context_bucket_s": 0.0},
        {"tail_s": -1.0},
        {"chunk_s": 6.0, "audio_max_len_s": 5.5},
    ],
)
def test_impossible_options_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(bad))):
        StreamOptions(**bad)  # type: ignore[arg-type]


def test_audio_without_words_is_cut_too() -> None:
    hum = np.random.default_rng(0).normal(0, 0.003, 20 * SAMPLE_RATE).astype(np.float32)
    words = spoken(10)
    stream, found = run(
        np.concatenate([hum, say(words)]), StreamOptions(audio_max_len_s=6.0, audio_trim_s=2.0)
    )
    assert text(found) == words
    assert stream.end_sample - stream.start_sample <= 6.5 * SAMPLE_RATE


def test_a_stream_that_never_settles_is_cut() -> None:
    stream = Stream(backend(), TOKENIZER, StreamOptions(audio_max_len_s=6.0, audio_trim_s=2.0))
    for _ in range(20):
        stream.append(silence(1.0))
        stream.encode()
    assert stream.end_sample - stream.start_sample <= 6.0 * SAMPLE_RATE
