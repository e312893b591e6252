"""Live speech of people: as right as the file, soon, in its language; nothing where nobody speaks; and
its English by Whisper itself.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel
from sottovoce.evaluation.scores import ScoredUtterance, run_live, score, word_latencies
from sottovoce.language.probe import LanguageProbe
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.translation.live_translator import LiveTranslation, LiveTranslator
from sottovoce.translation.whisper_translate import N_NEW_WORDS, WhisperTranslator
from sottovoce.types import SAMPLE_RATE, Event, Final, LanguageChanged
from tests.real.conftest import EXAMPLES, people, usual_model

pytestmark = [pytest.mark.real_weights]

MOST_DIFFERENT = 0.2
"""Of the words of these clips, against the file's: a tenth is usual. Tables are in docs/streaming.md."""
LATENCY_S = 1.2
STARTS_WITHIN_S = 0.2


@pytest.fixture
def model(base_model: Model) -> Model:
    return base_model


def test_live_words_are_the_files_words_and_come_soon(model: Model, data: Path | None) -> None:
    live, whole, latencies, starts = [], [], [], []
    for clip in [clip for code in ("en", "de") for clip in people(data, code, 1)]:
        audio = load_audio(str(clip.file))
        file = model.transcribe(audio, language=clip.language, word_timestamps=True)
        words = [word for segment in file for word in segment.words or ()]
        run = run_live(model.session(clip.language, switching="off"), audio, chunk_s=0.1)
        text = "".join(word.word for word in words)
        live.append(ScoredUtterance(text, run.text, clip.language))
        whole.append(text)
        said = [word.word.strip() for word in run.words]
        true = [word.word.strip() for word in words]
        latencies += word_latencies(said, run.delays_s, true, [word.end for word in words])
        known = {word.word.strip(): word.start for word in words}
        both = [word for word in run.words if word.word.strip() in known]
        starts += [abs(word.start - known[word.word.strip()]) for word in both]
        assert all(a.end <= b.start + 1e-6 and a.start < a.end for a, b in pairwise(run.words))
    assert (score(live).overall.wer.rate or 0.0) <= MOST_DIFFERENT
    assert median(latencies) <= LATENCY_S
    assert median(starts) <= STARTS_WITHIN_S


@pytest.mark.long
def test_one_language_is_kept_among_all(model: Model) -> None:
    """The founders' third test on Kennedy's address: no switch, whatever languages are allowed."""
    run = run_live(model.session(), load_audio(str(EXAMPLES / "en.flac")), chunk_s=0.1)
    assert [change.target for change in run.switches] == []
    assert "ask not what your country can do for you" in "".join(
        letter for letter in run.text.lower() if letter.isalnum() or letter == " "
    )


@pytest.mark.long
def test_a_stretch_is_heard_as_in_the_full_window(model: Model) -> None:
    probe = LanguageProbe(model.backend, model.tokenizer, model.languages)
    for name in ("en", "de", "pt", "mixed"):
        audio = load_audio(str(EXAMPLES / f"{name}.flac"))[: 3 * SAMPLE_RATE]
        mel = log_mel(audio, model.backend.dims.n_mels)
        heard = probe.detect([mel, mel[:, :200]])[0].probabilities
        whole = model.detect_language(audio).probabilities
        assert model.languages[int(heard.argmax())] == max(whole, key=lambda code: whole[code])
        assert np.abs(heard - [whole[code] for code in model.languages]).sum() < 0.2


@pytest.mark.parametrize("kind", ["silence", "noise", "tones"])
def test_nothing_is_said_where_nobody_speaks(model: Model, kind: str) -> None:
    t = np.arange(10 * SAMPLE_RATE) / SAMPLE_RATE
    sound = {
        "silence": np.zeros(len(t)),
        "noise": np.random.default_rng(0).normal(0.0, 0.05, len(t)),
        "tones": 0.2 * np.sin(2 * np.pi * 440.0 * t) * (np.sin(2 * np.pi * t) > 0),
    }[kind]
    assert run_live(model.session("en"), sound.astype(np.float32), chunk_s=0.5).text == ""


@pytest.mark.long
def test_an_english_model_says_nothing_in_noise(tiny_en: Checkpoint) -> None:
    noise = np.random.default_rng(1).normal(0.0, 0.05, 10 * SAMPLE_RATE).astype(np.float32)
    assert run_live(usual_model(tiny_en).session(vad=False), noise, chunk_s=0.5).text == ""


def beside(model: Model, name: str, languages: list[str]) -> tuple[list[Event], list[LiveTranslation]]:
    """Events of a clip as it is spoken, and what they say in English."""
    audio = load_audio(str(EXAMPLES / f"{name}.flac"))
    session, translator = model.session(languages), WhisperTranslator(model)
    session.on_window(translator.add)
    live = LiveTranslator(translator, N_NEW_WORDS)
    events: list[Event] = []
    reported: list[LiveTranslation] = []
    for at in range(0, len(audio) + SAMPLE_RATE, SAMPLE_RATE):
        piece = audio[at : at + SAMPLE_RATE]
        new = session.push(piece) if len(piece) else session.close()
        events += new
        reported += [item for event in new for item in live.take(event)]
    return events, reported


@pytest.mark.long
def test_languages_are_followed_and_all_but_english_is_translated(model: Model) -> None:
    events, reported = beside(model, "mixed", ["en", "de", "pt", "es", "fr"])
    changes = [(event.previous, event.target) for event in events if isinstance(event, LanguageChanged)]
    assert changes == [(None, "en"), ("en", "de"), ("de", "pt")]
    finals = {event.utterance: event for event in events if isinstance(event, Final)}
    whole = {item.utterance: item.text for item in reported if item.is_final}
    assert list(whole) == list(finals)
    assert {final.language for final in finals.values()} == {"en", "de", "pt"}
    words = [word for final in finals.values() for word in final.words]
    assert {word.language for word in words} == {"en", "de", "pt"}
    for number, final in finals.items():
        assert (whole[number] == final.text.strip()) == (final.language == "en")
    german = " ".join(whole[number] for number, final in finals.items() if final.language == "de").lower()
    assert "contact" in german
    assert "describe" in german
