"""From a recording to segments, one after the other, in memory that does not grow with its length.

`transcribe` is the door for one recording, `together` has that for several. The loops are elsewhere:
windows after each other in `seek`, windows of speech in `batched`. They say what the model has to do
(`work`), and it is done here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Event

from torch import Tensor

from sottovoce.audio.recording import Recording
from sottovoce.audio.silero import SpeechModel
from sottovoce.backends.base import Backend
from sottovoce.decoding.beam import Fusion
from sottovoce.decoding.detect import LanguageDetection
from sottovoce.errors import OptionError
from sottovoce.offline.batched import transcribe_speech
from sottovoce.offline.channels import channels_apart
from sottovoce.offline.engine import Engine, Progress
from sottovoce.offline.options import TranscribeOptions
from sottovoce.offline.seek import transcribe_seeking
from sottovoce.offline.speaking import by_turn_tokens, with_speakers
from sottovoce.offline.work import Listen, Step, Steps, perform
from sottovoce.speakers.channels import ChannelDiarizer
from sottovoce.speakers.choose import diarizer_of
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Turn


@dataclass(frozen=True, slots=True)
class Watch:
    """Who looks on while a recording is transcribed.

    on_progress: called with the seconds that are done and those of the recording (None while unknown), each
        time that they grow. abort: asked before every piece of work, at least once a window; True ends the
        transcription, as does setting `stopped` from anywhere. What was found so far stays.
    """

    on_progress: Callable[[float, float | None], None] | None = None
    abort: Callable[[], bool] | None = None
    stopped: Event = field(default_factory=Event)

    def is_over(self) -> bool:
        """Whether to stop here."""
        if self.abort is not None and self.abort():
            self.stopped.set()
        return self.stopped.is_set()


class Transcription(Iterator[Segment]):
    """The segments of a recording as they are found, and what is known of it so far."""

    def __init__(self, engine: Engine, steps: Steps, progress: Progress, watch: Watch) -> None:
        self.engine = engine
        self._steps = steps
        self._progress = progress
        self._watch = watch
        self._told_s = 0.0
        self._held: Step | None = None

    def prepare(self) -> bool:
        """Do a piece of what has to be heard before the first segment; whether there may be more."""
        if self._held is None:
            self._held = self.next_step()
            if isinstance(self._held, Listen):
                perform(self.engine, [self._held])
                self._held = None
                return True
        return False

    def __next__(self) -> Segment:
        while (step := self.next_step()) is not None:
            if isinstance(step, Segment):
                return step
            perform(self.engine, [step])
        raise StopIteration

    def next_step(self) -> Step | None:
        """The next segment, or work to be done before it is asked for again; None at the end."""
        if self._watch.is_over():
            return None
        if self._held is not None:
            held, self._held = self._held, None
            return held
        step = next(self._steps, None)
        if self._watch.on_progress is not None and self.position > self._told_s:
            self._told_s = self.position
            self._watch.on_progress(self.position, self.duration)
        return step

    def close(self) -> None:
        """Stop reading; what is known stays. Not while a step is being made."""
        self._steps.close()

    @property
    def language(self) -> str | None:
        """Code of the language being spoken; known when the first segment is, if not given."""
        return self._progress.language

    @property
    def detection(self) -> LanguageDetection | None:
        """What named the first language; None when it was given or is not known yet."""
        return self._progress.detection

    @property
    def language_probability(self) -> float | None:
        """Of the detected language among those allowed; None when it was given or is not known yet."""
        return None if self.detection is None else self.detection.probability

    @property
    def language_probabilities(self) -> Mapping[str, float]:
        """Of every language of the model; empty when it was given or is not known yet."""
        return {} if self.detection is None else self.detection.probabilities

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Who speaks when; empty while that is not known, and where it was not asked for."""
        return self._progress.turns

    @property
    def duration(self) -> float | None:
        """Seconds of the recording: as the file declares, and exactly once its end was read."""
        return self._progress.duration

    @property
    def position(self) -> float:
        """Seconds that are transcribed."""
        return self._progress.position


def transcribe(
    backend: Backend,
    tokenizer: Tokenizer,
    recording: Recording,
    options: TranscribeOptions,
    *,
    speech_model: SpeechModel | None = None,
    fusion: Fusion[Tensor] | None = None,
    watch: Watch | None = None,
) -> Transcription:
    """Transcribe a recording; the work is done while the segments are asked for.

    tokenizer: of the model; language and task come from the options. recording: open until the last
    segment came. speech_model: for mode "vad", Silero when None. fusion: language models beside the beam
    search, and beside the draws at temperatures above 0.

    Raises: OptionError for a language or task that the model does not have, or fusion without beam search;
        AudioError, while iterating, when the recording cannot be read.
    """
    engine = engine_for(backend, tokenizer, options, fusion)
    return transcription_of(engine, recording, watch or Watch(), speech_model)


def engine_for(
    backend: Backend, tokenizer: Tokenizer, options: TranscribeOptions, fusion: Fusion[Tensor] | None
) -> Engine:
    """A model with what is asked of it.

    Raises: OptionError for what it cannot do, as `transcribe`.
    """
    if fusion is not None and options.decoding.beam_size is None:
        raise OptionError("language model fusion: needs beam search, got no beam_size")
    most = backend.dims.n_audio_ctx
    if options.audio_ctx is not None and options.audio_ctx > most:
        raise OptionError(f"audio_ctx: expected at most {most}, the model's, got {options.audio_ctx}")
    engine = Engine(backend, tokenizer, options, fusion)
    engine.tokenizer_of(engine.known_language or "en")
    return engine


def transcription_of(
    engine: Engine, recording: Recording, watch: Watch, speech_model: SpeechModel | None = None
) -> Transcription:
    """A recording at its beginning."""
    progress = Progress(language=engine.known_language)

    def begin(one: Recording, own: Progress) -> Steps:
        if engine.options.mode == "vad":
            return transcribe_speech(engine, one, own, speech_model)
        return transcribe_seeking(engine, one, own)

    if engine.options.channels == "apart":
        return Transcription(engine, channels_apart(recording, progress, begin), progress, watch)
    steps = begin(recording, progress)
    if engine.options.decoding.speaker_turns:
        steps = by_turn_tokens(steps, engine.tokenizer, progress)
    if engine.options.channels == "energy":
        steps = with_speakers(steps, ChannelDiarizer(), recording, progress)
    if engine.options.speakers is not None:
        steps = with_speakers(steps, diarizer_of(engine.options.speakers), recording, progress)
    return Transcription(engine, steps, progress, watch)
