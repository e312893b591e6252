"""Loading a model costs the reading of its weights, not the import of what it never uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.api import load_model
from sottovoce.errors import ModelNotFoundError, OptionError
from sottovoce.models.checkpoint.openai import save_openai
from tests.models import tiny

SCRIPT = """
import sys, sottovoce
sottovoce.load_model("nano", device="cpu")
print([name for name in ("torch._dynamo", "sympy", "huggingface_hub") if name in sys.modules])
"""


def test_a_model_loads_without_the_compiler_and_without_the_hub() -> None:
    """PyTorch's compiler alone takes longer to import than `base` to read."""
    shown = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_a_models_folder_is_looked_in(tmp_path: Path) -> None:
    save_openai(tiny.checkpoint(tiny.dims(n_vocab=51865)), tmp_path / "small.pt")
    assert load_model("small", device="cpu", model_dir=str(tmp_path)).name == "small"
    with pytest.raises(ModelNotFoundError, match=f"medium: not in {tmp_path}, and nothing is fetched"):
        load_model("medium", model_dir=tmp_path, local_only=True)
    with pytest.raises(OptionError, match="the package index has none"):
        load_model("base", revision="v1", source="index")
