"""Who may come in: the name the server is called by, the page that asks, the key.

Sockets are looked at as requests are: browsers let any page open one, and tell only where it comes from.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from sottovoce.serving.client_secrets import ClientSecrets
from sottovoce.serving.faults import ApiError
from sottovoce.serving.settings import ServerSettings

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/favicon.ico"})
OPEN_FOLDER = "/static/"
SECRETS_PATH = "/v1/realtime"
"""What the secrets of clients open, and nothing else."""
SUBPROTOCOL = "sottovoce"
LISTEN_PATH = "/v1/listen"
LISTEN_SUBPROTOCOLS = ("token", "bearer")
"""Of Deepgram's clients in browsers; the next one is the key."""
KEY_PREFIXES = ("sottovoce-key.", "openai-insecure-api-key.")
"""Of subprotocols that carry a key: a page cannot set headers of a socket."""


class AccessControl:
    """Checks connections before anything else sees them."""

    def __init__(self, settings: ServerSettings, secrets: ClientSecrets | None = None) -> None:
        self._settings = settings
        self._secrets = secrets or ClientSecrets()
        self._keys = [key.encode() for key in settings.access.api_keys]
        self._hosts = frozenset(settings.hosts)

    def refusal(
        self, path: str, method: str, headers: Mapping[str, str], subprotocols: Sequence[str] = ()
    ) -> ApiError | None:
        """Return why a connection may not come in; None: it may.

        method: of HTTP; "GET" for a socket. headers: names in lower case.
        """
        host = headers.get("host", "")
        if self._hosts and host_without_port(host) not in self._hosts:
            message = (
                f"host '{host[:100]}': expected one of {', '.join(sorted(self._hosts))} (see --allow-host)"
            )
            return ApiError(message, status=421, code="unknown_host")
        origin = headers.get("origin")
        if origin is not None and not self.is_allowed(origin, host):
            message = f"origin '{origin[:100]}': expected this server's own page (see --allow-origin)"
            return ApiError(message, status=403, kind="permission_error", code="origin_not_allowed")
        if path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return None
        return self._refused_key(path, headers, subprotocols)

    def is_allowed(self, origin: str, host: str) -> bool:
        """Return whether a page comes from this server, or from where it is allowed to."""
        try:
            is_own = urlsplit(origin).netloc == host != ""
        except ValueError:  # brackets that do not close
            is_own = False
        return is_own or origin in self._settings.access.origins

    def _refused_key(
        self, path: str, headers: Mapping[str, str], subprotocols: Sequence[str]
    ) -> ApiError | None:
        if not self._keys:
            return None
        given = given_keys(headers.get("authorization", ""), subprotocols)
        if any(self._is_key(key) for key in given):
            return None
        if path == SECRETS_PATH and self._secrets.config_of(given) is not None:
            return None
        what = "an unknown one" if given else "none"
        message = f"API key: expected 'Authorization: Bearer KEY', got {what}"
        return ApiError(message, status=401, kind="authentication_error", code="invalid_api_key")

    def _is_key(self, given: str) -> bool:
        """Compare with all keys, each in a time that shows nothing."""
        candidate = given.encode("utf-8", "replace")
        matches = [hmac.compare_digest(candidate, key) for key in self._keys]
        return any(matches)


def given_keys(authorization: str, subprotocols: Iterable[str]) -> list[str]:
    """Return the keys that a connection shows."""
    scheme, _, token = authorization.partition(" ")
    keys = [token.strip()] if scheme.lower() in ("bearer", "token") and token.strip() else []
    offered = list(subprotocols)
    if len(offered) > 1 and offered[0] in LISTEN_SUBPROTOCOLS:
        keys.append(offered[1])
    for prefix in KEY_PREFIXES:
        keys += [word[len(prefix) :] for word in offered if word.startswith(prefix)]
    return keys


def host_without_port(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
