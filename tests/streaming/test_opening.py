"""What a session costs before its first word: nothing of the model, and nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from sottovoce.api import Model
from sottovoce.audio import vad
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad import VadStream
from sottovoce.decoding import filters
from sottovoce.language.probe import ProbeOptions
from sottovoce.models.backend import IncrementalResult, IncrementalWindow
from sottovoce.models.dims import EncoderMode
from sottovoce.streaming.commit_policy import WordBuilder
from sottovoce.streaming.options import LiveOptions, Switching
from sottovoce.streaming.session import Session
from sottovoce.streaming.utterance import PromptContext, UtteranceEncoder
from sottovoce.text.tokenizer import Tokenizer
from tests.streaming.sessions import TOKENIZER, listen, session, words_of
from tests.streaming.speech import backend, say

EVERY_MODE: Sequence[Switching] = ("off", "restart")
CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"


class Counting:
    """A backend that counts what it is asked for; the rest is seen through it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.asked: Counter[str] = Counter()
        self.n_frames = 0
        """Encoder frames computed for growing audio."""

    def __getattr__(self, name: str) -> Any:
        if name in ("encode", "start", "step", "rows"):
            self.asked[name] += 1
        return getattr(self._inner, name)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        results: list[IncrementalResult] = self._inner.encode_incremental(windows)
        self.asked["encode_incremental"] += 1
        self.n_frames += sum(result.n_computed for result in results)
        return results


class Thin(Counting):
    """One whose padding is thin, as `base` has it."""

    encoder_mode = EncoderMode(stride=30, recompute_s=1.0, refresh_s=0.0)


def refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError("this was made before, or is not to be made at all")


@pytest.mark.parametrize("switching", EVERY_MODE)
def test_opening_a_session_asks_nothing_of_the_model(switching: Switching) -> None:
    counting = Counting(backend())
    session(TOKENIZER.language_codes, model=counting, switching=switching)
    assert not counting.asked


@pytest.mark.parametrize("switching", EVERY_MODE)
def test_what_sessions_share_is_made_once_and_the_rest_when_it_is_needed(
    switching: Switching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the first session alone texts are encoded, the vocabulary's rows chosen and the detector's weights
    read; words and prompts of a language are made when it is first spoken.
    """
    fake = backend()
    options = LiveOptions(TOKENIZER.language_codes, switching=switching)
    Session(fake, TOKENIZER, options, vad=VadStream())
    for owner in (PromptContext, WordBuilder):
        monkeypatch.setattr(owner, "__init__", refuse)
    monkeypatch.setattr(Tokenizer, "encode", refuse)
    monkeypatch.setattr(filters, "suppressed_tokens", refuse)
    monkeypatch.setattr(vad, "load_file", refuse)
    second = Session(fake, TOKENIZER, options, vad=VadStream())
    assert second.languages == TOKENIZER.language_codes


def test_the_first_session_computes_what_the_next_one_does(model: Model) -> None:
    """There is no warming up: the same calls and the same encoder frames for the same audio."""
    audio = load_audio(CLIP, duration_s=3.0)
    runs = []
    for _ in range(2):
        counting = Counting(model.backend)
        listen(Session(counting, model.tokenizer, LiveOptions(("en",)), vad=VadStream()), audio)  # type: ignore[arg-type]
        runs.append((counting.asked, counting.n_frames))
    assert runs[0] == runs[1]
    assert runs[0][1] > 0


def test_live_speech_compiles_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first word would wait for it for seconds."""
    monkeypatch.setattr(torch, "compile", refuse)
    listened = model.session(["en", "de"], captions="revisable")
    audio = load_audio(CLIP, duration_s=3.0)
    assert words_of(listen(listened, audio))


@pytest.mark.parametrize("chunk", [8000, 6000])
def test_what_a_probe_encoded_is_not_encoded_again_for_the_words(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both end at the same sample, and with the words that come otherwise."""
    outcomes = []
    for _ in range(2):
        model = Thin(backend())
        live = session(["en", "de"], model=model, probe=ProbeOptions(3.0, 0.5, 0.25))  # type: ignore[arg-type]
        events = listen(live, say(["time", "year", "people", "way", "day"]), chunk)
        outcomes.append((words_of(events), model.asked["encode_incremental"]))
        monkeypatch.setattr(UtteranceEncoder, "_result_of_probe", lambda *_: None)
    (words, n_encoded), (words_before, n_before) = outcomes
    assert words == words_before == ["time", "year", "people", "way", "day"]
    assert n_encoded < n_before
