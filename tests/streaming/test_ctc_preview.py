"""Draft text of a CTC head: what lies after the committed words, shown at once and never committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.audio.vad_stream import VadStream
from sottovoce.decoding.ctc.greedy import greedy_decode
from sottovoce.decoding.ctc.text import Labels
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.streaming.ctc_preview import CtcPreview
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session, SessionOptions
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Emissions, EncoderOutput, Event, Partial, Unstable
from tests.backends.fake import FakeBackend
from tests.streaming.speech import ToneDetector, backend, hear, say, silence

TOKENIZER = Tokenizer.for_model(51865)
LABELS = ("-", " ", "a", "b", "c")
WORDS = ["time", "year", "people", "way", "day", "man"]


class ScriptedHead:
    """Says the same labels for every window: one a frame, told by states that count them if they do."""

    labels: Sequence[str] = LABELS
    blank = 0
    reach_frames = 2

    def __init__(self, said: str, *, is_counted: bool = False) -> None:
        self._said = said
        self._is_counted = is_counted
        self.n_frames: list[int] = []
        """Of every call."""

    def emissions_of(self, encoded: EncoderOutput) -> Emissions:
        self.n_frames.append(encoded.n_frames)
        begin = int(encoded.states[0, 0, 0]) if self._is_counted else 0
        said = self._said.ljust(begin + encoded.n_frames, "-")[begin:]
        ids = [LABELS.index(label) for label in said[: encoded.n_frames]]
        probabilities = torch.full((1, encoded.n_frames, len(LABELS)), 0.01)
        probabilities[0, torch.arange(encoded.n_frames), ids] = 1.0 - 0.01 * (len(LABELS) - 1)
        return Emissions(probabilities.log(), torch.tensor([encoded.n_frames]))


def window(n_frames: int, start_s: float) -> AudioWindow:
    states = torch.arange(n_frames, dtype=torch.float32)[None, :, None].expand(1, -1, 4)
    encoded = EncoderOutput(states, (n_frames,))
    return AudioWindow(encoded, torch.zeros(80, 2 * n_frames), round(start_s * 16000))


@pytest.mark.parametrize(
    ("after_s", "text"), [(0.0, " ab c ba"), (10.05, " c ba"), (10.13, " ba"), (11.0, "")]
)
def test_words_after_a_moment_are_shown(after_s: float, text: str) -> None:
    draft = CtcPreview(ScriptedHead("ab--  c   ba---", is_counted=True))  # from 10.00, 10.12 and 10.20 s on
    shown = draft.decode(window(30, 10.0), after_s)
    assert shown.text == text
    if text:
        assert shown.start_s >= after_s - 0.05
        assert shown.end_s == pytest.approx(10.24)


WORDS_OF_FRAMES = st.lists(
    st.text(alphabet="aabbc-", min_size=1, max_size=60) | st.just(" " * 7), min_size=1, max_size=12
).map(" ".join)


@given(WORDS_OF_FRAMES, st.integers(0, 300))
def test_the_head_runs_over_the_end_alone_and_finds_what_it_finds_of_the_whole(said: str, after: int) -> None:
    n_frames = len(said)
    head, after_s = ScriptedHead(said, is_counted=True), 10.0 + after / 50 + 0.003
    shown = CtcPreview(head).decode(window(n_frames, 10.0), after_s)
    whole = torch.zeros(1, n_frames, 4)
    (greedy,) = greedy_decode(
        Labels.of(LABELS, 0), head.emissions_of(EncoderOutput(whole, (n_frames,))).log_probs
    )
    words = [word for word in greedy.words if 10.0 + (word.start + word.end) / 2 > after_s]
    assert shown.text == "".join(f" {word.word}" for word in words)
    if words:
        assert shown.start_s == pytest.approx(10.0 + words[0].start)
        assert shown.end_s == pytest.approx(10.0 + words[-1].end)


def test_a_long_window_is_not_read_again() -> None:
    head = ScriptedHead("ab c " * 300, is_counted=True)
    assert CtcPreview(head).decode(window(1500, 10.0), 10.0 + 1400 / 50).text
    assert sum(head.n_frames) < 200


def events_of(draft: CtcPreview | None, *, unstable: bool) -> list[Event]:
    options = SessionOptions(("en",), stream=StreamOptions(chunk_s=0.2), unstable=unstable)
    live = Session(
        FakeBackend(hear) if draft else backend(),
        TOKENIZER,
        options,
        vad=VadStream(model=ToneDetector()),
        preview=draft,
    )
    audio = np.concatenate([silence(0.5), say(WORDS), silence(1.0)])
    return live.push(audio) + live.close()


def unnumbered(events: Iterable[Event]) -> list[Event]:
    return [replace(event, seq=0) for event in events]


def test_a_draft_comes_before_the_words_and_changes_none_of_them() -> None:
    draft = CtcPreview(ScriptedHead("-" * 5 + "ab c" * 100))
    plain, drafted = events_of(None, unstable=False), events_of(draft, unstable=True)
    assert unnumbered(event for event in drafted if not isinstance(event, Unstable)) == unnumbered(plain)
    assert [event.seq for event in drafted] == list(range(len(drafted))), "unstable text is numbered as well"
    first_draft = next(i for i, event in enumerate(drafted) if isinstance(event, Unstable))
    first_word = next(i for i, event in enumerate(drafted) if isinstance(event, Partial))
    assert first_draft < first_word
    last = [event for event in drafted if isinstance(event, Unstable)][-1]
    assert last.text == "", "nothing unstable is left at the end of an utterance"


def test_no_draft_is_sent_unasked() -> None:
    draft = CtcPreview(ScriptedHead("ab c" * 100))
    assert events_of(draft, unstable=False) == events_of(None, unstable=False)
