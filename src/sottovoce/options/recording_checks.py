"""What options of a recording exclude each other, and what no range says."""

from __future__ import annotations

import math
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING

from sottovoce.errors import OptionError
from sottovoce.options.speakers import check_speaker_names
from sottovoce.options.vad import VadOptions
from sottovoce.text.disfluency import check_cleanable

if TYPE_CHECKING:
    from sottovoce.options.transcribe import TranscribeOptions

_FILTERS = "sottovoce.audio.ffmpeg_filters"
"""Imported where a filter is asked for: it needs FFmpeg, which options are quick without."""


def check_parts(options: TranscribeOptions) -> None:
    """Check what lies beside the ranges. Raises: OptionError."""
    if options.follow_languages is True and options.decoding.language is not None:
        raise OptionError(f"follow_languages: expected no language, got '{options.decoding.language}'")
    if options.decoding.prompt is not None:
        raise OptionError("prompt: use initial_prompt for a recording")
    _check_clips(options)
    _check_channels(options)
    if options.clean and options.decoding.language is not None and options.decoding.task == "transcribe":
        check_cleanable(options.decoding.language)
    if options.audio_filter is not None:
        import_module(_FILTERS).AudioFilter(options.audio_filter)


def check_vad(options: TranscribeOptions) -> None:
    """Check how speech is found, before any range. Raises: OptionError."""
    if options.vad is not None and not isinstance(options.vad, VadOptions):
        names = ", ".join(one.name for one in fields(VadOptions))
        raise OptionError(f"vad: expected VadOptions, whose fields are {names}, got {options.vad!r}")
    if options.vad is not None and options.mode == "seek":
        raise OptionError("vad options: need mode 'vad', got 'seek'")


def _check_clips(options: TranscribeOptions) -> None:
    times = options.clip_timestamps
    if not all(0 <= time < math.inf for time in times) or list(times) != sorted(times):
        raise OptionError(f"clip_timestamps: expected ascending seconds, got {times}")
    if times and options.mode == "vad":
        raise OptionError("clip_timestamps: need mode 'seek', got 'vad'")
    if times and (options.offset_s or options.duration_s is not None):
        raise OptionError("clip_timestamps: cannot be combined with offset_s or duration_s")


def _check_channels(options: TranscribeOptions) -> None:
    if options.speaker_names:
        check_speaker_names(options.speaker_names, options.speakers)
        if options.speakers is None and options.channels == "mixed":
            raise OptionError("speaker_names: need speakers or channels")
    if options.channels != "mixed" and options.speakers is not None:
        raise OptionError(f"channels '{options.channels}': say who speaks; expected no speakers beside")
    if options.decoding.speaker_turns and (options.channels != "mixed" or options.speakers is not None):
        raise OptionError("speaker_turns: expected neither speakers nor channels beside")
    if options.channels == "apart" and options.mode == "seek":
        raise OptionError("channels 'apart': need mode 'vad', since each is silent half of the time")
