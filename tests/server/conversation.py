"""Conversations with servers of tests: messages to a socket, and the scripted speech that its model hears.

The speech is a talk whose speakers are corrected, or quick sentences.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Response
from websockets.sync.client import ClientConnection, connect

from sottovoce.audio.io import Recording
from sottovoce.types import SAMPLE_RATE, Event, Final, Partial, Samples, Turn, Word
from tests.server.servers import ServerThread, SlowModel, SlowSession

Message = dict[str, Any]


def connected(server: ServerThread, path: str = "/v1/live", **options: Any) -> ClientConnection:
    return connect(f"ws://{server.address}{path}", max_size=None, max_queue=None, **options)


def say(socket: ClientConnection, *messages: Message | str | bytes) -> None:
    for message in messages:
        socket.send(json.dumps(message) if isinstance(message, dict) else message)


def received(socket: ClientConnection, kind: str = "") -> Message:
    """The next message, or the next one of a type."""
    while True:
        message: Message = json.loads(socket.recv(timeout=30))
        if kind in ("", message["type"]):
            return message


def rest(socket: ClientConnection) -> list[Message]:
    """All that the server says up to its end."""
    events: list[Message] = []
    with suppress(ConnectionClosed):
        while True:
            events.append(received(socket))
    return events


def exchanged(
    server: ServerThread, path: str, *said: Message | str | bytes, **options: Any
) -> tuple[list[Message], ClientConnection]:
    """Send messages, and receive all that the server says up to its end; returns the closed socket too."""
    with connected(server, path, **options) as socket:
        with suppress(ConnectionClosed):
            say(socket, *said)
        return rest(socket), socket


def refusal(server: ServerThread, path: str, **options: Any) -> Response:
    """The answer to a handshake that the server refuses."""
    with pytest.raises(InvalidStatus) as refused:
        connected(server, path, **options)
    return refused.value.response


def utterance(number: int, text: str, language: str = "en", **more: object) -> Message:
    """An utterance of shared captions, a word a second."""
    speaker = more.pop("speaker", "A")
    words = [
        {"word": f" {word}", "start": i, "end": i + 1, "language": language, "speaker": speaker}
        for i, word in enumerate(text.split())
    ]
    parts = {"translation": None, "unstable": None, **more}
    return {"id": number, "start": 0, "end": len(words), "language": language, "words": words, **parts}


TALK = (
    ("A", "en", "Good morning everybody, shall we begin with the budget?"),
    ("B", "en", "Yes, please. I have the figures here."),
    ("C", "de", "Ich möchte ganz kurz die Kontakte beschreiben."),
    ("A", "en", "Thank you. Then let us go on with the next point."),
)
WORD_S = 0.1


class TalkSession(SlowSession):
    """Says `TALK`, a word every 0.1 s; the second turn is given to somebody else until the utterance ends."""

    def words(self, n: int) -> list[Word]:
        return talk(late=True)[:n]

    def close(self) -> list[Event]:
        self._words = talk(late=False)[: len(self._words)]
        return super().close()


def talk(*, late: bool) -> list[Word]:
    spoken = [
        (f" {word}", language, "D" if late and speaker == "B" else speaker)
        for speaker, language, text in TALK
        for word in text.split()
    ]
    return [
        Word(word, i * WORD_S, (i + 1) * WORD_S, 1.0, language, speaker=speaker)
        for i, (word, language, speaker) in enumerate(spoken)
    ]


def talk_model() -> SlowModel:
    return SlowModel(word_s=WORD_S, session=TalkSession)


SENTENCES = (
    ("en", "We walked along the river and talked about the summer."),
    ("de", "Wir haben heute viel Zeit."),
    ("es", "Hablamos mucho tiempo sobre el verano."),
    ("fr", "La maison est calme le matin."),
)
"""What is said in mixed.flac of the clips."""
TWO_SENTENCES_S = 7
"""The part of it with the first two of them."""


class SentencesSession(SlowSession):
    """Says `SENTENCES`, each an utterance, whatever it hears."""

    def probability_of(self, text: str) -> float:
        return 1.0

    def push(self, pcm: Samples, **how: object) -> list[Event]:
        self._n_samples += len(pcm)
        script = [(language, f" {word}") for language, text in SENTENCES for word in text.split()]
        events: list[Event] = []
        word_s = self._model.word_s
        for i in range(len(self._words), min(int(self._n_samples / SAMPLE_RATE / word_s), len(script))):
            language, text = script[i]
            word = Word(text, i * word_s, (i + 1) * word_s, self.probability_of(text), language)
            self._words.append(word)
            events.append(Partial(word.start, word.end, text, language, (word,), word.end))
            if text.endswith("."):
                events += self.close()
        return events

    def _final(self, words: list[Word]) -> Final:
        said = super()._final(words)
        return Final(said.start, said.end, said.text, words[0].language, said.words, said.end)


class SentencesModel(SlowModel):
    """By default it takes a quarter of the time of mixed.flac."""

    languages = ("en", "de", "es", "fr")

    def __init__(self, word_s: float = WORD_S, session: type[SlowSession] = SentencesSession) -> None:
        super().__init__(word_s=word_s, session=session)


class KnownSpeakers:
    """The first second of every recording is of one, and the rest of another."""

    def turns(self, recording: Recording) -> list[Turn]:
        return [Turn(0.0, 1.0, "A"), Turn(1.0, 60.0, "B")]
