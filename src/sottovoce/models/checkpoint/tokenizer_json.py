"""Whisper's tokenizer as other programs read it: `tokenizer.json`, and lists of tokens by id.

Bytes are written as characters, GPT-2's way: printable Latin-1 stands for itself, the others for what
follows U+0100. The merges of byte-level BPE are not stored in tiktoken's ranks, but they follow from them:
a piece was made of the two that BPE with all lower ranks leaves of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

from sottovoce.models.checkpoint.writing import write_json
from sottovoce.models.dims import ModelDims
from sottovoce.text.tokenizer import N_VOCAB_99, N_VOCAB_100, N_VOCAB_ENGLISH, Tokenizer

BYTE_LEVEL: Mapping[str, object] = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def has_vocabulary(dims: ModelDims) -> bool:
    """Tell whether a model has one of Whisper's vocabularies; toys have none."""
    return dims.n_vocab in (N_VOCAB_ENGLISH, N_VOCAB_99, N_VOCAB_100)


def tokens_of(tokenizer: Tokenizer) -> list[str]:
    """List every token by id, special ones and timestamps too."""
    text = [_shown(tokenizer.token_bytes(token)) for token in range(tokenizer.eot)]
    return text + [tokenizer.decode_with_timestamps([token]) for token in _specials(tokenizer)]


@cache
def merges(n_vocab: int) -> tuple[tuple[str, str], ...]:
    """List the pairs of pieces that BPE of a vocabulary joins, in order of their ranks."""
    tokenizer = Tokenizer.for_model(n_vocab)
    ranks = {tokenizer.token_bytes(token): token for token in range(tokenizer.eot)}
    halves = (_halves(piece, ranks) for piece in ranks if len(piece) > 1)
    return tuple((_shown(left), _shown(right)) for left, right in halves)


def suppressed_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """List the ids that Whisper never writes: annotations of sound, and special tokens that begin other
    parts.
    """
    special = (tokenizer.sot, tokenizer.translate, tokenizer.transcribe, tokenizer.sot_lm)
    others = (tokenizer.sot_prev, tokenizer.no_speech)
    return tuple(sorted({*tokenizer.non_speech_tokens, *special, *others}))


def suppressed_first(tokenizer: Tokenizer) -> tuple[int, ...]:
    """List the ids that do not begin a transcript: the blank and the end of text."""
    return (*tokenizer.encode(" "), tokenizer.eot)


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json`, which the `tokenizers` package loads; its ids are the tokenizer's."""
    write_json(folder / "tokenizer.json", _document(tokenizer), indent=None)


def _document(tokenizer: Tokenizer) -> dict[str, object]:
    tokens = tokens_of(tokenizer)
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {token: i for i, token in enumerate(tokens[: tokenizer.eot])},
        "merges": merges(tokenizer.n_vocab),
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(tokenizer, i, tokens[i]) for i in _specials(tokenizer)],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": _template(tokenizer, tokens),
        "decoder": BYTE_LEVEL,
        "model": model,
    }


def _added(tokenizer: Tokenizer, token: int, content: str) -> dict[str, object]:
    plain = tokenizer.is_timestamp(token)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": content, **flags, "special": not plain}


def _template(tokenizer: Tokenizer, tokens: list[str]) -> dict[str, object]:
    """What stands around a text when special tokens are asked for."""
    around = (tokenizer.sot, tokenizer.no_timestamps, tokenizer.eot)
    sot, no_timestamps, eot = ({"SpecialToken": {"id": tokens[i], "type_id": 0}} for i in around)
    single = [sot, no_timestamps, {"Sequence": {"id": "A", "type_id": 0}}, eot]
    special = {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in around}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single[:3], {"Sequence": {"id": "B", "type_id": 0}}, eot],
        "special_tokens": special,
    }


def _specials(tokenizer: Tokenizer) -> range:
    return range(tokenizer.eot, tokenizer.n_vocab)


def _halves(piece: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """What is left of a piece when all lower ranks are joined, the lowest first."""
    limit = ranks[piece]
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while len(parts) > 2:
        joined = [ranks.get(left + right, limit) for left, right in pairwise(parts)]
        lowest = min(range(len(joined)), key=joined.__getitem__)
        parts[lowest : lowest + 2] = [parts[lowest] + parts[lowest + 1]]
    left, right = parts
    return left, right


def _shown(piece: bytes) -> str:
    return piece.decode("latin-1").translate(_characters())


@cache
def _characters() -> dict[int, str]:
    """Characters in the place of bytes that are not printed as they are."""
    return dict(zip(_unprinted(), map(chr, range(0x100, 0x200)), strict=False))


def _unprinted() -> Iterator[int]:
    """White space and control characters of Latin-1, no-break space and soft hyphen."""
    yield from range(0x21)
    yield from range(0x7F, 0xA1)
    yield 0xAD
