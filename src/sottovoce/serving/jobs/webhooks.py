"""Webhooks: signed posts to addresses that clients name, to public ones alone.

Headers and signature are those of Standard Webhooks (standardwebhooks.com), which OpenAI's client checks. A
host is looked up once, checked, and connected to by that address: a name cannot mean another one by then. No
redirect is followed, no proxy asked, and of the answer nothing but its status is read.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

import anyio
import h11

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.forms import wrong

logger = logging.getLogger(__name__)

Networks: TypeAlias = Sequence[IPv4Network | IPv6Network]
AT_ONCE = 4
GONE = 410
"""A status that asks for no more."""
WITHIN_S = 10.0
"""For all of a post, the look-up of its address too."""
READ_BYTES = 4096
MAX_URL = 2_000
USUAL_PORTS = {"http": 80, "https": 443}
FIRST_FREE_PORT = 1024
"""Below it, protocols that are older than HTTP listen, and might take a post for something else."""
EMBEDDING = tuple(ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))
"""Networks whose addresses hold others: NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056), Teredo (RFC 4380)."""


class PostError(Exception):
    """A post that did not come to a status."""


class WebhookSender:
    """Posts events. networks: private ones that may be called.

    secret_for: what signs the events of a key by its name; None: nothing does, and no address is called.
    """

    def __init__(self, secret_for: Callable[[str], bytes | None], networks: Networks = ()) -> None:
        self._secret_for = secret_for
        self._networks = networks
        self._places = anyio.CapacityLimiter(AT_ONCE)

    def check(self, url: str, owner: str) -> SplitResult:
        """Read the address of an owner's job. Raises: ApiError 400 for one that could not be called."""
        if self._secret_for(owner) is None:
            message = "webhook_url: not done here: this server has no secret to sign with"
            raise ApiError(message, param="webhook_url", code="unsupported_value")
        return target_of("webhook_url", url, self._networks)

    async def tell(self, url: str, owner: str, event: dict[str, Json]) -> bool:
        """Post an event to an address of an owner, once; returns whether that is done with.

        Raises: ApiError where the address may not be called any more.
        """
        target, body, name = self.check(url, owner), json_text(event).encode(), str(event["id"])
        headers = signed_headers(self._secret_for(owner) or b"", name, body, int(time.time()))
        async with self._places:
            try:
                status = await post(target, headers, body, self._networks)
            except PostError as error:
                logger.warning("webhook not delivered", extra={"event": name, "cause": str(error)})
                return False
        if 200 <= status < 300:
            return True
        logger.warning("webhook not taken", extra={"event": name, "status": status})
        if status == GONE:
            raise ApiError("webhook_url: it is gone", status=GONE)
        return False


def signed_headers(secret: bytes, name: str, body: bytes, now_s: int) -> list[tuple[str, str]]:
    """Return the headers of a body, with its signature: HMAC-SHA256 of "id.seconds.body" in base64."""
    signed = f"{name}.{now_s}.".encode() + body
    signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return [
        ("content-type", "application/json"),
        ("user-agent", "sottovoce"),
        ("webhook-id", name),
        ("webhook-timestamp", str(now_s)),
        ("webhook-signature", f"v1,{signature}"),
    ]


def target_of(name: str, url: str, networks: Networks) -> SplitResult:
    """Read the URL of a field. networks: private ones that may be called.

    Raises: ApiError 400 for one that could not be called.
    """
    expected = "a URL as https://example.org/path, to a public address"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong(name, expected, "one that cannot be read") from None
    is_plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= MAX_URL
    if not (is_plain and parts.scheme in USUAL_PORTS and parts.hostname):
        raise wrong(name, f"{expected}, {MAX_URL} ASCII characters at most", "something else")
    if parts.username is not None or parts.password is not None:
        raise wrong(name, expected, "one with a user")
    if port is not None and port not in USUAL_PORTS.values() and port < FIRST_FREE_PORT:
        raise wrong(name, f"port 80, 443, or from {FIRST_FREE_PORT}", str(port))
    try:
        is_private = not may_call(parts.hostname, networks)
    except ValueError:
        is_private = False  # a name: looked up when it is called
    if is_private:
        raise wrong(name, expected, "a private one")
    return parts


def may_call(address: str, networks: Networks) -> bool:
    """Return whether an address is public, or of one of the networks. Raises: ValueError for a name."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if any(found in network for network in networks):
        return True
    is_embedding = any(found in network for network in EMBEDDING)
    return found.is_global and not (found.is_multicast or found.is_reserved or is_embedding)


async def post(
    target: SplitResult, headers: Sequence[tuple[str, str]], body: bytes, networks: Networks
) -> int:
    """Post a body; return the status. Raises: PostError where there is none within `WITHIN_S`."""
    try:
        with anyio.fail_after(WITHIN_S):
            return await _post(target, headers, body, networks)
    except TimeoutError as error:
        raise PostError("no answer in time") from error
    except (OSError, h11.ProtocolError, UnicodeError) as error:  # UnicodeError: a name that is none
        raise PostError(type(error).__name__) from error


async def _post(
    target: SplitResult, headers: Sequence[tuple[str, str]], body: bytes, networks: Networks
) -> int:
    reader, writer = await _connected(target, networks)
    try:
        connection = h11.Connection(h11.CLIENT)
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        given = [("host", target.netloc), ("content-length", str(len(body))), ("connection", "close")]
        request = h11.Request(method="POST", target=path, headers=[*given, *headers])
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        while True:
            answer = connection.next_event()
            if isinstance(answer, h11.Response):
                return answer.status_code
            if answer is h11.NEED_DATA:
                connection.receive_data(await reader.read(READ_BYTES))
            elif not isinstance(answer, h11.InformationalResponse):
                raise PostError("no status")
    finally:
        writer.transport.abort()


async def _connected(
    target: SplitResult, networks: Networks
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first public address that can be reached; each has its part of the time.

    Raises: OSError; PostError where a host has no public address.
    """
    port = target.port or USUAL_PORTS[target.scheme]
    found = await anyio.getaddrinfo(target.hostname, port, type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(str(where[4][0]) for where in found)
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
