"""Manifests: lists of recordings as JSON lines.

A line has `file` (relative to the list), and optionally `id`, `language` (a code or name, a list of
{start, end, language}, or codes without times, which are not used), `text`, `segments` (a list of
{start, end, language, text}).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sottovoce.errors import ManifestError
from sottovoce.text.files import from_json, read_lines
from sottovoce.text.languages import language_code


@dataclass(frozen=True, slots=True)
class LabelledSpan:
    start_s: float
    end_s: float
    language: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    id: str
    path: Path
    language: str | None
    text: str
    spans: tuple[LabelledSpan, ...]

    @property
    def languages(self) -> tuple[str, ...]:
        if self.language is not None:
            return (self.language,)
        return tuple(dict.fromkeys(span.language for span in self.spans))


class _Span(msgspec.Struct):
    start: float
    end: float
    language: str
    text: str | None = None


class _Line(msgspec.Struct):
    file: str
    id: str | int | None = None
    language: str | list[_Span | str] | None = None
    text: str | None = None
    segments: list[_Span] | None = None


def read_manifest(path: str | Path) -> list[ManifestEntry]:
    """Read a manifest.

    Raises: ManifestError naming the line.
    """
    entries = [
        _entry(from_json(_Line, line, f"{path}, line {number}", ManifestError), Path(path).parent)
        for number, line in enumerate(read_lines(path, "a list of recordings", ManifestError), 1)
        if line.strip()
    ]
    if not entries:
        raise ManifestError(f"{path}: expected at least one recording, got none")
    return entries


def _entry(line: _Line, folder: Path) -> ManifestEntry:
    code = line.language if isinstance(line.language, str) else None
    spans: Sequence[_Span | str] = line.segments or (line.language if isinstance(line.language, list) else [])
    return ManifestEntry(
        id=line.file if line.id is None else str(line.id),
        path=folder / line.file,
        language=code and (language_code(code) or code),
        text=line.text or "",
        spans=tuple(
            LabelledSpan(span.start, span.end, language_code(span.language) or span.language, span.text or "")
            for span in spans
            if isinstance(span, _Span)
        ),
    )
