"""Shallow fusion: weighted language models as one, for Whisper's search over text tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm import HOTWORD_WEIGHT
from sottovoce.lm.base import Floats, Ints, LanguageModel
from sottovoce.lm.boosting import Edges, Hotwords, Phrase, WholeWordBooster, listed_phrases, usable
from sottovoce.lm.grammar import SKIPPED, Grammar, GrammarModel
from sottovoce.lm.ngram import NgramModel
from sottovoce.text.normalize import forms_of
from sottovoce.text.tokenizer import Tokenizer, Vocabulary


def text_fusion(
    tokenizer: Tokenizer,
    *,
    lm: str | Path | NgramModel | None = None,
    lm_weight: float = 0.3,
    hotwords: Hotwords | None = None,
    hotword_weight: float = HOTWORD_WEIGHT,
    neural_lm: LanguageModel | None = None,
    neural_weight: float = 0.3,
    grammar: Grammar | str | Path | None = None,
    grammar_penalty: float | None = None,
) -> ShallowFusion:
    """Make the fusion for `decoding.search.BeamSearch`.

    lm: an n-gram model whose words are token ids in decimal ("50 1002"), as `token_text` writes them.
    hotwords: a file, phrases, or phrases with weights; they match whole words as written, with a capital at
    the beginning, and, if in lower case, with capitals on every word.
    hotword_weight: for each token of a phrase (nats).
    neural_lm: a model over the same ids.
    grammar: a GBNF file or a grammar for the text of a window.
    grammar_penalty: cost of a token that it does not allow (nats); None: forbidden.

    Raises:
        OptionError: nothing to fuse.
        LanguageModelError: a file or model that cannot be used.
    """
    models: list[tuple[LanguageModel, float]] = []
    if lm is not None:
        ngram = lm if isinstance(lm, NgramModel) else NgramModel.load(lm)
        models.append((TokenNgram(ngram, tokenizer.eot), lm_weight))
    if hotwords is not None:
        phrases = _phrases(tokenizer, hotwords, hotword_weight)
        models.append((WholeWordBooster(phrases, token_edges(tokenizer.vocabulary)), 1.0))
    if neural_lm is not None:
        models.append((neural_lm, neural_weight))
    if grammar is not None:
        read = grammar if isinstance(grammar, Grammar) else Grammar.read(grammar)
        spelled = [tokenizer.token_bytes(i) for i in range(tokenizer.eot)]
        allowed = GrammarModel(read, spelled, tokenizer.encode, penalty=grammar_penalty)
        models.append((allowed, 1.0))
    return ShallowFusion(models)


def token_text(tokenizer: Tokenizer, text: str) -> str:
    """Write text as a line of token ids, to train an n-gram model."""
    return " ".join(str(token) for token in tokenizer.encode_prompt(text))


@lru_cache(maxsize=4)
def token_edges(vocabulary: Vocabulary) -> Edges:
    spelled = map(vocabulary.__getitem__, range(vocabulary.n_pieces))
    return Edges.of([token.decode("utf-8", "replace") for token in spelled])


class TokenNgram:
    """An n-gram model whose words are token ids in decimal, over n_tokens tokens.

    Raises:
        LanguageModelError: a model of other words.
    """

    def __init__(self, model: NgramModel, n_tokens: int) -> None:
        ids = model.ids([str(token) for token in range(n_tokens)])
        if all(each == model.unknown for each in ids):
            words = (word for word in model.vocabulary if not word.startswith("<"))
            raise LanguageModelError(
                "language model: expected an n-gram model of token ids (`token_text` writes its texts), "
                f"got words such as {next(words, '<unk>')!r}"
            )
        self.n_tokens = n_tokens
        self.ids = np.array(ids)
        self.model = model

    def start(self, n: int) -> Ints:
        return self.model.start(n)

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        if tokens is None:
            return self.model.score(states)[0][:, self.ids], states
        return self.model.score(states, self.ids[tokens])

    def finish(self, states: Ints) -> Floats:
        return self.model.finish(states)


def _phrases(tokenizer: Tokenizer, hotwords: Hotwords, weight: float) -> list[Phrase]:
    listed = listed_phrases(hotwords, default_weight=weight)
    encoded = usable(listed, lambda phrase: Phrase(tuple(tokenizer.encode(phrase.text)), phrase.weight))
    spelled: dict[tuple[int, ...], float] = {}
    for phrase, _ in encoded:
        for form in forms_of(phrase.text, set(phrase.text)):  # marks in another order
            for written in (f" {form}", form):
                spelled[tuple(tokenizer.encode(written))] = phrase.weight
    for phrase, _ in encoded:
        for form in _capitalised(phrase.text):
            for written in (f" {form}", form):
                spelled.setdefault(tuple(tokenizer.encode(written)), phrase.weight)
    return [Phrase(tokens, value) for tokens, value in spelled.items()]


def _capitalised(text: str) -> Iterable[str]:
    if not text[:1].islower():
        return ()
    words = text.split() if text.islower() else [text]
    return dict.fromkeys((_with_capital(text), " ".join(map(_with_capital, words))))


def _with_capital(text: str) -> str:
    return text[:1].upper() + text[1:]


class ShallowFusion:
    """A weighted sum of language models over the same tokens.

    models: with their weights, a grammar last. A token that a model scores -inf is forbidden, whatever the
    weight. States (N, n_models) int64 have a column for each model; those of a grammar are all that follow.

    Raises:
        OptionError: no models, or different numbers of tokens.
    """

    def __init__(self, models: Sequence[tuple[LanguageModel, float]]) -> None:
        if not models:
            raise OptionError("fusion: expected an n-gram or neural model, hotwords or a grammar, got none")
        sizes = {model.n_tokens for model, _ in models}
        if len(sizes) > 1:
            raise OptionError(f"fusion: expected models over the same tokens, got {sorted(sizes)} tokens")
        self.models = tuple(models)
        self.n_models, self.n_tokens = len(models), models[0][0].n_tokens
        self.is_static = all(isinstance(model, TokenNgram | WholeWordBooster) for model, _ in models)

    def start(self, n: int) -> Ints:
        return np.column_stack([model.start(n) for model, _ in self.models])

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        """Score as `LanguageModel.score`; tokens above n_tokens score 0 and keep their row's state."""
        if tokens is None:
            return self._weighted([model.score(each)[0] for (model, _), each in self._each(states)]), states
        is_known = tokens < self.n_tokens
        known = np.where(is_known, tokens, 0)
        scored = [model.score(each, known) for (model, _), each in self._each(states)]
        after = np.column_stack([moved for _, moved in scored])
        before = np.pad(states, ((0, 0), (0, after.shape[1] - states.shape[1])), constant_values=SKIPPED)
        total = np.where(is_known, self._weighted([scores for scores, _ in scored]), np.float32(0))
        return total, np.where(is_known[:, None], after, before)

    def finish(self, states: Ints) -> Floats:
        return self._weighted([model.finish(each) for (model, _), each in self._each(states)])

    def _each(self, states: Ints) -> Iterator[tuple[tuple[LanguageModel, float], Ints]]:
        for i, (model, weight) in enumerate(self.models):
            yield (model, weight), states[:, i:] if isinstance(model, GrammarModel) else states[:, i]

    def _weighted(self, scores: Sequence[Floats]) -> Floats:
        total = np.zeros_like(scores[0])
        for (_, weight), each in zip(self.models, scores, strict=True):
            # A token that is scored -inf is forbidden, also with a weight of 0, which would make NaN.
            total += np.multiply(each, np.float32(weight), out=each.copy(), where=~np.isneginf(each))
        return total
