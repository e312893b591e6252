"""N-gram models whose words are label numbers written as characters, as NeMo's are."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.errors import LanguageModelError, OptionError
from tests.ctc.enumeration import emissions

NAMES = [f"▁w{i}" if i % 3 else f"x{i}" for i in range(70)]
LABELS = [*NAMES, "<blank>"]


def bigrams(words: list[str]) -> str:
    """Random scores, the same for every set of 70 words."""
    chooser = random.Random(1)
    lines = ["\\data\\", f"ngram 1={len(words) + 3}", f"ngram 2={len(words)}", "", "\\1-grams:"]
    lines += [f"{chooser.uniform(-3, -1):.4f}\t{word}\t-0.2" for word in ("<unk>", "<s>", "</s>", *words)]
    pairs = zip(words, reversed(words), strict=True)
    lines += ["", "\\2-grams:", *(f"{chooser.uniform(-2, 0):.4f}\t{a} {b}" for a, b in pairs)]
    return "\n".join([*lines, "", "\\end\\", ""])


def test_labels_by_number_score_as_labels_by_name(tmp_path: Path) -> None:
    """Among the 70 characters from 100 on are white space (U+0085, U+00A0) and control characters."""
    named, numbered = tmp_path / "named.arpa", tmp_path / "numbered.arpa"
    named.write_text(bigrams(NAMES), encoding="utf-8")
    numbered.write_text(bigrams([chr(i + 100) for i in range(70)]), encoding="utf-8")
    log_probs = np.stack([emissions(12, 71, seed) for seed in range(3)])
    expected = CtcDecoder(LABELS, -1, lm=named).decode(log_probs)
    fusion = CtcFusionOptions(token_offset=100)
    assert CtcDecoder(LABELS, -1, lm=numbered, fusion=fusion).decode(log_probs) == expected
    with pytest.raises(LanguageModelError, match=r"expected words chr\(label \+ 100\)"):
        CtcDecoder(LABELS, -1, lm=named, fusion=fusion)
    with pytest.raises(OptionError, match="token_offset: expected an n-gram model over labels"):
        CtcFusionOptions(token_offset=100, level="word")
