"""Posts to addresses that clients name: to public ones alone, whatever a name means at that moment.

An address is looked up once, looked at, and connected to as it is: a name cannot mean another one by then. No
redirect is followed, no proxy asked, and of the answer nothing but its status is read. Knows no jobs.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

import anyio
import h11

from sottovoce.serving.parsing.faults import wrong

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


@dataclass(frozen=True, slots=True)
class PostTarget:
    """Where a post goes. path: with its query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Host and port, as the header `host` has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == USUAL_PORTS[self.scheme] else f"{host}:{self.port}"


def target_of(name: str, url: str, networks: Sequence[IPv4Network | IPv6Network]) -> PostTarget:
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
    usual = USUAL_PORTS[parts.scheme]
    port = usual if port is None else port
    if port not in USUAL_PORTS.values() and port < FIRST_FREE_PORT:
        raise wrong(name, f"port 80, 443, or from {FIRST_FREE_PORT}", str(port))
    if is_address(parts.hostname) and not may_call(parts.hostname, networks):
        raise wrong(name, expected, "a private one")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return PostTarget(parts.scheme, parts.hostname, port, path)


def is_address(host: str) -> bool:
    """Return whether a host is an address rather than a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def may_call(address: str, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    """Return whether an address is public, or of one of the networks."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if any(found in network for network in networks):
        return True
    is_embedding = any(found in network for network in EMBEDDING)
    return found.is_global and not (found.is_multicast or found.is_reserved or is_embedding)


async def post(
    target: PostTarget,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    networks: Sequence[IPv4Network | IPv6Network],
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
    target: PostTarget,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    networks: Sequence[IPv4Network | IPv6Network],
) -> int:
    found = await anyio.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = [str(where[4][0]) for where in found]
    allowed = [address for address in addresses if may_call(address, networks)]
    if not allowed:
        raise PostError("an address that is not public")
    reader, writer = await _connected(list(dict.fromkeys(allowed)), target)
    try:
        connection = h11.Connection(h11.CLIENT)
        given = [("host", target.authority), ("content-length", str(len(body))), ("connection", "close")]
        request = h11.Request(method="POST", target=target.path, headers=[*given, *headers])
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        return await _status(connection, reader)
    finally:
        writer.transport.abort()


async def _connected(
    addresses: Sequence[str], target: PostTarget
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that can be reached; each has its part of the time. Raises: OSError."""
    tls = ssl.create_default_context() if target.scheme == "https" else None
    name = target.host if tls else None
    for address in addresses:
        try:
            with anyio.fail_after(WITHIN_S / len(addresses)):
                return await asyncio.open_connection(address, target.port, ssl=tls, server_hostname=name)
        except (OSError, TimeoutError) as error:
            fault: OSError | TimeoutError = error
    raise fault


async def _status(connection: h11.Connection, reader: asyncio.StreamReader) -> int:
    """Return the status that comes. Raises: h11.RemoteProtocolError for what is none, or has no end."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Response):
            return event.status_code
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(READ_BYTES))
        elif not isinstance(event, h11.InformationalResponse):
            raise PostError("no status")
