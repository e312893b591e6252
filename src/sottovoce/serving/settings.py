"""What a server is told: what it may be asked, by whom, and how much of it. Knows no web framework."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from sottovoce.engine.update_interval import INTERVALS_S
from sottovoce.errors import OptionError
from sottovoce.options.deferral import DeferralOptions
from sottovoce.translation.chat import ChatServer, Glossary

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
"""Names that OpenAI's clients ask for; without a word to the contrary they mean the default model."""
MOST_ENGINES = 4
"""Where nobody says how many: they share one interpreter, and no machine with more cores was measured."""
UPLOADS_A_PLACE = 4
"""Recordings that may be on their way here for each that may be transcribed: who is slow to send one keeps
nobody waiting."""
SPARE_CONNECTIONS = 256
"""Of browsers, monitoring, and clients between two requests."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
KEY = re.compile(r"[A-Za-z0-9._~-]{8,200}")
"""What a header and a subprotocol can carry."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How much is taken before it is refused, and how long is waited.

    sessions: live sessions at a time, and as many whose captions are shared. readers: of all shared captions.
    requests: recordings at a time, waiting ones among them.
    upload_mb: of one request. uploads_mb: of all requests that are here. duration_s: of one recording.
    message_kb: of one message of a socket.
    pending_s: audio of one session that waits for the model; more of it is not read before that is worked
        off, so that a sender who is too fast is slowed down.
    wait_s: the waiting time of live work from which on no further session is taken. Where half of the
        sessions are late by half of it, and that lasts, the newest of them is asked to come again.
    session_s: of one live session. idle_s: without audio and without `keepalive`. keepalive_s: without
        audio, whatever else comes.
    send_s: until a client must have taken what it was sent. upload_s: between two pieces of an upload.
    head_s: from the beginning of a connection, or of its next request, until that has a head.
    connections: at a time; None: what sessions, recordings and `SPARE_CONNECTIONS` need, and never more than
        the system lets the process open. connections_per_address: of one client; None: half of them.
    stall_s: of one call of a model, from which on the server counts as broken. broken_s: until a server that
        is broken ends, so that it can be started anew; None: it goes on.
    shutdown_s: for requests and sessions to come to their end.

    Raises: OptionError for values out of range.
    """

    sessions: int = 16
    readers: int = 200
    requests: int = 16
    upload_mb: float = 1024.0
    uploads_mb: float = 4096.0
    duration_s: float = 4 * 3600.0
    message_kb: int = 16 * 1024
    pending_s: float = 10.0
    wait_s: float = 3.0
    session_s: float = 4 * 3600.0
    idle_s: float = 300.0
    keepalive_s: float = 3600.0
    send_s: float = 10.0
    upload_s: float = 60.0
    head_s: float = 15.0
    connections: int | None = None
    connections_per_address: int | None = None
    stall_s: float = 120.0
    broken_s: float | None = None
    shutdown_s: float = 30.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"limit {name}: expected more than 0, got {value}")

    @property
    def most_connections(self) -> int:
        usual = self.sessions + self.readers + (1 + UPLOADS_A_PLACE) * self.requests + SPARE_CONNECTIONS
        return self.connections or usual

    @property
    def upload_bytes(self) -> int:
        return round(self.upload_mb * 1e6)

    @property
    def uploads_bytes(self) -> int:
        return round(self.uploads_mb * 1e6)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask.

    api_keys: any of them opens the API; none: everybody may. keys_file: more of them, with names and limits,
        see `serving.api_keys`. origins: of web pages elsewhere that may ask, such as https://example.org; the
        server's own page always may.
    secret_key: signs the secrets of clients, see `serving.client_secrets`; the same in all processes of a
        server, and a new one for every server where it is None.
    proxies: addresses or networks whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed, "*": all.
    hosts: names under which the server is reached, "*": any. Empty: on a loopback address the names of this
        machine; elsewhere any with keys, and without them those that nobody can buy, so that no page
        elsewhere can reach it by a name that it points here.

    Raises: OptionError for a key that a header or a subprotocol could not carry.
    """

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    keys_file: str | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
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
        """Whether who asks needs a key."""
        return bool(self.api_keys) or self.keys_file is not None

    def is_proxy(self, address: str) -> bool:
        """Return whether an address is that of a proxy that is trusted."""
        if "*" in self.proxies:
            return True
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network_of(proxy) for proxy in self.proxies)


def network_of(text: str) -> IPv4Network | IPv6Network:
    """Read an address or a network. Raises: OptionError."""
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise OptionError(f"'{text[:50]}': expected an address or a network") from error


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which models are there, and how they decode recordings.

    model: the default one. others: that may be asked for by their names; loaded at the first request.
    second: reads what another is not sure of in recordings, by `deferral`; it may be asked for only where it
    is one of the others too.
    aliases: other names for these. beam_size: of recordings; 1 is greedy.
    unload_s: without use, until a model leaves memory; None: never. memory_mb: of the weights of all models;
    None: as many as are asked for. preload: load the default and the second at the start.

    Raises: OptionError for an alias of no model, memory that is none, and a second that is the default.
    """

    model: str
    others: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    beam_size: int = 5
    unload_s: float | None = None
    memory_mb: float | None = None
    preload: bool = True
    second: str | None = None
    deferral: DeferralOptions = field(default_factory=DeferralOptions)

    def __post_init__(self) -> None:
        if self.second == self.model:
            raise OptionError(f"second model: expected another one than '{self.model}', which drafts")
        if self.memory_mb is not None and not 0 < self.memory_mb < math.inf:
            raise OptionError(f"model memory: expected more than 0 MB, got {self.memory_mb}")
        for alias, name in self.aliases.items():
            if name not in self.names:
                raise OptionError(f"alias '{alias}': expected one of {', '.join(self.names)}, got '{name}'")

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_mb is None else round(self.memory_mb * 1e6)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all models that may be asked for."""
        return tuple(dict.fromkeys((self.model, *self.others)))

    @property
    def at_start(self) -> tuple[str, ...]:
        """Of the models without which the server serves nothing: the default one first."""
        return (self.model,) if self.second is None else (self.model, self.second)

    @property
    def all_aliases(self) -> dict[str, str]:
        """Every other name, OpenAI's among them, with the model it means."""
        models_by_name = dict.fromkeys(OPENAI_NAMES, self.model) | dict(self.aliases)
        return {alias: name for alias, name in models_by_name.items() if alias not in self.names}


@dataclass(frozen=True, slots=True)
class Work:
    """How the work of a model is done.

    engines: threads that each do live sessions' updates; None: one a processor thread, `MOST_ENGINES` at
        most, and one on an accelerator. threads: of the processor, which the engines share; None: PyTorch's.
    encoder_frames, rows: see `engine.batching.Batching`; None: by the device. longest_interval_s: up to which
        updates of live sessions come less often under load. file_share: of an engine's time, that a recording
        has at least. forecast: refuse a live session that would make others late, by what one costs, which is
        measured when a model is loaded.

    Raises: OptionError for values out of range.
    """

    engines: int | None = None
    threads: int | None = None
    encoder_frames: int | None = None
    rows: int | None = None
    longest_interval_s: float = INTERVALS_S[-1]
    file_share: float = 0.1
    forecast: bool = True

    def __post_init__(self) -> None:
        for name in ("engines", "threads", "encoder_frames", "rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name}: expected 1 or more, got {value}")
        if self.longest_interval_s not in INTERVALS_S:
            intervals = ", ".join(f"{seconds:g}" for seconds in INTERVALS_S)
            raise OptionError(
                f"longest interval: expected one of {intervals} s, got {self.longest_interval_s:g}"
            )
        if not 0 < self.file_share <= 1:
            raise OptionError(f"file share: expected more than 0, up to 1, got {self.file_share:g}")


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the server listens. port 0: any free one. certificate, key: PEM files, for https.

    Raises: OptionError for one of the files without the other.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise OptionError("TLS: expected a certificate and its key, got one of them")

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"


@dataclass(frozen=True, slots=True)
class WyomingAddress:
    """Where Home Assistant is listened for. port 0: any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> WyomingAddress:
        """Read tcp://HOST:PORT. Raises: OptionError."""
        found = re.fullmatch(r"tcp://(\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+):(\d{1,5})", text)
        if not found or int(found[2]) > 65535:
            raise OptionError(f"--wyoming: expected tcp://HOST:PORT, got '{text[:100]}'")
        return cls(found[1].strip("[]"), int(found[2]))

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK


@dataclass(frozen=True, slots=True)
class TranslationSettings:
    """A server that translates what is said live, and terms for it."""

    chat: ChatServer
    glossary: Glossary = field(default_factory=Glossary)


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Recordings that are answered later.

    folder: where they and their results are. keep_s: after a job is over, until it is removed. most: jobs at
    a time, waiting and over; a named key has half of them. most_mb: of their recordings and results.
    webhook_secret: signs what is told to their addresses; None: none is called. webhook_networks: private
    addresses that may be called.

    Raises: OptionError for values out of range.
    """

    folder: str
    keep_s: float = 3600.0
    most: int = 1000
    most_mb: float = 4096.0
    webhook_secret: bytes | None = field(default=None, repr=False)
    webhook_networks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("keep_s", "most", "most_mb"):
            if not 0 < getattr(self, name) < math.inf:
                raise OptionError(f"jobs {name}: expected more than 0, got {getattr(self, name)}")

    @property
    def most_bytes(self) -> int:
        return round(self.most_mb * 1e6)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """All that a server is told. wyoming: None: Home Assistant is not listened for. translation: None: live
    speech is translated into English alone, by Whisper itself. hls: a folder for shared captions as HLS.
    caption_hosts: further ones that captions may be posted to. jobs: None: recordings are answered at once
    alone. traces: OpenTelemetry's are sent.
    """

    models: ModelSettings
    listening: Listening = field(default_factory=Listening)
    access: Access = field(default_factory=Access)
    limits: ServerLimits = field(default_factory=ServerLimits)
    work: Work = field(default_factory=Work)
    wyoming: WyomingAddress | None = None
    translation: TranslationSettings | None = None
    hls: str | None = None
    caption_hosts: tuple[str, ...] = ()
    traces: bool = False
    jobs: JobSettings | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names that the server answers to; empty: see `Access`."""
        if self.access.hosts or not self.listening.is_loopback:
            return self.access.hosts
        return tuple(sorted(LOOPBACK))
