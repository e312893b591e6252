"""Live translation: nothing is shown that two readings do not agree on, and the end brings the whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.cli.main import run
from sottovoce.translation.chat import ChatTranslator, Message
from sottovoce.translation.live_translator import LiveTranslator, mark_newest
from sottovoce.types import Event, Final, Partial, SpeechStarted
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
    live = LiveTranslator(ChatTranslator(chat, "en"))
    events = [
        partial(" Ich habe heute", 1.0),
        partial(" sehr viel Zeit", 2.0),
        partial(" für euch alle", 3.0),
    ]
    assert translated(live, *events) == [("I have", False), ("today", False)]
    assert translated(live, final(" Ich habe heute sehr viel Zeit für euch alle")) == [
        ("I have a lot of time today.", True)
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
