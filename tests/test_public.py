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


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "torch av transformers matplotlib jiwer"
    code = f"import sys, sottovoce; print(*sys.modules.keys() & set('{heavy}'.split()))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == ""


def test_the_library_loads_what_a_task_needs() -> None:
    """Whoever transcribes files waits for no live sessions, alignment, or searches of CTC."""
    code = (
        "import sys, sottovoce.api; "
        "print({name.split('.')[1] for name in sys.modules if name.startswith('sottovoce.')} "
        "& {'streaming', 'alignment', 'ctc', 'cli', 'serving'})"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout == "set()\n"
