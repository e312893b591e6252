"""Draft text of a CTC head: what lies after the committed words, shown at once and never committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from sottovoce.audio.vad_stream import VadStream
from sottovoce.backends.fake import FakeBackend
from sottovoce.streaming.draft import CtcDraft
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session, SessionOptions
from sottovoce.streaming.window import Window
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Emissions, EncoderOutput, Event, Partial, Unstable
from tests.streaming.speech import ToneDetector, backend, hear, say, silence

TOKENIZER = Tokenizer.for_model(51865)
LABELS = ("-", " ", "a", "b", "c")
WORDS = ["time", "year", "people", "way", "day", "man"]


class ScriptedHead:
    """Says the same labels for every window: one a frame."""

    labels: Sequence[str] = LABELS
    blank = 0

    def __init__(self, said: str) -> None:
        self._said = said

    def emissions_of(self, encoded: EncoderOutput) -> Emissions:
        ids = [LABELS.index(label) for label in self._said.ljust(encoded.n_frames, "-")[: encoded.n_frames]]
        probabilities = torch.full((1, encoded.n_frames, len(LABELS)), 0.01)
        probabilities[0, torch.arange(encoded.n_frames), ids] = 1.0 - 0.01 * (len(LABELS) - 1)
        return Emissions(probabilities.log(), torch.tensor([encoded.n_frames]))


def window(n_frames: int, start_s: float) -> Window:
    encoded = EncoderOutput(torch.zeros(1, n_frames, 4), (n_frames,))
    return Window(encoded, torch.zeros(80, 2 * n_frames), round(start_s * 16000))


@pytest.mark.parametrize(
    ("after_s", "text"), [(0.0, " ab c ba"), (10.05, " c ba"), (10.13, " ba"), (11.0, "")]
)
def test_words_after_a_moment_are_shown(after_s: float, text: str) -> None:
    draft = CtcDraft(ScriptedHead("ab--  c   ba---"))  # from 10.00, 10.12 and 10.20 s on
    shown = draft.read(window(30, 10.0), after_s)
    assert shown.text == text
    if text:
        assert shown.start_s >= after_s - 0.05
        assert shown.end_s == pytest.approx(10.24)


def events_of(draft: CtcDraft | None, *, unstable: bool) -> list[Event]:
    options = SessionOptions(("en",), stream=StreamOptions(chunk_s=0.2), unstable=unstable)
    live = Session(
        FakeBackend(hear) if draft else backend(),
        TOKENIZER,
        options,
        vad=VadStream(model=ToneDetector()),
        draft=draft,
    )
    audio = np.concatenate([silence(0.5), say(WORDS), silence(1.0)])
    return live.push(audio) + live.close()


def unnumbered(events: Iterable[Event]) -> list[Event]:
    return [replace(event, seq=0) for event in events]


def test_a_draft_comes_before_the_words_and_changes_none_of_them() -> None:
    draft = CtcDraft(ScriptedHead("-" * 5 + "ab c" * 100))
    plain, drafted = events_of(None, unstable=False), events_of(draft, unstable=True)
    assert unnumbered(event for event in drafted if not isinstance(event, Unstable)) == unnumbered(plain)
    assert [event.seq for event in drafted] == list(range(len(drafted))), "unstable text is numbered as well"
    first_draft = next(i for i, event in enumerate(drafted) if isinstance(event, Unstable))
    first_word = next(i for i, event in enumerate(drafted) if isinstance(event, Partial))
    assert first_draft < first_word
    last = [event for event in drafted if isinstance(event, Unstable)][-1]
    assert last.text == "", "nothing unstable is left at the end of an utterance"


def test_no_draft_is_sent_unasked() -> None:
    draft = CtcDraft(ScriptedHead("ab c" * 100))
    assert events_of(draft, unstable=False) == events_of(None, unstable=False)
