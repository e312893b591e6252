"""`/v1/realtime`: OpenAI's realtime API for transcription, as generally available.

Errors of a message leave the session open.
"""

from __future__ import annotations

import base64
import itertools
import secrets
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast, get_args

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from sottovoce.formats.document import Json, seconds, span_document
from sottovoce.options.decoding import VadStreamOptions
from sottovoce.server import api, fields
from sottovoce.server.apis.openai_files import logprob
from sottovoce.server.errors import ApiError, invalid_options, invalid_value, unsupported
from sottovoce.server.live import PcmReader, WebSocketConnection, in_thread_if_large
from sottovoce.server.models import ModelRegistry
from sottovoce.server.services import key_of, services_of
from sottovoce.server.uploads import whole_body
from sottovoce.streaming.options import Eagerness, Finals, LiveOptions, StreamOptions
from sottovoce.text.filters import phrases_alone
from sottovoce.types import Event, Final, Partial, SpeechEnded, SpeechStarted, Word

DELAYS = {"minimal": 5.0, "low": 15.0, "medium": 25.0, "high": 50.0, "xhigh": 100.0}
"""Frames of 20 ms that a word waits, by `delay`."""
ENCODINGS = {"audio/pcm": ("s16le", 24_000), "audio/pcmu": ("mulaw", 8_000), "audio/pcma": ("alaw", 8_000)}
DIARIZING = "gpt-4o-transcribe-diarize"
LOGPROBS = "item.input_audio_transcription.logprobs"
TURN_DETECTION = "session.audio.input.turn_detection"
NOISE: Mapping[str, fields.Reader[object]] = {
    "type": fields.one_of("near_field", "far_field"),
    "strength": fields.json_number(0.0, 100.0),
}
"""Fields of `noise_reduction`, which has no effect."""
UNUSED: Mapping[str, fields.Reader[bool]] = {
    "create_response": fields.read_json_flag,
    "interrupt_response": fields.read_json_flag,
}
"""Of turn detection: there are no responses."""
SERVER_VAD: Mapping[str, fields.Reader[float]] = {
    "threshold": fields.json_number(0, 1),
    "prefix_padding_ms": fields.json_number(0, 5_000),
    "silence_duration_ms": fields.json_number(0, 10_000),
    "idle_timeout_ms": fields.json_number(1_000, 600_000),
}
USUAL_VAD = {"threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500}
SEMANTIC_VAD: Mapping[str, fields.Reader[str]] = {"eagerness": fields.one_of("auto", *get_args(Eagerness))}
SUBPROTOCOL = "realtime"
MESSAGES = (
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
    "conversation.item.retrieve",
    "conversation.item.delete",
)
LEAST_COMMIT_S, ROUNDING_S = 0.1, 0.002
"""Least audio of a turn that the client ends, as with OpenAI, and a tolerance for resampling."""
STATUS, LATE_S = "sottovoce.status", 3.0
"""An event beyond OpenAI's API, and the delay from which it is sent."""
DEFAULT_SECRET_S, MIN_SECRET_S, MAX_SECRET_S = 600.0, 10.0, 7200.0
TRANSCRIPTION = "conversation.item.input_audio_transcription"
BUFFER = "input_audio_buffer"


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """Turn detection, by the names of the API and of the library. eagerness: None: a pause ends a turn."""

    document: Mapping[str, Json]
    vad: VadStreamOptions
    idle_timeout_s: float | None = None
    eagerness: Eagerness | None = None


@dataclass(frozen=True, slots=True)
class RealtimeSessionConfig:
    """The configuration of a transcription session.

    finals: "read": completed turns have the text of a second pass; replacements: rules, a line each; OpenAI's
    API lacks both. turns: None: the client commits its turns.
    """

    audio_format: str = "audio/pcm"
    model: str | None = None
    language: str | None = None
    languages: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    prompt: str = ""
    replacements: str = ""
    delay: str = "medium"
    finals: Finals = "committed"
    turns: TurnDetection | None = field(default_factory=lambda: read_turn_detection({}))
    logprobs: bool = False
    has_speakers: bool = False

    @property
    def options(self) -> LiveOptions:
        return LiveOptions(
            languages=(self.language,) if self.language else self.languages,
            finals=self.finals,
            vad=self.turns.vad if self.turns else False,
            stream=StreamOptions(
                init_prompt=self.prompt,
                static_prompt=", ".join(self.keywords),
                frame_threshold=DELAYS[self.delay],
                eagerness=self.turns.eagerness if self.turns else None,
            ),
            speakers="auto" if self.has_speakers else "",
            replacements=phrases_alone(self.replacements),
        )

    @property
    def document(self) -> dict[str, Json]:
        rate: dict[str, Json] = {"rate": 24_000} if self.audio_format == "audio/pcm" else {}
        transcription: dict[str, Json] = {
            "model": self.model,
            "language": self.language,
            "languages": list(self.languages) or None,
            "keywords": list(self.keywords) or None,
            "prompt": self.prompt or None,
            "delay": self.delay,
            **({"finals": self.finals} if self.finals != "committed" else {}),
            **({"replacements": self.replacements} if self.replacements else {}),
        }
        audio_input: dict[str, Json] = {
            "format": {"type": self.audio_format, **rate},
            "noise_reduction": None,
            "transcription": transcription,
            "turn_detection": dict(self.turns.document) if self.turns else None,
        }
        return {
            "type": "transcription",
            "audio": {"input": audio_input},
            "include": [LOGPROBS] if self.logprobs else None,
        }


def updated_config(config: RealtimeSessionConfig, session: object) -> RealtimeSessionConfig:
    """Return the config changed by a client's `session`. Raises: ApiError 400 naming the field."""
    given = fields.read_object("session", session)
    if given.get("type") != "transcription":
        raise invalid_value("session.type", "'transcription'", fields.quoted(given.get("type")))
    if "include" in given:
        config = replace(config, logprobs=includes_logprobs(given["include"]))
    audio = fields.read_object("session.audio", given.get("audio"), optional=True)
    place = "session.audio.input"
    audio_input = fields.read_object(place, audio.get("input"), optional=True)
    noise = f"{place}.noise_reduction"
    fields.read_fields(
        noise, fields.read_object(noise, audio_input.get("noise_reduction"), optional=True), NOISE
    )
    if audio_input.get("format") is not None:
        config = replace(config, audio_format=read_format(audio_input["format"]))
    if "turn_detection" in audio_input:
        config = replace(config, turns=read_turn_detection(audio_input["turn_detection"]))
    transcription = fields.read_object(
        f"{place}.transcription", audio_input.get("transcription"), optional=True
    )
    return with_transcription(config, transcription)


def includes_logprobs(given: object) -> bool:
    for wanted in [] if given is None else fields.read_json_list("session.include", given):
        if wanted != LOGPROBS:
            raise invalid_value("session.include", LOGPROBS, f"'{wanted[:100]}'")
    return bool(given)


def with_transcription(config: RealtimeSessionConfig, given: Mapping[str, object]) -> RealtimeSessionConfig:
    place = "session.audio.input.transcription"
    reset = {name: getattr(RealtimeSessionConfig(), name) for name in READERS if name in given}
    changes: dict[str, Any] = {**reset, **fields.read_fields(place, given, READERS)}
    if changes.get("language") and changes.get("languages"):
        raise invalid_value(f"{place}.language", "language or languages", "both")
    if changes.get("language"):
        changes["languages"] = ()
    if changes.get("languages"):
        changes["language"] = None
    if given.get("model", config.model) != config.model:  # a session sent back as it was alters nothing
        changes["has_speakers"] = given["model"] == DIARIZING
    return replace(config, **changes)


def read_format(given: object) -> str:
    place = "session.audio.input.format"
    audio_format = fields.read_object(place, given)
    wanted = audio_format.get("type")
    name = "audio/pcm" if wanted is None else fields.one_of(*ENCODINGS)(place, wanted)
    rate = ENCODINGS[name][1]
    if audio_format.get("rate") not in (None, rate):
        raise invalid_value(f"{place}.rate", str(rate), fields.quoted(audio_format["rate"]))
    return name


def read_turn_detection(given: object) -> TurnDetection | None:
    if given is None:
        return None
    values = fields.read_object(TURN_DETECTION, given)
    kind = values.get("type", "server_vad")
    if kind not in ("server_vad", "semantic_vad"):
        raise invalid_value(TURN_DETECTION, "server_vad, semantic_vad or null", fields.quoted(kind))
    fields.read_fields(TURN_DETECTION, values, UNUSED)
    if kind == "semantic_vad":
        eagerness = fields.read_fields(TURN_DETECTION, values, SEMANTIC_VAD).get("eagerness", "auto")
        chosen = "medium" if eagerness == "auto" else cast(Eagerness, eagerness)
        return TurnDetection({"type": kind, "eagerness": eagerness}, VadStreamOptions(), eagerness=chosen)
    settings = {**USUAL_VAD, **fields.read_fields(TURN_DETECTION, values, SERVER_VAD)}
    idle_ms, silence_ms = settings.pop("idle_timeout_ms", None), settings["silence_duration_ms"]
    with invalid_options(TURN_DETECTION):
        vad = VadStreamOptions(
            threshold=settings["threshold"],
            hangover_ms=silence_ms,
            pre_roll_ms=settings["prefix_padding_ms"],
            post_roll_ms=min(100.0, silence_ms),
        )
    document = {"type": "server_vad", **settings, "idle_timeout_ms": idle_ms}
    return TurnDetection(document, vad, None if idle_ms is None else idle_ms / 1000)


def read_one_language(name: str, value: object) -> str | None:
    codes = fields.read_languages(name, [fields.read_text(name, value)])
    return codes[0] if codes else None


def read_rules(name: str, value: object) -> str:
    rules = fields.read_text(name, value)
    with invalid_options(name):
        phrases_alone(rules)
    return rules


READERS: Mapping[str, fields.Reader[object]] = {
    "model": fields.read_text,
    "language": read_one_language,
    "languages": fields.read_json_languages,
    "keywords": fields.read_json_list,
    "prompt": fields.read_text,
    "delay": fields.one_of(*DELAYS),
    "finals": fields.read_finals,
    "replacements": read_rules,
}


def unknown_session_fields(session: object) -> tuple[str, ...]:
    try:
        kind = session["audio"]["input"]["turn_detection"]["type"]  # type: ignore[index]
    except (KeyError, TypeError):
        kind = "server_vad"
    audio_input: fields.KnownFields = {
        "format": fields.known_fields("type", "rate"),
        "noise_reduction": NOISE,
        "transcription": READERS,
        "turn_detection": {"type": {}, **UNUSED, **(SEMANTIC_VAD if kind == "semantic_vad" else SERVER_VAD)},
    }
    known: fields.KnownFields = {"session": {"type": {}, "audio": {"input": audio_input}, "include": {}}}
    return fields.unknown_fields({"session": session}, known)


class RealtimeConnection(WebSocketConnection):
    def __init__(self, socket: WebSocket) -> None:
        super().__init__(socket)
        self._items = RealtimeItems()
        self._config_read = self._config
        self._reader = reader_of(self._config)

    async def begin(self) -> None:
        config = self._initial_config()
        self._config_read = with_resolved_model(config, self.services.registry)
        self.acquire_slot()
        self.services.check_capacity(self._config_read.model or "")
        await self.websocket.accept(SUBPROTOCOL)
        self._reader = reader_of(config)
        self._items.config = self._config_read
        await self.send(self._items.event("session.created", session=self._document))

    async def on_message(self, message: bytes | str) -> None:
        event_id: object = None
        try:
            if isinstance(message, bytes):
                text = "message: expected JSON, with audio in base64, got binary"
                raise ApiError(text, code="invalid_message")
            document = await in_thread_if_large(len(message), partial(fields.read_json, message))
            event_id = document.get("event_id") if isinstance(document, dict) else None
            await self._act_on(fields.require_typed(document, "a JSON object with a type"), event_id)
        except ApiError as fault:
            if fault.code == "invalid_audio":
                raise
            await self.send(self._items.fault(fault, event_id))

    def error_document(self, fault: ApiError) -> dict[str, Json]:
        return self._items.fault(fault)

    def render(self, events: Sequence[Event]) -> Iterator[dict[str, Json]]:
        for document in self._items.render(events):
            yield {**document, "behind_s": round(self.behind_s, 3)}

    async def report(self) -> None:
        if (behind_s := self.behind_s) > LATE_S:
            await self.send(self._items.event(STATUS, behind_s=round(behind_s, 3)))

    async def on_audio(self) -> None:
        """A failure ends the turn, not the session."""
        try:
            await self._open(self._config)
            began_s = self.processed_s
            events = await self.session.update()
        except ApiError:
            raise
        except Exception as error:
            await self._fail_turn(error)
            return
        if self._config.turns is None:
            self._items.begin(began_s)
        await self.emit(events)
        await self._time_out()

    async def on_close(self) -> None:
        if self.is_open:
            await super().on_close()

    def _initial_config(self) -> RealtimeSessionConfig:
        query = fields.query_of(self.socket)
        intent = query.pop("intent", "transcription")
        if intent != "transcription":
            raise invalid_value("intent", "'transcription'", fields.quoted(intent))
        model = query.pop("model", None)
        if "call_id" in query:
            raise unsupported("call_id")
        fields.note_ignored(self.socket, self.services.registry.ignored(model, tuple(query)))
        secret = self.services.secrets.first_valid(self.socket.scope["state"]["given_keys"])
        config = RealtimeSessionConfig()
        config = config if secret is None else updated_config(config, secret["session"])
        return config if model is None else replace(config, model=model, has_speakers=model == DIARIZING)

    @property
    def _config(self) -> RealtimeSessionConfig:
        return self._items.config

    @property
    def _document(self) -> dict[str, Json]:
        return {"id": self.transport.request_id, **self._config.document}

    async def _act_on(self, message: dict[str, object], event_id: object) -> None:
        kind = str(message.pop("type"))
        if kind == "session.update":
            session = message.get("session")
            config = self._updated(self._config_read, session)
            if config.audio_format != self._config_read.audio_format:
                self._reader = reader_of(config)
            self._config_read = config
            await self.queue.put(partial(self._update, session, event_id))
        elif kind == "input_audio_buffer.append":
            given = message.get("audio")
            size = len(given) if isinstance(given, str) else 0
            await self.queue_bytes(self._reader, await in_thread_if_large(size, partial(decode_audio, given)))
        elif kind == "input_audio_buffer.commit":
            await self.queue_audio(self._reader.flush())
            self._reader = reader_of(self._config_read)
            await self.queue.put(partial(self._commit, event_id))
        elif kind == "input_audio_buffer.clear":
            self._reader = reader_of(self._config_read)
            await self.queue.put(self._clear)
        elif kind in ("conversation.item.retrieve", "conversation.item.delete"):
            action = kind.rpartition(".")[2]
            await self.queue.put(partial(self._answer, action, message.get("item_id"), event_id))
        else:
            raise invalid_value("type", f"one of {', '.join(MESSAGES)}", f"'{kind[:80]}'")

    def _updated(self, config: RealtimeSessionConfig, session: object) -> RealtimeSessionConfig:
        return with_resolved_model(updated_config(config, session), self.services.registry)

    async def _update(self, session: object, event_id: object) -> None:
        if (fault := await self.attempt(self._configure(session))) is not None:
            await self.send(self._items.fault(fault, event_id))

    async def _configure(self, session: object) -> None:
        config, before = self._updated(self._config, session), self._config
        if not self.is_open:
            await self._open(config)
        elif config.model != before.model:
            message = f"session: expected the model '{before.model}' to the end, got '{config.model}'"
            raise ApiError(message, param="session.audio.input.transcription.model", code="invalid_value")
        elif config.options != before.options:
            await self.emit(await self.session.configure(config.options))
        self._items.config = config
        ignored: list[Json] = [*fields.printable_names(unknown_session_fields(session))]
        more: dict[str, Json] = {"ignored_parameters": ignored} if ignored else {}
        await self.send(self._items.event("session.updated", session=self._document, **more))

    async def _commit(self, event_id: object) -> None:
        start_s = self._items.buffer_start_s
        if (buffer_s := self.received_s - start_s) < LEAST_COMMIT_S - ROUNDING_S:
            least_ms, got_ms = round(1000 * LEAST_COMMIT_S), round(1000 * max(0.0, buffer_s))
            text = (
                f"input_audio_buffer.commit: expected audio before it, {least_ms} ms or more, got {got_ms} ms"
            )
            fault = ApiError(text, code="input_audio_buffer_commit_empty")
            await self.send(self._items.fault(fault, event_id))
            return
        try:
            events = await self.session.flush()
        except Exception as error:
            await self._fail_turn(error)
            return
        await self.emit(events)
        if self._items.is_open or self._items.buffer_start_s == start_s:
            await self.send(*self._items.commit(self.processed_s))
        self._items.buffer_start_s = self.processed_s

    async def _clear(self) -> None:
        if self.is_open:
            self.session.reset()
        await self.send(*self._items.clear(self.processed_s))

    async def _answer(self, action: str, item: object, event_id: object) -> None:
        try:
            document = self._items.retrieve_or_delete(action, item)
        except ApiError as fault:
            document = self._items.fault(fault, event_id)
        await self.send(document)

    async def _fail_turn(self, error: Exception) -> None:
        fault = self.logged(error)
        if self.is_open:
            self.session.reset()
        else:
            self.queue.drop()
        await self.send(*self._items.fail(fault, self.processed_s))

    async def _time_out(self) -> None:
        turns = self._config.turns
        limit_s = turns.idle_timeout_s if turns else None
        if limit_s and not self._items.is_open and self.processed_s - self._items.buffer_start_s >= limit_s:
            await self.send(*self._items.time_out(self.processed_s))

    async def _open(self, config: RealtimeSessionConfig) -> None:
        if not self.is_open:
            assert config.model is not None
            await self.open(config.model, config.options)


def with_resolved_model(config: RealtimeSessionConfig, registry: ModelRegistry) -> RealtimeSessionConfig:
    return replace(config, model=registry.resolve(config.model))


def reader_of(config: RealtimeSessionConfig) -> PcmReader:
    return PcmReader(*ENCODINGS[config.audio_format])


def decode_audio(given: object) -> bytes:
    try:
        return base64.b64decode(given if isinstance(given, str) else "?", validate=True)
    except ValueError:
        raise invalid_value("audio", "base64", "something else") from None


async def client_secrets(request: Request) -> Response:
    services, key = services_of(request), key_of(request)
    given = fields.read_object("body", fields.read_json(await whole_body(request.stream(), 64_000) or b"{}"))
    known: fields.KnownFields = {"expires_after": {"anchor": {}, "seconds": {}}, "session": {}}
    fields.note_ignored(
        request, (*fields.unknown_fields(given, known), *unknown_session_fields(given.get("session")))
    )
    expires = fields.read_object("expires_after", given.get("expires_after"), optional=True)
    if (anchor := expires.get("anchor", "created_at")) != "created_at":
        raise invalid_value("expires_after.anchor", "'created_at'", fields.quoted(anchor))
    lifetime = fields.json_number(MIN_SECRET_S, MAX_SECRET_S)
    seconds = lifetime("expires_after.seconds", expires.get("seconds", DEFAULT_SECRET_S))
    session = given.get("session")
    config = updated_config(
        RealtimeSessionConfig(), {"type": "transcription"} if session is None else session
    )
    if config.model is not None:
        services.registry.resolve(config.model)
    value, expires_at = services.secrets.make(config.document, seconds, key.name if key else "")
    about = {"id": f"sess_{secrets.token_hex(8)}", "object": "realtime.transcription_session"}
    document = {**about, **config.document, "expires_at": expires_at}
    return JSONResponse({"value": value, "expires_at": expires_at, "session": document})


@dataclass(eq=False)
class RealtimeTurn:
    """A turn of the speaker, with its words by utterance.

    previous: the item before it. awaited: utterances in a second pass. end_s: None if it is open.
    """

    item: str
    began_s: float
    previous: str | None = None
    utterances: dict[int | None, list[Word]] = field(default_factory=dict)
    awaited: set[int | None] = field(default_factory=set)
    end_s: float | None = None

    @property
    def words(self) -> list[Word]:
        return [word for words in self.utterances.values() for word in words]


class RealtimeItems:
    """Renders the turns of one session. buffer_start_s: earlier audio was committed or cleared."""

    def __init__(self) -> None:
        self.config = RealtimeSessionConfig()
        self._numbers = itertools.count(1)
        self._turns: deque[RealtimeTurn] = deque()
        """Turns that are not completed; only the last one may be open."""
        self._last_item: str | None = None
        self._finished: dict[str, dict[str, Json]] = {}
        self.buffer_start_s = 0.0

    @property
    def is_open(self) -> bool:
        return bool(self._turns) and self._turns[-1].end_s is None

    def event(self, kind: str, **values: Json) -> dict[str, Json]:
        return {"event_id": f"event_{next(self._numbers)}", "type": kind, **values}

    def fault(self, fault: ApiError, event_id: object = None) -> dict[str, Json]:
        about = event_id if isinstance(event_id, str) else None
        return self.event("error", error={**fault.live_details, "event_id": about})

    def begin(self, at_s: float) -> RealtimeTurn:
        """Return the open turn, or a new one."""
        if not self.is_open:
            item = f"item_{uuid.uuid4().hex[:24]}"
            self._turns.append(RealtimeTurn(item, at_s))
        return self._turns[-1]

    def render(self, events: Iterable[Event]) -> Iterator[dict[str, Json]]:
        for event in events:
            if isinstance(event, SpeechStarted) and self.config.turns:
                item, at_ms = self.begin(event.at).item, round(1000 * event.at)
                yield self.event(f"{BUFFER}.speech_started", audio_start_ms=at_ms, item_id=item)
            elif isinstance(event, Partial):
                yield self._delta(event)
            elif isinstance(event, Final):
                yield from self._final(event)
            elif isinstance(event, SpeechEnded) and self.config.turns:
                yield from self._speech_ended(event)

    def commit(self, received_s: float) -> Iterator[dict[str, Json]]:
        """End the turn, which may be empty."""
        turn = self.begin(self.buffer_start_s)
        turn.end_s = self.buffer_start_s = received_s
        yield from self._added(turn)
        yield from self._complete()

    def fail(self, fault: ApiError, received_s: float) -> Iterator[dict[str, Json]]:
        """End a turn without its text; the finals of earlier ones do not come."""
        turn = self.begin(self.buffer_start_s)
        self._turns.pop()
        yield from self._complete(is_last=True)
        self.buffer_start_s = received_s
        yield from self._added(turn)
        yield self.event(f"{TRANSCRIPTION}.failed", item_id=turn.item, content_index=0, error=fault.details)
        yield self._done(turn, "incomplete", None)

    def retrieve_or_delete(self, action: str, item: object) -> dict[str, Json]:
        """Raises: ApiError 400 for an item that is not finished, or unknown."""
        if not isinstance(item, str) or item not in self._finished:
            raise ApiError(
                f"item_id: expected the id of an item of this session, got {fields.quoted(item)}",
                param="item_id",
                code=f"item_{action}_invalid_item_id",
            )
        if action == "retrieve":
            return self.event("conversation.item.retrieved", item=self._finished[item])
        del self._finished[item]
        if item == self._last_item:
            self._last_item = next(reversed(self._finished), None)
        return self.event("conversation.item.deleted", item_id=item)

    def clear(self, received_s: float) -> Iterator[dict[str, Json]]:
        if self.is_open:
            self._turns.pop()
        yield from self._complete(is_last=True)
        self.buffer_start_s = received_s
        yield self.event(f"{BUFFER}.cleared")

    def time_out(self, received_s: float) -> Iterator[dict[str, Json]]:
        start_ms, item = round(1000 * self.buffer_start_s), self.begin(self.buffer_start_s).item
        yield self.event(
            f"{BUFFER}.timeout_triggered",
            audio_start_ms=start_ms,
            audio_end_ms=round(1000 * received_s),
            item_id=item,
        )
        yield from self.commit(received_s)

    def _speech_ended(self, event: SpeechEnded) -> Iterator[dict[str, Json]]:
        item = self.begin(event.at).item
        end_ms = round(1000 * event.at)
        yield self.event(f"{BUFFER}.speech_stopped", audio_end_ms=end_ms, item_id=item)
        yield from self.commit(event.at)
        self.buffer_start_s = max(event.at, event.emission_time)  # the pause is of the turn that it ended

    def _delta(self, event: Partial) -> dict[str, Json]:
        turn = self.begin(event.start)
        delta = event.text if turn.utterances else event.text.lstrip()
        turn.utterances.setdefault(event.utterance, []).extend(event.words)
        if self.config.finals == "read":
            turn.awaited.add(event.utterance)
        more = self._logprobs(event.words)
        return self.event(f"{TRANSCRIPTION}.delta", item_id=turn.item, content_index=0, delta=delta, **more)

    def _final(self, event: Final) -> Iterator[dict[str, Json]]:
        for turn in self._turns:
            if event.utterance in turn.utterances:
                n_words = len(event.words) if event.is_read else len(turn.utterances[event.utterance])
                turn.utterances[event.utterance] = list(event.words[max(0, len(event.words) - n_words) :])
                turn.awaited.discard(event.utterance)
        yield from self._complete()

    def _complete(self, *, is_last: bool = False) -> Iterator[dict[str, Json]]:
        """Complete the turns that have ended, up to the first one that awaits a final; is_last: all."""
        while self._turns and self._turns[0].end_s is not None and (is_last or not self._turns[0].awaited):
            turn = self._turns.popleft()
            text = "".join(word.word for word in turn.words).strip()
            if self.config.has_speakers:
                yield from self._segments(turn)
            yield self._completed(turn, text)
            yield self._done(turn, "completed", text)

    def _logprobs(self, words: Iterable[Word]) -> dict[str, Json]:
        return {"logprobs": [logprob(word) for word in words]} if self.config.logprobs else {}

    def _segments(self, turn: RealtimeTurn) -> Iterator[dict[str, Json]]:
        for speaker, words in speaker_runs(turn.words):
            yield self.event(
                f"{TRANSCRIPTION}.segment",
                id=f"seg_{uuid.uuid4().hex[:24]}",
                item_id=turn.item,
                content_index=0,
                **span_document(words[0].start, words[-1].end),
                speaker=speaker,
                text="".join(word.word for word in words).strip(),
            )

    def _completed(self, turn: RealtimeTurn, text: str) -> dict[str, Json]:
        codes = dict.fromkeys(word.language for word in turn.words if word.language)
        return self.event(
            f"{TRANSCRIPTION}.completed",
            item_id=turn.item,
            content_index=0,
            transcript=text,
            languages=[{"code": code} for code in codes],
            usage={"type": "duration", "seconds": seconds(max(0.0, (turn.end_s or 0.0) - turn.began_s))},
            **self._logprobs(turn.words),
        )

    def _added(self, turn: RealtimeTurn) -> Iterator[dict[str, Json]]:
        turn.previous, self._last_item = self._last_item, turn.item
        document = item_document(turn.item, "completed", None)
        yield self.event(f"{BUFFER}.committed", item_id=turn.item, previous_item_id=turn.previous)
        yield self.event("conversation.item.added", item=document, previous_item_id=turn.previous)

    def _done(self, turn: RealtimeTurn, status: str, text: str | None) -> dict[str, Json]:
        document = item_document(turn.item, status, text)
        self._finished[turn.item] = document
        if len(self._finished) > 1000:  # turns that clients may retrieve
            del self._finished[next(iter(self._finished))]
        return self.event("conversation.item.done", item=document, previous_item_id=turn.previous)


def item_document(item: str, status: str, text: str | None) -> dict[str, Json]:
    return {
        "id": item,
        "object": "realtime.item",
        "type": "message",
        "role": "user",
        "status": status,
        "content": [{"type": "input_audio", "transcript": text}],
    }


def speaker_runs(words: Iterable[Word]) -> list[tuple[str, list[Word]]]:
    """Group words into runs of one speaker; words without one join their neighbours, or speaker A."""
    runs: list[tuple[str | None, list[Word]]] = []
    for word in words:
        speaker, before = runs[-1] if runs else (word.speaker, [])
        if runs and (word.speaker in (None, speaker) or speaker is None):
            runs[-1] = (speaker or word.speaker, [*before, word])
        else:
            runs.append((word.speaker, [word]))
    return [(speaker or "A", words) for speaker, words in runs]


LIFETIME: api.Schema = {"type": "integer", "minimum": int(MIN_SECRET_S), "maximum": int(MAX_SECRET_S)}
SECRET = api.an_object(
    expires_after=api.an_object(anchor={"const": "created_at"}, seconds=LIFETIME),
    session=api.an_object("type", type={"const": "transcription"}, audio=api.an_object()),
)
CLIENT_SECRETS = api.http_route(
    "POST",
    "/v1/realtime/client_secrets",
    client_secrets,
    "A secret for a page, with the realtime session that it opens",
    api.json_answers(api.an_object("value", "expires_at", "session")),
    body={"content": {"application/json": {"schema": SECRET}}},
)
API = api.Api(
    routes=(
        api.SocketRoute("/v1/realtime", RealtimeConnection.at, api.Auth.KEY_OR_CLIENT_SECRET),
        CLIENT_SECRETS,
    ),
    key_prefixes=("openai-insecure-api-key.",),
)
