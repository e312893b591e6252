"""A window is cut where another language begins, at the quietest moment near it, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.api import load_model
from sottovoce.audio.recording import Recording
from sottovoce.decoding.detect import LanguageDetection
from sottovoce.decoding.options import DecodingOptions
from sottovoce.language.probe import ProbedLanguage
from sottovoce.offline.longform import transcribe
from sottovoce.offline.options import TranscribeOptions
from sottovoce.offline.turns import (
    Turn,
    TurnFinder,
    TurnWindow,
    proposed_runs,
    quietest,
    stretches,
)
from sottovoce.types import EncoderOutput, Features

CLIPS = Path(__file__).parents[2] / "examples" / "clips"


class ScriptedProbe:
    """Hears the language of each frame of a script, as sure as told; -1 is silence."""

    languages = ("en", "de", "fr")

    def __init__(self, script: Sequence[int], sureness: float = 0.9) -> None:
        self.script = np.array(script)
        self.sureness = sureness

    def probe(self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]]) -> list[ProbedLanguage]:
        return [self.hear(self.script[start:end]) for start, end in spans]

    def hear(self, frames: np.ndarray) -> ProbedLanguage:
        speech = frames[frames >= 0]
        shares = np.array([(speech == index).mean() if len(speech) else 1 / 3 for index in range(3)])
        return ProbedLanguage(
            self.sureness * shares + (1 - self.sureness) / 3, 1.0, 1.0 - len(speech) / len(frames)
        )


def named(encoded: EncoderOutput, sureness: float) -> LanguageDetection:
    """The language of most frames of a scripted window."""
    frames = encoded.states[0, : encoded.n_content_frames[0], 0]
    shares = [float((frames == index).float().mean()) for index in range(3)]
    mixed = [sureness * share + (1 - sureness) / 3 for share in shares]
    table = dict(zip(ScriptedProbe.languages, mixed, strict=True))
    best = max(table, key=lambda language: table[language])
    return LanguageDetection(best, table[best], table, 1.0, 0.0)


def turn_of(
    proposed: Sequence[int],
    sureness: float = 0.9,
    quiet: int | None = None,
    *,
    truth: Sequence[int] | None = None,
    current: str | None = None,
) -> Turn:
    """The first turn of a window; proposed: language of each frame as probed, truth: as detected."""
    said = torch.tensor(truth or proposed, dtype=torch.float32)
    n_frames = len(said)
    mel = torch.ones(80, 2 * n_frames)
    if quiet is not None:
        mel[:, 2 * quiet - 8 : 2 * quiet + 9] = -1.0

    def piece(start: int, end: int) -> Features:
        return Features(said[None, None, start:end], (end - start,))

    window = TurnWindow(EncoderOutput(torch.zeros(1, 1500, 1), (n_frames,)), mel, piece)
    finder = TurnFinder(ScriptedProbe(proposed, sureness), lambda encoded: named(encoded, sureness))
    steps = finder.first_turn(window, current)
    while True:
        try:
            work = next(steps)
        except StopIteration as end:
            return end.value
        work.states = EncoderOutput(work.features.mel.transpose(1, 2), work.features.n_content_frames)


@pytest.mark.parametrize("language", [0, 1, 2])
@pytest.mark.parametrize("sureness", [0.4, 0.9])
def test_one_language_is_not_cut(language: int, sureness: float) -> None:
    turn = turn_of([language] * 1200, sureness)
    assert turn.n_frames is None
    assert turn.language == ScriptedProbe.languages[language]


@pytest.mark.parametrize("seconds", [3, 7, 15])
def test_cut_near_the_change(seconds: int) -> None:
    change = 50 * seconds
    turn = turn_of([1] * change + [0] * 500)
    assert turn.language == "de"
    assert turn.n_frames == pytest.approx(change, abs=25)


def test_cut_at_the_pause() -> None:
    script = [0] * 400 + [-1] * 30 + [2] * 400
    turn = turn_of(script, quiet=415)
    assert turn.language == "en"
    assert turn.n_frames == pytest.approx(415, abs=2)


def test_a_doubtful_stretch_is_no_turn() -> None:
    turn = turn_of([0] * 500 + [1] * 20 + [0] * 500)
    assert turn.n_frames is None


def test_a_change_at_the_very_end_is_left_to_the_next_window() -> None:
    assert turn_of([0] * 500 + [1] * 40).n_frames is None


def test_silence_changes_nothing() -> None:
    turn = turn_of([0] * 300 + [-1] * 300 + [0] * 300)
    assert turn.n_frames is None
    assert turn.language == "en"


def test_a_change_that_the_pieces_do_not_confirm_is_none() -> None:
    """The probe hears French for four seconds of English: detected by itself, the piece is English."""
    english = [0] * 1000
    turn = turn_of([0] * 400 + [2] * 200 + [0] * 400, truth=english)
    assert (turn.language, turn.n_frames) == ("en", None)
    turn = turn_of([2] * 1000, truth=english)
    assert (turn.language, turn.n_frames) == ("en", None)


def test_pieces_that_are_joined_do_not_hide_a_later_change() -> None:
    turn = turn_of([0] * 300 + [2] * 200 + [1] * 400, truth=[0] * 500 + [1] * 400)
    assert turn.language == "en"
    assert turn.n_frames == pytest.approx(500, abs=25)


def test_a_change_in_doubt_is_none() -> None:
    assert turn_of([0] * 400 + [1] * 400, truth=[0] * 400 + [0, 1] * 200).n_frames is None


def test_the_language_before_the_window_stays_in_doubt() -> None:
    assert turn_of([0, 1, 1] * 100, 0.3, current="en").language == "en"
    assert turn_of([1] * 300, current="en").language == "de"
    assert turn_of([1] * 40, current="en").language == "en"  # too short to be told
    assert turn_of([1] * 40).language == "de"


def test_proposals_last_a_second_and_neighbours_differ() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        parts = [[int(generator.integers(3))] * int(generator.integers(10, 200)) for _ in range(6)]
        script = [frame for part in parts for frame in part]
        mel = torch.from_numpy(generator.normal(size=(80, 2 * len(script))).astype(np.float32))
        encoded = EncoderOutput(torch.zeros(1, 1500, 1), (len(script),))
        window = TurnWindow(encoded, mel, lambda *_: Features(torch.zeros(1, 80, 2), (2,)))
        runs = proposed_runs(ScriptedProbe(script), window)
        starts = [start for start, _ in runs] + [len(script)]
        assert starts[0] == 0
        assert all(b - a >= 50 for a, b in pairwise(starts)) or len(runs) == 1
        assert all(a[1] != b[1] for a, b in pairwise(runs))


@pytest.mark.parametrize("n_frames", [1, 99, 100, 101, 1500])
def test_stretches_lie_inside_and_begin_at_the_start(n_frames: int) -> None:
    spans = stretches(n_frames)
    assert spans[0][0] == 0
    assert all(0 <= start < end <= n_frames for start, end in spans)


def test_quietest_prefers_the_nearest_of_equals() -> None:
    assert quietest(torch.zeros(80, 400), 100) == 100


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_packed_speech_in_several_languages_is_cut_at_each_change(batch_size: int) -> None:
    """Four languages fill one window of speech: each is decoded alone, in order, at its own time."""
    model = load_model("nano", device="cpu", dtype="float32")
    options = TranscribeOptions(
        decoding=DecodingOptions(allowed_languages=tuple(model.languages)),
        mode="vad",
        batch_size=batch_size,
    )
    with Recording(CLIPS / "mixed.flac") as recording:
        segments = list(transcribe(model.backend, model.tokenizer, recording, options))
    assert list(dict.fromkeys(segment.language for segment in segments)) == ["en", "de", "es", "fr"]
    truth = json.loads((CLIPS / "manifest.jsonl").read_text("utf-8").splitlines()[-1])["segments"]
    for spoken in truth:
        middle = (spoken["start"] + spoken["end"]) / 2
        found = next(segment for segment in segments if segment.start <= middle <= segment.end)
        assert found.language == spoken["language"]


def test_a_row_of_a_batch_is_that_window_alone() -> None:
    keys = torch.arange(12.0).reshape(3, 1, 2, 2)
    batch = EncoderOutput(torch.arange(12.0).reshape(3, 2, 2), (2, 1, 2), [(keys, -keys)])
    one = batch.row(1)
    assert one.n_content_frames == (1,)
    assert torch.equal(one.states, batch.states[1:2])
    assert one.cross_kv is not None
    assert torch.equal(one.cross_kv[0][1], -keys[1:2])
