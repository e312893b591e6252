"""Shallow fusion: weighted language models as one, for Whisper's beam search and for the CTC search.

`text_fusion` makes the `ShallowFusion` over Whisper's text tokens. `token_scorer` and `word_scorer` make the
`PrefixScorer` of a CTC search; the second scores word models where words of a lexicon end. Look-ahead
(Ortmanns et al. 1997; flashlight's smearing) adds the best score of the words that are still possible inside
a word, and subtracts it where the word ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import tiktoken
import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.base import (
    Automaton,
    AutomatonModel,
    ContextFreeModel,
    Floats,
    Ints,
    LanguageModel,
    PrefixScorer,
)
from sottovoce.lm.boosting import Edges, Phrase, WholeWordBooster
from sottovoce.lm.grammar import Grammar, GrammarModel
from sottovoce.lm.lexicon import ROOT, Lexicon
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

    lm: a trie or ARPA file whose words are token ids in decimal ("50 1002"), as `token_text` writes them.
    hotwords: a file (`read_phrases`), phrases, or phrases with weights; they match whole words as written,
    with a capital at the beginning, and, if in lower case, with capitals on every word.
    hotword_weight: for each token of a phrase (nats).
    neural_lm: a model over the same ids.
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
        ngram = lm if isinstance(lm, NgramModel) else NgramModel.load(lm)
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
    """Return the model's id (n_tokens,) of every token. Raises: LanguageModelError for a model of words."""
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
    if not text[:1].islower():
        return ()
    words = text.split() if text.islower() else [text]
    return dict.fromkeys((_with_capital(text), " ".join(map(_with_capital, words))))


def _with_capital(text: str) -> str:
    return text[:1].upper() + text[1:]


NEVER = float("-inf")


class Relabelled:
    """A language model under other ids: token i is token ids[i] of the model inside.

    ids: (n_tokens,) int64.

    Raises:
        LanguageModelError: ids that the model does not have.
    """

    def __init__(self, model: LanguageModel, ids: Tensor) -> None:
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < model.n_tokens:
            raise LanguageModelError(
                f"language model: expected ids below {model.n_tokens}, got up to {int(ids.max())}"
            )
        self._model = model
        self._ids = ids

    @property
    def n_tokens(self) -> int:
        return len(self._ids)

    def start(self, n: int) -> Tensor:
        return self._model.start(n)

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if tokens is None:
            return self._model.score(states)[0][:, self._ids], states
        return self._model.score(states, self._ids[tokens])

    def finish(self, states: Tensor) -> Tensor:
        return self._model.finish(states)


class ShallowFusion:
    """A weighted sum of language models over the same tokens; states are (N, n_models) int64.

    A token that a model scores -inf is forbidden, whatever the weight.

    Raises:
        OptionError: not one weight per model, or different numbers of tokens.
    """

    def __init__(self, models: Sequence[LanguageModel], weights: Sequence[float]) -> None:
        if len(models) != len(weights) or not models:
            raise OptionError(
                f"fusion: expected a weight per model, got {len(models)} models and {len(weights)} weights"
            )
        sizes = {model.n_tokens for model in models}
        if len(sizes) > 1:
            raise OptionError(f"fusion: expected models over the same tokens, got {sorted(sizes)} tokens")
        self._models = tuple(models)
        self._weights = tuple(weights)

    @property
    def n_tokens(self) -> int:
        return self._models[0].n_tokens

    def start(self, n: int, device: torch.device | None = None) -> Tensor:
        return torch.stack([model.start(n).to(device) for model in self._models], dim=1)

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Score as `LanguageModel.score`; a row with a token above n_tokens gets 0 and keeps its state."""
        if tokens is None:
            shape = (len(states), self.n_tokens)
            total = torch.zeros(shape, device=states.device)
            for i, (model, weight) in enumerate(zip(self._models, self._weights, strict=True)):
                total += weighted_scores(model.score(states[:, i])[0], weight)
            return total, states
        in_range = tokens < self.n_tokens
        total, after = self._follow(states, tokens.masked_fill(~in_range, 0))
        return total.masked_fill(~in_range, 0.0), torch.where(in_range[:, None], after, states)

    def finish(self, states: Tensor) -> Tensor:
        total = torch.zeros(len(states), device=states.device)
        for i, (model, weight) in enumerate(zip(self._models, self._weights, strict=True)):
            total += weighted_scores(model.finish(states[:, i]), weight)
        return total

    def select(self, states: Tensor, rows: Tensor) -> Tensor:
        return states[rows]

    def _follow(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(tokens.shape, device=tokens.device)
        after = []
        for i, (model, weight) in enumerate(zip(self._models, self._weights, strict=True)):
            scores, moved = model.score(states[:, i], tokens)
            total = total + weighted_scores(scores, weight)
            after.append(moved)
        return total, torch.stack(after, dim=1)


def weighted_scores(scores: Tensor, weight: float) -> Tensor:
    """Multiply scores by a weight; -inf stays -inf, which a weight of 0 would make NaN."""
    if weight == 1.0:
        return scores
    return torch.where(scores == NEVER, scores, scores * weight)


_UNBOUNDED = -1e30
IMPOSSIBLE = -228.0
"""Natural log-probability of impossible words inside words: about log10 -99, as in ARPA files."""
UNKNOWN_SHARE = 0.7
"""Share of an unknown word's cost at its beginning; the rest is due at its end."""


class TokenModel(NamedTuple):
    """A weighted model over labels. ids: (n_tokens,) int64, the model's id of every label; None: the same."""

    model: AutomatonModel
    weight: float
    ids: Ints | None = None


class ScoredAutomaton(AutomatonModel, LanguageModel, Protocol):
    """A model over words: its scores look ahead."""


class WordModel(NamedTuple):
    """A weighted model over words. ids: (n_words,) int64, its id of every word of the lexicon."""

    model: ScoredAutomaton
    ids: Ints
    weight: float


def token_scorer(n_tokens: int, models: Sequence[TokenModel]) -> PrefixScorer:
    """Make the scorer of models over n_tokens labels."""
    return PrefixScorer(n_tokens, _starts(models), tokens=_automata(models))


def word_scorer(
    lexicon: Lexicon,
    models: Sequence[WordModel] = (),
    *,
    word_score: float = 0.0,
    unknown_score: float = 0.0,
    look_ahead: bool = False,
    tokens: PrefixScorer | None = None,
) -> PrefixScorer:
    """Make the scorer of a lexicon, models over its words, and models over the labels that spell them.

    word_score: added for every word. unknown_score: added for every unknown word. look_ahead: use the
    first word model's unigrams inside words, which changes pruning, not the scores of finished hypotheses.
    """
    scores = np.full(len(lexicon.words), word_score, np.float32)
    if lexicon.unknown is not None:
        scores[lexicon.unknown] += np.float32(unknown_score)
    ahead = _unigrams(lexicon, models[0], scores) if look_ahead else np.zeros(lexicon.n_nodes, np.float32)
    over_labels = PrefixScorer(lexicon.n_tokens) if tokens is None else tokens
    return over_labels._replace(
        start=np.concatenate(([ROOT], _starts(models), over_labels.start)),
        words=_automata(models),
        lexicon=lexicon.flat(ahead, scores),
    )


def _starts(models: Sequence[TokenModel | WordModel]) -> Ints:
    return np.array([int(each.model.start(1)[0]) for each in models], np.int64)


def _automata(models: Sequence[TokenModel | WordModel]) -> list[tuple[Automaton, float]]:
    found = []
    for each in models:
        automaton = each.model.automaton()
        if each.ids is not None:
            begins = None if automaton.begins is None else automaton.begins[each.ids]
            automaton = automaton._replace(ids=automaton.ids[each.ids], begins=begins)
        if automaton.keys is None and each.weight < 0:
            # Upper bounds times a negative weight are no upper bounds.
            automaton = automaton._replace(root_weights=np.full_like(automaton.root_weights, _UNBOUNDED))
        found.append((automaton, each.weight))
    return found


def _unigrams(lexicon: Lexicon, word: WordModel, word_scores: Floats) -> Floats:
    """Return the look-ahead (n_nodes,). The unknown word counts with a share of its whole cost."""
    model, n_words = word.model, len(word.ids)
    states = model.null_context(n_words) if isinstance(model, ContextFreeModel) else model.start(n_words)
    found, _ = model.score(states, torch.from_numpy(word.ids))
    # A word that is impossible alone may be possible after others.
    scores: Floats = (found.clamp_min(IMPOSSIBLE) * word.weight).numpy()
    if lexicon.unknown is not None:
        whole = scores[lexicon.unknown] + word_scores[lexicon.unknown]
        scores[lexicon.unknown] = np.float32(UNKNOWN_SHARE) * whole
    return lexicon.look_ahead(scores)
