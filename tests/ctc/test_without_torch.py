"""The search and its models where PyTorch cannot be imported, and emissions of other libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce import CtcDecoder
from tests.ctc.enumeration import emissions, likely

SCRIPT = """
import sys
from importlib.util import find_spec
from sottovoce.cli.main import run
sys.modules["whisper_normalizer"] = None  # of the extra eval, unlike jiwer not of tune
tune = ["ctc", "tune", "dev.jsonl", "--labels", "labels.txt", "--lm", "words.arpa", "--decodings", "2"]
assert find_spec("cmaes") is None or run(tune) == 0
assert "torch" not in sys.modules
sys.modules["torch"] = None
import numpy as np
from sottovoce.ctc import CtcDecoder
from sottovoce.ctc.options import CtcOptions
log_probs = np.load("one.npy")
options = CtcOptions(blank_skip=0.9)
decoder = CtcDecoder("-ab ", 0, lm="words.arpa", lexicon=["ab", "ba"], hotwords=["ba"], options=options)
*_, last = decoder.stream([log_probs])
print(decoder.decode(log_probs)[0][0].text, decoder.greedy(log_probs)[0].text, last.text)
run(["ctc", "one.npy", "--labels", "labels.txt", "--lm", "words.arpa", "--logits"])
code = run(["ctc", "one.npy", "--labels", "labels.txt", "--lm", "words.arpa", "--neural-lm", "gpt2"])
assert code == 2, code
"""
ARPA = "\\data\\\nngram 1=5\n\n\\1-grams:\n-3\t<unk>\n-99\t<s>\n-1\t</s>\n-0.5\tab\n-0.6\tba\n\n\\end\\\n"


def test_the_extra_has_all_that_tuning_imports() -> None:
    lines = (Path(__file__).parents[2] / "pyproject.toml").read_text().splitlines()
    (extra,) = (line for line in lines if line.startswith("tune = "))
    assert "cmaes" in extra
    assert "jiwer" in extra


def test_no_pytorch_is_needed(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", likely([1, 0, 2, 3, 2, 0, 1], 4, share=0.94))
    (tmp_path / "words.arpa").write_text(ARPA)
    (tmp_path / "labels.txt").write_text("-\na\nb\n|\n")
    (tmp_path / "dev.jsonl").write_text('{"emissions": "one.npy", "text": "ab ba"}\n')
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[-2:-1] == ["ab ba ab ba ab ba"], done.stderr
    assert '"text": "ab ba"' in lines[-1]
    needs = "error: the language model gpt2 needs the package 'torch': pip install"
    assert needs in done.stderr
    assert "neural-lm]" in done.stderr
    assert "Traceback" not in done.stderr


class DeviceArray:
    """An array that only speaks DLPack."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        self.ndim = values.ndim

    def __dlpack__(self, **_: object) -> object:
        return self._values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._values.__dlpack_device__()


@pytest.mark.parametrize(
    "kind", ["torch", "bfloat16", "gradients", "dlpack", "big endian", "fortran", "lists"]
)
def test_emissions_of_other_libraries(kind: str) -> None:
    rows = emissions(30, 4, 1)
    decoder = CtcDecoder(["-", "a", "b", " "])
    expected = decoder.decode(rows)[0][0]
    given = {
        "torch": torch.from_numpy(rows),
        "bfloat16": torch.from_numpy(rows).bfloat16(),
        "gradients": torch.from_numpy(rows.copy()).requires_grad_(),
        "dlpack": DeviceArray(rows),
        "big endian": rows.astype(">f8"),
        "fortran": np.asfortranarray(rows),
        "lists": rows.tolist(),
    }[kind]
    result = decoder.decode(given)[0][0]
    assert result.score == pytest.approx(expected.score, abs=0.5 if kind == "bfloat16" else 1e-4)
    assert kind == "bfloat16" or result.text == expected.text
