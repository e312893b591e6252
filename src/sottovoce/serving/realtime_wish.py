"""What a client of OpenAI's realtime API asks of a transcription session, and the session as it is told back.

Names are those of the API's types; fields without effect are read too, so that none holds what cannot be.
Knows no sockets.
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
from sottovoce.serving.protocol import languages_of, list_of, one_of, shown, text_of
from sottovoce.serving.scheduler import LiveOptions

ENCODINGS = {"audio/pcm": ("s16le", 24_000), "audio/pcmu": ("mulaw", 8_000), "audio/pcma": ("alaw", 8_000)}
"""By the format's name: encoding and sample rate."""
DELAYS = {"minimal": 5.0, "low": 15.0, "medium": 25.0, "high": 50.0, "xhigh": 100.0}
"""Frames of 20 ms that a word waits while it is attended near the end of the audio."""
EAGERNESS_MS = {"low": 1000.0, "medium": 600.0, "auto": 600.0, "high": 300.0}
"""The pause that ends a turn: what is said is not looked at."""
DIARIZING = "gpt-4o-transcribe-diarize"
LOGPROBS = "item.input_audio_transcription.logprobs"
PARAM = "session.audio.input.turn_detection"
NOISES, MOST_STRENGTH = ("near_field", "far_field"), 100.0
"""Kinds and most strength of `noise_reduction`, which is not done."""
UNUSED = ("create_response", "interrupt_response")
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
    require_only(PARAM, given, ("type", "idle_timeout_ms", *limits, *UNUSED))
    check_unused(given)
    values = {
        name: json_number(f"{PARAM}.{name}", given[name], least, most)
        if given.get(name) is not None
        else usual
        for name, (usual, least, most) in limits.items()
    }
    idle = given.get("idle_timeout_ms")
    idle_ms = None if idle is None else json_number(f"{PARAM}.idle_timeout_ms", idle, 1_000, 600_000)
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
    require_only(PARAM, given, ("type", "eagerness", *UNUSED))
    check_unused(given)
    wanted = given.get("eagerness")
    eagerness = "auto" if wanted is None else one_of(*EAGERNESS_MS)(f"{PARAM}.eagerness", wanted)
    document = {"type": "semantic_vad", "eagerness": eagerness}
    return Turns(document, VadStreamOptions(hangover_ms=EAGERNESS_MS[eagerness]))


def check_unused(given: Mapping[str, object]) -> None:
    """Raises: ApiError 400 for what is of no effect, and neither true nor false."""
    for name in UNUSED:
        if given.get(name) is not None and not isinstance(given[name], bool):
            raise wrong(f"{PARAM}.{name}", "true or false", shown(given[name]))


@dataclass(frozen=True, slots=True)
class RealtimeWish:
    """A transcription session as its client wants it.

    turns: None where the client says when one ends. has_speakers: say who says what; asked for by the name
    of OpenAI's model that does so.
    """

    audio_format: str = "audio/pcm"
    model: str | None = None
    language: str | None = None
    languages: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    prompt: str = ""
    delay: str = "medium"
    turns: Turns | None = field(default_factory=lambda: server_vad({}))
    logprobs: bool = False
    has_speakers: bool = False

    @property
    def options(self) -> LiveOptions:
        """As the library's session takes it."""
        return LiveOptions(
            languages=(self.language,) if self.language else self.languages,
            prompt=self.prompt,
            terms=self.keywords,
            vad=self.turns.vad if self.turns else False,
            frame_threshold=DELAYS[self.delay],
            speakers="auto" if self.has_speakers else "",
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
        raise wrong("session.type", "'transcription'", shown(given.get("type")))
    if "include" in given:
        wish = replace(wish, logprobs=includes_logprobs(given["include"]))
    audio = mapping("session.audio", given.get("audio"), optional=True)
    require_only("session.audio", audio, ("input",))
    place = "session.audio.input"
    heard = mapping(place, audio.get("input"), optional=True)
    require_only(place, heard, ("format", "noise_reduction", "transcription", "turn_detection"))
    check_noise(heard.get("noise_reduction"))
    if heard.get("format") is not None:
        wish = replace(wish, audio_format=format_of(heard["format"]))
    if "turn_detection" in heard:
        wish = replace(wish, turns=turns_of(heard["turn_detection"]))
    transcription = mapping(f"{place}.transcription", heard.get("transcription"), optional=True)
    return with_transcription(wish, transcription)


def includes_logprobs(given: object) -> bool:
    """Whether they are among what is to be included. Raises: ApiError 400."""
    for wanted in [] if given is None else json_list("session.include", given):
        if wanted != LOGPROBS:
            raise wrong("session.include", LOGPROBS, f"'{wanted[:100]}'")
    return bool(given)


def check_noise(given: object) -> None:
    """Look at `noise_reduction`, of which there is none here. Raises: ApiError 400."""
    place = "session.audio.input.noise_reduction"
    found = mapping(place, given, optional=True)
    require_only(place, found, ("type", "strength"))
    if found.get("type") is not None:
        one_of(*NOISES)(f"{place}.type", found["type"])
    if found.get("strength") is not None:
        json_number(f"{place}.strength", found["strength"], 0.0, MOST_STRENGTH)


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
    if "model" in given and given["model"] != wish.model:  # a session sent back as it was told alters nothing
        changes["has_speakers"] = given["model"] == DIARIZING
    return replace(wish, **changes)  # type: ignore[arg-type]


def format_of(given: object) -> str:
    """The name of an audio format. Raises: ApiError 400."""
    place = "session.audio.input.format"
    found = mapping(place, given)
    require_only(place, found, ("type", "rate"))
    wanted = found.get("type")
    name = "audio/pcm" if wanted is None else one_of(*ENCODINGS)(place, wanted)
    rate = ENCODINGS[name][1]
    if found.get("rate") not in (None, rate):
        raise wrong(f"{place}.rate", str(rate), shown(found["rate"]))
    return name


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
        raise wrong(PARAM, "server_vad, semantic_vad or null", shown(kind))
    return kinds[kind](found)


def mapping(name: str, value: object, *, optional: bool = False) -> Mapping[str, object]:
    """An object; optional: null is one without fields. Raises: ApiError 400."""
    if value is None and optional:
        return {}
    if not isinstance(value, Mapping):
        raise wrong(name, "an object or null" if optional else "an object", shown(value))
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


def json_list(name: str, value: object) -> tuple[str, ...]:
    """Texts from a list of JSON. Raises: ApiError 400."""
    return list_of(name, value if isinstance(value, list) else None)


def json_languages(name: str, value: object) -> tuple[str, ...]:
    """Codes from a list of JSON. Raises: ApiError 400."""
    return languages_of(name, value if isinstance(value, list) else None)


def json_number(name: str, value: object, least: float, most: float) -> float:
    """A number of JSON, not spelled in letters. Raises: ApiError 400."""
    return number_of(name, [value] if isinstance(value, str) else value, least, most)


READERS: Mapping[str, Callable[[str, object], object]] = {
    "model": text_of,
    "language": language_of,
    "languages": json_languages,
    "keywords": json_list,
    "prompt": text_of,
    "delay": one_of(*DELAYS),
}
"""The fields of `transcription`, with how they are read."""
