"""What a person should know of a recording beside its text, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sottovoce.cli.progress_bar import clock
from sottovoce.text.languages import language_name
from sottovoce.types import Span

MOST_PLACES = 5
"""Places that are named in a line."""


def second_notes(model: str, seconds: float, duration_s: float | None) -> Iterator[str]:
    """Write a line where a second model read; seconds: how much of the recording."""
    if seconds > 0.0:
        share = f" of {duration_s:.1f} s ({seconds / duration_s:.0%})" if duration_s else ""
        yield f"{seconds:.1f} s{share} were in doubt and read by {model}"


def unread_notes(unread: Sequence[Span] | None) -> Iterator[str]:
    """Write a line where speech has no words; unread: its stretches, None where nobody looked for them."""
    if not unread:
        return
    total = sum(end - start for start, end in unread)
    places = ", ".join(f"{clock(start)}-{clock(end)}" for start, end in unread[:MOST_PLACES])
    more = ", …" if len(unread) > MOST_PLACES else ""
    yield f"no words found in {total:.1f} s of speech: {places}{more}"


def outside_notes(outside: Mapping[str, float], listed: Sequence[str]) -> Iterator[str]:
    """Write a line for each language that was spoken and is not listed; outside: its seconds, by code."""
    for code, seconds in outside.items():
        name, among = language_name(code), ", ".join(listed)
        yield f"{seconds:.1f} s sound like {name} ({code}), which is not among {among}"
