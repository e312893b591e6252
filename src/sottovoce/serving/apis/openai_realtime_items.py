"""Events of a session as the realtime API tells them: an item a turn, and deltas that are never taken back.

Knows no sockets. An item is made where speech begins, or with the first audio where the client says when
turns end; its text comes in deltas, and all of it at the end.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence

from sottovoce.formats.document import Json, seconds
from sottovoce.serving.parsing.client_values import shown
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.recordings.openai_documents import logprob
from sottovoce.types import Event, Final, Partial, SpeechEnded, SpeechStarted, Word

TRANSCRIPTION = "conversation.item.input_audio_transcription"
BUFFER = "input_audio_buffer"
MOST_KEPT = 1000
"""Items that can be retrieved and deleted: the newest ones."""


class RealtimeItems:
    """Renders the turns of one session; every event has an id of its own.

    finds_turns: whether the server finds them; else `commit` ends them. has_speakers: say who says what.
    buffer_start_s: where the input audio buffer begins: all audio before it was committed or cleared.
    """

    def __init__(self) -> None:
        self.finds_turns = True
        self.logprobs = False
        self.has_speakers = False
        self._numbers = itertools.count(1)
        self._item: str | None = None
        self._kept: dict[str, dict[str, Json]] = {}
        self._began_s = 0.0
        self._words: list[Word] = []
        self.buffer_start_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a turn has begun and not ended."""
        return self._item is not None

    def event(self, kind: str, **fields: Json) -> dict[str, Json]:
        """Make an event with its id."""
        return {"event_id": f"event_{next(self._numbers)}", "type": kind, **fields}

    def fault(self, fault: ApiError, event_id: object = None) -> dict[str, Json]:
        """Render an error; event_id: of the message that it is about."""
        about = event_id if isinstance(event_id, str) else None
        again: dict[str, Json] = {} if fault.retry_s is None else {"retry_after": fault.retry_after}
        return self.event("error", error={**fault.details, "event_id": about, **again})

    def begin(self, at_s: float) -> str:
        """Begin a turn where none is open; returns the id of its item."""
        if self._item is None:
            self._item = f"item_{uuid.uuid4().hex[:24]}"
            self._began_s = at_s
        return self._item

    def render(self, events: Iterable[Event]) -> Iterator[dict[str, Json]]:
        """Yield what follows from the session's events."""
        for event in events:
            if isinstance(event, SpeechStarted) and self.finds_turns:
                yield self._speech_started(event)
            elif isinstance(event, Partial):
                yield self._delta(event)
            elif isinstance(event, Final):
                self._correct(event.words)
            elif isinstance(event, SpeechEnded) and self.finds_turns:
                yield from self._speech_ended(event)

    def commit(self, received_s: float) -> Iterator[dict[str, Json]]:
        """End the turn, which is empty where none is open: yield its item and its whole text."""
        item = self.begin(self.buffer_start_s)
        text = "".join(word.word for word in self._words).strip()
        yield from self._added(item)
        if self.has_speakers:
            yield from self._segments(item)
        yield self._completed(item, text, received_s)
        yield self._done(item, "completed", text, received_s)

    def fail(self, fault: ApiError, received_s: float) -> Iterator[dict[str, Json]]:
        """End a turn whose text could not be found: yield its item and the fault."""
        item = self.begin(self.buffer_start_s)
        yield from self._added(item)
        yield self.event(f"{TRANSCRIPTION}.failed", item_id=item, content_index=0, error=fault.details)
        yield self._done(item, "incomplete", None, received_s)

    def retrieve(self, given: object) -> dict[str, Json]:
        """Render an item of a turn that ended. Raises: ApiError for an id of none that is kept."""
        return self.event("conversation.item.retrieved", item=self._kept[self._kept_id(given, "retrieve")])

    def delete(self, given: object) -> dict[str, Json]:
        """Forget an item of a turn that ended. Raises: ApiError for an id of none that is kept."""
        item = self._kept_id(given, "delete")
        del self._kept[item]
        return self.event("conversation.item.deleted", item_id=item)

    def clear(self, received_s: float) -> dict[str, Json]:
        """Forget the turn that is open and the audio in the buffer."""
        self._reset(received_s)
        return self.event(f"{BUFFER}.cleared")

    def time_out(self, received_s: float) -> Iterator[dict[str, Json]]:
        """End an empty turn: nobody has spoken for too long."""
        start_ms, item = round(1000 * self.buffer_start_s), self.begin(self.buffer_start_s)
        yield self.event(
            f"{BUFFER}.timeout_triggered",
            audio_start_ms=start_ms,
            audio_end_ms=round(1000 * received_s),
            item_id=item,
        )
        yield from self.commit(received_s)

    def _speech_started(self, event: SpeechStarted) -> dict[str, Json]:
        item = self.begin(event.at)
        return self.event(f"{BUFFER}.speech_started", audio_start_ms=round(1000 * event.at), item_id=item)

    def _speech_ended(self, event: SpeechEnded) -> Iterator[dict[str, Json]]:
        item = self.begin(event.at)
        end_ms = round(1000 * event.at)
        yield self.event(f"{BUFFER}.speech_stopped", audio_end_ms=end_ms, item_id=item)
        yield from self.commit(event.at)
        self.buffer_start_s = max(event.at, event.emission_time)  # the pause is of the turn that it ended

    def _delta(self, event: Partial) -> dict[str, Json]:
        item = self.begin(event.start)
        delta = event.text if self._words else event.text.lstrip()
        self._words += event.words
        more: dict[str, Json] = {"logprobs": [logprob(word) for word in event.words]} if self.logprobs else {}
        return self.event(f"{TRANSCRIPTION}.delta", item_id=item, content_index=0, delta=delta, **more)

    def _correct(self, words: Sequence[Word]) -> None:
        """Take the words of an utterance as they are at its end, when their speakers are known better."""
        n_words = min(len(words), len(self._words))
        if n_words:
            self._words[-n_words:] = words[-n_words:]

    def _segments(self, item: str) -> Iterator[dict[str, Json]]:
        for speaker, words in speaker_runs(self._words):
            yield self.event(
                f"{TRANSCRIPTION}.segment",
                id=f"seg_{uuid.uuid4().hex[:24]}",
                item_id=item,
                content_index=0,
                start=seconds(words[0].start),
                end=seconds(words[-1].end),
                speaker=speaker,
                text="".join(word.word for word in words).strip(),
            )

    def _completed(self, item: str, text: str, received_s: float) -> dict[str, Json]:
        codes = dict.fromkeys(word.language for word in self._words if word.language)
        more: dict[str, Json] = {"logprobs": [logprob(word) for word in self._words]} if self.logprobs else {}
        return self.event(
            f"{TRANSCRIPTION}.completed",
            item_id=item,
            content_index=0,
            transcript=text,
            languages=[{"code": code} for code in codes],
            usage={"type": "duration", "seconds": seconds(max(0.0, received_s - self._began_s))},
            **more,
        )

    def _added(self, item: str) -> Iterator[dict[str, Json]]:
        previous = next(reversed(self._kept), None)
        document = item_document(item, "completed", None)
        yield self.event(f"{BUFFER}.committed", item_id=item, previous_item_id=previous)
        yield self.event("conversation.item.added", item=document, previous_item_id=previous)

    def _done(self, item: str, status: str, text: str | None, received_s: float) -> dict[str, Json]:
        previous, document = next(reversed(self._kept), None), item_document(item, status, text)
        self._kept[item] = document
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._reset(received_s)
        return self.event("conversation.item.done", item=document, previous_item_id=previous)

    def _kept_id(self, given: object, action: str) -> str:
        if not isinstance(given, str) or given not in self._kept:
            raise ApiError(
                f"item_id: expected the id of an item of this session, got {shown(given)}",
                param="item_id",
                code=f"item_{action}_invalid_item_id",
            )
        return given

    def _reset(self, received_s: float) -> None:
        self._item = None
        self._words = []
        self.buffer_start_s = received_s


def item_document(item: str, status: str, text: str | None) -> dict[str, Json]:
    """Render the item of a turn. text: None where it is not known (yet)."""
    return {
        "id": item,
        "object": "realtime.item",
        "type": "message",
        "role": "user",
        "status": status,
        "content": [{"type": "input_audio", "transcript": text}],
    }


def speaker_runs(words: Iterable[Word]) -> list[tuple[str, list[Word]]]:
    """Group words by runs of one speaker; those of nobody go with their neighbours, and alone are A's."""
    runs: list[tuple[str | None, list[Word]]] = []
    for word in words:
        speaker, before = runs[-1] if runs else (word.speaker, [])
        if runs and (word.speaker in (None, speaker) or speaker is None):
            runs[-1] = (speaker or word.speaker, [*before, word])
        else:
            runs.append((word.speaker, [word]))
    return [(speaker or "A", own) for speaker, own in runs]
