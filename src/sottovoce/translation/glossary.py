"""Names and terms that are always translated in one way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sottovoce.errors import OptionError, cause_of


@dataclass(frozen=True, slots=True)
class Glossary:
    """terms: each with its translation."""

    terms: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, path: str | Path) -> Glossary:
        """Terms of a file: `term = translation` (or with a tab between), one a line; `#` begins a comment.

        Raises: OptionError naming the file and line.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except OSError as error:
            raise OptionError(f"glossary '{path}': cannot be read ({cause_of(error)})") from error
        except UnicodeDecodeError as error:
            raise OptionError(f"glossary '{path}': expected UTF-8, got other bytes") from error
        terms = []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            term, mark, translation = line.partition("\t" if "\t" in line else "=")
            if not (mark and term.strip() and translation.strip()):
                raise OptionError(f"glossary '{path}', line {number}: expected 'term = translation'")
            terms.append((term.strip(), translation.strip()))
        return cls(tuple(terms))

    def of(self, text: str) -> list[tuple[str, str]]:
        """Those of the terms that are in a text, whatever their case."""
        folded = text.casefold()
        return [(term, translation) for term, translation in self.terms if term.casefold() in folded]
