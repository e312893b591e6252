"""The tables for people who come from elsewhere: they leave nothing out, and what they promise is there."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path

import click
import pytest

from sottovoce.api import Model, load_model
from sottovoce.audio.vad import VadOptions
from sottovoce.cli.main import cli
from sottovoce.decoding.fallback import FallbackOptions
from sottovoce.decoding.options import DecodingOptions
from sottovoce.formats.base import WriterOptions
from sottovoce.offline.options import TranscribeOptions
from sottovoce.types import Word

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("from-whisper-cpp.md", "from-openai-whisper.md", "from-faster-whisper.md")
CODE = re.compile(r"`([^`]+)`")
CLASSES = {
    one.__name__: one
    for one in (TranscribeOptions, DecodingOptions, FallbackOptions, VadOptions, WriterOptions, Word, Model)
}


def rows(page: str) -> list[list[str]]:
    """The cells of every row of every table of a page, without heads."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    is_rule = [*(set("".join(row)) <= {"-"} for row in cells), False]
    return [row for i, row in enumerate(cells) if not is_rule[i] and not is_rule[i + 1]]


def theirs(page: str) -> set[str]:
    return {name for row in rows(page) for name in CODE.findall(row[0])}


def options_of(command: str) -> set[str]:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None, command
    return {name for param in found.params for name in (*param.opts, *param.secondary_opts)}


def is_there(name: str) -> bool:
    """Whether an option, `Class.field`, `Class.method(argument)` or `function(argument)` of ours exists."""
    if name.startswith("sottovoce "):
        return bool(options_of(name.split()[1]))
    if name.startswith("--"):
        known = options_of("transcribe") | options_of("detect-language")
        return name.split()[0] in known
    if match := re.fullmatch(r"(?:(\w+)\.)?(\w+)\((\w+)\)", name):
        owner, function, argument = match.groups()
        called = getattr(CLASSES[owner], function) if owner else {"load_model": load_model}[function]
        return argument in inspect.signature(called).parameters
    if match := re.fullmatch(r"([A-Z]\w+)\.(\w+)", name):
        owner = CLASSES[match[1]]
        return (
            match[2] in {f.name for f in fields(owner)} if is_dataclass(owner) else hasattr(owner, match[2])
        )
    return True


@pytest.mark.parametrize("page", PAGES)
def test_everything_of_ours_that_a_table_names_is_there(page: str) -> None:
    found = [(row[0], name) for row in rows(page) for cell in row[1:] for name in CODE.findall(cell)]
    assert found
    assert [pair for pair in found if not is_there(pair[1])] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_row_names_something_of_ours_or_says_that_it_is_not_there(page: str) -> None:
    unclear = [row for row in rows(page) if not CODE.search(row[1]) and row[1] != "not there"]
    assert [row for row in unclear if row[1] != "the arguments"] == []


def parameters(function: Callable[..., object]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


@pytest.mark.reference
def test_every_option_of_openai_whisper_is_in_the_table() -> None:
    whisper = pytest.importorskip("whisper", reason="openai-whisper is not installed")
    source = inspect.getsource(inspect.getmodule(whisper.transcribe))  # type: ignore[arg-type]
    flags = {
        argument.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    } - {"audio"}
    names = parameters(whisper.transcribe) | parameters(whisper.load_model)
    names |= {field.name for field in fields(whisper.DecodingOptions)}
    assert (flags | names) - theirs("from-openai-whisper.md") == set()


@pytest.mark.reference
def test_every_argument_of_faster_whisper_is_in_the_table() -> None:
    faster = pytest.importorskip("faster_whisper", reason="faster-whisper is not installed")
    names = parameters(faster.WhisperModel.__init__) | parameters(faster.WhisperModel.transcribe)
    names |= parameters(faster.BatchedInferencePipeline.transcribe)
    names |= {field.name for field in fields(faster.vad.VadOptions)}
    assert names - theirs("from-faster-whisper.md") == set()


@pytest.mark.reference
def test_every_parameter_of_whisper_cpp_is_in_the_table() -> None:
    constants = pytest.importorskip("pywhispercpp.constants", reason="pywhispercpp is not installed")
    assert set(constants.PARAMS_SCHEMA) - theirs("from-whisper-cpp.md") == set()
