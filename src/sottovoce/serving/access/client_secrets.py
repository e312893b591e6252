"""ClientSecrets that pass on a session: a page gets one from its own server, and needs no API key.

A secret is the session that it opens and when it ends, signed: nothing is kept, and every process with the
key knows those of the others. It opens nothing but `/v1/realtime`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sottovoce.serving.parsing.faults import ApiError

PREFIX = "ek_"
MAX_CHARACTERS = 4096
"""Of a secret: it has to go through a header."""
KEY_BYTES = 32


class ClientSecrets:
    """Makes secrets, and knows them again. key: shared by the processes of a server; None: a new one."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(KEY_BYTES)

    def make(self, session: Mapping[str, Any], seconds: float, maker: str = "") -> tuple[str, int]:
        """Make a secret of a session, as JSON; return it, and when it ends (seconds since 1970).

        maker: name of the key that makes it.

        Raises: ApiError 400 for a session with too many words to go into one.
        """
        until = time.time() + seconds
        content = {
            "until": until,
            "session": session,
            "maker": maker,
            "nonce": secrets.token_hex(8),
        }
        body = _text(zlib.compress(json.dumps(content).encode(), 9))
        secret = f"{PREFIX}{body}.{self._signature(body)}"
        if len(secret) > MAX_CHARACTERS:
            message = (
                f"session: expected less text than makes a secret of {MAX_CHARACTERS} characters, got more"
            )
            raise ApiError(message, param="session", code="session_too_large")
        return secret, int(until)

    def session_of(self, keys: Iterable[str]) -> Mapping[str, Any] | None:
        """Return the session of the first key that is a good secret; None: none is."""
        content = next(self._contents(keys), None)
        return None if content is None else content["session"]

    def maker_of(self, keys: Iterable[str]) -> str | None:
        """Return the name of the key that made the first good secret, "" for one without; None: none is."""
        content = next(self._contents(keys), None)
        return None if content is None else str(content["maker"])

    def _contents(self, keys: Iterable[str]) -> Iterator[Mapping[str, Any]]:
        """Yield what is in those that are good secrets."""
        return (content for key in keys if (content := self._opened(key)) is not None)

    def _opened(self, key: str) -> Mapping[str, Any] | None:
        body, dot, signature = key.removeprefix(PREFIX).partition(".")
        if not (key.startswith(PREFIX) and dot and key.isascii() and len(key) <= MAX_CHARACTERS):
            return None
        if not hmac.compare_digest(signature, self._signature(body)):
            return None
        packed = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        content: Mapping[str, Any] = json.loads(zlib.decompress(packed))
        return content if content["until"] > time.time() else None

    def _signature(self, body: str) -> str:
        return _text(hmac.digest(self._key, body.encode(), hashlib.sha256))


def _text(data: bytes) -> str:
    """Spell bytes in characters that a header and a subprotocol may hold."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
