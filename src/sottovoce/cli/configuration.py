"""`--config FILE`: options of a command from a TOML file, named as they are typed, without the dashes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from sottovoce.errors import MissingExtraError, OptionError, cause_of
from sottovoce.text.files import read_text

ENVIRONMENT = "SOTTOVOCE_SERVE"
"""What the names of the server's environment variables begin with: SOTTOVOCE_SERVE_PORT is --port."""
API_KEYS = f"{ENVIRONMENT}_API_KEYS"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def with_configuration(command: Decorated) -> Decorated:
    """Add the option."""
    option = click.option(
        "--config",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_configure,
        help="TOML file with options: port = 8000. Typed options and the environment win over it.",
    )
    return option(command)


def _configure(context: click.Context, _: click.Parameter, path: str | None) -> None:
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
