"""The tables for people who come from elsewhere: they leave nothing out, and what they promise is there."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path

import click
import pytest

from sottovoce.api import Model, load_model
from sottovoce.cli.main import cli
from sottovoce.models.devices import NUMBER_FORMATS
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, VadOptions
from sottovoce.options.transcribe import TranscribeOptions, WriterOptions
from sottovoce.types import Word
from tests.conftest import Reference
from tests.docs.command_tables import COMING, PROGRAMS, all_options, names_elsewhere, names_table, with_names

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("from-whisper-cpp.md", "from-openai-whisper.md", "from-faster-whisper.md")
CODE = re.compile(r"`([^`]+)`")
CLASSES = {
    kind.__name__: kind
    for kind in (TranscribeOptions, DecodingOptions, FallbackOptions, VadOptions, WriterOptions, Word, Model)
}
WHISPER_CPP: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("whisper_cpp.json").read_text(encoding="utf-8")
)
"""Parameters of whisper.cpp, of ggml-org/whisper.cpp 233fe1fc9b48 (22 August 2026): of examples/cli/cli.cpp,
include/whisper.h and examples/server/server.cpp."""


def rows(page: str, after: str = "#") -> list[list[str]]:
    """The cells of every row of every table of a page behind the text `after`, without heads."""
    lines = (DOCS / page).read_text(encoding="utf-8").partition(after)[2].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    is_rule = [*(set("".join(row)) <= {"-"} for row in cells), False]
    return [row for i, row in enumerate(cells) if not is_rule[i] and not is_rule[i + 1]]


def theirs(page: str) -> set[str]:
    return {name for row in rows(page) for name in CODE.findall(row[0])}


def options_of(command: str) -> set[str]:
    result = cli.get_command(click.Context(cli), command)
    assert result is not None, command
    return {name for param in result.params for name in (*param.opts, *param.secondary_opts)}


def is_there(name: str) -> bool:
    """Whether an option, `Class.field`, `Class.method(argument)` or `function(argument)` of ours exists."""
    if name.startswith("sottovoce "):
        _, command, *options = name.split()
        return set(options) <= options_of(command)
    if name.startswith("--"):
        known = options_of("transcribe") | options_of("detect-language") | {"--help", "--version"}
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
    result = [(row[0], name) for row in rows(page) for cell in row[1:] for name in CODE.findall(cell)]
    assert result
    assert [pair for pair in result if not is_there(pair[1])] == []


@pytest.mark.parametrize("page", COMING, ids=lambda page: page.name)
def test_tables_are_those_of_the_options(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert with_names(text) == text, "bring it up to date: python -m tests.docs.command_tables"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_name_elsewhere_is_one_option(program: str) -> None:
    every = {id(option): option for option in all_options()}.values()
    names = [name for item in every for name in names_elsewhere(item, program)]
    assert len(names) > 40
    assert len(names) == len(set(names))


def test_notes_of_tables_are_kept() -> None:
    rows = names_table("openai-whisper", {"`patience`": "as there"})
    page = with_names(f"<!-- options of openai-whisper -->\n{rows}<!-- end -->\n")
    assert "| `patience` | `--patience` | `DecodingOptions.patience` | as there |" in page
    assert "| `threads` | `--threads` | | |" in page


@pytest.mark.parametrize("page", PAGES)
def test_every_row_names_something_of_ours_or_says_that_it_is_not_there(page: str) -> None:
    said = ("not there", "the arguments")
    assert [row for row in rows(page) if row[1] not in said and not CODE.search("".join(row[1:3]))] == []


def parameters(function: Callable[..., object]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


@pytest.mark.reference
def test_every_option_of_openai_whisper_is_in_the_table(reference: Reference) -> None:
    def compute() -> list[str]:
        whisper = pytest.importorskip("whisper", reason="openai-whisper is not installed")
        source = inspect.getsource(inspect.getmodule(whisper.transcribe))  # type: ignore[arg-type]
        flags = {
            argument.value.removeprefix("--")
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
            for argument in node.args
            if isinstance(argument, ast.Constant)
        } - {"audio"}
        names = parameters(whisper.transcribe) | parameters(whisper.load_model)
        return sorted(flags | names | {field.name for field in fields(whisper.DecodingOptions)})

    known = {name.removeprefix("--") for name in theirs("from-openai-whisper.md")}
    assert set(reference(compute)) - known == set()


@pytest.mark.reference
def test_every_argument_of_faster_whisper_is_in_the_table(reference: Reference) -> None:
    def compute() -> list[str]:
        faster = pytest.importorskip("faster_whisper", reason="faster-whisper is not installed")
        names = parameters(faster.WhisperModel.__init__) | parameters(faster.WhisperModel.transcribe)
        names |= parameters(faster.BatchedInferencePipeline.transcribe)
        return sorted(names | {field.name for field in fields(faster.vad.VadOptions)})

    assert set(reference(compute)) - theirs("from-faster-whisper.md") == set()


@pytest.mark.reference
def test_every_parameter_of_pywhispercpp_is_in_the_table(reference: Reference) -> None:
    def compute() -> list[str]:
        constants = pytest.importorskip("pywhispercpp.constants", reason="pywhispercpp is not installed")
        return sorted(constants.PARAMS_SCHEMA)

    assert set(reference(compute)) - theirs("from-whisper-cpp.md") == set()


@pytest.mark.parametrize("part", WHISPER_CPP)
def test_every_parameter_of_whisper_cpp_is_in_a_table(part: str) -> None:
    result = rows("from-whisper-cpp.md", after="## The server" if part.startswith("server") else "#")
    assert set(WHISPER_CPP[part]) - {name for row in result for name in CODE.findall(row[0])} == set()


def test_every_number_format_of_ctranslate2_is_taken_but_one() -> None:
    compute_types = {"default", "auto", "int8", "int16", "float16", "bfloat16", "float32"}
    compute_types |= {"int8_float32", "int8_float16", "int8_bfloat16"}
    assert compute_types - set(NUMBER_FORMATS) == {"int16"}
