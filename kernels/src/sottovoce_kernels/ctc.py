"""The CTC prefix search over language models and a lexicon in arrays. Addresses as in the package's face.

Integers are 64 bits wide, floats 32, flags bytes. 0 is no address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int, c_int64, c_void_p

from sottovoce_kernels._library import Native, _declare, check, library

__all__ = ["Beams", "Emissions", "LexiconArrays", "ModelArrays", "Scorer", "Settings", "Texts"]


def _fields(numbers: str, addresses: str, floats: str = "") -> list[tuple[str, type]]:
    kinds = ((numbers, c_int64), (addresses, c_void_p), (floats, c_float))
    return [(name, kind) for names, kind in kinds for name in names.split()]


class ModelArrays(ctypes.Structure):
    """A language model as arrays; see `ModelArrays` of `cpp/ctc/scorer.h`."""

    _fields_ = _fields(
        "n_nodes n_ids silent",
        "first keys weights targets backoff parent root_weights root_targets ends ids begins trie probing",
        "weight",
    )


class LexiconArrays(ctypes.Structure):
    """A tree of spellings as arrays; see `LexiconArrays` of `cpp/ctc/scorer.h`."""

    _fields_ = _fields(
        "n_nodes n_words unknown separator n_homophones",
        "keys words first_word n_words_of ahead word_scores may_begin may_go_on",
    )


class Settings(ctypes.Structure):
    """See `SearchSettings` of `cpp/ctc/search.h`."""

    _fields_ = _fields("blank initial_symbol n_labels beam_size n_tokens max_homophones", "", "threshold")


class Beams(ctypes.Structure):
    """The beams of utterances; see `BeamArrays` of `cpp/ctc/search.h`."""

    _fields_ = _fields(
        "n_symbols n_histories",
        "blank token lm adjustment merged length last symbols histories scores",
    )


class Emissions(ctypes.Structure):
    """Log-probabilities (n_rows, n_frames, n_labels), of which lengths (n_rows,) frames count."""

    _fields_ = _fields("n_frames n_labels", "values lengths")


class Texts(ctypes.Structure):
    """Texts (n, stride), of which n_tokens (n,) count, of emissions rows (n,); blanks (n, stride + 1)."""

    _fields_ = _fields("n stride", "tokens n_tokens rows blanks")


A, N = c_void_p, c_int
_declare("sv_ctc_scorer_new", A, N, A, A, N, A, N)
_declare("sv_ctc_scorer_free", None, A)
_declare("sv_ctc_n_endings", N, A)
_declare("sv_ctc_search", N, A, A, A, A, N, N)
_declare("sv_ctc_end", N, A, A, N, A, A)
_declare("sv_ctc_expand", N, A, A, A, N, A, A, A, N)
_declare("sv_ctc_are_plausible", N, A, N)
_declare("sv_ctc_align", N, A, A, A, A, A, A, N)
_declare("sv_ctc_common_cut", N, A, A, c_int64, c_float, N, A)
_declare("sv_ctc_labels", N, A, N, c_float, N, N, N, A)
_declare("sv_ctc_log_add", c_float, c_float, c_float)


class Scorer(Native, free="sv_ctc_scorer_free"):
    """Language models, and a lexicon whose words some of them score; reads arrays of the caller.

    n_tokens: labels. words: models over words. tokens: models over labels.
    """

    def __init__(
        self,
        n_tokens: int,
        lexicon: LexiconArrays | None = None,
        words: Sequence[ModelArrays] = (),
        tokens: Sequence[ModelArrays] = (),
    ) -> None:
        given = [(ModelArrays * len(models))(*models) for models in (words, tokens)]
        of_words, of_tokens = given
        tree = None if lexicon is None else ctypes.byref(lexicon)
        super().__init__(
            library.sv_ctc_scorer_new(n_tokens, tree, of_words, len(words), of_tokens, len(tokens))
        )
        self.n_endings = int(library.sv_ctc_n_endings(self.address))

    def search(
        self, settings: Settings, beams: Beams, emissions: Emissions, n_rows: int, n_threads: int = 1
    ) -> None:
        """Advance the beams of every utterance over its emissions."""
        given = (ctypes.byref(each) for each in (beams, emissions))
        check(library.sv_ctc_search(ctypes.byref(settings), self.address, *given, n_rows, n_threads))

    def end(self, states: int, n: int, scores: int, marks: int) -> None:
        """Score the endings of states (n, s) into scores and marks (n, n_endings)."""
        check(library.sv_ctc_end(self.address, states, n, scores, marks))

    def expand(
        self, start: int, texts: Texts, most: int, scores: int, symbols: int, marks: int, n_threads: int = 1
    ) -> None:
        """Find the `most` best word sequences of texts: scores, marks (n, most), symbols (n, most, stride).

        start: the state (s,) before them.
        """
        found = (scores, symbols, marks)
        check(library.sv_ctc_expand(self.address, start, ctypes.byref(texts), most, *found, n_threads))


def are_plausible(emissions: Emissions, n_rows: int) -> bool:
    """Whether every frame sums to about 1; False for positive values, NaN, and in doubt."""
    return bool(library.sv_ctc_are_plausible(ctypes.byref(emissions), n_rows))


def align(
    emissions: Emissions,
    texts: Texts,
    first: int,
    last: int,
    peak: int,
    score: int,
    n_threads: int = 1,
) -> None:
    """Align texts: first and last frame and highest log-probability (n, stride), score (n,) of the path."""
    given = (ctypes.byref(each) for each in (emissions, texts))
    check(library.sv_ctc_align(*given, first, last, peak, score, n_threads))


def common_cut(
    emissions: Emissions, texts: Texts, n_shared: int, margin: float, *, is_late: bool
) -> tuple[int, int]:
    """Return the frames and tokens before the blank where the paths of all texts meet; zeros without one."""
    cut = (c_int64 * 2)()
    given = (ctypes.byref(each) for each in (emissions, texts))
    check(library.sv_ctc_common_cut(*given, n_shared, margin, is_late, cut))
    return cut[0], cut[1]


def likeliest(frame: int, n: int, least: float, blank: int, most: int, n_others: int) -> tuple[int, ...]:
    """Return the `most` likeliest labels of frame (n,) above `least`, then n_others of the next ones."""
    ids = (c_int64 * n)()
    return tuple(ids[: library.sv_ctc_labels(frame, n, least, blank, most, n_others, ids)])


def log_add(a: float, b: float) -> float:
    """Return log(exp(a) + exp(b)), as the search computes it."""
    return float(library.sv_ctc_log_add(a, b))
