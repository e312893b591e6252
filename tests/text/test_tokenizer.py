"""Ids, text and words of the three vocabularies; equal to openai-whisper's where that one is right."""

from __future__ import annotations

import codecs
import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import OptionError
from sottovoce.text.languages import language_codes
from sottovoce.text.tokenizer import (
    N_VOCAB_99,
    N_VOCAB_100,
    N_VOCAB_ENGLISH,
    PieceTable,
    Tokenizer,
)
from tests.conftest import Reference, digest

VOCABULARIES = (N_VOCAB_ENGLISH, N_VOCAB_99, N_VOCAB_100)
SPECIALS = ("eot", "sot", "translate", "transcribe", "sot_lm", "sot_prev", "no_speech", "no_timestamps")

SENTENCES = {
    "en": " Well, it's a 3.14-mile (or so) walk... isn't it? Don't we'll they've I'd!",
    "de": " Größenwahn: »Straßenbahnhaltestelle« – 12,5 % teurer.",
    "fr": " L'été, c'est-à-dire « bientôt », qu'on s'aime ?",
    "es": " ¿Cómo está usted? ¡Ñandú, pingüino!",
    "ru": " Съешь же ещё этих мягких французских булок.",
    "el": " Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "ar": " السلام عليكم ورحمة الله وبركاته، كيف حالك؟",
    "he": " שלום עולם, מה שלומך?",
    "hi": " नमस्ते दुनिया, आप कैसे हैं?",
    "ko": " 안녕하세요 세계, 잘 지내셨어요?",
    "zh": "你好,世界。今天天气很好,我们去公园散步吧!鑫龘",
    "ja": "こんにちは、世界。今日は良い天気ですね。",
    "th": "สวัสดีชาวโลก วันนี้อากาศดีมาก",
    "lo": "ສະບາຍດີຊາວໂລກ",
    "my": "မင်္ဂလာပါကမ္ဘာလောက",
    "yue": "你好嗎?今日天氣好好。",
    "vi": " Xin chào thế giới, hôm nay trời đẹp quá.",
    "tr": " Pijamalı hasta yağız şoföre çabucak güvendi.",
    "am": " ሰላም ልዑል",
    "ka": " გამარჯობა მსოფლიო",
    "haw": " Aloha kākou, e ʻoluʻolu ʻoe",
}


@pytest.mark.parametrize(("n_vocab", "n_languages"), [(N_VOCAB_99, 99), (N_VOCAB_100, 100)])
def test_every_language_has_its_token(n_vocab: int, n_languages: int) -> None:
    tokenizer = Tokenizer.for_model(n_vocab)
    assert tokenizer.language_codes == language_codes(n_languages)
    for code in tokenizer.language_codes:
        assert tokenizer.token_bytes(tokenizer.language_token(code)).decode() == f"<|{code}|>"


def test_the_hundredth_language_is_in_one_vocabulary_alone() -> None:
    old, new = (Tokenizer.for_model(n, language="en") for n in (N_VOCAB_99, N_VOCAB_100))
    with pytest.raises(OptionError, match="yue"):
        old.with_language("yue")
    assert new.with_language("Cantonese").sot_sequence == (50258, 50358, 50360)


def test_english_only_has_no_language_and_no_task() -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_ENGLISH)
    assert tokenizer.language == "en"
    assert tokenizer.language_tokens == ()
    assert tokenizer.sot_sequence == (50257,)
    with pytest.raises(OptionError, match="knows en"):
        tokenizer.with_language("de")
    with pytest.raises(OptionError, match="English-only"):
        Tokenizer.for_model(N_VOCAB_ENGLISH, task="translate")
    with pytest.raises(OptionError, match="English only"):
        tokenizer.language_token("en")


def test_an_undecided_language_gives_no_prompt() -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_99)
    with pytest.raises(OptionError, match="no language"):
        _ = tokenizer.sot_sequence
    assert tokenizer.with_language("de").with_task("translate").sot_sequence == (50258, 50261, 50358)
    assert tokenizer.language is None  # immutable


def test_unknown_vocabulary_and_task_are_refused() -> None:
    with pytest.raises(OptionError, match="got 32000"):
        Tokenizer.for_model(32000)
    with pytest.raises(OptionError, match="'transcribe' or 'translate', got 'summarise'"):
        Tokenizer.for_model(N_VOCAB_99, task="summarise")  # type: ignore[arg-type]


def test_timestamps_are_the_last_tokens() -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_100)
    for index, token in enumerate(range(tokenizer.timestamp_begin, tokenizer.n_vocab)):
        assert tokenizer.is_timestamp(token)
        assert tokenizer.decode_with_timestamps([token]) == f"<|{index * 0.02:.2f}|>"
    assert tokenizer.decode_with_timestamps([tokenizer.n_vocab - 1]) == "<|30.00|>"
    assert not tokenizer.is_timestamp(tokenizer.no_timestamps)


def test_decode_is_text_only() -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_99, language="en")
    text = tokenizer.encode(" hello")
    ids = [*tokenizer.sot_sequence, tokenizer.timestamp_begin + 54, *text, tokenizer.eot]
    assert tokenizer.decode(ids) == " hello"
    expected = "<|startoftranscript|><|en|><|transcribe|><|1.08|> hello<|endoftext|>"
    assert tokenizer.decode_with_timestamps(ids) == expected


def test_names_of_special_tokens_are_ordinary_text() -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_99)
    ids = tokenizer.encode("<|en|><|endoftext|>")
    assert max(ids) < tokenizer.eot
    assert tokenizer.decode(ids) == "<|en|><|endoftext|>"


@given(st.text(), st.sampled_from(VOCABULARIES))
def test_any_text_survives_encoding(text: str, n_vocab: int) -> None:
    tokenizer = Tokenizer.for_model(n_vocab)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.integers(0, N_VOCAB_99 - 1), max_size=30), st.sampled_from(["en", "zh", "ja", "de"]))
def test_words_lose_nothing_even_of_broken_utf8(ids: list[int], language: str) -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_99, language=language)
    words, word_tokens = tokenizer.split_to_word_tokens(ids)
    assert "".join(words) == tokenizer.decode_with_timestamps(ids)
    assert [token for tokens in word_tokens for token in tokens] == ids
    assert all(word_tokens)


FULL = Tokenizer.for_model(N_VOCAB_99, language="de")
TRAINED = [token for word in (" und", " die", "en", "ch", " s", "ß") for token in FULL.encode(word)]
SMALL = FULL.with_pieces([*TRAINED, FULL.sot, FULL.timestamp_begin])


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
    pieces = PieceTable(single | {b"ab": 300, b"abc": 301, b"cde": 302, b"de": 303})
    assert pieces.cut(b"abcde") == [300, 302]
    assert pieces.cut(b"abcdex") == [300, 302, ord("x")]
    assert pieces.cut(b"") == []


def test_the_rest_of_the_tokenizer_is_the_same() -> None:
    assert SMALL.sot_sequence == FULL.sot_sequence
    assert SMALL.with_language("fr").pieces is SMALL.pieces
    assert SMALL.non_speech_tokens == FULL.non_speech_tokens


ANY_TOKENS = st.lists(st.integers(0, N_VOCAB_100 - 1), max_size=40)


@given(st.text() | ANY_TOKENS)
def test_characters_are_those_of_all_tokens(text: str | list[int]) -> None:
    """A token's text is kept if it ends with a character; others need those after them."""
    tokenizer = Tokenizer.for_model(N_VOCAB_100)
    tokens = tokenizer.encode(text) if isinstance(text, str) else text
    texts, groups = tokenizer.split_to_characters(tokens)
    assert "".join(texts) == tokenizer.decode_with_timestamps(tokens)
    assert [token for group in groups for token in group] == tokens
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(b"".join(map(tokenizer.token_bytes, tokens)))
    assert tokenizer.ends_within_character(tokens) == bool(decoder.getstate()[0])
    places = accumulate(map(len, groups[:-1]))
    assert not any(tokenizer.ends_within_character(tokens[:place]) for place in places)


def test_half_a_character_is_not_its_end() -> None:
    tokenizer = Tokenizer.for_model(N_VOCAB_100)
    tokens = tokenizer.encode("𪚥")
    assert len(tokens) == 4
    assert [tokenizer.ends_within_character(tokens[:n]) for n in range(5)] == [False, True, True, True, False]
    assert tokenizer.split_to_characters(tokens[:1]) == (["\ufffd"], [tokens[:1]])


def tokenizer_of_whisper(n_vocab: int, language: str):  # type: ignore[no-untyped-def]
    theirs = pytest.importorskip("whisper.tokenizer", reason="openai-whisper is not installed")
    n_languages = n_vocab - 51765 - int(n_vocab >= 51865)
    return theirs.get_tokenizer(n_vocab >= 51865, num_languages=n_languages, language=language)


@pytest.mark.reference
@pytest.mark.parametrize("n_vocab", VOCABULARIES)
def test_all_ids_equal_openai_whisper(n_vocab: int, reference: Reference) -> None:
    names = (*SPECIALS, "timestamp_begin", "non_speech_tokens")
    names += ("sot_sequence", "sot_sequence_including_notimestamps")

    def compute() -> list[Any]:
        other = tokenizer_of_whisper(n_vocab, "en")
        tokens = b"\0".join(map(other.encoding.decode_single_token_bytes, range(n_vocab)))
        languages = sorted(other.all_language_tokens) if n_vocab >= 51865 else []
        return [{name: getattr(other, name) for name in names}, languages, digest(tokens)]

    ids, languages, tokens = reference(compute)
    ours = Tokenizer.for_model(n_vocab, language="en")
    for name in names:
        value = getattr(ours, name)
        assert (list(value) if isinstance(value, tuple) else value) == ids[name], name
    assert not ours.is_multilingual or list(ours.language_tokens) == languages
    assert digest(b"\0".join(map(ours.token_bytes, range(n_vocab)))) == tokens


@pytest.mark.reference
@pytest.mark.parametrize("language", SENTENCES)
def test_text_and_words_equal_openai_whisper(language: str, reference: Reference) -> None:
    ours = Tokenizer.for_model(N_VOCAB_100, language=language)
    sentence = SENTENCES[language]

    def read(tokenizer: Any, text: str) -> list[Any]:
        ids = tokenizer.encode(text)
        timed = [ours.timestamp_begin, *ids, ours.timestamp_begin + 125, ours.eot]
        words = tokenizer.split_to_word_tokens(timed)
        return [ids, *words, tokenizer.decode_with_timestamps(timed), tokenizer.decode(timed[:-1])]

    def compute() -> list[Any]:
        other = tokenizer_of_whisper(N_VOCAB_100, language)
        longer = [digest(read(other, text)) for text in (" ".join(SENTENCES.values()), sentence.strip() * 3)]
        return [read(other, sentence), *longer]

    theirs, *longer = reference(compute)
    assert json.loads(json.dumps(read(ours, sentence))) == theirs
    for text, expected in zip((" ".join(SENTENCES.values()), sentence.strip() * 3), longer, strict=True):
        assert digest(read(ours, text)) == expected


@pytest.mark.long
@given(
    st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"])),
    st.sampled_from(VOCABULARIES),
    st.sampled_from(["en", "ja"]),
)
def test_any_text_is_cut_as_openai_whisper_cuts_it(text: str, n_vocab: int, language: str) -> None:
    language = language if n_vocab != N_VOCAB_ENGLISH else "en"
    ours, other = Tokenizer.for_model(n_vocab, language=language), tokenizer_of_whisper(n_vocab, language)
    ids = ours.encode(text)
    assert ids == other.encode(text, disallowed_special=())
    assert ours.split_to_word_tokens(ids) == other.split_to_word_tokens(ids)


@pytest.mark.long
@pytest.mark.shared
def test_real_transcripts_are_cut_as_openai_whisper_cuts_them(shared_dir: Path) -> None:
    lines = (shared_dir / "data" / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    texts = {
        (row["language"], row["text"]) for row in rows if isinstance(row["language"], str) and row["text"]
    }
    for language, text in sorted(texts):
        code = language if language in language_codes() else "en"
        ours, other = Tokenizer.for_model(N_VOCAB_100, language=code), tokenizer_of_whisper(N_VOCAB_100, code)
        ids = ours.encode(" " + text)
        assert ids == other.encode(" " + text)
        assert ours.split_to_word_tokens(ids) == other.split_to_word_tokens(ids)
