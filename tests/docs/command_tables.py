"""The tables of options in docs/cli.md, docs/serving.md and docs/reference.md, from the options themselves.

`python -m tests.docs.command_tables` brings the pages up to date.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import cast

import click

from sottovoce.cli.main import cli
from sottovoce.cli.sections import SectionedCommand
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.live import LiveDecodingOptions
from sottovoce.options.schema import Api, options_of
from sottovoce.options.speakers import SpeakerOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import VadOptions
from sottovoce.options.writer import WriterOptions
from sottovoce.serving.forms import FORM
from sottovoce.serving.live_fields import LIVE

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "cli.md"
SERVING, PROTOCOL = DOCS / "serving.md", DOCS / "protocol.md"
TABLE = re.compile(r"(<!-- options of (?P<of>[\w -]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
SHOWN_BY = {
    "ctc tune": "ctc decode",
    "eval latency": "eval wer",
    "eval switching": "eval wer",
    "eval language": "eval wer",
}
"""Commands whose table leaves out what the table of another one has."""
CALL_OPTIONS = ("verbose", "debug")
REFERENCE = DOCS / "reference.md"
CLASSES = re.compile(r"(<!-- class (?P<of>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
OWNERS = {
    one.__name__: one
    for one in (
        TranscribeOptions,
        DecodingOptions,
        FallbackOptions,
        VadOptions,
        SpeakerOptions,
        WriterOptions,
        LiveDecodingOptions,
    )
}
FIELDS = re.compile(r"(<!-- fields of (?P<of>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables(name: str) -> str:
    """A table for each section of a command, in Markdown; "ctc decode" is a command of a group.

    Without what every command has, and what another one's table has already (`SHOWN_BY`).
    """
    command, context = command_of(name)
    shown = command_of(SHOWN_BY[name])[0].params if name in SHOWN_BY else []
    shown_names = {*CALL_OPTIONS, *(param.name for param in shown)}
    if not isinstance(command, SectionedCommand):
        return table(context, command.params, shown_names)
    parts = ((head, table(context, params, shown_names)) for head, params in command.sections.items())
    return "".join(f"\n**{heading}**\n{rows}" for heading, rows in parts if rows)


def command_of(name: str) -> tuple[click.Command, click.Context]:
    """A command by its words, and the context of its help."""
    context = click.Context(cli, info_name="sottovoce", **cli.context_settings)
    command: click.Command = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        found = command.get_command(context, word)
        assert found is not None, name
        command, context = found, click.Context(found, parent=context, info_name=word)
    return command, context


def table(context: click.Context, params: Iterable[click.Parameter], shown: Collection[str | None]) -> str:
    """A row for each option that is not shown elsewhere; nothing without any."""
    options = [param for param in params if isinstance(param, click.Option) and param.name not in shown]
    rows = "".join(row(context, option) for option in options)
    return f"\n| option | meaning |\n|---|---|\n{rows}" if rows else ""


def row(context: click.Context, option: click.Parameter) -> str:
    record = option.get_help_record(context)
    assert record is not None
    names, meaning = (text.replace("|", "\\|") for text in record)
    return f"| `{names}` | {meaning} |\n"


def form_table(api: str) -> str:
    """A table of the fields of a form, or of live requests, in Markdown."""
    rows = ["| field | here |", "|---|---|"]
    for option in (*FORM, *LIVE):
        field = option.apis.get(cast(Api, api))
        if field is not None:
            names = ", ".join(f"`{name}`" for name in field.names.split())
            rows.append(f"| {names} | {field.help or option.help} |")
    return "\n".join(("", *rows, "", ""))


def class_table(name: str) -> str:
    """A table of the fields of a class of options, in Markdown."""
    rows = ["| field | default | flag | meaning |", "|---|---|---|---|"]
    for option in options_of(OWNERS[name]):
        unset = f" None: {option.unset}." if option.unset and option.default is None else ""
        flag = f"`{option.flags}`" if option.flags else ""
        default = repr(option.default).replace("|", "\\|")
        meaning = f"False: {option.help}" if option.negated else option.help
        rows.append(f"| `{option.field}` | `{default}` | {flag} | {meaning}{unset} |")
    return "\n".join(("", *rows, "", ""))


def rewritten(page: str, marks: re.Pattern[str] = TABLE, made: Callable[[str], str] = tables) -> str:
    """The page with every table as the options have it now."""
    return marks.sub(lambda match: f"{match[1]}{made(match['of'])}\n{match[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for page in (SERVING, PROTOCOL):
        page.write_text(rewritten(page.read_text(encoding="utf-8"), FIELDS, form_table), encoding="utf-8")
    reference = REFERENCE.read_text(encoding="utf-8")
    REFERENCE.write_text(rewritten(reference, CLASSES, class_table), encoding="utf-8")
