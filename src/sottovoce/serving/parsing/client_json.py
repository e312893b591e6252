"""What clients write, read without trust: JSON, and characters that no answer could hold."""

from __future__ import annotations

import json


def read_json(text: str | bytes) -> object:
    """Read JSON; None where it is none, or nested deeper than anything of use.

    Half a character is U+FFFD: JSON can spell it ("\\ud800" alone), and nothing that is sent can hold it.
    """
    try:
        return _whole(json.loads(text))
    except (ValueError, RecursionError):
        return None


def whole_text(text: str) -> str:
    """Return a text in which halves of characters (lone surrogates) are U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _whole(value: object) -> object:
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, dict):
        return {whole_text(name): _whole(one) for name, one in value.items()}
    return value
