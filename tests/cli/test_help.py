"""Options mean the same everywhere; the help shows each once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import click
import pytest

from sottovoce.cli.main import cli, run
from sottovoce.cli.options import SectionedCommand
from tests.cli.conftest import Call

SHORT = {
    "-h": {"--help"},
    "-v": {"--verbose"},
    "-m": {"--model"},
    "-l": {"--language", "--languages"},
    "-o": {"--output-dir", "--output"},
    "-f": {"--output-format"},
    "-w": {"--word-timestamps"},
    "-q": {"--quiet"},
}
"""What short options stand for, in every command that has them."""


def commands() -> Iterator[tuple[click.Context, click.Command]]:
    """Every command with its context, groups too."""
    waiting: list[tuple[click.Context, click.Command]] = [
        (click.Context(cli, info_name="sottovoce", **cli.context_settings), cli)
    ]
    while waiting:
        context, command = waiting.pop()
        yield context, command
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                waiting.append((click.Context(child, parent=context, info_name=name), child))


def test_options_of_every_command() -> None:
    """Names are there once, short ones mean one thing, and helps name options of the command. None takes nan,
    as click's own numbers do: it passes every comparison after that."""
    for context, command in commands():
        options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
        names = [(name, option) for option in options for name in (*option.opts, *option.secondary_opts)]
        flags = {name for name, _ in names}
        assert len(flags) == len(names), context.command_path
        for name, option in names:
            if name.startswith("-") and not name.startswith("--"):
                assert SHORT[name] & set(option.opts), context.command_path
        helps = " ".join(option.help or "" for option in options)
        assert set(re.findall(r"--[a-z-]*[a-z](?![\w-])", helps)) <= flags, context.command_path
        assert {"-h", "--help", "-v", "--verbose", "--debug"} <= flags, context.command_path
        assert "-l" not in flags or {"--language", "--languages"} <= flags, context.command_path
        numbers = [option for option in options if isinstance(option.type, click.types.FloatParamType)]
        assert numbers == [], f"{context.command_path}: use number_in_range"


def test_sections_show_every_option_once(call: Call) -> None:
    shown = call("transcribe", "--help-all").out
    command = cli.get_command(click.Context(cli), "transcribe")
    assert isinstance(command, SectionedCommand)
    for heading in [*command.sections, "Other"]:
        assert f"\n{heading}:\n" in shown
    for option in command.params:
        if isinstance(option, click.Option):
            name, *_ = [name for name in option.opts if name.startswith("--")]
            lines = [line for line in shown.splitlines() if re.match(rf"  (-\w, )?{name}[ ,/]", f"{line} ")]
            assert len(lines) == 1, name


@pytest.mark.parametrize("command", ["transcribe", "stream", "serve"])
def test_the_help_shows_usual_options_and_examples_on_a_page(command: str, call: Call) -> None:
    shown = call(command, "--help").out
    assert len(shown.splitlines()) <= 60
    assert f"\nExamples:\n  sottovoce {command}" in shown
    assert re.search(r"--help-all +Show [2-9]\d more options", shown)


@pytest.mark.parametrize(
    ("words", "level"),
    [
        (["models", "list"], logging.WARNING),
        (["-v", "models", "list"], logging.INFO),
        (["models", "list", "-v"], logging.INFO),
        (["models", "-v", "list", "-v"], logging.DEBUG),
    ],
)
def test_verbose_stands_anywhere(words: list[str], level: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    assert logging.getLogger().level == level


@pytest.mark.parametrize(
    "words",
    [
        ["--debug", "models", "info", "nothing"],
        ["models", "info", "nothing", "--debug"],
    ],
)
def test_debug_stands_anywhere(words: list[str], call: Call) -> None:
    assert "Traceback" in call(*words, code=2).err
    assert "Traceback" not in call(*[word for word in words if word != "--debug"], code=2).err
