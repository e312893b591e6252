"""Checks of connections: the name of the server, the origin of a page, the key.

Sockets are checked like requests, since browsers let any page open one. A client secret is a signed session
of an API with the time when it ends: nothing is stored, and every process with the key can check it.
A page gets a secret from its own server and needs no API key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import socket
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import TypedDict
from urllib.parse import urlsplit

from sottovoce.formats.document import Json
from sottovoce.serving.access.api_keys import ApiKey, KeyRing
from sottovoce.serving.api import Auth
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.settings import ServerSettings

SECRET_PREFIX = "ek_"
MAX_CHARACTERS = 4096
"""Of a secret, which is sent in a header."""
KEY_BYTES = 32
PRIVATE_NAMES = (".local", ".localhost", ".internal", ".home.arpa", ".lan")
"""Endings of names that cannot be registered. Sources: RFC 6761, RFC 6762, RFC 8375; ICANN 2024
(.internal)."""


class SecretContent(TypedDict):
    """The signed content of a client secret. until: seconds since 1970. maker: name of the key."""

    until: float
    session: Mapping[str, Json]
    maker: str
    nonce: str


class ClientSecrets:
    """Makes and checks client secrets. key: shared by the processes of a server; None: a new one."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(KEY_BYTES)

    def make(self, session: Mapping[str, Json], seconds: float, maker: str = "") -> tuple[str, int]:
        """Make a secret of a session; return it and when it ends (seconds since 1970).

        maker: name of the key that makes it.
        Raises: ApiError 400 for a session with too many words.
        """
        until = time.time() + seconds
        content: SecretContent = {
            "until": until,
            "session": session,
            "maker": maker,
            "nonce": secrets.token_hex(8),
        }
        body = _text(zlib.compress(json.dumps(content).encode(), 9))
        secret = f"{SECRET_PREFIX}{body}.{self._signature(body)}"
        if len(secret) > MAX_CHARACTERS:
            message = (
                f"session: expected less text than makes a secret of {MAX_CHARACTERS} characters, got more"
            )
            raise ApiError(message, param="session", code="session_too_large")
        return secret, int(until)

    def session_of(self, keys: Iterable[str]) -> Mapping[str, Json] | None:
        """Return the session of the first valid secret, or None."""
        content = next(self._contents(keys), None)
        return None if content is None else content["session"]

    def maker_of(self, keys: Iterable[str]) -> str | None:
        """Return the name of the key that made the first valid secret ("": a key without one), or None."""
        content = next(self._contents(keys), None)
        return None if content is None else content["maker"]

    def _contents(self, keys: Iterable[str]) -> Iterator[SecretContent]:
        return (content for key in keys if (content := self._opened(key)) is not None)

    def _opened(self, key: str) -> SecretContent | None:
        body, dot, signature = key.removeprefix(SECRET_PREFIX).partition(".")
        if not (key.startswith(SECRET_PREFIX) and dot and key.isascii() and len(key) <= MAX_CHARACTERS):
            return None
        if not hmac.compare_digest(signature, self._signature(body)):
            return None
        packed = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        content: SecretContent = json.loads(zlib.decompress(packed))
        return content if content["until"] > time.time() else None

    def _signature(self, body: str) -> str:
        return _text(hmac.digest(self._key, body.encode(), hashlib.sha256))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class AccessControl:
    """Checks connections before any endpoint runs."""

    def __init__(self, settings: ServerSettings, secrets: ClientSecrets, keys: KeyRing) -> None:
        self._settings = settings
        self._secrets = secrets
        self._keys = keys
        self._hosts = frozenset(settings.hosts)

    def refusal(self, auth: Auth, headers: Mapping[str, str], given: Sequence[str]) -> ApiError | None:
        """Return the reason to refuse a connection, or None.

        auth: of the route. headers: names in lower case. given: the keys and secrets of the client.
        """
        host = headers.get("host", "")
        if auth is not Auth.PROBE and not self.is_own_name(host_without_port(host)):
            expected = ", ".join(sorted(self._hosts)) or "an address, or a name of a network of one's own"
            message = f"host '{host[:100]}': expected {expected} (see --allow-host)"
            return ApiError(message, status=421, code="unknown_host")
        origin = headers.get("origin")
        if origin is not None and not self.is_allowed(origin, host):
            message = f"origin '{origin[:100]}': expected this server's own page (see --allow-origin)"
            return ApiError(message, status=403, kind="permission_error", code="origin_not_allowed")
        if auth.is_open or self._keys.is_empty or self.key_of(auth, given) is not None:
            return None
        got = "an unknown one" if given else "none"
        message = f"API key: expected 'Authorization: Bearer KEY', got {got}"
        return ApiError(message, status=401, kind="authentication_error", code="invalid_api_key")

    def key_of(self, auth: Auth, given: Sequence[str]) -> ApiKey | None:
        """Return the key of a connection or of its client secret; None without a valid one."""
        if auth.is_open:
            return None
        found = self._keys.find(given)
        if found is None and auth is Auth.KEY_OR_CLIENT_SECRET:
            maker = self._secrets.maker_of(given)
            return None if maker is None else self._keys.by_name(maker)
        return found

    def is_own_name(self, name: str) -> bool:
        """Return whether this server may be called by a name.

        Without names in the settings and without keys, public names are refused: a page elsewhere could point
        its own name to this server and send requests with the rights of its pages.
        """
        if self._hosts:
            return name in self._hosts or "*" in self._hosts
        return not self._keys.is_empty or is_private_name(name)

    def is_allowed(self, origin: str, host: str) -> bool:
        try:
            is_own = urlsplit(origin).netloc == host != ""
        except ValueError:  # brackets that do not close
            is_own = False
        return is_own or origin in self._settings.access.origins


def is_private_name(name: str) -> bool:
    """Return whether a host is an address, this machine, or a name that public DNS does not have."""
    if name in ("", socket.gethostname().lower()):
        return True
    try:
        ip_address(name)
    except ValueError:
        return "." not in name.rstrip(".") or name.rstrip(".").endswith(PRIVATE_NAMES)
    return True


def host_without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
