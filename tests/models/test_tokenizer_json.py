"""The tokenizer that other programs read: its ids are ours, for every vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.models.checkpoint.huggingface import merges, tokens_of, write_tokenizer
from sottovoce.text.tokenizer import Tokenizer

TEXTS = (
    "",
    " Hello, world! It's 10:45 — isn't it?",
    " Es grünt so grün, wenn Spaniens Blüten blühen.",
    " Où est l'œuf ? ¡Ñandú! Zażółć gęślą jaźń",
    "你好,世界。これは テスト です。한국어 문장",
    "Привет, как дела?  नमस्ते दुनिया  สวัสดีชาวโลก مرحبا",
    "  two  spaces\n\nlines\ttabs  ",
    "👩‍👩‍👧 naïve \u00a0\u00ad\ufeff <|en|",
)
VOCABULARIES = (51864, 51865, 51866)


@pytest.fixture(scope="module", params=VOCABULARIES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.for_model(request.param)


def test_merges_build_every_piece_from_earlier_ones(tokenizer: Tokenizer) -> None:
    pieces = tokens_of(tokenizer)[: tokenizer.eot]
    known = {piece for piece in pieces if len(piece) == 1}
    for left, right in merges(tokenizer.n_vocab):
        assert {left, right} <= known
        known.add(left + right)
    assert known >= {piece for piece in pieces if piece}


def test_every_token_is_listed_once(tokenizer: Tokenizer) -> None:
    tokens = tokens_of(tokenizer)
    assert len(set(tokens)) == len(tokens) == tokenizer.n_vocab
    assert tokens[tokenizer.eot] == "<|endoftext|>"
    assert tokens[-1] == "<|30.00|>"


def test_the_tokenizers_package_gives_the_same_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    write_tokenizer(tokenizer, tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.get_vocab_size() == tokenizer.n_vocab
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ids == tokenizer.encode(text), text
        assert theirs.decode(ids, skip_special_tokens=False) == text
    for token in range(tokenizer.eot, tokenizer.n_vocab):
        name = tokenizer.decode_with_timestamps([token])
        assert theirs.token_to_id(name) == token
    prompt = "<|startoftranscript|><|en|><|transcribe|><|0.00|> Yes.<|1.08|><|endoftext|>"
    expected = tokenizer.encoding.encode(prompt, allowed_special="all")
    assert theirs.encode(prompt, add_special_tokens=False).ids == expected


def test_texts_stand_between_special_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_tokenizer(tokenizer, tmp_path)
    template = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["post_processor"]
    ids = [entry["ids"][0] for entry in template["special_tokens"].values()]
    assert sorted(ids) == sorted([tokenizer.sot, tokenizer.no_timestamps, tokenizer.eot])
