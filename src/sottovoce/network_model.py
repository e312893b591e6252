"""A CTC network as a model: the methods of `Recogniser`, with a search and its language models.

A recording passes as windows → emissions → one search → words → segments. With mode "vad", only speech passes
through the network, and blanks stand for the rest. A resume point lies in a pause: the network goes on there,
and the search begins anew, without the words before it as context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.audio.io import AudioReader, Recording
from sottovoce.audio.vad import SpeechFinder, SpeechModel
from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.labels import LabelList, LabelSource, labels_of
from sottovoce.ctc.models import causal_words
from sottovoce.ctc.network import (
    AcousticModel,
    LogProbs,
    StreamStep,
    function_network,
    new_words,
    read_network,
)
from sottovoce.ctc.options import CtcOptions, DecoderConfig, read_config
from sottovoce.errors import AudioError, OptionError
from sottovoce.lm.boosting import Hotwords, listed_phrases
from sottovoce.lm.ngram import load_ngram
from sottovoce.offline.resume import (
    ChannelsPlace,
    Place,
    ResumePoint,
    SeekPlace,
    SpeechPlace,
    TranscriptionState,
)
from sottovoce.offline.transcriber import Arguments, RecordingTranscriber, SecondModel, Segments
from sottovoce.offline.windows import mel_frames, seconds_of
from sottovoce.options.decoding import LONGEST_UTTERANCE_S, WINDOW_VAD, VadStreamOptions
from sottovoce.options.schema import present
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.recogniser import LanguageModels, Recogniser
from sottovoce.runtime.calls import EmissionsCall, RunOnHost, Runtime, network_runtime
from sottovoce.streaming.options import LiveOptions, StreamOptions
from sottovoce.text.languages import CLOSING_MARKS, SENTENCE_ENDS, LanguageChoice, language_codes
from sottovoce.types import Floats, Segment, Word

if TYPE_CHECKING:
    from sottovoce.alignment import TextAligner
    from sottovoce.audio.io import Recording
    from sottovoce.models.dims import EncoderMode
    from sottovoce.options.transcribe import AlignOptions
    from sottovoce.runtime.calls import Runtime
    from sottovoce.streaming.live_session import LiveSession
    from sottovoce.types import Task

OF_WHISPER = ("initial_prompt", "max_context", "audio_ctx", "hallucination_silence_threshold", "with_english")
OF_ITS_DECODING = ("prompt", "prefix", "suppress_regex", "verbatim", "speaker_turns")
"""Options that a CTC network refuses. Those of the fallback to other temperatures have no effect."""


MOST_DECODERS = 4
"""Decoders that a model keeps for requests with the same phrases, as the server keeps for Whisper."""


class CtcModel(Recogniser):
    """A CTC network with a search; made by `load_model` or `ctc_model`.

    config: language models and options of the search, which arguments of `fusion` replace; None: those that
    the file of the network names.
    """

    def __init__(
        self,
        network: AcousticModel,
        load: Callable[[], Recogniser] | None = None,
        config: DecoderConfig | None = None,
    ) -> None:
        self._load = load
        self._network = network
        self.name = network.name
        self.languages = (network.language,) if network.language else language_codes()
        self.runtime = network_runtime()
        if config is None:
            config = DecoderConfig() if network.decoder is None else read_config(network.decoder)
        self.config = config
        self._models: dict[str | Path, Any] = {}
        self._decoders: dict[str, CtcDecoder] = {}

    def __repr__(self) -> str:
        about = self.network
        return (
            f"CtcModel({self.name!r}, {len(about.labels.names)} labels, {about.frame_s * 1000:g} ms a frame)"
        )

    @property
    def network(self) -> AcousticModel:
        return self._network

    @property
    def beam_size(self) -> int:
        return self.config.options.beam_size

    @property
    def n_bytes(self) -> int:
        return self.network.n_bytes

    def prepare(self) -> None:
        """Nothing has to be measured."""

    def decoder(self, blank: int | None = None, **given: Any) -> CtcDecoder:
        """Make the decoder of the network's labels and frames; arguments as those of `CtcDecoder`."""
        options = replace(given.pop("options", None) or CtcOptions(), frame_s=self.network.frame_s)
        blank = self.network.blank if blank is None else blank
        return CtcDecoder(self.network.labels.names, blank, options=options, **given)

    def _options(self, options: TranscribeOptions, given: Arguments) -> TranscribeOptions:
        decoding = options.decoding
        self._check(options, given.get("task"))
        code = self._language(given.get("language") or decoding.language or decoding.allowed_languages)
        beam_size = given.get("beam_size", decoding.beam_size)
        decoding = replace(decoding, language=code or None, allowed_languages=(), beam_size=beam_size)
        # No search for skipped speech follows: the network reads all of it.
        return replace(
            options,
            decoding=decoding,
            follow_languages=False,
            read_again=False,
            word_timestamps=bool(given.get("word_timestamps", options.word_timestamps)),
        )

    def _check(self, options: TranscribeOptions, task: Task | None) -> None:
        if "translate" in (task, options.decoding.task):
            self._refuse("task 'translate'")
        for chosen, names in ((options, OF_WHISPER), (options.decoding, OF_ITS_DECODING)):
            defaults = {field.name: field.default for field in fields(chosen)}
            for name in names:
                if getattr(chosen, name) != defaults[name]:
                    self._refuse(name)

    def _language(self, given: str | Sequence[str] | None) -> str:
        choice = LanguageChoice.parse(given or None, self.languages)
        if choice.fixed is None and 0 < len(choice.allowed) < len(self.languages):
            self._refuse(f"languages {','.join(choice.allowed)} to tell apart")
        return choice.fixed or self.network.language

    def transcriber(
        self,
        options: TranscribeOptions,
        fusion: LanguageModels | None = None,
        second: SecondModel | None = None,
        runtime: Runtime | None = None,
    ) -> CtcTranscriber:
        beam_size = options.decoding.beam_size or self.beam_size
        decoder = self._decoder(fusion, options.decoding.hotwords, beam_size)
        transcriber = CtcTranscriber(runtime or self.runtime, self.network, decoder, options, second)
        if second is not None:
            second.check(transcriber)
        return transcriber

    def _decoder(self, fusion: LanguageModels | None, terms: str | None, beam_size: int) -> CtcDecoder:
        if fusion is None:
            phrases = [term.strip() for term in (terms or "").split(",") if term.strip()]
            config = self._config_with(hotwords=phrases or None)
            return self._decoder_of(replace(config, options=replace(config.options, beam_size=beam_size)))
        if not isinstance(fusion, CtcDecoder):
            raise OptionError(f"fusion: expected a CtcDecoder of {self.name}, got {fusion!r:.60}")
        if tuple(fusion.labels.names) != tuple(self.network.labels.names):
            raise OptionError(f"fusion: expected a decoder of the labels of {self.name}, got one of others")
        return fusion

    def fusion(self, **given: Any) -> CtcDecoder:
        return self._decoder_of(self._config_with(**given))

    def with_language_models(self, **given: Any) -> CtcModel:
        return CtcModel(self.network, config=self._config_with(**given))

    def _config_with(
        self,
        *,
        lm: str | Path | None = None,
        lm_weight: float | None = None,
        hotwords: Hotwords | None = None,
        hotword_weight: float | None = None,
        grammar: object = None,
        grammar_penalty: float | None = None,
        lexicon: str | Path | None = None,
        neural_lm: str | Path | None = None,
        config: str | Path | None = None,
    ) -> DecoderConfig:
        """Return the model's language models and search with those that are given; phrases are added."""
        if grammar is not None or grammar_penalty is not None:
            self._refuse("grammar")
        chosen = self.config if config is None else read_config(config)
        changes: dict[str, Any] = {
            "lm": lm and Path(lm),
            "lexicon": lexicon and Path(lexicon),
            "neural_lm": neural_lm and str(neural_lm),
        }
        weights = {"lm_weight": lm_weight, "hotword_weight": hotword_weight}
        fusion = replace(chosen.fusion, **present(weights))
        phrases = [
            *listed_phrases(chosen.hotwords, default_weight=fusion.hotword_weight),
            *listed_phrases(hotwords, default_weight=fusion.hotword_weight),
        ]
        boosted = {phrase.text: phrase.weight for phrase in phrases}
        return replace(chosen, fusion=fusion, hotwords=boosted or None, **present(changes))

    def _decoder_of(self, config: DecoderConfig) -> CtcDecoder:
        """Make a decoder, or return one of the last few; n-grams and neural models are loaded once."""
        key = repr(config)
        if key not in self._decoders:
            if len(self._decoders) >= MOST_DECODERS:
                self._decoders.pop(next(iter(self._decoders)))
            fusion, neural_lm = config.fusion, config.neural_lm
            loaded = {
                "lm": self._ngram(config.lm),
                "label_lm": self._ngram(config.label_lm),
                "neural_lm": neural_lm and self._loaded(neural_lm, lambda: causal_words(neural_lm, fusion)),
            }
            self._decoders[key] = self.decoder(**{**config.arguments, **loaded})
        return self._decoders[key]

    def _ngram(self, file: Path | dict[str, float] | None) -> Any:
        return self._loaded(file, lambda: load_ngram(file)) if isinstance(file, Path) else file

    def _loaded(self, name: str | Path, load: Callable[[], Any]) -> Any:
        if name not in self._models:
            self._models[name] = load()
        return self._models[name]

    def _aligner(self, language: str | None, recording: Recording, options: AlignOptions) -> TextAligner:
        from sottovoce.alignment import ROUGH, CtcTimer, TextAligner, at_spaces

        if options.method == "attention":
            self._refuse("method 'attention'")
        options_of_rough = replace(ROUGH, mode="seek")  # all of it is read
        rough = self.transcriber(self.options(options_of_rough, language=language))
        timer = CtcTimer(self.network, rough.decoder)
        return TextAligner(timer, at_spaces, rough, rough.fixed_language, options)

    def _live_options(self, options: LiveOptions, languages: str | Sequence[str]) -> LiveOptions:
        stream = options.stream
        refused = {
            "task 'translate'": stream.task == "translate",
            "eagerness": stream.turn_rule is not None,
            "init_prompt": bool(stream.init_prompt),
            "fusion": stream.fusion is not None,
        }
        for name, is_given in refused.items():
            if is_given:
                self._refuse(name)
        code = self._language(languages)
        return replace(options, languages=(code,) if code else self.languages)

    def _session(self, options: LiveOptions, **parts: Any) -> LiveSession:
        from sottovoce.streaming.ctc_session import CtcSession

        live = options.stream
        # The default is that of Whisper.
        beam_size = self.beam_size if live.beam_size == StreamOptions().beam_size else live.beam_size
        decoder = self._decoder(None, live.static_prompt, beam_size)
        return CtcSession(self.network, decoder, options, languages=options.languages, **parts)

    def encoder_mode(self, name: str) -> EncoderMode | None:
        if name != "auto":
            self._refuse(f"encoder '{name}'")
        return None


def ctc_model(
    network: LogProbs | StreamStep | str | Path,
    *,
    labels: LabelSource | None = None,
    blank: int | None = None,
    frame_s: float | None = None,
    chunk_s: float | None = None,
    longest_s: float | None = None,
    context_s: float | None = None,
    language: str | None = None,
    logits: bool = False,
) -> CtcModel:
    """Make a model of a CTC network.

    network: a function of windows of samples (float32, 16 kHz) to log-probabilities (T, V) of each; a TOML
    file of an ONNX network, see `OnnxDescription`; the folder or hub id of an `AutoModelForCTC` of
    transformers with its processor; or "onnx-asr:" and a name or folder of the package onnx-asr.
    labels: as in `labels_of`. blank: their blank, where they don't name it; None: the likeliest label in
    silence. frame_s: seconds of a frame. chunk_s: seconds of the samples of a `StreamStep`, a function with a
    state; None: it has none. logits: whether it returns logits. These five are for functions alone.
    longest_s: of a window. context_s: on both sides of the frames that are used. language: a code. None:
    those of the file, else 30 s, a sixth of a window, and none.

    Raises:
        OptionError: missing or contradicting arguments.
        CheckpointError: a file cannot be read.
        MissingExtraError: without onnxruntime or transformers.
    """
    if not callable(network):
        if not isinstance(network, str | Path):
            raise OptionError(f"ctc_model: expected a function, a file or a name, got {network!r:.60}")
        if logits or any(value is not None for value in (labels, blank, frame_s, chunk_s)):
            raise OptionError(
                f"{network}: expected no labels, blank, frame_s, chunk_s or logits, which its files have"
            )
        acoustic = read_network(str(network))
    elif labels is None or frame_s is None:
        raise OptionError("ctc_model: expected labels and frame_s with a function, got none")
    else:
        listed = labels_of(labels)
        listed = listed if blank is None else LabelList(listed.names, blank)
        acoustic = function_network(network, listed, frame_s=frame_s, chunk_s=chunk_s, logits=logits)
    chosen = {"longest_s": longest_s, "context_s": context_s, "language": language}
    return CtcModel(replace(acoustic, **present(chosen)))


PAUSE_S = VadStreamOptions().hangover_ms / 1000


@dataclass(slots=True)
class SegmentBuilder:
    """Joins words to segments, which end at pauses, at ends of sentences, and after `LONGEST_UTTERANCE_S`."""

    language: str
    words: list[Word] = field(default_factory=list)

    def add(self, words: Sequence[Word]) -> Iterator[Segment]:
        """Yield the segments that words end."""
        for word in words:
            if self.words and self._ends_before(word):
                yield self._segment()
            self.words.append(word)

    def finish(self) -> Iterator[Segment]:
        if self.words:
            yield self._segment()

    def _ends_before(self, word: Word) -> bool:
        first, last = self.words[0], self.words[-1]
        is_sentence = last.word.rstrip(CLOSING_MARKS).endswith(SENTENCE_ENDS)
        return is_sentence or word.start - last.end >= PAUSE_S or word.end - first.start > LONGEST_UTTERANCE_S

    def _segment(self) -> Segment:
        words, self.words = tuple(self.words), []
        logprob = float(np.mean(np.log([max(word.probability, 1e-10) for word in words])))
        text = "".join(word.word for word in words)
        return Segment(
            0, words[0].start, words[-1].end, text, self.language, avg_logprob=logprob, words=words
        )


@dataclass(frozen=True, slots=True)
class CtcTranscriber(RecordingTranscriber):
    runtime: Runtime
    network: AcousticModel
    decoder: CtcDecoder
    options: TranscribeOptions
    second: SecondModel | None = None
    speech_model: SpeechModel | None = None
    tokenizer: None = None

    @property
    def fixed_language(self) -> str:
        return self.options.decoding.language or self.network.language

    def with_runtime(self, runtime: Runtime) -> CtcTranscriber:
        return replace(self, runtime=runtime)

    def with_options(self, options: TranscribeOptions, second: SecondModel | None) -> CtcTranscriber:
        return replace(self, options=options, second=second)

    def transcribe(
        self, recording: Recording, state: TranscriptionState, resume: ResumePoint | None = None
    ) -> Segments:
        place = None if resume is None else resume.place
        assert not isinstance(place, ChannelsPlace), "channels resume one by one"
        first = place.clip if isinstance(place, SeekPlace) else 0
        with recording.open() as reader:
            state.duration = reader.info.duration_s
        for clip, (start_s, end_s) in enumerate(self.options.clips):
            if place is not None and clip == first:
                start_s = seconds_of(place.next_frame)
            if clip >= first:
                duration_s = None if end_s is None else end_s - start_s
                yield from self._part(recording.part(start_s, duration_s), start_s, clip, state)

    def _part(self, recording: Recording, start_s: float, clip: int, state: TranscriptionState) -> Segments:
        decoder, search = self.decoder, self.decoder.start()
        language = self.fixed_language
        builder = SegmentBuilder(language)
        ended_s: float | None = None

        def noted(segments: Iterator[Segment]) -> Segments:
            """Set the resume point before each segment that a pause precedes."""
            nonlocal ended_s
            for segment in segments:
                if ended_s is not None and segment.start - ended_s >= PAUSE_S:
                    place = self._place(clip, (ended_s + segment.start) / 2)
                    state.resume_point = ResumePoint(state.to_resume(), (), False, None, place)
                ended_s = segment.end
                yield segment

        for rows in self._rows(recording, start_s, state):
            decoder.decode_chunk(search, rows)
            state.position = max(state.position, start_s + int(search.n_frames[0]) * self.network.frame_s)
            yield from noted(builder.add(new_words(decoder, search, language, offset_s=start_s)))
        yield from noted(builder.add(new_words(decoder, search, language, offset_s=start_s, final=True)))
        yield from noted(builder.finish())

    def _place(self, clip: int, seconds: float) -> Place:
        frame_s = self.network.frame_s
        frame = mel_frames(round(seconds / frame_s) * frame_s)
        return SpeechPlace(0, frame, 0) if self.options.mode == "vad" else SeekPlace(clip, frame, seconds, 0)

    def _rows(self, recording: Recording, start_s: float, state: TranscriptionState) -> Iterator[Floats]:
        """Yield the emissions of a recording in pieces, which follow one another."""
        n_done, frame_s = 0, self.network.frame_s
        for first, last in self._spoken(recording) if self.options.mode == "vad" else [(0, None)]:
            if first > n_done:
                yield self.network.blanks(first - n_done)
            n_done = first
            duration_s = None if last is None else (last - first) * frame_s
            part = recording if last is None else recording.part(first * frame_s, duration_s)
            with part.open() as reader:
                for rows in self._emitted(reader):
                    n_done += len(rows)
                    yield rows
        state.duration = state.duration or start_s + n_done * frame_s
        if not n_done and start_s > 0:
            raise AudioError(f"{recording.name}: expected sound at {start_s:g} s, where to begin, got less")

    def _emitted(self, reader: AudioReader) -> Iterator[Floats]:
        network = self.network
        if network.stream is not None:
            for step in network.steps(network.stream(), reader):
                yield self.runtime.run(RunOnHost(step))
            return
        windows = network.windows(reader)
        while batch := list(islice(windows, self.options.batch_size)):
            call = EmissionsCall(network, [window.samples for window in batch])
            yield from network.rows(batch, self.runtime.run(call))

    def _spoken(self, recording: Recording) -> list[tuple[int, int]]:
        """Return the frames [first, last) of speech; pauses within the context of windows are part of it."""
        finder = SpeechFinder(self.options.vad or WINDOW_VAD, model=self.speech_model)
        with recording.open() as reader:
            for chunk in reader:
                self.runtime.run(RunOnHost(partial(finder.push, chunk.samples)))
        spans: list[tuple[int, int]] = []
        for speech in finder.finish():
            first, last = (round(time_s / self.network.frame_s) for time_s in (speech.start_s, speech.end_s))
            if spans and first - spans[-1][1] < self.network.margin_s / self.network.frame_s:
                spans[-1] = spans[-1][0], last
            else:
                spans.append((first, last))
        return spans
