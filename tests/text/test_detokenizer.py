"""Chunked equals whole; no half characters; the unfinished word is the one that can grow."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.text.detokenizer import Detokenizer, TokenWord, WordDetokenizer
from sottovoce.text.tokenizer import N_VOCAB_100, Tokenizer

LANGUAGES = st.sampled_from(["en", "ja"])
ANY_TOKENS = st.lists(st.integers(0, N_VOCAB_100 - 1), max_size=40)


def chunks(tokens: list[int], cuts: list[int]) -> list[list[int]]:
    edges = [0, *sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]
    return [tokens[a:b] for a, b in pairwise(edges)]


@settings(deadline=None)
@given(st.text(), st.lists(st.integers(0, 1000)))
def test_text_in_chunks_equals_text_at_once(text: str, cuts: list[int]) -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_100)
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(chunk) for chunk in chunks(tokenizer.encode(text), cuts)]
    assert "".join(pieces) == text
    assert detokenizer.flush() == ""


@settings(deadline=None)
@given(ANY_TOKENS, st.lists(st.integers(0, 1000)))
def test_broken_text_in_chunks_equals_decoding_at_once(tokens: list[int], cuts: list[int]) -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_100)
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(chunk) for chunk in chunks(tokens, cuts)]
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(tokens)
    assert detokenizer.pending == b""


def test_half_a_character_is_held_back() -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_100)
    tokens = tokenizer.encode("𪚥")
    assert len(tokens) == 4
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([token]) for token in tokens] == ["", "", "", "𪚥"]
    detokenizer.push(tokens[:1])
    assert detokenizer.pending == "𪚥".encode()[:1]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.push(tokens) == "𪚥"


@settings(deadline=None)
@given(ANY_TOKENS | st.text().map(lambda t: Tokenizer.for_model(N_VOCAB_100).encode(t)), LANGUAGES, st.data())
def test_words_in_chunks_equal_words_at_once(tokens: list[int], language: str, data: st.DataObject) -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_100, language=language)
    text_tokens = [token for token in tokens if token < tokenizer.eot]
    whole = [
        TokenWord(word, tuple(ids))
        for word, ids in zip(*tokenizer.split_to_word_tokens(text_tokens), strict=True)
    ]
    detokenizer = WordDetokenizer(tokenizer)
    words: list[TokenWord] = []
    for chunk in chunks(tokens, data.draw(st.lists(st.integers(0, 1000)))):
        words += detokenizer.push(chunk)
        assert words == whole[: len(words)]  # nothing is ever taken back
    unfinished = detokenizer.unfinished
    assert words + detokenizer.flush() == whole
    assert unfinished is None or unfinished == whole[-1]
    assert detokenizer.flush() == []


def test_a_word_is_complete_when_the_next_begins() -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_100, language="de")
    tokens = tokenizer.encode(" Straßenbahn hält.")
    detokenizer = WordDetokenizer(tokenizer)
    seen = [[word.text for word in detokenizer.push([token])] for token in tokens]
    assert [text for texts in seen for text in texts] == [" Straßenbahn", " hält"]
    assert detokenizer.unfinished == TokenWord(".", (tokens[-1],))
    assert detokenizer.drop_unfinished() == (tokens[-1],)
    assert detokenizer.unfinished is None


def test_a_character_is_a_whole_word_where_no_spaces_are_written() -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_100, language="zh")
    tokens = tokenizer.encode("𪚥")
    detokenizer = WordDetokenizer(tokenizer)
    assert detokenizer.push(tokens[:2]) == []
    assert detokenizer.unfinished == TokenWord("\ufffd", tuple(tokens[:2]))
    assert [word.text for word in detokenizer.push(tokens[2:])] == ["𪚥"]
    assert detokenizer.unfinished is None
