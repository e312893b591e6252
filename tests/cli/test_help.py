"""Options mean the same everywhere; help needs no heavy package; numbers and times as people write them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest

from sottovoce.cli.main import cli, run
from sottovoce.cli.options import TIME, Parsed, SectionedCommand, number_in_range, read_list
from sottovoce.errors import OptionError
from sottovoce.options.schema import Option
from tests.cli.conftest import Call
from tests.fresh_process import run_code

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
        assert all("None]" not in (option.get_help_record(context) or ("", ""))[1] for option in options)
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


def test_lists_of_commands_show_whole_lines() -> None:
    for context, command in commands():
        assert (
            not isinstance(command, click.Group) or "..." not in command.get_help(context).split("\n", 1)[1]
        )


def test_the_first_help_shows_calls_and_all_commands_on_a_page(call: Call) -> None:
    shown = call("--help").out
    assert "\nExamples:\n  sottovoce talk.mp3 " in shown
    assert len(shown.splitlines()) <= 40


@pytest.mark.parametrize("command", ["transcribe", "stream", "serve"])
def test_the_help_shows_usual_options_and_examples_on_a_page(command: str, call: Call) -> None:
    shown = call(command, "--help").out
    assert len(shown.splitlines()) <= 60
    assert f"\nExamples:\n  sottovoce {command}" in shown
    assert re.search(r"--help-all +Show \d{2,3} more options", shown)


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
    "words", [["--debug", "models", "info", "nothing"], ["models", "info", "nothing", "--debug"]]
)
def test_debug_stands_anywhere(words: list[str], call: Call) -> None:
    assert "Traceback" in call(*words, code=2).err
    assert "Traceback" not in call(*[word for word in words if word != "--debug"], code=2).err


HEAVY = {"torch", "numpy", "av", "tiktoken", "starlette", "uvicorn", "anyio", "httpx"}
HELP = [[word, "--help"] for word in ("transcribe", "stream", "ctc", "eval", "bench", "serve")]
SCRIPT = f"""
import sys
from sottovoce.cli.main import run
for words in {[["--help"], ["models", "list"], ["models", "download", "--help"], *HELP]}:
    code = run(words)
    loaded = sys.modules.keys() & {HEAVY | {"huggingface_hub.file_download"}}
    if code or loaded:
        print(*words, code, loaded, file=sys.stderr)
import sottovoce.cli.options, sottovoce.cli.documents, sottovoce.offline.regroup
assert "torch" not in sys.modules
"""


def test_help_lists_options_and_documents_load_nothing_heavy(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=str,
)
def test_threads_spin_briefly_while_they_wait_unless_told_otherwise(
    given: dict[str, str], expected: str
) -> None:
    script = (
        "import atexit, os, sys; from sottovoce.cli.main import main; "
        "atexit.register(lambda: print(os.environ.get('GOMP_SPINCOUNT'), file=sys.stderr)); "
        "main(['--version'])"
    )
    waiting = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in waiting} | given
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == f"{expected}\n"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("90.25", 90.25), ("1:30", 90), ("0:01:30.5", 90.5), ("75:00", 4500), (" 5 ", 5)],
)
def test_times(text: str, seconds: float) -> None:
    assert TIME.convert(text, None, None) == seconds
    assert read_list("times", "--x", f"{text},{text}") == (seconds, seconds)


@pytest.mark.parametrize(
    "text", ["", "x", "nan", "inf", "-1", "-1:30", "1:60", "1:60:00", "1:-2", "1:2:3:4", "1.5:30"]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected seconds or h:mm:ss"):
        TIME.convert(text, None, None)
    if text:
        with pytest.raises(OptionError, match="--x: expected"):
            read_list("times", "--x", f"1,{text}")


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "x"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a number"):
        number().convert(text, None, None)
    with pytest.raises(OptionError, match="--x: expected"):
        read_list("numbers", "--x", f"1,{text}")


def number(**bounds: float) -> Parsed:
    return number_in_range(Option("", kind="number", **bounds))  # type: ignore[arg-type]


def test_whole_numbers() -> None:
    assert read_list("integers", "--x", "-1, 50") == (-1, 50)
    assert read_list("integers", "--x", "") == ()
    with pytest.raises(OptionError, match="--x"):
        read_list("integers", "--x", "1.5")


CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
CALLS = [
    ("plot {clip} -m nowhere -o {tmp}/talk.png", "matplotlib", "plot"),
    ("eval switching {tmp}/list.jsonl --model nowhere --plots {tmp}", "matplotlib", "plot"),
    ("eval wer {tmp}/list.jsonl --model nano", "whisper_normalizer", "eval"),
    ("eval wer {tmp}/list.jsonl --model nano", "jiwer", "eval"),
    ("stream --mic -m nano", "sounddevice", "mic"),
    ("transcribe {clip} -m nano --grammar {tmp}/a.gbnf", "llguidance", "grammar"),
    ("transcribe {clip} -m nano --speakers auto --speaker-engine pyannote", "pyannote.audio", "pyannote"),
    ("batch {clips} {tmp}/out.parquet -m nano", "pyarrow", "parquet"),
    ("batch {clips} {tmp}/out.jsonl -m nano --ray", "ray", "ray"),
    ("batch {clips} {tmp}/out.jsonl -m nano --watch", "watchfiles", "watch"),
    ("transcribe {clips} -o {tmp} -m nano --watch", "watchfiles", "watch"),
    ("serve -m nano --port 0", "uvicorn", "serve"),
    ("serve -m nano --port 0", "starlette", "serve"),
    ("ctc {tmp}/e.npy --labels {tmp}/labels.txt --neural-lm {tmp}", "transformers", "neural-lm"),
]


WITHOUT = """
import sys
from sottovoce.cli.main import run
for package, words in {calls!r}:
    assert package not in sys.modules, package
    sys.modules[package] = None
    print("code", run(words), flush=True)
    del sys.modules[package]
"""
"""Calls in a process in which a package is as if it were not installed; none before has imported it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "e.npy", np.log(np.full((5, 3), 1 / 3, np.float32)))
    (tmp_path / "labels.txt").write_text("_\na\nb\n")
    (tmp_path / "lm.bin").write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(64))
    (tmp_path / "a.gbnf").write_text('root ::= "a"')
    row = f'{{"id": "a", "file": "{CLIP.as_posix()}", "duration": 3.0, "language": "en", "text": "a"}}\n'
    (tmp_path / "list.jsonl").write_text(row)
    return tmp_path


def test_the_extra_is_named_in_one_line(folder: Path) -> None:
    calls = [
        (package, call.format(clip=CLIP, clips=CLIP.parent, tmp=folder).split()) for call, package, _ in CALLS
    ]
    assert run_code(WITHOUT.format(calls=calls), Path.cwd(), folder / "said") == 0
    lines = (folder / "said").read_text().splitlines()
    assert lines[1::2] == ["code 2"] * len(CALLS), lines
    for (call, _, extra), line in zip(CALLS, lines[::2], strict=True):
        assert line.startswith("error: "), call
        assert f"[{extra}]'" in line.partition(": pip install ")[2], call
