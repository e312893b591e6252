"""The secrets that sign what is told to the addresses of jobs. Knows no web framework."""

from __future__ import annotations

import base64
from pathlib import Path

from sottovoce.errors import OptionError, cause_of

PREFIX = "whsec_"
MIN_SECRET_BYTES = 16
EXPECTED = f"expected a secret of {MIN_SECRET_BYTES} bytes or more, as text or as base64 behind {PREFIX}"


def read_secret(path: str) -> bytes:
    """Read a secret from a file. Raises: OptionError."""
    where = f"--webhook-secret-file '{path}'"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        cause = cause_of(error) if isinstance(error, OSError) else "no text"
        raise OptionError(f"{where}: {EXPECTED}, got '{cause}'") from error
    return secret_of(where, text.strip())


def secret_of(where: str, text: str) -> bytes:
    """Read a secret: text, or base64 behind "whsec_". Raises: OptionError."""
    secret = text.encode()
    if text.startswith(PREFIX):
        try:
            secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
        except ValueError as error:
            raise OptionError(f"{where}: {EXPECTED}, got no base64") from error
    if len(secret) < MIN_SECRET_BYTES:
        raise OptionError(f"{where}: {EXPECTED}, got {len(secret)}")
    return secret
