"""The seam between searches and language models: batched start, score, finish.

N-gram, neural, phrase boosting and grammar all stand behind it. States are opaque to the search;
it only selects rows of them. Log-probabilities are natural logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

State = TypeVar("State")
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
SmallInts = npt.NDArray[np.int32]
Record = Any
"""One of `Records`."""
Records = npt.NDArray[Any]
"""Arrays of named fields; their types stand beside them."""


class LanguageModel(Protocol, Generic[State]):
    """A batched language model over a token set of n_tokens ids."""

    @property
    def n_tokens(self) -> int: ...

    def start(self, n: int) -> State:
        """States of n hypotheses that have said nothing yet."""
        ...

    def score(self, states: State, tokens: Tensor | None = None) -> tuple[Tensor, State]:
        """Score the next token of every hypothesis.

        tokens None: log_probs (N, n_tokens) of every possible next token, and `states` unchanged.
        tokens (N,) int64: log_probs (N,) of just these tokens, and the states after saying them.
        """
        ...

    def finish(self, states: State) -> Tensor:
        """Log-probability (N,) of ending here."""
        ...

    def select(self, states: State, rows: Tensor) -> State:
        """The states of `rows` (N',) int64: beams that survive, in their new order."""
        ...


@dataclass(frozen=True, slots=True)
class Arcs:
    """Ways of saying tokens: A of them for each of M tokens of N hypotheses.

    One token has several arcs where it may end a word or not, or end one of several homophones.
    scores: (N, M, A) float32, weighted; -inf where there is no such arc.
    marks: (N, M, A) int64, what the arc ends: 0 nothing, w + 1 word w; other numbers keep apart what would
        otherwise be the same prefix. Arcs of a state and token that exist have different marks.
    states: (N, M, A, s) int64, the states after the arcs.
    """

    scores: Tensor
    marks: Tensor
    states: Tensor


@dataclass(frozen=True, slots=True)
class Endings:
    """Ways of ending: scores (N, E) float32, -inf where none; marks (N, E) int64 as in `Arcs`."""

    scores: Tensor
    marks: Tensor


class PrefixScorer(Protocol):
    """All that a prefix search asks of language models, lexicon and boosting together.

    States are rows of integers (N, s), so that the search selects and merges them as tensors; what is
    no number (a key-value cache) stays with its owner and the row holds an index. The arcs of a state
    and a token are always the same, in the same order.
    """

    @property
    def n_arcs(self) -> int:
        """A, the most arcs that any token has in any state."""
        ...

    @property
    def n_tokens(self) -> int: ...

    @property
    def gap(self) -> int | None:
        """The token that stands between words; None: there is none.

        Said again, or first of all, it changes nothing: a search takes it as part of the same prefix there,
        and it has no arcs.
        """
        ...

    def start(self, n: int, device: torch.device | None = None) -> Tensor:
        """States (n, s) of hypotheses that have said nothing yet."""
        ...

    def arcs(self, states: Tensor, tokens: Tensor) -> Arcs:
        """Arcs of tokens (N, M) int64 after states (N, s)."""
        ...

    def endings(self, states: Tensor) -> Endings:
        """Endings of states (N, s); an unfinished word is completed or has no ending."""
        ...


class HistoryScorer(Protocol):
    """Scores whole word histories, to replace what was added for their words during the search."""

    def adjustments(self, histories: Sequence[tuple[str, ...]], *, final: bool) -> list[float]:
        """What to add to the score of hypotheses that have said these words, in place of earlier values.

        final: the hypotheses have ended, so the end of the sentence is scored too.
        """
        ...


class Asked(NamedTuple):
    """A language model that compiled code asks by a call, and the table of what it was asked before.

    found: (2 ** n,) `FOUND`, at the place that the hash of the key (state + 1, id + 1) tells or after it; key
    0 is a free place. address: of a C function (int64 state, int64 id, int64 place) -> int64: the score's
    bits as a float32 in the upper half, the state after it in the lower; id `END` asks for the score of
    ending. It takes Python's lock, and writes to `found` at the free place that the asker came to, or after.
    """

    found: Records
    address: int


class Automaton(NamedTuple):
    """A language model as arrays: weighted arcs between nodes, with back-off; its states are nodes.

    A node without an arc for a token hands over to its parent at the price of its back-off. Node 0 is the
    root, which has every token.
    first: (n_nodes + 1,) where the arcs of each node begin. tokens: (n_arcs,) int32, ascending per node.
    weights (natural logs), targets: (n_arcs,). backoff, parent: (n_nodes,). root_weights, root_targets:
    (n_ids,). ids: (n_tokens,) what the tokens of whoever asks are called here. ends: (n_nodes,) score of
    ending there. silent: an id that is said silently before each of the tokens `begins` (n_tokens,) bool;
    None: before none. asked: where arcs come from a call instead; the root's then tell the most that each
    token can score, and there are no others.
    """

    first: Ints
    tokens: SmallInts
    weights: Floats
    targets: Ints
    backoff: Floats
    parent: Ints
    root_weights: Floats
    root_targets: Ints
    ids: Ints
    ends: Floats
    silent: int | None = None
    begins: Bools | None = None
    asked: Asked | None = None


@runtime_checkable
class AutomatonModel(Protocol):
    """A language model that a compiled search can follow by itself."""

    def automaton(self) -> Automaton | None:
        """The model as arrays, on the CPU; None where it has no such form."""
        ...


@runtime_checkable
class DeviceModel(Protocol):
    """Says whether it answers by operations on tensors of the device alone, whose shapes follow from those of
    what is asked: then a CUDA graph can hold them. Models that do not say are taken to leave the device.
    """

    @property
    def stays_on_device(self) -> bool: ...


def stays_on_device(model: object) -> bool:
    """See `DeviceModel`."""
    return isinstance(model, DeviceModel) and model.stays_on_device


MODEL = np.dtype(
    [
        ("base", np.int64),
        ("weight", np.float32),
        ("address", np.int64),
        ("found_first", np.int64),
        ("found_size", np.int64),
    ]
)
FOUND = np.dtype([("key", np.int64), ("score", np.float32), ("target", np.int32)])
END = -1
"""In place of a token's id: that nothing more is said."""
NODE = np.dtype([("first", np.int64), ("parent", np.int32), ("backoff", np.float32)])
ARC = np.dtype([("token", np.int32), ("target", np.int32), ("weight", np.float32)])
ROOT_ARC = np.dtype([("id", np.int32), ("target", np.int32), ("weight", np.float32), ("is_begun", np.bool_)])
LEXICON_NODE = np.dtype(
    [
        ("first", np.int32),
        ("first_word", np.int32),
        ("n_words", np.int32),
        ("ahead", np.float32),
        ("inside", np.float32),
        ("ending", np.float32),
    ]
)
CHILD = np.dtype([("token", np.int32), ("target", np.int32)])


class FlatModels(NamedTuple):
    """The automata of M models over the same tokens, their nodes and arcs in a row; see `Automaton`.

    models: (M,) `MODEL`, the first node of each and its factor; for those that are asked (`Asked`) the
    address, else 0, and where their part of `found` begins. nodes: (n_nodes + 1,) `NODE`; parents and
    targets are counted per model. arcs: (n_arcs,) `ARC`, by the model's ids. roots: (M, n_tokens + 1)
    `ROOT_ARC`, with the model's id of every token and whether the silent one, the last, comes before it.
    bounds: (n_tokens,), the most that each token scores in any state, all models together. ends: (n_nodes,),
    weighted, what ending at each node scores. found: `FOUND` of the models that are asked.
    """

    models: Records
    nodes: Records
    arcs: Records
    roots: Records
    bounds: Floats
    ends: Floats
    found: Records


class FlatLexicon(NamedTuple):
    """A token tree of words as arrays; n_homophones is 0 where there is no lexicon.

    nodes: (n_nodes + 1,) `LEXICON_NODE`: where its children and the words that end there begin, how many
    those are, its look-ahead, and the most that a step can gain that ends no word, and that ends one.
    children: (n_children,) `CHILD`, ascending by token per node. words: the words that end at nodes.
    word_scores: (n_words,). unknown: the unknown word, -1 where there is none. separator: -1 where words
    follow each other without one. n_homophones: the most words of one spelling. may_begin, may_go_on:
    (n_tokens,) bool, tokens that an unknown word may begin with, and go on with, where there is no separator.
    """

    nodes: Records
    children: Records
    words: Ints
    word_scores: Floats
    unknown: int
    separator: int
    n_homophones: int
    may_begin: Bools
    may_go_on: Bools


class FlatScorer(NamedTuple):
    """A `PrefixScorer` as arrays: states are the lexicon's node if there is one, then those of the models
    over words, then those of the models over tokens.

    bound: no token scores more, word ends and look-ahead aside.
    """

    n_arcs: int
    lexicon: FlatLexicon
    words: FlatModels
    tokens: FlatModels
    bound: float


def silent_scorer(n_tokens: int) -> FlatScorer:
    """A scorer that allows everything and adds nothing."""
    lexicon = FlatLexicon(
        nodes=np.zeros(1, LEXICON_NODE),
        children=np.zeros(0, CHILD),
        words=np.zeros(0, np.int64),
        word_scores=np.zeros(0, np.float32),
        unknown=-1,
        separator=-1,
        n_homophones=0,
        may_begin=np.zeros(n_tokens, np.bool_),
        may_go_on=np.zeros(n_tokens, np.bool_),
    )
    models = FlatModels(
        models=np.zeros(0, MODEL),
        nodes=np.zeros(1, NODE),
        arcs=np.zeros(0, ARC),
        roots=np.zeros((0, n_tokens + 1), ROOT_ARC),
        bounds=np.zeros(n_tokens, np.float32),
        ends=np.zeros(0, np.float32),
        found=np.zeros(0, FOUND),
    )
    return FlatScorer(1, lexicon, models, models, 0.0)


@runtime_checkable
class FlatPrefixScorer(Protocol):
    """A `PrefixScorer` that a compiled search can ask without a call."""

    def flat(self) -> FlatScorer | None:
        """The scorer as arrays; None where a part of it has no such form."""
        ...
