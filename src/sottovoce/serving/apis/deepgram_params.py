"""What a client of Deepgram's API asks for in the address of `/v1/listen`, of streams and recordings.

What is not done here and only adds to the answer, or only styles the text, has no effect, and the answer says
so; what would make the text, or where it goes, another one than was asked for is refused. Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sottovoce.errors import OptionError
from sottovoce.options.live import LiveDecodingOptions, LiveOptions
from sottovoce.options.vad import VadStreamOptions
from sottovoce.serving.parsing.client_values import (
    MAX_CHARACTERS,
    MAX_TERMS,
    read_code,
    read_flag,
    read_whole,
)
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.fields import number_of, wrong
from sottovoce.serving.parsing.pcm import PcmReader
from sottovoce.serving.scheduling.model_registry import ModelRegistry, resolve_model_id
from sottovoce.types import SAMPLE_RATE

ENCODINGS = {"linear16": "s16le", "mulaw": "mulaw", "alaw": "alaw"}
"""By Deepgram's name."""
CONTAINER = "ogg-opus"
"""The encoding that is one; its sample rate is its own."""
PAUSE_MS = (100.0, 5_000.0)
"""The shortest and longest `endpointing`; Deepgram's own default, 10 ms, would end speech in every word."""
DEFAULT_PAUSE_MS = 500.0
UTTERANCE_END_MS = (1_000.0, 5_000.0)

UTT_SPLIT_S = (0.1, 30.0)
DEFAULT_SPLIT_S = 0.8
"""Of pauses between utterances of a recording, as Deepgram has it."""

WITHOUT_EFFECT = ("version", "tag", "extra", "mip_opt_out", "no_delay")
"""Taken with any value: nobody could tell from an answer that they have no effect."""
REFUSED = ("callback", "callback_method", "redact", "replace", "multichannel")
"""Not done here, and false at most: text that was to be unreadable or another one, or to go elsewhere."""
OFF = ("false", "0", "")
OF_STREAMS = (
    *("endpointing", "utterance_end_ms", "interim_results", "vad_events"),
    *("detect_language", "utt_split"),
)
OF_RECORDINGS = ("utterances", "utt_split", "paragraphs", "detect_language")
OF_BOTH = (
    "model",
    "language",
    "language_hint",
    "keyterm",
    "keywords",
    "punctuate",
    "smart_format",
    "diarize",
    "diarize_model",
    "encoding",
    "sample_rate",
    "channels",
)


@dataclass(frozen=True, slots=True)
class DeepgramParams:
    """What is read_query of a stream or a recording.

    languages: empty: any. is_multi: say the language of every word. pause_ms: that ends speech; None: no end
    of speech is told. utterance_end_ms: without words, until the end of an utterance is told.
    is_punctuated: as written, rather than words alone in lower case. has_speakers: say who says every word.
    is_raw: audio is samples of this encoding and rate, without a header that says so; else a container.
    utt_split_s: the pause that parts utterances of a recording. ignored: parameters without effect.
    """

    model: str | None = None
    languages: tuple[str, ...] = ()
    is_multi: bool = False
    terms: tuple[str, ...] = ()
    is_punctuated: bool = False
    has_speakers: bool = False
    encoding: str = "s16le"
    sample_rate: int = 16_000
    interim_results: bool = False
    vad_events: bool = False
    pause_ms: float | None = DEFAULT_PAUSE_MS
    utterance_end_ms: float | None = None
    utterances: bool = False
    utt_split_s: float = DEFAULT_SPLIT_S
    paragraphs: bool = False
    is_raw: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def options(self) -> LiveOptions:
        """As the library's session takes it."""
        pause_ms = self.pause_ms or DEFAULT_PAUSE_MS
        return LiveOptions(
            languages=self.languages,
            unstable=self.interim_results,
            decoding=LiveDecodingOptions(static_prompt=", ".join(self.terms)),
            speakers="auto" if self.has_speakers else "",
            vad=VadStreamOptions(hangover_ms=pause_ms, post_roll_ms=min(100.0, pause_ms)),
        )


def stream_params(query: Iterable[tuple[str, str]], registry: ModelRegistry) -> DeepgramParams:
    """Read the address of a socket.

    Raises: ApiError 400, and 404 for a model that is not there.
    """
    one, many, ignored = read_query(query, (*OF_BOTH, *OF_STREAMS))
    model = read_model(one, registry)
    is_raw, encoding, rate = read_format(one)
    languages, is_multi = read_language_hints(one, many)
    end_ms = one.get("utterance_end_ms")
    return DeepgramParams(
        model=registry.resolve(model),
        languages=languages,
        is_multi=is_multi,
        terms=read_terms(many),
        is_punctuated=flag("punctuate", one) or flag("smart_format", one),
        has_speakers=read_diarize(one),
        encoding=encoding,
        sample_rate=rate,
        is_raw=is_raw,
        interim_results=flag("interim_results", one),
        vad_events=flag("vad_events", one),
        pause_ms=read_pause(one.get("endpointing")),
        utterance_end_ms=None if end_ms is None else number_of("utterance_end_ms", end_ms, *UTTERANCE_END_MS),
        ignored=registry.ignored(model, ignored),
    )


def recording_params(query: Iterable[tuple[str, str]], registry: ModelRegistry) -> DeepgramParams:
    """Read the address of a request.

    Raises: ApiError 400, and 404 for a model that is not there.
    """
    one, many, ignored = read_query(query, (*OF_BOTH, *OF_RECORDINGS))
    model = read_model(one, registry)
    languages, is_multi = read_language_hints(one, many)
    if one.get("detect_language"):
        languages = read_detected(one, many)
    is_raw, encoding, rate = read_format(one)
    paragraphs = flag("paragraphs", one)
    split = one.get("utt_split", DEFAULT_SPLIT_S)
    return DeepgramParams(
        model=registry.resolve(model),
        languages=languages,
        is_multi=is_multi,
        terms=read_terms(many),
        is_punctuated=paragraphs or flag("punctuate", one) or flag("smart_format", one),
        has_speakers=read_diarize(one),
        encoding=encoding,
        sample_rate=rate,
        is_raw=is_raw,
        utterances=flag("utterances", one),
        utt_split_s=number_of("utt_split", split, *UTT_SPLIT_S),
        paragraphs=paragraphs,
        ignored=registry.ignored(model, ignored),
    )


def read_model(one: Mapping[str, str], registry: ModelRegistry) -> str | None:
    """Read the id of a model.

    Deepgram has a model `base` that is not Whisper's. On a server without a `base` it means the default
    model, as ids of other programs do whose weights are not on the server.
    """
    given = one.get("model")
    if given is None or given.lower() != "base" or resolve_model_id(given, registry.settings) is not None:
        return given
    return "whisper-base"


def read_format(one: Mapping[str, str]) -> tuple[bool, str, int]:
    """Read whether audio is without a header, and its encoding and rate if so. Raises: ApiError 400."""
    is_container = one.get("encoding", CONTAINER) == CONTAINER
    if not is_container:
        return True, *read_encoding(one)
    if "sample_rate" in one and "encoding" not in one:
        raise wrong("sample_rate", "an encoding beside it", "none")
    return False, "s16le", SAMPLE_RATE


def read_encoding(one: Mapping[str, str]) -> tuple[str, int]:
    """Read the encoding and sample rate of audio without a header. Raises: ApiError 400."""
    encoding = one.get("encoding")
    if encoding not in ENCODINGS:
        raise wrong("encoding", f"one of {', '.join(ENCODINGS)}", f"'{(encoding or 'none')[:50]}'")
    if one.get("channels", "1") != "1":
        raise wrong("channels", "1", f"'{one['channels'][:50]}'")
    rate = read_whole("sample_rate", one.get("sample_rate", "8000" if encoding != "linear16" else "16000"))
    try:
        PcmReader(ENCODINGS[encoding], rate)
    except OptionError as error:
        raise ApiError(str(error), param="sample_rate", code="invalid_value") from error
    return ENCODINGS[encoding], rate


def read_detected(one: Mapping[str, str], many: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Read the languages among which that of a recording is found; empty: all. Raises: ApiError 400."""
    wanted, named = many["detect_language"], one.get("language", "multi")
    is_plain = len(wanted) == 1 and wanted[0].lower() in ("true", "false", "1", "0")
    if is_plain and not read_flag("detect_language", wanted[0]):
        return read_language_hints(one, many)[0]
    if named != "multi":
        raise wrong("detect_language", "no language beside it", f"'{named[:50]}'")
    if is_plain:
        return read_language_hints(one, many)[0]
    return tuple(dict.fromkeys(read_code("detect_language", tag) for tag in wanted))


def read_query(
    query: Iterable[tuple[str, str]], known: Sequence[str]
) -> tuple[Mapping[str, str], Mapping[str, Sequence[str]], tuple[str, ...]]:
    """Return the last value of every parameter, all of them, and the names of those without effect.

    Which diarizer tells speakers apart, `diarize_model` does not choose here.
    Raises: ApiError 400 for `REFUSED` ones.
    """
    many: dict[str, list[str]] = {}
    for name, value in query:
        many.setdefault(name, []).append(value)
    asked = [name for name, values in many.items() if any(value.lower() not in OFF for value in values)]
    for name in asked:
        if name in REFUSED:
            raise ApiError(f"{name}: not done here", param=name, code="unsupported_value")
    ignored = (name for name in asked if name not in (*known, *WITHOUT_EFFECT) or name == "diarize_model")
    return {name: values[-1] for name, values in many.items()}, many, tuple(ignored)


def flag(name: str, one: Mapping[str, str]) -> bool:
    """Read true or false; false where it is not given. Raises: ApiError 400."""
    return read_flag(name, one.get(name, "false"))


def read_diarize(one: Mapping[str, str]) -> bool:
    """Read whether to tell speakers apart: the choice of a diarizer asks for it too. Raises: ApiError 400."""
    return flag("diarize", one) or one.get("diarize_model", "").lower() not in OFF


def read_language_hints(
    one: Mapping[str, str], many: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], bool]:
    """Read the languages that may be spoken, and whether they may change. Raises: ApiError 400."""
    named, hints = one.get("language"), many.get("language_hint", ())
    if named and named != "multi":
        return (read_code("language", named),), False
    return tuple(dict.fromkeys(read_code("language_hint", hint) for hint in hints)), named == "multi"


def read_terms(many: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Read words likely to be said; keywords without the weights behind them. Raises: ApiError 400."""
    terms = [*many.get("keyterm", ()), *(word.partition(":")[0] for word in many.get("keywords", ()))]
    return checked_terms([term.strip() for term in terms if term.strip()])


def checked_terms(terms: Sequence[str]) -> tuple[str, ...]:
    """Check terms. Raises: ApiError 400 for too many."""
    if len(terms) > MAX_TERMS or sum(map(len, terms)) > MAX_CHARACTERS:
        raise wrong(
            "keyterm", f"at most {MAX_TERMS} terms of {MAX_CHARACTERS} characters in all", f"{len(terms)}"
        )
    return tuple(terms)


def read_pause(text: str | None) -> float | None:
    """Read the pause that ends speech, in ms; None where none does. Raises: ApiError 400."""
    if text is None or text.lower() == "true":
        return DEFAULT_PAUSE_MS
    if text.lower() == "false":
        return None
    return max(PAUSE_MS[0], number_of("endpointing", text, 0.0, PAUSE_MS[1]))
