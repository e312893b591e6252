"""KenLM's probing tables, searched in place. The caller keeps the file mapped."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_int64, c_uint32, c_void_p

from sottovoce_kernels._library import Native, _declare, library

_declare("sv_probing_new", c_void_p, c_void_p, c_int64, c_void_p, c_int, c_uint32)
_declare("sv_probing_free", None, c_void_p)
_declare("sv_probing_begin", c_int64, c_void_p, c_uint32)
_declare("sv_probing_follow", None, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p)


class Table(ctypes.Structure):
    """The n-grams of one order: see `ProbingTable` of ctc/probing.h."""

    _fields_ = (("start", c_void_p), ("n_buckets", c_int64), ("entry", c_int64))


class Probing(Native, free="sv_probing_free"):
    """A model of unigrams and tables of orders 2, 3, …; state 0 is the empty context.

    unigrams: address of entries of unigram_size bytes. end: the id whose score is that of ending.
    """

    def __init__(self, unigrams: int, unigram_size: int, tables: Sequence[Table], end: int) -> None:
        given = (Table * len(tables))(*tables)
        super().__init__(library.sv_probing_new(unigrams, unigram_size, given, len(tables), end))

    def begin(self, word: int) -> int:
        """Return the state after one word."""
        return int(library.sv_probing_begin(self.address, word))

    def follow(self, n: int, states: int, words: int, scores: int, following: int) -> None:
        """Look up n words after n states; see `trie.Trie.follow`."""
        library.sv_probing_follow(self.address, n, states, words, scores, following)
