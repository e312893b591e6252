"""What a client of Deepgram's API asks for in the address of `/v1/listen`, of streams and of recordings.

What would change the text in a way that is not done here is refused, never passed over. Knows no sockets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sottovoce.audio.vad_stream import VadStreamOptions
from sottovoce.errors import OptionError
from sottovoce.serving.faults import ApiError
from sottovoce.serving.fields import number_of, wrong
from sottovoce.serving.pcm import PcmReader
from sottovoce.serving.protocol import MOST_PROMPT, MOST_TERMS, flag_of, whole_of
from sottovoce.serving.scheduler import LiveOptions
from sottovoce.serving.shelf import Shelf
from sottovoce.text.languages import find_language
from sottovoce.types import SAMPLE_RATE

ENCODINGS = {"linear16": "s16le", "mulaw": "mulaw", "alaw": "alaw"}
"""By Deepgram's name."""
DEEPGRAM_MODELS = re.compile(r"(nova|enhanced|base|whisper)(-[a-z0-9-]{0,40})?")
"""Deepgram's own: they mean the server's model, where it offers none of that name."""
PAUSE_MS = (100.0, 5_000.0)
"""The shortest and longest `endpointing`; Deepgram's own default, 10 ms, would end speech in every word."""
USUAL_PAUSE_MS = 500.0
UTTERANCE_END_MS = (1_000.0, 5_000.0)

UTT_SPLIT_S = (0.1, 30.0)
USUAL_SPLIT_S = 0.8
"""Of pauses between utterances of a recording, as Deepgram has it."""

WITHOUT_EFFECT = ("version", "tag", "extra", "mip_opt_out", "no_delay")
"""Taken with any value: they do not change what is written here."""
OFF_ONLY = (
    *("dictation", "numerals", "profanity_filter", "multichannel", "detect_entities"),
    *("filler_words", "measurements", "summarize", "sentiment", "topics", "intents"),
)
"""Not done here: taken as false."""
OFF_IN_STREAMS = (*OFF_ONLY, "paragraphs")
REFUSED = (
    *("callback", "callback_method", "redact", "replace", "search", "diarize_model"),
    *("custom_topic", "custom_topic_mode", "custom_intent", "custom_intent_mode"),
)
"""Not done here, and never off."""
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
    "encoding",
    "sample_rate",
    "channels",
)


@dataclass(frozen=True, slots=True)
class ListenWish:
    """What is asked of a stream or a recording.

    languages: empty: any. is_multi: say the language of every word. pause_ms: that ends speech; None: no end
    of speech is told. utterance_end_ms: without words, until the end of an utterance is told.
    is_punctuated: as written, rather than words alone in lower case. has_speakers: say who says every word.
    is_raw: a recording is samples of this encoding and rate, without a header that says so. utt_split_s: the
    pause that parts utterances of a recording.
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
    pause_ms: float | None = USUAL_PAUSE_MS
    utterance_end_ms: float | None = None
    utterances: bool = False
    utt_split_s: float = USUAL_SPLIT_S
    paragraphs: bool = False
    is_raw: bool = False

    @property
    def options(self) -> LiveOptions:
        """As the library's session takes it."""
        pause_ms = self.pause_ms or USUAL_PAUSE_MS
        return LiveOptions(
            languages=self.languages,
            unstable=self.interim_results,
            terms=self.terms,
            speakers="auto" if self.has_speakers else "",
            vad=VadStreamOptions(hangover_ms=pause_ms, post_roll_ms=min(100.0, pause_ms)),
        )


def stream_wish(query: Iterable[tuple[str, str]], shelf: Shelf) -> ListenWish:
    """The wish of a socket's address.

    Raises: ApiError 400, and 404 for a model that is not there.
    """
    one, many = asked(query, (*OF_BOTH, *OF_STREAMS), OFF_IN_STREAMS)
    encoding, rate = audio_of(one)
    languages, is_multi = languages_of(one, many)
    end_ms = one.get("utterance_end_ms")
    return ListenWish(
        model=model_of(one.get("model"), shelf),
        languages=languages,
        is_multi=is_multi,
        terms=terms_of(many),
        is_punctuated=flag("punctuate", one) or flag("smart_format", one),
        has_speakers=flag("diarize", one),
        encoding=encoding,
        sample_rate=rate,
        interim_results=flag("interim_results", one),
        vad_events=flag("vad_events", one),
        pause_ms=pause_of(one.get("endpointing")),
        utterance_end_ms=None if end_ms is None else number_of("utterance_end_ms", end_ms, *UTTERANCE_END_MS),
    )


def recording_wish(query: Iterable[tuple[str, str]], shelf: Shelf) -> ListenWish:
    """The wish of a request's address.

    Raises: ApiError 400, and 404 for a model that is not there.
    """
    one, many = asked(query, (*OF_BOTH, *OF_RECORDINGS), OFF_ONLY)
    languages, is_multi = languages_of(one, many)
    if one.get("detect_language"):
        languages = detected_among(one, many)
    is_raw = "encoding" in one
    if not is_raw and "sample_rate" in one:
        raise wrong("sample_rate", "an encoding beside it", "none")
    encoding, rate = audio_of(one) if is_raw else ("s16le", SAMPLE_RATE)
    paragraphs = flag("paragraphs", one)
    split = one.get("utt_split", USUAL_SPLIT_S)
    return ListenWish(
        model=model_of(one.get("model"), shelf),
        languages=languages,
        is_multi=is_multi,
        terms=terms_of(many),
        is_punctuated=paragraphs or flag("punctuate", one) or flag("smart_format", one),
        has_speakers=flag("diarize", one),
        encoding=encoding,
        sample_rate=rate,
        is_raw=is_raw,
        utterances=flag("utterances", one),
        utt_split_s=number_of("utt_split", split, *UTT_SPLIT_S),
        paragraphs=paragraphs,
    )


def audio_of(one: Mapping[str, str]) -> tuple[str, int]:
    """Encoding and sample rate of audio without a header. Raises: ApiError 400."""
    encoding = one.get("encoding")
    if encoding not in ENCODINGS:
        raise wrong("encoding", f"one of {', '.join(ENCODINGS)}", f"'{(encoding or 'none')[:50]}'")
    if one.get("channels", "1") != "1":
        raise wrong("channels", "1", f"'{one['channels'][:50]}'")
    rate = whole_of("sample_rate", one.get("sample_rate", "8000" if encoding != "linear16" else "16000"))
    try:
        PcmReader(ENCODINGS[encoding], rate)
    except OptionError as error:
        raise ApiError(str(error), param="sample_rate", code="invalid_value") from error
    return ENCODINGS[encoding], rate


def detected_among(one: Mapping[str, str], many: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Languages among which that of a recording is found; empty: all. Raises: ApiError 400."""
    wanted, named = many["detect_language"], one.get("language", "multi")
    is_plain = len(wanted) == 1 and wanted[0].lower() in ("true", "false", "1", "0")
    if is_plain and not flag_of("detect_language", wanted[0]):
        return languages_of(one, many)[0]
    if named != "multi":
        raise wrong("detect_language", "no language beside it", f"'{named[:50]}'")
    if is_plain:
        return languages_of(one, many)[0]
    return tuple(dict.fromkeys(code_of("detect_language", tag) for tag in wanted))


def asked(
    query: Iterable[tuple[str, str]], known: Sequence[str], off: Sequence[str]
) -> tuple[Mapping[str, str], Mapping[str, Sequence[str]]]:
    """The last value of every parameter, and all of them. off: those that may only be false.

    Raises: ApiError 400 for what is unknown or not done here.
    """
    many: dict[str, list[str]] = {}
    for name, value in query:
        many.setdefault(name, []).append(value)
    for name, values in many.items():
        if name in REFUSED or (name in off and any(flag_of(name, value) for value in values)):
            raise ApiError(f"{name}: not done here", param=name, code="unsupported_value")
        if name not in (*known, *off, *WITHOUT_EFFECT):
            raise wrong(name[:50], f"one of {', '.join(known)}", "an unknown parameter")
    return {name: values[-1] for name, values in many.items()}, many


def flag(name: str, one: Mapping[str, str]) -> bool:
    """True or false; false where it is not given. Raises: ApiError 400."""
    return flag_of(name, one.get(name, "false"))


def model_of(name: str | None, shelf: Shelf) -> str:
    """The model that a name means. Raises: ApiError 404."""
    known = (*shelf.offer.names, *shelf.offer.all_aliases)
    is_theirs = name is not None and name not in known and DEEPGRAM_MODELS.fullmatch(name)
    return shelf.name_of(None if is_theirs else name)


def languages_of(one: Mapping[str, str], many: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], bool]:
    """The languages that may be spoken, and whether they may change. Raises: ApiError 400."""
    named, hints = one.get("language"), many.get("language_hint", ())
    if named and named != "multi":
        return (code_of("language", named),), False
    return tuple(dict.fromkeys(code_of("language_hint", hint) for hint in hints)), named == "multi"


def code_of(name: str, tag: str) -> str:
    """The language of a tag such as en-US. Raises: ApiError 400."""
    try:
        return find_language(tag[:50].replace("_", "-").partition("-")[0])
    except OptionError as error:
        raise ApiError(str(error), param=name, code="invalid_value") from error


def terms_of(many: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Words likely to be said; keywords without the weights behind them. Raises: ApiError 400."""
    terms = [*many.get("keyterm", ()), *(word.partition(":")[0] for word in many.get("keywords", ()))]
    return checked_terms([term.strip() for term in terms if term.strip()])


def checked_terms(terms: Sequence[str]) -> tuple[str, ...]:
    """Raises: ApiError 400 for too many."""
    if len(terms) > MOST_TERMS or sum(map(len, terms)) > MOST_PROMPT:
        raise wrong(
            "keyterm", f"at most {MOST_TERMS} terms of {MOST_PROMPT} characters in all", f"{len(terms)}"
        )
    return tuple(terms)


def pause_of(text: str | None) -> float | None:
    """The pause that ends speech; None where none does. Raises: ApiError 400."""
    if text is None or text.lower() == "true":
        return USUAL_PAUSE_MS
    if text.lower() == "false":
        return None
    return max(PAUSE_MS[0], number_of("endpointing", text, 0.0, PAUSE_MS[1]))
