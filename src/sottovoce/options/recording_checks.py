"""What options of a recording exclude each other, and what no range says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module

from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.speakers import Diarizer, SpeakerOptions, check_speaker_names
from sottovoce.options.vad import VadOptions
from sottovoce.text.disfluency import check_cleanable

_FILTERS = "sottovoce.audio.io"
"""Imported where a filter is asked for: it needs FFmpeg, which options are quick without."""


def check_decoding(decoding: DecodingOptions, *, follows: bool, clean: bool) -> None:
    """Check how windows of a recording are decoded. follows: changes of language. clean: without fillers.

    Raises: OptionError.
    """
    if decoding.prompt is not None:
        raise OptionError("prompt: use initial_prompt for a recording")
    if follows and decoding.language is not None:
        raise OptionError(f"follow_languages: expected no language, got '{decoding.language}'")
    if clean and decoding.language is not None and decoding.task == "transcribe":
        check_cleanable(decoding.language)


def check_vad(vad: object, mode: str) -> None:
    """Check how speech is found, before any range. Raises: OptionError."""
    if vad is not None and not isinstance(vad, VadOptions):
        names = ", ".join(one.name for one in fields(VadOptions))
        raise OptionError(f"vad: expected VadOptions, whose fields are {names}, got {vad!r}")
    if vad is not None and mode == "seek":
        raise OptionError("vad options: need mode 'vad', got 'seek'")


def check_clips(times: Sequence[float], mode: str, *, is_part: bool) -> None:
    """Check the seconds between which to read. is_part: of a part of the recording. Raises: OptionError."""
    if not all(0 <= time < math.inf for time in times) or list(times) != sorted(times):
        raise OptionError(f"clip_timestamps: expected ascending seconds, got {times}")
    if times and mode == "vad":
        raise OptionError("clip_timestamps: need mode 'seek', got 'vad'")
    if times and is_part:
        raise OptionError("clip_timestamps: cannot be combined with offset_s or duration_s")


def check_speakers(
    channels: str,
    mode: str,
    *,
    speakers: SpeakerOptions | Diarizer | None,
    names: Sequence[str],
    marks_turns: bool,
) -> None:
    """Check who is told apart, and by what. names: of speakers. marks_turns: the model marks their turns.

    Raises: OptionError.
    """
    if names:
        check_speaker_names(names, speakers)
        if speakers is None and channels == "mixed":
            raise OptionError("speaker_names: need speakers or channels")
    if channels != "mixed" and speakers is not None:
        raise OptionError(f"channels '{channels}': say who speaks; expected no speakers beside")
    if marks_turns and (channels != "mixed" or speakers is not None):
        raise OptionError("speaker_turns: expected neither speakers nor channels beside")
    if channels == "apart" and mode == "seek":
        raise OptionError("channels 'apart': need mode 'vad', since each is silent half of the time")


def check_input_format(input_format: str | None) -> None:
    """Check the format of samples without a header. Raises: OptionError."""
    if input_format is not None:
        import_module("sottovoce.audio.input_format").read_input_format(input_format)


def check_filter(audio_filter: str | None) -> None:
    """Check a chain of FFmpeg's filters. Raises: OptionError."""
    if audio_filter is not None:
        import_module(_FILTERS).AudioFilter(audio_filter)
