"""The prompt of a window, and the prefix that the user gives as the beginning of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sottovoce.errors import OptionError
from sottovoce.offline.transcriber import Context
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import Floats, Segment
from tests.offline.transcribing import HELLO, PAIRS, TOKENIZER, WORLD, at, read, rustle, script, voice
from tests.runtime.fake import FakeBackend, Script, ScriptedToken, SpokenLanguage, _Heard

INITIAL = tuple(TOKENIZER.encode(" a glossary"))


def context(**options: object) -> Context:
    return Context(TOKENIZER, TranscribeOptions(**options), 448)  # type: ignore[arg-type]


def test_the_prompt_is_what_was_said_last() -> None:
    said = context()
    said.remember(range(300))
    said.end_window(0.0)
    assert said.prompt() == tuple(range(300))[-223:]


def test_a_hot_window_is_forgotten_with_the_initial_prompt() -> None:
    said = context(initial_prompt="a glossary")
    assert said.prompt() == INITIAL
    said.remember([1, 2])
    said.end_window(0.4)
    assert said.prompt() == (*INITIAL, 1, 2)
    said.end_window(0.6)
    assert said.prompt() == ()
    said = context(prompt_reset_on_temperature=0.3)
    said.remember([1, 2])
    said.end_window(0.4)
    assert said.prompt() == ()


def test_a_carried_prompt_stays() -> None:
    said = context(initial_prompt="a glossary", carry_initial_prompt=True)
    said.remember(range(300))
    assert said.prompt()[: len(INITIAL)] == INITIAL
    assert len(said.prompt()) == 223
    said.end_window(1.0)
    assert said.prompt() == INITIAL


def test_without_conditioning_only_the_first_window_is_prompted() -> None:
    said = context(initial_prompt="a glossary", condition_on_previous_text=False)
    assert said.prompt() == INITIAL
    said.remember([1, 2])
    said.end_window(0.0)
    assert said.prompt() == ()


def test_the_longest_context_is_an_option() -> None:
    """A carried prompt is no part of what was said, and stays."""
    said = context(max_context=2)
    said.remember(range(9))
    assert said.prompt() == (7, 8)
    assert context(max_context=0, initial_prompt="a glossary").prompt() == ()
    carried = context(max_context=1, initial_prompt="a glossary", carry_initial_prompt=True)
    carried.remember(range(9))
    assert carried.prompt() == (*INITIAL, 8)


def test_text_that_was_there_before_is_known_whatever_its_signs() -> None:
    said = context()
    said.remember([TOKENIZER.timestamp_begin, *TOKENIZER.encode(" It works, they say. Again?")])
    assert said.holds(" they say!")
    assert said.holds(" It works.")
    assert not said.holds(" it works again")
    assert not said.holds(" say they")


HELLO_FIRST = TranscribeOptions(decoding=DecodingOptions(language="en", prefix="hello"), read_again=False)


@pytest.mark.parametrize("prefix", ["hello", " hello ", (HELLO,)])
def test_the_text_begins_with_the_prefix(prefix: str | tuple[int, ...]) -> None:
    """The scripted model goes on behind it; in the second window it says all of it itself."""
    options = replace(HELLO_FIRST, decoding=DecodingOptions(language="en", prefix=prefix))
    segments = read(PAIRS, rustle(9.0), options)
    assert [segment.text for segment in segments] == [" hello", " world", " hello", " world"]
    assert [(segment.start, segment.end) for segment in segments[:2]] == [(0, 2), (2, 5)]
    assert segments[0].tokens == (at(0), HELLO, at(2))


def test_a_prefix_that_the_model_hears_nowhere_stands_all_the_same() -> None:
    decoding = DecodingOptions(language="en", prefix="As he put it: hello")
    first, *_ = read(PAIRS, rustle(4.0), TranscribeOptions(decoding=decoding))
    assert first.text.startswith(" As he put it: hello")


def test_a_prefix_stands_without_timestamps_too() -> None:
    decoding = DecodingOptions(language="en", prefix="hello", without_timestamps=True)
    segments = read(PAIRS, rustle(4.0), replace(HELLO_FIRST, decoding=decoding))
    assert [segment.text for segment in segments] == [" hello world"]


def test_words_of_a_prefix_are_timed() -> None:
    first, *_ = read(PAIRS, rustle(4.0), replace(HELLO_FIRST, word_timestamps=True))
    assert first.words is not None
    (word,) = first.words
    assert word.word == " hello"
    assert first.start <= word.start < word.end <= first.end


def test_silence_does_not_use_a_prefix_up() -> None:
    """Nothing is said in the first window: the text begins in the second one."""
    windows = iter([Script(), script(at(0), HELLO, at(2), at(2), WORLD, at(4))])
    segments = read(FakeBackend(lambda *_: next(windows)), rustle(34.0), HELLO_FIRST)
    assert [segment.text for segment in segments] == [" hello", " world"]
    assert segments[0].tokens == (at(0), HELLO, at(2))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_of_windows_of_speech_the_first_begins_with_it(batch_size: int) -> None:
    samples = voice(120.0, (0, 25), (60, 85))
    options = replace(HELLO_FIRST, mode="vad", batch_size=batch_size)
    said = read(script(at(0), WORLD, WORLD, at(24)), samples, options)
    assert [segment.text for segment in said] == [" hello world", " world world"]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_window_read_in_halves_keeps_its_prefix(batch_size: int) -> None:
    """The first window has too little text for its speech: what counts are its halves."""
    samples = voice(31.0, (1, 9), (11, 19), (21, 29))
    options = replace(HELLO_FIRST, mode="vad", batch_size=batch_size)
    said = read(script(at(0), HELLO, at(26)), samples, options)
    assert [segment.text for segment in said] == [" hello"] * 3
    assert said[0].tokens[:2] == (at(0), HELLO)


def test_a_prefix_longer_than_half_of_the_context_is_refused() -> None:
    decoding = DecodingOptions(language="en", prefix="hello " * 300)
    with pytest.raises(OptionError, match="prefix: expected at most 223 tokens, got 300"):
        read(PAIRS, rustle(4.0), TranscribeOptions(decoding=decoding))


NUMBERS = TOKENIZER.encode(" one two three four five six seven eight")
COLOURS = TOKENIZER.encode(" red green blue black white brown pink gold")


def spoken(*sentences: Sequence[int]) -> Script:
    """Sentences of eight words in 2 s each."""
    tokens: list[ScriptedToken] = []
    for start, words in enumerate(sentences):
        first = 100 * start
        tokens.append(ScriptedToken(at(2 * start), first))
        tokens += [ScriptedToken(word, first + 1 + 12 * index) for index, word in enumerate(words)]
        tokens.append(ScriptedToken(at(2 * start + 2), first + 99))
    return Script(tuple(tokens), (SpokenLanguage("en", 0, 1500),))


class Misled(FakeBackend):
    """Writes the colours for the numbers if its prompt has the numbers, as if it had written them before."""

    def _say(self, heard: _Heard, context: list[int], logits: Floats) -> int:
        sot, other = TOKENIZER.sot, dict(zip(NUMBERS, COLOURS, strict=True))
        if sot in context and NUMBERS[0] in context[: context.index(sot)]:
            tokens = tuple((other.get(token, token), frame) for token, frame in heard.tokens)
            heard = replace(heard, tokens=tokens)
        return super()._say(heard, context, logits)


@pytest.mark.parametrize("word_timestamps", [False, True])
def test_a_sentence_that_its_prompt_ends_with_is_written_again(word_timestamps: bool) -> None:
    windows = iter([spoken(NUMBERS)])
    backend = Misled(lambda *_: next(windows, spoken(NUMBERS, COLOURS)))
    options = TranscribeOptions(decoding=DecodingOptions(language="en"), word_timestamps=word_timestamps)
    said = read(backend, voice(36.0, (0.0, 2.0), (30.0, 34.0)), options)
    numbers, colours = map(TOKENIZER.decode, (NUMBERS, COLOURS))
    assert [segment.text for segment in said] == [numbers, numbers, colours]


def test_repeated_text_is_in_earlier_windows_or_in_the_same_one() -> None:
    """A short text is repeated in any conversation."""

    def segment(tokens: Sequence[int]) -> Segment:
        return Segment(0, 0.0, 1.0, TOKENIZER.decode(tokens) + "!", "en", tokens=tuple(tokens))

    said = context()
    said.remember(NUMBERS)
    assert said.repeats([segment(COLOURS), segment(NUMBERS)])
    assert said.repeats([segment(COLOURS), segment(COLOURS)])
    assert not said.repeats([segment(COLOURS), segment(NUMBERS[1:])])
    said.reset()
    assert not said.repeats([segment(COLOURS), segment(NUMBERS)])
