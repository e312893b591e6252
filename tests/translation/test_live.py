"""Live translation: nothing is shown that two readings do not agree on, by a chat model or by Whisper."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.cli.main import run
from sottovoce.text.replacements import Replacements
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.translation.chat import ChatTranslator, Message
from sottovoce.translation.live_translator import LiveTranslator, SourceText, mark_newest
from sottovoce.translation.whisper_translate import WhisperTranslator
from sottovoce.types import SAMPLE_RATE, Event, Final, Partial, Samples, SpeechStarted
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


class Listening:
    """Stands for a model: notes what it is given to read."""

    def __init__(self) -> None:
        self.name = "listening"
        self.backend = SimpleNamespace(own_threads=False)
        self.can_translate = True
        self.asked: list[tuple[Samples, str, str]] = []

    def transcribe(
        self, source: Samples, *, language: str, task: str, options: Any, runtime: object = None
    ) -> Any:
        self.asked.append((source.copy(), language, task))
        return SimpleNamespace(text="heard again")


def counting(seconds: float, start_s: float = 0.0) -> Samples:
    """Samples that tell where they are: the second, over 1000."""
    first = round(start_s * SAMPLE_RATE)
    return (np.arange(first, first + round(seconds * SAMPLE_RATE)) / SAMPLE_RATE / 1000).astype(np.float32)


def said(start: float, end: float, language: str = "de", *, is_whole: bool = True) -> SourceText:
    return SourceText(start, end, " so", language, is_whole)


@pytest.fixture
def listening() -> Listening:
    return Listening()


@pytest.fixture
def translator(listening: Listening) -> WhisperTranslator:
    return WhisperTranslator(listening)  # type: ignore[arg-type]


def test_the_words_audio_alone_is_read_in_its_language(
    listening: Listening, translator: WhisperTranslator
) -> None:
    for second in range(8):
        translator.push(counting(1.0, second))
    assert translator.translate(said(2.0, 5.0)) == "heard again"
    ((heard, language, task),) = listening.asked
    assert (language, task) == ("de", "translate")
    np.testing.assert_allclose(heard[[0, -1]] * 1000, [1.5, 5.5], atol=1e-3)
    assert translator.translate(SourceText(5.0, 7.0, " It is so.", "en", True)) == "It is so."
    assert len(listening.asked) == 1


@pytest.mark.parametrize(("is_whole", "start_s"), [(True, 5.0), (False, 4.6)])
def test_audio_is_kept_until_the_utterance_has_ended(
    is_whole: bool, start_s: float, listening: Listening, translator: WhisperTranslator
) -> None:
    translator.push(counting(8.0))
    translator.translate(said(2.0, 5.0, is_whole=is_whole))
    translator.translate(said(5.1, 7.0))
    assert listening.asked[1][0][0] * 1000 == pytest.approx(start_s, abs=1e-3)


def test_audio_of_a_minute_is_kept_and_of_a_long_push_all(
    listening: Listening, translator: WhisperTranslator
) -> None:
    for second in range(100):
        translator.push(counting(1.0, second))
    assert translator.translate(said(2.0, 5.0)) == ""
    assert listening.asked == []
    translator.push(counting(100.0, 100.0))
    translator.translate(said(102.0, 105.0))
    translator.translate(said(192.0, 195.0))
    assert [len(heard) / SAMPLE_RATE for heard, _, _ in listening.asked] == pytest.approx(
        [4.0, 4.0], abs=0.01
    )


def test_in_the_library_each_final_has_its_translation(model: Model) -> None:
    session, translator = model.session("de"), WhisperTranslator(model)
    live = LiveTranslator(translator)
    audio = load_audio(str(CLIPS / "de.flac"))
    finals, translations = [], []
    for at in range(0, len(audio) + 1, SAMPLE_RATE):
        piece = audio[at : at + SAMPLE_RATE]
        translator.push(piece)
        events = session.push(piece) if len(piece) else []
        events += session.close() if at + SAMPLE_RATE > len(audio) else []
        finals += [event for event in events if type(event).__name__ == "Final"]
        translations += [line for event in events for line in live.take(event) if line.is_final]
    assert finals
    assert [(line.utterance, line.start, line.end) for line in translations] == [
        (line.utterance, line.start, line.end) for line in finals
    ]
    assert {line.language for line in translations} == {"en"}


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
