"""Segments cleaned: words that stay keep their times, what is empty is dropped, unknown languages stay."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.decoding.decode import context_tokens
from sottovoce.offline.regroup import clean_segment
from sottovoce.offline.resume import TranscriptionState
from sottovoce.offline.transcriber import Segments
from sottovoce.offline.transcription import in_style
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.options.transcribe import VERBATIM_LOOPS, TranscribeOptions
from sottovoce.text.disfluency import VERBATIM_PROMPTS
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Word
from tests.offline.test_regroup import spoken
from tests.offline.transcribing import TOKENIZER, at, run, rustle, script

CLEAN = TranscribeOptions(clean=True)
VERBATIM = TranscribeOptions(decoding=DecodingOptions(verbatim=True))


def styled(segments: Sequence[Segment], options: TranscribeOptions = CLEAN) -> list[Segment]:
    def unstyled() -> Segments:
        yield from segments

    return list(in_style(unstyled(), options))


def test_words_that_stay_keep_their_times() -> None:
    segment = spoken("Um, I I think. Now, uh, go um.", 2.0)
    cleaned = clean_segment(segment, "en")
    assert cleaned is not None
    assert cleaned.text == " I think. Now, go."
    before = {word.start: word for word in segment.words or ()}
    assert [word.word for word in cleaned.words or ()] == [" I", " think.", " Now,", " go."]
    assert all(before[word.start].end == word.end for word in cleaned.words or ())
    assert cleaned.start == (cleaned.words or ())[0].start == pytest.approx(2.6)
    assert cleaned.end == (cleaned.words or ())[-1].end


def test_text_without_words_is_cleaned_too() -> None:
    segment = Segment(0, 1.0, 2.0, " Um, I I think.", "en", tokens=(1, 2))
    assert clean_segment(segment, "en") == replace(segment, text=" I think.")


def test_words_of_which_spaces_part_none_go_together() -> None:
    """The tokenizer may cut "I-I" in two: what spaces part is one word for the rule."""
    words = (Word(" I", 0, 0.2, 0.9), Word("-I", 0.2, 0.4, 0.5), Word(" go.", 0.4, 0.8, 0.9))
    cleaned = clean_segment(Segment(0, 0, 1, " I-I go.", "en", words=words), "en")
    assert cleaned is not None
    assert cleaned.words == (Word(" I", 0, 0.4, 0.5), words[2])


def test_empty_segments_are_dropped() -> None:
    segments = styled([spoken("Hello."), spoken("Um.", 3.0, 1), spoken("Bye.", 5.0, 2)])
    assert [segment.text for segment in segments if isinstance(segment, Segment)] == [" Hello.", " Bye."]


def test_what_is_clean_is_the_same_segment() -> None:
    segment = spoken("Very very good.")
    assert clean_segment(segment, "en") is segment


def test_a_language_without_rules_stays_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    finnish = [replace(spoken("Um niin.", number=n), language="fi") for n in range(2)]
    with caplog.at_level(logging.WARNING):
        assert styled(finnish) == finnish
        assert styled(finnish, VERBATIM) == finnish
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "clean: not verified for language 'fi'",
        "verbatim: not verified for language 'fi'",
    ]


def test_pauses_are_written_between_words_and_segments() -> None:
    words = tuple(Word(f" {text}", at, at + 0.5, 1.0) for text, at in (("Well", 1.0), ("yes", 4.0)))
    segments = [Segment(i, 1.0, 4.5, " Well yes", "en", words=words[i : i + 1]) for i in range(2)]
    options, state = TranscribeOptions(mark_pauses=2.0), TranscriptionState()
    whole = list(in_style(iter(segments), options))
    assert [each.text for each in whole] == [" Well", " (2.5) yes"]
    assert [word.start for word in whole[1].words or ()] == [1.5, 4.0]
    parts = [next(in_style(iter([each]), options, state)) for each in segments]  # as after a resume point
    assert parts == whole
    assert options.needs_words


def test_a_translation_is_cleaned_as_english() -> None:
    options = TranscribeOptions(decoding=DecodingOptions(task="translate", language="fi"), clean=True)
    segments = styled([replace(spoken("Um, so."), language="fi")], options)
    assert [segment.text for segment in segments if isinstance(segment, Segment)] == [" So."]


def test_calls_go_through_and_their_results_come_back() -> None:
    assert styled([]) == []
    um = [TOKENIZER.encode(" Um,")[0], TOKENIZER.encode(",")[0]]
    so = TOKENIZER.encode(" so")[0]
    said = script(at(0), *um, so, at(2), at(2), *um, at(5), at(5))
    english = TranscribeOptions(decoding=DecodingOptions(language="en"), read_again=False)
    plain, _ = run(said, rustle(5), english)
    assert [segment.text for segment in plain] == [" Um, so", " Um,"]
    clean, _ = run(said, rustle(5), replace(english, clean=True))
    assert [(segment.text, segment.start, segment.end) for segment in clean] == [(" So", 0.0, 2.0)]


@given(st.lists(st.sampled_from(["um,", "I", "the", "the,", "go", "thi-", "thinking.", "Uh"]), min_size=1))
def test_times_ascend_and_words_are_the_text(pieces: list[str]) -> None:
    segment = spoken(" ".join(pieces), 1.0)
    cleaned = clean_segment(segment, "en")
    if cleaned is None:
        assert all(piece.strip(",").lower() in ("um", "uh") for piece in pieces)
        return
    words = cleaned.words or ()
    assert "".join(word.word for word in words) == cleaned.text
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert segment.start <= cleaned.start <= times[0]
    assert times[-1] <= cleaned.end <= segment.end


def test_the_prompt_of_the_language_comes_before_every_other() -> None:
    options = DecodingOptions(verbatim=True, hotwords="Anna", prompt=tuple(range(300)))
    tokenizer = Tokenizer.for_model(51865, language="de")
    style = tokenizer.encode(" " + VERBATIM_PROMPTS["de"])
    names = tokenizer.encode(" Anna")
    tokens = context_tokens(options, tokenizer, 448)
    assert tokens[0] == tokenizer.sot_prev
    assert tokens[1 : 1 + len(style) + len(names)] == [*style, *names]
    assert len(tokens) == 224
    assert tokens[-1] == 299
    other = context_tokens(replace(options, hotwords=None), tokenizer.with_language("fi"), 448)
    assert other == [tokenizer.sot_prev, *range(300 - 223, 300)]


def test_english_only_models_have_the_english_prompt() -> None:
    tokens = context_tokens(DecodingOptions(verbatim=True), Tokenizer.for_model(51864), 448)
    assert Tokenizer.for_model(51864).decode(tokens).strip() == VERBATIM_PROMPTS["en"]


def test_verbatim_text_is_tried_again_where_it_ends_in_a_loop() -> None:
    assert VERBATIM.fallback_of_window == replace(FallbackOptions(), max_loops=VERBATIM_LOOPS)
    fallback = FallbackOptions(max_loops=9)
    assert replace(VERBATIM, fallback=fallback).fallback_of_window == fallback
    assert TranscribeOptions().fallback_of_window == FallbackOptions()
