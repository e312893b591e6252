"""The names that people import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sottovoce


def test_few_public_names_and_all_of_them_there() -> None:
    assert len(sottovoce.__all__) <= 15
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
