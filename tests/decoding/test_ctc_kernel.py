"""Parts of the compiled search against what they stand for."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.decoding.ctc.search_options import CtcOptions
from tests.decoding.enumeration import emissions
from tests.decoding.test_ctc_engines import differences, random_arpa

numba = pytest.importorskip("numba", reason="the extra fast is not installed")


@pytest.mark.parametrize("n_labels", [3, 40, 200])
@pytest.mark.parametrize("least", [-np.inf, -4.0, 10.0])
def test_likeliest_tokens_and_the_others_are_those_above_a_bar(n_labels: int, least: float) -> None:
    from sottovoce.decoding.ctc.kernel.candidates import likeliest, new_tokens, others

    # Few different values, so that many are equal.
    frame = np.random.default_rng(0).integers(-9, 0, n_labels).astype(np.float32)
    blank, bar = n_labels // 2, np.float32(least)
    above = [token for token in range(n_labels) if token != blank and frame[token] > bar]
    ranked = sorted(above, key=lambda token: (-frame[token], token))
    found = new_tokens(n_labels)
    n_first = likeliest(frame, bar, blank, 7, found)
    assert found.ids[:n_first].tolist() == ranked[:7]
    if n_first < 7:
        return
    for most in (n_labels, 20):
        likeliest(frame, bar, blank, 7, found)
        n = others(frame, bar, blank, most, 7, found)
        assert sorted(-found.log_probs[:n]) == [-frame[token] for token in ranked[7 : 7 + most]]
        assert set(found.ids[:n].tolist()) <= set(ranked[7:])


@pytest.mark.parametrize("top_tokens", [None, 16, 17, 40])
@pytest.mark.parametrize("unknown_words", [False, True])
def test_word_pieces_of_many_labels(top_tokens: int | None, unknown_words: bool, tmp_path: Path) -> None:
    """Far more labels than are looked at first, most of them beginning no word of the lexicon."""
    path = tmp_path / "words.arpa"
    path.write_text(random_arpa())
    chooser, words = random.Random(1), ("ab", "a", "bad", "cab", "dd", "abba", "be", "decade", "ace")
    lexicon = [(word, chooser.sample(range(1, 150), 1 + len(word) // 2)) for word in words]
    labels = ["-", *(f"▁{i}" if i < 75 else str(i) for i in range(149))]
    log_probs = torch.stack([emissions(10, 150, seed) for seed in range(3)]).log_softmax(dim=2)
    # With look-ahead to be inside a first unknown word scores as to have ended it: either may be kept.
    fusion = CtcFusionOptions(unknown_score=-1.3, level="word", look_ahead=not unknown_words)
    found = [
        CtcDecoder(
            labels,
            0,
            lm=path,
            lexicon=lexicon,
            unknown_words=unknown_words,
            beam_size=8,
            n_best=4,
            fusion=fusion,
            options=CtcOptions(engine=engine, top_tokens=top_tokens),  # type: ignore[arg-type]
        ).decode(log_probs)
        for engine in ("compiled", "tensors")
    ]
    assert not differences(*found)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_person_is_told_once_why_there_is_a_wait(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sottovoce.jit import notice_of_compiling

    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    made = numba.njit(lambda x: x + 1)
    with notice_of_compiling("the CTC search"):
        assert made(1) == 2
        assert made(1.0) == 2.0
    written = capsys.readouterr().err
    assert written.count("compiling") == int(is_terminal)
    assert written.count("\n") == int(is_terminal)
