"""The interface of a loaded model: Whisper (`api.Model`) or a CTC network (`network_model.CtcModel`).

A CTC network refuses what only Whisper does. Methods import the packages of their task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from sottovoce.audio.io import Recording, check_is_there, check_reading
from sottovoce.errors import AudioError, OptionError
from sottovoce.offline.pipeline import LanguageSpan, language_spans, recording_language
from sottovoce.offline.resume import ResumePoint
from sottovoce.offline.transcriber import Arguments, RecordingTranscriber, SecondModel
from sottovoce.offline.transcription import (
    FileTranscription,
    RunControl,
    TogetherTranscription,
    UtteranceTranscription,
    transcribe_batch,
)
from sottovoce.options.decoding import DeferralOptions
from sottovoce.options.schema import check_kind, present
from sottovoce.options.transcribe import AlignOptions, Speakers, TranscribeOptions, parse_speakers
from sottovoce.runtime.calls import Runtime
from sottovoce.types import SAMPLE_RATE, Task, Transcript

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from sottovoce.alignment import Match, TextAligner
    from sottovoce.audio.io import AudioSource
    from sottovoce.ctc.decoder import CtcDecoder
    from sottovoce.ctc.network import AcousticModel
    from sottovoce.decoding.decode import LanguageDetection
    from sottovoce.lm.boosting import Hotwords
    from sottovoce.lm.fusion import ShallowFusion
    from sottovoce.lm.grammar import Grammar
    from sottovoce.models.dims import EncoderMode
    from sottovoce.offline.transcriber import Transcriber
    from sottovoce.options.decoding import VadStreamOptions
    from sottovoce.speakers.live_speakers import LiveSpeakers
    from sottovoce.streaming.live_session import LiveSession
    from sottovoce.streaming.options import Captions, Finals, LiveOptions, StreamOptions, Switching
    from sottovoce.streaming.second_pass import SecondPass
    from sottovoce.streaming.sources import SourcesSession
    from sottovoce.text.tokenizer import Tokenizer

LanguageModels: TypeAlias = "ShallowFusion | CtcDecoder"
"""Of `Recogniser.fusion`: for Whisper's beam search, or a CTC decoder."""


class Recogniser(ABC):
    """A loaded model, made by `load_model`. Use it for one recording or session at a time.

    A shallow copy shares the weights. A deep copy, or a pickle in another process, loads them anew as `load`
    does; None: TypeError.

    languages: codes; empty: not known.
    """

    name: str
    languages: tuple[str, ...]
    runtime: Runtime
    tokenizer: Tokenizer | None = None
    """None: its segments have no tokens."""
    _load: Callable[[], Recogniser] | None

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self) -> tuple[Callable[[], Recogniser], tuple[()]]:
        if self._load is None:
            raise TypeError(
                f"model {self.name}: expected one of load_model to be pickled, got one made by hand"
            )
        return self._load, ()

    @property
    @abstractmethod
    def network(self) -> AcousticModel:
        """The CTC network, for a Whisper model that of its head. Raises: OptionError without a head."""

    @property
    @abstractmethod
    def beam_size(self) -> int:
        """Of the search, unless an argument or option has another."""

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """Bytes of the weights in memory, by their number."""

    @property
    def can_detect_languages(self) -> bool:
        return self.tokenizer is not None and self.tokenizer.is_multilingual

    @property
    def can_translate(self) -> bool:
        return self.can_detect_languages

    @abstractmethod
    def prepare(self) -> None:
        """Measure what the first use would have to measure."""

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
        fusion: LanguageModels | None = None,
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
        beam_size: 1 is greedy; None: that of `options`, and `Recogniser.beam_size` without these.
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
        check_kind("second", second, SecondModel, "as_second() of a model")
        check_kind("resume", resume, ResumePoint, "resume_point of a transcription")
        chosen = self.options(
            options, language=language, task=task, word_timestamps=word_timestamps, beam_size=beam_size
        )
        if speakers is not None:
            chosen = replace(chosen, speakers=parse_speakers(speakers))
        transcriber = self.transcriber(chosen, fusion, second, runtime)
        recording = Recording(source, chosen, sample_rate=sample_rate)
        control = RunControl(on_progress, abort)
        return FileTranscription(transcriber, recording, control, model=self.name, resume=resume)

    def transcribe_together(
        self,
        sources: Mapping[str, AudioSource],
        *,
        starts_s: Sequence[float] = (),
        language: str | Sequence[str] | None = None,
        beam_size: int | None = None,
        options: TranscribeOptions | None = None,
        fusion: LanguageModels | None = None,
        second: SecondModel | None = None,
    ) -> TogetherTranscription:
        """Transcribe recordings of one meeting, a speaker each, as one, segment by segment by their starts.

        sources: by the name of the speaker. starts_s: of each in the meeting; none: all begin together. The
        rest and errors as in `transcribe`.

        Raises:
            OptionError: options that name speakers, or another number of starts than of recordings.
        """
        starts_s = starts_s or (0.0,) * len(sources)
        if len(starts_s) != len(sources):
            raise OptionError(
                f"starts_s: expected {len(sources)}, as there are recordings, got {len(starts_s)}"
            )
        if options is not None and (options.speakers is not None or options.channels != "mixed"):
            raise OptionError("transcribe_together: expected a speaker a recording, got speakers or channels")
        given: dict[str, Any] = {
            "language": language,
            "beam_size": beam_size,
            "options": options,
            "fusion": fusion,
            "second": second,
        }
        parts = {
            speaker: (start_s, self.transcribe(source, **given))
            for (speaker, source), start_s in zip(sources.items(), starts_s, strict=True)
        }
        return TogetherTranscription(parts, self.name)

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
        fusion: LanguageModels | None = None,
        sample_rate: int = SAMPLE_RATE,
    ) -> Iterator[tuple[AudioSource, Transcript | Exception]]:
        """Transcribe several recordings in batches; results do not depend on the batch.

        Yields each source with its transcript, or its error (AudioError, OptionError, out of memory).

        batch_size: recordings at a time; each takes up to 30 MB, for an accelerator 250. The rest as in
        `transcribe`.

        Raises:
            OptionError: the options are wrong for every recording.
        """
        if batch_size < 1:
            raise OptionError(f"batch_size: expected at least 1, got {batch_size}")
        if isinstance(sources, str | bytes | Path):
            raise OptionError(f"transcribe_files: expected a list of recordings, got one: {sources!r:.60}")
        chosen = self.options(
            options, language=language, task=task, word_timestamps=word_timestamps, beam_size=beam_size
        )
        return transcribe_batch(
            self.transcriber(chosen, fusion),
            sources,
            lambda source: Recording(source, chosen, sample_rate=sample_rate),
            batch_size=batch_size,
            model=self.name,
        )

    def options(
        self, options: TranscribeOptions | None = None, **given: Unpack[Arguments]
    ) -> TranscribeOptions:
        """Return `options` with those arguments of `transcribe` that are not None.

        options: None: the defaults, with the beam size of the model.

        Raises:
            OptionError: the model lacks the language or an option, or FFmpeg the filter or format.
        """
        check_kind("options", options, TranscribeOptions)
        chosen = present(given)
        if options is None:
            options, chosen = TranscribeOptions(), {"beam_size": self.beam_size, **chosen}
        check_reading(options.audio_filter, options.input_format)
        return self._options(options, cast(Arguments, chosen))

    @abstractmethod
    def _options(self, options: TranscribeOptions, given: Arguments) -> TranscribeOptions:
        """Return options with arguments, of which none is None. Raises: OptionError."""

    @abstractmethod
    def transcriber(
        self,
        options: TranscribeOptions,
        fusion: LanguageModels | None = None,
        second: SecondModel | None = None,
        runtime: Runtime | None = None,
    ) -> RecordingTranscriber:
        """Join the model with options of its `options` and the other arguments of `transcribe`."""

    @abstractmethod
    def fusion(
        self,
        *,
        lm: str | Path | None = None,
        lm_weight: float | None = None,
        hotwords: Hotwords | None = None,
        hotword_weight: float | None = None,
        grammar: Grammar | str | Path | None = None,
        grammar_penalty: float | None = None,
        lexicon: str | Path | None = None,
        neural_lm: str | Path | None = None,
        config: str | Path | None = None,
    ) -> LanguageModels:
        """Make language models for this model's beam search.

        lm: an ARPA file, for Whisper over token ids.
        lm_weight: None: 0.3 for Whisper, 0.5 for CTC networks.
        hotwords: a file of phrases, phrases, or phrases with weights per token or label.
        hotword_weight: of phrases without one; None: that of the kind.
        grammar: a GBNF file or a parsed grammar. grammar_penalty: nats for breaking it; None: never broken.
        lexicon, neural_lm: as in `CtcDecoder`. config: a `decoder.toml`; the others take precedence.

        Raises:
            LanguageModelError: a file cannot be used.
            OptionError: no model is given, or one that this kind does not take.
        """

    @abstractmethod
    def with_language_models(self, **given: Any) -> Self:
        """Return this model with language models for every search without others; arguments of `fusion`."""

    def as_second(
        self,
        deferral: DeferralOptions | None = None,
        fusion: LanguageModels | None = None,
        runtime: Runtime | None = None,
    ) -> SecondModel:
        """Return the argument `second` of another model's `transcribe`.

        deferral: which speech is uncertain. fusion, runtime: of this model.
        """
        reader = self.transcriber(self.options(), fusion, None, runtime)
        return SecondModel(reader, deferral or DeferralOptions())

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
        from sottovoce.alignment import lines_of

        lines = lines_of(text)
        with Recording(source, sample_rate=sample_rate) as recording:
            known = text.language if isinstance(text, Transcript) else None
            aligner = self._aligner(language or known or None, recording, options or AlignOptions())
            segments, duration_s = aligner.segments(lines, recording, on_progress)
        return Transcript(tuple(segments), aligner.language, duration_s, self.name)

    @abstractmethod
    def _aligner(self, language: str | None, recording: Recording, options: AlignOptions) -> TextAligner:
        """Make the aligner of a text in a language; None: that of the recording."""

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
        from sottovoce.alignment import find_phrase

        find_phrase(Transcript((), "", 0.0, ""), phrase, least_score=least_score)  # before the work
        if not isinstance(source, Transcript):
            source = self.transcribe(
                source, language=language, word_timestamps=True, options=options, sample_rate=sample_rate
            ).collect()
        return find_phrase(source, phrase, least_score=least_score)

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
            OptionError: an unknown language, or a model that cannot tell languages apart.
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
            OptionError: an unknown language, or a model that cannot tell languages apart.
        """
        transcriber = self._language_transcriber(languages)
        recording = Recording(source, sample_rate=sample_rate)

        def spans() -> Iterator[LanguageSpan]:
            with recording:
                yield from language_spans(transcriber, recording)

        return spans()

    def _language_transcriber(self, languages: str | Sequence[str] | None) -> Transcriber:
        """Raises: OptionError for a model that cannot tell languages apart."""
        self._refuse("detection of languages")

    def session(
        self,
        languages: str | Sequence[str] | None = None,
        *,
        options: LiveOptions | None = None,
        switching: Switching | None = None,
        vad: bool | VadStreamOptions | None = None,
        captions: Captions | None = None,
        finals: Finals | None = None,
        final_model: Recogniser | None = None,
        stream: StreamOptions | None = None,
        speakers: Speakers | LiveSpeakers | None = None,
        runtime: Runtime | None = None,
        final_runtime: Runtime | None = None,
    ) -> LiveSession:
        """Open a live session, a context manager: push samples, get events; `close` returns the last ones.

        languages: one code, or several to follow among; None: all of the model.
        switching: "restart" follows changes of language, "off" does not.
        vad: decode only detected speech; or its options.
        captions: "firm": committed words only; "revisable": also words that may change.
        finals: "committed": finals have the committed words; "read": in a second pass each utterance is
        transcribed again at its end, as a recording is.
        final_model: for the second pass, which it implies; None: this model.
        stream: how speech is decoded.
        speakers: of each word: "auto", the most speakers, or those of an earlier session.
        options: of the arguments that are None, and others.
        runtime, final_runtime: of this model and of the second pass, as in `transcribe`; None: the calls of
        the second pass come after those of the session.

        Raises:
            OptionError: contradicting options, such as an eagerness without `vad`, or some that this kind of
                model does not have.
            CheckpointError, ModelNotFoundError: a network for speech or speakers cannot be loaded.
        """
        from sottovoce.audio.vad import VadStream
        from sottovoce.speakers.live_speakers import make_live_speakers
        from sottovoce.streaming.options import LiveOptions, StreamOptions, vad_with_pauses

        check_kind("final_model", final_model, Recogniser, "load_model")
        check_kind("options", options, LiveOptions)
        check_kind("stream", stream, StreamOptions)
        finals = "read" if final_model is not None else finals
        arguments: dict[str, Any] = {
            "switching": switching,
            "vad": vad,
            "captions": captions,
            "finals": finals,
            "stream": stream,
        }
        chosen = replace(options or LiveOptions(), **present(arguments))
        chosen = self._live_options(chosen, languages or chosen.languages)
        speakers = (chosen.speakers or None) if speakers is None else speakers
        second_pass, runtime = self._second_pass(chosen, final_model, runtime, final_runtime)
        return self._session(
            chosen,
            vad=VadStream.from_option(vad_with_pauses(chosen.vad) if chosen.stream.turn_rule else chosen.vad),
            speakers=None if speakers is None else make_live_speakers(speakers),
            runtime=runtime or self.runtime,
            second_pass=second_pass,
        )

    @abstractmethod
    def _live_options(self, options: LiveOptions, languages: str | Sequence[str]) -> LiveOptions:
        """Return options of a session for this model, with its languages. Raises: OptionError."""

    @abstractmethod
    def _session(self, options: LiveOptions, **parts: Any) -> LiveSession:
        """Make a session. parts: its vad, speakers, runtime and second_pass."""

    def sources_session(self, sources: Sequence[str], **given: Any) -> SourcesSession:
        """Open live sessions of several sources, which share this model and leave one stream of events.

        sources: a name each, which is also the speaker of its words.
        given: arguments of `session`, without speakers.

        Raises: OptionError as `session`, and for names that are not distinct.
        """
        from sottovoce.options.transcribe import check_speaker_names
        from sottovoce.runtime.batching import BatchingRuntime, Priority
        from sottovoce.streaming.sources import SourcesSession

        check_speaker_names(sources, None)
        options = given.get("options")
        if given.get("speakers") or (options is not None and options.speakers):
            raise OptionError("speakers: expected none, as each source is a speaker")
        model, finals = given.get("final_model") or self, given.get("finals") or (options and options.finals)
        if given.get("final_runtime") is not None or not (model is not self or finals == "read"):
            return SourcesSession({name: self.session(**given) for name in sources})
        # The second passes of the sources run in threads, which share a model.
        shared = BatchingRuntime(model.runtime.backend)
        given["final_runtime"] = shared.caller(Priority.FILE)
        if model is self:
            given["runtime"] = given.get("runtime") or shared.caller()
        return SourcesSession({name: self.session(**given) for name in sources}, shared.close)

    def _second_pass(
        self,
        options: LiveOptions,
        final_model: Recogniser | None,
        runtime: Runtime | None,
        final_runtime: Runtime | None,
    ) -> tuple[SecondPass | None, Runtime | None]:
        """Return the second pass that the options of a session ask for, and the runtime of the session."""
        from sottovoce.options.decoding import DecodingOptions
        from sottovoce.runtime.batching import BatchingRuntime, Priority
        from sottovoce.streaming.second_pass import SecondPass

        if options.finals != "read":
            return None, runtime
        model, live = final_model or self, options.stream
        languages = list(options.languages)
        if model is not self and len(languages) != 1 and not model.can_detect_languages:
            raise OptionError(f"final_model: expected one language, as {model.name} cannot tell them apart")
        reading = TranscribeOptions(
            decoding=DecodingOptions(task=live.task, hotwords=live.static_prompt or None),
            initial_prompt=live.init_prompt or None,
            word_timestamps=True,
            follow_languages=False if options.switching == "off" else None,
            **options.given,
        )
        listed = languages if set(languages) < set(self.languages) or len(languages) == 1 else None
        chosen = model.options(reading, language=listed, beam_size=model.beam_size)
        shared: BatchingRuntime | None = None
        if final_runtime is None and model is self:
            shared = BatchingRuntime(self.runtime.backend)
            runtime, final_runtime = runtime or shared.caller(), shared.caller(Priority.FILE)
        fusion = cast("LanguageModels | None", live.fusion) if model is self else None
        transcriber = model.transcriber(chosen, fusion, None, final_runtime)
        words = UtteranceTranscription(transcriber, is_same_model=model is self).words
        on_close = None if shared is None else shared.close
        return SecondPass(words, options.final_wait_s, live.max_pause_s, on_close), runtime

    @abstractmethod
    def encoder_mode(self, name: str) -> EncoderMode | None:
        """Return how growing audio is encoded: "whole", "exact", or "auto", which is None."""

    def n_prompt_tokens(self, text: str) -> int:
        """Return the tokens of a prompt."""
        self._refuse("prompt")

    def token_text(self, token: int) -> str:
        """Return the text of a token of a segment."""
        return "" if self.tokenizer is None else self.tokenizer.token_text(token)

    def with_timestamps(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens with timestamps and other special ones."""
        self._refuse("special tokens")

    def _refuse(self, what: str) -> NoReturn:
        raise OptionError(f"{what}: expected a Whisper model, got the CTC network {self.name}")
