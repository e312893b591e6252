"""`sottovoce serve`: options, also from `--config`, and the server."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sottovoce.archive.ray_cluster import Replicas, parse_range
from sottovoce.cli.invocation import Invocation, invocation_of
from sottovoce.cli.options import (
    BEAM_SIZE,
    FINAL_MODEL,
    FUSION,
    MODEL,
    OF_CHAT,
    TRANSLATION,
    Flag,
    FusionOptions,
    ModelOptions,
    SectionedCommand,
    TranslationOptions,
    grouped,
    open_model,
)
from sottovoce.errors import MissingExtraError, OptionError
from sottovoce.options.schema import Option, Values, from_values, options_of
from sottovoce.server.settings import (
    API_KEYS,
    ENVIRONMENT,
    WEBHOOK_SECRET,
    WILDCARDS,
    Access,
    JobSettings,
    Listening,
    ModelSettings,
    ServerLimits,
    ServerSettings,
    TranslationSettings,
    Work,
    secret_of,
    wyoming_address,
)
from sottovoce.text.files import read_toml

if TYPE_CHECKING:
    from sottovoce.recogniser import Recogniser
    from sottovoce.types import Samples

FIXED = ("backend", "model_dir", "local_only")
"""Model options without a flag here; HF_HOME and HF_HUB_OFFLINE set the last two."""
EXTRA = frozenset(
    {"starlette", "uvicorn", "httptools", "anyio", "python_multipart", "websockets", "prometheus_client"}
)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    wyoming: str | None = Option(
        "Address for Wyoming (Home Assistant), which has no authentication.",
        unset="off",
        group="Address",
        metavar="tcp://HOST:PORT",
    ).as_field(None)
    also_model: tuple[str, ...] = Option(
        "Another model for requests, loaded at the first one, optionally under another NAME. "
        "OpenAI's names mean --model unless given here. Repeatable.",
        group="Model",
        metavar="[NAME=]MODEL",
        many=True,
    ).as_field(())
    second_model: str | None = Option(
        "A larger model that decodes uncertain parts of recordings again; loaded at the start.",
        group="Model",
        metavar="NAME|PATH",
    ).as_field(None)
    final_model: str | None = replace(FINAL_MODEL, group="Model").as_field(None)
    voices: str | None = Option(
        "Folder with voices that `sottovoce voices` has kept: their speakers get names.",
        unset="letters alone",
        group="Model",
        metavar="DIR",
    ).as_field(None)
    jobs_dir: str | None = Option(
        "Accept jobs (/v1/jobs), and keep recordings and results in this folder.",
        unset="off",
        group="Jobs",
        metavar="DIR",
    ).as_field(None)
    replicas: str | None = Option(
        "Number of servers on a Ray cluster (RAY_ADDRESS, or a new one on this machine; extra "
        "`ray`); Ray chooses from MIN-MAX by connections. Each has --threads processors, or "
        "one.",
        unset="one server without Ray",
        group="Replicas",
        metavar="N|MIN-MAX",
    ).as_field(None)


SERVE = options_of(ServeOptions)
TLS = click.Option(
    ["--tls"], nargs=2, metavar="CERTIFICATE KEY", help="PEM files of the certificate and its key, for https."
)
LANGUAGE_MODELS = tuple(
    replace(option, flag="--decoder-config") if option.key == "decoder" else option for option in FUSION
)
SECTIONS: Mapping[str, tuple[Flag, ...]] = {
    "Address": (*options_of(Listening), TLS, *grouped("Address", of=SERVE), *options_of(ServerSettings)),
    "Model": (
        *(option for option in MODEL if option.key not in FIXED),
        *grouped("Model", of=SERVE),
        *options_of(ModelSettings),
        BEAM_SIZE,
    ),
    "Language models of --model": LANGUAGE_MODELS,
    "Access": options_of(Access),
    "Limits": (*options_of(ServerLimits), *options_of(Work)),
    "Jobs": (*grouped("Jobs", of=SERVE), *options_of(JobSettings)),
    "Translation of live speech": TRANSLATION[1:],
    "More than one machine": (*grouped("Replicas", of=SERVE), *options_of(Replicas)),
}


USUAL = ("model", "port", "host", "also_model", "wyoming", "jobs_dir", "tls", "config", "device", "threads")
EXAMPLES = (
    ("sottovoce serve", "live captions at http://127.0.0.1:8000, and the APIs"),
    ("sottovoce serve --host 0.0.0.0", f"for other machines too; set {API_KEYS}"),
    ("sottovoce serve --wyoming tcp://0.0.0.0:10300", "speech to text for Home Assistant"),
)


@click.command(
    cls=SectionedCommand,
    sections=SECTIONS,
    needed={
        "jobs_dir": [option.param for option in options_of(JobSettings)],
        "replicas": [option.param for option in options_of(Replicas)],
        **OF_CHAT,
    },
    usual=USUAL,
    examples=EXAMPLES,
    context_settings={"auto_envvar_prefix": ENVIRONMENT},
)
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
    known = {f"{ENVIRONMENT}_{name.upper()}" for name in (*given, "config")} | {API_KEYS, WEBHOOK_SECRET}
    for name in sorted(os.environ):  # no error: Kubernetes sets variables of a service that has our name
        if name.startswith(f"{ENVIRONMENT}_") and name not in known:
            click.echo(f"warning: {name}: there is no option of that name", err=True)
    return serve_app(given, invocation_of(context))


def serve_app(given: Values, invocation: Invocation) -> int:
    """Serve until a signal; return the exit code: 0 after Ctrl-C, 143 after SIGTERM."""
    before = set(threading.enumerate())
    model = from_values(ModelOptions, given)
    paths = model_paths(given)
    settings = settings_of(given, list(paths))
    fusion = from_values(FusionOptions, given)
    if fusion.prompt is not None:
        raise OptionError(f"--hotwords: expected a file of phrases, got {fusion.prompt}")
    fusion.check(given["beam_size"])
    open_named = partial(open_one, model, paths, fusion)
    if given["replicas"] is not None:
        return serve_on_ray(given, settings, open_named, invocation)
    with needing_extra():
        from sottovoce.server.server import Server
    from sottovoce.models.sources import check_name
    from sottovoce.runtime.batching import THREAD_NAME
    from sottovoce.server.telemetry import log_as_json, log_for_people
    from sottovoce.server.worker import DECODE_THREADS

    for path in paths.values():
        check_name(path, model.sources())
    warn_if_open(settings)
    server = Server(settings, open_named, partial(say_where, settings))

    level = logging.DEBUG if invocation.verbosity else logging.INFO
    if sys.stderr.isatty() and not invocation.verbosity:
        log_for_people()
    else:
        log_as_json(level)
    sys.setswitchinterval(0.0005)  # model threads need the interpreter after every operation
    server.services.ends_process = True
    if sys.stderr.isatty():
        click.echo(f"loading {settings.models.model} …; Ctrl-C stops the server", err=True)
    server.serve_until_ended()
    is_polite = server.ended_by is None or server.ended_by is signal.SIGINT
    code = 0 if is_polite else 128 + int(server.ended_by or 0)
    if server.broken_by is not None:
        code = 1
    begun = set(threading.enumerate()) - before
    if any(thread.name.startswith((THREAD_NAME, DECODE_THREADS)) for thread in begun):
        sys.stderr.flush()
        os._exit(code)  # the interpreter's own end would tear that thread out of the model, and crash
    return code


def open_one(options: ModelOptions, paths: Mapping[str, str], fusion: FusionOptions, name: str) -> Recogniser:
    is_default = name == next(iter(paths))
    return open_model(replace(options, model=paths[name]), fusion if is_default else None)


def serve_on_ray(
    given: Values, settings: ServerSettings, open_named: Callable[[str], Recogniser], invocation: Invocation
) -> int:
    """Serve as replicas of a Ray cluster until a signal."""
    if settings.listening.port == 0:
        raise OptionError("--replicas: expected a fixed --port for all machines, got 0")
    for flag, is_used in (("--wyoming", settings.wyoming), ("--jobs-dir", settings.jobs)):
        if is_used:
            raise OptionError(f"--replicas: cannot be combined with {flag}, which needs one process")
    with needing_extra():
        from sottovoce.server.server import serving_on_ray
    least, most = parse_range("--replicas", given["replicas"])
    replicas = from_values(Replicas, given, n_min=least, n_max=most, cpus=float(given["threads"] or 1))
    warn_if_open(settings)
    with serving_on_ray(settings, open_named, replicas):
        say_where(settings, settings.listening.port)
        try:
            while True:
                invocation.interrupts.check()
                time.sleep(0.5)
        except KeyboardInterrupt:
            invocation.interrupts.take()
    return 128 + signal.SIGTERM if invocation.interrupts.is_polite_end else 0


@contextmanager
def needing_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        if name in EXTRA:
            raise MissingExtraError(name, "serve", "sottovoce serve") from error
        raise


def warn_if_open(settings: ServerSettings) -> None:
    listening, wyoming = settings.listening, settings.wyoming
    if not listening.is_loopback and not settings.access.has_keys:
        click.echo(
            f"warning: {listening.host} is open to everybody who can reach it: set {API_KEYS}", err=True
        )
    if wyoming and not wyoming.is_loopback:
        click.echo(f"warning: Wyoming at {wyoming.host} is open to everybody who can reach it", err=True)


def say_where(settings: ServerSettings, port: int) -> None:
    listening = settings.listening
    host = f"[{listening.host}]" if ":" in listening.host else listening.host
    url = f"{listening.scheme}://{host}:{port}"
    if not sys.stderr.isatty():
        click.echo(f"listening on {url}", err=True)
        return
    elsewhere = listening.url_elsewhere(port) if listening.host in WILDCARDS else None
    if listening.host in WILDCARDS:  # no address to open
        url = f"{listening.scheme}://127.0.0.1:{port}"
    click.echo(f"Live captions  {url}\nOpenAI API     {url}/v1", err=True)
    if elsewhere is not None:
        click.echo(f"Other machines {elsewhere}", err=True)
    if settings.wyoming:
        click.echo(f"Home Assistant tcp://{settings.wyoming.host}:{settings.wyoming.port}", err=True)


def voices_of(folder: str | None) -> dict[str, Samples]:
    """Return the voices in a folder, by name. Raises: OptionError without any; AudioError."""
    if folder is None:
        return {}
    from sottovoce.speakers.diarize import VoiceBook

    voices = VoiceBook(Path(folder)).voices
    if not voices:
        raise OptionError(f"--voices: expected a folder with voices of `sottovoce voices`, got '{folder}'")
    return voices


def settings_of(given: Values, names: list[str]) -> ServerSettings:
    """Make the settings. names: of the models, the default one first. Raises: OptionError."""
    options = from_values(ServeOptions, given)
    certificate, key = given["tls"] or (None, None)
    others = [split_name(entry) for entry in options.also_model]
    server = from_values(TranslationOptions, given).chat_server()
    given_keys = os.environ.get(API_KEYS, "")
    keys = dict.fromkeys(key.strip() for key in given_keys.split(",") if key.strip())
    if given_keys and not keys:
        raise OptionError(f"{API_KEYS}: expected keys separated by commas, got none")
    secret = os.environ.get(WEBHOOK_SECRET)
    jobs = None
    if options.jobs_dir:
        signed = secret and secret_of(WEBHOOK_SECRET, secret)
        most_mb = given["max_uploads_mb"]
        jobs = from_values(
            JobSettings, given, folder=options.jobs_dir, most_mb=most_mb, webhook_secret=signed
        )
    return from_values(
        ServerSettings,
        given,
        models=from_values(
            ModelSettings,
            given,
            model=names[0],
            others=tuple(name_of(path) for _, path in others),
            aliases={alias: name_of(path) for alias, path in others if alias},
            beam_size=given["beam_size"],
            second=options.second_model and name_of(options.second_model),
            final=options.final_model and name_of(options.final_model),
            voices=voices_of(options.voices),
        ),
        listening=from_values(Listening, given, certificate=certificate, key=key),
        wyoming=wyoming_address(options.wyoming) if options.wyoming else None,
        access=from_values(Access, given, api_keys=tuple(keys)),
        limits=from_values(ServerLimits, given, session_s=given["max_duration"]),
        translation=TranslationSettings(*server) if server else None,
        jobs=jobs,
        work=from_values(Work, given, threads=given["threads"]),
    )


def model_paths(given: Values) -> dict[str, str]:
    """Map the names of models to their paths. Raises: OptionError for two of the same name."""
    from sottovoce.models.devices import choose_device
    from sottovoce.models.sources import default_model

    options = from_values(ServeOptions, given)
    default = given["model"] or default_model(choose_device(given["device"]).type)
    others = [("--also-model", split_name(entry)[1]) for entry in options.also_model]
    further = (("--second-model", options.second_model), ("--final-model", options.final_model))
    paths: dict[str, str] = {}
    for flag, path in (("--model", default), *others, *further):
        if path is None:
            continue
        name = name_of(path)
        if paths.setdefault(name, path) != path:
            raise OptionError(f"{flag} '{path}': has the same name as '{paths[name]}'")
    return paths


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
    """Return the values of a file by parameter name. Raises: BadParameter."""
    parameters = {
        name.removeprefix("--"): str(option.name)
        for option in command.params
        if isinstance(option, click.Option) and option.expose_value
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--")
    }
    values: dict[str, object] = {}
    try:
        document = read_toml(path, "a TOML file", name=f"'{path}'")
    except OptionError as error:
        raise click.BadParameter(str(error), param_hint="--config") from error
    for key, value in document.items():
        name = key.replace("_", "-")
        wanted = "names of options" if name not in parameters else f"a value for '{name}'"
        if name not in parameters or isinstance(value, dict):
            got = f"'{name}'" if name not in parameters else "a table"
            raise click.BadParameter(f"'{path}': expected {wanted}, got {got}", param_hint="--config")
        values[parameters[name]] = value
    return values
