"""Manifests: lists of recordings as JSON lines.

A line has `file` (relative to the list), and optionally `id`, `language` (a code or name, or a list of
{start, end, language}), `text`, `segments` (a list of {start, end, language, text}).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sottovoce.errors import ManifestError
from sottovoce.text.files import read_lines
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


def read_manifest(path: str | Path) -> list[ManifestEntry]:
    """Read a manifest.

    Raises: ManifestError naming the line.
    """
    entries = [
        _entry(line, Path(path).parent, f"{path}, line {number}")
        for number, line in enumerate(read_lines(path, "a list of recordings", ManifestError), 1)
        if line.strip()
    ]
    if not entries:
        raise ManifestError(f"{path}: expected at least one recording, got none")
    return entries


def _entry(line: str, folder: Path, where: str) -> ManifestEntry:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ManifestError(f"{where}: expected a JSON object ({error})") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("file"), str):
        raise ManifestError(f"{where}: expected a JSON object with a `file`")
    language = fields.get("language")
    spans = fields.get("segments") or (language if isinstance(language, list) else [])
    return ManifestEntry(
        id=str(fields.get("id", fields["file"])),
        path=folder / fields["file"],
        language=(language_code(language) or language) if isinstance(language, str) else None,
        text=str(fields.get("text") or ""),
        spans=tuple(_span(span, where) for span in spans if isinstance(span, dict)),
    )


def _span(fields: dict[str, object], where: str) -> LabelledSpan:
    start, end, language = fields.get("start"), fields.get("end"), fields.get("language")
    if (
        not isinstance(start, int | float)
        or not isinstance(end, int | float)
        or not isinstance(language, str)
    ):
        raise ManifestError(f"{where}: expected spans with start, end and language, got {fields}")
    return LabelledSpan(
        float(start), float(end), language_code(language) or language, str(fields.get("text") or "")
    )
