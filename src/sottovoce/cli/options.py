"""Options that several modules of the command line share, and the objects they describe.

Imports nothing heavy, so that `--help` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sottovoce.cli.flags import LIBRARY, Given, flag_of, grouped, value_of
from sottovoce.ctc.options import of_emissions, of_search, of_words
from sottovoce.errors import OptionError
from sottovoce.formats.writers import FORMATS
from sottovoce.lm.phrase_lists import HOTWORD_WEIGHT
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
    """Which model is loaded, and what computes it."""

    model: str | None = Option(
        "Model name, hub id, file or folder.",
        short="-m",
        metavar="NAME|PATH",
        unset="default: base; on CUDA large-v3-turbo",
    ).as_field(None)
    device: str = Option("auto, cpu, cuda, cuda:N or mps.").as_field("auto")
    dtype: str = Option(
        "auto, float32, bfloat16, float16 or int8; int8_float32 and the like tell the activations."
    ).as_field("auto")
    backend: str = Option(
        "torch, native (an int8 decoder for CPUs; package sottovoce-kernels), or auto: the faster one here, "
        "and torch where --dtype names a format."
    ).as_field("auto")
    gpu_memory: float | None = Option(
        "Memory of an accelerator that the model and its decoder rows may take.",
        metavar="MB",
        least=1.0,
        unset="default: all that is free",
    ).as_field(None)
    threads: int | None = Option("Processor threads.", least=1, unset="default: all cores").as_field(None)
    model_dir: str | None = Option(
        "Where fetched models live.", metavar="DIR", unset="default: the usual caches"
    ).as_field(None)
    revision: str | None = Option("Branch, tag or commit of the model on the hub.", metavar="REV").as_field(
        None
    )
    local_only: bool = Option("Fetch nothing: the model is on this machine.").as_field(False)


MODEL = options_of(ModelOptions)
LANGUAGE = (
    Option(
        "Of the recording, as for `transcribe`.",
        key="language",
        short="-l",
        default="auto",
        metavar="auto|CODE[,CODE…]",
    ),
)
TASK = grouped("Task")


@dataclass(frozen=True, slots=True)
class FusionOptions:
    """Language models and phrases for the beam search."""

    hotwords: str | None = Option(
        "Words likely to be said: a file of phrases, one a line (a weight after a tab, `[class] weight` "
        "above several), is boosted in the beam search; text is put before the prompt.",
        metavar="FILE|TEXT",
    ).as_field(None)
    vocabulary_from: tuple[str, ...] = Option(
        "Documents (PDF, DOCX, text) whose rare words are boosted too, as phrases of --hotwords.",
        metavar="FILE",
        many=True,
    ).as_field(())
    hotword_weight: float = Option("What each token of a phrase adds.").as_field(HOTWORD_WEIGHT)
    lm: str | None = Option(
        "n-gram model over token ids, for the beam search.", metavar="FILE.arpa"
    ).as_field(None)
    lm_weight: float = Option("Weight of --lm.").as_field(0.3)
    grammar: str | None = Option(
        "The form that text has (GBNF; extra `grammar`), for the beam search.", metavar="FILE.gbnf"
    ).as_field(None)
    grammar_rule: str = Option("The rule of the grammar that text is.").as_field("root")
    grammar_penalty: float | None = Option(
        "What a token costs that the grammar does not allow.", least=0.0, unset="it is never written"
    ).as_field(None)

    @property
    def phrase_file(self) -> str | None:
        return self.hotwords if is_file(self.hotwords) else None

    @property
    def prompt(self) -> str | None:
        return None if is_file(self.hotwords) else self.hotwords

    def check(self, beam_size: int, temperatures: Sequence[float] = (0.0,)) -> None:
        """Check that the decoding can use these models.

        Raises: OptionError for phrases or models without a beam search, and a missing file of phrases.
        """
        if self.phrase_file is None and means_file(self.hotwords):
            raise OptionError(
                f"--hotwords: expected words or a file of phrases, no such file {self.hotwords}"
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
    """Return whether hotwords look like a file name, existing or not; "AC/DC" does not."""
    if text is None or "\n" in text:
        return False
    return text.startswith(PATH_BEGINNINGS) or text.lower().endswith(TEXT_ENDINGS)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The documents of a call. output_file: path of the only document, if -o names a file."""

    output_format: str = Option(
        f"{', '.join(FORMATS)} or all.", short="-f", metavar="FORMAT[,FORMAT…]"
    ).as_field("txt")
    output_dir: str | None = Option(
        "Where files go, made if it is not there; a name as talk.srt: the one document, in the format of its "
        "extension; - writes documents to standard output.",
        short="-o",
        metavar="DIR|FILE",
        unset="txt alone: the terminal; else: here",
    ).as_field(None)
    quiet: bool = Option(
        "Do not show the text on the terminal while documents go to files; a bar tells how far it is.",
        short="-q",
    ).as_field(False)
    colour_confidence: bool = Option(
        "Colour the words of the text on the terminal by how sure they are (needs --word-timestamps)."
    ).as_field(False)
    embed_audio: bool = Option("html: put the recording into the page, rather than a link to it.").as_field(
        False
    )
    output_file: Path | None = None


OUTPUT_FORMAT, OUTPUT_DIR, QUIET, COLOUR_CONFIDENCE, EMBED_AUDIO = options_of(OutputOptions)
LAYOUT = (*grouped("Layout"), EMBED_AUDIO)
SHORTEST_VOICE_S, LONGEST_VOICE_S = 1.0, 120.0
"""Of a known voice; more than a minute adds nothing."""
VOICES = grouped("Speakers", of=[one for one in LIBRARY if one.key == "speaker_voices"])
ENROLLED_VOICES = Option(
    "A recording of somebody alone, a few seconds, who has this name then. May be repeated.",
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
    from sottovoce.speakers.choose import parse_speakers

    options = parse_speakers(value.strip())
    assert isinstance(options, SpeakerOptions)
    return options


KEY = "SOTTOVOCE_TRANSLATION_KEY"


@dataclass(frozen=True, slots=True)
class TranslationOptions:
    """Where text is translated to, and by which server."""

    translate_to: str | None = Option(
        "Write a translation beside what was said, sentence by sentence; into English by Whisper, into "
        "others by --translation-url.",
        metavar="CODE",
    ).as_field(None)
    translation_url: str | None = Option(
        f"A server with OpenAI's chat API, as http://127.0.0.1:8080/v1; its key, if it wants one, in {KEY}.",
        metavar="URL",
    ).as_field(None)
    translation_model: str | None = Option("The model to ask there for.", metavar="NAME").as_field(None)
    glossary: str | None = Option(
        "Terms for the server, one a line: term = translation.", metavar="FILE"
    ).as_field(None)

    def chat_server(self) -> tuple[ChatServer, Glossary] | None:
        if self.translation_url is None:
            return None
        from sottovoce.translation.chat import ChatServer, Glossary

        if self.translation_model is None:
            raise OptionError("--translation-url: needs --translation-model, the name of the model there")
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
            f"--translate-to {target}: needs --translation-url; Whisper itself translates into English alone"
        )
    for name in ("translation_model", "glossary"):
        if getattr(options, name) is not None:
            raise OptionError(f"{flag_of(name)}: needs --translation-url")
    if "-" in files:
        raise OptionError(
            "--translate-to en: reads a recording twice, which standard input is not; give a file"
        )
    return Translation(code, None)


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What `transcribe` does with files, beside the decoding and the documents."""

    language: str = Option(
        "One language; auto: find that of the recording, and follow where it is surely in several; a list: "
        "follow it as it changes among these.",
        short="-l",
        metavar="auto|CODE[,CODE…]",
    ).as_field("auto")
    regroup: str | None = Option(
        "Cut and join segments, as 'split pause=0.5 after=.?!; merge letters=80' (needs --word-timestamps).",
        metavar="RULES",
    ).as_field(None)
    no_fallback: bool = Option("Keep to the first temperature, whatever comes out.").as_field(False)
    skip_existing: bool = Option("Leave out recordings whose documents are all there already.").as_field(
        False
    )
    fresh: bool = Option(
        "Begin recordings anew that an interrupted call left in the middle, rather than go on."
    ).as_field(False)
    print_special: bool = Option(
        "Write timestamps and other special tokens in txt, as the model does."
    ).as_field(False)
    processors: int = Option(
        "Processes that read one recording, cut at pauses; each holds the model.", least=1
    ).as_field(1)
    second_model: str | None = Option(
        "A larger model that reads again what the first is not sure of; a line says how much that was.",
        metavar="NAME|PATH",
    ).as_field(None)


@dataclass(frozen=True, slots=True)
class StreamFlags:
    """Where sound comes from, when it is decoded, and where events go."""

    mic: bool = Option("Listen to the microphone (needs the extra `mic`).").as_field(False)
    realtime: bool = Option(
        "Sound comes at its own speed: of updates that are late, the newest is done (as of pipes that are "
        "filled at that speed)."
    ).as_field(False)
    unaware: bool = Option("Do every update, however late (default of files).").as_field(False)
    input_format: str | None = Option(
        "Of samples without a header: FFmpeg's name, rate and channels, as mulaw, g722 or s16le:44100:2.",
        unset="a container, or s16le at 16 kHz",
        metavar="NAME[:RATE[:CHANNELS]]",
    ).as_field(None)
    chunk_ms: int = Option("Audio an update.", least=10).as_field(250)
    encoder: Literal["auto", "whole", "exact"] = Option(
        "An update encodes the newest audio beside what is kept; all audio held; or 30 s, as trained.",
        choices=("auto", "whole", "exact"),
    ).as_field("auto")
    no_vad: bool = Option("Decode silence too.").as_field(False)
    jsonl: bool = Option("One JSON event a line.").as_field(False)
    unstable: bool = Option("Another name of --captions revisable.").as_field(False)
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
    """Options of `sottovoce ctc` beside those of `sottovoce.ctc.config.DecoderConfig`."""

    config: Path | None = of_emissions(
        "decoder.toml, as `ctc tune` writes it; options that are given here win.", kind="file"
    ).as_field(None)
    model: str | None = of_emissions(
        "A model with a CTC head, such as nano: the files are then recordings."
    ).as_field(None)
    logits: bool = of_emissions("The files hold logits: take log_softmax first.").as_field(False)
    device: str = of_search("Of --neural-lm: cpu, cuda or cuda:N.").as_field("cpu")
    threads: int | None = of_search(
        "Threads that share the work.", unset="default: PyTorch's", least=1
    ).as_field(None)
    vocabulary_from: tuple[Path, ...] = of_words(
        "Documents (PDF, DOCX, text) whose rare words are boosted too.", kind="file", many=True
    ).as_field(())
