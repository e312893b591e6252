"""The CTC head: normalised, on shared encoder states, and silent about padding's length only."""

from __future__ import annotations

import torch

from sottovoce.models.checkpoint.base import Convolution, CtcWeights
from sottovoce.models.ctc_head import CtcHead
from sottovoce.types import EncoderOutput, Features
from tests.models import tiny

WEIGHTS = CtcWeights(torch.randn(5, 32), torch.randn(5), ("-", "a", "b", "c", " "), 0)


def test_emissions_are_log_probabilities_of_a_linear_layer() -> None:
    backend = tiny.backend()
    head = CtcHead(WEIGHTS, backend.encode)
    features = Features(torch.randn(2, 80, 40), (40, 25))
    emissions = head.emissions(features)
    assert emissions.log_probs.shape == (2, 20, 5)
    assert emissions.log_probs.dtype == torch.float32
    assert emissions.lengths.tolist() == [20, 13]
    torch.testing.assert_close(emissions.log_probs.exp().sum(-1), torch.ones(2, 20))
    states = backend.encode(features).states
    expected = (states @ WEIGHTS.weight.T + WEIGHTS.bias).log_softmax(-1)
    torch.testing.assert_close(emissions.log_probs, expected, atol=1e-5, rtol=0)
    assert (tuple(head.labels), head.blank) == (WEIGHTS.labels, 0)


def test_states_that_exist_are_not_computed_again() -> None:
    backend = tiny.backend()
    features = Features(torch.randn(1, 80, 40), (40,))
    encoded = backend.encode(features)
    head = CtcHead(WEIGHTS, backend.encode)
    assert torch.equal(head.emissions_of(encoded).log_probs, head.emissions(features).log_probs)


def convolutional() -> CtcWeights:
    layers = (
        Convolution(torch.randn(8, 32, 1) / 4, torch.randn(8)),
        Convolution(torch.randn(6, 8, 5) / 4, torch.randn(6)),
    )
    return CtcWeights(torch.randn(5, 6), torch.randn(5), WEIGHTS.labels, 0, layers)


def test_convolutions_hear_a_few_frames_to_both_sides_and_no_others() -> None:
    head = CtcHead(convolutional(), tiny.backend().encode)
    states = torch.randn(1, 20, 32)
    before = head.emissions_of(EncoderOutput(states, (20,))).log_probs
    states[0, 10] += 1.0
    changed = (head.emissions_of(EncoderOutput(states, (20,))).log_probs - before).abs().amax(dim=-1)[
        0
    ] > 1e-6
    assert changed.nonzero().flatten().tolist() == [8, 9, 10, 11, 12]


def test_padding_behind_the_audio_changes_nothing_of_it() -> None:
    head = CtcHead(convolutional(), tiny.backend().encode)
    states = torch.randn(2, 20, 32)
    alone = head.emissions_of(EncoderOutput(states[:1, :12], (12,))).log_probs
    padded = head.emissions_of(EncoderOutput(states, (12, 20))).log_probs
    torch.testing.assert_close(padded[:1, :12], alone, atol=1e-5, rtol=0)
    whole = head.emissions_of(EncoderOutput(states[1:], (20,))).log_probs
    torch.testing.assert_close(padded[1:], whole, atol=1e-5, rtol=0)
