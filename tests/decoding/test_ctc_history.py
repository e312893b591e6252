"""Scores of whole word histories, as a neural model gives them: exact, and whatever the chunks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import torch

from sottovoce.decoding.ctc.emission_decoder import EmissionDecoder
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.decoding.ctc.text import Labels
from tests.decoding.engines import engine  # noqa: F401  # every test runs on both
from tests.decoding.enumeration import Reading, Tokens, all_texts, best_of, emissions

LABELS = Labels.of(["-", "a", "b", " "], 0)


class RandomHistories:
    """A `HistoryScorer` that gives every history a number of its own, and every ended one another."""

    def adjustments(self, histories: Sequence[tuple[str, ...]], *, final: bool) -> list[float]:
        return [random.Random(f"{history} {final}").uniform(-4, 4) for history in histories]


def decoder(every: int, **options: int) -> EmissionDecoder:
    chosen = CtcOptions(adjust_every_frames=every, **options)  # type: ignore[arg-type]
    return EmissionDecoder(LABELS, chosen, history_scorer=RandomHistories())


def one_reading(tokens: Tokens) -> Iterator[Reading]:
    yield ()


def full_score(tokens: Tokens, _: Reading) -> float:
    words = tuple(word.text for word in LABELS.words(tokens))
    return RandomHistories().adjustments([words], final=True)[0]


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_histories_without_other_models_equal_enumeration(seed: int, every: int) -> None:
    """What a beam was given goes with it when beams change places, so that it can be taken back."""
    log_probs = emissions(5, 4, seed)
    truth = best_of(all_texts(log_probs, 0), one_reading, full_score)[:20]
    found = decoder(every, beam_size=600, n_best=20).decode(log_probs)[0]
    assert [h.score for h in found] == pytest.approx([score for score, _, _ in truth], abs=1e-4)
    assert [h.tokens for h in found] == [tokens for _, tokens, _ in truth]


@pytest.mark.parametrize("seed", range(10))
def test_narrow_beams_never_overestimate(seed: int) -> None:
    log_probs = emissions(6, 4, seed)
    texts = all_texts(log_probs, 0)
    for found in decoder(2, beam_size=4, n_best=4).decode(log_probs)[0]:
        assert found.score <= texts[found.tokens] + full_score(found.tokens, ()) + 1e-4


@pytest.mark.parametrize("blank_skip", [None, 0.6])
@pytest.mark.parametrize("seed", range(5))
def test_ragged_chunks_equal_the_whole(seed: int, blank_skip: float | None) -> None:
    """Every utterance is adjusted after as many of its own frames, whenever they come."""
    rows = torch.stack([emissions(40, 4, 10 * seed + row) for row in range(3)])
    options = CtcOptions(beam_size=4, n_best=4, adjust_every_frames=5, blank_skip=blank_skip)
    searcher = EmissionDecoder(LABELS, options, history_scorer=RandomHistories())
    lengths, seen = torch.tensor([40, 23, 31]), torch.zeros(3, dtype=torch.int64)
    state, chooser = searcher.start(3), random.Random(seed)
    while bool((seen < lengths).any()):
        counts = torch.tensor([chooser.randrange(8) for _ in range(3)]).minimum(lengths - seen)
        chunk = torch.zeros(3, 8, 4).log_softmax(dim=2)
        for row in range(3):
            chunk[row, : counts[row]] = rows[row, seen[row] : seen[row] + counts[row]]
        searcher.decode_chunk(state, chunk, counts)
        seen += counts
    whole = searcher.decode(rows, lengths)
    for ours, theirs, row, length in zip(searcher.finish(state), whole, rows, lengths, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
        alone = searcher.decode(row[:length])[0]
        assert [h.tokens for h in alone] == [h.tokens for h in theirs]
