"""The recording of a page: its address, or the file itself."""

from __future__ import annotations

import base64
import mimetypes
import os
from pathlib import Path, PurePath
from urllib.parse import quote

from sottovoce.errors import OptionError, cause_of

LARGEST_EMBEDDED_BYTES = 200_000_000
"""Browsers read longer `data:` addresses badly or not at all."""


def audio_link(recording: Path, folder: Path) -> str:
    """Build the address of a recording from a page in `folder`: relative, so that both can be moved
    together.
    """
    here, there = os.path.realpath(folder), os.path.realpath(recording)
    try:
        relative = os.path.relpath(there, here)
    except ValueError:  # another drive
        return Path(there).as_uri()
    return quote(os.fsencode(PurePath(relative).as_posix()))


def embedded_audio(recording: Path) -> str:
    """Encode a recording as a `data:` address.

    Raises: OptionError when it cannot be read or is too long for that.
    """
    try:
        size = recording.stat().st_size
        if size > LARGEST_EMBEDDED_BYTES:
            limit = LARGEST_EMBEDDED_BYTES // 1_000_000
            raise OptionError(
                f"input '{recording}': expected at most {limit} MB to put into a page, "
                f"got {size / 1e6:.0f} MB"
            )
        data = recording.read_bytes()
    except OSError as error:
        raise OptionError(f"input '{recording}': cannot be put into a page ({cause_of(error)})") from None
    kind = mimetypes.guess_type(recording.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
