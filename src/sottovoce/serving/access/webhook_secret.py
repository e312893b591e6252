"""The secrets that sign what is told to the addresses of jobs. Knows no web framework."""

from __future__ import annotations

import base64

from sottovoce.errors import OptionError
from sottovoce.text.files import read_text

PREFIX = "whsec_"
MIN_SECRET_BYTES = 16
EXPECTED = f"expected a secret of {MIN_SECRET_BYTES} bytes or more, as text or as base64 behind {PREFIX}"


def read_secret(path: str) -> bytes:
    """Read a secret from a file. Raises: OptionError."""
    where = f"--webhook-secret-file '{path}'"
    return secret_of(where, read_text(path, EXPECTED.removeprefix("expected "), name=where).strip())


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
