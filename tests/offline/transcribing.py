"""A recording transcribed by any backend, without a model around it."""

from __future__ import annotations

from torch import Tensor

from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechModel
from sottovoce.backends.base import Backend
from sottovoce.decoding.search import Fusion
from sottovoce.offline.longform import transcriber_for, transcription_of
from sottovoce.offline.resume import ResumePoint
from sottovoce.offline.transcription import FileTranscription, RunControl
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.tokenizer import Tokenizer


def transcribe(
    backend: Backend,
    tokenizer: Tokenizer,
    recording: Recording,
    options: TranscribeOptions,
    *,
    speech_model: SpeechModel | None = None,
    fusion: Fusion[Tensor] | None = None,
    control: RunControl | None = None,
    resume: ResumePoint | None = None,
) -> FileTranscription:
    transcriber = transcriber_for(backend, tokenizer, options, fusion)
    return transcription_of(transcriber, recording, control, speech_model=speech_model, resume=resume)
