"""N-gram models of packed bits, searched in place: many look-ups in one call.

The layout is that of `sottovoce.lm.ngram`. The caller keeps the arrays alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p

from sottovoce_kernels._library import library

library.sv_trie_follow.restype = None
library.sv_trie_follow.argtypes = (c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p)


class Records(ctypes.Structure):
    """The records of one order: addresses and sizes as in `TrieRecords` of ctc/trie.h."""

    _fields_ = (
        ("start", c_int64),
        ("n", c_int64),
        ("words", c_void_p),
        ("high", c_void_p),
        ("n_high", c_int64),
        ("weights", c_void_p),
        ("backoffs", c_void_p),
        ("bits", c_int64 * 5),
    )


class Trie(ctypes.Structure):
    """A trie as `Trie` of ctc/trie.h reads it; `ctypes.addressof` is its address."""

    _fields_ = (
        ("order", c_int64),
        ("n_words", c_int64),
        ("end", c_int64),
        ("root_weights", c_void_p),
        ("root_backoff", c_void_p),
        ("root_first", c_void_p),
        ("bounds", c_void_p),
        ("records", ctypes.POINTER(Records)),
    )

    def __init__(self, n_words: int, end: int, roots: Sequence[int], records: Sequence[Records]) -> None:
        """roots: addresses of weights, back-offs, first places and bounds."""
        super().__init__(len(records) + 1, n_words, end, *roots, (Records * len(records))(*records))

    def follow(self, n: int, states: int, words: int, scores: int, following: int) -> None:
        """Look up n words after n states.

        Addresses of int64 states and words, float32 scores, and int64 next states.
        """
        library.sv_trie_follow(ctypes.byref(self), n, states, words, scores, following)
