"""Cutting text into some of a vocabulary's pieces only.

A small model may have learnt a few hundred of Whisper's 50 000 text tokens, and writes every word with
those. A prompt has to be cut in the same way: any other token is a row that was never trained. Which
rows were is told by the checkpoint (`trained_tokens`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BYTE_COST = 1.01
"""A single byte costs a little more than a longer piece, so that ties go to the longer one."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Bytes of each piece that may be used, and its id; holds all 256 single bytes."""

    ids: Mapping[bytes, int]
    longest: int

    @classmethod
    def of(cls, ids: Mapping[bytes, int]) -> Pieces:
        """Pieces from a mapping of bytes to ids, which must hold every single byte."""
        assert all(bytes([value]) in ids for value in range(256))
        return cls(dict(ids), max(map(len, ids)))

    def cut(self, text: bytes) -> list[int]:
        """The fewest pieces that spell `text`: a shortest path over its bytes."""
        costs, starts = [0.0], [0]
        for end in range(1, len(text) + 1):
            possible = [s for s in range(max(0, end - self.longest), end) if text[s:end] in self.ids]
            cost, start = min((costs[s] + (BYTE_COST if end - s == 1 else 1.0), s) for s in possible)
            costs.append(cost)
            starts.append(start)
        tokens, end = [], len(text)
        while end:
            tokens.append(self.ids[text[starts[end] : end]])
            end = starts[end]
        return tokens[::-1]
