"""Text files are read in one way: with or without a byte order mark, with any line end."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from sottovoce.archive.results import list_recordings
from sottovoce.cli.align import read_text as text_to_align
from sottovoce.cli.ctc import read_emissions
from sottovoce.ctc.labels import labels_of
from sottovoce.ctc.options import read_priors
from sottovoce.errors import InputError, LanguageModelError
from sottovoce.evaluation.manifest import read_manifest
from sottovoce.formats.document_words import document_text
from sottovoce.formats.files import load_transcript
from sottovoce.lm.arpa import read_arpa
from sottovoce.lm.boosting import read_phrases
from sottovoce.lm.grammar import Grammar
from sottovoce.lm.lexicon import read_lexicon
from sottovoce.models.checkpoint.huggingface import read_json
from sottovoce.server.auth import read_keys
from sottovoce.text.files import decode_text, read_lines, read_text, read_toml
from sottovoce.translation.chat import Glossary

ARPA = "\\data\\\nngram 1=2\n\n\\1-grams:\n-1\té\n-0.5\t</s>\n\n\\end\\\n"
SRT = "1\n00:00:01,000 --> 00:00:02,000\nGrüße\n"
KEY = '[press]\nkey = "a-secret-of-the-press"\n'

Reader = Callable[[Path], object]
READERS: dict[str, tuple[str, str, Reader]] = {
    "labels": ("labels.txt", "-\né\n|\n", labels_of),
    "labels of JSON": ("labels.json", '["-", "é"]', labels_of),
    "lexicon": ("words.txt", "é é\nb b\n", lambda path: read_lexicon(path, ["-", "é", "b"])),
    "hotwords": ("hotwords.txt", "[drinks] 9\ncafé\n", lambda path: [
        phrase[:2] for phrase in read_phrases(path, default_weight=1.0)
    ]),
    "n-grams": ("words.arpa", ARPA, lambda path: read_arpa(path).words),
    "grammar": ("answers.gbnf", 'root ::= "é"\n', lambda path: Grammar.read(path).text),
    "document": ("notes.md", "Grüße\nan alle\n", document_text),
    "text to align": ("talk.txt", "Grüße\n", lambda path: text_to_align(str(path))),
    "subtitles": ("talk.srt", SRT, load_transcript),
    "glossary": ("terms.txt", "Grüße = greetings\n", Glossary.read),
    "manifest": ("all.jsonl", '{"file": "é.wav", "text": "a\u2028b"}\n', read_manifest),
    "list of recordings": ("all.txt", "é.wav\nb.wav\n", list_recordings),
    "configuration": ("serve.toml", 'port = 1\nhost = "é"\n', lambda path: read_toml(path, "a TOML file")),
    "table of keys": ("keys.toml", KEY, lambda path: read_keys(str(path))),
    "priors": ("priors.txt", "0.5\n0.25\n", read_priors),
    "emissions": ("one.csv", "0.5,0.5\n1.0,0.0\n", lambda path: [
        matrix.values.tolist() for matrix in read_emissions(path)
    ]),
    "configuration of a model": ("config.json", '{"name": "é"}', read_json),
}  # fmt: skip
"""Of each kind of text file: a name, what the file holds, and who reads it."""


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("kind", READERS)
def test_a_byte_order_mark_and_windows_line_ends_change_nothing(
    kind: str, encoding: str, tmp_path: Path
) -> None:
    name, text, read = READERS[kind]
    path = tmp_path / name
    path.write_bytes(text.encode())
    expected = read(path)
    path.write_bytes(text.replace("\n", "\r\n").encode(encoding))
    assert read(path) == expected


@pytest.mark.parametrize("kind", READERS)
def test_another_encoding_is_an_error_that_names_the_file_and_the_line(kind: str, tmp_path: Path) -> None:
    name, text, read = READERS[kind]
    path = tmp_path / name
    path.write_bytes(b"\xe9\n" + text.encode())
    with pytest.raises(InputError, match="0xe9, which is not UTF-8, in line 1") as caught:
        read(path)
    assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_zipped_n_grams_are_text_as_well(tmp_path: Path) -> None:
    path = tmp_path / "words.arpa.gz"
    path.write_bytes(gzip.compress(ARPA.encode("utf-8-sig")))
    assert list(read_arpa(path).words) == ["é", "</s>"]
    path.write_bytes(gzip.compress(ARPA.encode())[:-20])
    with pytest.raises(LanguageModelError, match=r"words\.arpa\.gz"):
        read_arpa(path)


def test_lines_end_with_their_ends_alone(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes("a\r\nb\rc\n\x85\u2028\x0b\n".encode())
    assert read_lines(path, "lines") == ["a", "b", "c", "\x85\u2028\x0b"]
    assert read_text(path, "a text") == "a\nb\nc\n\x85\u2028\x0b\n"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"a\nb\xc3", "the byte 0xc3, which is not UTF-8, in line 2"),
        (b"\xed\xa0\x80", "the byte 0xed, which is not UTF-8, in line 1"),
        ("ab".encode("utf-16-le"), "a null character in line 1"),
        ("ab".encode("utf-16")[:-1], "bytes that are not UTF-16"),
    ],
)
def test_other_encodings_are_refused(data: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        decode_text(data)


def test_standard_input_is_text_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    given = io.BytesIO("Grüße\r\n".encode("utf-16"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(given, encoding="latin-1"))
    assert text_to_align("-") == "Grüße\n"
