"""Emissions that are no log-probabilities on purpose; blank penalties and label priors."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import InputError, OptionError
from tests.ctc.enumeration import all_texts, emissions, likely

NAMES, BLANK = ["a", "b", "-", " "], 2
PRIORS = (0.4, 0.1, 0.3, 0.2)


def decoder(**options: object) -> CtcDecoder:
    chosen = CtcOptions(beam_size=400, n_best=20, **options)  # type: ignore[arg-type]
    return CtcDecoder(NAMES, BLANK, options=chosen)


def weighed(log_probs: np.ndarray) -> np.ndarray:
    """Priors to the power of 0.6 divided out, 1.5 nats off the blank, all times 0.8."""
    return 0.8 * (log_probs - 0.6 * np.log(PRIORS) - np.array([0, 0, 1.5, 0]))


@pytest.mark.parametrize("seed", range(4))
def test_priors_and_penalty_equal_enumeration_of_what_they_make(seed: int) -> None:
    log_probs = emissions(5, 4, seed)
    truth = sorted(all_texts(weighed(log_probs), BLANK).items(), key=lambda pair: -pair[1])[:20]
    result = decoder(blank_penalty=1.5, label_priors=PRIORS, prior_scale=0.6, acoustic_scale=0.8).decode(
        log_probs
    )[0]
    assert [h.tokens for h in result] == [tokens for tokens, _ in truth]
    assert [h.score for h in result] == pytest.approx([score for _, score in truth], abs=1e-4)
    raw = decoder(is_normalised=False).decode(weighed(log_probs))[0]
    assert [h.tokens for h in raw] == [h.tokens for h in result]
    assert [h.score for h in raw] == pytest.approx([h.score for h in result], abs=1e-4)


def test_confidences_remain_probabilities() -> None:
    log_probs = likely([0, 2, 1, 3, 1], 4, share=0.94)
    plain = decoder().decode(log_probs)[0][0]
    for result in (
        decoder(blank_penalty=1.5, label_priors=PRIORS).decode(log_probs)[0][0],
        decoder(is_normalised=False).decode(log_probs + 7)[0][0],
        *decoder(blank_penalty=1.5).greedy(log_probs),
        *decoder(is_normalised=False).greedy(log_probs + 7),
    ):
        assert result.text == plain.text == "ab b"
        assert [word.probability for word in result.words] == pytest.approx([0.94, 0.94], abs=1e-4)
        assert result.token_frames == plain.token_frames


def test_a_blank_penalty_brings_labels_back_in_greedy_decoding_too() -> None:
    log_probs = np.log(np.array([[0.5, 0.1, 0.3, 0.1], [0.1, 0.35, 0.5, 0.05], [0.3, 0.1, 0.5, 0.1]]))
    assert decoder().greedy(log_probs)[0].text == "a"
    assert decoder(blank_penalty=0.45).greedy(log_probs)[0].text == "ab"
    assert decoder(label_priors=(1.0, 1.0, 1.5, 1.0)).greedy(log_probs)[0].text == "ab"


def test_skipped_blanks_score_what_they_would_have() -> None:
    log_probs = np.full((30, 4), 1e-6)
    log_probs[:, BLANK] = 1.0
    log_probs[[3, 17], [0, 1]] = 1e6
    options = {"blank_penalty": 0.7, "label_priors": PRIORS, "acoustic_scale": 0.5}
    log_probs = np.log(log_probs / log_probs.sum(axis=1, keepdims=True))
    whole, skipped = (
        decoder(**options, **more).decode(log_probs)[0][0] for more in ({}, {"blank_skip": 0.99})
    )
    assert whole.text == skipped.text == "ab"
    assert skipped.score == pytest.approx(whole.score, abs=1e-3)


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(OptionError, match="label_priors: expected 4, one a label, got 2"):
        decoder(label_priors=(0.5, 0.5))
    with pytest.raises(OptionError, match="label_priors: expected a positive number, got 0"):
        decoder(label_priors=(0.5, 0.5, 0.0, 0.1))
    with pytest.raises(OptionError, match="blank_penalty: expected a finite number"):
        decoder(blank_penalty=float("inf"))
    scores = emissions(4, 4, 0) * 5
    with pytest.raises(InputError, match="is_normalised=False"):
        decoder().decode(scores)
    for wrong in (float("nan"), float("inf")):
        scores[2, 1] = wrong
        with pytest.raises(InputError, match="expected scores, got NaN, infinity"):
            decoder(is_normalised=False).decode(scores)
