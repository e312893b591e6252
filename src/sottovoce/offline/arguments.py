"""The arguments of a call that transcribes, put into its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.languages import LanguageChoice
from sottovoce.types import Task


def with_arguments(
    options: TranscribeOptions,
    codes: Sequence[str],
    language: str | Sequence[str] | None,
    task: Task | None,
    word_timestamps: bool | None,
    beam_size: int | None,
) -> TranscribeOptions:
    """Put arguments into options; None leaves what the options say.

    codes: of the model's languages; none for an English-only model. language: one, several or "auto"; "auto"
    and several are followed as they change where the options do not say whether. beam_size: 1 is greedy.
    Raises: OptionError for a language that is not among them.
    """
    decoding = options.decoding
    follow = options.follow_languages
    if language is not None or decoding.language is None:
        choice = LanguageChoice.parse(language or decoding.allowed_languages or "auto", codes or ("en",))
        decoding = _with_language(decoding, choice, codes)
        if follow is None:
            follow = True if len(choice.allowed) > 1 else "auto"
    if task is not None:
        decoding = replace(decoding, task=task)
    if beam_size is not None:
        decoding = replace(decoding, beam_size=beam_size if beam_size > 1 else None)
    if word_timestamps is None:
        word_timestamps = options.word_timestamps
    return replace(options, decoding=decoding, word_timestamps=word_timestamps, follow_languages=follow)


def _with_language(
    decoding: DecodingOptions, choice: LanguageChoice, codes: Sequence[str]
) -> DecodingOptions:
    if not codes:
        return replace(decoding, language="en", allowed_languages=())
    allowed = () if choice.fixed else choice.allowed or tuple(codes)
    return replace(decoding, language=choice.fixed, allowed_languages=allowed)
