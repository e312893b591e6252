"""The recipe's one command, at the scale of a toy: from nothing to a model that loads and its figures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from recipes.nano.__main__ import cli
from sottovoce.api import load_model


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("espeak-ng"), reason="espeak-ng is not installed")
def test_one_command_goes_from_nothing_to_a_measured_model(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    work, run = tmp_path / "work", tmp_path / "run"
    toy = ["--languages", "de", "--sequences", "12", "--minutes", "0.05", "--limit", "1"]
    ended = CliRunner().invoke(cli, ["all", *toy, str(work), str(run)], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    assert load_model(str(run / "nano.safetensors")).languages == ("de",)
    assert (run / "curve.png").stat().st_size > 1000
    figures = json.loads((run / "figures.json").read_text("utf-8"))
    measured = [row for row in figures.values() if "error rate" in row]
    assert measured
    assert all(row["clips"] > 0 for row in measured)
