"""What a client of OpenAI's realtime API asks of a transcription session, and the session as it is told back.

Names are those of the API's types; fields without effect are read too, so that none holds what cannot be.
Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sottovoce.errors import OptionError
from sottovoce.formats.document import Json
from sottovoce.options.live import LiveDecodingOptions, LiveOptions
from sottovoce.options.vad import VadStreamOptions
from sottovoce.serving.parsing.client_values import (
    one_of,
    read_json_languages,
    read_json_list,
    read_json_number,
    read_languages,
    read_object,
    read_text,
    shown,
)
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.fields import wrong
from sottovoce.serving.parsing.ignored import Known, leaves, unknown_fields

DELAYS = {"minimal": 5.0, "low": 15.0, "medium": 25.0, "high": 50.0, "xhigh": 100.0}
"""Frames of 20 ms that a word waits, by the name of a `delay`."""
ENCODINGS = {"audio/pcm": ("s16le", 24_000), "audio/pcmu": ("mulaw", 8_000), "audio/pcma": ("alaw", 8_000)}
"""By the format's name: encoding and sample rate."""
EAGERNESS_MS = {"low": 1000.0, "medium": 600.0, "auto": 600.0, "high": 300.0}
"""The pause that ends a turn: what is said is not looked at."""
DIARIZING = "gpt-4o-transcribe-diarize"
LOGPROBS = "item.input_audio_transcription.logprobs"
PARAM = "session.audio.input.turn_detection"
NOISES, MAX_STRENGTH = ("near_field", "far_field"), 100.0
"""Kinds and most strength of `noise_reduction`, which is not done."""
VAD_LIMITS = {
    "threshold": (0.5, 0, 1),
    "prefix_padding_ms": (300, 0, 5_000),
    "silence_duration_ms": (500, 0, 10_000),
}
"""Numbers of `server_vad`: the usual value, the least and the greatest."""
UNUSED = ("create_response", "interrupt_response")
"""Of turn detection: there are no responses here."""


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """How turns are found, as the API names it, and as the library does."""

    document: Mapping[str, Json]
    vad: VadStreamOptions
    idle_timeout_s: float | None = None


def server_vad(given: Mapping[str, object]) -> TurnDetection:
    """Read turn detection by pauses. Raises: ApiError 400."""
    check_unused(given)
    values = {
        name: read_json_number(f"{PARAM}.{name}", given[name], least, most)
        if given.get(name) is not None
        else usual
        for name, (usual, least, most) in VAD_LIMITS.items()
    }
    idle = given.get("idle_timeout_ms")
    idle_ms = None if idle is None else read_json_number(f"{PARAM}.idle_timeout_ms", idle, 1_000, 600_000)
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
    return TurnDetection(document, vad, None if idle_ms is None else idle_ms / 1000)


def semantic_vad(given: Mapping[str, object]) -> TurnDetection:
    """Read turn detection by longer or shorter pauses. Raises: ApiError 400."""
    check_unused(given)
    wanted = given.get("eagerness")
    eagerness = "auto" if wanted is None else one_of(*EAGERNESS_MS)(f"{PARAM}.eagerness", wanted)
    document = {"type": "semantic_vad", "eagerness": eagerness}
    return TurnDetection(document, VadStreamOptions(hangover_ms=EAGERNESS_MS[eagerness]))


def check_unused(given: Mapping[str, object]) -> None:
    """Check fields of no effect. Raises: ApiError 400 for what is neither true nor false."""
    for name in UNUSED:
        if given.get(name) is not None and not isinstance(given[name], bool):
            raise wrong(f"{PARAM}.{name}", "true or false", shown(given[name]))


@dataclass(frozen=True, slots=True)
class RealtimeSessionConfig:
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
    turns: TurnDetection | None = field(default_factory=lambda: server_vad({}))
    logprobs: bool = False
    has_speakers: bool = False

    @property
    def options(self) -> LiveOptions:
        """As the library's session takes it."""
        return LiveOptions(
            languages=(self.language,) if self.language else self.languages,
            vad=self.turns.vad if self.turns else False,
            decoding=LiveDecodingOptions(
                init_prompt=self.prompt,
                static_prompt=", ".join(self.keywords),
                frame_threshold=DELAYS[self.delay],
            ),
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


def updated(config: RealtimeSessionConfig, session: object) -> RealtimeSessionConfig:
    """Return the config with what a client's `session` says; what it does not name stays, and fields that are
    not known have no effect (`unknown_session_fields`).

    Raises: ApiError 400 naming the field.
    """
    given = read_object("session", session)
    if given.get("type") != "transcription":
        raise wrong("session.type", "'transcription'", shown(given.get("type")))
    if "include" in given:
        config = replace(config, logprobs=includes_logprobs(given["include"]))
    audio = read_object("session.audio", given.get("audio"), optional=True)
    place = "session.audio.input"
    audio_input = read_object(place, audio.get("input"), optional=True)
    check_noise(audio_input.get("noise_reduction"))
    if audio_input.get("format") is not None:
        config = replace(config, audio_format=read_format(audio_input["format"]))
    if "turn_detection" in audio_input:
        config = replace(config, turns=read_turn_detection(audio_input["turn_detection"]))
    transcription = read_object(f"{place}.transcription", audio_input.get("transcription"), optional=True)
    return with_transcription(config, transcription)


def includes_logprobs(given: object) -> bool:
    """Return whether they are among what is to be included. Raises: ApiError 400."""
    for wanted in [] if given is None else read_json_list("session.include", given):
        if wanted != LOGPROBS:
            raise wrong("session.include", LOGPROBS, f"'{wanted[:100]}'")
    return bool(given)


def check_noise(given: object) -> None:
    """Look at `noise_reduction`, of which there is none here. Raises: ApiError 400."""
    place = "session.audio.input.noise_reduction"
    found = read_object(place, given, optional=True)
    if found.get("type") is not None:
        one_of(*NOISES)(f"{place}.type", found["type"])
    if found.get("strength") is not None:
        read_json_number(f"{place}.strength", found["strength"], 0.0, MAX_STRENGTH)


def with_transcription(config: RealtimeSessionConfig, given: Mapping[str, object]) -> RealtimeSessionConfig:
    """Return the config with what `transcription` says. Raises: ApiError 400."""
    place = "session.audio.input.transcription"
    changes = {
        name: READERS[name](f"{place}.{name}", value)
        if value is not None
        else getattr(RealtimeSessionConfig(), name)
        for name, value in given.items()
        if name in READERS
    }
    if changes.get("language") and changes.get("languages"):
        raise wrong(f"{place}.language", "language or languages", "both")
    if changes.get("language"):
        changes["languages"] = ()
    if changes.get("languages"):
        changes["language"] = None
    if given.get("model", config.model) != config.model:  # a session sent back as it was alters nothing
        changes["has_speakers"] = given["model"] == DIARIZING
    return replace(config, **changes)  # type: ignore[arg-type]


def read_format(given: object) -> str:
    """Read the name of an audio format. Raises: ApiError 400."""
    place = "session.audio.input.format"
    found = read_object(place, given)
    wanted = found.get("type")
    name = "audio/pcm" if wanted is None else one_of(*ENCODINGS)(place, wanted)
    rate = ENCODINGS[name][1]
    if found.get("rate") not in (None, rate):
        raise wrong(f"{place}.rate", str(rate), shown(found["rate"]))
    return name


def read_turn_detection(given: object) -> TurnDetection | None:
    """Read how turns are found; None: the client says. Raises: ApiError 400."""
    if given is None:
        return None
    found = read_object(PARAM, given)
    kinds: dict[object, Callable[[Mapping[str, object]], TurnDetection]] = {
        "server_vad": server_vad,
        "semantic_vad": semantic_vad,
    }
    kind = found.get("type", "server_vad")
    if not isinstance(kind, str) or kind not in kinds:
        raise wrong(PARAM, "server_vad, semantic_vad or null", shown(kind))
    return kinds[kind](found)


def read_one_language(name: str, value: object) -> str | None:
    """Read one language; None: any. Raises: ApiError 400."""
    found = read_languages(name, [read_text(name, value)])
    return found[0] if found else None


READERS: Mapping[str, Callable[[str, object], object]] = {
    "model": read_text,
    "language": read_one_language,
    "languages": read_json_languages,
    "keywords": read_json_list,
    "prompt": read_text,
    "delay": one_of(*DELAYS),
}
"""The fields of `transcription`, with how they are read."""


def unknown_session_fields(session: object) -> tuple[str, ...]:
    """List the fields of a client's `session` that are not known, and have no effect."""
    turns: dict[str, Known] = {
        "server_vad": leaves("type", "idle_timeout_ms", *VAD_LIMITS, *UNUSED),
        "semantic_vad": leaves("type", "eagerness", *UNUSED),
    }
    try:
        kind = session["audio"]["input"]["turn_detection"]["type"]  # type: ignore[index]
    except (KeyError, TypeError):
        kind = "server_vad"
    audio_input: dict[str, Known] = {
        "format": {"type": {}, "rate": {}},
        "noise_reduction": {"type": {}, "strength": {}},
        "transcription": leaves(*READERS),
        "turn_detection": turns["semantic_vad" if kind == "semantic_vad" else "server_vad"],
    }
    known: Known = {"session": {"type": {}, "audio": {"input": audio_input}, "include": {}}}
    return unknown_fields({"session": session}, known)
