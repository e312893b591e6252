"""Manifests: read as they are, refused by the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.errors import ManifestError
from sottovoce.evaluation.manifest import read_manifest


def write(folder: Path, text: str) -> Path:
    path = folder / "manifest.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_one_language_and_several(tmp_path: Path) -> None:
    lines = (
        '{"id": "a", "file": "a.wav", "language": "en", "text": "hi", "speaker": null}\n\n'
        '{"file": "sub/b.wav", "language": [{"start": 0, "end": 1.5, "language": "en"},'
        ' {"start": 1.5, "end": 3, "language": "de"}]}\n'
        '{"file": "c.wav", "language": ["en", "de"]}\n'
    )
    single, several, untimed = read_manifest(write(tmp_path, lines))
    assert (single.id, single.language, single.text, single.languages) == ("a", "en", "hi", ("en",))
    assert single.path == tmp_path / "a.wav"
    assert (several.id, several.language, several.languages) == ("sub/b.wav", None, ("en", "de"))
    assert several.spans[1].start_s == 1.5
    assert (untimed.language, untimed.spans) == (None, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one"),
        ("nonsense", "line 1: expected JSON, got something else"),
        ('{"file": "a.wav"}\n[]', "line 2: expected an object, got a list"),
        ('{"id": 3}', "line 1: expected a field 'file'"),
        ('{"file": 3}', "line 1: file: expected text, got a whole number"),
        ('{"file": "a", "segments": [{"start": 0}]}', r"segments\[0\]: expected a field 'end'"),
        ('{"file": "a", "language": 3}', "language: expected text or a list or null, got a whole number"),
        ('{"file": "a", "segments": ["en"]}', r"segments\[0\]: expected an object, got text"),
    ],
)
def test_others_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read_manifest(write(tmp_path, text))


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"no\.jsonl"):
        read_manifest(tmp_path / "no.jsonl")
