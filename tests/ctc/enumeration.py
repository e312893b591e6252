"""The slow truth: every path of small emissions, every reading of its tokens under a lexicon."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import torch

from sottovoce.ctc.emissions import log_softmax
from sottovoce.lm.base import Automaton, Floats, Ints

Tokens = tuple[int, ...]
Reading = tuple[int, ...]
"""Words of one reading of tokens, as indices; -1 for an unknown one."""


def emissions(n_frames: int, n_labels: int, seed: int) -> Floats:
    """Random log-probabilities (T, V)."""
    generator = torch.Generator().manual_seed(seed)  # the numbers of `beams.json` and `references.json`
    return log_softmax((torch.randn(n_frames, n_labels, generator=generator) * 1.5).numpy())


def likely(labels: Sequence[int], n_labels: int, *, share: float) -> Floats:
    """Log-probabilities (T, V) of frames with one likely label each."""
    rest = (1 - share) / (n_labels - 1)
    return np.log(np.where(np.arange(n_labels) == np.array(labels)[:, None], share, rest)).astype(np.float32)


def collapsed(path: Sequence[int], blank: int) -> Tokens:
    merged = (label for label, _ in itertools.groupby(path))
    return tuple(label for label in merged if label != blank)


def all_texts(log_probs: Floats, blank: int) -> dict[Tokens, float]:
    """Log-probability of every label sequence, summed over all of its paths."""
    n_frames, n_labels = log_probs.shape
    rows = log_probs.tolist()
    sums: dict[Tokens, float] = {}
    for path in itertools.product(range(n_labels), repeat=n_frames):
        tokens = collapsed(path, blank)
        probability = math.exp(sum(rows[t][label] for t, label in enumerate(path)))
        sums[tokens] = sums.get(tokens, 0.0) + probability
    return {tokens: math.log(total) for tokens, total in sums.items()}


def without_idle(texts: Mapping[Tokens, float], separator: int | None) -> dict[Tokens, float]:
    """Texts without separators that say nothing, those at the beginning and after others, added up."""
    sums: dict[Tokens, float] = {}
    for tokens, log_prob in texts.items():
        pairs = zip((separator, *tokens), tokens, strict=False)
        kept = tuple(token for before, token in pairs if not before == token == separator)
        sums[kept] = sums.get(kept, 0.0) + math.exp(log_prob)
    return {tokens: math.log(total) for tokens, total in sums.items()}


def one_reading(_: Tokens) -> Iterator[Reading]:
    yield ()


def readings(
    tokens: Tokens,
    spellings: Sequence[tuple[int, Tokens]],
    *,
    unknown: bool = False,
    starts: Collection[int] | None = None,
) -> Iterator[Reading]:
    """All ways to read tokens as words that follow each other without a separator.

    starts: tokens that begin words: unknown ones begin with one and hold no other; None: they are anything.
    """
    if not tokens:
        yield ()
        return
    for end in range(1, len(tokens) + 1):
        heads = [word for word, spelling in spellings if spelling == tokens[:end]]
        begins = [at for at in range(end) if starts is not None and tokens[at] in starts]
        heads += [-1] if unknown and (starts is None or begins == [0]) else []
        for head in heads:
            for rest in readings(tokens[end:], spellings, unknown=unknown, starts=starts):
                yield (head, *rest)


def separated_readings(
    tokens: Tokens, spellings: Sequence[tuple[int, Tokens]], separator: int, *, unknown: bool = False
) -> Iterator[Reading]:
    """All ways to read tokens as words between separators; other spellings are unknown, where allowed."""
    parts = [
        tuple(group) for is_gap, group in itertools.groupby(tokens, lambda t: t == separator) if not is_gap
    ]
    choices = []
    for part in parts:
        words = [word for word, spelling in spellings if spelling == part]
        choices.append(words or ([-1] if unknown else []))
    yield from itertools.product(*choices)


def best_of(
    texts: Mapping[Tokens, float],
    read: Callable[[Tokens], Iterator[Reading]],
    score: Callable[[Tokens, Reading], float],
) -> list[tuple[float, Tokens, Reading]]:
    """All readings with their scores, best first."""
    result = [
        (acoustic + score(tokens, reading), tokens, reading)
        for tokens, acoustic in texts.items()
        for reading in read(tokens)
    ]
    return sorted(result, reverse=True)


class RandomBigram:
    """A made bigram over n_tokens tokens, behind `LanguageModel`; state: the last token, or n_tokens."""

    def __init__(self, n_tokens: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        table = log_softmax(torch.randn(n_tokens + 1, n_tokens + 1, generator=generator).numpy())
        self.table = table
        self._rows: list[list[float]] = table.tolist()
        self.n_tokens = n_tokens

    def start(self, n: int) -> Ints:
        return np.full(n, self.n_tokens)

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        if tokens is None:
            return self.table[states][:, : self.n_tokens], states
        return self.table[states, tokens], tokens

    def finish(self, states: Ints) -> Floats:
        return self.table[states, self.n_tokens]

    def automaton(self) -> Automaton:
        """Node 0, after token 0, is the root; every other node has every token."""
        n = self.n_tokens
        table = self.table[:, :n]
        return Automaton(
            first=np.concatenate(([0], np.arange(n + 1) * n)),
            keys=np.arange(n, n * (n + 1)),
            weights=table[1:].reshape(-1),
            targets=np.tile(np.arange(n), n),
            backoff=np.zeros(n + 1, np.float32),
            parent=np.zeros(n + 1, np.int64),
            root_weights=np.ascontiguousarray(table[0]),
            root_targets=np.arange(n),
            ids=np.arange(n),
            start=n,
            ends=np.ascontiguousarray(self.table[:, n]),
        )

    def over(self, ids: Sequence[int]) -> Automaton:
        return self.automaton().over(np.array(ids))

    def unigrams(self, ids: Sequence[int]) -> Floats:
        return self.table[self.n_tokens, list(ids)]

    def sentence(self, tokens: Sequence[int]) -> float:
        """The log-probability of a whole sentence."""
        path = (self.n_tokens, *tokens, self.n_tokens)
        return sum(self._rows[a][b] for a, b in itertools.pairwise(path))
