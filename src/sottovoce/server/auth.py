"""Authentication and access: API keys with limits, client secrets, host names and origins.

Sockets are checked like requests, since browsers let any page open one. A client secret is a signed session
with an expiry that every process with the key can check. Pages get one from their own server.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import socket
import time
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

from sottovoce.errors import OptionError
from sottovoce.formats.document import Json
from sottovoce.server.api import Auth
from sottovoce.server.errors import ApiError, too_many_requests
from sottovoce.server.settings import KEY, Access, ServerSettings, secret_of
from sottovoce.server.telemetry import Metrics
from sottovoce.text.files import read_toml
from sottovoce.text.filters import Replacements

logger = logging.getLogger(__name__)
MOST_KEYS = 1_000
"""Of a file: every request is compared with all of them."""
MOST_REQUESTS, MOST_SESSIONS = 100_000, 1_000_000
KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,50}")
SHA256 = re.compile(r"[0-9a-f]{64}")
SETTINGS = ("key", "sha256", "requests-per-minute", "sessions", "webhook-secret", "replace")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key and its limits. name: "" for keys without one. digest: its SHA-256. webhook_secret: signs
    webhooks of its jobs. replacements: in all its requests, where these have none of a phrase.

    None: the limits and the secret of the server.
    """

    name: str
    digest: bytes = field(repr=False)
    requests_per_minute: int | None = None
    sessions: int | None = None
    webhook_secret: bytes | None = field(default=None, repr=False)
    replacements: Replacements | None = field(default=None, repr=False)


class KeyRing:
    """The keys of a server, from its settings and a file that may change."""

    def __init__(self, access: Access) -> None:
        self._unnamed = tuple(ApiKey("", digest_of(key)) for key in access.api_keys)
        self._path = access.keys_file
        self._version = file_version(self._path)
        self._named = {} if self._path is None else read_keys(self._path)
        self._is_stale = False

    @property
    def is_empty(self) -> bool:
        return not (self._unnamed or self._named)

    @property
    def has_file(self) -> bool:
        return self._path is not None

    def find(self, given: Iterable[str]) -> ApiKey | None:
        """Return the first valid key, in constant time, or None."""
        keys = (*self._unnamed, *self._named.values())
        matching: ApiKey | None = None
        for candidate in given:
            digest = digest_of(candidate)
            for key in keys:
                if hmac.compare_digest(digest, key.digest):
                    matching = matching or key
        return matching

    def by_name(self, name: str) -> ApiKey | None:
        """Return the key of a name ("": an unnamed one), or None."""
        return self._named.get(name) if name else ApiKey("", b"")

    def mark_stale(self) -> None:
        self._is_stale = True

    def refresh(self) -> None:
        """Read the file again if it has changed; an invalid file is logged and changes nothing."""
        if self._path is None:
            return
        version = file_version(self._path)
        if version == self._version and not self._is_stale:
            return
        self._version, self._is_stale = version, False
        try:
            self._named = read_keys(self._path)
        except OptionError as error:
            logger.error("the keys stay as they were", extra={"cause": str(error)})
        else:
            logger.info("keys were read again", extra={"keys": len(self._named)})


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def file_version(path: str | None) -> tuple[int, int, int] | None:
    try:
        status = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


def read_keys(path: str) -> Mapping[str, ApiKey]:
    """Read keys by name from a TOML file, one table each. Raises: OptionError, also for one without keys."""
    where = f"--keys '{path}'"
    document = read_toml(path, "a TOML file of keys", name=where)
    if not 1 <= len(document) <= MOST_KEYS:
        raise OptionError(f"{where}: expected 1 to {MOST_KEYS} keys, got {len(document)}")
    keys = {name: read_key(f"{where}, [{name[:50]}]", name, table) for name, table in document.items()}
    if len({key.digest for key in keys.values()}) < len(keys):
        raise OptionError(f"{where}: expected a key of its own for every name, got one twice")
    return keys


def read_key(where: str, name: str, table: object) -> ApiKey:
    if not (KEY_NAME.fullmatch(name) and isinstance(table, dict)):
        raise OptionError(f"{where}: expected a table, named by 1 to 50 of A-Z a-z 0-9 . _ -")
    given = {str(setting).replace("_", "-"): value for setting, value in table.items()}
    unknown = next((setting for setting in given if setting not in SETTINGS), None)
    if unknown is not None:
        raise OptionError(f"{where}: expected {', '.join(SETTINGS)}, got '{unknown[:50]}'")
    digest = read_digest(where, given)
    limits: dict[str, int | None] = {}
    for setting, most in (("requests-per-minute", MOST_REQUESTS), ("sessions", MOST_SESSIONS)):
        value = given.get(setting)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            expected = f"{where} {setting}: expected a whole number from 1 to {most}"
            raise OptionError(f"{expected}, got '{str(value)[:50]}'")
        limits[setting.replace("-", "_")] = value
    secret = given.get("webhook-secret")
    signed = None if secret is None else secret_of(f"{where} webhook-secret", str(secret))
    return ApiKey(name, digest, **limits, webhook_secret=signed, replacements=read_rules(where, given))


def read_rules(where: str, table: Mapping[str, object]) -> Replacements | None:
    """Read `replace`: a table of texts by phrases, or the name of a file of rules. Raises: OptionError."""
    rules = table.get("replace")
    if isinstance(rules, str):
        return Replacements.of(Path(rules))
    if rules is None or (isinstance(rules, dict) and all(isinstance(text, str) for text in rules.values())):
        return Replacements.of(rules)
    raise OptionError(f"{where} replace: expected a table of texts, or a file of rules")


def read_digest(where: str, table: Mapping[str, object]) -> bytes:
    key, sha256 = table.get("key"), table.get("sha256")
    if (key is None) == (sha256 is None):
        raise OptionError(f"{where}: expected either key or sha256")
    if isinstance(sha256, str) and SHA256.fullmatch(sha256.lower()):
        return bytes.fromhex(sha256)
    if isinstance(key, str) and KEY.fullmatch(key):
        return digest_of(key)
    if key is None:
        raise OptionError(f"{where} sha256: expected 64 hexadecimal digits")
    raise OptionError(f"{where} key: expected 8 to 200 of the characters A-Z a-z 0-9 . _ ~ -")


class KeyLimits:
    """Counts requests and sessions of named keys. Raises: ApiError 429 above a limit."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._requests_s: defaultdict[str, deque[float]] = defaultdict(deque)
        self._n_sessions: Counter[str] = Counter()

    def take_request(self, key: ApiKey | None) -> None:
        if key is None or not key.name:
            return
        self._metrics.key_requests.labels(key.name).inc()
        if key.requests_per_minute is None:
            return
        past_s, now_s = self._requests_s[key.name], self._clock()
        while past_s and past_s[0] <= now_s - 60.0:
            past_s.popleft()
        if len(past_s) >= key.requests_per_minute:
            what = f"expected at most {key.requests_per_minute} requests a minute"
            raise self._refused(
                key, "requests", too_many_requests(f"API key: {what}", past_s[0] + 60.0 - now_s)
            )
        past_s.append(now_s)

    @contextmanager
    def session(self, key: ApiKey | None) -> Iterator[None]:
        if key is None or not key.name:
            yield
            return
        if key.sessions is not None and self._n_sessions[key.name] >= key.sessions:
            what = f"API key: expected at most {key.sessions} live sessions at a time"
            raise self._refused(key, "sessions", too_many_requests(what))
        self._n_sessions[key.name] += 1
        gauge = self._metrics.key_sessions.labels(key.name)
        gauge.inc()
        try:
            yield
        finally:
            self._n_sessions[key.name] -= 1
            gauge.dec()

    def count_audio(self, key: ApiKey | None, audio_s: float) -> None:
        if key is not None and key.name:
            self._metrics.key_audio_seconds.labels(key.name).inc(audio_s)

    def _refused(self, key: ApiKey, limit: str, fault: ApiError) -> ApiError:
        self._metrics.key_refused.labels(key.name, limit).inc()
        return fault


SECRET_PREFIX = "ek_"
MAX_CHARACTERS = 4096
"""Of a secret, which is sent in a header."""
PRIVATE_NAMES = (".local", ".localhost", ".internal", ".home.arpa", ".lan")
"""Endings that cannot be registered. Sources: RFC 6761, RFC 6762, RFC 8375; ICANN 2024 (.internal)."""


class SecretContent(TypedDict):
    """until: seconds since 1970. maker: name of the key that made it."""

    until: float
    session: Mapping[str, Json]
    maker: str
    nonce: str


class ClientSecrets:
    """Makes and checks client secrets. key: shared by all processes of a server; None: a new one."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes()

    def make(self, session: Mapping[str, Json], seconds: float, maker: str = "") -> tuple[str, int]:
        """Return a secret of a session and its end (seconds since 1970). Raises: ApiError 400 for too much
        text.
        """
        until = time.time() + seconds
        nonce = secrets.token_hex(8)
        content: SecretContent = {"until": until, "session": session, "maker": maker, "nonce": nonce}
        body = _text(zlib.compress(json.dumps(content).encode(), 9))
        secret = f"{SECRET_PREFIX}{body}.{self._signature(body)}"
        if len(secret) > MAX_CHARACTERS:
            message = f"session: expected less text, for a secret of at most {MAX_CHARACTERS} characters"
            raise ApiError(message, param="session", code="session_too_large")
        return secret, int(until)

    def first_valid(self, keys: Iterable[str]) -> SecretContent | None:
        return next((content for key in keys if (content := self._opened(key)) is not None), None)

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
    def __init__(self, settings: ServerSettings, secrets: ClientSecrets, keys: KeyRing) -> None:
        self._settings = settings
        self._secrets = secrets
        self._keys = keys
        self._hosts = frozenset(settings.hosts)

    def admit(self, auth: Auth, headers: Mapping[str, str], given: Sequence[str]) -> ApiKey | None:
        """Return the key of a connection, or None where none is needed. Raises: ApiError 401, 403, 421.

        headers: by lower-case name. given: keys and secrets of the client.
        """
        host = headers.get("host", "")
        if auth is not Auth.PROBE and not self.is_own_name(host_without_port(host)):
            expected = ", ".join(sorted(self._hosts)) or "an address, or a name of a network of one's own"
            message = f"host '{host[:100]}': expected {expected} (see --allow-host)"
            raise ApiError(message, status=421, code="unknown_host")
        origin = headers.get("origin")
        if origin is not None and not self.is_allowed(origin, host):
            message = f"origin '{origin[:100]}': expected this server's own page (see --allow-origin)"
            raise ApiError(message, status=403, kind="permission_error", code="origin_not_allowed")
        if auth.is_open or self._keys.is_empty:
            return None
        key = self._keys.find(given)
        if key is None and auth is Auth.KEY_OR_CLIENT_SECRET:
            content = self._secrets.first_valid(given)
            key = None if content is None else self._keys.by_name(content["maker"])
        if key is None:
            got = "an unknown one" if given else "none"
            message = f"API key: expected 'Authorization: Bearer KEY', got {got}"
            raise ApiError(message, status=401, kind="authentication_error", code="invalid_api_key")
        return key

    def is_own_name(self, name: str) -> bool:
        """Return whether the server may be called by a name.

        Without configured names and keys, public names are refused: a foreign page could point its own name
        at this server.
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
    """Whether a host is an address, this machine, or a name outside public DNS."""
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
