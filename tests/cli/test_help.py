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


ALL = [pytest.param(context, command, id=context.command_path) for context, command in commands()]


@pytest.mark.parametrize(("context", "command"), ALL)
def test_no_two_options_share_a_name_and_short_ones_mean_one_thing(
    context: click.Context, command: click.Command
) -> None:
    names = [
        (name, option)
        for option in command.get_params(context)
        for name in [*option.opts, *option.secondary_opts]
    ]
    assert len({name for name, _ in names}) == len(names)
    for name, option in names:
        if name.startswith("-") and not name.startswith("--"):
            assert SHORT[name] & set(option.opts)


@pytest.mark.parametrize(("context", "command"), ALL)
def test_the_help_of_an_option_names_no_option_that_the_command_lacks(
    context: click.Context, command: click.Command
) -> None:
    options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    flags = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    helps = " ".join(option.help or "" for option in options)
    assert set(re.findall(r"--[a-z-]*[a-z](?![\w-])", helps)) <= flags


@pytest.mark.parametrize(("context", "command"), ALL)
def test_every_command_knows_what_the_call_knows(context: click.Context, command: click.Command) -> None:
    names = {name for option in command.get_params(context) for name in option.opts}
    assert {"-h", "--help", "-v", "--verbose", "--debug"} <= names


@pytest.mark.parametrize(("context", "command"), ALL)
def test_no_option_takes_nan(context: click.Context, command: click.Command) -> None:
    """click's own numbers do, and nan passes every comparison after that."""
    for option in command.params:
        assert not isinstance(option.type, click.types.FloatParamType), f"{option.opts}: use number_in_range"


def test_sections_show_every_option_once(call: Call) -> None:
    shown = call("transcribe", "-h").out
    command = cli.get_command(click.Context(cli), "transcribe")
    assert isinstance(command, SectionedCommand)
    for heading in [*command.sections, "Other"]:
        assert f"\n{heading}:\n" in shown
    for option in command.params:
        if isinstance(option, click.Option):
            (name,) = [name for name in option.opts if name.startswith("--")]
            lines = [
                line for line in shown.splitlines() if line.startswith("  -") and f"{name} " in f"{line} "
            ]
            assert len(lines) == 1, name


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
    before = logging.getLogger().level
    try:
        assert run(words) == 0
        assert logging.getLogger().level == level
    finally:
        logging.getLogger().setLevel(before)


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
