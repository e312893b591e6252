"""Transcription of one recording in constant memory, or of several whose windows share batches.

The decoding loops are in `seek` (consecutive windows) and `batched` (windows of speech); this module adds
the stages that change segments.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from threading import Event
from typing import TypeAlias, TypeVar

from torch import Tensor

from sottovoce.audio.io import AudioSource
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechModel
from sottovoce.decoding.search import Fusion
from sottovoce.engine.batching import Batching, BatchingRuntime, Priority
from sottovoce.engine.runtime import Runtime
from sottovoce.errors import OptionError, SottovoceError
from sottovoce.offline.batched import transcribe_speech
from sottovoce.offline.resume import ResumePoint, SpeechPlace
from sottovoce.offline.second_model import transcribe_with_both
from sottovoce.offline.seek import transcribe_seeking
from sottovoce.offline.speaking import by_turn_tokens, channels_apart, with_speakers
from sottovoce.offline.style import in_style
from sottovoce.offline.transcriber import SecondModel, Segments, Transcriber, TranscriptionState
from sottovoce.offline.transcription import FileTranscription, ObserveRuntime, RunControl
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.speakers.channel_diarizer import ChannelDiarizer
from sottovoce.speakers.choose import make_diarizer
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Transcript, Word

_Timed = TypeVar("_Timed", Segment, Word)

SHORTEST_PART_S = 0.5
"""A shorter rest of a segment next to missing sound holds no word, as timestamps are inexact."""


def open_recording(source: AudioSource, sample_rate: int, options: TranscribeOptions) -> Recording:
    return Recording(
        source,
        sample_rate=sample_rate,
        audio_filter=options.audio_filter,
        audio_track=options.audio_track,
        input_format=options.input_format,
    )


def transcriber_for(
    runtime: Runtime,
    tokenizer: Tokenizer,
    options: TranscribeOptions,
    fusion: Fusion[Tensor] | None,
    second: SecondModel | None = None,
) -> Transcriber:
    """Make the transcriber of a model and options.

    fusion: language models for the beam search and for sampling, over token arrays (n,). second: a model
    for the segments of which this one is uncertain.

    Raises:
        OptionError: the model lacks the language or task, fusion without beam search, or clips together
            with a second model.
    """
    if fusion is not None and options.decoding.beam_size is None:
        raise OptionError("language model fusion: needs beam search, got no beam_size")
    most = runtime.backend.dims.n_audio_ctx
    if options.audio_ctx is not None and options.audio_ctx > most:
        raise OptionError(f"audio_ctx: expected at most {most}, the model's, got {options.audio_ctx}")
    transcriber = Transcriber(runtime, tokenizer, options, fusion, second)
    transcriber.tokenizer_of(transcriber.fixed_language or "en")
    if second is not None and options.clip_timestamps:
        raise OptionError("clip_timestamps: cannot be combined with a second model")
    if second is not None and not second.tokenizer.is_multilingual and transcriber.fixed_language != "en":
        raise OptionError("second model: reads English alone; expected language 'en'")
    return transcriber


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
    """Begin or resume a transcription; segments are computed while they are requested.

    model: its name, for the transcript. speech_model: for mode "vad", Silero if None. resume: of the same
    recording, model and options. keeps_open: leave the recording open at the end.

    Raises:
        OptionError: a resume point of another mode, or with diarization.
        AudioError: while iterating, if the recording cannot be read.
    """
    options, state = transcriber.options, _state_at(transcriber, resume)
    part = recording.part(options.offset_s, options.duration_s) if options.is_part else None

    def begin(observe: ObserveRuntime) -> Segments:
        second = transcriber.second
        observed = replace(
            transcriber,
            runtime=observe(transcriber.runtime),
            second=None if second is None else replace(second, runtime=observe(second.runtime)),
            options=replace(options, offset_s=0.0, duration_s=None),
        )
        return _segments(observed, part or recording, state, speech_model, resume)

    return FileTranscription(
        transcriber,
        begin,
        state,
        control or RunControl(),
        model=model,
        recording=None if keeps_open else recording,
        part=part,
        start_s=options.offset_s,
        names=options.speaker_names,
    )


def outside_silences(segments: Iterator[Segment], recording: Recording) -> Segments:
    """Cut segments and words at missing sound: words never reach across it, segments only across gaps
    below 0.5 s.
    """
    for segment in segments:
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


def _state_at(transcriber: Transcriber, resume: ResumePoint | None) -> TranscriptionState:
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


def _segments(
    transcriber: Transcriber,
    recording: Recording,
    state: TranscriptionState,
    speech_model: SpeechModel | None,
    resume: ResumePoint | None,
) -> Segments:
    options, runtime = transcriber.options, transcriber.runtime

    def by_one(
        model: Transcriber, one: Recording, own: TranscriptionState, resume: ResumePoint | None
    ) -> Segments:
        if model.options.mode == "vad":
            segments = transcribe_speech(model, one, own, speech_model, resume=resume)
        else:
            segments = transcribe_seeking(model, one, own, speech_model, resume=resume)
        return outside_silences(segments, one)

    def begin(one: Recording, own: TranscriptionState) -> Segments:
        if transcriber.second is None:
            return by_one(transcriber, one, own, resume)
        return transcribe_with_both(transcriber, transcriber.second, one, own, by_one, resume=resume)

    if options.channels == "apart":
        return in_style(channels_apart(recording, state, begin), options, state)
    segments = begin(recording, state)
    if options.decoding.speaker_turns:
        segments = by_turn_tokens(segments, transcriber.tokenizer, state)
    if options.channels == "energy":
        segments = with_speakers(runtime, segments, ChannelDiarizer(), recording, state)
    if options.speakers is not None:
        segments = with_speakers(runtime, segments, make_diarizer(options.speakers), recording, state)
    return in_style(segments, options, state)


Source = TypeVar("Source")
Outcome: TypeAlias = Transcript | Exception

AHEAD = 4
"""Batches of finished recordings that may wait for an earlier one."""
FAILURES = (SottovoceError, MemoryError, RuntimeError)
"""Errors of one recording that leave the others running; PyTorch raises RuntimeError when out of memory."""


def transcribe_batch(
    transcriber: Transcriber,
    sources: Iterable[Source],
    open_source: Callable[[Source], Recording],
    *,
    batch_size: int,
    model: str,
) -> Iterator[tuple[Source, Outcome]]:
    """Transcribe recordings, batch_size at a time, and yield transcripts in input order.

    open_source: opens a source. model: its name, for the transcripts. A failed recording yields its error.
    """
    limits = Batching(files=batch_size, encodes_files_together=True)
    runtime = BatchingRuntime(transcriber.backend, limits, waits_for_all=True)
    stopped = Event()

    def transcribe(source: Source) -> Transcript:
        with runtime.caller(Priority.FILE) as caller:
            own, control = replace(transcriber, runtime=caller), RunControl(abort=stopped.is_set)
            with transcription_of(own, open_source(source), control, model=model) as transcription:
                return transcription.collect()

    waiting = iter(sources)
    runs: deque[tuple[Source, Future[Transcript]]] = deque()  # all from the first that was not yielded yet
    pool = ThreadPoolExecutor(batch_size)
    try:
        while True:
            while runs and runs[0][1].done():
                source, run = runs.popleft()
                yield source, _outcome(run)
            open_runs = [run for _, run in runs if not run.done()]
            room = min(batch_size - len(open_runs), AHEAD * batch_size - len(runs))
            new = list(islice(waiting, room))
            runs.extend((source, pool.submit(transcribe, source)) for source in new)
            if not runs:
                return
            if not new:
                wait(open_runs, return_when=FIRST_COMPLETED)
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
        runtime.close()
        runtime.join()


def _outcome(run: Future[Transcript]) -> Outcome:
    error = run.exception()
    if error is None:
        return run.result()
    if isinstance(error, FAILURES):
        return error
    raise error
