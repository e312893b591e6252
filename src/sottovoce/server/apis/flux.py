"""`/v2/listen`: Deepgram's API of turns for voice agents. A turn begins, may end early, resumes, and ends.

Only the pause ends a turn, and the confidence follows from its length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from starlette.websockets import WebSocket

from sottovoce.formats.document import Json, score, seconds, span_document
from sottovoce.server import fields
from sottovoce.server.api import SocketRoute
from sottovoce.server.apis import deepgram
from sottovoce.server.errors import ApiError, invalid_value, unsupported
from sottovoce.server.models import ModelRegistry
from sottovoce.streaming.options import Finals, LiveOptions
from sottovoce.types import Event, Final, LanguageChanged, Partial, SpeechEnded, SpeechStarted, Unstable, Word

PAUSE_S = 0.5
"""Pause with confidence 1 - 1/e; 0.3, 0.5, 0.7 and 0.9 are pauses of 0.18, 0.35, 0.6 and 1.15 s."""
LONGEST_HANGOVER_S = 1.2
"""Longest pause within speech; the last words are then written, though the turn may go on."""
ENGLISH = "flux-general-en"
THRESHOLDS = {
    "eager_eot_threshold": ("eager", (0.3, 0.9)),
    "eot_threshold": ("certain", (0.5, 1.0)),
    "eot_timeout_ms": ("timeout_ms", (500.0, 60_000.0)),
}
"""By name of the API: the field of `TurnThresholds`, the least and the greatest value."""
TURN_PARAMS = (
    *("model", "encoding", "sample_rate", "keyterm", "language_hint"),
    *("replace", "redact", "numerals", "finals", *THRESHOLDS),
)
CONFIGURE_FIELDS: fields.KnownFields = {
    **fields.known_fields("type", "keyterms", "language_hints", "numerals"),
    "thresholds": fields.known_fields(*THRESHOLDS),
}
MOST_WORDS = 1_000
"""Of a turn: every message has all of them."""


@dataclass(frozen=True, slots=True)
class TurnThresholds:
    """The confidence at which a turn ends. eager: that of an early end, or None.

    Raises: ApiError 400 if the early end would come after the end.
    """

    eager: float | None = None
    certain: float = 0.7
    timeout_ms: float = 5_000.0

    def __post_init__(self) -> None:
        if self.eager is not None and self.eager > self.certain:
            raise invalid_value(
                "eager_eot_threshold", f"at most eot_threshold ({self.certain:g})", f"{self.eager:g}"
            )

    @property
    def end_s(self) -> float:
        return min(pause_of(self.certain), self.timeout_ms / 1000)

    @property
    def hangover_s(self) -> float:
        eager_s = math.inf if self.eager is None else pause_of(self.eager)
        return min(eager_s, self.end_s, LONGEST_HANGOVER_S)

    @property
    def document(self) -> dict[str, Json]:
        values = (self.eager, self.certain, int(self.timeout_ms))
        return dict(zip(THRESHOLDS, values, strict=True))


@dataclass(frozen=True, slots=True)
class FluxParams(deepgram.ListenParams):
    """The parameters of a stream.

    has_hints: the client has named the languages. finals: "read": turns end with the text of a second pass,
    beyond Deepgram's API.
    """

    has_hints: bool = False
    finals: Finals = "committed"
    thresholds: TurnThresholds = TurnThresholds()

    @property
    def options(self) -> LiveOptions:
        return self.live_options(1000 * self.thresholds.hangover_s, captions="revisable", finals=self.finals)


def pause_of(confidence: float) -> float:
    """Return the pause in seconds at which a confidence is reached; infinite for 1."""
    return math.inf if confidence >= 1 else -PAUSE_S * math.log(1 - confidence)


def confidence_of(pause_s: float) -> float:
    return 1 - math.exp(-max(0.0, pause_s) / PAUSE_S)


def flux_params(pairs: Iterable[tuple[str, str]], registry: ModelRegistry) -> FluxParams:
    query = deepgram.Query(pairs, TURN_PARAMS)
    if not (model := query.last.get("model")):
        raise invalid_value("model", f"'{ENGLISH}', 'flux-general-multi', or one of this server", "none")
    raw = query.raw
    hints, is_english = query.language_hints, model == ENGLISH
    if hints and is_english:
        raise invalid_value("language_hint", f"another model than {ENGLISH}", "that one")
    return FluxParams(
        model=registry.resolve(model),
        languages=("en",) if is_english else hints,
        has_hints=bool(hints),
        terms=query.terms,
        raw=raw,
        text=query.text,
        finals=query.finals,
        thresholds=read_thresholds(query.last, TurnThresholds()),
        ignored=registry.ignored(model, query.ignored),
    )


def read_thresholds(given: Mapping[str, object], before: TurnThresholds) -> TurnThresholds:
    read = {
        field: fields.read_number(name, given[name], *limits)
        for name, (field, limits) in THRESHOLDS.items()
        if given.get(name) is not None
    }
    return replace(before, **read)


def configured_flux(params: FluxParams, message: Mapping[str, object]) -> FluxParams:
    given = {name: value for name, value in message.items() if name != "type" and value is not None}
    if given.get("numerals", False) is not False:
        raise unsupported("numerals")
    thresholds = fields.read_object("thresholds", given.get("thresholds"), optional=True)
    for name in THRESHOLDS:
        if (value := thresholds.get(name)) is not None:
            fields.json_number(-math.inf, math.inf)(name, value)
    ignored = fields.unknown_fields(message, CONFIGURE_FIELDS)
    changed = replace(params, thresholds=read_thresholds(thresholds, params.thresholds), ignored=ignored)
    if "keyterms" in given:
        changed = replace(changed, terms=fields.read_list("keyterms", given["keyterms"]))
    if "language_hints" in given:
        hints = fields.read_codes(
            "language_hints", fields.read_list("language_hints", given["language_hints"])
        )
        changed = replace(changed, languages=hints, has_hints=bool(hints))
    return changed


class FluxConnection(deepgram.DeepgramSocket[FluxParams]):
    def __init__(self, socket: WebSocket) -> None:
        super().__init__(socket)
        self._turns = FluxTurns(FluxParams(), self.transport.request_id, is_multi=False)

    async def begin(self) -> None:
        params = flux_params(self.socket.query_params.multi_items(), self.services.registry)
        self._turns = FluxTurns(params, self.transport.request_id, is_multi=len(params.languages) != 1)
        await self.open_stream(params)
        await self.send(self._turns.message("Connected"))
        await self._warn()

    async def on_message(self, message: bytes | str) -> None:
        if isinstance(message, bytes):
            await self.queue_stream(message)
        else:
            expected = "audio as binary, or ForceEndTurn, KeepAlive, CloseStream or Configure"
            given = fields.read_typed_message(message, expected)
            await self.act_on(given, "ForceEndTurn", self._force)

    def render(self, events: Sequence[Event]) -> Iterator[dict[str, Json]]:
        return self._turns.render(events, self.processed_s)

    def error_document(self, fault: ApiError) -> dict[str, Json]:
        return self._fault("Error", fault)

    async def on_close(self) -> None:
        await self.send(*self._turns.force(await self.session.flush(), self.processed_s))

    async def _force(self) -> None:
        answer = list(self._turns.force(await self.session.finalize(), self.processed_s))
        await self.send(*(answer or [self._turns.update(self.processed_s)]))

    def changed(self, message: Mapping[str, object]) -> FluxParams:
        return configured_flux(self.read, message)

    def configure_failure(self, fault: ApiError, message: Mapping[str, object]) -> dict[str, Json]:
        return self._fault("ConfigureFailure", fault)

    async def configured(self, message: Mapping[str, object]) -> None:
        params = self.params
        self._turns.configure(params, self.processed_s)
        answer: dict[str, Json] = {"thresholds": params.thresholds.document, "keyterms": list(params.terms)}
        if params.has_hints:
            answer["language_hints"] = list(params.languages)
        await self.send(self._turns.message("ConfigureSuccess", **answer))
        await self._warn()

    async def _warn(self) -> None:
        if self.params.ignored:
            text = f"{', '.join(fields.printable_names(self.params.ignored))}: without effect here"
            await self.send(self._turns.message("Warning", code="UNSUPPORTED_PARAMETER", description=text))

    def _fault(self, kind: str, fault: ApiError) -> dict[str, Json]:
        code = (fault.code or fault.kind).upper()
        return self._turns.message(kind, code=code, description=deepgram.message_of(fault))


@dataclass(slots=True)
class FluxTurn:
    """One turn. newest: words of utterances without a final. unstable: text that may change. quiet_since_s:
    start of the present pause, or None.
    """

    start_s: float = 0.0
    words: list[Word] = field(default_factory=list)
    newest: dict[int | None, list[Word]] = field(default_factory=dict)
    unstable: str = ""
    quiet_since_s: float | None = None
    has_begun: bool = False
    is_eager: bool = False

    @property
    def all_words(self) -> list[Word]:
        return [*self.words, *chain.from_iterable(self.newest.values())]

    @property
    def text(self) -> str:
        return ("".join(word.word for word in self.all_words) + self.unstable).strip()


class FluxTurns:
    """The turns of one stream; times are seconds of its audio."""

    def __init__(self, params: FluxParams, request_id: str, is_multi: bool) -> None:
        self.params = params
        self._request_id = request_id
        self._is_multi = is_multi
        self._n_sent = 0
        self._index = 0
        self._turn = FluxTurn()
        self._updated_s = 0.0
        self._hangover_s = params.thresholds.hangover_s

    def message(self, kind: str, **more: Json) -> dict[str, Json]:
        self._n_sent += 1
        return {"type": kind, "request_id": self._request_id, "sequence_id": self._n_sent - 1, **more}

    def render(self, events: Iterable[Event], received_s: float) -> Iterator[dict[str, Json]]:
        n_before = self._n_sent
        for event in events:
            yield from self._take(event)
        yield from self._end_if_over(received_s)
        if self._n_sent == n_before and received_s - self._updated_s >= 0.25:  # seconds between updates
            yield self.update(received_s)

    def update(self, received_s: float) -> dict[str, Json]:
        return self._info("Update", received_s)

    def force(self, events: Iterable[Event], received_s: float) -> Iterator[dict[str, Json]]:
        """Yield the messages of a turn that the client ends."""
        yield from self.render(events, received_s)
        if self._turn.has_begun:
            yield from self._end(received_s, "manual")

    def configure(self, params: FluxParams, received_s: float) -> None:
        self.params, self._hangover_s = params, params.thresholds.hangover_s
        if self._turn.quiet_since_s is None:
            self._turn.quiet_since_s = received_s

    def _take(self, event: Event) -> Iterator[dict[str, Json]]:
        if isinstance(event, LanguageChanged):  # words have their own
            return
        turn, now_s = self._turn, event.emission_time
        if isinstance(event, SpeechStarted):
            yield from self._end_if_over(now_s)
            yield from self._resume(now_s)
        elif isinstance(event, SpeechEnded):
            turn.quiet_since_s, turn.unstable = now_s - self._hangover_s, ""
            yield from self._end_early(now_s)
        elif isinstance(event, Partial):
            yield from self._resume_if_changed(event.text, now_s)
            turn.newest.setdefault(event.utterance, []).extend(event.words)
            turn.unstable = ""
        elif isinstance(event, Unstable):
            yield from self._resume_if_changed(event.text, now_s)
            turn.unstable = event.text
        elif isinstance(event, Final):
            before = turn.text
            turn.newest.pop(event.utterance, None)
            turn.words, turn.unstable = [*turn.words, *event.words], ""
            if turn.text != before:  # an early end had other text
                yield from self._resume_if_changed(turn.text, now_s)
        if not turn.has_begun and turn.text:
            turn.has_begun = True
            yield self._info("StartOfTurn", now_s)

    def _resume(self, now_s: float) -> Iterator[dict[str, Json]]:
        self._turn.quiet_since_s = None
        if self._turn.is_eager:
            self._turn.is_eager = False
            yield self._info("TurnResumed", now_s)

    def _resume_if_changed(self, text: str, now_s: float) -> Iterator[dict[str, Json]]:
        if text and self._turn.is_eager:
            quiet_since_s = self._turn.quiet_since_s
            yield from self._resume(now_s)
            self._turn.quiet_since_s = quiet_since_s

    def _end_early(self, now_s: float) -> Iterator[dict[str, Json]]:
        turn = self._turn
        is_wanted = self.params.thresholds.eager is not None
        if is_wanted and turn.has_begun and turn.text and not turn.is_eager:
            turn.is_eager = True
            yield self._info("EagerEndOfTurn", now_s)

    def _end_if_over(self, now_s: float) -> Iterator[dict[str, Json]]:
        quiet_since_s, thresholds = self._turn.quiet_since_s, self.params.thresholds
        if len(self._turn.words) >= MOST_WORDS and not self._turn.newest:
            yield from self._end(now_s, "length")
            return
        awaits_final = self.params.finals == "read" and bool(self._turn.newest)
        if quiet_since_s is None or now_s - quiet_since_s < thresholds.end_s - 1e-6 or awaits_final:
            return
        if self._turn.has_begun:
            is_by_timeout = thresholds.timeout_ms / 1000 < pause_of(thresholds.certain)
            yield from self._end(now_s, "timeout" if is_by_timeout else "model")

    def _end(self, now_s: float, trigger: str) -> Iterator[dict[str, Json]]:
        self._turn.unstable = ""
        yield {**self._info("EndOfTurn", now_s), "trigger": trigger}
        self._index += 1
        self._turn = FluxTurn(start_s=self._updated_s)

    def _info(self, event: str, now_s: float) -> dict[str, Json]:
        turn = self._turn
        self._updated_s = max(self._updated_s, now_s)
        pause_s = 0.0 if turn.quiet_since_s is None or not turn.has_begun else now_s - turn.quiet_since_s
        words: list[Json] = [
            {
                "word": word.word.strip(),
                "confidence": score(word.probability),
                **span_document(word.start, word.end),
            }
            for word in turn.all_words
        ]
        words += [{"word": word, "confidence": 0.0} for word in turn.unstable.split()]
        more: dict[str, Json] = {}
        if self._is_multi:
            more["languages"] = deepgram.languages_of(turn.all_words)
        if self.params.has_hints:
            more["languages_hinted"] = list(self.params.languages)
        return self.message(
            "TurnInfo",
            event=event,
            turn_index=self._index,
            audio_window_start=seconds(turn.start_s),
            audio_window_end=seconds(self._updated_s),
            transcript=turn.text,
            words=words,
            end_of_turn_confidence=score(confidence_of(pause_s)),
            **more,
        )


API = replace(deepgram.API, routes=(SocketRoute("/v2/listen", FluxConnection.at),))
