from __future__ import annotations

import copy
import random
from itertools import accumulate

import pytest
import torch

from sottovoce.decoding.word_alignment import TimedWord, WindowText, align_windows
from sottovoce.offline.segments import (
    WordRules,
    cut_at_sentence_ends,
    interpolate_improbable,
    merge_punctuation,
    place_words,
    usual_duration,
)
from sottovoce.options.recording_defaults import APPENDED, PREPENDED
from sottovoce.types import Segment
from tests.decoding import rig

RULES = WordRules(PREPENDED, APPENDED)


def word(text: str, start: float, end: float) -> TimedWord:
    return TimedWord(text, (1,) * max(1, len(text.strip()) // 3), start, end, 0.9)


def texts(words: list[TimedWord]) -> list[str]:
    return [one.word for one in words]


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
        assert [(one.word, one.start, one.end) for one in alone] == [
            (one.word, one.start, one.end) for one in together[index]
        ]
    assert texts(together[0]) == [" some", " words", ",", " said"]
    assert together[1] == []
    assert all(0 <= one.start <= one.end <= 0.8 for one in together[0])


def spoken(*told: tuple[str, float, float]) -> list[TimedWord]:
    """Words that follow each other without gaps from 0 s: text, seconds, probability."""
    ends = list(accumulate(length for _, length, _ in told))
    return [
        TimedWord(text, (1,), end - length, end, probability)
        for (text, length, probability), end in zip(told, ends, strict=True)
    ]


def test_an_improbable_word_begins_where_its_surer_neighbours_and_letters_say() -> None:
    words = spoken((" four", 0.1, 0.9), (" as", 0.1, 0.1), (" ab", 0.6, 0.2), (" sure", 0.4, 0.9))
    placed = interpolate_improbable(words, 0.5)
    assert texts(placed) == texts(words)
    assert [one.start for one in placed] == pytest.approx([0.0, 0.4, 0.6, 0.8])
    assert [one.end for one in placed] == pytest.approx([0.4, 0.6, 0.8, 1.2])
    kept = interpolate_improbable(words, 0.1)
    assert [one.start for one in kept] == pytest.approx([one.start for one in words])
    assert interpolate_improbable([], 0.5) == []


def test_signs_and_the_outer_bounds_of_a_segment_keep_their_times() -> None:
    words = spoken(
        (" low", 0.1, 0.1), (" low", 0.3, 0.1), (".", 2.0, 0.1), (" so", 0.5, 0.9), (" on", 0.5, 0.1)
    )
    placed = interpolate_improbable(words, 0.5)
    assert [one.start for one in placed] == pytest.approx([0.0, 0.2, 0.4, 2.4, 2.9])
    assert placed[-1].end == pytest.approx(3.4)


def test_words_of_one_segment_are_not_drawn_into_another() -> None:
    words = spoken((" said", 0.4, 0.9), (" then", 0.4, 0.1), (" so", 0.2, 0.1), (" on", 0.6, 0.1))
    rules = WordRules(PREPENDED, APPENDED, threshold=0.5)
    cut = [Segment(0, 0.0, 0.8, "", "en", (1, 1)), Segment(1, 0.8, 1.6, "", "en", (1, 1))]
    placed = place_words(cut, words, rules, eot=50257)
    starts = [[one.start for one in segment.words or ()] for segment in placed]
    assert starts == [pytest.approx([0.0, 0.4]), pytest.approx([0.8, 1.2])]


@pytest.mark.reference
@pytest.mark.parametrize("seed", range(40))
def test_rules_equal_openai_whispers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    timing = pytest.importorskip("whisper.timing", reason="openai-whisper is not installed")
    choice = random.Random(seed)
    words, cut = _random_window(choice)
    segments = [{"seek": 700, "start": one.start, "end": one.end, "tokens": list(one.tokens)} for one in cut]
    theirs = [
        timing.WordTiming(one.word, list(one.tokens), one.start, one.end, one.probability) for one in words
    ]
    monkeypatch.setattr(timing, "find_alignment", lambda *_, **__: copy.deepcopy(theirs))
    last_speech = choice.choice([0.0, 5.0, 6.9])
    timing.add_word_timestamps(
        segments=segments,
        model=None,
        tokenizer=rig.tokenizer("en"),
        mel=torch.zeros(0),
        num_frames=3000,
        last_speech_timestamp=last_speech,
    )
    placed = place_words(cut, words, RULES, eot=50257, window_start=7.0, last_speech=last_speech)
    for ours, segment in zip(placed, segments, strict=True):
        assert (ours.start, ours.end) == pytest.approx((segment["start"], segment["end"]))
        assert ours.words is not None
        assert [one.word for one in ours.words] == [one["word"] for one in segment["words"]]
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
    n_tokens = sum(len(one.tokens) for one in words)
    cut = choice.randint(0, n_tokens)
    middle = now * cut / n_tokens
    return words, [
        Segment(0, 7.0, 7.0 + middle, "", "en", (50364, *(1,) * cut, 50364)),
        Segment(
            *(0, 7.0 + middle, 7.0 + now + choice.choice([-1.0, 0.0, 2.0]), "", "en"),
            tokens=(1,) * (n_tokens - cut),
        ),
    ]
