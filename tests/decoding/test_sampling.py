from __future__ import annotations

import pytest
import torch

from sottovoce.decoding.search import Candidate, Sampling, draw_uniforms, ranked_candidates
from tests.decoding.test_beam import N_VOCAB, Bigram

EOT = N_VOCAB - 1
CPU = torch.device("cpu")


def test_greedy_takes_the_best_and_counts_the_end() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0, 5.0]])
    search = Sampling(EOT)
    state = search.start(2, CPU)
    rows = search.step(logits.clone(), state)
    assert rows is not None
    assert rows.tolist() == [0]  # the second window has ended
    assert state.tokens.tolist() == [[1]]
    ended = state.candidates[1][0]
    assert ended.tokens == ()
    assert ended.logprob == float(logits[1].log_softmax(0)[EOT])
    assert search.stop(state, [0]).tolist() == []
    assert state.candidates[0][0].tokens == (1,)


def test_draws_follow_the_tempered_distribution_and_never_take_the_forbidden() -> None:
    logits = torch.tensor([[1.0, 0.0, float("-inf"), -1.0]]).repeat(4000, 1)
    uniforms = draw_uniforms([5], 4000, 1)
    search = Sampling(9, temperature=0.5, n_hypotheses=4000, uniforms=uniforms)
    state = search.start(1, CPU)
    search.step(logits, state)
    shares = torch.bincount(state.tokens[:, 0], minlength=4) / 4000
    assert shares[2] == 0
    assert torch.allclose(shares, (logits[0] / 0.5).softmax(0), atol=0.03)
    # Scores are those of the untempered distribution.
    assert torch.allclose(state.scores, logits[0].log_softmax(0)[state.tokens[:, 0]])


def test_draws_with_language_models_follow_the_sum_of_both() -> None:
    """Whatever was drawn before: the states of the models follow their rows."""
    generator = torch.Generator().manual_seed(3)
    table, other = (torch.randn((N_VOCAB + 1, N_VOCAB), generator=generator) for _ in range(2))
    fusion = Bigram(other)
    search = Sampling(
        EOT, temperature=0.7, n_hypotheses=6000, uniforms=draw_uniforms([5], 6000, 2), fusion=fusion
    )
    state = search.start(1, CPU)
    search.step(table[N_VOCAB].repeat(6000, 1), state)
    first = state.tokens[:, 0].clone()
    search.step(table[first], state)
    for last in range(EOT):
        said = [candidate.tokens for candidate in state.candidates[0] if candidate.tokens[:1] == (last,)]
        open_ = state.tokens[state.tokens[:, 0] == last, 1]
        counts = torch.bincount(open_, minlength=N_VOCAB).float()
        counts[EOT] = len(said)
        expected = ((table[last].log_softmax(0) + other[last]) / 0.7).softmax(0)
        assert torch.allclose(counts / counts.sum(), expected, atol=0.06)
    best = state.candidate(0)
    tokens = state.tokens[0].tolist()
    sums = [float(table.log_softmax(1)[a, b]) for a, b in zip((N_VOCAB, *tokens), tokens, strict=False)]
    added = [float(other[a, b]) for a, b in zip((N_VOCAB, *tokens), tokens, strict=False)]
    assert best.logprob == pytest.approx(sum(sums), abs=1e-4)
    assert best.score == pytest.approx(sum(sums) + sum(added), abs=1e-4)


def test_uniforms_of_a_window_do_not_depend_on_its_batch() -> None:
    together = draw_uniforms([1, 2], 3, 7)
    assert together.shape == (6, 7)
    assert torch.equal(together[3:], draw_uniforms([2], 3, 7))
    assert not torch.equal(together[:3], together[3:])


def test_length_penalties() -> None:
    short, long = Candidate((1,), -1.0, -1.0), Candidate((1, 2, 3, 4), -1.4, -1.4)
    assert ranked_candidates([short, long], None)[0] is long
    assert ranked_candidates([short, long], 0.0)[0] is short
    assert ranked_candidates([short, long], 1.0)[0] is long  # -1.4 / (9 / 6)


def test_a_device_without_float64_leaves_the_draws_to_the_processor() -> None:
    assert draw_uniforms([1], 2, 3, torch.device("mps")).device.type == "cpu"
