"""A running server: uvicorn here, with an orderly shutdown, or replicas behind a Ray cluster's proxies.

After SIGINT or SIGTERM new requests are refused, live sessions emit their last text and close with 1012, and
requests are answered, with 503 after the timeout. A removed replica ends with its last connection or after
ten minutes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import secrets
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from socket import socket as Socket
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, cast

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.formparsers import MultiPartParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sottovoce.archive.ray_cluster import Replicas, connect, import_ray
from sottovoce.errors import OptionError, cause_of
from sottovoce.recogniser import Recogniser
from sottovoce.server.apis.wyoming import MAX_LINE, WyomingServer
from sottovoce.server.app import make_app
from sottovoce.server.connections import WebSocket, make_connections, make_gate
from sottovoce.server.services import Services
from sottovoce.server.settings import Listening, ServerSettings
from sottovoce.server.telemetry import log_as_json

if TYPE_CHECKING:
    from ray.serve import Deployment

logger = logging.getLogger(__name__)

LOG_EVERY_S = 60.0
IGNORED_MESSAGES = (
    "ASGI callable returned without completing handshake.",
    "ASGI callable returned without completing response.",
    "Invalid UTF-8 sequence received from client.",
)
"""Errors that uvicorn logs for refused handshakes, clients that do not read, and invalid messages."""
PING_EVERY_S = 20.0
PONG_WITHIN_S = 60.0
"""Longer than a fast sender is left unread: its pong waits behind its audio."""


LIBRARIES: tuple[tuple[str, type, str], ...] = (
    (
        "uvicorn",
        HttpToolsProtocol,
        "on_message_begin on_headers_complete on_body on_message_complete on_response_complete "
        "handle_websocket_upgrade parser cycle",
    ),
    ("uvicorn", WebSocketsSansIOProtocol, "handle_events conn"),
    ("uvicorn", uvicorn.Server, "on_tick startup shutdown capture_signals handle_exit force_exit"),
    ("starlette", MultiPartParser, "on_headers_finished on_part_data max_part_size _current_part"),
)
"""Methods and attributes that this server uses although their libraries do not document them."""


def check_libraries() -> None:
    """Raises: OptionError for a library whose undocumented methods have changed."""
    for library, owner, names in LIBRARIES:
        present = {*dir(owner), *owner.__init__.__code__.co_names}  # type: ignore[misc]
        if missing := [name for name in names.split() if name not in present]:
            raise OptionError(
                f"{library} {version(library)}: expected {owner.__name__} with {', '.join(missing)}, got "
                "none: install an earlier version"
            )


def log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    if "socket.accept()" in str(context.get("message")):
        logger.warning("the system takes no more connections", extra={"cause": str(context["exception"])})
    else:
        loop.default_exception_handler(context)


class QuietLog(logging.Filter):
    """Passes each warning of a place once a minute, and none of `IGNORED_MESSAGES`."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_s: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now_s, place = time.monotonic(), (record.pathname, record.lineno)
        if record.msg in IGNORED_MESSAGES:
            return False
        if record.levelno != logging.WARNING:
            return True
        if now_s - self._logged_s.get(place, -LOG_EVERY_S) < LOG_EVERY_S:
            return False
        self._logged_s[place] = now_s
        return True


def limit_warnings(*names: str) -> None:
    for name in names:
        named = logging.getLogger(name)
        if not any(isinstance(rule, QuietLog) for rule in named.filters):
            named.addFilter(QuietLog())


class Server(uvicorn.Server):
    """uvicorn's server, whose live sessions end before their sockets do. on_ready: called with the port when
    the models of the start are loaded.

    Raises: OptionError for an unusable address.
    """

    def __init__(
        self,
        settings: ServerSettings,
        open_model: Callable[[str], Recogniser],
        on_ready: Callable[[int], None],
    ) -> None:
        check_libraries()
        check_certificate(settings.listening)
        limit_warnings(
            "uvicorn.error", "python_multipart.multipart", "sottovoce.server.connections", __name__
        )
        app = make_app(settings, open_model)
        self.services: Services = app.state.services
        self._on_ready: Callable[[int], None] | None = on_ready
        self._listening = listening_socket(settings.listening)
        self.wyoming_socket = listening_socket(settings.wyoming) if settings.wyoming else None
        self._wyoming: asyncio.Server | None = None
        self.ended_by: signal.Signals | None = None
        self.broken_by: str | None = None
        """Why a model could not work, if the server has ended for it."""
        self._healthy_s = time.monotonic()
        limits, listening = settings.limits, settings.listening
        self.gate = gate = make_gate(settings, self.services.metrics.refused_connections.inc)
        super().__init__(
            uvicorn.Config(
                app,
                host=listening.host,
                port=listening.port,
                ssl_certfile=listening.certificate,
                ssl_keyfile=listening.key,
                log_config=None,
                log_level=logging.WARNING,  # below it, addresses of sockets with all they ask for
                access_log=False,
                server_header=False,
                lifespan="on",
                loop="asyncio",
                http=cast(
                    type[asyncio.Protocol], make_connections(gate, limits, PING_EVERY_S + PONG_WITHIN_S)
                ),
                ws=WebSocket,
                backlog=128,
                forwarded_allow_ips=list(settings.access.proxies),
                ws_max_size=limits.message_kb * 1024,
                ws_ping_interval=PING_EVERY_S,
                ws_ping_timeout=None,  # a `Connection` closes one that is dead
                ws_per_message_deflate=False,  # PCM does not get smaller by it
                timeout_keep_alive=10,
            )
        )

    def serve_until_ended(self) -> None:
        """Serve until a signal or `should_exit`. Raises: the error of loading the default model."""
        self.run(sockets=[self._listening])
        if self.services.preload_error is not None:
            raise self.services.preload_error

    async def on_tick(self, counter: int) -> bool:
        if self._on_ready is not None and self.services.is_ready:
            self._on_ready(self.servers[0].sockets[0].getsockname()[1])
            self._on_ready = None
        return await super().on_tick(counter) or self.services.preload_error is not None or self._is_broken()

    def _is_broken(self) -> bool:
        error, most_s = self.services.health_error, self.services.settings.limits.broken_s
        now_s = time.monotonic()
        self._healthy_s = now_s if error is None else self._healthy_s
        if most_s is None or now_s - self._healthy_s < most_s:
            return False
        self.broken_by = error
        logger.error("the server ends to be started anew", extra={"cause": error})
        return True

    async def startup(self, sockets: list[Socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(log_exception)
        await super().startup(sockets)
        if self.started and self.wyoming_socket is not None:
            serve = WyomingServer(self.services).serve
            self._wyoming = await asyncio.start_server(serve, sock=self.wyoming_socket, limit=MAX_LINE)

    async def shutdown(self, sockets: list[Socket] | None = None) -> None:
        """Let sessions and requests finish, cancel the rest, and close.

        Connections are accepted until then, so that `/ready` and other requests get 503.
        """
        services = self.services
        services.draining.set()
        seconds = services.settings.limits.shutdown_s
        end = time.monotonic() + seconds
        await self._wait_idle(end - min(1.0, seconds / 4))  # the rest is for aborting what does not end
        services.aborted.set()
        for server in self.servers:
            server.close()
        if self._wyoming is not None:
            self._wyoming.close()
        await self._wait_idle(end)
        self.config.timeout_graceful_shutdown = 1
        await super().shutdown(sockets)
        for connection in list(self.gate.connections):
            connection.abort()  # clients that do not read what was sent keep theirs open
        await anyio.sleep(0)

    async def _wait_idle(self, end: float) -> None:
        while self.services.is_serving and not self.force_exit and time.monotonic() < end:
            await anyio.sleep(0.05)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        if self.services.keys.has_file and sys.platform != "win32":
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: self.services.keys.mark_stale())
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown; a second call ends the server at once."""
        self.ended_by = signal.Signals(sig)
        super().handle_exit(sig, frame)


def check_certificate(listening: Listening) -> None:
    if listening.certificate is None or listening.key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(listening.certificate, listening.key)
    except OSError as error:  # SSLError is one
        raise OptionError(
            f"TLS: expected PEM files of a certificate and its key, got '{listening.certificate}' and "
            f"'{listening.key}' ({cause_of(error)})"
        ) from error


def listening_socket(listening: Listening) -> Socket:
    where = (listening.host, listening.port)
    try:
        family = socket.getaddrinfo(*where, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server(where, family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise OptionError(f"port {listening.port} is in use; choose another one (--port)") from error
        raise OptionError(
            f"{listening.host}, port {listening.port}: expected an address of this machine, "
            f"got '{cause_of(error)}'"
        ) from error


NAME = "sottovoce"
_NAMED = re.compile(r"[\w.]*Error: (?P<what>.+)")
EXTRA_REQUESTS = 16
MORE_AFTER_S, FEWER_AFTER_S = 30.0, 600.0
MAX_QUEUED = 256


@contextmanager
def serving_on_ray(
    settings: ServerSettings, open_model: Callable[[str], Recogniser], replicas: Replicas
) -> Iterator[None]:
    """Deploy the app, which then answers at its address on every machine of the cluster.

    open_model: called in the replicas. Raises: MissingExtraError, OptionError.
    """
    serve = import_ray("ray.serve")
    connect(None)
    key = settings.access.secret_key or secrets.token_bytes()
    shared = replace(settings, access=replace(settings.access, secret_key=key))
    listening = settings.listening
    try:
        serve.start(
            proxy_location="EveryNode",
            http_options={
                "host": listening.host,
                "port": listening.port,
                "ssl_certfile": listening.certificate,
                "ssl_keyfile": listening.key,
            },
        )
        serve.run(deployment(serve, shared, open_model, replicas).bind(), name=NAME, route_prefix="/")
    except (RuntimeError, ValueError) as error:
        app = serve.status().applications.get(NAME)
        messages = [] if app is None else [app.message, *(part.message for part in app.deployments.values())]
        serve.shutdown()
        why = reason([str(error), *messages])
        raise OptionError(f"--replicas: expected servers that come up, got '{why}'") from error
    try:
        yield
    finally:
        serve.shutdown()


def deployment(
    serve: ModuleType, settings: ServerSettings, open_model: Callable[[str], Recogniser], replicas: Replicas
) -> Deployment:
    def build() -> Starlette:
        log_as_json(logging.INFO)
        opened = {name: open_model(name) for name in settings.models.at_start}
        return make_app(settings, lambda name: opened.get(name) or open_model(name))

    limits = settings.limits
    deployment: Deployment = serve.deployment(
        serve.ingress(build)(),
        name=NAME,
        max_ongoing_requests=limits.sessions + limits.requests + EXTRA_REQUESTS,
        max_queued_requests=MAX_QUEUED,
        autoscaling_config={
            "min_replicas": replicas.n_min,
            "max_replicas": replicas.n_max,
            "target_ongoing_requests": 8,
            "upscale_delay_s": MORE_AFTER_S,
            "downscale_delay_s": FEWER_AFTER_S,
        },
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
        graceful_shutdown_timeout_s=600.0,
    )
    return deployment


def reason(texts: Sequence[str]) -> str:
    """Return the last line of texts and tracebacks that names an error, without the name."""
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    named = [match["what"] for line in lines if (match := _NAMED.match(line))]
    return (named or lines or ["no reason given"])[-1][:300]
