"""Secrets that pass on a session: a page gets one from its own server, and needs no API key.

They are known to this process alone, and open nothing but `/v1/realtime`.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

from sottovoce.serving.faults import busy
from sottovoce.serving.realtime_wish import RealtimeWish

MOST_SECRETS = 10_000
RETRY_S = 10.0


@dataclass(frozen=True, slots=True)
class _Known:
    wish: RealtimeWish
    until: float


class Secrets:
    """Those that were given out and are still good, by their hashes."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}

    def make(self, wish: RealtimeWish, seconds: float) -> tuple[str, int]:
        """A new secret, and when it ends (seconds since 1970).

        Raises: ApiError 429 where too many are out.
        """
        now = time.time()
        self._known = {digest: known for digest, known in self._known.items() if known.until > now}
        if len(self._known) >= MOST_SECRETS:
            raise busy(f"{MOST_SECRETS} client secrets are out: try again later", retry_s=RETRY_S)
        secret = f"ek_{secrets.token_urlsafe(32)}"
        self._known[digest_of(secret)] = _Known(wish, now + seconds)
        return secret, int(now + seconds)

    def wish_of(self, keys: Iterable[str]) -> RealtimeWish | None:
        """The session of the first key that is a good secret."""
        for key in keys:
            known = self._known.get(digest_of(key))
            if known is not None and known.until > time.time():
                return known.wish
        return None


def digest_of(secret: str) -> bytes:
    """What is kept of a secret: looking it up tells nothing of others by its time."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
