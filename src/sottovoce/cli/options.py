"""Options that several commands share. Imports nothing heavy, so that `--help` is fast."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sottovoce.cli.flags import LIBRARY, Given, flag_of, grouped, value_of
from sottovoce.ctc.options import of_emissions, of_search, of_words
from sottovoce.errors import OptionError
from sottovoce.formats.files import FORMATS
from sottovoce.lm import HOTWORD_WEIGHT
from sottovoce.options.fallback import DeferralOptions
from sottovoce.options.live import SWITCH_CERTAINTY, Captions, Switching
from sottovoce.options.schema import Option, changed, options_of
from sottovoce.options.speakers import SpeakerOptions
from sottovoce.types import Task

if TYPE_CHECKING:
    from sottovoce.api import Model
    from sottovoce.audio.io import AudioSource
    from sottovoce.lm.fusion import ShallowFusion
    from sottovoce.options.transcribe import TranscribeOptions
    from sottovoce.translation.chat import ChatServer, ChatTranslator, Glossary
    from sottovoce.types import Samples, Segment


PATH_BEGINNINGS = ("/", "./", "../", "~")
TEXT_ENDINGS = (".txt", ".tsv", ".csv")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    model: str | None = Option(
        "Model name, hub id, file or folder.",
        short="-m",
        metavar="NAME|PATH",
        unset="default: base; on CUDA large-v3-turbo",
    ).as_field(None)
    device: str = Option("auto, cpu, cuda, cuda:N or mps.").as_field("auto")
    dtype: str = Option(
        "auto, float32, bfloat16, float16 or int8; int8_float32 sets the activations too."
    ).as_field("auto")
    backend: str = Option(
        "torch, native (int8 on CPUs; package sottovoce-kernels), or auto: the faster one, "
        "but torch if --dtype is given."
    ).as_field("auto")
    gpu_memory: float | None = Option(
        "Accelerator memory for the model and its decoder rows.",
        metavar="MB",
        least=1.0,
        unset="default: all that is free",
    ).as_field(None)
    threads: int | None = Option("Processor threads.", least=1, unset="default: all cores").as_field(None)
    model_dir: str | None = Option(
        "Folder of downloaded models.", metavar="DIR", unset="default: the usual caches"
    ).as_field(None)
    revision: str | None = Option("Branch, tag or commit of the model on the hub.", metavar="REV").as_field(
        None
    )
    local_only: bool = Option("Do not download: use only models on this machine.").as_field(False)


MODEL = options_of(ModelOptions)
LANGUAGE = (
    Option(
        "Language of the recording, as for `transcribe`.",
        key="language",
        short="-l",
        default="auto",
        metavar="auto|CODE[,CODE…]",
    ),
)
TASK = grouped("Task")


@dataclass(frozen=True, slots=True)
class FusionOptions:
    hotwords: str | None = Option(
        "Expected words. A file of phrases, one a line, is boosted in the beam search (a tab "
        "and a weight may follow; `[class] weight` is a heading). Text becomes part of the "
        "prompt.",
        metavar="FILE|TEXT",
    ).as_field(None)
    vocabulary_from: tuple[str, ...] = Option(
        "Documents (PDF, DOCX, text) whose rare words are boosted too, like --hotwords.",
        metavar="FILE",
        many=True,
    ).as_field(())
    hotword_weight: float = Option("Score added for each token of a phrase.").as_field(HOTWORD_WEIGHT)
    lm: str | None = Option(
        "N-gram model over token ids, for the beam search.", metavar="FILE.arpa"
    ).as_field(None)
    lm_weight: float = Option("Weight of --lm.").as_field(0.3)
    grammar: str | None = Option(
        "Grammar (GBNF; extra `grammar`) that the text follows, for the beam search.", metavar="FILE.gbnf"
    ).as_field(None)
    grammar_rule: str = Option("Start rule of the grammar.").as_field("root")
    grammar_penalty: float | None = Option(
        "Penalty of a token that the grammar does not allow.",
        least=0.0,
        unset="such tokens are never written",
    ).as_field(None)

    @property
    def phrase_file(self) -> str | None:
        return self.hotwords if is_file(self.hotwords) else None

    @property
    def prompt(self) -> str | None:
        return None if is_file(self.hotwords) else self.hotwords

    def check(self, beam_size: int, temperatures: Sequence[float] = (0.0,)) -> None:
        """Check that the decoding can use these models.

        Raises: OptionError without a beam search, and for a missing file of phrases.
        """
        if self.phrase_file is None and means_file(self.hotwords):
            raise OptionError(
                f"--hotwords: expected words or an existing file of phrases, got {self.hotwords}"
            )
        is_used = self.lm or self.grammar or self.phrase_file or self.vocabulary_from
        if is_used and (beam_size == 1 or all(temperatures)):
            got = "--beam-size 1" if beam_size == 1 else "no temperature of 0"
            raise OptionError(
                f"--lm, --grammar, --vocabulary-from and a file of --hotwords: need a beam search, got {got}"
            )


FUSION = options_of(FusionOptions)
DEFERRAL = options_of(DeferralOptions)


def beam_size(default: int) -> tuple[Option]:
    (size,) = (option for option in LIBRARY if option.key == "beam_size")
    return (replace(size, cli_default=default),)


def open_model(options: ModelOptions) -> Model:
    import torch

    from sottovoce.api import load_model

    if options.threads:
        torch.set_num_threads(options.threads)
    return load_model(
        options.model,
        device=options.device,
        dtype=options.dtype,
        backend=options.backend,
        gpu_memory=options.gpu_memory,
        model_dir=options.model_dir,
        revision=options.revision,
        local_only=options.local_only,
    )


def fusion_of(model: Model, options: FusionOptions) -> ShallowFusion | None:
    phrase_file, documents = options.phrase_file, options.vocabulary_from
    if options.lm is None and phrase_file is None and not documents and options.grammar is None:
        return None
    from sottovoce.formats.document_words import with_vocabulary
    from sottovoce.lm.grammar import Grammar

    weight = options.hotword_weight
    return model.fusion(
        lm=options.lm,
        lm_weight=options.lm_weight,
        hotwords=with_vocabulary(phrase_file, documents, default_weight=weight, tokenizer=model.tokenizer),
        hotword_weight=weight,
        grammar=Grammar.read(options.grammar, options.grammar_rule) if options.grammar else None,
        grammar_penalty=options.grammar_penalty,
    )


def is_file(text: str | None) -> bool:
    return text is not None and len(text) < 1000 and Path(text).is_file()


def means_file(text: str | None) -> bool:
    """Return whether hotwords look like a file name; "AC/DC" does not."""
    if text is None or "\n" in text:
        return False
    return text.startswith(PATH_BEGINNINGS) or text.lower().endswith(TEXT_ENDINGS)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """output_file: path of the only document, if -o names a file."""

    output_format: str = Option(
        f"{', '.join(FORMATS)} or all.", short="-f", metavar="FORMAT[,FORMAT…]"
    ).as_field("txt")
    output_dir: str | None = Option(
        "Output folder, created if missing; a name such as talk.srt is the only document, in "
        "that format; - is standard output.",
        short="-o",
        metavar="DIR|FILE",
        unset="only txt: the terminal; else: the current folder",
    ).as_field(None)
    quiet: bool = Option(
        "Show a progress bar instead of the text while documents go to files.",
        short="-q",
    ).as_field(False)
    colour_confidence: bool = Option(
        "Colour words on the terminal by their probability (needs --word-timestamps)."
    ).as_field(False)
    embed_audio: bool = Option("html: include the recording in the page instead of a link.").as_field(False)
    output_file: Path | None = None


OUTPUT_FORMAT, OUTPUT_DIR, QUIET, COLOUR_CONFIDENCE, EMBED_AUDIO = options_of(OutputOptions)
LAYOUT = (*grouped("Layout"), EMBED_AUDIO)
SHORTEST_VOICE_S, LONGEST_VOICE_S = 1.0, 120.0
"""Length of a known voice; more adds nothing."""
VOICES = grouped("Speakers", of=[one for one in LIBRARY if one.key == "speaker_voices"])
ENROLLED_VOICES = Option(
    "A few seconds of one speaker's voice, to recognise them by name. Repeatable.",
    key="known_voices",
    flag="--known-voice",
    many=True,
    metavar="NAME=FILE",
)


def speakers_of(given: Given) -> SpeakerOptions | None:
    speakers, names = value_of(given, "speakers", str), value_of(given, "known_voices", tuple) or ()
    if speakers is None:
        if names:
            raise OptionError("--known-voice: needs --speakers")
        return None
    least, most = value_of(given, "min_speakers", int), value_of(given, "max_speakers", int)
    if least is not None and most is not None and least > most:
        raise OptionError(f"--min-speakers: expected at most --max-speakers {most}, got {least}")
    options = parsed_speakers(speakers)
    if most is not None and options.n_speakers is not None and options.n_speakers > most:
        raise OptionError(f"--max-speakers: expected at least --speakers {options.n_speakers}, got {most}")
    bounds = {"min_speakers": least or options.least, "max_speakers": most or max(options.most, least or 0)}
    chosen = {name: given[name] for name in ("speaker_engine", "speaker_voices")}
    return replace(changed(options, {**bounds, **chosen}), known=enrolled_voices(names))


def enrolled_voices(pairs: Sequence[str]) -> dict[str, Samples]:
    voices: dict[str, Samples] = {}
    for pair in pairs:
        name, _, path = (part.strip() for part in pair.partition("="))
        if not name or not path:
            raise OptionError(f"--known-voice: expected NAME=FILE, got '{pair}'")
        if name in voices:
            raise OptionError(f"--known-voice: expected one file for each name, got two of '{name}'")
        voices[name] = voice_of(path)
    return voices


def voice_of(path: str) -> Samples:
    from sottovoce.audio.io import load_audio
    from sottovoce.types import SAMPLE_RATE

    samples = load_audio(path, duration_s=2 * LONGEST_VOICE_S)
    seconds = len(samples) / SAMPLE_RATE
    if not SHORTEST_VOICE_S <= seconds <= LONGEST_VOICE_S:
        wanted = f"{SHORTEST_VOICE_S:.0f} to {LONGEST_VOICE_S:.0f} seconds of speech"
        got = "more" if seconds > LONGEST_VOICE_S else f"{seconds:.1f}"
        raise OptionError(f"--known-voice: expected {wanted} in {path}, got {got}")
    return samples


def live_speakers_of(speakers: str | None, given: Given) -> SpeakerOptions | None:
    if speakers is None:
        return None
    return changed(parsed_speakers(speakers), {"speaker_voices": given["speaker_voices"]})


def parsed_speakers(value: str) -> SpeakerOptions:
    from sottovoce.speakers.diarize import parse_speakers

    options = parse_speakers(value.strip())
    assert isinstance(options, SpeakerOptions)
    return options


KEY = "SOTTOVOCE_TRANSLATION_KEY"


@dataclass(frozen=True, slots=True)
class TranslationOptions:
    translate_to: str | None = Option(
        "Add a translation of each sentence; into English by Whisper, into others by --translation-url.",
        metavar="CODE",
    ).as_field(None)
    translation_url: str | None = Option(
        f"Server with OpenAI's chat API, such as http://127.0.0.1:8080/v1; {KEY} holds its key.",
        metavar="URL",
    ).as_field(None)
    translation_model: str | None = Option(
        "Name of the model at --translation-url.", metavar="NAME"
    ).as_field(None)
    glossary: str | None = Option(
        "Terms for --translation-url, one a line: term = translation.", metavar="FILE"
    ).as_field(None)

    def chat_server(self) -> tuple[ChatServer, Glossary] | None:
        if self.translation_url is None:
            return None
        from sottovoce.translation.chat import ChatServer, Glossary

        if self.translation_model is None:
            raise OptionError("--translation-url: needs --translation-model")
        chat = ChatServer(self.translation_url, self.translation_model, os.environ.get(KEY) or None)
        return chat, Glossary() if self.glossary is None else Glossary.read(self.glossary)


TRANSLATION = options_of(TranslationOptions)
SERVER = TRANSLATION[1:]


@dataclass(frozen=True, slots=True)
class Translation:
    target: str
    translator: ChatTranslator | None

    def of(
        self, segments: Iterable[Segment], model: Model, source: AudioSource, options: TranscribeOptions
    ) -> Iterator[Segment]:
        if self.translator is not None:
            return self.translator.segments(segments)
        from sottovoce.translation.whisper_translate import with_english

        return iter(with_english(model, source, list(segments), options))


def translation_of(
    options: TranslationOptions, task: object, files: Iterable[str] = ()
) -> Translation | None:
    target = options.translate_to
    if target is None:
        return None
    from sottovoce.text.languages import find_language
    from sottovoce.translation.chat import ChatTranslator

    code = find_language(target)
    if task == "translate":
        raise OptionError("--translate-to: cannot be combined with --task translate")
    if (server := options.chat_server()) is not None:
        chat, glossary = server
        return Translation(code, ChatTranslator(chat, code, glossary))
    if code != "en":
        raise OptionError(
            f"--translate-to {target}: needs --translation-url; Whisper translates only into English"
        )
    for name in ("translation_model", "glossary"):
        if getattr(options, name) is not None:
            raise OptionError(f"{flag_of(name)}: needs --translation-url")
    if "-" in files:
        raise OptionError("--translate-to en: expected a file, which is read twice, got standard input")
    return Translation(code, None)


@dataclass(frozen=True, slots=True)
class FileOptions:
    language: str = Option(
        "One language; auto: detect it, and follow clear changes; a list: follow changes among these.",
        short="-l",
        metavar="auto|CODE[,CODE…]",
    ).as_field("auto")
    regroup: str | None = Option(
        "Split and merge segments, such as 'split pause=0.5 after=.?!; merge letters=80' "
        "(needs --word-timestamps).",
        metavar="RULES",
    ).as_field(None)
    no_fallback: bool = Option("Use only the first temperature.").as_field(False)
    skip_existing: bool = Option("Skip recordings whose documents all exist.").as_field(False)
    fresh: bool = Option("Start interrupted recordings again instead of continuing them.").as_field(False)
    print_special: bool = Option("Include timestamps and other special tokens in txt.").as_field(False)
    processors: int = Option(
        "Processes for one recording, which is split at pauses; each loads the model.", least=1
    ).as_field(1)
    second_model: str | None = Option(
        "A larger model that decodes uncertain parts again; a line reports how much that was.",
        metavar="NAME|PATH",
    ).as_field(None)


@dataclass(frozen=True, slots=True)
class StreamFlags:
    mic: bool = Option("Record from the microphone (extra `mic`).").as_field(False)
    realtime: bool = Option(
        "Real-time input: of several late updates only the newest is done (default of real-time pipes)."
    ).as_field(False)
    unaware: bool = Option("Do all updates, however late (default of files).").as_field(False)
    input_format: str | None = Option(
        "Format of samples without a header: FFmpeg's name, rate and channels, such as mulaw "
        "or s16le:44100:2.",
        unset="a container, or s16le at 16 kHz",
        metavar="NAME[:RATE[:CHANNELS]]",
    ).as_field(None)
    chunk_ms: int = Option("Audio between two updates.", least=10).as_field(250)
    encoder: Literal["auto", "whole", "exact"] = Option(
        "Audio encoded in an update: auto: the newest; whole: all that is kept; exact: 30 s, as trained.",
        choices=("auto", "whole", "exact"),
    ).as_field("auto")
    no_vad: bool = Option("Decode silence too, without voice activity detection.").as_field(False)
    jsonl: bool = Option("Print one JSON event a line.").as_field(False)
    unstable: bool = Option("Same as --captions revisable.").as_field(False)
    save_audio: str | None = None
    log_path: str | None = None
    languages: str | None = None
    switching: Switching = "restart"
    switch_certainty: float = SWITCH_CERTAINTY
    captions: Captions = "firm"
    speakers: str | None = None
    beam_size: int = 5
    task: Task = "transcribe"


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """Options of `sottovoce ctc` beside those of `sottovoce.ctc.options.DecoderConfig`."""

    config: Path | None = of_emissions(
        "decoder.toml of `ctc tune`; flags take precedence.", kind="file"
    ).as_field(None)
    model: str | None = of_emissions(
        "Model with a CTC head, such as nano; FILES are then recordings."
    ).as_field(None)
    logits: bool = of_emissions("FILES contain logits: apply log_softmax first.").as_field(False)
    device: str = of_search("Device of --neural-lm: cpu, cuda or cuda:N.").as_field("cpu")
    threads: int | None = of_search("Processor threads.", unset="default: PyTorch's", least=1).as_field(None)
    vocabulary_from: tuple[Path, ...] = of_words(
        "Documents (PDF, DOCX, text) whose rare words are boosted too.", kind="file", many=True
    ).as_field(())
