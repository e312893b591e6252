"""The end of a step of AlignAtt: statistics of attention, frontiers and the likeliest tokens of all rows.

Addresses as in the package's face.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int32, c_void_p

from sottovoce_kernels._library import check, library

__all__ = ["N_COLUMNS", "AlignAtt", "end_step", "mean_of_medians"]

N_COLUMNS = 9
"""Of a row, int32: where its first new token is in the attention, and the logits of its newest; its entries
of the state before and afterwards; frames of audio; new tokens; how many of these count for the entry of
`kept` that follows, or -1; and a token that may not follow, or -1.
"""


class AlignAtt(ctypes.Structure):
    """The arguments, arrays by address and float32 unless said otherwise.

    rows: (n_rows, N_COLUMNS). attention: (n_heads, n_tokens, longest). state: entries (2, n_heads, width),
    means and sums of squared deviations of n_state (n_entries,) tokens. scratch: as many entries as rows.
    kept: entries of kept_width frames, of n_kept tokens. logits: (n, n_logits), changed; of these the first
    n_text may follow, without those that are forbidden, (n_forbidden,) int32. spread: added to the deviation,
    times uniform attention. Written: frames (n_rows,) int32, to which the newest tokens attend most; best
    (n_rows, n_best) natural log-probabilities, best first; tokens (n_rows, n_best) int32.
    """

    _fields_ = (
        *((name, c_int32) for name in ("n_rows", "n_heads", "n_tokens", "longest", "width", "kept_width")),
        *((name, c_int32) for name in ("n_logits", "n_text", "n_forbidden", "n_best", "n_threads")),
        ("spread", c_double),
        *((name, c_void_p) for name in ("rows", "attention", "state", "n_state", "scratch", "kept")),
        *((name, c_void_p) for name in ("n_kept", "logits", "forbidden", "frames", "best", "tokens")),
    )


def end_step(given: AlignAtt) -> None:
    """Compute the end of a step; a row's numbers do not depend on the other rows."""
    check(library.sv_alignatt_end(ctypes.byref(given)))


def mean_of_medians(scores: int, shape: tuple[int, int, int], out: int, n_threads: int = 1) -> None:
    """Write the mean over heads (n_tokens, n_frames) of the running medians of seven frames, mirrored at both
    ends, of scores (n_heads, n_tokens, n_frames) of this shape.
    """
    check(library.sv_mean_of_medians(scores, *shape, out, n_threads))
