"""Settings of a server: models, addresses, access and limits."""

from __future__ import annotations

import base64
import math
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from sottovoce.errors import OptionError
from sottovoce.options.decoding import DeferralOptions
from sottovoce.options.schema import Option, check_options
from sottovoce.runtime.update_interval import INTERVALS_S
from sottovoce.translation.chat import ChatServer, Glossary

if TYPE_CHECKING:
    from sottovoce.types import Samples

ENVIRONMENT = "SOTTOVOCE_SERVE"
"""Prefix of the server's environment variables: SOTTOVOCE_SERVE_PORT is --port."""
API_KEYS = f"{ENVIRONMENT}_API_KEYS"
WEBHOOK_SECRET = f"{ENVIRONMENT}_WEBHOOK_SECRET"
OPENAI_NAMES = (
    "whisper-1",
    "gpt-transcribe",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-mini-transcribe-2025-12-15",
    "gpt-4o-transcribe-diarize",
    "gpt-live-transcribe",
    "gpt-realtime-whisper",
)
"""Model ids of OpenAI's clients; by default they mean the default model."""
MOST_ENGINES = 4
"""Default limit: engines share one interpreter, and larger machines were not measured."""
UPLOADS_PER_REQUEST = 4
"""Uploads in progress for each recording that may be transcribed."""
SPARE_CONNECTIONS = 256
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
WILDCARDS = frozenset({"", "0.0.0.0", "::"})
OUTSIDE = "192.0.2.1"
"""An address of no machine. Source: RFC 5737."""
KEY = re.compile(r"[A-Za-z0-9._~-]{8,200}")
SECRET_PREFIX = "whsec_"
MIN_SECRET_BYTES = 16
EXPECTED_SECRET = (
    f"expected a secret of {MIN_SECRET_BYTES} bytes or more, as text or as base64 behind {SECRET_PREFIX}"
)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of load and time.

    readers: of all shared captions. upload_mb: of one request; None: a quarter of `uploads_mb`. message_kb:
    OpenAI's clients send up to 15 MB. connections: None: what sessions, recordings and `SPARE_CONNECTIONS`
    need, within the limit of open files. connections_per_address: None: half of them. pending_s: queued audio
    of a session above which its client is not read. wait_s: waiting time of live work above which sessions
    are refused. idle_s: silence of a client; keepalive_s: time without audio. send_s: for a client to take a
    message. upload_s: between two pieces of an upload. head_s: for the head of a request. stall_s: longest
    call of a model before it counts as broken.
    """

    sessions: int = Option("Concurrent live sessions.", key="max_sessions", least=1).as_field(16)
    requests: int = Option(
        "Concurrent recordings, including waiting ones.", key="max_requests", least=1
    ).as_field(16)
    uploads_mb: float = Option(
        "Limit for all uploads together (a quarter of it for one), and for all jobs together. "
        "Uploads above 1 MB are stored in temporary files.",
        key="max_uploads_mb",
        above=0.0,
    ).as_field(4096.0)
    duration_s: float = Option(
        "Longest recording, and longest audio of a live session.", key="max_duration", kind="time", above=0.0
    ).as_field(4 * 3600.0)
    broken_s: float | None = Option(
        "Exit with code 1 after this time with a failed model, so that a supervisor restarts the server.",
        unset="never",
        key="exit_when_failing",
        kind="time",
        above=0.0,
    ).as_field(None)
    shutdown_s: float = Option(
        "Time for requests and sessions to finish at shutdown.",
        key="shutdown_timeout",
        kind="time",
        above=0.0,
    ).as_field(30.0)
    upload_mb: float | None = None
    session_s: float = 4 * 3600.0
    readers: int = 200
    message_kb: int = 16 * 1024
    connections: int | None = None
    connections_per_address: int | None = None
    pending_s: float = 10.0
    wait_s: float = 3.0
    idle_s: float = 300.0
    keepalive_s: float = 3600.0
    send_s: float = 10.0
    upload_s: float = 60.0
    head_s: float = 15.0
    stall_s: float = 120.0

    def __post_init__(self) -> None:
        check_options(self)
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"limit {name}: expected more than 0, got {value}")

    @property
    def most_connections(self) -> int:
        usual = self.sessions + self.readers + (1 + UPLOADS_PER_REQUEST) * self.requests + SPARE_CONNECTIONS
        return self.connections or usual

    @property
    def upload_bytes(self) -> int:
        return round((self.upload_mb or self.uploads_mb / 4) * 1e6)

    @property
    def uploads_bytes(self) -> int:
        return round(self.uploads_mb * 1e6)


@dataclass(frozen=True, slots=True)
class Access:
    """Access control.

    api_keys: without keys everybody may use the API. secret_key: signs client secrets, the same in all
    processes; None: a new one. hosts: empty: local names on a loopback address; elsewhere any name with keys,
    and private names without.
    """

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    keys_file: str | None = Option(
        "TOML file of keys with names and limits, read again when it changes and on SIGHUP. "
        f"{API_KEYS} holds keys without names, separated by commas.",
        unset="without keys, access is open",
        key="keys",
        metavar="FILE",
    ).as_field(None)
    origins: tuple[str, ...] = Option(
        "Origin of another web page that may send requests, such as https://example.org. Repeatable.",
        key="allow_origin",
        metavar="URL",
        many=True,
    ).as_field(())
    hosts: tuple[str, ...] = Option(
        "Accepted host name; *: any. Repeatable. [on a loopback address: its own names; "
        "elsewhere with keys any, without keys addresses and private names]",
        key="allow_host",
        metavar="NAME",
        many=True,
    ).as_field(())
    proxies: tuple[str, ...] = Option(
        "Proxy or network whose X-Forwarded-For is trusted; *: all. Repeatable. [none]",
        key="forwarded_allow_ips",
        metavar="ADDRESS",
        many=True,
    ).as_field(())
    secret_key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for i, key in enumerate(self.api_keys):
            if not KEY.fullmatch(key):
                raise OptionError(
                    f"API key {i + 1}: expected 8 to 200 of the characters A-Z a-z 0-9 . _ ~ -, "
                    f"got {len(key)} characters"
                )
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/\s]+", origin):
                raise OptionError(f"origin '{origin}': expected scheme and host, such as https://example.org")
        for proxy in self.proxies:
            if proxy != "*":
                network_of(proxy)

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys) or self.keys_file is not None

    def is_proxy(self, address: str) -> bool:
        if "*" in self.proxies:
            return True
        try:
            ip = ip_address(address)
        except ValueError:
            return False
        return any(ip in network_of(proxy) for proxy in self.proxies)


def network_of(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise OptionError(f"'{text[:50]}': expected an address or a network") from error


def secret_of(where: str, text: str) -> bytes:
    """Read text, or base64 after "whsec_". Raises: OptionError."""
    secret = text.encode()
    if text.startswith(SECRET_PREFIX):
        try:
            secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError as error:
            raise OptionError(f"{where}: {EXPECTED_SECRET}, got no base64") from error
    if len(secret) < MIN_SECRET_BYTES:
        raise OptionError(f"{where}: {EXPECTED_SECRET}, got {len(secret)}")
    return secret


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The models of a server, and how they decode recordings.

    others: loaded at their first request. second: reads uncertain parts again. final: of the second
    pass of live sessions. Clients can request these two only if they are in `others`. preload: load the
    default and these two at the start. voices: speech (n,) by the name that its speaker gets.
    """

    model: str
    others: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    beam_size: int | None = None
    """None: that of the model."""
    unload_s: float | None = Option(
        "Unload a model after this time without use.", unset="never", key="unload_after", kind="time"
    ).as_field(None)
    memory_mb: float | None = Option(
        "Limit for the weights of all models; the least recently used ones are unloaded.",
        unset="no limit",
        key="model_memory_mb",
        metavar="MB",
        above=0.0,
        called="model memory",
    ).as_field(None)
    preload: bool = True
    second: str | None = None
    final: str | None = None
    voices: Mapping[str, Samples] = field(default_factory=dict, repr=False, hash=False, compare=False)
    deferral: DeferralOptions = field(default_factory=DeferralOptions)

    def __post_init__(self) -> None:
        if self.second == self.model:
            raise OptionError(f"second model: expected another one than '{self.model}', which drafts")
        check_options(self)
        for alias, name in self.aliases.items():
            if name not in self.names:
                raise OptionError(f"alias '{alias}': expected one of {', '.join(self.names)}, got '{name}'")

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_mb is None else round(self.memory_mb * 1e6)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.model, *self.others)))

    @property
    def at_start(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in (self.model, self.second, self.final) if name))

    @property
    def all_aliases(self) -> dict[str, str]:
        """Every other name, OpenAI's included, with its model."""
        models_by_name = dict.fromkeys(OPENAI_NAMES, self.model) | dict(self.aliases)
        return {alias: name for alias, name in models_by_name.items() if alias not in self.names}


@dataclass(frozen=True, slots=True)
class Work:
    """Threads of a model, and its load.

    engines: run updates of live sessions; None: one a processor thread, `MOST_ENGINES` at most, and one on an
    accelerator. threads: None: PyTorch's.
    """

    engines: int | None = None
    threads: int | None = None
    longest_interval_s: float = Option(
        "Longest interval, in seconds, between updates of a live session under load: "
        f"{', '.join(f'{seconds:g}' for seconds in INTERVALS_S)}.",
        key="longest_interval",
        above=0.0,
    ).as_field(INTERVALS_S[-1])
    forecast: bool = Option(
        "Measure the cost of a live session when a model is loaded, and refuse sessions beyond "
        "the number that it keeps up with; --no-forecast accepts all.",
        switch=True,
    ).as_field(True)

    def __post_init__(self) -> None:
        for name in ("engines", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name}: expected 1 or more, got {value}")
        if self.longest_interval_s not in INTERVALS_S:
            intervals = ", ".join(f"{seconds:g}" for seconds in INTERVALS_S)
            raise OptionError(
                f"longest interval: expected one of {intervals} s, got {self.longest_interval_s:g}"
            )


@dataclass(frozen=True, slots=True)
class Listening:
    """Address of a server, and its certificate."""

    host: str = Option("Address to listen on.").as_field("127.0.0.1")
    port: int = Option("Port; 0: any free one.", least=0, most=65535).as_field(8000)
    certificate: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        check_options(self)
        if (self.certificate is None) != (self.key is None):
            raise OptionError("TLS: expected a certificate and its key, got one of them")

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"

    def url_elsewhere(self, port: int) -> str | None:
        """The URL by which other machines of the network reach this one; None: only this machine does.

        With a certificate the URL must have its name, which is not known here: None too.
        """
        if self.is_loopback or self.certificate is not None:
            return None
        host = address_of_network() if self.host in WILDCARDS else self.host
        if host is None:
            return None
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def address_of_network() -> str | None:
    """The address of this machine in its network; None without a network. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((OUTSIDE, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def wyoming_address(text: str) -> Listening:
    """Read tcp://HOST:PORT. Raises: OptionError."""
    match = re.fullmatch(r"tcp://(\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+):(\d{1,5})", text)
    if not match or int(match[2]) > 65535:
        raise OptionError(f"--wyoming: expected tcp://HOST:PORT, got '{text[:100]}'")
    return Listening(match[1].strip("[]"), int(match[2]))


@dataclass(frozen=True, slots=True)
class TranslationSettings:
    chat: ChatServer
    glossary: Glossary = field(default_factory=Glossary)


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Recordings that are answered later, kept in a folder.

    most: jobs at a time, finished ones included; a named key has half of them. webhook_secret: None: no
    webhooks.
    """

    folder: str
    keep_s: float = Option(
        "Time for which the result of a finished job is kept.", key="keep_jobs", kind="time", above=0.0
    ).as_field(3600.0)
    webhook_networks: tuple[str, ...] = Option(
        "Private network that a webhook_url may address. "
        f"{WEBHOOK_SECRET} signs webhooks (text, or whsec_ and base64). Repeatable. [only public addresses]",
        key="webhook_allow",
        metavar="NETWORK",
        many=True,
    ).as_field(())
    most: int = 1000
    most_mb: float = 4096.0
    webhook_secret: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_options(self)
        for network in self.webhook_networks:
            network_of(network)

    @property
    def most_bytes(self) -> int:
        return round(self.most_mb * 1e6)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """wyoming: address for Home Assistant. translation: None: Whisper translates live speech, into English
    only.
    """

    models: ModelSettings
    listening: Listening = field(default_factory=Listening)
    access: Access = field(default_factory=Access)
    limits: ServerLimits = field(default_factory=ServerLimits)
    work: Work = field(default_factory=Work)
    wyoming: Listening | None = None
    translation: TranslationSettings | None = None
    traces: bool = Option(
        "Send OpenTelemetry traces by OTLP over HTTP; OTEL_EXPORTER_OTLP_… variables "
        "configure it (extra `trace`)."
    ).as_field(False)
    jobs: JobSettings | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names that the server answers to; empty: by the rules of `Access`."""
        if self.access.hosts or not self.listening.is_loopback:
            return self.access.hosts
        return tuple(sorted(LOOPBACK))
