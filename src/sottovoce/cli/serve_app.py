"""What `sottovoce serve` was asked for, as settings of the server; and the server."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sottovoce.api import Model, default_model
from sottovoce.backends.registry import choose_device
from sottovoce.cli.call import Call
from sottovoce.cli.options import open_model
from sottovoce.cli.serve import API_KEYS
from sottovoce.errors import MissingExtraError, OptionError
from sottovoce.serving.settings import Access, Limits, Listening, Offer, Settings, WyomingAddress

if TYPE_CHECKING:
    from sottovoce.serving.server import Server

WORKER_NAME = "sottovoce-model"
"""Of the threads that do a model's work."""


def serve_app(given: dict[str, Any], call: Call) -> int:
    """Serve until a signal; return the exit code: 0 after Ctrl-C, 143 after SIGTERM.

    Raises: OptionError, MissingExtraError, and what keeps the model from being loaded.
    """
    paths = model_paths(given)
    settings = settings_of(given, list(paths))

    def open_named(name: str) -> Model:
        return open_model({**given, "model": paths[name]})

    server = make_server(settings, open_named)
    from sottovoce.serving.logs import log_as_json

    log_as_json(logging.DEBUG if call.verbosity else logging.INFO)
    server.serve_until_ended()
    is_polite = server.ended_by is None or server.ended_by is signal.SIGINT
    code = 0 if is_polite else 128 + int(server.ended_by or 0)
    if any(thread.name == WORKER_NAME for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(code)  # the interpreter's own end would tear that thread out of the model, and crash
    return code


def make_server(settings: Settings, open_named: Any) -> Server:
    """The server, listening.

    Raises: MissingExtraError without the packages of the extra; OptionError for an address that is taken.
    """
    try:
        from sottovoce.serving.server import Server
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("starlette", "uvicorn", "anyio", "python_multipart", "websockets"):
            raise MissingExtraError(name, "serve", "sottovoce serve") from error
        raise
    listening = settings.listening
    if not listening.is_loopback and not settings.access.api_keys:
        click.echo(f"warning: {listening.host} is open to all who reach it: set {API_KEYS}", err=True)

    if settings.wyoming and not settings.wyoming.is_loopback:
        click.echo(f"warning: Wyoming at {settings.wyoming.host} is open to all who reach it", err=True)

    def on_listening(port: int) -> None:
        host = f"[{listening.host}]" if ":" in listening.host else listening.host
        click.echo(f"listening on {listening.scheme}://{host}:{port}", err=True)

    return Server(settings, open_named, on_listening)


def settings_of(given: Mapping[str, Any], names: list[str]) -> Settings:
    """The options as settings; names: of the models, the default one first.

    Raises: OptionError.
    """
    return Settings(
        offer=Offer(
            model=names[0],
            others=tuple(names[1:]),
            aliases=aliases(given["alias"]),
            beam_size=given["beam_size"],
            unload_s=given["unload_after"],
            preload=not given["no_preload"],
        ),
        listening=Listening(given["host"], given["port"], given["tls_certificate"], given["tls_key"]),
        wyoming=WyomingAddress.parse(given["wyoming"]) if given["wyoming"] else None,
        access=Access(
            api_keys=api_keys(given["api_key_file"], os.environ.get(API_KEYS, "")),
            origins=tuple(given["allow_origin"]),
            hosts=tuple(given["allow_host"]),
        ),
        limits=Limits(
            sessions=given["max_sessions"],
            requests=given["max_requests"],
            upload_mb=given["max_upload_mb"],
            duration_s=given["max_duration"],
            message_kb=given["max_message_kb"],
            wait_s=given["max_wait"],
            session_s=given["max_session"],
            idle_s=given["idle_timeout"],
            shutdown_s=given["shutdown_timeout"],
        ),
    )


def model_paths(given: Mapping[str, Any]) -> dict[str, str]:
    """What is loaded for each name; a file or folder is called by its last part, not by its place.

    Raises: OptionError where two would be called alike.
    """
    default = given["model"] or default_model(choose_device(given["device"]))
    found: dict[str, str] = {}
    for path in (default, *given["also_model"]):
        name = Path(path).name if Path(path).exists() else path
        if found.setdefault(name, path) != path:
            raise OptionError(f"--also-model '{path}': expected another name than '{found[name]}' has")
    return found


def aliases(pairs: tuple[str, ...]) -> dict[str, str]:
    """Names with the models they mean.

    Raises: OptionError.
    """
    found = {}
    for pair in pairs:
        name, equals, model = pair.partition("=")
        if not (name and equals and model):
            raise OptionError(f"--alias: expected NAME=MODEL, got '{pair}'")
        found[name] = model
    return found


def api_keys(path: str | None, environment: str) -> tuple[str, ...]:
    """The keys of a file and of the environment; empty lines and those that begin with # are none.

    Raises: OptionError for a file that cannot be read or holds no key: it was meant to close the door.
    """
    keys = [key.strip() for key in environment.split(",")]
    if path is not None:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or "no text"
            raise OptionError(f"--api-key-file '{path}': expected a file of keys, got '{cause}'") from error
        of_file = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not of_file:
            raise OptionError(f"--api-key-file '{path}': expected a key a line, got none")
        keys += of_file
    return tuple(dict.fromkeys(key for key in keys if key))
