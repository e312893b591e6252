"""The tables of options in docs, from the options themselves: cli, serving, protocol, reference and from-….

`python -m tests.docs.command_tables` brings the pages up to date.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import cast

import click

from sottovoce.api import Model, load_model
from sottovoce.cli.flags import SectionedCommand
from sottovoce.cli.main import cli
from sottovoce.cli.transcribe import SECTIONS
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.live import LiveDecodingOptions
from sottovoce.options.schema import Api, Option, options_of
from sottovoce.options.speakers import SpeakerOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import VadOptions
from sottovoce.options.writer import WriterOptions
from sottovoce.server.fields import FORM, LIVE

DOCS = Path(__file__).parents[2] / "docs"
TABLE = re.compile(r"(<!-- options of (?P<of>[\w -]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
SHOWN_BY = {
    "ctc tune": "ctc decode",
    "eval latency": "eval wer",
    "eval switching": "eval wer",
    "eval language": "eval wer",
}
"""Commands whose table leaves out what the table of another one has."""
CALL_OPTIONS = ("verbose", "debug")
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
PROGRAMS = {
    "whisper.cpp": ("cpp",),
    "openai-whisper": ("openai", "python"),
    "faster-whisper": ("faster", "python"),
}
ELSEWHERE: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("other_programs.json").read_text(encoding="utf-8")
)
"""What other programs call an option, by its key: names on the command line and in code, apart by spaces;
those of openai-whisper without the `--` that all of them have there. python: of openai-whisper and
faster-whisper alike; cpp: of whisper.cpp."""
COMING = tuple(DOCS / f"from-{name.replace('.', '-')}.md" for name in PROGRAMS)
NAMES = re.compile(r"(<!-- options of (?P<of>[a-z.-]+) -->\n)(?P<rows>.*?)(<!-- end -->)", re.DOTALL)
ARGUMENTS = {"model": "load_model(name)"}
"""Of options that a function takes by another name."""
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


def all_options() -> list[Option]:
    """Of the command that transcribes, in the order of its help, and those of recordings without a flag."""
    typed = [option for options in SECTIONS.values() for option in options]
    owners = [owner for owner in OWNERS.values() if owner is not LiveDecodingOptions]
    fields = [option for owner in owners for option in options_of(owner)]
    return [*typed, *(option for option in fields if option.flags is None)]


def in_python(option: Option) -> str:
    """What the library calls an option; nothing where only the command has it."""
    if option.owner in OWNERS:
        return f"`{option.owner}.{option.field}`"
    functions: dict[str, Callable[..., object]] = {
        "Model.transcribe": Model.transcribe,
        "Model.fusion": Model.fusion,
        "load_model": load_model,
    }
    found = [name for name, called in functions.items() if option.key in inspect.signature(called).parameters]
    usual = f"{found[0]}({option.key})" if found else ""
    return f"`{name}`" if (name := ARGUMENTS.get(option.key, usual)) else ""


def names_elsewhere(option: Option, program: str) -> list[str]:
    """What another program calls an option."""
    named = ELSEWHERE.get(option.key or option.field, {})
    return " ".join(named.get(one, "") for one in PROGRAMS[program]).split()


def names_table(program: str, notes: Mapping[str, str]) -> str:
    """A table of the options that another program has, in Markdown.

    notes: how each differs, by the names there; they are written by hand, on the page itself.
    """
    rows = [f"| {program} | sottovoce | in Python | |", "|---|---|---|---|"]
    for option in all_options():
        names = names_elsewhere(option, program)
        theirs = ", ".join(f"`{name}`" for name in names)
        ours = f"`{option.flags}`" if option.flags else ""
        if names:
            cells = (theirs, ours, in_python(option), notes.get(theirs, ""))
            rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(("", *rows, "", ""))


def with_names(page: str) -> str:
    """The page with its table of names as the options have them now; notes stay as they are."""

    def made(match: re.Match[str]) -> str:
        rows = [re.split(r" ?\| ?", row) for row in match["rows"].splitlines() if row]
        return f"{match[1]}{names_table(match['of'], {row[1]: row[-2] for row in rows})}{match[4]}"

    return NAMES.sub(made, page)


def rewritten(page: str, marks: re.Pattern[str], made: Callable[[str], str]) -> str:
    """The page with every table as the options have it now."""
    return marks.sub(lambda match: f"{match[1]}{made(match['of'])}\n{match[3]}", page)


PAGES: tuple[tuple[Path, re.Pattern[str], Callable[[str], str]], ...] = (
    (DOCS / "cli.md", TABLE, tables),
    (DOCS / "serving.md", FIELDS, form_table),
    (DOCS / "protocol.md", FIELDS, form_table),
    (DOCS / "reference.md", CLASSES, class_table),
)
"""Pages with tables, the marks around these, and what makes one."""


if __name__ == "__main__":
    for page, marks, made in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8"), marks, made), encoding="utf-8")
    for page in COMING:
        page.write_text(with_names(page.read_text(encoding="utf-8")), encoding="utf-8")
