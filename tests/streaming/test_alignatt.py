"""The frame that a token attends to, the frontier rule, loops, and the reader's endings."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from sottovoce.audio.mel import log_mel, window_features
from sottovoce.streaming.alignatt import AlignAttDecoder, AlignAttRequest, LiveVocabulary, attended_frames
from sottovoce.streaming.hypothesis import (
    AlignAttHypothesis,
    BeamPath,
    DecoderPrefix,
    StopReason,
    StopRules,
    count_looped,
    most_tokens,
)
from sottovoce.types import EncoderOutput, StepOutput
from tests.backends.fake import FakeBackend, Script, ScriptedToken
from tests.streaming.speech import TOKEN_OF, TOKENIZER, backend, hear, say

SOT = TOKENIZER.sot_sequence_including_notimestamps
PREFIX = DecoderPrefix(SOT, 0, 0)
VOCABULARY = LiveVocabulary.of(TOKENIZER, TOKENIZER.n_vocab, torch.device("cpu"))


def test_a_token_is_where_the_mean_over_heads_is_highest() -> None:
    generator = torch.Generator().manual_seed(0)
    attention = torch.rand(3, 4, 50, generator=generator)
    attention[:, :, 40:] = 2.0  # behind the audio
    attention[:, 2, 10:20] = 1.5
    attention[:, 2, 30] = 1.9  # a single frame, which the filter takes out
    frames = attended_frames([attention], [40])
    assert frames.shape == (4,)
    assert 10 <= int(frames[2]) < 20
    for n_frames in (1, 2, 40):
        assert int(attended_frames([attention], [n_frames]).max()) < n_frames


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_any_length_are_followed_as_alone(seed: int) -> None:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    lengths = [rng.randint(4, 70) for _ in range(4)]
    rows = [torch.rand(3, rng.randint(1, 3), n + rng.randint(0, 5), generator=generator) for n in lengths]
    alone = [attended_frames([row], [n]) for row, n in zip(rows, lengths, strict=True)]
    assert torch.equal(attended_frames(rows, lengths), torch.cat(alone))


def encoded(words: list[str]) -> EncoderOutput:
    return backend().encode(window_features([log_mel(say(words))], 400))


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
    (reading,) = reader(beam_size).decode([states], [request])
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
    nothing = BeamPath().extended(TOKENIZER.eot, 10, -2.0, 0.1).stopped(StopReason.END_OF_TEXT, n_tokens=-1)
    likely = BeamPath().extended(7, 10, -1.0, 0.1).extended(TOKENIZER.eot, 20, -0.1, 0.1)
    unlikely = BeamPath().extended(7, 10, -4.5, 0.1).extended(TOKENIZER.eot, 20, -0.1, 0.1)
    standings = [path.stopped(StopReason.END_OF_TEXT, n_tokens=-1).ranking_key for path in (likely, unlikely)]
    assert standings[0] > nothing.ranking_key > standings[1]


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


class Counted(FakeBackend):
    """Counts decoder passes."""

    n_passes = 0

    def step(self, *given: Any, **options: Any) -> StepOutput:
        self.n_passes += 1
        return super().step(*given, **options)


@pytest.mark.parametrize(
    ("guess", "n_passes"),
    [
        ([], 4),
        (["year", "people"], 2),
        (["year", "way", "people"], 3),
        (["way", "year", "people"], 4),
        (["year", "people", "way"], 1),
        (["year", "people", "way", "time", "time"], 1),
    ],
)
def test_a_guess_saves_passes_and_changes_nothing(guess: list[str], n_passes: int) -> None:
    """Passes: one for the prefix, and one for each of three tokens that was not guessed."""
    words = ["time", "year", "people", "way"]
    prefix = DecoderPrefix((*SOT, TOKEN_OF["time"]), 0, 1)
    counted = Counted(hear)
    guessing = AlignAttRequest(prefix, StopRules(frame_threshold=0), tuple(TOKEN_OF[word] for word in guess))
    alone = read(encoded(words), prefix)
    assert alone.tokens == tuple(TOKEN_OF[word] for word in words[1:])
    assert AlignAttDecoder(counted, TOKENIZER.eot, VOCABULARY).decode([encoded(words)], [guessing]) == [alone]
    assert counted.n_passes == n_passes


def test_a_jump_back_discards_the_update() -> None:
    rules = StopRules(frame_threshold=0, rewind_threshold=200)
    assert rules.rewound(99, 300)
    assert not rules.rewound(100, 300)
    assert not rules.rewound(0, None)


def test_the_first_token_may_not_jump_back_behind_what_was_said() -> None:
    """Else committed audio would be said twice."""
    rules = StopRules(frame_threshold=0, rewind_threshold=200, committed_until=500)
    jumped = rules.stopped_by_attention(BeamPath(), 299, 600, 7)
    assert jumped is not None
    assert jumped.stop_reason is StopReason.REWOUND
    assert rules.stopped_by_attention(BeamPath(), 300, 600, 7) is None
    assert rules.stopped_by_attention(BeamPath().extended(5, 310, -0.1, 0.1), 299, 600, 7) is None, (
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
    assert most_tokens(-1.0) == most_tokens(0.0) == 10
    assert most_tokens(2.0) == 50
    assert most_tokens(30.0) == 224


def test_a_looping_model_is_stopped() -> None:
    token = TOKEN_OF["time"]
    looping = FakeBackend(Script(tuple(ScriptedToken(token, 3 * i) for i in range(40))))
    states = looping.encode(window_features([log_mel(say(["time"] * 8))], 400))
    request = AlignAttRequest(PREFIX, StopRules(frame_threshold=0))
    (found,) = AlignAttDecoder(looping, TOKENIZER.eot, VOCABULARY).decode([states], [request])
    assert found.stop_reason is StopReason.REPEATED
    assert found.tokens == (token,)
