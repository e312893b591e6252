"""`sottovoce serve`: options, also from `--config`, and the server. Imports nothing heavy, so that `--help`
is fast.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sottovoce.cli.flags import Flag, Given, SectionedCommand, given_as, read_values, value_of
from sottovoce.cli.invocation import Invocation, invocation_of
from sottovoce.cli.options import MODEL, SERVER, ModelOptions, TranslationOptions, beam_size, open_model
from sottovoce.errors import MissingExtraError, OptionError, cause_of
from sottovoce.options.schema import Option, made, options_of
from sottovoce.server.settings import (
    API_KEYS,
    ENVIRONMENT,
    WEBHOOK_SECRET,
    Access,
    JobSettings,
    Listening,
    ModelSettings,
    Replicas,
    ServerLimits,
    ServerSettings,
    TranslationSettings,
    Work,
    secret_of,
    wyoming_address,
)
from sottovoce.text.files import read_text

if TYPE_CHECKING:
    from sottovoce.api import Model
    from sottovoce.server.server import Server

SETTINGS = tuple(
    option
    for owner in (Listening, ModelSettings, Access, ServerLimits, Work, JobSettings, ServerSettings)
    for option in options_of(owner)
)
FIXED = ("backend", "model_dir", "local_only")
"""Model options without a flag here; HF_HOME, XDG_CACHE_HOME and HF_HUB_OFFLINE set them."""
EXTRA = frozenset(
    {"starlette", "uvicorn", "httptools", "anyio", "python_multipart", "websockets", "prometheus_client"}
)
LOOK_EVERY_S = 0.5
SWITCH_S = 0.0005
"""Seconds for which a thread keeps the interpreter, a tenth of Python's default, because model threads need
it after every operation.
"""


def declared(owner: type) -> tuple[Option, ...]:
    """Return the options of settings, with default times as h:mm:ss."""
    return tuple(
        replace(option, cli_default=clock(option.default))
        if option.kind == "time" and isinstance(option.default, float)
        else option
        for option in options_of(owner)
    )


def clock(seconds: float) -> str:
    """Write seconds as h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


SECTIONS: dict[str, tuple[Flag, ...]] = {
    "Address": (
        *declared(Listening),
        click.option(
            "--tls",
            nargs=2,
            metavar="CERTIFICATE KEY",
            help="PEM files of the certificate and its key, for https.",
        ),
        Option(
            "Address for Wyoming (Home Assistant), which has no authentication.",
            unset="off",
            key="wyoming",
            metavar="tcp://HOST:PORT",
        ),
        *declared(ServerSettings),
    ),
    "Model": (
        *(option for option in MODEL if option.key not in FIXED),
        Option(
            "Another model for requests, loaded at the first one, optionally under another NAME. "
            "OpenAI's names mean --model unless given here. Repeatable.",
            key="also_model",
            metavar="[NAME=]MODEL",
            many=True,
        ),
        Option(
            "A larger model that decodes uncertain parts of recordings again; loaded at the start.",
            key="second_model",
            metavar="NAME|PATH",
        ),
        *declared(ModelSettings),
        *beam_size(5),
    ),
    "Access": declared(Access),
    "Limits": (*declared(ServerLimits), *declared(Work)),
    "Jobs": (
        Option(
            "Accept jobs (/v1/jobs), and keep recordings and results in this folder.",
            unset="off",
            key="jobs_dir",
            metavar="DIR",
        ),
        *declared(JobSettings),
    ),
    "Translation of live speech": SERVER,
    "More than one machine": (
        Option(
            "Number of servers on a Ray cluster (RAY_ADDRESS, or a new one on this machine; extra "
            "`ray`); Ray chooses from MIN-MAX by connections. Each has --threads processors, or "
            "one.",
            unset="one server without Ray",
            key="replicas",
            metavar="N|MIN-MAX",
        ),
        *declared(Replicas),
    ),
}


@click.command(cls=SectionedCommand, sections=SECTIONS, context_settings={"auto_envvar_prefix": ENVIRONMENT})
@click.option(
    "--config",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, path: configure(context, path),
    help="TOML file with options, such as port = 8000. Flags and the environment take precedence.",
)
@click.pass_context
def serve(context: click.Context, /, **given: object) -> int:
    """Serve OpenAI's transcription API, live sockets and a web page (needs the extra `serve`).

    Every option can also be set in the file of --config or in the environment: SOTTOVOCE_SERVE_PORT is
    --port. Flags take precedence over the environment, and the environment over the file.
    """
    return serve_app(given, invocation_of(context))


def serve_app(given: Given, invocation: Invocation) -> int:
    """Serve until a signal; return the exit code: 0 after Ctrl-C, 143 after SIGTERM.

    Raises: OptionError, MissingExtraError, and the errors of loading the model.
    """
    before = set(threading.enumerate())
    model = given_as(ModelOptions, given)
    paths = model_paths(given)
    settings = settings_of(given, list(paths))
    open_named = partial(open_one, model, paths)
    replicas = value_of(given, "replicas", str)
    if replicas is not None:
        return serve_on_ray(given, replicas, model.threads or 1, settings, open_named, invocation)
    server = make_server(settings, open_named)
    from sottovoce.runtime.batching import THREAD_NAME
    from sottovoce.server.decode_pool import THREAD_NAME as DECODING
    from sottovoce.server.telemetry import log_as_json

    names = (THREAD_NAME, DECODING)

    log_as_json(logging.DEBUG if invocation.verbosity else logging.INFO)
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


def open_one(options: ModelOptions, paths: Mapping[str, str], name: str) -> Model:
    """Load a model by its name. Raises: ModelNotFoundError, CheckpointError, OptionError."""
    return open_model(replace(options, model=paths[name]))


def serve_on_ray(
    given: Given,
    counted: str,
    n_processors: int,
    settings: ServerSettings,
    open_named: Callable[[str], Model],
    invocation: Invocation,
) -> int:
    """Serve as replicas of a Ray cluster until a signal. Raises: OptionError, MissingExtraError."""
    if settings.listening.port == 0:
        raise OptionError("--replicas: expected a fixed --port for all machines, got 0")
    if settings.wyoming:
        raise OptionError("--replicas: cannot be combined with --wyoming, which needs one process")
    if settings.jobs:
        raise OptionError("--replicas: cannot be combined with --jobs-dir, which needs one process")
    with needing_extra():
        from sottovoce.server.ray_cluster import parse_range
        from sottovoce.server.ray_replicas import serving_on_ray
    least, most = parse_range("--replicas", counted)
    replicas = made(Replicas, given, n_min=least, n_max=most, cpus=float(n_processors))
    warn_if_open(settings)
    with serving_on_ray(settings, open_named, replicas):
        say_where(settings, settings.listening.port)
        try:
            while True:
                invocation.interrupts.check()
                time.sleep(LOOK_EVERY_S)
        except KeyboardInterrupt:
            invocation.interrupts.take()
    return 128 + signal.SIGTERM if invocation.interrupts.is_polite_end else 0


@contextmanager
def needing_extra() -> Iterator[None]:
    """Raise MissingExtraError for a missing package of the extra `serve`."""
    try:
        yield
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        if name in EXTRA:
            raise MissingExtraError(name, "serve", "sottovoce serve") from error
        raise


def warn_if_open(settings: ServerSettings) -> None:
    """Warn if other machines can use the server without a key."""
    listening = settings.listening
    if not listening.is_loopback and not settings.access.has_keys:
        click.echo(
            f"warning: {listening.host} is open to everybody who can reach it: set {API_KEYS}", err=True
        )
    if settings.wyoming and not settings.wyoming.is_loopback:
        click.echo(
            f"warning: Wyoming at {settings.wyoming.host} is open to everybody who can reach it", err=True
        )


def say_where(settings: ServerSettings, port: int) -> None:
    listening = settings.listening
    host = f"[{listening.host}]" if ":" in listening.host else listening.host
    click.echo(f"listening on {listening.scheme}://{host}:{port}", err=True)


def make_server(settings: ServerSettings, open_named: Callable[[str], Model]) -> Server:
    with needing_extra():
        from sottovoce.server.server import Server
    warn_if_open(settings)
    return Server(settings, open_named, partial(say_where, settings))


def settings_of(given: Given, names: list[str]) -> ServerSettings:
    """Make the settings. names: of the models, the default one first. Raises: OptionError."""
    values = read_values(given, SETTINGS)
    second, wyoming = value_of(given, "second_model", str), value_of(given, "wyoming", str)
    certificate, key = value_of(given, "tls", tuple) or (None, None)
    others = [split_name(entry) for entry in value_of(given, "also_model", tuple) or ()]
    server = given_as(TranslationOptions, given).chat_server()
    folder = value_of(given, "jobs_dir", str)
    keys = dict.fromkeys(key.strip() for key in os.environ.get(API_KEYS, "").split(",") if key.strip())
    return made(
        ServerSettings,
        values,
        models=made(
            ModelSettings,
            values,
            model=names[0],
            others=tuple(name_of(path) for _, path in others),
            aliases={alias: name_of(path) for alias, path in others if alias},
            beam_size=given["beam_size"],
            second=second and name_of(second),
        ),
        listening=made(Listening, values, certificate=certificate, key=key),
        wyoming=wyoming_address(wyoming) if wyoming else None,
        access=made(Access, values, api_keys=tuple(keys)),
        limits=made(ServerLimits, values, session_s=values["max_duration"]),
        translation=TranslationSettings(*server) if server else None,
        jobs=jobs(folder, values) if folder else None,
        work=made(Work, values, threads=given["threads"]),
    )


def jobs(folder: str, values: Mapping[str, object]) -> JobSettings:
    secret = os.environ.get(WEBHOOK_SECRET)
    return made(
        JobSettings,
        values,
        folder=folder,
        most_mb=values["max_uploads_mb"],
        webhook_secret=secret and secret_of(WEBHOOK_SECRET, secret),
    )


def model_paths(given: Given) -> dict[str, str]:
    """Map names to paths; the name of a file or folder is the last part of its path.

    Raises: OptionError for two of the same name.
    """
    from sottovoce.models.devices import choose_device
    from sottovoce.models.sources.names import default_model

    options = given_as(ModelOptions, given)
    default = options.model or default_model(choose_device(options.device).type)
    found: dict[str, str] = {}
    second = [path] if (path := value_of(given, "second_model", str)) else []
    also = value_of(given, "also_model", tuple) or ()
    for path in (default, *(split_name(entry)[1] for entry in also), *second):
        name = name_of(path)
        if found.setdefault(name, path) != path:
            flag = "--second-model" if path in second else "--also-model"
            raise OptionError(f"{flag} '{path}': has the same name as '{found[name]}'")
    return found


def split_name(entry: str) -> tuple[str, str]:
    """Return the alias, or "", and the model of --also-model. Raises: OptionError."""
    alias, equals, model = entry.partition("=")
    if not equals or Path(entry).exists():
        return "", entry
    if not (alias and model):
        raise OptionError(f"--also-model: expected MODEL or NAME=MODEL, got '{entry}'")
    return alias, model


def name_of(path: str) -> str:
    return Path(path).name if Path(path).exists() else path


def configure(context: click.Context, path: str | None) -> None:
    if path is not None:
        context.default_map = {**(context.default_map or {}), **defaults(context.command, path)}


def defaults(command: click.Command, path: str) -> Mapping[str, object]:
    """Return the values of a file by parameter name.

    Raises: BadParameter for an unreadable file and for an unknown name.
    """
    parameters = {
        name.removeprefix("--"): option.name
        for option in command.params
        if isinstance(option, click.Option) and option.expose_value
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--")
    }
    found = {name.replace("_", "-"): value for name, value in read_toml(path).items()}
    for name, value in found.items():
        if name not in parameters:
            raise click.BadParameter(
                f"'{path}': expected names of options, got '{name}'", param_hint="--config"
            )
        if isinstance(value, dict):
            raise click.BadParameter(
                f"'{path}': expected a value for '{name}', got a table", param_hint="--config"
            )
    return {str(parameters[name]): value for name, value in found.items()}


def read_toml(path: str) -> dict[str, object]:
    """Read a TOML file. Raises: BadParameter; MissingExtraError on a Python without a reader."""
    try:
        reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise MissingExtraError("tomli", "serve", "--config") from None
    try:
        document: dict[str, object] = reader.loads(read_text(path, "a TOML file"))
    except OptionError as error:
        raise click.BadParameter(str(error), param_hint="--config") from error
    except ValueError as error:
        raise click.BadParameter(
            f"'{path}': expected a TOML file, got '{cause_of(error)}'", param_hint="--config"
        ) from error
    return document
