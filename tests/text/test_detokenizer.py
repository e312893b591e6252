"""Chunked equals whole; no half characters; the unfinished word is the one that can grow."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.text.tokenizer import N_VOCAB_100, Detokenizer, Tokenizer

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
