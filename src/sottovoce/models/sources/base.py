"""Options of where weights come from, and the error of a source that has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sottovoce.errors import OptionError
from sottovoce.models.sources.cache import cache_folder
from sottovoce.models.sources.index_table import INDEX_MODELS, IndexModel

Source = Literal["hub", "index"]


class SourceError(Exception):
    """A source does not provide a model, for the reason in the message; another source may.

    has_answered: it was reached and does not have the model; False: it could not be reached.
    """

    def __init__(self, reason: str, *, has_answered: bool = False) -> None:
        super().__init__(reason)
        self.has_answered = has_answered


@dataclass(frozen=True, slots=True)
class Sources:
    """Where weights may come from.

    model_dir: the folder that fetched models are in, instead of the usual caches. revision: branch, tag
    or commit of a hub repository. local_only: nothing is fetched. only: one source; None asks the hub
    and, where it cannot be reached, the package index. table: what the package index has.

    Raises: OptionError for another source than "hub" and "index", and a revision of the index.
    """

    model_dir: Path | None = None
    revision: str | None = None
    local_only: bool = False
    only: Source | None = None
    table: Mapping[str, IndexModel] = field(default_factory=lambda: INDEX_MODELS)

    def __post_init__(self) -> None:
        if self.only not in (None, "hub", "index"):
            raise OptionError(f"source {self.only!r} given, expected 'hub' or 'index'")
        if self.only == "index" and self.revision is not None:
            raise OptionError(
                f"revision {self.revision!r} given, the package index has none, expected the hub"
            )

    def in_index(self, name: str) -> IndexModel | None:
        """Return the package index's model of this name; None without one, or if only the hub may be used."""
        return None if self.only == "hub" or self.revision is not None else self.table.get(name)

    def folder(self, name: str) -> Path:
        """Return the folder of a model of the package index."""
        return (self.model_dir or cache_folder()) / name
