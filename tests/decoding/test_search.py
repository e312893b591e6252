from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from sottovoce.decoding.filters import log_softmax
from sottovoce.decoding.search import (
    BLOCK,
    BeamSearch,
    Candidate,
    Sampling,
    Search,
    best_tokens,
    draw_uniforms,
    ranked_candidates,
)
from sottovoce.lm.base import Ints
from sottovoce.types import Floats

EOT, N_VOCAB = 4, 5


def transitions(n_audio: int, seed: int) -> Floats:
    """Logits of the next token given the last one, for each window: (n_audio, N_VOCAB + 1, N_VOCAB)."""
    random = np.random.default_rng(seed)
    return 1.5 * random.standard_normal((n_audio, N_VOCAB + 1, N_VOCAB), np.float32)


def run(search: Search, table: Floats, n_steps: int) -> list[list[Candidate]]:
    state = search.start(len(table))
    for _ in range(n_steps):
        if state.n_rows == 0:
            break
        n_sampled = state.tokens.shape[1]
        last = state.tokens[:, -1] if n_sampled else N_VOCAB
        search.extend(search.choose(table[state.audio, last], state), state)
    search.stop(state, sorted(set(state.audio)))
    return state.candidates


def probability(table: Floats, tokens: tuple[int, ...]) -> float:
    logprobs = log_softmax(table)
    total, last = 0.0, N_VOCAB
    for token in (*tokens, EOT):
        total += float(logprobs[last, token])
        last = token
    return total


@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_finds_the_best_of_all_sequences(seed: int) -> None:
    table = transitions(1, seed)
    result = run(BeamSearch(EOT, 400), table, 4)[0]
    every = [text for length in range(4) for text in product(range(EOT), repeat=length)]
    ended = {candidate.tokens: candidate.logprob for candidate in result}
    for tokens in every:
        assert ended[tokens] == pytest.approx(probability(table[0], tokens), abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_beam_one_is_greedy(seed: int) -> None:
    table = transitions(3, seed)
    assert run(BeamSearch(EOT, 1), table, 9) == run(Sampling(EOT), table, 9)
    other = Bigram(log_softmax(transitions(1, seed + 9)[0]))
    by_beam, greedily = (
        run(search, table, 9) for search in (BeamSearch(EOT, 1, fusion=other), Sampling(EOT, fusion=other))
    )
    assert by_beam == greedily
    assert greedily != run(Sampling(EOT), table, 9)


@pytest.mark.parametrize("patience", [0.5, 1.0, 2.0])
def test_a_batch_gives_what_each_window_gives(patience: float) -> None:
    table = transitions(5, 11)
    together = run(BeamSearch(EOT, 3, patience=patience), table, 12)
    alone = [run(BeamSearch(EOT, 3, patience=patience), table[i : i + 1], 12)[0] for i in range(5)]
    assert together == alone


def test_patience_asks_for_more_finished_hypotheses() -> None:
    table = transitions(1, 0)
    assert len(run(BeamSearch(EOT, 2), table, 30)[0]) == 2
    assert len(run(BeamSearch(EOT, 2, patience=2.0), table, 30)[0]) == 4


@dataclass
class Bigram:
    """A language model that knows pairs of tokens; a state is the last one."""

    table: Floats
    n_tokens: int = EOT
    n_models: int = 1
    is_static: bool = False

    def start(self, n: int) -> Ints:
        return np.full((n, 1), N_VOCAB)

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        if tokens is None:
            return self.table[states[:, 0], :EOT], states
        return self.table[states[:, 0], tokens], tokens[:, None]

    def finish(self, states: Ints) -> Floats:
        return self.table[states[:, 0], EOT]


def test_fusion_ranks_by_both_and_its_states_follow_the_beams() -> None:
    table, other = transitions(2, 5), log_softmax(transitions(1, 6)[0])
    result = run(BeamSearch(EOT, 3, patience=3.0, fusion=Bigram(other)), table, 8)
    for audio, candidates in enumerate(result):
        for candidate in candidates:
            if len(candidate.tokens) == 8:  # did not end
                continue
            added = 0.0
            last = N_VOCAB
            for token in (*candidate.tokens, EOT):
                added += float(other[last, token])
                last = token
            assert candidate.logprob == pytest.approx(probability(table[audio], candidate.tokens), abs=1e-4)
            assert candidate.score == pytest.approx(candidate.logprob + added, abs=1e-4)
    best = ranked_candidates(result[0], None)[0]
    assert best.score / max(1, len(best.tokens)) == max(c.score / max(1, len(c.tokens)) for c in result[0])


@pytest.mark.parametrize("n_vocab", [3, BLOCK, 6 * BLOCK, 7 * BLOCK, 20 * BLOCK + 25])
def test_the_best_tokens_are_those_of_the_whole_row(n_vocab: int) -> None:
    scores = np.random.default_rng(0).standard_normal((40, n_vocab), np.float32)
    scores[:10, : n_vocab // 2] = float("-inf")
    scores[9, 2:-1] = float("-inf")  # fewer than are wanted
    scores[10, n_vocab - 6 :] += 10.0
    for rows in (scores[:10], scores[10:11], scores[11:], scores.round(1)):  # with ties: the first
        expected = np.argsort(-rows, axis=1, kind="stable")[:, : min(6, n_vocab)]
        assert np.array_equal(best_tokens(rows, min(6, n_vocab)), expected)


def test_greedy_takes_the_best_and_counts_the_end() -> None:
    logits = np.array([[0.0, 2.0, 1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0, 5.0]], np.float32)
    search = Sampling(EOT)
    state = search.start(2)
    rows = search.extend(search.choose(logits, state), state)
    assert rows is not None
    assert rows.tolist() == [0]  # the second window has ended
    assert state.tokens.tolist() == [[1]]
    ended = state.candidates[1][0]
    assert ended.tokens == ()
    assert ended.logprob == log_softmax(logits)[1, EOT]
    assert search.stop(state, [0]).tolist() == []
    assert state.candidates[0][0].tokens == (1,)


def test_draws_follow_the_tempered_distribution_and_never_take_the_forbidden() -> None:
    logits = np.tile(np.array([1.0, 0.0, float("-inf"), -1.0], np.float32), (4000, 1))
    uniforms = draw_uniforms([5], 4000, 1)
    search = Sampling(9, temperature=0.5, n_hypotheses=4000, uniforms=uniforms)
    state = search.start(1)
    search.extend(search.choose(logits, state), state)
    shares = np.bincount(state.tokens[:, 0], minlength=4) / 4000
    assert shares[2] == 0
    assert shares == pytest.approx(np.exp(log_softmax(logits[:1] / 0.5))[0], abs=0.03)
    # Scores are those of the untempered distribution.
    assert state.scores == pytest.approx(log_softmax(logits)[0, state.tokens[:, 0]])


def test_draws_with_language_models_follow_the_sum_of_both() -> None:
    """Whatever was drawn before: the states of the models follow their rows."""
    table, other = np.random.default_rng(3).standard_normal((2, N_VOCAB + 1, N_VOCAB), np.float32)
    fusion = Bigram(other)
    search = Sampling(
        EOT, temperature=0.7, n_hypotheses=6000, uniforms=draw_uniforms([5], 6000, 2), fusion=fusion
    )
    state = search.start(1)
    search.extend(search.choose(np.tile(table[N_VOCAB], (6000, 1)), state), state)
    first = state.tokens[:, 0].copy()
    search.extend(search.choose(table[first], state), state)
    for last in range(EOT):
        said = [candidate.tokens for candidate in state.candidates[0] if candidate.tokens[:1] == (last,)]
        open_ = state.tokens[state.tokens[:, 0] == last, 1]
        counts = np.bincount(open_, minlength=N_VOCAB)
        counts[EOT] = len(said)
        expected = np.exp(log_softmax((log_softmax(table)[last : last + 1] + other[last]) / 0.7))
        assert counts / counts.sum() == pytest.approx(expected[0], abs=0.06)
    best = state.candidate(0)
    tokens = state.tokens[0].tolist()
    sums = [float(log_softmax(table)[a, b]) for a, b in zip((N_VOCAB, *tokens), tokens, strict=False)]
    added = [float(other[a, b]) for a, b in zip((N_VOCAB, *tokens), tokens, strict=False)]
    assert best.logprob == pytest.approx(sum(sums), abs=1e-4)
    assert best.score == pytest.approx(sum(sums) + sum(added), abs=1e-4)


def test_uniforms_of_a_window_do_not_depend_on_its_batch() -> None:
    together = draw_uniforms([1, 2], 3, 7)
    assert together.shape == (6, 7)
    assert np.array_equal(together[3:], draw_uniforms([2], 3, 7))
    assert not np.array_equal(together[:3], together[3:])


def test_length_penalties() -> None:
    short, long = Candidate((1,), -1.0, -1.0), Candidate((1, 2, 3, 4), -1.4, -1.4)
    assert ranked_candidates([short, long], None)[0] is long
    assert ranked_candidates([short, long], 0.0)[0] is short
    assert ranked_candidates([short, long], 1.0)[0] is long  # -1.4 / (9 / 6)
