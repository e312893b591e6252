"""Speech that no word covers is found, read again by itself, and told where it stays without words."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sottovoce.audio.io import Recording
from sottovoce.offline.verify import (
    covered_by_word,
    in_halves,
    is_covered,
    repeats_neighbour,
    trimmed,
    uncovered,
)
from sottovoce.offline.windows import SpeechSpan
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import Mode, TranscribeOptions
from sottovoce.types import Floats, Samples, Segment, Span, Turn, Word
from tests.offline.transcribing import HELLO, TOKENIZER, Loud, at, rustle, script, silence, transcribe
from tests.runtime.fake import FakeBackend, Script, ScriptedToken, SpokenLanguage


class Nobody:
    """Hears no turns."""

    def turns(self, recording: Recording) -> list[Turn]:
        return []


ENGLISH = TranscribeOptions(decoding=DecodingOptions(language="en"))
NAMED = replace(ENGLISH, speakers=Nobody(), speaker_names=("Ann",))
EOT = TOKENIZER.eot
WORLDS = [
    TOKENIZER.encode(f" {word}")[0] for word in ("one", "two", "big", "red", "cat", "sun", "tea", "joy")
]


def segment(start: float, end: float, text: str = " hello", n_tokens: int = 8) -> Segment:
    return Segment(0, start, end, text, "en", tokens=(HELLO,) * n_tokens)


def test_only_stretches_of_a_second_are_uncovered() -> None:
    speech = [SpeechSpan(0, 300), SpeechSpan(320, 500)]
    assert uncovered(speech, []) == [speech]
    assert uncovered(speech, [(0, 500)]) == []
    assert uncovered(speech, [(0, 250), (340, 500)]) == []  # half a second, and a fifth
    assert uncovered(speech, [(0, 300)]) == [[SpeechSpan(320, 500)]]
    assert uncovered(speech, [(100, 200)]) == [
        [SpeechSpan(0, 100)],
        [SpeechSpan(200, 300), SpeechSpan(320, 500)],
    ]


def test_speech_on_both_sides_of_a_long_pause_is_no_stretch() -> None:
    assert uncovered([SpeechSpan(0, 60), SpeechSpan(200, 260)], []) == []
    assert uncovered([SpeechSpan(0, 60), SpeechSpan(90, 150)], []) == [
        [SpeechSpan(0, 60), SpeechSpan(90, 150)]
    ]


def test_a_stretched_word_covers_no_more_than_it_can() -> None:
    """Over speech that was left out, the word before it is stretched by the alignment."""
    start, end = covered_by_word(Word(" five", 1.0, 9.0, 0.9))
    assert start == 70
    assert end == pytest.approx(250)
    assert covered_by_word(Word(" five", 1.0, 1.4, 0.9)) == (70, 170)


def test_segments_cover_by_their_times_and_their_tokens() -> None:
    speech = [SpeechSpan(0, 600)]
    assert is_covered([segment(0.0, 6.0, n_tokens=20)], speech, EOT)
    assert not is_covered([segment(0.0, 3.0, n_tokens=20)], speech, EOT)
    assert not is_covered([segment(0.0, 6.0, n_tokens=3)], speech, EOT)  # too little text for six seconds
    words = tuple(Word(" a", 0.2 * i, 0.2 * i + 0.2, 0.9) for i in range(15))
    assert not is_covered([replace(segment(0.0, 6.0, n_tokens=20), words=words)], speech, EOT)


def test_halves_are_cut_at_the_longest_pause() -> None:
    assert in_halves([SpeechSpan(0, 100), SpeechSpan(110, 200), SpeechSpan(240, 300)]) == (
        [SpeechSpan(0, 100), SpeechSpan(110, 200)],
        [SpeechSpan(240, 300)],
    )
    assert in_halves([SpeechSpan(0, 300)]) == ([SpeechSpan(0, 150)], [SpeechSpan(150, 300)])
    assert in_halves([SpeechSpan(0, 150)]) == ()


def test_a_reading_of_the_words_beside_it_is_no_news() -> None:
    before = segment(0.0, 2.0, " And so we went home again.")
    assert repeats_neighbour([segment(2.0, 3.0, " home again")], [before], EOT)
    assert repeats_neighbour([segment(2.0, 3.0, " Home again!")], [before], EOT)
    assert not repeats_neighbour([segment(2.0, 3.0, " It was late.")], [before], EOT)
    after = segment(3.0, 5.0, " It was late when we came.")
    assert repeats_neighbour([segment(2.0, 3.0, " it was late")], [before, after], EOT)


def test_what_was_said_twice_is_written_twice() -> None:
    """Eight tokens are too few for twice their time."""
    before = segment(0.0, 2.0, " And so we went home again.")
    assert not repeats_neighbour([segment(2.5, 4.5, " And so we went home again.")], [before], EOT)


def words_until(end_s: float, step: int = 25) -> Script:
    """Words one after the other, one every `step` frames of 20 ms, and timestamps around them."""
    tokens = [ScriptedToken(at(0), 0)]
    tokens += [
        ScriptedToken(WORLDS[index % len(WORLDS)], 5 + step * index)
        for index in range(round(50 * end_s / step) - 1)
    ]
    tokens.append(ScriptedToken(at(end_s), round(50 * end_s)))
    return Script(tuple(tokens), (SpokenLanguage("en", 0, 1500),))


def hesitant(windows: list[int]) -> FakeBackend:
    """A model that closes a full window after 4 s, and reads all of a shorter one."""

    def hear(mel: Floats, _: int) -> Script:
        windows.append(mel.shape[1])
        return words_until(4.0 if mel.shape[1] == 3000 else 7.0)

    return FakeBackend(hear)


def read(
    backend: FakeBackend, samples: Samples, options: TranscribeOptions
) -> tuple[list[Segment], tuple[Span, ...] | None]:
    with Recording(samples) as recording:
        result = transcribe(backend, TOKENIZER, recording, options, speech_model=Loud())
        return list(result), result.unread


@pytest.mark.parametrize("mode", ["seek", "vad"])
def test_what_a_window_leaves_out_is_read_by_itself(mode: Mode) -> None:
    windows: list[int] = []
    segments, skipped = read(hesitant(windows), rustle(10.2), replace(ENGLISH, mode=mode))
    assert [len(item.text.split()) for item in segments] == [7, 13]
    assert sorted(windows)[0] < 1500 < sorted(windows)[-1]
    starts = [item.start for item in segments]
    assert starts == sorted(starts)
    assert [item.id for item in segments] == list(range(len(segments)))
    assert segments[-1].end > 9.0
    assert skipped == ()


def test_without_a_second_reading_the_text_is_that_of_the_window() -> None:
    windows: list[int] = []
    segments, skipped = read(hesitant(windows), rustle(12.0), replace(ENGLISH, read_again=False))
    assert [len(item.text.split()) for item in segments] == [7]
    assert set(windows) == {3000}
    assert skipped is None


@pytest.mark.parametrize(
    ("options", "later_s"),
    [
        (ENGLISH, 0.0),
        (replace(ENGLISH, offset_s=20.0, duration_s=12.0), 20.0),
        (replace(ENGLISH, offset_s=20.0), 20.0),
        (NAMED, 0.0),
        (replace(NAMED, offset_s=20.0), 20.0),
    ],
)
def test_what_stays_without_words_is_told(options: TranscribeOptions, later_s: float) -> None:
    """Of a part and beside names too; nothing of the rest can be read, whole or in halves."""

    def hear(mel: Floats, _: int) -> Script:
        return words_until(4.0) if mel.shape[1] == 3000 else Script()

    samples = np.concatenate([silence(later_s), rustle(12.0)])
    segments, skipped = read(FakeBackend(hear), samples, options)
    assert len(segments) == 1
    assert skipped == ((pytest.approx(later_s + 3.5, abs=0.5), pytest.approx(later_s + 12.0, abs=0.1)),)


def loop_until(end_s: float, *, step: int, is_speech: bool = True) -> Script:
    """One word over and over, every `step` frames of 20 ms."""
    people = TOKENIZER.encode(" people")[0]
    words = [ScriptedToken(people, frame) for frame in range(5, round(50 * end_s), step)]
    tokens = ScriptedToken(at(0), 0), *words, ScriptedToken(at(end_s), round(50 * end_s))
    return Script(tokens, (SpokenLanguage("en", 0, 1500),) if is_speech else ())


@pytest.mark.quick(1)
@pytest.mark.parametrize(("mode", "word_timestamps"), [("seek", True), ("vad", False)])
def test_a_word_faster_than_people_speak_is_read_again_in_parts(mode: Mode, word_timestamps: bool) -> None:
    """A full window says 250 words in ten seconds; its parts repeat the word twice a second."""

    def hear(mel: Floats, _: int) -> Script:
        return loop_until(10.0, step=2) if mel.shape[1] == 3000 else loop_until(mel.shape[1] // 100, step=25)

    options = replace(ENGLISH, mode=mode, word_timestamps=word_timestamps)
    segments, skipped = read(FakeBackend(hear), rustle(10.4), options)
    assert 15 <= sum(len(item.text.split()) for item in segments) <= 25
    assert sum(end - start for start, end in skipped or ()) < 1.5


def test_words_that_pile_up_at_one_time_are_read_again() -> None:
    """Five words in five seconds, and thirty in the sixth."""

    def hear(mel: Floats, _: int) -> Script:
        slow, fast = words_until(5.0, step=50), loop_until(7.0, step=1).tokens[250:280]
        said = Script((*slow.tokens[:-1], *fast, ScriptedToken(at(10.0), 500)), slow.languages)
        return said if mel.shape[1] == 3000 else words_until(mel.shape[1] // 100)

    options = replace(ENGLISH, word_timestamps=True)
    segments, _ = read(FakeBackend(hear), rustle(10.4), options)
    assert sum(len(item.text.split()) for item in segments) <= 25


@pytest.mark.quick(1)
@pytest.mark.parametrize(("mode", "read_again"), [("seek", False), ("vad", True)])
def test_a_loop_that_is_left_out_is_reported(mode: Mode, read_again: bool) -> None:
    """With speech detection by the parts that stay loops, without it as text over silence."""
    hear = loop_until(10.0, step=2, is_speech=read_again)
    options = replace(ENGLISH, mode=mode, read_again=read_again)
    segments, skipped = read(FakeBackend(hear), rustle(10.4), options)
    assert segments == []
    assert skipped == ((pytest.approx(0.0, abs=0.1), pytest.approx(10.4, abs=0.1)),)


def test_silence_is_not_read_again() -> None:
    windows: list[int] = []
    samples = silence(12.0)
    samples[: 4 * 16_000] = 0.1
    segments, skipped = read(hesitant(windows), samples, ENGLISH)
    assert len(segments) == 1
    assert skipped == ()


def test_words_that_stand_there_already_are_not_written_twice() -> None:
    """Read by itself, the rest is what the window ended with: its times were wrong, not its words."""

    def hear(mel: Floats, _: int) -> Script:
        last = script(at(0), WORLDS[3], WORLDS[4], at(1))
        return words_until(3.25, step=12) if mel.shape[1] == 3000 else last

    segments, skipped = read(FakeBackend(hear), rustle(4.6), ENGLISH)
    assert len(segments) == 1
    assert skipped == ()


def test_a_segment_leaves_the_time_in_which_other_words_were_found() -> None:
    owned = Segment(0, 0.0, 9.0, " two", language="es")
    words = [Word(" two", 3.6, 6.0, 0.9)]
    before, after, within = (
        replace(owned, start=start, end=end) for start, end in [(0.5, 3), (6.5, 8), (4, 5)]
    )
    assert trimmed(owned, words, [before]) == replace(owned, start=3.6)
    assert trimmed(owned, words, [after]) == replace(owned, end=6.0)
    assert trimmed(owned, words, [before, after]) == replace(owned, start=3.6, end=6.0)
    assert trimmed(owned, words, [within]) == owned
    assert trimmed(owned, (), [before, after]) == owned


def test_segments_of_parts_that_are_halved_end_where_those_of_a_half_begin() -> None:
    """The timestamp after the words of a part is its end, but its second half holds more words."""

    def hear(mel: Floats, _: int) -> Script:
        length_s = mel.shape[1] / 100
        if length_s == 30 or length_s < 9:
            return words_until(min(length_s, 4.0))
        *words, last = words_until(4.0).tokens
        return Script((*words, replace(last, id=at(int(length_s)))), (SpokenLanguage("en", 0, 1500),))

    segments, _ = read(FakeBackend(hear), rustle(16.0), ENGLISH)
    assert len(segments) > 2
    assert all(before.end <= after.start for before, after in pairwise(segments))


def test_a_second_reading_is_tried_once() -> None:
    """At the first temperature alone: draws make words up."""
    windows: list[int] = []
    backend = hesitant(windows)
    hot = replace(ENGLISH, fallback=replace(ENGLISH.fallback, logprob_threshold=100.0))
    segments, skipped = read(backend, rustle(12.0), hot)
    assert len(segments) == 1
    assert skipped
