"""Rare words of documents: those that stand there several times, and are no single piece of Whisper's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sottovoce.errors import LanguageModelError, MissingExtraError
from sottovoce.formats.document_words import document_text, rare_words, vocabulary_from, with_vocabulary
from sottovoce.text.tokenizer import Tokenizer

NOTES = (
    "Saoirse Kowalczyk spoke about quorlix. QUORLIX, said Kowalczyk, and quorlix: the cluster is the "
    "cluster. Saoirse's talk was on the Pembrolizumab trial; see https://pembro.example/Pembrolizumab and "
    "`Pembrolizumab`. However, however. 1234 1234 xy1 xy1 B12345 B12345"
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.for_model(51865)


def made_pdf(path: Path, lines: list[str]) -> Path:
    """A PDF of one page with these lines, written by hand."""
    shown = " ".join(f"({line}) Tj 0 -14 Td" for line in lines)
    content = f"BT /F1 12 Tf 72 720 Td {shown} ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        "/Resources << /Font << /F1 5 0 R >> >> >>",
        f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    text, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(text))
        text += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    text += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    begin = text.index("xref")
    text += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{begin}\n%%EOF\n"
    path.write_bytes(text.encode("latin-1"))
    return path


def test_words_are_taken_by_count_and_general_rarity(tokenizer: Tokenizer) -> None:
    """Common words stay out, however often; so do numbers, addresses and code, and what is said once."""
    assert rare_words([NOTES], tokenizer) == ["quorlix", "Saoirse", "Kowalczyk"]
    assert rare_words([NOTES, "Pembrolizumab"], tokenizer)[-1] == "Pembrolizumab"
    assert rare_words([NOTES], tokenizer, most=1) == ["quorlix"]


def test_a_word_is_written_as_it_mostly_is(tokenizer: Tokenizer) -> None:
    assert rare_words(["KOWALCZYK Kowalczyk Kowalczyk"], tokenizer) == ["Kowalczyk"]


def test_documents_of_every_kind(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx", reason="the extra documents is not installed")
    expected = ["quorlix", "Saoirse", "Kowalczyk"]
    (tmp_path / "notes.md").write_text(NOTES)
    document = docx.Document()
    for part in NOTES.split(". "):
        document.add_paragraph(part + ".")
    document.add_table(1, 1).cell(0, 0).text = "Zyzzyva Zyzzyva"
    document.save(str(tmp_path / "notes.docx"))
    assert vocabulary_from(tmp_path / "notes.md") == expected
    assert vocabulary_from([tmp_path / "notes.docx"]) == [*expected, "Zyzzyva"]


def test_a_pdf_is_read(tmp_path: Path) -> None:
    pytest.importorskip("pypdf", reason="the extra documents is not installed")
    path = made_pdf(tmp_path / "notes.pdf", ["Saoirse met Kowal-", "czyk. Kowalczyk met", "Saoirse."])
    assert vocabulary_from(path) == ["Saoirse", "Kowalczyk"]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(LanguageModelError, match=r"notes\.pdf: expected a document"):
        document_text(path)


@pytest.mark.parametrize(("name", "module"), [("a.pdf", "pypdf"), ("a.DOCX", "docx")])
def test_a_missing_package_is_named(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text("")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{module}.*pip install .*\[documents\]"):
        document_text(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "no such file; expected a document"),
        ("odd.txt", b"\xff\xfe\x00", "expected a document"),
        ("notes.docx", b"no archive", "expected a document"),
        ("plain.txt", b"the garden is the garden", "expected words that are rare elsewhere"),
    ],
)
def test_a_document_that_cannot_be_used_is_named(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(LanguageModelError, match=f"{name}: {message}"):
        vocabulary_from(tmp_path / name)


def test_a_list_has_the_last_word_on_weights(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(NOTES)
    listed = {"Saoirse": 5.0, "Anna": 1.0}
    phrases = with_vocabulary(listed, [tmp_path / "notes.txt"], default_weight=2.0)
    assert phrases == {"quorlix": 2.0, "Kowalczyk": 2.0, "Saoirse": 5.0, "Anna": 1.0}
    assert with_vocabulary(listed, [], default_weight=2.0) is listed
