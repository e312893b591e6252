"""What a client of OpenAI's realtime API asks of a transcription session, and the session as it is told back.

Names are those of the API's types. Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from sottovoce.audio.vad_stream import VadStreamOptions
from sottovoce.errors import OptionError
from sottovoce.formats.document import Json
from sottovoce.serving.faults import ApiError
from sottovoce.serving.fields import number_of, wrong
from sottovoce.serving.protocol import languages_of, list_of, text_of
from sottovoce.serving.scheduler import LiveOptions

ENCODINGS = {"audio/pcm": ("s16le", 24_000), "audio/pcmu": ("mulaw", 8_000), "audio/pcma": ("alaw", 8_000)}
"""By the format's name: encoding and sample rate."""
DELAYS = {"minimal": 5.0, "low": 15.0, "medium": 25.0, "high": 50.0, "xhigh": 100.0}
"""Frames of 20 ms that a word waits while it is attended near the end of the audio."""
EAGERNESS_MS = {"low": 1000.0, "medium": 600.0, "auto": 600.0, "high": 300.0}
"""The pause that ends a turn: what is said is not looked at."""
LOGPROBS = "item.input_audio_transcription.logprobs"
PARAM = "session.audio.input.turn_detection"
_UNUSED = ("create_response", "interrupt_response")
"""Of turn detection: there are no responses here."""


@dataclass(frozen=True, slots=True)
class Turns:
    """How turns are found, as the API names it, and as the library does."""

    document: Mapping[str, Json]
    vad: VadStreamOptions
    idle_timeout_s: float | None = None


def server_vad(given: Mapping[str, object]) -> Turns:
    """Turn detection by pauses. Raises: ApiError 400."""
    limits = {
        "threshold": (0.5, 0, 1),
        "prefix_padding_ms": (300, 0, 5_000),
        "silence_duration_ms": (500, 0, 10_000),
    }
    require_only(PARAM, given, ("type", "idle_timeout_ms", *limits, *_UNUSED))
    values = {
        name: number_of(f"{PARAM}.{name}", given[name], least, most) if given.get(name) is not None else usual
        for name, (usual, least, most) in limits.items()
    }
    idle = given.get("idle_timeout_ms")
    idle_ms = None if idle is None else number_of(f"{PARAM}.idle_timeout_ms", idle, 1_000, 600_000)
    silence_ms = values["silence_duration_ms"]
    try:
        vad = VadStreamOptions(
            threshold=values["threshold"],
            hangover_ms=silence_ms,
            pre_roll_ms=values["prefix_padding_ms"],
            post_roll_ms=min(100.0, silence_ms),
        )
    except OptionError as error:
        raise ApiError(str(error), param=PARAM, code="invalid_value") from error
    document = {"type": "server_vad", **values, "idle_timeout_ms": idle_ms}
    return Turns(document, vad, None if idle_ms is None else idle_ms / 1000)


def semantic_vad(given: Mapping[str, object]) -> Turns:
    """Turn detection by longer or shorter pauses. Raises: ApiError 400."""
    require_only(PARAM, given, ("type", "eagerness", *_UNUSED))
    eagerness = given.get("eagerness") or "auto"
    if eagerness not in EAGERNESS_MS:
        raise wrong(f"{PARAM}.eagerness", f"one of {', '.join(EAGERNESS_MS)}", f"'{str(eagerness)[:50]}'")
    document = {"type": "semantic_vad", "eagerness": str(eagerness)}
    return Turns(document, VadStreamOptions(hangover_ms=EAGERNESS_MS[str(eagerness)]))


@dataclass(frozen=True, slots=True)
class RealtimeWish:
    """A transcription session as its client wants it. turns: None where the client says when one ends."""

    audio_format: str = "audio/pcm"
    model: str | None = None
    language: str | None = None
    languages: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    prompt: str = ""
    delay: str = "medium"
    turns: Turns | None = field(default_factory=lambda: server_vad({}))
    logprobs: bool = False

    @property
    def options(self) -> LiveOptions:
        """As the library's session takes it."""
        return LiveOptions(
            languages=(self.language,) if self.language else self.languages,
            prompt=self.prompt,
            terms=self.keywords,
            vad=self.turns.vad if self.turns else False,
            frame_threshold=DELAYS[self.delay],
        )

    @property
    def document(self) -> dict[str, Json]:
        """The session as it is in effect."""
        rate: dict[str, Json] = {"rate": 24_000} if self.audio_format == "audio/pcm" else {}
        transcription: dict[str, Json] = {
            "model": self.model,
            "language": self.language,
            "languages": list(self.languages) or None,
            "keywords": list(self.keywords) or None,
            "prompt": self.prompt or None,
            "delay": self.delay,
        }
        heard: dict[str, Json] = {
            "format": {"type": self.audio_format, **rate},
            "noise_reduction": None,
            "transcription": transcription,
            "turn_detection": dict(self.turns.document) if self.turns else None,
        }
        return {
            "type": "transcription",
            "audio": {"input": heard},
            "include": [LOGPROBS] if self.logprobs else None,
        }


def updated(wish: RealtimeWish, session: object) -> RealtimeWish:
    """The wish with what a client's `session` says; what it does not name stays.

    Raises: ApiError 400 naming the field.
    """
    given = mapping("session", session)
    require_only("session", given, ("type", "audio", "include"))
    if given.get("type") != "transcription":
        raise wrong("session.type", "'transcription'", f"'{str(given.get('type'))[:50]}'")
    if "include" in given:
        wanted = list_of("session.include", given["include"] or [])
        if set(wanted) - {LOGPROBS}:
            raise wrong("session.include", LOGPROBS, f"'{wanted[0][:100]}'")
        wish = replace(wish, logprobs=bool(wanted))
    audio = mapping("session.audio", given.get("audio") or {})
    require_only("session.audio", audio, ("input",))
    heard = mapping("session.audio.input", audio.get("input") or {})
    require_only(
        "session.audio.input", heard, ("format", "noise_reduction", "transcription", "turn_detection")
    )
    if heard.get("format") is not None:
        wish = replace(wish, audio_format=format_of(heard["format"]))
    if "turn_detection" in heard:
        wish = replace(wish, turns=turns_of(heard["turn_detection"]))
    return with_transcription(
        wish, mapping("session.audio.input.transcription", heard.get("transcription") or {})
    )


def with_transcription(wish: RealtimeWish, given: Mapping[str, object]) -> RealtimeWish:
    """The wish with what `transcription` says. Raises: ApiError 400."""
    place = "session.audio.input.transcription"
    require_only(place, given, tuple(READERS))
    changes = {
        name: READERS[name](f"{place}.{name}", value) if value is not None else getattr(RealtimeWish(), name)
        for name, value in given.items()
    }
    if changes.get("language") and changes.get("languages"):
        raise wrong(f"{place}.language", "language or languages", "both")
    if changes.get("language"):
        changes["languages"] = ()
    if changes.get("languages"):
        changes["language"] = None
    return replace(wish, **changes)  # type: ignore[arg-type]


def format_of(given: object) -> str:
    """The name of an audio format. Raises: ApiError 400."""
    place = "session.audio.input.format"
    found = mapping(place, given)
    require_only(place, found, ("type", "rate"))
    name = found.get("type") or "audio/pcm"
    if name not in ENCODINGS:
        raise wrong(place, f"one of {', '.join(ENCODINGS)}", f"'{str(name)[:50]}'")
    rate = ENCODINGS[str(name)][1]
    if found.get("rate") not in (None, rate):
        raise wrong(f"{place}.rate", str(rate), f"'{str(found['rate'])[:50]}'")
    return str(name)


def turns_of(given: object) -> Turns | None:
    """How turns are found; None: the client says. Raises: ApiError 400."""
    if given is None:
        return None
    found = mapping(PARAM, given)
    kinds: dict[object, Callable[[Mapping[str, object]], Turns]] = {
        "server_vad": server_vad,
        "semantic_vad": semantic_vad,
    }
    kind = found.get("type", "server_vad")
    if not isinstance(kind, str) or kind not in kinds:
        raise wrong(PARAM, "server_vad, semantic_vad or null", f"'{str(kind)[:50]}'")
    return kinds[kind](found)


def mapping(name: str, value: object) -> Mapping[str, object]:
    """An object. Raises: ApiError 400."""
    if not isinstance(value, Mapping):
        raise wrong(name, "an object", f"'{str(value)[:50]}'")
    return cast("Mapping[str, object]", value)


def require_only(name: str, given: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Raises: ApiError 400 for a field that is not known."""
    for key in given:
        if key not in known:
            message = f"unknown parameter '{name}.{key[:50]}': expected {', '.join(known)}"
            raise ApiError(message, param=f"{name}.{key[:50]}", code="unknown_parameter")


def language_of(name: str, value: object) -> str | None:
    """One language. Raises: ApiError 400."""
    found = languages_of(name, [text_of(name, value)])
    return found[0] if found else None


def delay_of(name: str, value: object) -> str:
    """How long words wait. Raises: ApiError 400."""
    if value not in DELAYS:
        raise wrong(name, f"one of {', '.join(DELAYS)}", f"'{str(value)[:50]}'")
    return str(value)


READERS: Mapping[str, Callable[[str, object], object]] = {
    "model": text_of,
    "language": language_of,
    "languages": languages_of,
    "keywords": list_of,
    "prompt": text_of,
    "delay": delay_of,
}
"""The fields of `transcription`, with how they are read."""
