"""The secret that signs what is told to the addresses of jobs. Knows no web framework."""

from __future__ import annotations

import base64
from pathlib import Path

from sottovoce.errors import OptionError, cause_of

PREFIX = "whsec_"
MIN_SECRET_BYTES = 16


def read_secret(path: str) -> bytes:
    """Read a secret from a file: text, or base64 behind "whsec_". Raises: OptionError."""
    expected = f"--webhook-secret-file '{path}': expected a secret of {MIN_SECRET_BYTES} bytes or more"
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
        secret = text.encode()
        if text.startswith(PREFIX):
            secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (OSError, ValueError) as error:
        cause = cause_of(error) if isinstance(error, OSError) else "no text or base64"
        raise OptionError(f"{expected}, got '{cause}'") from error
    if len(secret) < MIN_SECRET_BYTES:
        raise OptionError(f"{expected}, got {len(secret)}")
    return secret
