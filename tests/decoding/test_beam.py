from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import pytest
import torch
from torch import Tensor

from sottovoce.decoding.search import (
    BLOCK,
    BeamSearch,
    Candidate,
    Sampling,
    Search,
    best_tokens,
    ranked_candidates,
)

EOT, N_VOCAB = 4, 5
CPU = torch.device("cpu")


def transitions(n_audio: int, seed: int) -> Tensor:
    """Logits of the next token given the last one, for each window: (n_audio, N_VOCAB + 1, N_VOCAB)."""
    generator = torch.Generator().manual_seed(seed)
    return 1.5 * torch.randn((n_audio, N_VOCAB + 1, N_VOCAB), generator=generator)


def run(search: Search, table: Tensor, n_steps: int) -> list[list[Candidate]]:
    state = search.start(len(table), CPU)
    for _ in range(n_steps):
        if state.n_rows == 0:
            break
        n_sampled = state.tokens.shape[1]
        last = state.tokens[:, -1] if n_sampled else torch.full((state.n_rows,), N_VOCAB)
        search.step(table[torch.tensor(state.audio), last], state)
    search.stop(state, sorted(set(state.audio)))
    return state.candidates


def probability(table: Tensor, tokens: tuple[int, ...]) -> float:
    logprobs = table.log_softmax(1)
    total, last = 0.0, N_VOCAB
    for token in (*tokens, EOT):
        total += float(logprobs[last, token])
        last = token
    return total


@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_finds_the_best_of_all_sequences(seed: int) -> None:
    table = transitions(1, seed)
    found = run(BeamSearch(EOT, 400), table, 4)[0]
    every = [text for length in range(4) for text in product(range(EOT), repeat=length)]
    ended = {candidate.tokens: candidate.logprob for candidate in found}
    for tokens in every:
        assert ended[tokens] == pytest.approx(probability(table[0], tokens), abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_beam_one_is_greedy(seed: int) -> None:
    table = transitions(3, seed)
    assert run(BeamSearch(EOT, 1), table, 9) == run(Sampling(EOT), table, 9)
    other = Bigram(transitions(1, seed + 9)[0].log_softmax(1))
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
    table = transitions(1, 2)
    assert len(run(BeamSearch(EOT, 2), table, 30)[0]) == 2
    assert len(run(BeamSearch(EOT, 2, patience=2.0), table, 30)[0]) == 4


@dataclass
class Bigram:
    """A language model that knows pairs of tokens and remembers what each row has said."""

    table: Tensor
    n_tokens: int = EOT
    said: list[tuple[int, ...]] = field(default_factory=list)

    def start(self, n: int, device: torch.device | None = None) -> list[tuple[int, ...]]:
        return [() for _ in range(n)]

    def score(
        self, states: list[tuple[int, ...]], tokens: Tensor | None = None
    ) -> tuple[Tensor, list[tuple[int, ...]]]:
        scores = torch.stack([self.table[state[-1] if state else N_VOCAB, :EOT] for state in states])
        if tokens is None:
            return scores, states
        advanced = [(*state, token) for state, token in zip(states, tokens.tolist(), strict=True)]
        return scores.gather(1, tokens[:, None])[:, 0], advanced

    def finish(self, states: list[tuple[int, ...]]) -> Tensor:
        return torch.stack([self.table[state[-1] if state else N_VOCAB, EOT] for state in states])

    def select(self, states: list[tuple[int, ...]], rows: Tensor) -> list[tuple[int, ...]]:
        return [states[row] for row in rows.tolist()]


def test_fusion_ranks_by_both_and_its_states_follow_the_beams() -> None:
    table, other = transitions(2, 5), transitions(1, 6)[0].log_softmax(1)
    found = run(BeamSearch(EOT, 3, patience=3.0, fusion=Bigram(other)), table, 8)
    for audio, candidates in enumerate(found):
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
    best = ranked_candidates(found[0], None)[0]
    assert best.score / len(best.tokens) == max(c.score / max(1, len(c.tokens)) for c in found[0])


@pytest.mark.parametrize("n_vocab", [3, BLOCK, 6 * BLOCK, 7 * BLOCK, 20 * BLOCK + 25])
def test_the_best_tokens_are_those_of_the_whole_row(n_vocab: int) -> None:
    scores = torch.randn(40, n_vocab)
    scores[:10, : n_vocab // 2] = float("-inf")
    scores[10, n_vocab - 6 :] += 10.0
    for rows in (scores[:10], scores[10:11], scores[11:], scores.bfloat16().float()):
        best, tokens = best_tokens(rows, min(6, n_vocab))
        expected = rows.topk(min(6, n_vocab), dim=1)
        assert torch.equal(best, expected.values)
        assert torch.equal(tokens, expected.indices)
