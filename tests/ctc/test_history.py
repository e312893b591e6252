"""Scores of whole word histories, as a neural model gives them: exact, and whatever the chunks."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.ctc.decoder import EmissionDecoder
from sottovoce.ctc.labels import Labels
from sottovoce.ctc.options import CtcOptions
from sottovoce.lm.rescoring import History, HistoryWord, NeuralRescorer, WordHistory
from tests.ctc.enumeration import Reading, Tokens, all_texts, best_of, emissions, likely, one_reading
from tests.ctc.lists import differences

LABELS = Labels.of(["-", "a", "b", " "], 0)


def history_of(words: Iterable[str]) -> WordHistory:
    return WordHistory().after(map(HistoryWord, words))


class RandomHistories:
    """A `NeuralRescorer` that gives every history a number of its own, and every ended one another."""

    def adjustments(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        return [random.Random(f"{each.context()} {final}").uniform(-4, 4) for each in histories]

    def bounds(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        return [4.0] * len(histories)


def decoder(every: int | None, **options: int) -> EmissionDecoder:
    chosen = CtcOptions(adjust_every_frames=every, **options)  # type: ignore[arg-type]
    return EmissionDecoder(LABELS, chosen, history_scorer=RandomHistories())


def full_score(tokens: Tokens, _: Reading) -> float:
    said = history_of(word.text for word in LABELS.words(tokens))
    return RandomHistories().adjustments([said], final=True)[0]


@pytest.mark.parametrize("every", [1, 2, 3, None])
@pytest.mark.parametrize("seed", range(3))
def test_histories_without_other_models_equal_enumeration(seed: int, every: int | None) -> None:
    """What a beam was given goes with it when beams change places, so that it can be taken back."""
    log_probs = emissions(5, 4, seed)
    truth = best_of(all_texts(log_probs, 0), one_reading, full_score)[:20]
    result = decoder(every, beam_size=600, n_best=20).decode(log_probs)[0]
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-4)
    assert [h.tokens for h in result] == [tokens for _, tokens, _ in truth]


@pytest.mark.parametrize("seed", range(4))
def test_narrow_beams_never_overestimate(seed: int) -> None:
    log_probs = emissions(6, 4, seed)
    texts = all_texts(log_probs, 0)
    for result in decoder(2, beam_size=4, n_best=4).decode(log_probs)[0]:
        assert result.score <= texts[result.tokens] + full_score(result.tokens, ()) + 1e-4


@pytest.mark.parametrize("blank_skip", [None, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_ragged_chunks_equal_the_whole(seed: int, blank_skip: float | None) -> None:
    """Every utterance is adjusted after as many of its own frames, whenever they come."""
    rows = np.stack([emissions(40, 4, 10 * seed + row) for row in range(3)])
    options = CtcOptions(beam_size=4, n_best=4, adjust_every_frames=5, blank_skip=blank_skip)
    searcher = EmissionDecoder(LABELS, options, history_scorer=RandomHistories())
    lengths, seen = np.array([40, 23, 31]), np.zeros(3, np.int64)
    state, chooser = searcher.start(3), random.Random(seed)
    while (seen < lengths).any():
        counts = np.minimum([chooser.randrange(8) for _ in range(3)], lengths - seen)
        chunk = np.full((3, 8, 4), math.log(0.25), np.float32)
        for row in range(3):
            chunk[row, : counts[row]] = rows[row, seen[row] : seen[row] + counts[row]]
        searcher.decode_chunk(state, chunk, counts)
        seen += counts
    whole = searcher.decode(rows, lengths)
    assert differences(searcher.finish(state), whole) == []
    alone = [searcher.decode(row[:length])[0] for row, length in zip(rows, lengths, strict=True)]
    assert differences(alone, whole) == []


class CountedWords:
    """A word model that gives every pair a number of its own, and counts what it is asked."""

    def __init__(self) -> None:
        self.n_cached = 0

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> dict[tuple[History, str], float]:
        assert pairs
        self.n_cached += len(pairs)
        return {pair: random.Random(f"{pair[0][-3:]} {pair[1]}").uniform(-4, 0) for pair in pairs}

    def score_ends(self, histories: Sequence[History]) -> dict[History, float]:
        assert histories
        return dict.fromkeys(histories, -1.0)


def test_a_model_is_not_asked_for_nothing() -> None:
    """Not where nothing was said, nor where every history is known."""
    model = CountedWords()
    scorer = NeuralRescorer(model, 0.3)
    beginning = WordHistory()
    histories = [beginning.after(map(HistoryWord, words)) for words in ((), ("ab",), ("ab", "b"))]
    assert scorer.adjustments([], final=True) == []
    assert scorer.adjustments([beginning], final=False) == [0.0]
    first = scorer.adjustments(histories, final=True)
    assert scorer.adjustments(histories, final=True) == first
    assert model.n_cached == 2


def spoken_abs(n_words: int) -> np.ndarray:
    """Emissions (T, V) of a stream that says "ab" so many times, four frames each."""
    return likely([1, 2, 3, 0] * n_words, 4, share=0.85)


class ShownWords(CountedWords):
    """Remembers how many words it was shown at most."""

    def __init__(self) -> None:
        super().__init__()
        self.n_shown = 0

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> dict[tuple[History, str], float]:
        self.n_shown = max(self.n_shown, *(len(history) for history, _ in pairs))
        return super().score_words(pairs)


def n_histories() -> int:
    """Count what is held of histories, by anybody."""
    gc.collect()
    return sum(type(each) is WordHistory for each in gc.get_objects())


def test_what_a_stream_holds_of_histories_does_not_grow() -> None:
    """However much was said, a model is shown and the decoder holds the last words alone."""
    before = n_histories()
    model = ShownWords()
    scorer = NeuralRescorer(model, 0.3)
    options = CtcOptions(beam_size=4, adjust_every_frames=10, commit_frames=100)
    searcher = EmissionDecoder(LABELS, options, history_scorer=scorer)
    state = searcher.start()
    for chunk in np.split(spoken_abs(400), 64):
        searcher.decode_chunk(state, chunk[None])
        assert scorer.n_cached <= 128 + 4 * 100
    assert model.n_shown == 127
    assert len(state.committed[0].words) > 300
    assert len(state.committed[0].words) - state.committed[0].n_scored < 20
    assert n_histories() - before <= 128 + 4 * 100
    del state
    assert n_histories() == before


def test_streams_that_come_in_turn_are_asked_for_once() -> None:
    """What one needs is not dropped because another came in between."""
    log_probs = spoken_abs(150)
    n_cached = []
    for n_streams in (1, 2):
        model = CountedWords()
        scorer = NeuralRescorer(model, 0.3)
        options = CtcOptions(beam_size=4, adjust_every_frames=10, commit_frames=100)
        searcher = EmissionDecoder(LABELS, options, history_scorer=scorer)
        states = [searcher.start() for _ in range(n_streams)]
        for chunk in np.split(log_probs, range(30, len(log_probs), 30)):
            for state in states:
                searcher.decode_chunk(state, chunk[None])
        n_cached.append(model.n_cached)
    assert n_cached[1] == 2 * n_cached[0]


class AskedHistories(RandomHistories):
    """Bounds the values of `RandomHistories` by what they are, or not at all, and counts the questions."""

    def __init__(self, slack: float) -> None:
        self._slack = slack
        self.n_asked = 0

    def adjustments(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        self.n_asked += len(histories)
        return super().adjustments(histories, final=final)

    def bounds(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        return [value + self._slack for value in super().adjustments(histories, final=final)]


@given(
    seed=st.integers(0, 10**6), threshold=st.floats(0.1, 12), slack=st.floats(0, 6), every=st.integers(1, 7)
)
@settings(max_examples=40, deadline=None)
def test_hypotheses_that_cannot_win_need_no_score(
    seed: int, threshold: float, slack: float, every: int
) -> None:
    """A bound spares questions and changes no result."""
    rows = np.stack([emissions(20, 4, seed + row) for row in range(2)])
    options = CtcOptions(beam_size=8, n_best=8, adjust_every_frames=every, adjust_threshold=threshold)
    result, n_scored = [], []
    for each in (AskedHistories(1e9), AskedHistories(slack)):
        searcher = EmissionDecoder(LABELS, options, history_scorer=each)
        result.append(searcher.decode(rows, [20, 13]))
        n_scored.append(each.n_asked)
    assert result[0] == result[1]
    assert n_scored[1] <= n_scored[0]


def test_a_wide_threshold_drops_nothing() -> None:
    log_probs = emissions(20, 4, 5)
    lists = []
    for threshold in (None, 1e6):
        options = CtcOptions(beam_size=8, n_best=8, adjust_every_frames=3, adjust_threshold=threshold)
        searcher = EmissionDecoder(LABELS, options, history_scorer=RandomHistories())
        lists.append(searcher.decode(log_probs))
    assert lists[0] == lists[1]


@pytest.mark.parametrize("weight", [0.7, -0.2])
@pytest.mark.parametrize("final", [True, False])
def test_bounds_are_never_below_the_scores(weight: float, final: bool) -> None:
    beginning = WordHistory()
    histories = [
        beginning.after(map(HistoryWord, words)) for words in ((), ("ab",), ("ab", "b"), ("b", "b", "ab"))
    ]
    scorer = NeuralRescorer(CountedWords(), weight)
    scorer.adjustments(histories[:2], final=False)
    bounds = scorer.bounds(histories, final=final)
    values = scorer.adjustments(histories, final=final)
    assert all(bound >= value for bound, value in zip(bounds, values, strict=True))
    if weight > 0 and not final:
        assert bounds[:2] == values[:2]
        assert bounds[2] == values[1]
