"""Loading a model costs the reading of its weights, not the import of what it never uses."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, sottovoce
sottovoce.load_model("nano", device="cpu")
print([name for name in ("torch._dynamo", "sympy", "huggingface_hub") if name in sys.modules])
"""


def test_a_model_loads_without_the_compiler_and_without_the_hub() -> None:
    """PyTorch's compiler alone takes longer to import than `base` to read."""
    shown = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
