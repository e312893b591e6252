"""The names that people import."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

import sottovoce
from sottovoce.errors import MissingExtraError


def test_all_public_names_are_there() -> None:
    for name in sottovoce.__all__:
        assert getattr(sottovoce, name) is not None


def test_unknown_names_are_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        sottovoce.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("sottovoce", "torch av transformers matplotlib jiwer"),
        (
            "sottovoce.api",
            "sottovoce.streaming sottovoce.alignment sottovoce.ctc sottovoce.cli sottovoce.server",
        ),
    ],
)
def test_an_import_loads_what_a_task_needs_and_changes_no_environment_variable(
    module: str, absent: str
) -> None:
    """Nothing heavy for a name; no live sessions, alignment or searches of CTC for a file."""
    code = (
        f"import os, sys; before = dict(os.environ); import {module}; "
        f"print(before == dict(os.environ), sys.modules.keys() & set('{absent}'.split()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True set()\n"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'sottovoce[mic]'"),
        ({"url": "file:///src/a%20b", "dir_info": {"editable": True}}, "pip install -e '/src/a b[mic]'"),
        ({"url": "file:///src/own", "dir_info": {}}, "pip install '/src/own[mic]'"),
        (
            {"url": "https://example.org/own.git", "vcs_info": {"vcs": "git"}},
            "pip install 'sottovoce[mic] @ git+https://example.org/own.git'",
        ),
    ],
    ids=["index", "editable", "checkout", "git"],
)
def test_the_command_for_an_extra_installs_from_where_sottovoce_came(
    origin: object, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    assert str(MissingExtraError("sounddevice", "mic", "Recording")).endswith(f": {command}")
