"""The work of `sottovoce serve`: settings of the server from its options, and the server."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sottovoce.api import Model
from sottovoce.backends.registry import choose_device
from sottovoce.cli.call import Call
from sottovoce.cli.flags import read_values
from sottovoce.cli.options import chat_server, open_model
from sottovoce.errors import MissingExtraError, OptionError
from sottovoce.models.sources.names import default_model
from sottovoce.options.schema import made, options_of
from sottovoce.serving.settings import (
    API_KEYS,
    Access,
    JobSettings,
    Listening,
    ModelSettings,
    Replicas,
    ServerLimits,
    ServerSettings,
    TranslationSettings,
    Work,
    WyomingAddress,
    read_secret,
)
from sottovoce.text.files import read_lines

if TYPE_CHECKING:
    from sottovoce.serving.http.server import Server

SETTINGS = tuple(
    option
    for owner in (Listening, ModelSettings, Access, ServerLimits, Work, JobSettings, ServerSettings)
    for option in options_of(owner)
)
EXTRA = frozenset(
    {"starlette", "uvicorn", "httptools", "anyio", "python_multipart", "websockets", "prometheus_client"}
)
LOOK_EVERY_S = 0.5
SWITCH_S = 0.0005
"""That a thread keeps the interpreter while others want it, a tenth of Python's: a thread of the model
wants it after every operation, and one that prepares phrases does not give it up by itself."""


def serve_app(given: dict[str, Any], call: Call) -> int:
    """Serve until a signal; return the exit code: 0 after Ctrl-C, 143 after SIGTERM.

    Raises: OptionError, MissingExtraError, and what keeps the model from being loaded.
    """
    before = set(threading.enumerate())
    paths = model_paths(given)
    settings = settings_of(given, list(paths))

    open_named = partial(open_one, given, paths)
    if given["ray"]:
        return serve_on_ray(given, settings, open_named, call)
    server = make_server(settings, open_named)
    from sottovoce.serving.http.request_log import log_as_json
    from sottovoce.serving.recordings.decode_pool import THREAD_NAME as DECODING
    from sottovoce.serving.scheduling.worker import THREAD_NAME

    names = (THREAD_NAME, DECODING)

    log_as_json(logging.DEBUG if call.verbosity else logging.INFO)
    sys.setswitchinterval(SWITCH_S)
    server.services.ends_process = True
    server.serve_until_ended()
    is_polite = server.ended_by is None or server.ended_by is signal.SIGINT
    code = 0 if is_polite else 128 + int(server.ended_by or 0)
    if server.broken_by is not None:
        code = 1
    if any(thread.name.startswith(names) for thread in set(threading.enumerate()) - before):
        sys.stderr.flush()
        os._exit(code)  # the interpreter's own end would tear that thread out of the model, and crash
    return code


def open_one(given: Mapping[str, Any], paths: Mapping[str, str], name: str) -> Model:
    """Load a model by its name; in a process of its own too.

    Raises: ModelNotFoundError, CheckpointError, OptionError.
    """
    return open_model({**given, "model": paths[name]})


def serve_on_ray(given: Mapping[str, Any], settings: ServerSettings, open_named: Any, call: Call) -> int:
    """Serve as replicas of a Ray cluster, until a signal.

    Raises: OptionError, MissingExtraError.
    """
    if settings.listening.port == 0:
        raise OptionError("--ray: expected a --port, got 0: every machine listens on the same one")
    if settings.wyoming:
        raise OptionError("--ray: expected without --wyoming, which is a port of one process")
    if settings.jobs:
        raise OptionError("--ray: expected without --jobs-dir, which is a folder of one process")
    with needing_extra():
        from sottovoce.serving.ray.cluster import counts
        from sottovoce.serving.ray.deployment import serving_on_ray
    least, most = counts("--replicas", given["replicas"])
    replicas = made(Replicas, given, n_min=least, n_max=most)
    warn_if_open(settings)
    with serving_on_ray(settings, open_named, replicas, address=given["ray_address"]):
        say_where(settings, settings.listening.port)
        try:
            while True:
                call.interrupts.check()
                time.sleep(LOOK_EVERY_S)
        except KeyboardInterrupt:
            call.interrupts.take()
    return 128 + signal.SIGTERM if call.interrupts.is_polite_end else 0


@contextmanager
def needing_extra() -> Iterator[None]:
    """Raises: MissingExtraError where a package of the extra `serve` is not there."""
    try:
        yield
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        if name in EXTRA:
            raise MissingExtraError(name, "serve", "sottovoce serve") from error
        raise


def warn_if_open(settings: ServerSettings) -> None:
    """Say that everybody may ask, where more than this machine can."""
    listening = settings.listening
    if not listening.is_loopback and not settings.access.has_keys:
        click.echo(f"warning: {listening.host} is open to all who reach it: set {API_KEYS}", err=True)
    if settings.wyoming and not settings.wyoming.is_loopback:
        click.echo(f"warning: Wyoming at {settings.wyoming.host} is open to all who reach it", err=True)


def say_where(settings: ServerSettings, port: int) -> None:
    listening = settings.listening
    host = f"[{listening.host}]" if ":" in listening.host else listening.host
    click.echo(f"listening on {listening.scheme}://{host}:{port}", err=True)


def make_server(settings: ServerSettings, open_named: Any) -> Server:
    with needing_extra():
        from sottovoce.serving.http.server import Server
    warn_if_open(settings)
    return Server(settings, open_named, partial(say_where, settings))


def settings_of(given: Mapping[str, Any], names: list[str]) -> ServerSettings:
    """Make settings of the options; names: of the models, the default one first.

    Raises: OptionError.
    """
    values = read_values(given, SETTINGS)
    second = given["second_model"]
    return made(
        ServerSettings,
        values,
        models=made(
            ModelSettings,
            values,
            model=names[0],
            others=tuple(map(name_of, given["also_model"])),
            aliases=aliases(given["alias"]),
            beam_size=given["beam_size"],
            second=second and name_of(second),
        ),
        listening=made(Listening, values),
        wyoming=WyomingAddress.parse(given["wyoming"]) if given["wyoming"] else None,
        access=made(Access, values, api_keys=api_keys(given["api_key_file"], os.environ.get(API_KEYS, ""))),
        limits=made(ServerLimits, values, session_s=values["max_duration"]),
        translation=TranslationSettings(*chat_server(given)) if given["translation_url"] else None,
        jobs=jobs(given, values) if given["jobs_dir"] else None,
        work=made(Work, values, threads=given["threads"]),
    )


def jobs(given: Mapping[str, Any], values: Mapping[str, Any]) -> JobSettings:
    path = given["webhook_secret_file"]
    if given["webhook_allow"] and path is None and given["keys"] is None:
        raise OptionError("--webhook-allow: needs --webhook-secret-file, or secrets in the file of --keys")
    secret = None if path is None else read_secret(path)
    return made(JobSettings, values, folder=given["jobs_dir"], webhook_secret=secret)


def model_paths(given: Mapping[str, Any]) -> dict[str, str]:
    """Map names to what is loaded; a file or folder is called by its last part, not by its place.

    Raises: OptionError where two would be called alike.
    """
    default = given["model"] or default_model(choose_device(given["device"]).type)
    found: dict[str, str] = {}
    second = [given["second_model"]] if given["second_model"] else []
    for path in (default, *given["also_model"], *second):
        name = name_of(path)
        if found.setdefault(name, path) != path:
            flag = "--second-model" if path in second else "--also-model"
            raise OptionError(f"{flag} '{path}': expected another name than '{found[name]}' has")
    return found


def name_of(path: str) -> str:
    """Return the name of a model: of a file or folder its last part, not its place."""
    return Path(path).name if Path(path).exists() else path


def aliases(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, model = pair.partition("=")
        if not (name and equals and model):
            raise OptionError(f"--alias: expected NAME=MODEL, got '{pair}'")
        found[name] = model
    return found


def api_keys(path: str | None, environment: str) -> tuple[str, ...]:
    """Read the keys of a file and of the environment; empty lines and those that begin with # are none.

    Raises: OptionError for a file that cannot be read or holds no key: it was meant to close the door.
    """
    keys = [key.strip() for key in environment.split(",")]
    if path is not None:
        lines = read_lines(path, "a file of keys", name=f"--api-key-file '{path}'")
        of_file = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not of_file:
            raise OptionError(f"--api-key-file '{path}': expected a key a line, got none")
        keys += of_file
    return tuple(dict.fromkeys(key for key in keys if key))
