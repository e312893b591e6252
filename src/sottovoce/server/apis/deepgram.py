"""`/v1/listen`: Deepgram's API, audio over a socket or a recording in the body of a request.

Parameters that only add to the answer, or style the text, have no effect and are named in it; those that
would change the text, or send it elsewhere, are refused.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from typing import Generic, TypeVar, cast, get_args

import anyio.to_thread
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from sottovoce.audio.container import LiveContainer
from sottovoce.audio.io import Source, probe_audio
from sottovoce.formats.document import Json, score, seconds, span_document
from sottovoce.formats.subtitles import ends_with
from sottovoce.options.decoding import VadStreamOptions
from sottovoce.options.text import Redaction, TextOptions
from sottovoce.options.transcribe import SpeakerOptions, TranscribeOptions
from sottovoce.server import api, fields
from sottovoce.server.errors import ApiError, invalid_options, invalid_value, unsupported
from sottovoce.server.fields import LANGUAGE_EXAMPLES
from sottovoce.server.live import PcmReader, WebSocketConnection
from sottovoce.server.models import ModelRegistry, resolve_model_id
from sottovoce.server.scheduler import Command
from sottovoce.server.services import services_of
from sottovoce.server.uploads import FileRequest, received_body, running_job
from sottovoce.speakers.labels import letter, letter_index
from sottovoce.streaming.options import Captions, Eagerness, Finals, LiveOptions, StreamOptions
from sottovoce.text.filters import phrases_alone
from sottovoce.text.languages import SENTENCE_ENDS
from sottovoce.types import (
    Event,
    Final,
    Partial,
    SpeechEnded,
    SpeechStarted,
    Transcript,
    TurnEnded,
    Unstable,
    Word,
)

KEY_SCHEMES = ("token", "bearer")
"""Subprotocols of Deepgram's browser clients; the next subprotocol is the key."""
ERROR_CODES = {401: "INVALID_AUTH", 429: "TOO_MANY_REQUESTS"}
"""By HTTP status. Source: Deepgram, API errors."""
ENCODINGS = {"linear16": "s16le", "mulaw": "mulaw", "alaw": "alaw"}
CONTAINER = "ogg-opus"
PAUSE_MS = (100.0, 5_000.0)
"""Limits of `endpointing`; Deepgram's default, 10 ms, would end speech in every word."""
DEFAULT_PAUSE_MS = 500.0
UTTERANCE_END_MS = (1_000.0, 5_000.0)

UTT_SPLIT_S = (0.1, 30.0)
DEFAULT_SPLIT_S = 0.8
"""Source: Deepgram, `utt_split`."""

SILENTLY_IGNORED = ("version", "tag", "extra", "mip_opt_out", "no_delay")
"""Accepted with any value, as no answer could show them."""
REFUSED = ("callback", "callback_method")
"""Must be false: they would change the text or send it elsewhere."""
OFF_VALUES = ("false", "0", "")
REPEATABLE = ("keyterm", "keywords", "replace", "redact", "language_hint", "detect_language")
REDACTIONS: Mapping[str, Redaction] = {"numbers": "numbers", "email_address": "emails"}
"""Values of `redact` with a rule; without one, private data would be written."""
STREAM_PARAMS = (
    *("endpointing", "utterance_end_ms", "interim_results", "vad_events"),
    *("detect_language", "utt_split", "finals", "multichannel"),
)
RECORDING_PARAMS = ("utterances", "utt_split", "paragraphs", "detect_language", "multichannel")
PUNCTUATION = '.,!?;:…。、，！？；："“”„«»()[]¿¡'


@dataclass(frozen=True, slots=True)
class ListenParams(ABC):
    """Common parameters of `/v1/listen` and `/v2/listen`. languages: empty: any. raw: encoding and rate of
    samples without a header, or None. n_channels: that are transcribed separately; 1: all are mixed.
    """

    model: str | None = None
    languages: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    raw: tuple[str, int] | None = None
    n_channels: int = 1
    ignored: tuple[str, ...] = ()
    text: TextOptions = field(default_factory=TextOptions)

    @property
    @abstractmethod
    def options(self) -> LiveOptions: ...

    def live_options(
        self,
        pause_ms: float,
        *,
        captions: Captions,
        finals: Finals = "committed",
        speakers: str = "",
        eagerness: Eagerness | None = None,
    ) -> LiveOptions:
        return LiveOptions(
            languages=self.languages,
            captions=captions,
            finals=finals,
            stream=StreamOptions(static_prompt=", ".join(self.terms), eagerness=eagerness),
            speakers=speakers,
            vad=VadStreamOptions(hangover_ms=pause_ms, post_roll_ms=min(100.0, pause_ms)),
            **self.text.given,
        )


@dataclass(frozen=True, slots=True)
class DeepgramParams(ListenParams):
    """Parameters of a stream or a recording.

    is_multi: report the language of every word. pause_ms: the pause that ends speech; None: its end is not
    reported. eagerness: end speech by the words too, or None. utterance_end_ms: silence before
    `UtteranceEnd`. finals: "read": final results come from a second pass, beyond Deepgram's API.
    is_punctuated: text as written, instead of lower-case words. utt_split_s: the pause between utterances of
    a recording. is_multichannel: its channels are transcribed separately.
    """

    is_multi: bool = False
    is_punctuated: bool = False
    has_speakers: bool = False
    interim_results: bool = False
    finals: Finals = "committed"
    vad_events: bool = False
    pause_ms: float | None = DEFAULT_PAUSE_MS
    eagerness: Eagerness | None = None
    utterance_end_ms: float | None = None
    utterances: bool = False
    utt_split_s: float = DEFAULT_SPLIT_S
    paragraphs: bool = False
    is_multichannel: bool = False

    @property
    def options(self) -> LiveOptions:
        return self.live_options(
            self.pause_ms or DEFAULT_PAUSE_MS,
            captions="revisable" if self.interim_results else "firm",
            finals=self.finals,
            speakers="auto" if self.has_speakers else "",
            eagerness=self.eagerness,
        )


class Query:
    """The parameters of an address. last: the last value of each. ignored: those without effect."""

    def __init__(self, pairs: Iterable[tuple[str, str]], known: Collection[str]) -> None:
        self.values: dict[str, list[str]] = {}
        for name, value in pairs:
            self.values.setdefault(name, []).append(value)
        self.last = {name: values[-1] for name, values in self.values.items()}
        given = [
            name
            for name, values in self.values.items()
            if any(value.lower() not in OFF_VALUES for value in values)
        ]
        for name in given:
            if name in REFUSED or (name == "multichannel" and name not in known):
                raise unsupported(name)
        for name, values in self.values.items():
            if len(values) > 1 and name in known and name not in REPEATABLE:
                raise invalid_value(name, "one value", f"{len(values)}")
        known = (*known, *SILENTLY_IGNORED)
        self.ignored = tuple(name for name in given if name not in known or name == "diarize_model")

    def flag(self, name: str) -> bool:
        return fields.read_flag(name, self.last.get(name, "false"))

    @property
    def terms(self) -> tuple[str, ...]:
        """Keyterms, and keywords without their weights."""
        keywords = (word.partition(":")[0] for word in self.values.get("keywords", ()))
        terms = (term.strip() for term in (*self.values.get("keyterm", ()), *keywords))
        return fields.check_terms([term for term in terms if term])

    @property
    def text(self) -> TextOptions:
        """`replace` has rules `said:written` and may be repeated; without a colon the words are left out."""
        rules = fields.check_terms(self.values.get("replace", ()), "replace")
        pairs = (rule.partition(":") for rule in rules)
        kinds = [kind.lower() for kind in self.values.get("redact", ()) if kind.lower() not in OFF_VALUES]
        if other := [kind for kind in kinds if kind not in REDACTIONS]:
            raise invalid_value("redact", " or ".join(REDACTIONS), fields.quoted(other[0]))
        with invalid_options("replace"):
            return TextOptions(
                replacements=phrases_alone("\n".join(f"{said} => {written}" for said, _, written in pairs)),
                redact=tuple(REDACTIONS[kind] for kind in kinds),
                numerals=self.flag("numerals"),
            )

    @property
    def finals(self) -> Finals:
        return fields.read_finals("finals", self.last.get("finals", "committed"))

    @property
    def language_hints(self) -> tuple[str, ...]:
        return fields.read_codes("language_hint", self.values.get("language_hint", ()))

    @property
    def n_channels(self) -> int:
        """Channels of `multichannel`, which are transcribed separately; 1 without it."""
        if not self.flag("multichannel"):
            return 1
        n_channels = fields.read_int("channels", self.last.get("channels", "1"))
        if n_channels < 1 or self.flag("diarize"):
            raise invalid_value("multichannel", "channels from 1, and no diarize beside it", "others")
        return n_channels

    @property
    def raw(self) -> tuple[str, int] | None:
        """Encoding and rate of samples without a header, or None for a container."""
        last = self.last
        encoding = last.get("encoding", CONTAINER)
        if encoding == CONTAINER:
            if "sample_rate" in last and "encoding" not in last:
                raise invalid_value("sample_rate", "an encoding beside it", "none")
            return None
        if encoding not in ENCODINGS:
            raise invalid_value(
                "encoding", f"one of {', '.join(ENCODINGS)}", f"'{(encoding or 'none')[:50]}'"
            )
        if last.get("channels", "1") != "1" and not self.flag("multichannel"):
            raise invalid_value("channels", "1, or multichannel", fields.quoted(last["channels"]))
        usual = "16000" if encoding == "linear16" else "8000"
        rate = fields.read_int("sample_rate", last.get("sample_rate", usual))
        PcmReader(ENCODINGS[encoding], rate)
        return ENCODINGS[encoding], rate


def stream_params(pairs: Iterable[tuple[str, str]], registry: ModelRegistry) -> DeepgramParams:
    query = Query(pairs, (*COMMON_PARAMS, *STREAM_PARAMS))
    if query.flag("multichannel") and query.raw is None:
        raise invalid_value("multichannel", "encoding and channels beside it", "none")
    end_ms, endpointing = query.last.get("utterance_end_ms"), query.last.get("endpointing")
    is_semantic = endpointing in get_args(Eagerness)
    return replace(
        common_params(query, registry),
        eagerness=cast(Eagerness, endpointing) if is_semantic else None,
        interim_results=query.flag("interim_results"),
        finals=query.finals,
        vad_events=query.flag("vad_events"),
        pause_ms=DEFAULT_PAUSE_MS if is_semantic else read_pause(endpointing),
        utterance_end_ms=None
        if end_ms is None
        else fields.read_number("utterance_end_ms", end_ms, *UTTERANCE_END_MS),
    )


def recording_params(pairs: Iterable[tuple[str, str]], registry: ModelRegistry) -> DeepgramParams:
    query = Query(pairs, (*COMMON_PARAMS, *RECORDING_PARAMS))
    params, paragraphs = common_params(query, registry), query.flag("paragraphs")
    return replace(
        params,
        languages=detection_languages(query, params.languages),
        is_punctuated=paragraphs or params.is_punctuated,
        is_multichannel=query.flag("multichannel"),
        utterances=query.flag("utterances"),
        utt_split_s=fields.read_number(
            "utt_split", query.last.get("utt_split", DEFAULT_SPLIT_S), *UTT_SPLIT_S
        ),
        paragraphs=paragraphs,
    )


def common_params(query: Query, registry: ModelRegistry) -> DeepgramParams:
    model, named = query.last.get("model"), query.last.get("language")
    if model is not None and model.lower() == "base" and resolve_model_id(model, registry.settings) is None:
        model = "whisper-base"  # Deepgram's `base` is not Whisper's: it means the default model
    raw = query.raw
    is_one = bool(named) and named != "multi"
    return DeepgramParams(
        model=registry.resolve(model),
        languages=(fields.read_code("language", named or ""),) if is_one else query.language_hints,
        is_multi=named == "multi",
        terms=query.terms,
        is_punctuated=query.flag("punctuate") or query.flag("smart_format"),
        has_speakers=query.flag("diarize") or query.last.get("diarize_model", "").lower() not in OFF_VALUES,
        raw=raw,
        n_channels=query.n_channels,
        ignored=registry.ignored(model, query.ignored),
        text=query.text,
    )


def detection_languages(query: Query, languages: tuple[str, ...]) -> tuple[str, ...]:
    """Return the candidates of `detect_language`, or the given languages; empty: all."""
    wanted, named = query.values.get("detect_language", []), query.last.get("language", "multi")
    is_plain = len(wanted) == 1 and wanted[0].lower() in ("true", "false", "1", "0")
    if not query.last.get("detect_language") or (
        is_plain and not fields.read_flag("detect_language", wanted[0])
    ):
        return languages
    if named != "multi":
        raise invalid_value("detect_language", "no language beside it", fields.quoted(named))
    return languages if is_plain else fields.read_codes("detect_language", wanted)


def read_pause(text: str | None) -> float | None:
    if text is None or text.lower() == "true":
        return DEFAULT_PAUSE_MS
    if text.lower() == "false":
        return None
    return max(PAUSE_MS[0], fields.read_number("endpointing", text, 0.0, PAUSE_MS[1]))


P = TypeVar("P", bound=ListenParams)


class DeepgramSocket(WebSocketConnection, Generic[P]):
    """A stream with parameters that `Configure` changes. params: in effect; read: with those of the queue."""

    params: P
    read: P

    def __init__(self, socket: WebSocket) -> None:
        super().__init__(socket)
        self._reader = PcmReader()
        self._container: LiveContainer | None = None

    async def open_stream(self, params: P) -> None:
        self.params = self.read = params
        fields.note_ignored(self.socket, params.ignored)
        if params.raw is not None:
            self._reader = PcmReader(*params.raw, params.n_channels, keep_channels=params.n_channels > 1)
        else:
            self._container = LiveContainer()
            self.exit_stack.callback(self._container.close)
        sources = [str(place) for place in range(params.n_channels)] if params.n_channels > 1 else []
        self.acquire_slot(params.n_channels)
        await self.open(params.model or "", params.options, sources)
        first = next(iter(self.socket.scope["subprotocols"]), None)
        await self.websocket.accept(first if first in KEY_SCHEMES else None)

    async def queue_stream(self, data: bytes) -> None:
        """b"", by which older clients end the stream, closes it."""
        if not data:
            await self.close_stream()
        elif self._container is not None:
            await self.queue_container(self._container, data)
        else:
            await self.queue_bytes(self._reader, data)

    async def close_stream(self) -> None:
        if self._container is not None:
            await self.queue_container(self._container, b"")
        else:
            await self.queue_audio(self._reader.flush())
        await self.request_close()

    async def act_on(self, message: Mapping[str, object], end: str, on_end: Command) -> None:
        """end: the type of the message that ends speech or a turn. Raises: ApiError 400 for another type."""
        kind = message.get("type")
        if kind == "CloseStream":
            await self.close_stream()
        elif kind == end:
            await self.queue.put(on_end)
        elif kind == "Configure":
            await self._take_configure(message)
        elif kind != "KeepAlive":
            raise invalid_value("type", f"{end}, KeepAlive, CloseStream or Configure", fields.quoted(kind))

    async def _take_configure(self, message: Mapping[str, object]) -> None:
        try:
            self.read = self.changed(message)
        except ApiError as fault:
            await self.send(self.configure_failure(fault, message))
        else:
            await self.queue.put(partial(self._configure, self.read, message))

    async def _configure(self, params: P, message: Mapping[str, object]) -> None:
        if (fault := await self.attempt(self._change(params))) is not None:
            self.read = self.params
            await self.send(self.configure_failure(fault, message))
        else:
            await self.configured(message)

    async def _change(self, params: P) -> None:
        events: list[Event] = []
        if params.options != self.params.options:
            events = await self.session.configure(params.options)
        self.params = params
        await self.emit(events)

    @abstractmethod
    def changed(self, message: Mapping[str, object]) -> P:
        """Return the parameters after a `Configure`."""

    @abstractmethod
    def configure_failure(self, fault: ApiError, message: Mapping[str, object]) -> dict[str, Json]:
        """Render the answer to a `Configure` without effect."""

    @abstractmethod
    async def configured(self, message: Mapping[str, object]) -> None:
        """Answer a `Configure` that took effect."""


class DeepgramConnection(DeepgramSocket[DeepgramParams]):
    _results: list[DeepgramResults]
    """Of each channel."""

    async def begin(self) -> None:
        params = stream_params(self.socket.query_params.multi_items(), self.services.registry)
        request_id = self.transport.request_id
        self._results = [DeepgramResults(params, request_id, place) for place in range(params.n_channels)]
        await self.open_stream(params)

    async def on_message(self, message: bytes | str) -> None:
        if isinstance(message, str):
            await self._take_text(message)
        else:
            self._results[0].audio.update(message)
            await self.queue_stream(message)

    def render(self, events: Sequence[Event]) -> Iterator[dict[str, Json]]:
        for results in self._results:
            results.behind_s = round(self.behind_s, 3)
            yield from results.render(results.of_channel(events), self.processed_s)

    def error_document(self, fault: ApiError) -> dict[str, Json]:
        return {"type": "Error", "variant": fault.code or fault.kind, "description": message_of(fault)}

    async def on_close(self) -> None:
        events = await self.session.flush()
        for results in self._results:
            await self.send(*results.ended(results.of_channel(events), self.processed_s))
        await self.send(self._results[0].metadata(self.processed_s))

    async def _take_text(self, text: str) -> None:
        try:
            message = fields.read_object("message", fields.read_json(text))
            await self.act_on(message, "Finalize", self._finalize)
        except ApiError as fault:
            document = self.error_document(fault)
            await self.send({**document, "variant": "SchemaError", "message": text[:200]})

    async def _finalize(self) -> None:
        events = await self.session.finalize()
        for results in self._results:
            await self.send(*results.finalized(results.of_channel(events), self.processed_s))

    def changed(self, message: Mapping[str, object]) -> DeepgramParams:
        given = message.get("keyterms")
        if message.get("features"):
            raise unsupported("features")
        return self.read if given is None else replace(self.read, terms=fields.read_list("keyterms", given))

    def configure_failure(self, fault: ApiError, message: Mapping[str, object]) -> dict[str, Json]:
        terms = message.get("keyterms")
        is_list = isinstance(terms, list) and all(isinstance(term, str) for term in terms)
        is_too_much = is_list and fault.param in ("keyterm", "keyterms")
        return {
            "type": "ConfigureFailure",
            "request_id": self.transport.request_id,
            "code": "CONFIGURE_KEYTERM_LIMIT_EXCEEDED" if is_too_much else "CONFIGURE_INTERNAL_ERROR",
            "description": fault.message,
        }

    async def configured(self, message: Mapping[str, object]) -> None:
        terms = {} if message.get("keyterms") is None else {"keyterms": list(self.params.terms)}
        await self.send({"type": "ConfigureSuccess", "request_id": self.transport.request_id, **terms})


async def listen_recording(request: Request) -> Response:
    params = recording_params(request.query_params.multi_items(), services_of(request).registry)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        raise unsupported("url", "recordings are not fetched from elsewhere: send the audio as the body")
    options = TranscribeOptions(
        word_timestamps=True,
        speakers=SpeakerOptions() if params.has_speakers else None,
        **params.text.given,
        input_format=params.raw and f"{params.raw[0]}:{params.raw[1]}:{params.n_channels}",
        channels="apart" if params.is_multichannel else "mixed",
        mode="vad" if params.is_multichannel else "seek",
    )
    wanted = FileRequest(
        options=options,
        languages=params.languages,
        phrases=params.terms,
        model=params.model,
        ignored=params.ignored,
    )
    async with running_job(request, received_body(request), lambda _: wanted) as job:
        transcript = await job.collected(request)
        if params.is_multichannel:
            job.recording.seek(0)
            opened = Source(job.recording.source, input_format=options.input_format)
            info = await anyio.to_thread.run_sync(probe_audio, opened)
            params = replace(params, n_channels=info.n_channels)
    return JSONResponse(
        recording_document(transcript, params, request.state.request_id, job.recording.sha256)
    )


class DeepgramResults:
    """The results of one channel of a stream; times are seconds of its audio."""

    def __init__(self, params: DeepgramParams, request_id: str, place: int = 0) -> None:
        self._params = params
        self._channel: list[Json] = [place, params.n_channels]
        self._ends_speech = params.pause_ms is not None
        self._request_id = request_id
        self._words: list[Word] = []
        self._unstable = ""
        self._n_words: dict[int | None, int] = {}
        """Words of utterances that await a second pass."""
        self._ended: set[int | None] = set()
        """Of these, the ones whose speech has ended."""
        self._is_due = False
        self._is_speech = False
        self._end_s = 0.0
        self.behind_s = 0.0
        """Of received audio that no event covers; beyond Deepgram's API."""
        self._unreported_end_s: float | None = None
        self.audio = hashlib.sha256()
        """Of the bytes of the client."""
        self._created = datetime.now(timezone.utc)

    def of_channel(self, events: Iterable[Event]) -> list[Event]:
        return [event for event in events if event.source in (None, str(self._channel[0]))]

    def render(self, events: Iterable[Event], received_s: float) -> Iterator[dict[str, Json]]:
        changed = False
        for event in events:
            if isinstance(event, SpeechStarted):
                self._is_speech = True
                if self._params.vad_events:
                    yield {"type": "SpeechStarted", "channel": self._channel, "timestamp": seconds(event.at)}
            elif isinstance(event, SpeechEnded):
                self._is_speech = False
                if event.utterance in self._n_words:
                    self._ended.add(event.utterance)
                else:
                    yield self._result(event.at, speech_final=self._ends_speech)
            elif isinstance(event, Final) and event.committed is not None:
                yield self._read_result(event)
            elif isinstance(event, TurnEnded):
                yield from self._utterance_end(math.inf)
            else:
                changed = self._take(event) or changed
                # An interim result has at most 4 s.
                if not self._n_words and self._words and self._words[-1].end - self._words[0].start >= 4.0:
                    yield self._result(self._last_s)
        if self._is_due:
            yield self._result(self._last_s)
        elif changed and self._params.interim_results:
            yield self._result(received_s, is_final=False)
        yield from self._utterance_end(received_s)

    def finalized(self, events: Iterable[Event], received_s: float) -> Iterator[dict[str, Json]]:
        for event in events:
            if isinstance(event, Final) and event.committed is not None:
                yield self._read_result(event)
            else:
                self._take(event)
        self._is_speech = False
        yield self._result(received_s, speech_final=self._ends_speech, from_finalize=True)

    def ended(self, events: Iterable[Event], received_s: float) -> Iterator[dict[str, Json]]:
        yield from self.render(events, received_s)
        if self._words:
            yield self._result(received_s, speech_final=self._ends_speech)

    def metadata(self, received_s: float) -> dict[str, Json]:
        about = metadata(self._params, self._request_id, self.audio.hexdigest(), received_s, self._created)
        return {"type": "Metadata", **about}

    def _read_result(self, final: Final) -> dict[str, Json]:
        """Render the final of a second pass; words of later utterances stay."""
        later = self._words[self._n_words.pop(final.utterance, 0) :]
        self._words = list(final.words)
        is_end = final.utterance in self._ended
        self._ended.discard(final.utterance)
        document = self._result(final.end, speech_final=is_end and self._ends_speech)
        self._words = later
        return document

    @property
    def _last_s(self) -> float:
        return self._words[-1].end if self._words else self._end_s

    def _take(self, event: object) -> bool:
        if isinstance(event, Partial):
            self._words += event.words
            if self._params.finals == "read":
                self._n_words[event.utterance] = self._n_words.get(event.utterance, 0) + len(event.words)
            self._unstable = ""
            self._unreported_end_s = self._last_s
        elif isinstance(event, Unstable):
            self._unstable = event.text
        elif isinstance(event, Final):
            self._is_due, self._unstable = True, ""
            if self._words:  # their speakers may have been corrected
                self._words = list(event.words[-len(self._words) :])
        return isinstance(event, Partial | Unstable)

    def _utterance_end(self, received_s: float) -> Iterator[dict[str, Json]]:
        limit_ms, end_s = self._params.utterance_end_ms, self._unreported_end_s
        if limit_ms is None or end_s is None or self._is_speech or received_s - end_s < limit_ms / 1000:
            return
        self._unreported_end_s = None
        yield {"type": "UtteranceEnd", "channel": self._channel, "last_word_end": seconds(end_s)}

    def _result(
        self, end_s: float, *, is_final: bool = True, speech_final: bool = False, from_finalize: bool = False
    ) -> dict[str, Json]:
        end_s, model = max(end_s, self._last_s), self._params.model or ""
        extra = "" if is_final else self._unstable
        document: dict[str, Json] = {
            "type": "Results",
            "channel_index": self._channel,
            "duration": seconds(max(0.0, end_s - self._end_s)),
            "start": seconds(self._end_s),
            "channel": {"alternatives": [alternative_of(self._words, self._params, extra)]},
            "metadata": {
                "request_id": self._request_id,
                "model_info": model_info(model),
                "model_uuid": model,
                "behind_s": self.behind_s,
            },
            "is_final": is_final,
            "speech_final": speech_final,
            "from_finalize": from_finalize,
        }
        if is_final:
            self._words, self._unstable, self._is_due, self._end_s = [], "", False, end_s
        return document


def alternative_of(words: Sequence[Word], params: DeepgramParams, extra: str = "") -> dict[str, Json]:
    """Render words as the only alternative. extra: text after them that may still change."""
    if params.is_punctuated:
        text = "".join(word.word for word in words) + extra
    else:
        text = "".join(without_punctuation(word.word) for word in words) + without_punctuation(extra)
    mean = sum(word.probability for word in words) / len(words) if words else 0.0
    document: dict[str, Json] = {
        "transcript": text.strip(),
        "confidence": score(mean),
        "words": [word_of(word, params) for word in words],
    }
    if params.is_multi:
        document["languages"] = languages_of(words)
    return document


def languages_of(words: Iterable[Word]) -> list[Json]:
    """Return the codes of words, the most frequent first."""
    return [code for code, _ in Counter(word.language for word in words if word.language).most_common()]


def word_of(word: Word, params: DeepgramParams) -> dict[str, Json]:
    document: dict[str, Json] = {
        "word": without_punctuation(word.word).strip(),
        **times_of([word]),
        "confidence": score(word.probability),
    }
    if params.is_punctuated:
        document["punctuated_word"] = word.word.strip()
    if params.is_multi:
        document["language"] = word.language
    if params.has_speakers and word.speaker is not None:
        document["speaker"] = letter_index(word.speaker)
    return document


def without_punctuation(text: str) -> str:
    """The space before a text stays."""
    parts = (part.strip(PUNCTUATION).lower() for part in text.split(" "))
    return " ".join(parts)


def model_info(model: str) -> dict[str, Json]:
    return {"name": model, "version": "1", "arch": model}


def recording_document(
    transcript: Transcript, params: DeepgramParams, request_id: str, sha256: str
) -> dict[str, Json]:
    words = [
        replace(word, speaker=word.speaker or segment.speaker)
        for segment in transcript.segments
        for word in segment.words or ()
    ]
    of_channels = [words]
    if params.is_multichannel:
        of_channels = [[w for w in words if w.speaker == letter(place)] for place in range(params.n_channels)]
    channels = [channel_document(of_channel, transcript, params) for of_channel in of_channels]
    results: dict[str, Json] = {"channels": [*channels]}
    if params.utterances:
        utterances = [
            (part, place)
            for place, of_channel in enumerate(of_channels)
            for part in split_words(
                of_channel, lambda a, b: b.start - a.end >= params.utt_split_s or a.speaker != b.speaker
            )
        ]
        utterances.sort(key=lambda each: each[0][0].start)
        results["utterances"] = [
            {
                **times_of(part),
                "channel": place,
                **alternative_of(part, params),
                "id": str(number),
                **speaker_of(part, params),
            }
            for number, (part, place) in enumerate(utterances)
        ]
    about = metadata(params, request_id, sha256, transcript.duration, datetime.now(timezone.utc))
    return {"metadata": about, "results": results}


def channel_document(
    words: Sequence[Word], transcript: Transcript, params: DeepgramParams
) -> dict[str, Json]:
    alternative = alternative_of(words, params)
    if params.paragraphs:
        alternative["paragraphs"] = paragraphs_of(words, params)
    channel: dict[str, Json] = {"alternatives": [alternative]}
    most = languages_of(words) if params.is_multichannel else [transcript.language]
    if len(params.languages) != 1 and any(most):
        channel["detected_language"] = most[0]
        if transcript.language_probability is not None and not params.is_multichannel:
            channel["language_confidence"] = score(transcript.language_probability)
    return channel


def metadata(
    params: DeepgramParams, request_id: str, sha256: str, duration_s: float, created: datetime
) -> dict[str, Json]:
    model = params.model or ""
    warnings: list[Json] = [
        {"parameter": name, "type": "unsupported_parameter", "message": f"{name}: without effect here"}
        for name in fields.printable_names(params.ignored)
    ]
    return {
        "transaction_key": "deprecated",
        "request_id": request_id,
        "sha256": sha256,
        "created": created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "duration": seconds(duration_s),
        "channels": params.n_channels,
        "models": [model],
        "model_info": {model: model_info(model)},
        **({"warnings": warnings} if warnings else {}),
    }


def paragraphs_of(words: Sequence[Word], params: DeepgramParams) -> dict[str, Json]:
    described: list[Json] = []
    texts: list[str] = []
    for sentences in paragraphs(words):
        spoken = [word for sentence in sentences for word in sentence]
        speaker = speaker_of(spoken, params)
        documents: list[Json] = [{"text": text_of(part), **times_of(part)} for part in sentences]
        described.append({"sentences": documents, "num_words": len(spoken), **times_of(spoken), **speaker})
        before = f"Speaker {speaker['speaker']}: " if speaker else ""
        texts.append(before + " ".join(text_of(part) for part in sentences))
    return {"transcript": "\n" + "\n\n".join(texts) if texts else "", "paragraphs": described}


def paragraphs(words: Sequence[Word]) -> Iterator[list[Sequence[Word]]]:
    held: list[Sequence[Word]] = []
    for sentence in split_words(
        words, lambda a, b: ends_with(a.word, SENTENCE_ENDS) or a.speaker != b.speaker
    ):
        if held:
            last, first = held[-1][-1], sentence[0]
            # A paragraph ends in a pause of a second, with its speaker, and after five sentences.
            is_apart = first.start - last.end >= 1.0 or last.speaker != first.speaker
            if is_apart or len(held) == 5:
                yield held
                held = []
        held.append(sentence)
    if held:
        yield held


def split_words(words: Sequence[Word], between: Callable[[Word, Word], bool]) -> Iterator[Sequence[Word]]:
    ends = [i for i, (a, b) in enumerate(pairwise(words), start=1) if between(a, b)]
    borders = [0, *ends, len(words)]
    return (words[start:end] for start, end in pairwise(borders) if end > start)


def times_of(words: Sequence[Word]) -> dict[str, Json]:
    return span_document(words[0].start, words[-1].end)


def text_of(words: Sequence[Word]) -> str:
    return "".join(word.word for word in words).strip()


def speaker_of(words: Sequence[Word], params: DeepgramParams) -> dict[str, Json]:
    name = words[0].speaker
    return {"speaker": letter_index(name)} if params.has_speakers and name is not None else {}


def render_error(connection: HTTPConnection, fault: ApiError) -> dict[str, Json]:
    code = ERROR_CODES.get(fault.status, fault.code)
    request_id = connection.scope["state"]["request_id"]
    return {"err_code": code, "err_msg": message_of(fault), "request_id": request_id}


def message_of(fault: ApiError) -> str:
    """Return the message with Deepgram's name of an option."""
    return fault.message.replace("input_format", "encoding")


LANGUAGE: api.Schema = {"type": "string", "examples": [*LANGUAGE_EXAMPLES], "maxLength": 50}
SCHEMAS: Mapping[str, api.Schema] = {
    "model": fields.TEXT,
    "language": {"type": "string", "examples": ["en-US", "multi"], "maxLength": 50},
    "language_hint": {"type": "array", "items": LANGUAGE},
    "keyterm": fields.TEXTS,
    "keywords": fields.TEXTS,
    "replace": fields.TEXTS,
    "redact": {"type": "array", "items": {"type": "string", "enum": [*REDACTIONS, *OFF_VALUES]}},
    "numerals": api.FLAG,
    "punctuate": api.FLAG,
    "smart_format": api.FLAG,
    "diarize": api.FLAG,
    "diarize_model": fields.TEXT,
    "encoding": {"type": "string", "enum": [*ENCODINGS]},
    "sample_rate": {"type": "integer", "minimum": fields.MIN_RATE, "maximum": fields.MAX_RATE},
    "channels": {"type": "integer", "minimum": 1},
    "multichannel": api.FLAG,
    "utterances": api.FLAG,
    "utt_split": {"type": "number", "minimum": UTT_SPLIT_S[0], "maximum": UTT_SPLIT_S[1]},
    "paragraphs": api.FLAG,
    "detect_language": {"anyOf": [api.FLAG, {"type": "array", "items": LANGUAGE}]},
}

COMMON_PARAMS = tuple(name for name in SCHEMAS if name not in RECORDING_PARAMS)


BINARY: api.Schema = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
RECORDING = api.http_route(
    "POST",
    "/v1/listen",
    listen_recording,
    "Text, as Deepgram's API; also a WebSocket",
    api.answers(
        {"application/json": api.an_object("metadata", "results")},
        api.an_object("err_msg", err_msg=api.STRING),
    ),
    *(api.parameter(name, SCHEMAS[name]) for name in (*COMMON_PARAMS, *RECORDING_PARAMS)),
    body={"required": True, "content": BINARY},
    reads_query=True,
)
API = api.Api(
    routes=(RECORDING, api.SocketRoute("/v1/listen", DeepgramConnection.at)),
    error=render_error,
    key_schemes=KEY_SCHEMES,
)
