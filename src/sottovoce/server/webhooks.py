"""Webhooks: signed posts to addresses that clients name, repeated until they are accepted.

Headers follow Standard Webhooks (standardwebhooks.com). A host is resolved once and the connection goes to
the checked address, so that a name cannot point elsewhere a moment later. Redirects and proxies are not
followed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import random
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit

import anyio

from sottovoce.formats.document import Json, json_text
from sottovoce.server.auth import KeyRing
from sottovoce.server.errors import ApiError, invalid_value, unsupported
from sottovoce.server.settings import JobSettings, network_of

logger = logging.getLogger(__name__)

Networks: TypeAlias = Sequence[IPv4Network | IPv6Network]
WebhookStatus: TypeAlias = Literal["pending", "delivered", "failed"]
WEBHOOK_URL = "webhook_url"
EXPECTED = "a URL as https://example.org/path, to a public address"
WAITS_S = (0.0, 5.0, 30.0, 120.0, 600.0, 1800.0)
"""Before each try."""
WITHIN_S = 10.0
STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)\b")
MAX_URL = 2_000
USUAL_PORTS = {"http": 80, "https": 443}
FIRST_FREE_PORT = 1024
"""Older protocols listen below it, and might take a post for something else."""
EMBEDDING_NETWORKS = tuple(
    ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)
"""Networks whose addresses embed others: NAT64 (RFC 6052, 8215), 6to4 (RFC 3056), Teredo (RFC 4380)."""


@dataclass(slots=True)
class Webhook:
    """tries: posts so far."""

    url: str
    status: WebhookStatus = "pending"
    tries: int = 0


class PostError(Exception): ...


class WebhookSender:
    def __init__(self, settings: JobSettings, keys: KeyRing) -> None:
        self._secret = settings.webhook_secret
        self._networks = [network_of(network) for network in settings.webhook_networks]
        self._keys = keys
        self._places = anyio.CapacityLimiter(4)

    def check(self, url: str, owner: str) -> tuple[SplitResult, bytes]:
        """Return the address of a webhook and the secret. Raises: ApiError 400 if it may not be called."""
        key = self._keys.by_name(owner)
        secret = (key and key.webhook_secret) or self._secret
        if secret is None:
            raise unsupported(WEBHOOK_URL, "not done here: this server has no secret to sign with")
        return target_of(url, self._networks), secret

    async def deliver(self, webhook: Webhook, owner: str, event: dict[str, Json]) -> AsyncIterator[None]:
        """Post an event until it is accepted or given up; yields after each try."""
        while webhook.status == "pending":
            wait_s = WAITS_S[min(webhook.tries, len(WAITS_S) - 1)]
            await anyio.sleep(wait_s * random.uniform(0.8, 1.2))
            webhook.status = await self._try(webhook.url, owner, event)
            webhook.tries += 1
            if webhook.status == "pending" and webhook.tries >= len(WAITS_S):
                webhook.status = "failed"
            yield

    async def _try(self, url: str, owner: str, event: dict[str, Json]) -> WebhookStatus:
        body, name = json_text(event).encode(), str(event["id"])
        try:
            target, secret = self.check(url, owner)
            headers = signed_headers(secret, name, body, int(time.time()))
            async with self._places:
                status = await post(target, headers, body, self._networks)
        except ApiError:  # the address may not be called any more
            return "failed"
        except PostError as error:
            logger.warning("webhook not delivered", extra={"event": name, "cause": str(error)})
            return "pending"
        if 200 <= status < 300:
            return "delivered"
        logger.warning("webhook not taken", extra={"event": name, "status": status})
        return "failed" if status == HTTPStatus.GONE else "pending"


def signed_headers(secret: bytes, name: str, body: bytes, now_s: int) -> list[tuple[str, str]]:
    """The signature is the HMAC-SHA256 of "id.seconds.body" in base64."""
    signed = f"{name}.{now_s}.".encode() + body
    signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return [
        ("content-type", "application/json"),
        ("user-agent", "sottovoce"),
        ("webhook-id", name),
        ("webhook-timestamp", str(now_s)),
        ("webhook-signature", f"v1,{signature}"),
    ]


def target_of(url: str, networks: Networks) -> SplitResult:
    """Read a URL. networks: allowed private ones. Raises: ApiError 400."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise invalid_value(WEBHOOK_URL, EXPECTED, "one that cannot be read") from None
    is_plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= MAX_URL
    if not (is_plain and parts.scheme in USUAL_PORTS and parts.hostname):
        raise invalid_value(WEBHOOK_URL, f"{EXPECTED}, {MAX_URL} ASCII characters at most", "something else")
    if parts.username is not None or parts.password is not None:
        raise invalid_value(WEBHOOK_URL, EXPECTED, "one with a user")
    if port is not None and port not in USUAL_PORTS.values() and port < FIRST_FREE_PORT:
        raise invalid_value(WEBHOOK_URL, f"port 80, 443, or from {FIRST_FREE_PORT}", str(port))
    with suppress(ValueError):  # a name: resolved when it is called
        if not may_call(parts.hostname, networks):
            raise invalid_value(WEBHOOK_URL, EXPECTED, "a private one")
    return parts


def may_call(address: str, networks: Networks) -> bool:
    """Return whether an address is public or in one of the networks. Raises: ValueError for a name."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if any(ip in network for network in networks):
        return True
    is_embedding = any(ip in network for network in EMBEDDING_NETWORKS)
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or is_embedding)


async def post(
    target: SplitResult, headers: Sequence[tuple[str, str]], body: bytes, networks: Networks
) -> int:
    """Post a body; return the status. Raises: PostError without a status within `WITHIN_S`."""
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    given = [("host", target.netloc), ("content-length", str(len(body))), ("connection", "close")]
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (*given, *headers)), "", ""]
    try:
        with anyio.fail_after(WITHIN_S):
            reader, writer = await _connect(target, networks)
            try:
                writer.write("\r\n".join(lines).encode() + body)
                await writer.drain()
                while match := STATUS.match(await reader.readuntil(b"\r\n\r\n")):
                    if not match[1].startswith(b"1"):  # of an answer to come
                        return int(match[1])
                raise PostError("no status")
            finally:
                writer.transport.abort()
    except TimeoutError as error:
        raise PostError("no answer in time") from error
    except (OSError, EOFError, asyncio.LimitOverrunError, UnicodeError) as error:
        raise PostError(type(error).__name__) from error


async def _connect(
    target: SplitResult, networks: Networks
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Each address has its part of the time."""
    port = target.port or USUAL_PORTS[target.scheme]
    records = await anyio.getaddrinfo(target.hostname, port, type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(str(where[4][0]) for where in records)
    allowed = [address for address in addresses if may_call(address, networks)]
    if not allowed:
        raise PostError("an address that is not public")
    tls = ssl.create_default_context() if target.scheme == "https" else None
    name = target.hostname if tls else None
    for address in allowed:
        try:
            with anyio.fail_after(WITHIN_S / len(allowed)):
                return await asyncio.open_connection(address, port, ssl=tls, server_hostname=name)
        except (OSError, TimeoutError) as error:
            fault: OSError | TimeoutError = error
    raise fault
