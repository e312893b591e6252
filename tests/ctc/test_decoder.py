"""Batches, chunks, pruning and times."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sottovoce.ctc import CtcDecoder
from sottovoce.ctc.decoder import EmissionDecoder
from sottovoce.ctc.emissions import align, log_softmax
from sottovoce.ctc.labels import Labels
from sottovoce.ctc.options import CtcOptions
from sottovoce.ctc.search import PrefixScorer
from sottovoce.errors import InputError, OptionError
from tests.ctc.enumeration import RandomBigram, emissions
from tests.ctc.lists import differences

LABELS = Labels.of(["a", "b", "-", " ", "c"], 2)
LENGTHS = [23, 0, 11, 30, 1]


def batch() -> tuple[np.ndarray, np.ndarray]:
    rows = np.stack([emissions(30, 5, seed) for seed in range(len(LENGTHS))])
    return rows, np.array(LENGTHS)


def decoder(*, fused: bool, **options: float) -> EmissionDecoder:
    chosen = CtcOptions(beam_size=8, n_best=4, **options)  # type: ignore[arg-type]
    scorer = PrefixScorer(5, [(RandomBigram(5, 1).automaton(), 0.5)]) if fused else None
    return EmissionDecoder(LABELS, chosen, scorer=scorer)


@pytest.mark.parametrize("fused", [False, True])
def test_batch_equals_single(fused: bool) -> None:
    rows, lengths = batch()
    alone = [decoder(fused=fused).decode(row[:n])[0] for row, n in zip(rows, LENGTHS, strict=True)]
    assert differences(decoder(fused=fused).decode(rows, lengths), alone) == []


def test_padding_does_not_matter() -> None:
    rows, lengths = batch()
    clean = decoder(fused=True).decode(rows, lengths)
    for row, length in zip(rows, LENGTHS, strict=True):
        row[length:] = float("nan")
    assert differences(decoder(fused=True).decode(rows, lengths), clean) == []


@pytest.mark.parametrize("options", [{}, {"blank_skip": 0.6}])
@pytest.mark.parametrize("chunk", [1, 7])
def test_chunked_equals_whole(chunk: int, options: dict[str, float]) -> None:
    rows, lengths = batch()
    rows[:, ::3] = rows[:, ::3] * 0.2 + np.array([0.0, 0, 4, 0, 0])
    rows = log_softmax(rows)
    searcher = decoder(fused=True, **options)
    state = searcher.start(len(rows))
    for begin in range(0, 30, chunk):
        part = rows[:, begin : begin + chunk]
        searcher.decode_chunk(state, part, (lengths - begin).clip(0, part.shape[1]))
    assert differences(searcher.finish(state), searcher.decode(rows, lengths)) == []


def test_finishing_leaves_the_state_as_it_is() -> None:
    rows, _ = batch()
    searcher = decoder(fused=True)
    state = searcher.start(len(rows))
    searcher.decode_chunk(state, rows[:, :20])
    assert differences(searcher.finish(state), searcher.finish(state)) == []
    searcher.decode_chunk(state, rows[:, 20:])
    assert differences(searcher.finish(state), searcher.decode(rows)) == []


def test_prunings_that_reach_everything_change_nothing() -> None:
    rows, lengths = batch()
    plain = decoder(fused=True).decode(rows, lengths)
    pruned = decoder(fused=True, beam_threshold=1e4, top_tokens=4).decode(rows, lengths)
    assert differences(pruned, plain) == []


def test_tokens_that_are_left_out_without_a_scorer_could_not_win() -> None:
    """Only beam_size + 1 tokens are looked at; a scorer that says nothing looks at all of them."""
    log_probs = np.stack([emissions(25, 40, seed) for seed in range(6)])
    names = Labels(tuple(chr(0x4E00 + i) for i in range(40)), 7)
    options = CtcOptions(beam_size=5, n_best=5, times=False)
    few = EmissionDecoder(names, options).decode(log_probs)
    silent = PrefixScorer(40, [(RandomBigram(40, 0).automaton(), 0.0)])
    assert differences(few, EmissionDecoder(names, options, scorer=silent).decode(log_probs)) == []


def test_skipping_blank_runs_keeps_the_score_of_what_is_left() -> None:
    log_probs = np.full((40, 5), -12.0, np.float32)
    log_probs[:, 2] = 0.0
    for frame, label in ((5, 0), (6, 0), (20, 0), (33, 4)):
        log_probs[frame] = -12.0
        log_probs[frame, label] = 0.0
    log_probs = log_softmax(log_probs)
    whole, skipped = (decoder(fused=False, **o).decode(log_probs)[0][0] for o in ({}, {"blank_skip": 0.99}))
    assert whole.text == skipped.text == "aac"
    assert skipped.score == pytest.approx(whole.score, abs=1e-2)
    assert skipped.token_frames == whole.token_frames == (5, 20, 33)


def test_times_are_those_of_the_likeliest_path() -> None:
    log_probs = np.full((12, 5), math.log(0.02), np.float32)
    log_probs[:, 2] = 0.0
    for frame, label in ((1, 0), (2, 0), (4, 3), (7, 1), (8, 4), (9, 4)):
        log_probs[frame] = math.log(0.02)
        log_probs[frame, label] = 0.0
    best = EmissionDecoder(LABELS, CtcOptions(frame_s=0.1)).decode(log_softmax(log_probs))[0][0]
    assert best.text == "a bc"
    assert best.token_frames == (1, 4, 7, 8)
    assert [(w.word, w.start, w.end) for w in best.words] == [
        ("a", pytest.approx(0.1), pytest.approx(0.3)),
        ("bc", pytest.approx(0.7), pytest.approx(1.0)),
    ]
    assert all(0.9 < w.probability < 1 for w in best.words)


def test_alignment_needs_a_blank_between_equal_tokens() -> None:
    log_probs = emissions(3, 3, 0)[None]
    spans = align(
        log_probs, np.array([3]), np.array([[1, 1], [1, 2]]), np.array([2, 2]), rows=np.array([0, 0]), blank=0
    )
    assert spans.first[0].tolist() == [0, 2]
    expected = log_probs[0, 0, 1] + log_probs[0, 1, 0] + log_probs[0, 2, 1]
    assert float(spans.score[0]) == pytest.approx(float(expected))


def test_lengths_that_do_not_fit_are_refused() -> None:
    rows, _ = batch()
    with pytest.raises(InputError, match="0 to 30"):
        decoder(fused=False).decode(rows, np.array([31, 0, 0, 0, 0]))
    with pytest.raises(InputError, match="shape"):
        decoder(fused=False).decode(rows, np.array([3]))


def test_options_are_checked() -> None:
    for wrong in ({"beam_size": 0}, {"beam_threshold": -1.0}, {"blank_skip": 1.0}, {"top_tokens": 0}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            CtcOptions(**wrong)  # type: ignore[arg-type]


def test_keywords_stand_in_for_options_only_where_they_are_given() -> None:
    options = CtcOptions(beam_size=7, n_best=3, blank_skip=0.9)
    assert CtcDecoder(["-", "a"], options=options).options == options
    chosen = CtcDecoder(["-", "a"], beam_size=5, n_best=2, options=options).options
    assert chosen == CtcOptions(beam_size=5, n_best=2, blank_skip=0.9)
    assert CtcDecoder(["-", "a"]).options == CtcOptions()


def test_every_door_takes_tensors_arrays_and_lists() -> None:
    decoder = CtcDecoder(["-", "a", "b", " "], blank=0)
    log_probs, lengths = np.stack([emissions(6, 4, seed) for seed in range(2)]), np.array([6, 4])
    doors = (decoder.decode, decoder.decode_logits, decoder.greedy)
    expected = [door(log_probs, lengths) for door in doors]
    for values, counts in (
        (torch.from_numpy(log_probs), torch.from_numpy(lengths)),
        (log_probs.tolist(), [6, 4]),
    ):
        assert [door(values, counts) for door in doors] == expected
        state = decoder.start(2)
        decoder.decode_chunk(state, values, counts)
        assert decoder.finish(state) == expected[0]
    with pytest.raises(InputError, match="expected numbers"):
        decoder.decode([[0.5, 0.5], [1.0]])
