"""What a client of Deepgram's `/v2/listen` asks for: when a turn is over, and in which languages.

Deepgram's model says how sure it is that a turn is over. Here that is told by the pause: a longer one makes
it surer, and a threshold is a length of it. Knows no sockets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sottovoce.formats.document import Json
from sottovoce.options.live import LiveDecodingOptions, LiveOptions
from sottovoce.options.vad import VadStreamOptions
from sottovoce.serving.apis.deepgram_params import (
    checked_terms,
    read_format,
    read_query,
    read_terms,
)
from sottovoce.serving.parsing.client_values import read_code, read_json_number, read_list, read_object
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.fields import number_of, wrong
from sottovoce.serving.parsing.ignored import Known, leaves, unknown_fields
from sottovoce.serving.scheduling.model_registry import ModelRegistry

PAUSE_S = 0.5
"""After which confidence is 1 - 1/e; 0.3, 0.5, 0.7 and 0.9 are pauses of 0.18, 0.35, 0.6 and 1.15 s."""
LONGEST_HANGOVER_S = 1.2
"""The longest pause that speech goes on through: after it its last words are written, though the turn may not
be over."""
EAGER, CERTAIN, TIMEOUT_MS = (0.3, 0.9), (0.5, 1.0), (500.0, 60_000.0)
DEFAULT_CERTAIN, DEFAULT_TIMEOUT_MS = 0.7, 5_000.0
ENGLISH = "flux-general-en"
THRESHOLDS = ("eager_eot_threshold", "eot_threshold", "eot_timeout_ms")
OF_TURNS = ("model", "encoding", "sample_rate", "keyterm", "language_hint", *THRESHOLDS)
OF_CONFIGURE: Known = {
    **leaves("type", "keyterms", "language_hints", "numerals"),
    "thresholds": leaves(*THRESHOLDS),
}
"""The fields of a `Configure`."""


@dataclass(frozen=True, slots=True)
class TurnThresholds:
    """When a turn is over. eager: None: nothing is told before it is.

    Raises: ApiError 400 where it would be told before it may be over.
    """

    eager: float | None = None
    certain: float = DEFAULT_CERTAIN
    timeout_ms: float = DEFAULT_TIMEOUT_MS

    def __post_init__(self) -> None:
        if self.eager is not None and self.eager > self.certain:
            raise wrong("eager_eot_threshold", f"at most eot_threshold ({self.certain:g})", f"{self.eager:g}")

    @property
    def end_s(self) -> float:
        """The pause that ends a turn."""
        return min(pause_of(self.certain), self.timeout_ms / 1000)

    @property
    def is_by_timeout(self) -> bool:
        """Whether a turn ends by its timeout, before it would otherwise."""
        return self.timeout_ms / 1000 < pause_of(self.certain)

    @property
    def hangover_s(self) -> float:
        """The pause after which the last words are written."""
        eager_s = math.inf if self.eager is None else pause_of(self.eager)
        return min(eager_s, self.end_s, LONGEST_HANGOVER_S)

    @property
    def document(self) -> dict[str, Json]:
        """By Deepgram's names."""
        values = (self.eager, self.certain, int(self.timeout_ms))
        return dict(zip(THRESHOLDS, values, strict=True))


@dataclass(frozen=True, slots=True)
class FluxParams:
    """What is asked of a stream.

    languages: that may be spoken, among which it may change; empty: any. ignored: parameters without effect.
    """

    model: str | None = None
    languages: tuple[str, ...] = ()
    has_hints: bool = False
    terms: tuple[str, ...] = ()
    encoding: str = "s16le"
    sample_rate: int = 16_000
    is_raw: bool = False
    thresholds: TurnThresholds = TurnThresholds()
    ignored: tuple[str, ...] = ()

    @property
    def options(self) -> LiveOptions:
        """As the library's session takes it."""
        hangover_ms = 1000 * self.thresholds.hangover_s
        return LiveOptions(
            languages=self.languages,
            unstable=True,
            decoding=LiveDecodingOptions(static_prompt=", ".join(self.terms)),
            vad=VadStreamOptions(hangover_ms=hangover_ms, post_roll_ms=min(100.0, hangover_ms)),
        )


def pause_of(confidence: float) -> float:
    """Return the pause (seconds) after which it is so sure that a turn is over; never for 1."""
    return math.inf if confidence >= 1 else -PAUSE_S * math.log(1 - confidence)


def confidence_of(pause_s: float) -> float:
    """Return how sure it is that a turn is over after a pause."""
    return 1 - math.exp(-max(0.0, pause_s) / PAUSE_S)


def flux_params(query: Iterable[tuple[str, str]], registry: ModelRegistry) -> FluxParams:
    """Read the address of a socket.

    Raises: ApiError 400, and 404 for a model that is not there.
    """
    one, many, ignored = read_query(query, OF_TURNS)
    if not one.get("model"):
        raise wrong("model", f"'{ENGLISH}', 'flux-general-multi', or one of this server", "none")
    is_raw, encoding, rate = read_format(one)
    hints = tuple(dict.fromkeys(read_code("language_hint", tag) for tag in many.get("language_hint", ())))
    is_english = one["model"] == ENGLISH
    if hints and is_english:
        raise wrong("language_hint", f"another model than {ENGLISH}", "that one")
    return FluxParams(
        model=registry.resolve(one["model"]),
        languages=("en",) if is_english else hints,
        has_hints=bool(hints),
        terms=read_terms(many),
        encoding=encoding,
        sample_rate=rate,
        is_raw=is_raw,
        thresholds=read_thresholds(one, TurnThresholds()),
        ignored=registry.ignored(one["model"], ignored),
    )


def read_thresholds(given: Mapping[str, object], before: TurnThresholds) -> TurnThresholds:
    """Read thresholds from an address or a message; those that are not given stay. Raises: ApiError 400."""
    read = {
        name: number_of(name, given[name], *limits)
        for name, limits in zip(THRESHOLDS, (EAGER, CERTAIN, TIMEOUT_MS), strict=True)
        if given.get(name) is not None
    }
    eager, certain, timeout_ms = (read.get(name) for name in THRESHOLDS)
    return TurnThresholds(
        before.eager if eager is None else eager,
        before.certain if certain is None else certain,
        before.timeout_ms if timeout_ms is None else timeout_ms,
    )


def configured_flux(params: FluxParams, message: Mapping[str, object]) -> FluxParams:
    """Return parameters with what a Configure changes, and what of it has no effect. Raises: ApiError 400."""
    given = {name: value for name, value in message.items() if name != "type" and value is not None}
    if given.get("numerals", False) is not False:
        raise ApiError("numerals: not done here", param="numerals", code="unsupported_value")
    thresholds = read_object("thresholds", given.get("thresholds"), optional=True)
    for name in THRESHOLDS:
        if (value := thresholds.get(name)) is not None:
            read_json_number(name, value, -math.inf, math.inf)
    ignored = unknown_fields(message, OF_CONFIGURE)
    changed = replace(params, thresholds=read_thresholds(thresholds, params.thresholds), ignored=ignored)
    if "keyterms" in given:
        changed = replace(changed, terms=checked_terms(read_list("keyterms", given["keyterms"])))
    if "language_hints" in given:
        tags = read_list("language_hints", given["language_hints"])
        hints = tuple(dict.fromkeys(read_code("language_hints", tag) for tag in tags))
        changed = replace(changed, languages=hints, has_hints=bool(hints))
    return changed
