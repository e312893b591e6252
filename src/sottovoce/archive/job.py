"""What is left of an archive, and its way into the table: each recording once, whatever happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sottovoce.archive.listing import Item
from sottovoce.archive.results import Results
from sottovoce.archive.rows import Row
from sottovoce.errors import OptionError


def left_to_do(items: Sequence[Item], results: Results, *, again: bool = False) -> list[Item]:
    """The recordings without a row. again: rows with an error are taken out, and done once more."""
    rows = list(results.rows()) if again else []
    good = [row for row in rows if row["error"] is None]
    if len(good) < len(rows):
        results.replace(good)
    done = {str(row["id"]) for row in results.rows()}
    return [item for item in items if item.id not in done]


def write_rows(rows: Iterable[Row], results: Results) -> Iterator[Row]:
    """Put rows into the table as they come, one for each recording; give each once it is there.

    Raises: OptionError before the first one where the table has rows of another model.
    """
    seen: set[str] = set()
    for row in rows:
        if not seen:
            _check_model(row, results)
        name = str(row["id"])
        if name in seen:  # work that was handed out twice: the first one to come back counts
            continue
        seen.add(name)
        results.append(row)
        yield row


def _check_model(row: Row, results: Results) -> None:
    before = next((str(there["model"]) for there in results.rows() if there["model"]), "")
    if before and row["model"] and row["model"] != before:
        raise OptionError(
            f"output: expected rows of the model '{before}', as those that are there; got '{row['model']}'"
        )
