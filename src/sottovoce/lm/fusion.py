"""Shallow fusion: weighted language models as one object, over tokens or over the words of a lexicon.

`ShallowFusion` is a `LanguageModel` for Whisper's beam search and a `PrefixScorer` for the CTC search.
`WordFusion` scores word models where words end, under a lexicon, with optional token models. Look-ahead
(Ortmanns et al. 1997; flashlight's smearing) adds the best score of the words that are still possible
inside a word, and subtracts it where the word ends.
`text_fusion` makes the one of Whisper's decoder, over its text tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import tiktoken
import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.automata import automata
from sottovoce.lm.base import (
    Arcs,
    Automaton,
    AutomatonModel,
    ContextFreeModel,
    Endings,
    FlatScorer,
    LanguageModel,
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

    def automaton(self) -> Automaton | None:
        inside = self._model.automaton() if isinstance(self._model, AutomatonModel) else None
        if inside is None:
            return None
        ids = self._ids.cpu().numpy()
        begins = None if inside.begins is None else inside.begins[ids]
        return inside._replace(ids=inside.ids[ids], begins=begins)


class ShallowFusion:
    """A weighted sum of language models over the same tokens; states are (N, n_models) int64.

    A token that a model scores -inf is forbidden, whatever the weight.

    weights: one per model.

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

    @property
    def n_arcs(self) -> int:
        return 1

    @property
    def word_separator(self) -> int | None:
        return None

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

    def arcs(self, states: Tensor, tokens: Tensor) -> Arcs:
        n_rows, n_tokens = tokens.shape
        rows = states[:, None, :].expand(-1, n_tokens, -1).reshape(n_rows * n_tokens, -1)
        scores, after = self._follow(rows, tokens.reshape(-1))
        shape = (n_rows, n_tokens, 1)
        marks = torch.zeros(shape, dtype=torch.int64, device=tokens.device)
        return Arcs(scores.view(shape), marks, after.view(*shape, -1))

    def endings(self, states: Tensor) -> Endings:
        scores = self.finish(states)[:, None]
        return Endings(scores, torch.zeros_like(scores, dtype=torch.int64))

    def flat(self) -> FlatScorer | None:
        """Return the fusion as arrays; None if a model has no such form."""
        models = automata(zip(self._models, self._weights, strict=True))
        return None if models is None else FlatScorer(self.n_tokens, tokens=models)

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


IMPOSSIBLE = -228.0
"""Natural log-probability of impossible words inside words: about log10 -99, as in ARPA files."""
UNKNOWN_SHARE = 0.7
"""Share of an unknown word's cost at its beginning; the rest is due at its end."""


@dataclass(frozen=True, slots=True)
class WordModel:
    """A language model over words, with a weight.

    ids: (n_words,) int64, the model's id of every word of the lexicon, including None, the unknown word.
    """

    model: LanguageModel
    ids: Tensor
    weight: float


class WordFusion:
    """A lexicon, models over its words, and models over the tokens that spell them.

    States are (N, 1 + n_word_models + n_token_models) int64: the lexicon's node first.

    word_score: added for every word. unknown_score: added for every unknown word. look_ahead: use the
    first word model's unigrams inside words, which changes pruning, not the scores of finished hypotheses.

    Raises:
        OptionError: ids that do not cover the lexicon, token models with another number of tokens, or
            look_ahead without a word model.
    """

    def __init__(
        self,
        lexicon: Lexicon,
        models: Sequence[WordModel] = (),
        *,
        word_score: float = 0.0,
        unknown_score: float = 0.0,
        look_ahead: bool = False,
        tokens: ShallowFusion | None = None,
    ) -> None:
        for model in models:
            if len(model.ids) != len(lexicon.words):
                raise OptionError(
                    f"word models: expected {len(lexicon.words)} word ids, got {len(model.ids)}"
                )
        if tokens is not None and tokens.n_tokens != lexicon.n_tokens:
            raise OptionError(f"token models: expected {lexicon.n_tokens} tokens, got {tokens.n_tokens}")
        if look_ahead and not models:
            raise OptionError("look_ahead: expected a word model to look ahead with, got none")
        self._lexicon = lexicon
        self._n_words = len(lexicon.words)
        self._models = tuple(models)
        self._tokens = tokens
        self._word_scores = torch.full((len(lexicon.words),), float(word_score), device=lexicon.device)
        if lexicon.unknown is not None:
            self._word_scores[lexicon.unknown] += unknown_score
        self._ahead = self._unigrams() if look_ahead else None

    @property
    def n_tokens(self) -> int:
        return self._lexicon.n_tokens

    @property
    def n_arcs(self) -> int:
        return self._lexicon.n_arcs

    @property
    def word_separator(self) -> int | None:
        return self._lexicon.separator

    @property
    def words(self) -> tuple[str | None, ...]:
        """The words of marks 1, 2, …; None is the unknown word."""
        return self._lexicon.words

    def start(self, n: int, device: torch.device | None = None) -> Tensor:
        columns = [torch.full((n, 1), ROOT, device=device)]
        columns += [word.model.start(n)[:, None].to(device) for word in self._models]
        columns += [] if self._tokens is None else [self._tokens.start(n, device)]
        return torch.cat(columns, dim=1)

    def arcs(self, states: Tensor, tokens: Tensor) -> Arcs:
        found = self._lexicon.arcs(states[:, 0], tokens)  # (N, M, A)
        scores, after = self._score_ended_words(states, found.marks, found.exists, tokens)
        if self._ahead is not None:
            scores = scores + self._ahead[found.nodes] - self._ahead[states[:, 0]][:, None, None]
        columns = [found.nodes[..., None], after]
        if self._tokens is not None:
            token_arcs = self._tokens.arcs(states[:, 1 + len(self._models) :], tokens)
            scores = scores + token_arcs.scores
            columns.append(token_arcs.states.expand(*scores.shape, -1))
        scores = scores.masked_fill(~found.exists, NEVER)
        return Arcs(scores, found.marks, torch.cat(columns, dim=-1))

    def endings(self, states: Tensor) -> Endings:
        marks, exists = self._lexicon.endings(states[:, 0])  # (N, E)
        scores, after = self._score_ended_words(states, marks[:, None], exists[:, None])
        scores, after = scores[:, 0], after[:, 0]
        for i, word in enumerate(self._models):
            ends = word.model.finish(after[..., i].reshape(-1)).view(scores.shape)
            scores = scores + weighted_scores(ends, word.weight)
        if self._ahead is not None:
            scores = scores - self._ahead[states[:, 0]][:, None]
        if self._tokens is not None:
            scores = scores + self._tokens.finish(states[:, 1 + len(self._models) :])[:, None]
        return Endings(scores.masked_fill(~exists, NEVER), marks)

    def flat(self) -> FlatScorer | None:
        """Return the fusion as arrays; None if a model has no such form."""
        words = automata((Relabelled(word.model, word.ids), word.weight) for word in self._models)
        tokens = FlatScorer(self.n_tokens) if self._tokens is None else self._tokens.flat()
        if words is None or tokens is None:
            return None
        ahead = torch.zeros(self._lexicon.n_nodes) if self._ahead is None else self._ahead
        return tokens._replace(words=words, lexicon=self._lexicon.flat(ahead, self._word_scores))

    def _score_ended_words(
        self, states: Tensor, marks: Tensor, exists: Tensor, tokens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Score the words that arcs end: (N, M, A); also return the word models' states (N, M, A, n).

        tokens: (N, M) of the arcs; None: M is 1.
        """
        n_models = len(self._models)
        before = states[:, 1 : 1 + n_models]
        ends = (marks > 0) & (marks <= self._n_words) & exists
        after = before[:, None, None, :].expand(*marks.shape, n_models)
        if self._may_wait(marks.device):
            return self._score_sparse(after, marks, ends)
        if tokens is None or self._lexicon.separator is None:
            return self._score_dense(after, marks, ends)
        return self._score_separator(after, marks, ends, tokens == self._lexicon.separator)

    @staticmethod
    def _may_wait(device: torch.device) -> bool:
        return device.type == "cpu"

    def _score_sparse(self, states: Tensor, marks: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        rows = ends.reshape(-1).nonzero()[:, 0]
        scores = torch.zeros(marks.numel())
        flat = states.reshape(marks.numel(), len(self._models))
        gained, moved = self._score_words(flat[rows], marks.reshape(-1)[rows] - 1)
        scores[rows] = gained
        if self._models:
            flat = flat.index_copy(0, rows, moved)
        return scores.view(marks.shape), flat.view(states.shape)

    def _score_dense(self, states: Tensor, marks: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Score every arc; selecting the few would wait for the device."""
        words = (marks - 1).clamp(0, self._n_words - 1).reshape(-1)
        gained, moved = self._score_words(states.reshape(marks.numel(), len(self._models)), words)
        scores = gained.view(marks.shape).masked_fill(~ends, 0.0)
        return scores, torch.where(ends[..., None], moved.view(states.shape), states)

    def _score_separator(
        self, states: Tensor, marks: Tensor, ends: Tensor, is_separator: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Score the arcs of the separator, which alone end words. is_separator: (N, M) bool, at most one a
        row.
        """
        column = is_separator.to(torch.uint8).argmax(dim=1)[:, None, None]  # the first if there is none
        place = column.expand(-1, -1, marks.shape[2])
        places = place[..., None].expand(-1, -1, -1, states.shape[3])
        scores, moved = self._score_dense(
            states.gather(1, places), marks.gather(1, place), ends.gather(1, place)
        )
        return torch.zeros_like(scores).expand(marks.shape).scatter(1, place, scores), states.scatter(
            1, places, moved
        )

    def _score_words(self, states: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Score words (n,) after the word models' states (n, n_models); also return the next states."""
        scores = self._word_scores[words]
        after = []
        for i, word in enumerate(self._models):
            gained, moved = word.model.score(states[:, i], word.ids[words])
            scores = scores + weighted_scores(gained, word.weight)
            after.append(moved)
        return scores, torch.stack(after, dim=1) if after else states

    def _unigrams(self) -> Tensor:
        """Return the look-ahead (n_nodes,): the first model's unigram scores.

        The unknown word counts with a share of its whole cost, including its end.
        """
        word = self._models[0]
        model, n_words = word.model, len(word.ids)
        states = model.null_context(n_words) if isinstance(model, ContextFreeModel) else model.start(n_words)
        scores, _ = model.score(states.to(word.ids.device), word.ids)
        # A word that is impossible alone may be possible after others.
        scores = scores.clamp_min(IMPOSSIBLE) * word.weight
        if self._lexicon.unknown is not None:
            price = scores[self._lexicon.unknown] + self._word_scores[self._lexicon.unknown]
            scores[self._lexicon.unknown] = UNKNOWN_SHARE * price
        return self._lexicon.look_ahead(scores)
