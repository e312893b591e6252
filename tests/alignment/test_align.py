"""Forced alignment with nano, windows of long recordings, and the search for a phrase."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.alignment import (
    MOST_TOKENS,
    NO_LEVELS,
    LevelMeter,
    Unit,
    at_loud_bounds,
    at_quiet_bounds,
    find_phrase,
    guess_times,
    in_order,
    in_tokens,
    lines_of,
    move_to_speech,
    plan_windows,
    units_of,
    unlikeness,
)
from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad import SpeechSegment
from sottovoce.decoding.alignment import TimedWord
from sottovoce.errors import OptionError
from sottovoce.options.transcribe import AlignMethod, AlignOptions
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples, Segment, Transcript, Word

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
ROWS = {
    row["id"].split("/")[1]: row
    for row in map(json.loads, (CLIPS / "manifest.jsonl").read_text(encoding="utf-8").splitlines())
}
METHODS: tuple[AlignMethod, ...] = ("attention", "ctc")


def long_recording(n_times: int) -> tuple[Samples, list[str], list[tuple[float, float]]]:
    """The English and the other clips with pauses, what is said, and when."""
    pieces, texts, spans, at = [], [], [], 0.0
    for _ in range(n_times):
        samples = load_audio(CLIPS / "en.flac")
        (part,) = ROWS["en"]["segments"]
        pieces += [samples, np.zeros(4 * SAMPLE_RATE, np.float32)]
        texts.append(part["text"])
        spans.append((at + part["start"], at + part["end"]))
        at += len(samples) / SAMPLE_RATE + 4.0
    return np.concatenate(pieces), texts, spans


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("language", ["en", "de", "es", "fr"])
def test_a_sentence_is_found_where_it_is(model: Model, language: str, method: AlignMethod) -> None:
    row = ROWS[language]
    (part,) = row["segments"]
    result = model.align(
        CLIPS / row["file"], part["text"], language=language, options=AlignOptions(method=method)
    )
    (segment,) = result.segments
    assert segment.words is not None
    assert segment.text.split() == part["text"].split()
    assert segment.start == pytest.approx(part["start"], abs=0.3)
    assert segment.end == pytest.approx(part["end"], abs=0.7)
    times = [time for word in segment.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert "".join(word.word for word in segment.words) == segment.text


def test_the_words_of_all_lines_are_gone_through_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    line, reads = vars(Unit)["line"], list[Unit]()

    def read(unit: Unit) -> int:
        reads.append(unit)
        return int(line.__get__(unit))

    monkeypatch.setattr(Unit, "line", property(read, line.__set__))
    words = ROWS["en"]["segments"][0]["text"].split()
    result = model.align(CLIPS / "en.flac", words, language="en")
    assert [segment.text.strip() for segment in result.segments] == words
    assert len(reads) <= 2 * len(words)


@pytest.mark.parametrize("method", METHODS)
def test_a_long_recording_is_searched_for_its_text(model: Model, method: AlignMethod) -> None:
    clip, silence = load_audio(CLIPS / "en.flac"), np.zeros(20 * SAMPLE_RATE, np.float32)
    (part,) = ROWS["en"]["segments"]
    samples = np.concatenate([silence, clip, silence])
    result = model.align(samples, part["text"], language="en", options=AlignOptions(method=method))
    (segment,) = result.segments
    assert segment.start == pytest.approx(20 + part["start"], abs=0.5)
    assert segment.end == pytest.approx(20 + part["end"], abs=0.8)


def test_the_times_of_a_transcript_are_refined(model: Model) -> None:
    samples, texts, spans = long_recording(5)
    rough = Transcript(
        tuple(
            Segment(i, max(0.0, start - 0.8), end + 0.9, text, "en", speaker="A")
            for i, (text, (start, end)) in enumerate(zip(texts, spans, strict=True))
        ),
        "en",
        len(samples) / SAMPLE_RATE,
        "other",
    )
    result = model.align(samples, rough)
    assert result.language == "en"
    for segment, (start, end) in zip(result.segments, spans, strict=True):
        assert segment.start == pytest.approx(start, abs=0.4)
        assert segment.end == pytest.approx(end, abs=0.8)
        assert segment.speaker == "A"


@pytest.mark.parametrize("method", METHODS)
def test_a_text_that_is_hardly_said_is_doubted(
    model: Model, method: AlignMethod, caplog: pytest.LogCaptureFixture
) -> None:
    """In one window any text gets times."""
    options = AlignOptions(method=method)
    for row in (ROWS["en"], ROWS["de"]):
        (part,) = row["segments"]
        model.align(CLIPS / row["file"], part["text"], language=part["language"], options=options)
    assert not caplog.records
    model.align(CLIPS / "en.flac", "Bookkeepers quarrel over oxygen.", language="en", options=options)
    (record,) = caplog.records
    assert re.fullmatch(
        r"text: expected what is said in .*en\.flac, but its words are improbable there "
        r"\(0\.[01]\d in the mean\)",
        record.message,
    )


def test_a_model_without_a_ctc_head_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "ctc_head", None)
    monkeypatch.delitem(vars(model), "network", raising=False)
    with pytest.raises(OptionError, match="nano: expected a model with a CTC head"):
        model.align(CLIPS / "en.flac", "The garden", language="en", options=AlignOptions(method="ctc"))


UNRELATED = "Wholly unrelated vocabulary concerning astronomy, jurisprudence and bookkeeping."


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("text", "seconds", "method", "message"),
    [
        *((text, 3.0, "attention", "text: expected a text, a list of texts or a") for text in (3, [3], None)),
        *((text, 3.0, "attention", "expected words to align, got none") for text in ("", "  \n ", "...", [])),
        (UNRELATED, 35.0, "attention", r"expected what is said in .*, but \d of its 8 words were heard"),
        ("Доброе утро", 3.0, "ctc", r"letters of ctc:nano \(abc.*\), got none"),
        ("The garden is quiet in the morning.", 0.5, "ctc", r"expected what can be said in 0\.\d s"),
    ],
)
def test_texts_that_do_not_fit_the_recording_are_refused(
    model: Model, text: str | list[str], seconds: float, method: AlignMethod, message: str
) -> None:
    samples, _, _ = long_recording(5)
    options = AlignOptions(method=method)
    with pytest.raises(OptionError, match=message):
        model.align(samples[: round(seconds * SAMPLE_RATE)], text, language="en", options=options)


def test_lines_and_sentences_become_segments() -> None:
    lines = lines_of("First one. Second one! \n\n Third, e.g. this.\n…\n")
    assert [line.text for line in lines][:2] == ["First one.", "Second one!"]
    assert " ".join(line.text for line in lines) == "First one. Second one! Third, e.g. this."
    assert [line.text for line in lines_of(["One. Two.", "Three."])] == ["One. Two.", "Three."]


def test_units_spell_the_line(model: Model) -> None:
    (line,) = lines_of("«Tut mir leid», sagte sie.")
    units = units_of([line], in_tokens(model.tokenizer.with_language("de")))
    assert "".join(unit.text for unit in units).strip() == line.text
    assert [unit.letters for unit in units if unit.letters] == ["tut", "mir", "leid", "sagte", "sie"]


def test_a_phrase_is_found_in_a_recording(model: Model) -> None:
    (match,) = model.find(CLIPS / "en.flac", "quite in the mornings", language="en")
    assert "morning" in match.text
    assert 0.6 < match.start < match.end < 2.5


def tone(*spans: tuple[float, float], seconds: float = 4.0, floor: float = 1e-4) -> Samples:
    """Loud in some spans of seconds, faint elsewhere."""
    samples = np.full(round(seconds * SAMPLE_RATE), floor, np.float32)
    for start, end in spans:
        samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] = 0.1
    return samples


def metered(samples: Samples, n_chunk: int = 1000) -> np.ndarray:
    meter = LevelMeter()
    chunks = [AudioChunk(samples[i : i + n_chunk], i) for i in range(0, len(samples), n_chunk)]
    assert list(meter.through(chunks)) == chunks
    return meter.levels


def segment(start: float, end: float) -> SpeechSegment:
    return SpeechSegment(round(start * SAMPLE_RATE), round(end * SAMPLE_RATE))


@pytest.mark.parametrize("n_chunk", [160, 1000, 100_000])
def test_levels_are_those_of_whole_steps_however_audio_comes(n_chunk: int) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 16_050).astype(np.float32)
    steps = samples[:16_000].reshape(100, 160)
    np.testing.assert_allclose(metered(samples, n_chunk), np.sqrt((steps**2).mean(axis=1)), rtol=1e-5)


def test_bounds_move_to_the_sound() -> None:
    levels = metered(tone((1.0, 2.0)))
    (moved,) = at_loud_bounds([segment(0.9, 2.15)], levels)
    assert (moved.start_s, moved.end_s) == (1.0, 2.0)
    (moved,) = at_loud_bounds([segment(1.1, 1.9)], levels)
    assert (moved.start_s, moved.end_s) == (1.0, 2.0)


def test_bounds_stay_near_what_was_detected_and_apart() -> None:
    levels = metered(tone((0.0, 4.0)))
    first, second = at_loud_bounds([segment(1.0, 1.9), segment(2.0, 3.0)], levels)
    assert (first.start_s, first.end_s) == (0.8, 1.95)
    assert (second.start_s, second.end_s) == (1.95, 3.2)


def test_silence_is_left_as_it_is() -> None:
    detected = [segment(1.0, 2.0)]
    assert at_loud_bounds(detected, metered(tone(floor=0.0))) == detected
    assert at_loud_bounds(detected, np.zeros(0, np.float32)) == detected


def test_a_sign_does_not_cut_off_the_word_that_is_stretched_to_the_end_of_the_speech() -> None:
    words = [
        TimedWord(" One", (1,), 1.1, 1.7, 0.9),
        TimedWord(".", (2,), 1.7, 1.7, 0.9),
        TimedWord(" Two", (3,), 2.9, 3.4, 0.9),
        TimedWord("!", (4,), 3.4, 3.4, 0.9),
    ]
    moved = in_order(move_to_speech(words, [segment(1.0, 2.0), segment(3.0, 3.6)]))
    assert [(word.start, word.end) for word in moved] == [(1.0, 2.0), (2.0, 2.0), (3.0, 3.6), (3.6, 3.6)]


def word(text: str, start: float, end: float) -> TimedWord:
    return TimedWord(text, (), start, end, 0.9)


def test_words_begin_and_end_with_their_sound() -> None:
    """A soft "f" before a word is of it, as far as the quiet before that, and of no other word."""
    samples = tone((1.0, 1.5), (2.0, 2.5))
    samples[round(0.9 * SAMPLE_RATE) : SAMPLE_RATE] = 0.003  # 30 dB softer
    levels = metered(samples)
    moved = at_quiet_bounds([word("four", 1.02, 1.4), word("one", 2.0, 2.5)], levels)
    assert [(round(word.start, 2), round(word.end, 2)) for word in moved] == [(0.9, 1.5), (2.0, 2.5)]


@pytest.mark.parametrize(
    ("sound", "words"),
    [
        (tone((0.0, 4.0)), [word("no", 1.0, 1.5), word("pause", 1.6, 2.0)]),
        (tone((0.5, 1.0), (1.0, 1.5)), [word("one", 0.5, 1.0), word("two", 1.0, 1.5)]),
        (tone((1.0, 2.0), floor=0.01), [word("noise", 1.2, 1.8)]),
        (tone(floor=0.0), [word("silence", 1.0, 2.0)]),
        (tone((1.0, 2.0)), [word("outside", 9.0, 9.5)]),
    ],
)
def test_words_stay_where_nothing_is_quiet_beside_them(sound: Samples, words: list[TimedWord]) -> None:
    assert at_quiet_bounds(words, metered(sound)) == words
    assert at_quiet_bounds(words, NO_LEVELS) == words


def units(n: int) -> list[Unit]:
    return [Unit(0, " word", (1, 2), "word") for _ in range(n)]


@given(st.integers(1, 400), st.floats(0.05, 3.0), st.sets(st.integers(0, 399)))
def test_windows_hold_every_word_once_and_fit_the_model(n: int, pace_s: float, unheard: set[int]) -> None:
    given = units(n)
    heard = [None if i in unheard else (i * pace_s, (i + 1) * pace_s) for i in range(n)]
    windows = plan_windows(given, heard, n * pace_s + 5.0)
    assert [window.first for window in windows] == [0, *(window.end for window in windows[:-1])]
    assert windows[-1].end == n
    for window in windows:
        assert 0 <= window.start_s < window.end_s <= n * pace_s + 5.0 + 0.1
        assert window.end_s - window.start_s <= 30.001
        assert sum(len(unit.tokens) for unit in given[window.first : window.end]) <= MOST_TOKENS
    assert all(a.end_s <= b.start_s + 1e-6 or a.start_s <= b.start_s for a, b in itertools.pairwise(windows))


def test_words_without_times_lie_between_their_neighbours() -> None:
    spans = guess_times(units(5), [None, (2.0, 3.0), None, None, (9.0, 9.5)], 20.0)
    assert spans[1] == (2.0, 3.0)
    assert spans[2] == (3.0, 6.0)
    assert spans[3] == (6.0, 9.0)
    assert 0 <= spans[0][0] < spans[0][1] <= 2.0


def test_windows_are_cut_in_the_longest_pause() -> None:
    heard = [
        (i * 0.5 + (3.0 if i >= 40 else 0.0), i * 0.5 + 0.4 + (3.0 if i >= 40 else 0.0)) for i in range(80)
    ]
    first, *_ = plan_windows(units(80), heard, 50.0)
    assert first.end == 40


def transcript(text: str, language: str = "en", *, with_words: bool = True) -> Transcript:
    words = tuple(Word(" " + word, float(i), i + 0.8, 0.9, language) for i, word in enumerate(text.split()))
    segment = Segment(0, 0.0, float(len(words)), " " + text, language, words=words if with_words else None)
    return Transcript((segment,), language, float(len(words)), "model")


def test_every_place_is_found_with_its_times() -> None:
    matches = find_phrase(transcript("The cat sat. A dog, the CAT, sat down."), "the cat")
    assert [(match.start, match.end, match.text) for match in matches] == [
        (0.0, 1.8, "The cat"),
        (5.0, 6.8, "the CAT,"),
    ]
    assert all(match.score == 1.0 for match in matches)


def test_a_misheard_word_is_found_and_scored_by_its_letters() -> None:
    (match,) = find_phrase(transcript("we met miss Haverford at the station"), "Haversford at the")
    assert match.text == "Haverford at the"
    assert 0.85 < match.score < 1


@pytest.mark.parametrize("phrase", ["grand mother", "grandmother"])
@pytest.mark.parametrize("said", ["my grand mother sang", "my grandmother sang"])
def test_words_written_as_one_or_as_two(phrase: str, said: str) -> None:
    (match,) = find_phrase(transcript(said), phrase)
    assert match.text.replace(" ", "") == "grandmother"
    assert match.score > 0.9


def test_a_phrase_that_was_not_said_has_no_match() -> None:
    assert find_phrase(transcript("nothing of the kind was said"), "purple elephants") == []
    assert find_phrase(Transcript((), "", 0.0, ""), "anything") == []


def test_languages_without_spaces_are_searched_by_letters() -> None:
    words = (Word("今天天气", 0.0, 2.0, 0.9, "zh"), Word("很好", 2.0, 3.0, 0.9, "zh"))
    matches = find_phrase(
        Transcript((Segment(0, 0.0, 3.0, "今天天气很好", "zh", words=words),), "zh", 3.0, ""), "天气很"
    )
    assert [(match.text, match.start, match.end) for match in matches] == [("天气很", 1.0, 2.5)]


def test_subtitles_without_a_language_are_searched_by_letters_too() -> None:
    (match,) = find_phrase(transcript("今天天气很好", "", with_words=False), "天气很")
    assert match.text == "天气很"
    assert 0.0 < match.start < match.end < 1.0
    (match,) = find_phrase(transcript("das neue 今天天气 von heute", "de"), "neue 今天")
    assert match.score == 1.0


def test_without_word_times_the_segment_is_shared_out() -> None:
    (match,) = find_phrase(transcript("one two three four", with_words=False), "three")
    assert 1.0 < match.start < match.end < 3.5


@pytest.mark.parametrize(("phrase", "score"), [("", 0.7), ("?!", 0.7), ("word", 0.0), ("word", 1.5)])
def test_bad_phrases_and_scores_are_refused(phrase: str, score: float) -> None:
    with pytest.raises(OptionError, match=r"expected"):
        find_phrase(transcript("a word"), phrase, least_score=score)


def test_likeness_counts_letters() -> None:
    assert unlikeness("night", "night") == 0
    assert unlikeness("night", "nigth") == 2 / 5
    assert unlikeness("", "word") == 1
    assert unlikeness("abc", "xyz") == 1
