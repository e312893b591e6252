"""Live translation: nothing is shown that two readings do not agree on, by a chat model or by Whisper."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.cli.main import run
from sottovoce.models.dims import EXACT
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.streaming.options import StreamOptions
from sottovoce.text.filters import Replacements
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.translation.chat import ChatTranslator, Message
from sottovoce.translation.live_translator import LiveTranslator, SourceText, mark_newest
from sottovoce.translation.whisper_translate import WhisperTranslator
from sottovoce.types import SAMPLE_RATE, Event, Final, Partial, SpeechStarted
from tests.audio.media import wav_bytes
from tests.translation.server import stand_in, upper

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "de.flac"


class Scripted:
    """Answers one after the other, whatever is asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def reply(self, messages: list[Message]) -> str:
        self.asked.append(messages[-1]["content"])
        return self.answers.pop(0)


def partial(text: str, end: float) -> Partial:
    return Partial(0.0, end, text, "de", (), end, utterance=1)


def final(text: str) -> Final:
    return Final(0.0, 4.0, text, "de", (), 4.5, utterance=1)


def translated(translator: LiveTranslator, *events: Event) -> list[tuple[str, bool]]:
    return [(line.text, line.is_final) for event in events for line in translator.take(event)]


def test_only_what_two_readings_agree_on_is_shown() -> None:
    chat = Scripted("I have", "I have today a lot", "I have today much time", "I have a lot of time today.")
    live = LiveTranslator(ChatTranslator(chat, "en"), filters=[Replacements((("lot", "bunch"),))])
    events = [
        partial(" Ich habe heute", 1.0),
        partial(" sehr viel Zeit", 2.0),
        partial(" für euch alle", 3.0),
    ]
    assert translated(live, *events) == [("I have", False), ("today", False)]
    assert translated(live, final(" Ich habe heute sehr viel Zeit für euch alle")) == [
        ("I have a bunch of time today.", True)
    ]
    assert chat.asked[1] == "Ich habe heute sehr viel Zeit"


def test_shown_translations_are_not_taken_back() -> None:
    chat = Scripted("one two", "one two three", "uno", "uno dos")
    live = LiveTranslator(ChatTranslator(chat, "en"))
    grown = [partial(f" a{i} b{i} c{i}", float(i)) for i in range(4)]
    assert translated(live, *grown) == [("one two", False)]


def test_a_few_words_are_not_asked_for_and_silence_is_not_said() -> None:
    chat = Scripted()
    live = LiveTranslator(ChatTranslator(chat, "en"))
    assert translated(live, SpeechStarted(0.0, 0.0), partial(" Ja", 1.0), final(" ")) == []


def test_an_utterance_begins_anew() -> None:
    chat = Scripted("a b c", "A.", "x y", "x y z")
    live = LiveTranslator(ChatTranslator(chat, "en"))
    assert translated(live, partial(" eins zwei drei", 1.0), final(" eins zwei drei")) == [("A.", True)]
    grown = [partial(" vier fünf sechs", 5.0), partial(" sieben acht neun", 6.0)]
    assert translated(live, *grown) == [("x y", False)]


def test_only_the_newest_partial_is_translated() -> None:
    chat = Scripted("A.", "x y")
    live = LiveTranslator(ChatTranslator(chat, "en"))
    late: list[Event] = [
        partial(" eins zwei drei", 1.0),
        final(" eins zwei drei"),
        partial(" vier fünf sechs", 5.0),
        partial(" sieben acht neun", 6.0),
        SpeechStarted(7.0, 7.0),
    ]
    shown = [line.text for event, last in mark_newest(late) for line in live.take(event, is_newest=last)]
    assert shown == ["A."]
    assert chat.asked == ["eins zwei drei", "vier fünf sechs sieben acht neun"]


def test_the_command_tells_both_and_counts_on(capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in(upper) as server:
        words = ["--translate-to", "en", "--translation-url", server.url, "--translation-model", "tiny"]
        assert run(["stream", str(CLIP), "-m", "nano", "-l", "de", "--unaware", "--jsonl", *words]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    numbers = [event["seq"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    finals = [event for event in events if event["type"] == "final"]
    translations = [event for event in events if event["type"] == "translation" and event["final"]]
    assert finals
    assert [event["text"] for event in translations] == [event["text"].strip().upper() for event in finals]
    assert [event["utterance"] for event in translations] == [event["utterance"] for event in finals]


def test_a_server_that_fails_does_not_end_the_session(capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in(lambda _: (401, "no")) as server:
        words = ["--translate-to", "fr", "--translation-url", server.url, "--translation-model", "tiny"]
        assert run(["stream", str(CLIP), "-m", "nano", "-l", "de", "--unaware", *words]) == 0
    output = capsys.readouterr()
    assert output.out.strip()
    assert "answered 401" in output.err


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The checks are those of `transcribe`, in `test_command`."""
    assert run(["stream", str(CLIP), "-m", "nano", "--translate-to", "fr"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "needs --translation-url; Whisper translates only into English" in line


CLIPS = Path(__file__).parents[2] / "examples" / "clips"
ENGLISH = ["--translate-to", "en"]


@dataclass
class Limited:
    """Stands for encoder states: notes the frames that are attended to."""

    n_content_frames: tuple[int]
    spans: list[tuple[float, float]]
    start_s: float

    def limited(self, start: int, end: int) -> object:
        self.spans.append((self.start_s + start / 50, self.start_s + end / 50))
        return self


@pytest.mark.parametrize(
    ("windows", "spans"),
    [
        ([(0, 4), (0, 9)], [(1.5, 7.5)]),
        ([(0, 5), (3, 9)], [(1.5, 5.0), (5.0, 7.5)]),
        ([(0, 8), (4, 20)], [(1.5, 7.5)]),
        ([(0, 9), (80, 90)], []),
        ([], []),
    ],
)
def test_an_utterance_is_read_from_windows_that_hold_its_words(
    model: Model, monkeypatch: pytest.MonkeyPatch, windows: list[tuple[int, int]], spans: list[Any]
) -> None:
    translator = WhisperTranslator(model)
    attended: list[tuple[float, float]] = []
    monkeypatch.setattr(WhisperTranslator, "_decoded", lambda *_: "again")
    for start, end in windows:
        encoded: Any = Limited(((end - start) * 50,), attended, start)
        translator.add(AudioWindow(encoded, np.zeros((80, 0), np.float32), start * SAMPLE_RATE))
    assert translator.translate(SourceText(2.0, 7.0, " so", "de", True)) == " ".join(["again"] * len(spans))
    np.testing.assert_allclose(attended, spans)
    assert translator.translate(SourceText(2.0, 7.0, " It is so.", "en", True)) == "It is so."


def test_english_is_decoded_from_the_states_of_the_transcription(model: Model) -> None:
    pcm = load_audio(CLIP)
    translator = WhisperTranslator(model)
    with model.session("de", vad=False, stream=StreamOptions(encoder=EXACT)) as session:
        session.on_window(translator.add)
        (final,) = (event for event in [*session.push(pcm), *session.close()] if isinstance(event, Final))
    options = TranscribeOptions(
        decoding=DecodingOptions(without_timestamps=True), condition_on_previous_text=False
    )
    alone = model.transcribe(pcm, language="de", task="translate", options=options)
    whole = SourceText(0.0, len(pcm) / SAMPLE_RATE, final.text, "de", is_whole=True)
    assert translator.translate(whole) == alone.text != ""


def test_translations_of_sources_are_those_of_each_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    channels = [load_audio(CLIPS / f"{name}.flac") for name in ("de", "es")]
    n_samples = max(map(len, channels))
    channels = [np.pad(each, (0, n_samples - len(each))) for each in channels]
    (tmp_path / "call.wav").write_bytes(wav_bytes(np.stack(channels)))
    words = ["-l", "de,es", "--no-vad", *ENGLISH]
    both = events_of(capsys, str(tmp_path / "call.wav"), "--sources", "Ada,Ben", *words)
    for name, samples in zip(("Ada", "Ben"), channels, strict=True):
        (tmp_path / "alone.wav").write_bytes(wav_bytes(samples[None]))
        alone = events_of(capsys, str(tmp_path / "alone.wav"), *words)
        texts = [
            [each["text"] for each in events if each["type"] == "translation" and each.get("source") == of]
            for events, of in ((both, name), (alone, None))
        ]
        assert texts[0] == texts[1] != []


def events_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(["stream", *words, "-m", "nano", "--unaware", "--jsonl"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.long
def test_the_command_tells_both_and_leaves_the_original(capsys: pytest.CaptureFixture[str]) -> None:
    call = [str(CLIPS / "mixed.flac"), "-l", "en,de,es,fr"]
    alone = events_of(capsys, *call)
    both = events_of(capsys, *call, *ENGLISH)
    translations = [event for event in both if event["type"] == "translation"]
    others = [event for event in both if event["type"] != "translation"]
    assert [event["seq"] for event in both] == list(range(len(both)))
    assert [event | {"seq": 0} for event in others] == [event | {"seq": 0} for event in alone]
    finals = {event["utterance"]: event for event in others if event["type"] == "final"}
    whole = {event["utterance"]: event for event in translations if event["final"]}
    assert list(whole) == list(finals)
    english = [number for number, event in finals.items() if event["language"] == "en"]
    assert english
    assert [whole[number]["text"] for number in english] == [finals[n]["text"].strip() for n in english]


def test_an_english_only_model_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sottovoce.api.load_model", load_model)  # one that no other test shares
    monkeypatch.setattr(Tokenizer, "is_multilingual", property(lambda _: False))
    assert run(["stream", str(CLIPS / "en.flac"), "-m", "nano", "-l", "en", *ENGLISH]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "translation into 'en': nano is an English-only model" in line
