"""Words to boost, from documents: words that are frequent there and rare elsewhere.

A word that is a single Whisper token, in lower case or capitalised, is common.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sottovoce.errors import LanguageModelError, expecting, needs
from sottovoce.lm.boosting import Hotwords, listed_phrases
from sottovoce.text.files import read_text
from sottovoce.text.normalize import composed
from sottovoce.text.tokenizer import Tokenizer

MOST_WORDS, LEAST_COUNT, LEAST_LETTERS = 200, 2, 3
_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_ADDRESS = re.compile(r"\w+://\S+|\S+@\S+|```.*?```|`[^`\n]+`", re.DOTALL)
_POSSESSIVE = re.compile(r"['’]s$")
DOCUMENT = "a document (PDF, DOCX or text)"
DAMAGE = (OSError, ValueError, KeyError)


def vocabulary_from(
    paths: str | Path | Sequence[str | Path], tokenizer: Tokenizer | None = None
) -> list[str]:
    """Return the rare words of documents (PDF, DOCX, or text), most frequent first.

    tokenizer: None: of multilingual models. Raises: LanguageModelError for an unreadable document, or one
    without such a word; MissingExtraError.
    """
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    texts = [composed(document_text(path)) for path in named]
    words = rare_words(texts, tokenizer or Tokenizer.for_model(51865))  # of multilingual models
    if not words:
        raise LanguageModelError(
            f"{', '.join(map(str, named))}: expected words that are rare elsewhere and stand there at least "
            f"{LEAST_COUNT} times, got none"
        )
    return words


def with_vocabulary(
    hotwords: Hotwords | None,
    documents: Sequence[str | Path],
    *,
    default_weight: float,
    tokenizer: Tokenizer | None = None,
) -> Hotwords | None:
    """Add the rare words of documents to hotwords, with the default weight unless listed.

    Raises: as `vocabulary_from`.
    """
    if not documents:
        return hotwords
    rare = dict.fromkeys(vocabulary_from(documents, tokenizer), default_weight)
    listed = listed_phrases(hotwords, default_weight=default_weight)
    return rare | {phrase.text: phrase.weight for phrase in listed}


def rare_words(texts: Iterable[str], tokenizer: Tokenizer, *, most: int = MOST_WORDS) -> list[str]:
    counts: Counter[str] = Counter()
    forms: dict[str, Counter[str]] = {}
    for text in texts:
        for match in _WORD.finditer(_ADDRESS.sub(" ", text)):
            word = _POSSESSIVE.sub("", match[0])
            counts[word.casefold()] += 1
            forms.setdefault(word.casefold(), Counter())[word] += 1
    often = [word for word, count in counts.most_common() if count >= LEAST_COUNT]
    chosen = (forms[word].most_common(1)[0][0] for word in often if _is_word(word))
    return [form for form in chosen if _is_rare(form, tokenizer)][:most]


def document_text(path: str | Path) -> str:
    """Read the text of a document by its extension: .pdf, .docx, else text. Raises: as `vocabulary_from`."""
    path = Path(path)
    if path.suffix.lower() == ".pdf":
        return _pdf_text(path)
    if path.suffix.lower() == ".docx":
        return _docx_text(path)
    return read_text(path, DOCUMENT, LanguageModelError)


def _pdf_text(path: Path) -> str:
    with needs("pypdf", "documents", f"the document {path}"):
        from pypdf import PdfReader
        from pypdf.errors import PyPdfError
    with expecting(path, DOCUMENT, LanguageModelError, (*DAMAGE, PyPdfError)):
        pages = [page.extract_text() for page in PdfReader(path).pages]
    return re.sub(r"(?<=\w)-\n(?=\w)", "", "\n".join(pages))


def _docx_text(path: Path) -> str:
    with needs("python-docx", "documents", f"the document {path}"):
        import docx
        from docx.opc.exceptions import PackageNotFoundError
    with expecting(path, DOCUMENT, LanguageModelError, (*DAMAGE, PackageNotFoundError)):
        document = docx.Document(str(path))
        cells = (cell.text for table in document.tables for row in table.rows for cell in row.cells)
        return "\n".join([*(paragraph.text for paragraph in document.paragraphs), *cells])


def _is_word(word: str) -> bool:
    n_letters = sum(map(str.isalpha, word))
    return n_letters >= LEAST_LETTERS and 2 * n_letters >= len(word)


def _is_rare(word: str, tokenizer: Tokenizer) -> bool:
    forms = {word, word.lower(), word.capitalize()}
    return all(len(tokenizer.encode(f" {form}")) > 1 for form in forms)
