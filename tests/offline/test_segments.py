"""From a window's tokens to segments with words."""

from __future__ import annotations

import copy
import random
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from sottovoce.decoding.alignment import (
    TimedWord,
    WindowText,
    align_windows,
    cut_at_sentence_ends,
    interpolate_improbable,
    merge_punctuation,
    place_words,
    usual_duration,
)
from sottovoce.offline.windows import WindowCut, cut_window
from sottovoce.options.transcribe import APPENDED, PREPENDED, TranscribeOptions
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Word
from tests.conftest import Reference
from tests.decoding import rig

TOKENIZER = Tokenizer.for_model(51865, language="en")
A, B, C = 1000, 2000, 3000


def at(seconds: float) -> int:
    return TOKENIZER.timestamp_begin + round(seconds * 50)


def times(
    tokens: list[int], *, n_frames: int = 3000, keep_open: bool = False
) -> tuple[list[tuple[float, float]], int, bool]:
    """Spans in a window that begins at 10 s, the frames of it that are done with, and how it ends."""
    cut = cut_window(tokens, TOKENIZER, seek=1000, n_frames=n_frames, keep_open=keep_open)
    return [(segment.start, segment.end) for segment in cut.segments], cut.seek - 1000, cut.ends_closed


def test_pairs_cut_and_the_open_rest_is_left_to_the_next_window() -> None:
    tokens = [at(0), A, at(2), at(2.5), B, at(4), at(4), C]
    assert times(tokens) == ([(10.0, 12.0), (12.5, 14.0)], 400, False)


def test_a_single_last_timestamp_ends_the_window() -> None:
    assert times([at(0), A, at(2), at(2.5), B, at(4)]) == ([(10.0, 12.0), (12.5, 14.0)], 3000, True)


def test_without_a_pair_the_window_is_one_segment() -> None:
    assert times([at(0), A, at(3)]) == ([(10.0, 13.0)], 3000, True)
    assert times([at(0), A, B]) == ([(10.0, 40.0)], 3000, False)
    assert times([A, B]) == ([(10.0, 40.0)], 3000, False)
    assert times([]) == ([(10.0, 40.0)], 3000, False)


def test_the_open_rest_is_kept_where_no_window_follows() -> None:
    tokens = [at(0), A, at(2), at(3), C]
    assert times(tokens, keep_open=True) == ([(10.0, 12.0), (13.0, 40.0)], 3000, False)
    kept = cut_window(tokens, TOKENIZER, seek=0, n_frames=3000, keep_open=True).segments
    assert [token for item in kept for token in item.tokens] == tokens


def test_audio_of_which_nothing_was_said_is_left_to_a_next_window_always() -> None:
    tokens = [at(0), A, at(2), at(2)]
    assert times(tokens, keep_open=True) == times(tokens) == ([(10.0, 12.0)], 200, False)


def test_no_token_is_lost_or_doubled() -> None:
    tokens = [at(0), A, at(2), at(2), B, at(4), at(4), C, at(5)]
    cut = cut_window(tokens, TOKENIZER, seek=0, n_frames=3000)
    assert [token for segment in cut.segments for token in segment.tokens] == tokens
    assert cut.text_tokens(TOKENIZER.eot) == (A, B, C)


@pytest.mark.parametrize("keep_open", [False, True])
def test_nothing_lies_behind_the_end_of_the_audio(keep_open: bool) -> None:
    tokens = [at(0), A, at(2), at(2), B, at(29), at(29), C, at(30)]
    assert times(tokens, n_frames=600, keep_open=keep_open) == ([(10.0, 12.0), (12.0, 16.0)], 600, True)
    tokens = [at(0), A, at(2), at(7), B, at(9), at(9), C]
    assert times(tokens, n_frames=600, keep_open=keep_open) == ([(10.0, 12.0)], 600, False)
    assert times([at(0), A, at(9)], n_frames=600, keep_open=keep_open) == ([(10.0, 16.0)], 600, True)


def test_speech_ends_with_the_last_word() -> None:
    def of(*segments: Segment) -> float | None:
        return WindowCut(segments, 0).end_of_speech

    assert of() is None
    assert of(Segment(0, 0, 3, "", "en")) == 3
    said = Segment(0, 0, 3, "", "en", words=(Word("a", 0.0, 1.5, 0.9),))
    assert of(said, Segment(0, 3, 9, "", "en", words=())) == 1.5


RULES = TranscribeOptions()


def word(text: str, start: float, end: float) -> TimedWord:
    return TimedWord(text, (1,) * max(1, len(text.strip()) // 3), start, end, 0.9)


def texts(words: list[TimedWord]) -> list[str]:
    return [item.word for item in words]


def test_signs_join_their_words() -> None:
    words = [
        word(text, i, i + 1) for i, text in enumerate([" “", "Oh", ",", " no", "!", '"', " (", "sic", ")"])
    ]
    merged = merge_punctuation(words, PREPENDED, APPENDED)
    assert texts(merged) == [" “Oh,", ' no!"', " (sic)"]
    assert merged[0].tokens == (1, 1, 1)
    assert (merged[0].start, merged[0].end) == (1, 2)  # the word's own time


def test_long_sentence_ends_are_cut() -> None:
    words = [word(" a", 0.0, 0.2), word(" b", 0.2, 0.4), word(".", 0.4, 5.0), word(" c", 5.0, 9.0)]
    usual = usual_duration(words[:2])
    assert usual == pytest.approx(0.2)
    cut = cut_at_sentence_ends(words, 2 * usual)
    assert cut[2].end == pytest.approx(0.8)
    assert cut[3].start == pytest.approx(8.6)
    assert cut_at_sentence_ends(words, 0.0) == words


def test_usual_words_are_at_most_700_ms() -> None:
    assert usual_duration([word(" a", 0.0, 3.0)]) == 0.7
    assert usual_duration([word(" a", 1.0, 1.0)]) == 0.0


def test_a_batch_of_windows_gives_the_words_of_each() -> None:
    model = rig.backend()
    mels = rig.mel(3)
    said = [" some words, said", "", " more of them"]
    tokenizer = rig.tokenizer("en")
    windows = [
        WindowText(tokenizer, tuple(tokenizer.encode(text)), n_frames)
        for text, n_frames in zip(said, (80, 80, 51), strict=True)
    ]
    together = align_windows(model, rig.encode(model, mels), windows)
    for index, window in enumerate(windows):
        alone = align_windows(model, rig.encode(model, mels[index : index + 1]), [window])[0]
        assert [(item.word, item.start, item.end) for item in alone] == [
            (item.word, item.start, item.end) for item in together[index]
        ]
    assert texts(together[0]) == [" some", " words", ",", " said"]
    assert together[1] == []
    assert all(0 <= item.start <= item.end <= 0.8 for item in together[0])


def spoken(*reported: tuple[str, float, float]) -> list[TimedWord]:
    """Words that follow each other without gaps from 0 s: text, seconds, probability."""
    ends = list(accumulate(length for _, length, _ in reported))
    return [
        TimedWord(text, (1,), end - length, end, probability)
        for (text, length, probability), end in zip(reported, ends, strict=True)
    ]


def test_an_improbable_word_begins_where_its_surer_neighbours_and_letters_say() -> None:
    words = spoken((" four", 0.1, 0.9), (" as", 0.1, 0.1), (" ab", 0.6, 0.2), (" sure", 0.4, 0.9))
    placed = interpolate_improbable(words, 0.5)
    assert texts(placed) == texts(words)
    assert [item.start for item in placed] == pytest.approx([0.0, 0.4, 0.6, 0.8])
    assert [item.end for item in placed] == pytest.approx([0.4, 0.6, 0.8, 1.2])
    kept = interpolate_improbable(words, 0.1)
    assert [item.start for item in kept] == pytest.approx([item.start for item in words])
    assert interpolate_improbable([], 0.5) == []


def test_signs_and_the_outer_bounds_of_a_segment_keep_their_times() -> None:
    words = spoken(
        (" low", 0.1, 0.1), (" low", 0.3, 0.1), (".", 2.0, 0.1), (" so", 0.5, 0.9), (" on", 0.5, 0.1)
    )
    placed = interpolate_improbable(words, 0.5)
    assert [item.start for item in placed] == pytest.approx([0.0, 0.2, 0.4, 2.4, 2.9])
    assert placed[-1].end == pytest.approx(3.4)


def test_words_of_one_segment_are_not_drawn_into_another() -> None:
    words = spoken((" said", 0.4, 0.9), (" then", 0.4, 0.1), (" so", 0.2, 0.1), (" on", 0.6, 0.1))
    rules = TranscribeOptions(word_threshold=0.5)
    cut = [Segment(0, 0.0, 0.8, "", "en", (1, 1)), Segment(1, 0.8, 1.6, "", "en", (1, 1))]
    placed = place_words(cut, words, rules, eot=50257)
    starts = [[item.start for item in segment.words or ()] for segment in placed]
    assert starts == [pytest.approx([0.0, 0.4]), pytest.approx([0.8, 1.2])]


@pytest.mark.reference
@pytest.mark.parametrize("seed", range(40))
def test_rules_equal_openai_whispers(
    seed: int, monkeypatch: pytest.MonkeyPatch, reference: Reference
) -> None:
    choice = random.Random(seed)
    words, cut = _random_window(choice)
    last_speech = choice.choice([0.0, 5.0, 6.9])

    def compute() -> list[dict[str, Any]]:
        timing = pytest.importorskip("whisper.timing", reason="openai-whisper is not installed")
        segments = [
            {"seek": 700, "start": item.start, "end": item.end, "tokens": list(item.tokens)} for item in cut
        ]
        theirs = [
            timing.WordTiming(item.word, list(item.tokens), item.start, item.end, item.probability)
            for item in words
        ]
        monkeypatch.setattr(timing, "find_alignment", lambda *_, **__: copy.deepcopy(theirs))
        timing.add_word_timestamps(
            segments=segments,
            model=None,
            tokenizer=rig.tokenizer("en"),
            mel=np.zeros(0, np.float32),
            num_frames=3000,
            last_speech_timestamp=last_speech,
        )
        return segments

    segments = reference(compute)
    placed = place_words(cut, words, RULES, eot=50257, window_start=7.0, last_speech=last_speech)
    for ours, segment in zip(placed, segments, strict=True):
        assert (ours.start, ours.end) == pytest.approx((segment["start"], segment["end"]))
        assert ours.words is not None
        assert [item.word for item in ours.words] == [item["word"] for item in segment["words"]]
        for mine, other in zip(ours.words, segment["words"], strict=True):
            assert (mine.start, mine.end) == pytest.approx((other["start"], other["end"]))


def _random_window(choice: random.Random) -> tuple[list[TimedWord], list[Segment]]:
    """Words of odd lengths with signs between them, and segments that hold all their tokens."""
    words: list[TimedWord] = []
    now = choice.choice([0.0, 0.0, 4.0])
    for _ in range(choice.randint(1, 14)):
        text = choice.choice([" so", " it", " goes", ".", ",", " (", " “", "?", " and", "。"])
        length = choice.choice([0.0, 0.1, 0.2, 0.3, 0.3, 0.4, 1.2, 4.0])
        words.append(word(text, now, now + length))
        now += length + choice.choice([0.0, 0.0, 0.0, 2.0])
    n_tokens = sum(len(item.tokens) for item in words)
    cut = choice.randint(0, n_tokens)
    middle = now * cut / n_tokens
    return words, [
        Segment(0, 7.0, 7.0 + middle, "", "en", (50364, *(1,) * cut, 50364)),
        Segment(
            *(0, 7.0 + middle, 7.0 + now + choice.choice([-1.0, 0.0, 2.0]), "", "en"),
            tokens=(1,) * (n_tokens - cut),
        ),
    ]
