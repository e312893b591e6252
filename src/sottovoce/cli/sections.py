"""A command whose many options are shown under headings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import click

from sottovoce.cli.flags import flag
from sottovoce.options.schema import Option

Flag: TypeAlias = Option | Callable[[Any], Any]
"""An option, or what `click.option` makes: a decorator."""


def decorator_of(option: Flag) -> Callable[[Any], Any]:
    """Make the decorator that adds an option to a command."""
    return flag(option) if isinstance(option, Option) else option


class SectionedCommand(click.Command):
    """Takes its options by heading, in the order in which the help shows them."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[Flag]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections: dict[str, list[click.Parameter]] = {}
        self.declared = [one for options in sections.values() for one in options if isinstance(one, Option)]
        for heading, options in sections.items():
            first = len(self.params)
            for option in options:
                decorator_of(option)(self)
            self.sections[heading] = self.params[first:]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every section, and last what stands in none: what every command has."""
        sectioned = [param for params in self.sections.values() for param in params]
        options: list[click.Parameter] = [
            param for param in self.get_params(ctx) if isinstance(param, click.Option)
        ]
        rest = [option for option in options if option not in sectioned]
        for heading, params in [*self.sections.items(), ("Other", rest)]:
            records = [record for param in params if (record := param.get_help_record(ctx))]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
