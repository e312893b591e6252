"""The running attention statistics, the frontier rule, loops, and the reader's endings."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import sottovoce_kernels as kernels

from sottovoce.audio.mel import log_mel, window_features
from sottovoce.decoding.alignment import RunningStatistics, median_filter
from sottovoce.decoding.filters import LiveVocabulary
from sottovoce.decoding.search import SPREAD_FLOOR, AlignAttEnd
from sottovoce.models.backend import EncoderOutput, RowsOutput, RunningRows, StepGroup, StepPart
from sottovoce.runtime.native import NativeDecoder, NativeRows
from sottovoce.streaming.alignatt import (
    ActiveRequest,
    AlignAttDecoder,
    AlignAttHypothesis,
    AlignAttRequest,
    AttendingRows,
    BeamPath,
    DecoderPrefix,
    NextTokens,
    StoppedBeam,
    StopReason,
    StopRules,
    count_looped,
    max_tokens_in,
)
from sottovoce.types import Floats, Ints
from tests.runtime.fake import FakeBackend, Script, ScriptedToken
from tests.runtime.reading import decoded
from tests.streaming.speech import TOKEN_OF, TOKENIZER, backend, say

SOT = TOKENIZER.sot_sequence_including_notimestamps
PREFIX = DecoderPrefix(SOT, 0, 0)
VOCABULARY = LiveVocabulary.of(TOKENIZER, TOKENIZER.n_vocab)


def reference_frontier(rows: Floats) -> Ints:
    """The definition: z-score over all tokens, median filter over frames, mean over heads, argmax."""
    exact = rows.astype(np.float64)
    deviation, mean = exact.std(axis=2, keepdims=True), exact.mean(axis=2, keepdims=True)
    scores = median_filter((exact - mean) / (deviation + SPREAD_FLOOR / rows.shape[-1]))
    attended: Ints = scores.mean(axis=1)[:, -1].argmax(axis=-1)
    return attended


def random_attention(seed: int, n_rows: int, n_tokens: int, n_frames: int) -> Floats:
    logits = 2 * np.random.default_rng(seed).standard_normal((n_rows, 3, n_tokens, n_frames), np.float32)
    weights = np.exp(logits)
    return weights / weights.sum(axis=-1, keepdims=True)


class KernelRows(NativeRows):
    """Rows of the kernels whose decoder step gives the numbers of a `Tracked`."""

    def __init__(self, tracked: Tracked) -> None:
        super().__init__(cast("NativeDecoder", tracked), "tracked")
        self.dims, self._tracked = tracked.dims, tracked

    def _checked(self, *_: object) -> list[int]:
        return [self._tracked.attention.shape[2]]


class Tracked:
    """Rows that attend as told, with random logits; the frontier of each.

    n_best: tokens of each row. parts: results of the steps.
    """

    dims = SimpleNamespace(n_vocab=VOCABULARY.n_vocab)

    def __init__(self, *, in_kernels: bool = False, n_best: int = 1) -> None:
        self.end = AlignAttEnd(VOCABULARY, n_best, ((0, 0), (0, 1), (1, 0)), returns_log_probs=True)
        self.rows = KernelRows(self) if in_kernels else AttendingRows(cast("RunningRows", self))
        self.places: list[int] = []
        self.lengths: list[int] = []
        self.frontier: list[int] = []
        self.parts: list[StepPart] = []
        self._logits = np.random.default_rng(0)

    def step(self, *given: object, **options: object) -> RowsOutput:
        """Answer as `RunningRows`, or write the numbers as `NativeDecoder`."""
        *_, tokens, wanted = (each for each in given if isinstance(each, list))
        shape = sum(map(len, wanted)), VOCABULARY.n_vocab
        logits = 5 * self._logits.standard_normal(shape, np.float32)
        if isinstance(given[-1], np.ndarray):
            given[-1][:] = logits
            cast("Floats", options["attention"])[:] = self.attention
        return RowsOutput(logits, self.attention, [len(new) for new in tokens], self.lengths)

    def _computed(
        self, end: AlignAttEnd, attention: Floats, columns: Sequence[Sequence[int]], n_new: int
    ) -> StepPart:
        self.attention = attention
        rows = range(len(columns))
        wanted = [(0, n_new - 1) if end.reads_prefixes else (0,) for _ in rows]
        ((part,),) = self.rows.steps(
            [[0] * n_new for _ in rows], [StepGroup(end, rows, wanted, np.array(columns))]
        )
        self.parts.append(part)
        return part

    def admit(self, n_frames: int, attention: Floats, n_cached: int = 0) -> RunningStatistics:
        """Add a row with the attention (n_heads, n, width) of its first tokens; return the statistics of
        n_cached of them."""
        place = max([0, *self.places]) + 1
        end, n = replace(self.end, reads_prefixes=True), attention.shape[1]
        self.rows.begin(end, {place: None})
        part = self._computed(end, attention, [(place, place, n_frames, n, n_cached, 0)], n)
        self.places.append(place)
        self.lengths.append(n_frames)
        self.frontier.append(int(part.outputs[0][0, 0]))
        (kept,) = part.kept
        assert isinstance(kept, RunningStatistics)
        return kept

    def extend(self, attention: Floats) -> None:
        """Add the attention (R, n_heads, width) of a token of each row."""
        targets = range(1, len(self.places) + 1)
        columns = [(*row, 1, 0, 0) for row in zip(self.places, targets, self.lengths, strict=True)]
        part = self._computed(self.end, attention.swapaxes(0, 1), columns, 1)
        self.places, self.frontier = list(targets), part.outputs[0][:, 0].astype(int).tolist()

    def select(self, rows: Sequence[int]) -> None:
        self.places, self.lengths = [self.places[row] for row in rows], [self.lengths[row] for row in rows]


def whole(rows: Floats, n_frames: int, *, in_kernels: bool = False) -> Tracked:
    """Of rows that come together, each with all its tokens."""
    tracked = Tracked(in_kernels=in_kernels)
    for row in rows:
        tracked.admit(n_frames, row)
    return tracked


@pytest.mark.parametrize("seed", range(5))
def test_running_statistics_equal_the_whole_history(seed: int) -> None:
    rows = random_attention(seed, 2, 40, 90)
    tracked = whole(rows[:, :, :5], 80, in_kernels=seed % 2 == 1)
    for t in range(5, 40):
        tracked.extend(rows[:, :, t])
        assert tracked.frontier == reference_frontier(rows[:, :, : t + 1, :80]).tolist()


def test_rows_follow_their_beam() -> None:
    rows = random_attention(9, 3, 12, 60)
    order = [2, 2, 0]
    tracked = whole(rows[:, :, :6], 60)
    tracked.select(order)
    for t in range(6, 12):
        tracked.extend(rows[:, :, t])
    moved = np.concatenate([rows[order, :, :6], rows[:, :, 6:]], axis=2)
    assert tracked.frontier == reference_frontier(moved).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_any_length_and_age_are_tracked_as_alone(seed: int) -> None:
    """What lies behind a shorter row's audio changes neither its statistics nor its frontier, nor does it
    matter when a row comes."""
    rng = random.Random(seed)
    lengths = [40, 70, 25]
    histories = [random_attention(seed + 100 * i, 1, 12, 70)[0] for i in range(3)]
    tracked, read = Tracked(in_kernels=seed % 2 == 1), [0, 0, 0]
    for row, history in enumerate(histories):
        read[row] = rng.randint(1, 4)
        tracked.admit(lengths[row], history[:, : read[row], : 70 if row else 45])
        tracked.extend(np.stack([histories[i][:, read[i]] for i in range(row + 1)]))
        read[: row + 1] = [n + 1 for n in read[: row + 1]]
    expected = [
        int(reference_frontier(history[None, :, :n, :length])[0])
        for history, n, length in zip(histories, read, lengths, strict=True)
    ]
    assert tracked.frontier == expected
    tracked.select([2, 0])
    tracked.extend(np.stack([histories[i][:, read[i]] for i in (2, 0)]))
    assert tracked.frontier == [
        int(reference_frontier(histories[i][None, :, : read[i] + 1, : lengths[i]])[0]) for i in (2, 0)
    ]


@pytest.mark.parametrize("instruction_set", [name for name in kernels.built() if kernels.runs_here(name)])
@pytest.mark.parametrize("seed", range(4))
def test_the_kernels_end_a_step_as_numpy_does(seed: int, instruction_set: str) -> None:
    """Statistics and frontiers are equal bit by bit, and so are the tokens; log-probabilities within 2e-6."""
    rng, before = random.Random(seed), kernels.in_use()
    both = [Tracked(in_kernels=in_kernels, n_best=6) for in_kernels in (False, True)]
    histories, lengths = random_attention(seed, 4, 20, 150), [rng.randint(20, 150) for _ in range(4)]
    histories *= (np.arange(150) < np.array(lengths)[:, None])[:, None, None]
    kernels.use(instruction_set)
    try:
        for row in range(4):
            for tracked in both:
                tracked.admit(lengths[row], histories[row, :, : 3 + row], n_cached=row)
        for token in range(7, 20):
            for tracked in both:
                tracked.extend(histories[[0, 1, 1, 3], :, token])
    finally:
        kernels.use(before)
    for ours, theirs in zip(*(tracked.parts for tracked in both), strict=True):
        expected, result = ours.outputs[0], theirs.outputs[0]
        assert np.array_equal(result[:, :11], expected[:, :11])  # frontier, ends and tokens
        np.testing.assert_allclose(result[:, 11:], expected[:, 11:], rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(theirs.outputs[1], ours.outputs[1], rtol=1e-6)
        for kept, theirs_kept in zip(ours.kept, theirs.kept, strict=True):
            assert isinstance(kept, RunningStatistics)
            assert isinstance(theirs_kept, RunningStatistics)
            assert float(kept.n_tokens[0, 0]) == theirs_kept.n_tokens
            assert np.array_equal(theirs_kept.mean, kept.mean)
            assert np.array_equal(theirs_kept.squares, kept.squares)


@pytest.mark.parametrize("in_kernels", [False, True])
def test_short_audio_has_a_frontier_too(in_kernels: bool) -> None:
    assert whole(random_attention(1, 1, 1, 2), 2, in_kernels=in_kernels).frontier[0] in (0, 1)


def test_statistics_go_on_from_those_of_a_shorter_window() -> None:
    attention = np.random.default_rng(0).random((3, 12, 50), np.float32)
    attention[:, :8, 40:] = 0  # said before these frames came
    tracked, grown = whole(attention[None], 50), Tracked()
    cached = grown.admit(40, attention[:, :8, :40], n_cached=6)
    np.testing.assert_allclose(cached.mean, attention[:, :6, :40].mean(axis=1), rtol=1e-5)
    grown.extend(attention[None, :, 8])
    for t in range(9, 12):
        grown.lengths = [50]
        grown.extend(attention[None, :, t])
    assert grown.frontier == tracked.frontier


def encoded(words: list[str], n_mels: int = 400) -> EncoderOutput:
    return backend().encode(window_features([log_mel(say(words))], n_mels))


def reader(beam_size: int = 1) -> AlignAttDecoder:
    return AlignAttDecoder(backend(), TOKENIZER.eot, VOCABULARY, beam_size)


def read(
    states: EncoderOutput,
    prefix: DecoderPrefix = PREFIX,
    *,
    frame_threshold: float = 0,
    beam_size: int = 1,
) -> AlignAttHypothesis:
    """One request alone."""
    request = AlignAttRequest(prefix, StopRules(frame_threshold=frame_threshold))
    (reading,) = decoded(reader(beam_size), [states], [request])
    return reading


@pytest.mark.parametrize("beam_size", [1, 4])
def test_it_reads_to_the_end_of_text_when_nothing_holds_it(beam_size: int) -> None:
    words = ["time", "year", "people"]
    reading = read(encoded(words), beam_size=beam_size)
    assert reading.tokens == tuple(TOKEN_OF[word] for word in words)
    assert reading.stop_reason is StopReason.END_OF_TEXT
    assert list(reading.frames) == sorted(reading.frames)


@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_nothing_more_may_be_the_best_of_all_beams(beam_size: int) -> None:
    """An end of text at once is ranked by its own log-probability, as beams of tokens are."""
    said = DecoderPrefix((*SOT, TOKEN_OF["time"]), 0, 1)
    reading = read(encoded(["time"]), said, beam_size=beam_size)
    assert reading.tokens == ()
    assert reading.stop_reason is StopReason.END_OF_TEXT


def test_an_end_at_once_that_is_unlikely_loses_to_what_is_likely() -> None:
    """Of two beams, by the mean over the tokens and the end of text."""
    likely, nothing, unlikely = (
        StoppedBeam(BeamPath((7,) * n, 20, n, score=score), StopReason.END_OF_TEXT, n - 1)
        for n, score in ((2, -1.1), (1, -2.0), (2, -4.6))
    )
    standings = [beam.ranking_score for beam in (likely, nothing, unlikely)]
    assert standings == sorted(standings, reverse=True)
    assert len({*standings}) == 3


@pytest.mark.parametrize("beam_size", [1, 4])
def test_tokens_near_the_end_wait(beam_size: int) -> None:
    words = ["time", "year", "people", "way"]  # said at 0.15, 0.55, 0.95, 1.35 s of 1.6 s
    reading = read(encoded(words), frame_threshold=25, beam_size=beam_size)
    assert reading.tokens == tuple(TOKEN_OF[word] for word in words[:3])
    assert reading.stop_reason is StopReason.FRONTIER
    assert reading.held_back_token == TOKEN_OF["way"]


def test_it_goes_on_after_what_was_committed() -> None:
    prefix = DecoderPrefix((*SOT, TOKEN_OF["time"]), 0, 1)
    reading = read(encoded(["time", "year"]), prefix)
    assert reading.tokens == (TOKEN_OF["year"],)


def stop_reason(frames: Sequence[int], committed_until: int | None = None) -> StopReason:
    """Of a text whose tokens are attended to at these frames."""
    rules = StopRules(frame_threshold=0, rewind_threshold=200, committed_until=committed_until)
    request = ActiveRequest(0, reader(), AlignAttRequest(PREFIX, rules), 600)
    for token, frame in [*enumerate(frames), (TOKENIZER.eot, 0)]:
        if request.paths:
            request.extend(0, NextTokens([frame], [[token]], [[-0.1]], None))
    return request.hypothesis.stop_reason


def test_a_jump_back_discards_the_update() -> None:
    assert stop_reason([300, 99]) is StopReason.REWOUND
    assert stop_reason([300, 100]) is StopReason.END_OF_TEXT
    assert stop_reason([0]) is StopReason.END_OF_TEXT


def test_the_first_token_may_not_jump_back_behind_what_was_said() -> None:
    """Else committed audio would be said twice."""
    assert stop_reason([299], committed_until=500) is StopReason.REWOUND
    assert stop_reason([300], committed_until=500) is StopReason.END_OF_TEXT
    assert stop_reason([310, 299], committed_until=500) is StopReason.END_OF_TEXT, (
        "only the first token looks there"
    )


def test_loops_are_cut_to_their_first_saying() -> None:
    assert count_looped([7] * 8, 4) == 7
    assert count_looped([7] * 7, 4) == 0, "seven of a kind may be meant"
    assert count_looped([1, 2, 3] * 5, 4) == 12
    assert count_looped([1, 2, 3] * 4, 4) == 0
    assert count_looped([5, 5, 1, 2, 3, 4, 1, 2, 3, 4], 4) == 0
    assert count_looped([], 4) == 0


def test_babble_without_a_period_is_a_loop_too() -> None:
    rng = random.Random(0)
    babble = [rng.randrange(8) for _ in range(40)]
    assert count_looped(babble[:31], 4) == 0, "too short to tell"
    assert count_looped([*range(100, 140), *babble], 4) == 40
    assert count_looped(babble, 10_000) == 0, "no loop is cut then"
    assert count_looped([*range(100, 140), *range(100, 120), *range(60, 72)], 4) == 0
    assert count_looped([rng.randrange(16) for _ in range(40)], 4) == 0


def test_tokens_are_bounded_by_the_audio() -> None:
    assert max_tokens_in(-1.0) == max_tokens_in(0.0) == 10
    assert max_tokens_in(2.0) == 50
    assert max_tokens_in(30.0) == 224


def test_a_looping_model_is_stopped() -> None:
    token = TOKEN_OF["time"]
    looping = FakeBackend(Script(tuple(ScriptedToken(token, 3 * i) for i in range(40))))
    states = looping.encode(window_features([log_mel(say(["time"] * 8))], 400))
    request = AlignAttRequest(PREFIX, StopRules(frame_threshold=0))
    (hypothesis,) = decoded(AlignAttDecoder(looping, TOKENIZER.eot, VOCABULARY), [states], [request])
    assert hypothesis.stop_reason is StopReason.REPEATED
    assert hypothesis.tokens == (token,)


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("is_started", [False, True])
def test_windows_of_different_length_are_decoded_as_alone(beam_size: int, is_started: bool) -> None:
    """What is behind a shorter window is hidden. is_started: other rows hold keys and values already."""
    windows = [encoded(["time", "year", "people"], 160), encoded(["time", "way", "day", "man"], 240)]
    german = (*TOKENIZER.with_language("de").sot_sequence_including_notimestamps, TOKEN_OF["time"])
    rules = StopRules(frame_threshold=25)
    requests = [AlignAttRequest(PREFIX, rules), AlignAttRequest(DecoderPrefix(german, 0, 1), rules)]
    model = backend()
    if is_started:
        for window in windows:
            model.rows().admit(window)
    decoder = AlignAttDecoder(model, TOKENIZER.eot, VOCABULARY, beam_size)
    given = zip(windows, requests, strict=True)
    alone = [decoded(decoder, [window], [request])[0] for window, request in given]
    assert [each.tokens[0] for each in alone] == [TOKEN_OF["time"], TOKEN_OF["way"]]
    assert_same(decoded(decoder, windows, requests), alone)
    assert_same(decoded(decoder, windows[::-1], requests[::-1]), alone[::-1])


def test_a_longer_window_is_decoded_after_many_shorter_ones() -> None:
    windows = [encoded(["time", "year", "people"], 160), encoded(["time", "way", "day", "man"], 240)]
    request = AlignAttRequest(PREFIX, StopRules(frame_threshold=25))
    decoder = AlignAttDecoder(backend(), TOKENIZER.eot, VOCABULARY)
    batch = decoder.new_batch()
    hypotheses: list[AlignAttHypothesis] = []
    for window, n_rows in zip(windows, (8, 1), strict=True):
        for _ in range(n_rows):
            batch.admit(decoder, window, request)
        while batch.n_requests:
            hypotheses += [hypothesis for _, hypothesis in batch.step()]
    alone = [decoded(decoder, [window], [request])[0] for window in windows]
    assert_same(hypotheses, [alone[0]] * 8 + [alone[1]])


def assert_same(ours: Sequence[AlignAttHypothesis], theirs: Sequence[AlignAttHypothesis]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        assert our.tokens
        assert (our.tokens, our.frames, our.stop_reason) == (their.tokens, their.frames, their.stop_reason)
        assert our.held_back_token == their.held_back_token
        assert our.no_speech_prob == pytest.approx(their.no_speech_prob)
        assert our.logprobs == pytest.approx(their.logprobs, abs=1e-5)
        assert our.avg_logprob == pytest.approx(their.avg_logprob, abs=1e-5)


def test_sessions_that_begin_at_once_share_a_vocabulary() -> None:
    """Only requests with the same one are decoded in a batch."""
    LiveVocabulary._computed.cache_clear()
    at_once = threading.Barrier(8)

    def vocabulary(_: int) -> LiveVocabulary:
        at_once.wait()
        return LiveVocabulary.of(TOKENIZER, TOKENIZER.n_vocab)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(vocabulary, range(8)))) == 1
