"""Tables of weights as the kernels read them, in memory of the caller. Addresses as in the package's face."""

from __future__ import annotations

from sottovoce_kernels._library import check, library

__all__ = ["pack", "packed_layout", "packed_size"]


def packed_layout() -> int:
    """The version of the places and numbers of packed tables."""
    return int(library.sv_packed_layout())


def packed_size(shape: tuple[int, int], *, in_words: bool = False) -> int:
    """Bytes of a packed table (n_out, n_in), in words of sixteen bits or in eight."""
    return int(library.sv_packed_size(*shape, 1 + in_words))


def pack(
    rows: int,
    bias: int,
    shape: tuple[int, int],
    span: tuple[int, int],
    memory: int,
    *,
    in_words: bool = False,
) -> None:
    """Pack some rows of a table of this shape into its memory, the same in every instruction set.

    rows: address of (n, n_in) float32. bias: of (n,) float32, or 0. span: the rows [start, end). memory: of
    packed_size bytes from a cache line on, which were zeros.
    """
    first, end = span
    check(library.sv_pack(rows, bias or None, *shape, 1 + in_words, first, end - first, memory))
