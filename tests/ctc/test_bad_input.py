"""Input that cannot be decoded is an error that names what was expected and what came."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sottovoce.ctc import CtcDecoder
from sottovoce.errors import InputError, LanguageModelError, OptionError

LABELS = ["-", "a", "b", " "]
ARPA = (
    "\\data\\\nngram 1=5\nngram 2=2\n\n"
    "\\1-grams:\n-3\t<unk>\n-99\t<s>\t-0.3\n-0.9\t</s>\n-0.6\tab\t-0.2\n-0.8\tb\t0\n\n"
    "\\2-grams:\n-0.4\t<s> ab\n-0.7\tab b\n\n\\end\\\n"
)


def frames(*labels: int) -> torch.Tensor:
    """Log-probabilities (T, V) that are sure of these labels."""
    return torch.full((len(labels), 4), 0.01).scatter(1, torch.tensor(labels)[:, None], 0.97).log()


def one_nan() -> torch.Tensor:
    log_probs = frames(1, 0, 2)
    log_probs[1, 2] = float("nan")
    return log_probs


@pytest.mark.parametrize(
    ("log_probs", "message"),
    [
        (one_nan(), "expected log-probabilities, got NaN"),
        (frames(1, 0, 2) + 6, r"at most 0\), got 5.97: these look like logits, apply log_softmax"),
        (frames(1, 0, 2) - 3, "probabilities sum to 1, got sums from 0.0498 to 0.0498: apply log_softmax"),
        (frames(1, 0, 2)[:, :3], "expected 4 labels in the last place, got 3"),
        (frames(1, 0, 2).exp().long(), "expected floats .*, got torch.int64"),
        (frames(1, 0, 2)[0], "expected floats .* of shape"),
    ],
    ids=["NaN", "logits", "logits below 0", "labels", "integers", "shape"],
)
def test_emissions(log_probs: torch.Tensor, message: str) -> None:
    decoder = CtcDecoder(LABELS)
    with pytest.raises(InputError, match=message):
        decoder.decode(log_probs)
    with pytest.raises(InputError, match=message):
        decoder.decode_chunk(decoder.start(), log_probs)
    with pytest.raises(InputError, match=message):
        decoder.greedy(log_probs)


def test_logits_have_a_door_of_their_own() -> None:
    decoder = CtcDecoder(LABELS)
    assert decoder.decode_logits(frames(1, 0, 2)[None] + 6)[0][0].text == "ab"


@pytest.mark.parametrize(
    ("labels", "blank", "message"),
    [
        (["-", "a", "a"], 0, "expected each once, got 'a' 2 times"),
        (["-"], 0, "a blank and at least one more, got 1"),
        (LABELS, 4, "blank: expected an index from 0 to 3, got 4"),
    ],
)
def test_labels(labels: list[str], blank: int, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        CtcDecoder(labels, blank)


@pytest.mark.parametrize(
    "text", [ARPA.replace("\n", "\r\n"), ARPA.replace("-0.8\tb\t0", "-0.8\tb")], ids=["CRLF", "no back-off"]
)
def test_arpa_files_that_differ_in_form_alone(tmp_path: Path, text: str) -> None:
    """Windows line ends; a back-off that is left out is 0."""
    path, other = tmp_path / "words.arpa", tmp_path / "other.arpa"
    path.write_text(ARPA)
    other.write_bytes(text.encode())
    log_probs = frames(1, 2, 3, 2, 0, 3, 1, 2)
    found, again = (CtcDecoder(LABELS, lm=file, n_best=5).decode(log_probs)[0] for file in (path, other))
    assert found[0].text == "ab b ab"
    assert [(h.text, h.score) for h in found] == [(h.text, h.score) for h in again]


@pytest.mark.parametrize(
    ("hotwords", "message"),
    [
        ([""], "expected at least one token, got an empty phrase"),
        (["  "], "empty phrase"),
        (["abc"], "expected text that the labels can spell, got 'abc' at 'c'"),
    ],
)
def test_hotwords(hotwords: list[str], message: str) -> None:
    with pytest.raises(LanguageModelError, match=message):
        CtcDecoder(LABELS, hotwords=hotwords)


@pytest.mark.parametrize("fused", [False, True])
def test_nothing_to_decode(fused: bool, tmp_path: Path) -> None:
    """T = 0 is an empty text of probability 1, B = 0 no hypotheses at all; in chunks too."""
    (tmp_path / "words.arpa").write_text(ARPA)
    decoder = CtcDecoder(LABELS, lm=tmp_path / "words.arpa" if fused else None)
    ends = -0.9 - 0.3 if fused else 0.0  # </s> after <s>, half of its log10
    for (best,) in decoder.decode(torch.zeros(2, 0, 4)):
        assert (best.text, best.tokens, best.words) == ("", (), ())
        assert best.score == pytest.approx(0.5 * ends * 2.302585, abs=1e-5)
    assert decoder.decode(torch.zeros(0, 5, 4)) == []
    state = decoder.start(2)
    decoder.decode_chunk(state, torch.zeros(2, 0, 4))
    assert [found[0].text for found in decoder.finish(state)] == ["", ""]
    assert decoder.finish(decoder.start(0)) == []
