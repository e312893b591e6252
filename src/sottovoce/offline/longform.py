"""From a recording to segments, one after the other, in memory that does not grow with its length.

The loops are elsewhere: windows after each other in `seek`, windows of speech in `batched`. What changes
segments on their way is put around them here.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from sottovoce.audio.io import AudioSource
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechModel
from sottovoce.backends.base import Backend
from sottovoce.decoding.search import Fusion
from sottovoce.errors import OptionError
from sottovoce.offline.batched import transcribe_speech
from sottovoce.offline.channels import channels_apart
from sottovoce.offline.excerpt import moved
from sottovoce.offline.resume import ResumePoint, SpeechPlace
from sottovoce.offline.second_model import transcribe_with_both
from sottovoce.offline.seek import transcribe_seeking
from sottovoce.offline.segment_generator import SegmentGenerator, next_segment
from sottovoce.offline.speaking import by_turn_tokens, with_names, with_speakers
from sottovoce.offline.style import in_style
from sottovoce.offline.transcriber import SecondModel, Transcriber, TranscriptionState
from sottovoce.offline.transcription import FileTranscription, RunControl
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.speakers.channel_diarizer import ChannelDiarizer
from sottovoce.speakers.choose import make_diarizer
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Word

_Timed = TypeVar("_Timed", Segment, Word)

SHORTEST_PART_S = 0.5
"""Of a segment on one side of missing sound: less of it holds no word, as time stamps are not exact."""


def open_recording(source: AudioSource, sample_rate: int, options: TranscribeOptions) -> Recording:
    """Open a recording with the filter and the track of the options.

    Raises: AudioError when a pipe cannot be read.
    """
    return Recording(
        source,
        sample_rate=sample_rate,
        audio_filter=options.audio_filter,
        audio_track=options.audio_track,
        input_format=options.input_format,
    )


def transcriber_for(
    backend: Backend,
    tokenizer: Tokenizer,
    options: TranscribeOptions,
    fusion: Fusion[Tensor] | None,
    second: SecondModel | None = None,
) -> Transcriber:
    """Put a model and the options of a transcription together.

    fusion: over arrays (n,) of the tokens of rows; language models beside the beam search, and beside the
    draws at temperatures above 0. second: reads what this model is not sure of.
    Raises: OptionError for a language or task that the model does not have, fusion without beam search, or
        clips beside a second model.
    """
    if fusion is not None and options.decoding.beam_size is None:
        raise OptionError("language model fusion: needs beam search, got no beam_size")
    most = backend.dims.n_audio_ctx
    if options.audio_ctx is not None and options.audio_ctx > most:
        raise OptionError(f"audio_ctx: expected at most {most}, the model's, got {options.audio_ctx}")
    transcriber = Transcriber(backend, tokenizer, options, fusion, second)
    transcriber.tokenizer_of(transcriber.fixed_language or "en")
    if second is not None:
        _check_second(second, transcriber)
    return transcriber


def _check_second(second: SecondModel, first: Transcriber) -> None:
    """Raises: OptionError for what a second model cannot read."""
    if first.options.clip_timestamps:
        raise OptionError("clip_timestamps: cannot be combined with a second model")
    if not second.tokenizer.is_multilingual and first.fixed_language != "en":
        raise OptionError("second model: reads English alone; expected language 'en'")


def transcription_of(
    transcriber: Transcriber,
    recording: Recording,
    control: RunControl | None = None,
    *,
    model: str = "",
    speech_model: SpeechModel | None = None,
    resume: ResumePoint | None = None,
    keeps_open: bool = False,
) -> FileTranscription:
    """Begin a transcription, or resume it; its calls are done while segments are requested.

    model: its name, for the transcript. speech_model: for mode "vad", Silero when None. resume: begin there,
    as a transcription with the same recording, model and options left it. keeps_open: whether the recording
    is left open at the end.

    Raises: OptionError for a resume point of another mode, or where speakers are told apart; AudioError,
        while iterating, when the recording cannot be read.
    """
    state = _state_at(transcriber, resume)
    return FileTranscription(
        transcriber,
        _excerpt(transcriber, recording, state, speech_model, resume),
        state,
        control or RunControl(),
        model=model,
        recording=None if keeps_open else recording,
    )


def outside_silences(segments: SegmentGenerator, recording: Recording) -> SegmentGenerator:
    """Yield segments, and words, that neither begin nor end in the silence around missing sound, nor reach
    across it by less than half a second; words do not reach across it at all.
    """
    with closing(segments):
        while (segment := (yield from next_segment(segments))) is not None:
            silences = recording.silences()
            for start, end in [one for one in silences if one[0] < segment.end and segment.start < one[1]]:
                words = segment.words and tuple(_outside(word, start, end) for word in segment.words)
                segment = replace(_outside(segment, start, end), words=words)
            yield segment


def _outside(one: _Timed, silence_start: float, silence_end: float) -> _Timed:
    if one.end <= silence_start or silence_end <= one.start:
        return one
    before_s, after_s = silence_start - one.start, one.end - silence_end
    longest_s = math.inf if isinstance(one, Word) else SHORTEST_PART_S
    if min(before_s, after_s) >= longest_s or max(before_s, after_s) <= 0:
        return one
    if before_s < after_s:
        return replace(one, start=round(silence_end, 3))
    return replace(one, end=round(silence_start, 3))


def _excerpt(
    transcriber: Transcriber,
    recording: Recording,
    state: TranscriptionState,
    speech_model: SpeechModel | None,
    resume: ResumePoint | None,
) -> SegmentGenerator:
    """The segments of the part of a recording that was asked for."""
    if not transcriber.options.is_part:
        return _named(transcriber, recording, state, speech_model, resume)
    start_s, duration_s = transcriber.options.offset_s, transcriber.options.duration_s
    whole = replace(transcriber, options=replace(transcriber.options, offset_s=0.0, duration_s=None))
    part, own = recording.part(start_s, duration_s), _state_at(transcriber, resume)
    segments = _named(whole, part, own, speech_model, resume)
    return moved(segments, start_s, part=part, own=own, state=state)


def _state_at(transcriber: Transcriber, resume: ResumePoint | None) -> TranscriptionState:
    """How far a transcription is where it begins."""
    state = TranscriptionState(language=transcriber.fixed_language)
    if resume is None:
        return state
    if (transcriber.second is None) != (resume.draft is None):
        expected = "no second model" if resume.draft is None else "a second model"
        raise OptionError(f"resume: expected {expected}, as where it was left")
    if not transcriber.options.is_resumable:
        raise OptionError("resume: expected neither speakers nor channels, which are told apart anew")
    mode = "vad" if isinstance(resume.place, SpeechPlace) else "seek"
    if mode != transcriber.options.mode:
        raise OptionError(f"resume: is of mode '{mode}', got mode '{transcriber.options.mode}'")
    state.restore(resume)
    return state


def _named(
    transcriber: Transcriber,
    recording: Recording,
    state: TranscriptionState,
    speech_model: SpeechModel | None,
    resume: ResumePoint | None,
) -> SegmentGenerator:
    """The segments of a recording, all of it."""
    names = transcriber.options.speaker_names
    if not names:
        return _unnamed(transcriber, recording, state, speech_model, resume)
    own = TranscriptionState(language=state.language)
    return with_names(_unnamed(transcriber, recording, own, speech_model, resume), names, own, state)


def _unnamed(
    transcriber: Transcriber,
    recording: Recording,
    state: TranscriptionState,
    speech_model: SpeechModel | None,
    resume: ResumePoint | None,
) -> SegmentGenerator:
    """The segments of a recording whose speakers have letters."""

    def by_one(
        model: Transcriber, one: Recording, own: TranscriptionState, resume: ResumePoint | None
    ) -> SegmentGenerator:
        if model.options.mode == "vad":
            segments = transcribe_speech(model, one, own, speech_model, resume=resume)
        else:
            segments = transcribe_seeking(model, one, own, speech_model, resume=resume)
        return outside_silences(segments, one)

    def begin(one: Recording, own: TranscriptionState) -> SegmentGenerator:
        if transcriber.second is None:
            return by_one(transcriber, one, own, resume)
        return transcribe_with_both(transcriber, transcriber.second, one, own, by_one, resume=resume)

    if transcriber.options.channels == "apart":
        return in_style(channels_apart(recording, state, begin), transcriber.options, state)
    segments = begin(recording, state)
    if transcriber.options.decoding.speaker_turns:
        segments = by_turn_tokens(segments, transcriber.tokenizer, state)
    if transcriber.options.channels == "energy":
        segments = with_speakers(segments, ChannelDiarizer(), recording, state)
    if transcriber.options.speakers is not None:
        segments = with_speakers(segments, make_diarizer(transcriber.options.speakers), recording, state)
    return in_style(segments, transcriber.options, state)
