"""The tables of options in docs/cli.md, from the commands themselves.

`python -m tests.docs.command_tables` brings the page up to date.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from sottovoce.cli.main import cli
from sottovoce.cli.sections import SectionedCommand

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
TABLE = re.compile(r"(<!-- options of (?P<command>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables(name: str) -> str:
    """A table for each section of a command, in Markdown."""
    context = click.Context(cli, info_name="sottovoce", **cli.context_settings)
    command = cli.get_command(context, name)
    assert isinstance(command, SectionedCommand)
    own = click.Context(command, parent=context, info_name=name)
    head = "| option | meaning |\n|---|---|\n"
    return "".join(
        f"\n**{heading}**\n\n{head}{''.join(row(own, option) for option in options)}"
        for heading, options in command.sections.items()
    )


def row(context: click.Context, option: click.Parameter) -> str:
    record = option.get_help_record(context)
    assert record is not None
    names, meaning = (text.replace("|", "\\|") for text in record)
    return f"| `{names}` | {meaning} |\n"


def rewritten(page: str) -> str:
    """The page with every table as the commands have it now."""
    return TABLE.sub(lambda match: f"{match[1]}{tables(match['command'])}\n{match[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
