"""Plan the windows of a long recording, and which words are aligned in which.

Some words have a time already, from a rough transcript or from one that is refined; the others are placed
between them by their letters. Windows are cut in the longest pauses between words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sottovoce.alignment.given_text import Unit

LONGEST_S = 29.0
MOST_TOKENS = 400
EARLIEST_CUT_S = 12.0
PAUSE_S = 1.5
"""A window ends at the first pause of this length between words that were heard."""
SURE_MARGIN_S, UNSURE_MARGIN_S = 1.0, 3.0
"""Of audio beyond the outer words of a window: where they were heard, and where they were not."""
SECONDS_A_LETTER = 0.07

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class AlignWindow:
    """Units [first, end) are said between two times, in seconds."""

    first: int
    end: int
    start_s: float
    end_s: float


def guess_times(units: Sequence[Unit], found: Sequence[Span | None], duration_s: float) -> list[Span]:
    """Guess the times of every unit: those found stay, the others share the time between them by their
    letters.
    """
    sure = [i for i, span in enumerate(found) if span is not None]
    spans = [span or (0.0, 0.0) for span in found]
    for before, after in pairwise([-1, *sure, len(units)]):
        missing = range(before + 1, after)
        if not missing:
            continue
        letters = [len(units[i].letters) for i in missing]
        wanted = sum(letters) * SECONDS_A_LETTER
        start = spans[before][1] if before >= 0 else 0.0
        end = spans[after][0] if after < len(units) else duration_s
        if before < 0 and after < len(units):
            start = max(start, end - wanted)
        elif after == len(units) and before >= 0:
            end = min(end, start + wanted)
        scale = max(0.0, end - start) / max(1, sum(letters))
        at = start
        for i, n_letters in zip(missing, letters, strict=True):
            spans[i] = (at, at + n_letters * scale)
            at = spans[i][1]
    return spans


def plan_windows(units: Sequence[Unit], found: Sequence[Span | None], duration_s: float) -> list[AlignWindow]:
    """Plan windows that hold all units in order, each at most `LONGEST_S` and `MOST_TOKENS` long."""
    spans = guess_times(units, found, duration_s)
    windows: list[AlignWindow] = []
    first, floor = 0, 0.0
    while first < len(units):
        end = _end(units, spans, first)
        end = next((i for i in range(first + 1, end) if _is_pause(spans, found, i)), end)
        start_s = max(floor, spans[first][0] - _margin(found, first))
        if end == len(units):
            end_s = min(duration_s, spans[-1][1] + _margin(found, end - 1))
        else:
            end_s = min(spans[end - 1][1] + _margin(found, end - 1), _middle(spans, end))
        end_s = min(duration_s, max(end_s, start_s + 0.1), start_s + LONGEST_S + 1.0)
        windows.append(AlignWindow(first, end, start_s, end_s))
        first, floor = end, end_s if end < len(units) else floor
    return windows


def _margin(found: Sequence[Span | None], unit: int) -> float:
    return UNSURE_MARGIN_S if found[unit] is None else SURE_MARGIN_S


def _is_pause(spans: Sequence[Span], found: Sequence[Span | None], unit: int) -> bool:
    """Tell whether there is a pause before a unit, between two words that were both found."""
    both_found = found[unit - 1] is not None and found[unit] is not None
    return both_found and spans[unit][0] - spans[unit - 1][1] >= PAUSE_S


def _middle(spans: Sequence[Span], unit: int) -> float:
    return (spans[unit - 1][1] + spans[unit][0]) / 2


def _end(units: Sequence[Unit], spans: Sequence[Span], first: int) -> int:
    """Find the end of a window that begins with unit `first`: all that fits, or the longest pause in it."""
    start = spans[first][0]
    n_tokens, last = 0, first
    limit = LONGEST_S - SURE_MARGIN_S
    while last < len(units) and (last == first or spans[last][1] <= start + limit):
        n_tokens += len(units[last].tokens)
        if n_tokens > MOST_TOKENS and last > first:
            break
        last += 1
    if last == len(units):
        return last
    begins_word = [
        i for i in range(first + 1, last + 1) if units[i].text.startswith(" ") or not _is_sign(units[i])
    ]
    late = [i for i in begins_word if spans[i][0] >= start + EARLIEST_CUT_S] or begins_word or [last]
    return max(late, key=lambda i: (round(spans[i][0] - spans[i - 1][1], 2), i))


def _is_sign(unit: Unit) -> bool:
    return not unit.letters
