"""The tables of options in docs, from the options themselves: cli, serving, protocol and from-….

`python -m tests.docs.command_tables` brings the pages up to date.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias, cast

import click

from sottovoce.api import Model, load_model
from sottovoce.cli.main import cli
from sottovoce.cli.options import SectionedCommand
from sottovoce.cli.transcribe import SECTIONS
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, VadOptions
from sottovoce.options.schema import Api, Option, options_of
from sottovoce.options.transcribe import SpeakerOptions, TranscribeOptions, WriterOptions
from sottovoce.server.fields import FORM, LIVE

DOCS = Path(__file__).parents[2] / "docs"
TABLE = re.compile(r"(<!-- options of (?P<of>[\w -]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
SHOWN_BY = {
    "ctc decode": "ctc decode",
    "ctc tune": "ctc decode",
    "eval latency": "eval wer",
    "eval switching": "eval wer",
    "eval language": "eval wer",
    "lm build": "lm estimate",
}
"""Commands whose tables name, without meaning, options of another command than `transcribe`."""
CALL_OPTIONS = ("verbose", "debug")
MODEL = (
    *("--model", "--device", "--dtype", "--backend", "--gpu-memory", "--threads"),
    *("--model-dir", "--revision", "--source", "--local-only"),
)
"""The model options: commands that have all of them name them so."""
Row: TypeAlias = tuple[str, str]
OWNERS = {
    owner.__name__: owner
    for owner in (
        TranscribeOptions,
        DecodingOptions,
        FallbackOptions,
        VadOptions,
        SpeakerOptions,
        WriterOptions,
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

    Without what every command has. Options that another command (`SHOWN_BY`) has in the same words are named
    without their meaning.
    """
    command, context = command_of(name)
    other = SHOWN_BY.get(name, "transcribe")
    shown = [] if name == other else rows(*reversed(command_of(other)))
    sections = command.sections if isinstance(command, SectionedCommand) else {"": command.params}
    tables = ((heading, rows(context, params)) for heading, params in sections.items())
    return "".join(section(heading, part, shown, other) for heading, part in tables if part)


def section(heading: str, part: list[Row], shown: list[Row], other: str) -> str:
    """A section in Markdown. shown: rows of the other command, which are named in one line."""
    names = [long_name(param) for param in part if param in shown]
    is_model = set(MODEL) <= set(names)
    same = ["the model options"] if is_model else []
    same += [f"`{name}`" for name in names if not (is_model and name in MODEL)]
    new = [f"| `{names}` | {meaning} |\n" for names, meaning in part if (names, meaning) not in shown]
    table = ["\n| option | meaning |\n|---|---|\n", *new] if new else []
    also = f"\nAs for `{other}`: {', '.join(same)}.\n" if same else ""
    return "".join((f"\n**{heading}**\n" if heading else "", *table, also))


def long_name(row: Row) -> str:
    """The long name of an option: "--model" of "-m, --model NAME|PATH"."""
    return next((word for word in re.findall(r"-[\w-]+", row[0]) if word.startswith("--")), row[0])


def command_of(name: str) -> tuple[click.Command, click.Context]:
    """A command by its words, and the context of its help."""
    context = click.Context(cli, info_name="sottovoce", **cli.context_settings)
    command: click.Command = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        child = command.get_command(context, word)
        assert child is not None, name
        command, context = child, click.Context(child, parent=context, info_name=word)
    return command, context


def rows(context: click.Context, params: Iterable[click.Parameter] | click.Command) -> list[Row]:
    """Names and meaning of each option, but for those that every command has."""
    params = params.params if isinstance(params, click.Command) else params
    options = (
        param for param in params if isinstance(param, click.Option) and param.name not in CALL_OPTIONS
    )
    records = (option.get_help_record(context) or ("", "") for option in options)
    return [(names.replace("|", "\\|"), meaning.replace("|", "\\|")) for names, meaning in records]


def form_table(api: str) -> str:
    """A table of the fields of a form, or of live requests, in Markdown."""
    rows = ["| field | here |", "|---|---|"]
    for option in LIVE if api == "sottovoce" else FORM:
        field = option.apis.get(cast(Api, api))
        if field is not None:
            names = ", ".join(f"`{name}`" for name in field.names.split())
            rows.append(f"| {names} | {field.help or option.help} |")
    return "\n".join(("", *rows, "", ""))


def all_options() -> list[Option]:
    """Of the command that transcribes, in the order of its help, and those of recordings without a flag."""
    typed = [option for options in SECTIONS.values() for option in options]
    fields = [option for owner in OWNERS.values() for option in options_of(owner)]
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
    callers = [
        name for name, called in functions.items() if option.key in inspect.signature(called).parameters
    ]
    usual = f"{callers[0]}({option.key})" if callers else ""
    return f"`{name}`" if (name := ARGUMENTS.get(option.key, usual)) else ""


def names_elsewhere(option: Option, program: str) -> list[str]:
    """What another program calls an option."""
    named = ELSEWHERE.get(option.key or option.field, {})
    return " ".join(named.get(option_name, "") for option_name in PROGRAMS[program]).split()


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

    def rewrite(match: re.Match[str]) -> str:
        rows = [re.split(r" ?\| ?", row) for row in match["rows"].splitlines() if row]
        return f"{match[1]}{names_table(match['of'], {row[1]: row[-2] for row in rows})}{match[4]}"

    return NAMES.sub(rewrite, page)


def rewritten(page: str, marks: re.Pattern[str], rewrite: Callable[[str], str]) -> str:
    """The page with every table as the options have it now."""
    return marks.sub(lambda match: f"{match[1]}{rewrite(match['of'])}\n{match[3]}", page)


PAGES: tuple[tuple[Path, re.Pattern[str], Callable[[str], str]], ...] = (
    (DOCS / "cli.md", TABLE, tables),
    (DOCS / "serving.md", FIELDS, form_table),
    (DOCS / "protocol.md", FIELDS, form_table),
)
"""Pages with tables, the marks around these, and what makes one."""


if __name__ == "__main__":
    for page, marks, rewrite in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8"), marks, rewrite), encoding="utf-8")
    for page in COMING:
        page.write_text(with_names(page.read_text(encoding="utf-8")), encoding="utf-8")
