"""A model of processes that die, in a module that loads no PyTorch, so that they start soon."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from sottovoce.errors import AudioError, OptionError
from sottovoce.types import Segment, Transcript


class MortalModel:
    """Says the name of a file; "deadly" ends its process, "once" does so at first, "bad" is no recording."""

    name = "mortal"
    beam_size = 1

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def transcribe_files(
        self, sources: Iterable[str], *, language: object = None, **_: object
    ) -> Iterator[tuple[str, Transcript | Exception]]:
        if language == "xx":
            raise OptionError("language 'xx': expected another one")
        for source in sources:
            name = Path(source).name
            if name == "deadly" or (name == "once" and not (self._folder / "died").exists()):
                (self._folder / "died").touch()
                os._exit(1)
            if name == "bad":
                yield source, AudioError("bad: expected a recording")
            else:
                yield source, Transcript((Segment(0, 0.0, 1.0, name, "en"),), "en", 1.0, self.name)
