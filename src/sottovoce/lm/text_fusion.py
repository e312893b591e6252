"""Language models for Whisper's decoder, over its text tokens, as one `ShallowFusion`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import tiktoken
import torch

from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.base import LanguageModel
from sottovoce.lm.boosting import Edges, Phrase, WholeWordBooster
from sottovoce.lm.fusion import Relabelled, ShallowFusion
from sottovoce.lm.grammar import Grammar, GrammarModel
from sottovoce.lm.ngram import NgramModel
from sottovoce.lm.phrase_lists import HOTWORD_WEIGHT, listed_phrases, without_faults
from sottovoce.text.normalize import forms_of
from sottovoce.text.tokenizer import Tokenizer


def text_fusion(
    tokenizer: Tokenizer,
    *,
    lm: str | Path | NgramModel | None = None,
    lm_weight: float = 0.3,
    hotwords: str | Path | Sequence[str] | Mapping[str, float] | None = None,
    hotword_weight: float = HOTWORD_WEIGHT,
    neural_lm: LanguageModel | None = None,
    neural_weight: float = 0.3,
    grammar: Grammar | str | Path | None = None,
    grammar_penalty: float | None = None,
    device: torch.device | None = None,
) -> ShallowFusion:
    """Make the fusion for `decoding.search.BeamSearch`.

    lm: an ARPA file whose words are token ids in decimal ("50 1002"), as `token_text` writes them.
    hotwords: a file (`read_phrases`), phrases, or phrases with weights; they match whole words as written,
    with a capital at the beginning, and, if in lower case, with capitals on every word.
    hotword_weight: for each token of a phrase (nats).
    neural_lm: a model over the same ids, see `lm.base.LanguageModel`.
    grammar: a GBNF file or a parsed grammar for the text of a window.
    grammar_penalty: cost of a token that it does not allow (nats); None: forbidden.

    Raises:
        OptionError: nothing to fuse.
        LanguageModelError: a file or model that cannot be used.
    """
    where = device or torch.device("cpu")
    models: list[LanguageModel] = []
    weights: list[float] = []
    if lm is not None:
        ngram = lm if isinstance(lm, NgramModel) else NgramModel.from_arpa(lm)
        ids = _token_ids(ngram, tokenizer.eot)
        models.append(Relabelled(ngram.to(where), ids.to(where)))
        weights.append(lm_weight)
    if hotwords is not None:
        phrases = _phrases(tokenizer, hotwords, hotword_weight)
        models.append(WholeWordBooster(phrases, token_edges(tokenizer)).to(where))
        weights.append(1.0)
    if neural_lm is not None:
        models.append(neural_lm)
        weights.append(neural_weight)
    if grammar is not None:
        read = grammar if isinstance(grammar, Grammar) else Grammar.read(grammar)
        spelled = [tokenizer.token_bytes(i) for i in range(tokenizer.eot)]
        models.append(GrammarModel(read, spelled, tokenizer.encode, penalty=grammar_penalty, device=where))
        weights.append(1.0)
    if not models:
        raise OptionError("fusion: expected an n-gram or neural model, hotwords or a grammar, got none")
    return ShallowFusion(models, weights)


def token_text(tokenizer: Tokenizer, text: str) -> str:
    """Write text as a line of token ids, to train an n-gram model for `text_fusion`."""
    return " ".join(str(token) for token in tokenizer.encode_prompt(text))


def token_edges(tokenizer: Tokenizer) -> Edges:
    """Return which text tokens begin and end words."""
    return _edges(tokenizer.encoding, tokenizer.eot)


@lru_cache(maxsize=4)
def _edges(encoding: tiktoken.Encoding, n_tokens: int) -> Edges:
    spelled = (encoding.decode_single_token_bytes(token) for token in range(n_tokens))
    return Edges.of([token.decode("utf-8", "replace") for token in spelled])


def _token_ids(ngram: NgramModel, n_tokens: int) -> torch.Tensor:
    """Return the model's id (n_tokens,) of every token; raise LanguageModelError for a model of words."""
    ids = ngram.ids([str(token) for token in range(n_tokens)])
    if all(each == ngram.unknown for each in ids):
        words = (word for word in ngram.vocabulary if not word.startswith("<"))
        raise LanguageModelError(
            "language model: expected an n-gram model of token ids (`token_text` writes its texts), "
            f"got words such as {next(words, '<unk>')!r}"
        )
    return torch.tensor(ids)


def _phrases(
    tokenizer: Tokenizer, hotwords: str | Path | Sequence[str] | Mapping[str, float], weight: float
) -> list[Phrase]:
    listed = listed_phrases(hotwords, default_weight=weight)
    empty = LanguageModelError("phrase: expected at least one token, got an empty phrase")
    usable = without_faults((phrase, None if phrase.text else empty) for phrase in listed)
    spelled: dict[tuple[int, ...], float] = {}
    for phrase in usable:
        for form in forms_of(phrase.text, set(phrase.text)):  # marks in another order
            for written in (f" {form}", form):
                spelled[tuple(tokenizer.encode(written))] = phrase.weight
    for phrase in usable:
        for form in _capitalised(phrase.text):
            for written in (f" {form}", form):
                spelled.setdefault(tuple(tokenizer.encode(written)), phrase.weight)
    return [Phrase(tokens, value) for tokens, value in spelled.items()]


def _capitalised(text: str) -> Iterable[str]:
    """Yield the ways to capitalise a phrase that begins in lower case."""
    if not text[:1].islower():
        return ()
    words = text.split() if text.islower() else [text]
    return dict.fromkeys((_with_capital(text), " ".join(map(_with_capital, words))))


def _with_capital(text: str) -> str:
    return text[:1].upper() + text[1:]
