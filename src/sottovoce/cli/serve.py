"""`sottovoce serve`: its options, also from the TOML file of `--config`; the work is in `serve_app`.

Options are those of the server's settings, and what they are made from. Imports nothing heavy: `--help`
answers at once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from sottovoce.cli.call import this_call
from sottovoce.cli.flags import SectionedCommand
from sottovoce.cli.options import MODEL, SERVER, beam_size
from sottovoce.errors import MissingExtraError, OptionError, cause_of
from sottovoce.options.schema import Option, options_of
from sottovoce.serving.settings import (
    API_KEYS,
    ENVIRONMENT,
    Access,
    JobSettings,
    Listening,
    ModelSettings,
    Replicas,
    ServerLimits,
    ServerSettings,
    Work,
)
from sottovoce.text.files import read_text


def declared(owner: type) -> tuple[Option, ...]:
    """Return the options of settings, whose default times are shown as people write them."""
    return tuple(
        replace(option, cli_default=clock(option.default)) if option.kind == "time" else option
        for option in options_of(owner)
    )


def clock(seconds: float | None) -> str | None:
    """Write seconds as h:mm:ss, or m:ss below an hour."""
    if seconds is None:
        return None
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


SECTIONS = {
    "Address": (
        *declared(Listening),
        Option(
            "Also speak Wyoming (Home Assistant) there; it knows no keys.",
            unset="no",
            key="wyoming",
            metavar="tcp://HOST:PORT",
        ),
        *declared(ServerSettings),
    ),
    "Model": (
        *MODEL,
        Option(
            "Another model that may be asked for; loaded at the first request. May be repeated.",
            key="also_model",
            metavar="NAME|PATH",
            many=True,
        ),
        Option(
            "Another name of a model; OpenAI's names mean --model unless said here. May be repeated.",
            key="alias",
            metavar="NAME=MODEL",
            many=True,
        ),
        Option(
            "A larger model that reads again what the first is not sure of, in recordings; loaded at the "
            "start.",
            key="second_model",
            metavar="NAME|PATH",
        ),
        *declared(ModelSettings),
        *beam_size(5),
    ),
    "Access": (
        Option(
            f"Keys, one a line, any of which opens the API; {API_KEYS} has more, separated by commas.",
            unset="none: everybody may ask",
            key="api_key_file",
            metavar="FILE",
        ),
        *declared(Access),
    ),
    "Limits": (*declared(ServerLimits), *declared(Work)),
    "Jobs": (
        Option(
            "Take recordings that are answered later (/v1/jobs), and keep them and results there.",
            unset="no",
            key="jobs_dir",
            metavar="DIR",
        ),
        *declared(JobSettings),
        Option(
            "Signs what is told to the webhook_url of a job: text, or base64 behind whsec_; keys of --keys "
            "may have their own.",
            unset="none: no URL is called",
            key="webhook_secret_file",
            metavar="FILE",
        ),
    ),
    "Translation of live speech": SERVER,
    "More than one machine": (
        Option("Replicas on a Ray cluster, behind its proxies (extra `ray`).", key="ray", kind="flag"),
        Option(
            "Of a running cluster.", unset="a new one, of this machine", key="ray_address", metavar="ADDRESS"
        ),
        Option(
            "Servers; of MIN-MAX, Ray has as many as there are connections for.",
            key="replicas",
            metavar="N|MIN-MAX",
            default="1",
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
    help="TOML file with options: port = 8000. Typed options and the environment win over it.",
)
@click.pass_context
def serve(context: click.Context, /, **given: Any) -> int:
    """Serve OpenAI's transcription API, live sockets and a web page (needs the extra `serve`).

    Every option may also stand in the file of --config, or in the environment: SOTTOVOCE_SERVE_PORT is
    --port. What is typed wins over the environment, and that over the file.
    """
    from sottovoce.cli.serve_app import serve_app

    return serve_app(given, this_call(context))


def configure(context: click.Context, path: str | None) -> None:
    if path is not None:
        context.default_map = {**(context.default_map or {}), **defaults(context.command, path)}


def defaults(command: click.Command, path: str) -> Mapping[str, Any]:
    """Return the values of a file by the names of parameters.

    Raises: BadParameter for a file that cannot be read, and for a name that no option has.
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


def read_toml(path: str) -> dict[str, Any]:
    """Read the document of a TOML file.

    Raises: BadParameter; MissingExtraError on a Python without a reader.
    """
    try:
        reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise MissingExtraError("tomli", "serve", "--config") from None
    try:
        document: dict[str, Any] = reader.loads(read_text(path, "a TOML file"))
    except OptionError as error:
        raise click.BadParameter(str(error), param_hint="--config") from error
    except ValueError as error:
        raise click.BadParameter(
            f"'{path}': expected a TOML file, got '{cause_of(error)}'", param_hint="--config"
        ) from error
    return document
