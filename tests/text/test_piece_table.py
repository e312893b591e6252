"""A restricted vocabulary writes the same text, with its own tokens only, and as few as possible."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.text.tokenizer import N_VOCAB_99, PieceTable, Tokenizer

FULL = Tokenizer.for_model(N_VOCAB_99, language="de")
TRAINED = [token for word in (" und", " die", "en", "ch", " s", "ß") for token in FULL.encode(word)]
SMALL = FULL.with_pieces([*TRAINED, FULL.sot, FULL.timestamp_begin])


@settings(deadline=None)
@given(st.text())
def test_the_text_stays_and_no_other_token_is_used(text: str) -> None:
    tokens = SMALL.encode(text)
    assert SMALL.decode(tokens) == text
    allowed = set(TRAINED)
    assert all(token in allowed or len(SMALL.token_bytes(token)) == 1 for token in tokens)


def test_all_pieces_allowed_changes_nothing_where_bpe_is_shortest() -> None:
    tokenizer = FULL.with_pieces(range(FULL.eot))
    text = " Der Zug hält in Ulm und fährt weiter."
    assert tokenizer.encode(text) == FULL.encode(text)


def test_the_fewest_pieces_win_and_ties_go_to_longer_ones() -> None:
    single = {bytes([value]): value for value in range(256)}
    pieces = PieceTable.of(single | {b"ab": 300, b"abc": 301, b"cde": 302, b"de": 303})
    assert pieces.cut(b"abcde") == [300, 302]
    assert pieces.cut(b"abcdex") == [300, 302, ord("x")]
    assert pieces.cut(b"") == []


def test_the_rest_of_the_tokenizer_is_the_same() -> None:
    assert SMALL.sot_sequence == FULL.sot_sequence
    assert SMALL.with_language("fr").pieces is SMALL.pieces
    assert SMALL.non_speech_tokens == FULL.non_speech_tokens
