"""Checks of connections: the name of the server, the origin of a page, the key.

Sockets are checked like requests, since browsers let any page open one. A client secret is a signed session
of `/v1/realtime` with the time when it ends: nothing is stored, and every process with the key can check it.
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
from typing import Any
from urllib.parse import urlsplit

from sottovoce.serving.access.api_keys import ApiKey, KeyRing
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.settings import ServerSettings

SECRET_PREFIX = "ek_"
MAX_CHARACTERS = 4096
"""Of a secret: it has to go through a header."""
KEY_BYTES = 32
OPEN_PATHS = frozenset({"/", "/captions", "/read", "/health", "/ready", "/favicon.ico"})
PRIVATE_NAMES = (".local", ".localhost", ".internal", ".home.arpa", ".lan")
"""Endings of names that cannot be registered. Sources: RFC 6761, RFC 6762, RFC 8375; ICANN 2024
(.internal)."""
PROBED_PATHS = frozenset({"/health", "/ready"})
"""Asked by what watches the server, by whatever name or address; they tell how busy it is."""
CAPTIONS_PATH = "/v1/captions"
OPEN_FOLDERS = ("/static/", f"{CAPTIONS_PATH}/")
"""The page's parts; and captions that are shared, which have a secret of their own."""
SECRETS_PATH = "/v1/realtime"
"""The only path that the secrets of clients open."""
SUBPROTOCOL = "sottovoce"
LISTEN_PATHS = frozenset({"/v1/listen", "/v2/listen"})
"""Of Deepgram's API, with its errors."""
LISTEN_SUBPROTOCOLS = ("token", "bearer")
"""Of Deepgram's clients in browsers; the next one is the key."""
KEY_PREFIXES = ("sottovoce-key.", "openai-insecure-api-key.")
"""Of subprotocols that carry a key: a page cannot set headers of a socket."""


class ClientSecrets:
    """Makes and checks client secrets. key: shared by the processes of a server; None: a new one."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(KEY_BYTES)

    def make(self, session: Mapping[str, Any], seconds: float, maker: str = "") -> tuple[str, int]:
        """Make a secret of a session; return it and when it ends (seconds since 1970).

        maker: name of the key that makes it.
        Raises: ApiError 400 for a session with too many words.
        """
        until = time.time() + seconds
        content = {
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

    def session_of(self, keys: Iterable[str]) -> Mapping[str, Any] | None:
        """Return the session of the first valid secret, or None."""
        content = next(self._contents(keys), None)
        return None if content is None else content["session"]

    def maker_of(self, keys: Iterable[str]) -> str | None:
        """Return the name of the key that made the first valid secret ("": a key without one), or None."""
        content = next(self._contents(keys), None)
        return None if content is None else str(content["maker"])

    def _contents(self, keys: Iterable[str]) -> Iterator[Mapping[str, Any]]:
        return (content for key in keys if (content := self._opened(key)) is not None)

    def _opened(self, key: str) -> Mapping[str, Any] | None:
        body, dot, signature = key.removeprefix(SECRET_PREFIX).partition(".")
        if not (key.startswith(SECRET_PREFIX) and dot and key.isascii() and len(key) <= MAX_CHARACTERS):
            return None
        if not hmac.compare_digest(signature, self._signature(body)):
            return None
        packed = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        content: Mapping[str, Any] = json.loads(zlib.decompress(packed))
        return content if content["until"] > time.time() else None

    def _signature(self, body: str) -> str:
        return _text(hmac.digest(self._key, body.encode(), hashlib.sha256))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class AccessControl:
    """Checks connections before any endpoint runs."""

    def __init__(
        self, settings: ServerSettings, secrets: ClientSecrets | None = None, keys: KeyRing | None = None
    ) -> None:
        self._settings = settings
        self._secrets = secrets or ClientSecrets()
        self._keys = keys or KeyRing(settings.access)
        self._hosts = frozenset(settings.hosts)

    def refusal(
        self, path: str, method: str, headers: Mapping[str, str], subprotocols: Sequence[str] = ()
    ) -> ApiError | None:
        """Return the reason to refuse a connection, or None.

        method: of HTTP; "GET" for a socket. headers: names in lower case.
        """
        host = headers.get("host", "")
        if path not in PROBED_PATHS and not self.is_own_name(host_without_port(host)):
            expected = ", ".join(sorted(self._hosts)) or "an address, or a name of a network of one's own"
            message = f"host '{host[:100]}': expected {expected} (see --allow-host)"
            return ApiError(message, status=421, code="unknown_host")
        origin = headers.get("origin")
        if origin is not None and not self.is_allowed(origin, host):
            message = f"origin '{origin[:100]}': expected this server's own page (see --allow-origin)"
            return ApiError(message, status=403, kind="permission_error", code="origin_not_allowed")
        if is_open(path) or self._keys.is_empty or self.key_of(path, headers, subprotocols) is not None:
            return None
        what = "an unknown one" if given_keys(headers.get("authorization", ""), subprotocols) else "none"
        message = f"API key: expected 'Authorization: Bearer KEY', got {what}"
        return ApiError(message, status=401, kind="authentication_error", code="invalid_api_key")

    def key_of(
        self, path: str, headers: Mapping[str, str], subprotocols: Sequence[str] = ()
    ) -> ApiKey | None:
        """Return the key of a connection or of its client secret; None without a valid one."""
        if is_open(path):
            return None
        given = given_keys(headers.get("authorization", ""), subprotocols)
        found = self._keys.find(given)
        if found is None and path == SECRETS_PATH:
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


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


def given_keys(authorization: str, subprotocols: Iterable[str]) -> list[str]:
    scheme, _, token = authorization.partition(" ")
    keys = [token.strip()] if scheme.lower() in ("bearer", "token") and token.strip() else []
    offered = list(subprotocols)
    if len(offered) > 1 and offered[0] in LISTEN_SUBPROTOCOLS:
        keys.append(offered[1])
    for prefix in KEY_PREFIXES:
        keys += [word[len(prefix) :] for word in offered if word.startswith(prefix)]
    return keys


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
