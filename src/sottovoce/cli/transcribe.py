"""`sottovoce transcribe`: recordings into documents; repeating the call resumes interrupted recordings.

Part files are JSON lines: a header with recording, model and options, then segments and, after every window,
a resume point.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from glob import escape as escape_glob
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import click

from sottovoce.cli.invocation import Invocation, invocation_of
from sottovoce.cli.options import (
    COLOUR_CONFIDENCE,
    DEFERRAL,
    FUSION,
    LAYOUT,
    MODEL,
    NAME_LANGUAGE,
    OF_TRANSLATION,
    OUTPUT_DIR,
    OUTPUT_FORMAT,
    OVERWRITE,
    QUIET,
    SPEAKERS,
    TASK,
    TRANSLATION,
    FusionOptions,
    ModelOptions,
    SectionedCommand,
    Translation,
    TranslationOptions,
    grouped,
    is_file,
    of_library,
    open_model,
    read_list,
    speakers_of,
)
from sottovoce.errors import AudioError, OptionError, cause_of
from sottovoce.formats.output import STANDARD_OUTPUT, document_names, is_device
from sottovoce.formats.pages import clock
from sottovoce.offline.regroup import Rule, parse_rules, regrouped
from sottovoce.options.decoding import (
    BEAM_SIZE,
    MOST_BEAM,
    WINDOW_VAD,
    DecodingOptions,
    DeferralOptions,
    FallbackOptions,
    VadOptions,
)
from sottovoce.options.schema import Option, Values, changed, from_values, options_of
from sottovoce.options.transcribe import TranscribeOptions, check_speaker_names
from sottovoce.text.disfluency import check_cleanable, check_verbatim
from sottovoce.text.files import fitting_name
from sottovoce.text.languages import (
    LanguageChoice,
    find_language,
    language_code,
    language_codes,
    language_name,
)
from sottovoce.types import Segment

if TYPE_CHECKING:
    from sottovoce.archive.multiprocess import MultiprocessTranscription
    from sottovoce.audio.io import AudioInfo
    from sottovoce.cli.documents import Documents
    from sottovoce.cli.progress import Progress
    from sottovoce.offline.resume import ResumePoint
    from sottovoce.offline.transcriber import SecondModel
    from sottovoce.offline.transcription import FileTranscription, TogetherTranscription
    from sottovoce.recogniser import Recogniser

logger = logging.getLogger(__name__)
FORMAT = "sottovoce part 1"
ENDING = ".part"
READ_WITH = (
    *("model", "second_model", "defer_logprob", "defer_word", "device", "dtype", "backend", "model_dir"),
    *("revision", "lm", "lm_weight", "hotwords", "hotword_weight", "vocabulary_from", "lexicon", "neural_lm"),
    *("decoder", "grammar", "grammar_rule", "grammar_penalty", "known_voices"),
)
"""Other options that change the text; the files that they name are compared too."""
ADVICE = "a smaller --batch-size or --beam-size, or a smaller --model"
MOST_PLACES, MOST_NAMED = 5, 3
SUBTITLES = frozenset({".srt", ".vtt", ".ass", ".ssa", ".sub", ".smi", ".ttml"})
"""Extensions of subtitles that media servers read."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    language: str = Option(
        "One language; auto: detect it, and follow clear changes; a list: follow changes among these.",
        short="-l --languages",
        metavar="auto|CODE[,CODE…]",
    ).as_field("auto")
    regroup: str | None = Option(
        "Split and merge segments, such as 'split pause=0.5 after=.?!; merge letters=80'.", metavar="RULES"
    ).as_field(None)
    no_fallback: bool = Option("Use only the first temperature.").as_field(False)
    skip_existing: bool = Option("Skip recordings whose documents all exist.", group="Output").as_field(False)
    skip_subtitled: bool = Option(
        "Skip videos with subtitles in the language of the documents, inside them or in a file such as "
        "talk.de.srt. A language that is not given is detected first.",
        group="Output",
    ).as_field(False)
    dry_run: bool = Option(
        "Say what would be written and skipped, and transcribe nothing.", group="Output"
    ).as_field(False)
    watch: bool = Option(
        "Transcribe the recordings of a folder, and new ones when they are complete, until Ctrl-C; those "
        "with newer documents are skipped (extra `watch`).",
        group="Output",
    ).as_field(False)
    settle_s: float = Option(
        "Seconds without a change after which a recording in a watched folder is complete.",
        key="settle",
        above=0.0,
        most=3600.0,
        group="Output",
    ).as_field(5.0)
    fresh: bool = Option(
        "Start interrupted recordings again instead of continuing them.", group="Output"
    ).as_field(False)
    print_special: bool = Option(
        "Include timestamps and other special tokens in txt.", group="Output"
    ).as_field(False)
    processors: int = Option(
        "Processes for one recording, which is split at pauses; each loads the model.", least=1
    ).as_field(1)
    together: bool = Option(
        "Transcribe recordings of one meeting, a speaker each, into one document; speakers are named after "
        "the files, or by --speaker-names.",
        group="Speakers",
    ).as_field(False)
    starts: str | None = Option(
        "Start of each recording in the meeting, or auto: by their time stamps.",
        unset="all begin together",
        metavar="auto|TIME,TIME…",
        group="Speakers",
    ).as_field(None)
    second_model: str | None = Option(
        "A larger model that decodes uncertain parts again; a line reports how much that was.",
        metavar="NAME|PATH",
    ).as_field(None)


FILES = {option.key: option for option in options_of(FileOptions)}
REGROUP, SETTLE = FILES["regroup"], FILES["settle"]
WORDS = (*of_library("Words"), REGROUP)
DECODING = {
    "Speech": of_library("Speech"),
    "Search": (*of_library("Search"), *FUSION),
    "When a result looks wrong": (*of_library("Fallback"), FILES["no_fallback"]),
    "Context": of_library("Context"),
}
LANGUAGE = {"Language": (FILES["language"], *of_library("Language"), *TASK), "Style": of_library("Style")}
SECTIONS = {
    "Output": (
        *(OUTPUT_FORMAT, OUTPUT_DIR, NAME_LANGUAGE, OVERWRITE, QUIET, COLOUR_CONFIDENCE),
        *grouped("Output", of=FILES.values()),
    ),
    "Subtitles and pages": LAYOUT,
    **LANGUAGE,
    "Parts of a recording": of_library("Times"),
    "Words": WORDS,
    "Speakers": (*SPEAKERS, *grouped("Speakers", of=FILES.values())),
    "Translation": TRANSLATION,
    **DECODING,
    "Model": (*MODEL, FILES["second_model"], *DEFERRAL, FILES["processors"]),
}
USUAL = (
    *("model", "language", "output_dir", "output_format", "word_timestamps", "speakers", "translate_to"),
    *("layout", "vad", "hotwords", "offset", "device"),
)
EXAMPLES = (
    ("sottovoce transcribe talk.mp3", "the text, on the terminal"),
    ("sottovoce transcribe film.mkv -o film.srt", "subtitles"),
    ("sottovoce transcribe *.m4a -f docx,json -o texts", "documents of several"),
    ("sottovoce transcribe call.wav -l de,en --speakers 2", "two languages, two speakers"),
    ("sottovoce transcribe talk.mp3 -m large-v3-turbo", "fewer errors, more time"),
)
EXCLUSIVE = {
    "processors": (
        *("prefix", "tinydiarize", "speakers", "channels", "clip_timestamps"),
        *("second_model", "lm", "grammar", "vocabulary_from"),
    ),
    "print_special": ("clean", "regroup", "colour_confidence", "second_model", "translate_to"),
    "second_model": ("clip_timestamps",),
    "verbatim": ("clean",),
    "watch": ("dry_run", "overwrite", "together"),
    "together": ("speakers", "channels", "tinydiarize", "processors"),
}


@click.command(
    cls=SectionedCommand,
    sections=SECTIONS,
    exclusive=EXCLUSIVE,
    needed={"together": ("starts",), **OF_TRANSLATION},
    usual=USUAL,
    examples=EXAMPLES,
)
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.pass_context
def transcribe(context: click.Context, /, files: tuple[str, ...], **given: object) -> int:
    """Transcribe recordings: any audio or video file, a folder of them, `-` for one from standard input.

    Documents are named after their recordings: talk.srt for talk.mp3. Recordings of the same name keep their
    extension, talk.mp3.srt and talk.wav.srt, or their folder, monday-talk.mp3.srt and friday-talk.mp3.srt. A
    recording given twice has one document. Those of a folder keep its subfolders. Documents are UTF-8, in
    files and in pipes.
    """
    options = transcribe_options({**given, "speaker_names": ()} if given["together"] else given)
    models = Models(given)
    if given["together"]:
        return transcribe_files(context, Inputs.together_of(files, given), options, models)
    if not given["watch"]:
        return transcribe_files(context, Inputs.of(files), options, models)
    from sottovoce.archive.results import watched_recordings

    folder = files[0]
    if len(files) > 1:
        raise OptionError(f"--watch: expected one folder, got {len(files)} names")
    for items in watched_recordings(folder, settle_s=from_values(FileOptions, given).settle_s):
        names = [item.path for item in items]
        transcribe_files(context, Inputs(names, dict.fromkeys(names, Path(folder))), options, models)
    return 0


@dataclass(frozen=True, slots=True)
class Inputs:
    """Names of recordings. trees: the folder that was named instead of a recording, by its name. speakers:
    recordings of one meeting, by the name of their speaker; the first is in `names`.
    """

    names: Sequence[str]
    trees: Mapping[str, Path] = field(default_factory=dict)
    speakers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Sequence[str]) -> Inputs:
        """Replace folders by the recordings in them; one without any stays, and cannot be read."""
        from sottovoce.archive.results import recordings_in

        names: list[str] = []
        trees: dict[str, Path] = {}
        for name in given:
            inside = [item.path for item in recordings_in(Path(name))] if name else []
            names += inside or [name]
            trees |= dict.fromkeys(inside, Path(name))
        return cls(names, trees)

    @classmethod
    def together_of(cls, files: Sequence[str], given: Values) -> Inputs:
        speakers = given["speaker_names"] or tuple(document_names(files).values())
        if len(files) != len(set(files)) or len(files) < 2:
            raise OptionError("--together: expected several different recordings")
        check_speaker_names(speakers, None)
        if len(speakers) != len(files):
            raise OptionError(
                f"--speaker-names: expected {len(files)}, a recording each, got {len(speakers)}"
            )
        return cls(files[:1], speakers=dict(zip(speakers, files, strict=True)))


@dataclass
class Models:
    """The models of a call, loaded at their first use."""

    given: Values

    @property
    def load(self) -> Callable[[], Recogniser]:
        options = from_values(ModelOptions, self.given), from_values(FusionOptions, self.given)
        return partial(open_model, *options)

    @cached_property
    def first(self) -> Recogniser:
        return self.load()

    @cached_property
    def second(self) -> SecondModel | None:
        name = from_values(FileOptions, self.given).second_model
        if name is None:
            return None
        loaded = replace(from_values(ModelOptions, self.given), model=name)
        model = open_model(loaded, from_values(FusionOptions, self.given))
        return model.as_second(from_values(DeferralOptions, self.given))


def transcribe_options(given: Values) -> TranscribeOptions:
    vad = [option.key for option in options_of(VadOptions) if given.get(option.key) is not None]
    implies_vad = given["batch_size"] != 1 or given["channels"] == "apart" or vad
    language = LanguageChoice.parse(given["language"], language_codes()).fixed
    if language is not None and given["task"] == "transcribe":
        if given["verbatim"]:
            check_verbatim(language)
        if given["clean"]:
            check_cleanable(language)
    if given["initial_prompt"] and given["max_context"] == 0 and not given["carry_initial_prompt"]:
        raise OptionError("--initial-prompt: needs --carry-initial-prompt, or --max-context above 0")
    prompt, tried = from_values(FusionOptions, given).prompt, given["temperature"]
    options = from_values(
        TranscribeOptions,
        given,
        mode="vad" if implies_vad else given["mode"] or "seek",
        word_timestamps=given["word_timestamps"] or given.get("hallucination_silence_threshold") is not None,
        decoding=from_values(DecodingOptions, given, hotwords=prompt, task="transcribe"),
        fallback=from_values(
            FallbackOptions, given, temperatures=tried[:1] if given["no_fallback"] else tried
        ),
        vad=changed(WINDOW_VAD, {key: given[key] for key in vad}) if vad else None,
        speakers=speakers_of(given),
    )
    if options.audio_filter is not None or options.input_format is not None:
        from sottovoce.audio.io import check_reading  # imports FFmpeg

        check_reading(options.audio_filter, options.input_format)
    return options


PartHeader: TypeAlias = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class StoredPart:
    """is_foreign: no part file, or unreadable, and left alone. matches: the header is the same. n_bytes: up
    to the last resume point.
    """

    is_foreign: bool = False
    matches: bool = False
    segments: Sequence[Segment] = ()
    point: ResumePoint | None = None
    n_bytes: int = 0


def read_part(path: Path, header: PartHeader) -> StoredPart | None:
    try:
        with path.open("rb") as file:
            first = _row(file.readline())
            if first is None or first.get("format") != FORMAT:
                return StoredPart(is_foreign=True)
            return _read_rows(file) if first == header else StoredPart()
    except FileNotFoundError:
        return None
    except OSError:
        return StoredPart(is_foreign=True)


def _read_rows(file: BinaryIO) -> StoredPart:
    from sottovoce.offline.resume import ResumePoint, segment_of_json

    segments: list[Segment] = []
    stored = StoredPart(matches=True)
    n_bytes = file.tell()
    for line in file:
        n_bytes += len(line)
        row = _row(line)
        if row is None:
            break
        try:
            if "segment" in row:
                segments.append(segment_of_json(row["segment"]))
            else:
                point = ResumePoint.of_json(row.get("point"))
                stored = StoredPart(False, True, tuple(segments), point, n_bytes)
        except OptionError:
            break
    return stored


def _row(line: bytes) -> dict[str, object] | None:
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


@dataclass(slots=True)
class PartWriter:
    """Writes a part file: everything up to each resume point at once. Failures are a warning.

    n_bytes: size of the file to append to; 0 starts a new one.
    """

    path: Path
    header: PartHeader
    n_bytes: int = 0
    _lines: list[str] = field(default_factory=list)
    _point: ResumePoint | None = None
    _file: BinaryIO | None = None
    _has_failed: bool = False
    _synced_s: float = 0.0

    def add(self, segment: Segment) -> None:
        self._lines.append(_line({"segment": asdict(segment)}))

    def note(self, point: ResumePoint | None) -> None:
        if point is None or point is self._point or self._has_failed:
            return
        self._point = point
        lines = [*self._lines, _line({"point": point.to_json()})]
        self._lines.clear()
        try:
            self._file = self._file or self._opened()
            self._file.write("".join(lines).encode())
            self._file.flush()
            if time.monotonic() - self._synced_s >= 5.0:  # writes to the disk wait for it
                os.fsync(self._file.fileno())
                self._synced_s = time.monotonic()
        except OSError as error:
            self._has_failed = True
            self.remove()
            logger.warning("%s: nothing is kept in case of a break (%s)", self.path, cause_of(error))

    def _opened(self) -> BinaryIO:
        file = self.path.open("r+b" if self.n_bytes else "wb")
        file.truncate(self.n_bytes)
        file.seek(self.n_bytes)
        if not self.n_bytes:
            file.write(_line(self.header).encode())
        return file

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def remove(self) -> None:
        self.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def recorded(transcription: FileTranscription, writer: PartWriter) -> Iterator[Segment]:
    for segment in transcription:
        writer.note(transcription.resume_point)  # which lies before this segment
        writer.add(segment)
        yield segment
    writer.note(transcription.resume_point)


def _line(row: Mapping[str, object]) -> str:
    return json.dumps(row) + "\n"


@dataclass(frozen=True, slots=True)
class TranscribeRun:
    """State shared by all files of a call."""

    models: Models
    options: TranscribeOptions
    files: FileOptions
    documents: Documents
    progress: Progress
    invocation: Invocation
    translation: Translation | None
    rules: Sequence[Rule]
    headers: Mapping[str, AudioInfo | None]
    inputs: Inputs
    starts_s: Sequence[float]

    def part_header(self, name: str) -> PartHeader | None:
        """Return the header that a part file must match; None if the input cannot be resumed."""
        if self.files.processors > 1 or self.inputs.speakers or not os.path.isfile(name):
            return None
        from importlib.metadata import version

        about = os.stat(name)
        named = {option: _with_files(self.models.given[option]) for option in READ_WITH}
        return {
            "format": FORMAT,
            "version": version("sottovoce"),
            "model": self.models.first.name,
            "options": f"{named!r} {self.options!r}",
            "size_bytes": about.st_size,
            "changed_ns": about.st_mtime_ns,
        }

    def clock(self, point: ResumePoint) -> str:
        return clock(point.position + self.options.offset_s)


def _with_files(value: object) -> object:
    values = [str(text) for text in (value if isinstance(value, tuple | list) else [value])]
    voices = [text.partition("=")[2] for text in values]  # of NAME=FILE
    files = [os.stat(text) for text in (*values, *voices) if is_file(text)]
    return value, [(file.st_size, file.st_mtime_ns) for file in files]


def transcribe_files(
    context: click.Context, given_inputs: Inputs, options: TranscribeOptions, models: Models
) -> int:
    from sottovoce.cli.documents import documents_of
    from sottovoce.cli.progress import Progress, exit_code, for_each_file, read_headers

    invocation, given, names = invocation_of(context), models.given, given_inputs.names
    files, fusion = from_values(FileOptions, given), from_values(FusionOptions, given)
    fusion.check(given["beam_size"], options.fallback.temperatures)
    if files.processors > 1 and "-" in names:
        raise OptionError("--processors: expected a file, which every process reads, got standard input")
    if files.processors > 1 and fusion.phrase_file is not None:
        raise OptionError("--processors: cannot be combined with a file of --hotwords")
    rules = () if files.regroup is None else parse_rules(files.regroup)
    translation = from_values(TranslationOptions, given).translation(given["task"])
    if translation is not None and translation.translator is None:
        options = replace(options, with_english=True)
    has_speakers = (
        options.speakers is not None or options.channels != "mixed" or options.decoding.speaker_turns
    ) or bool(given_inputs.speakers)
    language = language_written(given)
    documents = documents_of(
        context, names, has_speakers=has_speakers, trees=given_inputs.trees, language=language
    )
    if rules or documents.need_words:
        options = replace(options, word_timestamps=True)
    inputs = documents.inputs(names)
    skipped = dict.fromkeys(
        (name for name in inputs if is_done(name, documents, files)), "its documents are there"
    )
    wanted = [name for name in inputs if name not in skipped]
    together = list(given_inputs.speakers.values())
    headers = read_headers([*wanted, *together], invocation, options)
    if any(name not in headers for name in together):
        return 2
    starts_s = starts_of(files.starts, [headers[name] for name in together])
    if files.skip_subtitled:
        for name, info in headers.items():
            if (place := subtitled(name, info, language, models, options)) is not None:
                skipped[name] = f"it has subtitles: {place}"
    if skipped and not files.watch:
        Progress(len(inputs)).note(skipped_line(skipped, len(inputs)))
    for name, cause in skipped.items():
        logger.info("%s: skipped, %s", name, cause)
    if (given["beam_size"] or 1) > MOST_BEAM:
        size = given["beam_size"]
        Progress(1).note(
            f"--beam-size {size}: about {size // BEAM_SIZE} times the work of the default, {BEAM_SIZE}"
        )
    left = [name for name in wanted if name in headers and name not in skipped]
    n_refused = sum(name not in headers for name in wanted)
    if files.dry_run:
        for name in left:
            click.echo(f"{name} -> {', '.join(map(str, documents.places(name)))}")
        for name, cause in skipped.items():
            click.echo(f"{name}: skipped, {cause}")
        return exit_code(n_refused, len(inputs))
    if not left:
        return exit_code(n_refused, len(inputs))
    model = models.first
    beam_size = given["beam_size"] or model.beam_size
    run = TranscribeRun(
        models=models,
        options=model.options(options, language=files.language, task=given["task"], beam_size=beam_size),
        files=files,
        documents=documents,
        progress=Progress(len(left), quiet=documents.is_text_on_terminal),
        invocation=invocation,
        translation=translation,
        rules=rules,
        headers=headers,
        inputs=given_inputs,
        starts_s=starts_s,
    )
    try:
        return for_each_file(
            left,
            partial(transcribe_file, run=run),
            progress=run.progress,
            invocation=invocation,
            advice=ADVICE,
            n_refused=n_refused,
            n_skipped=len(skipped),
        )
    except KeyboardInterrupt:
        if run.progress.n_ended and documents.paths is not None and not files.watch:
            done = f"{run.progress.n_ended} of {len(left)} done"
            run.progress.note(f"{done}; with --skip-existing the same call leaves out those with documents")
        raise


def language_written(given: Values) -> str | None:
    """Return the language of the documents, or None if it is that of the recording."""
    if given["translate_to"]:
        return find_language(given["translate_to"])
    return (
        "en"
        if given["task"] == "translate"
        else LanguageChoice.parse(given["language"], language_codes()).fixed
    )


def starts_of(starts: str | None, headers: Sequence[AudioInfo | None]) -> list[float]:
    """Return the start (s) of each recording in a meeting. starts: the option. Raises: OptionError."""
    if starts is None:
        return [0.0] * len(headers)
    if starts != "auto":
        times = list(read_list("times", "--starts", starts))
        if len(times) != len(headers):
            raise OptionError(f"--starts: expected {len(headers)} times, a recording each, got {len(times)}")
        return times
    stamps = [info.began_s for info in headers if info is not None and info.began_s is not None]
    if len(stamps) < len(headers):
        raise OptionError("--starts auto: expected a time stamp in each recording, got some without")
    return [stamp - min(stamps) for stamp in stamps]


def is_done(name: str, documents: Documents, files: FileOptions) -> bool:
    if files.watch:
        return documents.are_there(name, since_ns=os.stat(name).st_mtime_ns)
    return files.skip_existing and documents.are_there(name)


def subtitled(
    name: str, info: AudioInfo | None, language: str | None, models: Models, options: TranscribeOptions
) -> str | None:
    """Return where a video has subtitles in a language, or in that of its speech, or None."""
    from sottovoce.audio.io import Source

    places = {language_code(tag): "inside" for tag in (info.subtitles if info is not None else ())}
    recording = Path(name)
    for path in recording.parent.glob(f"{escape_glob(recording.stem)}.*"):
        tags = path.name.removeprefix(f"{recording.stem}.").split(".")[:-1]
        if path.suffix.lower() in SUBTITLES:
            places |= {language_code(tag): path.name for tag in tags}
    if not places:
        return None
    if language is None:
        allowed = LanguageChoice.parse(models.given["language"], language_codes()).allowed
        source = Source.of(name, options)
        language = models.first.detect_language(source, languages=list(allowed) or None).language
    return places.get(language)


@contextmanager
def resuming(name: str, run: TranscribeRun) -> Iterator[tuple[StoredPart, PartWriter | None]]:
    """Read the stored part of a recording, and write what follows; None: it cannot be resumed."""
    place = run.documents.places(name)[0]
    has_file = str(place) != STANDARD_OUTPUT and not is_device(Path(place))
    header = run.part_header(name) if has_file else None
    if header is None:
        yield StoredPart(), None
        return
    path = Path(place).with_name(fitting_name(Path(place).name, ENDING))
    stored = read_part(path, header)
    if stored is not None and stored.is_foreign:
        run.progress.note(
            f"{name}: '{path}' is another program's, or cannot be read; nothing is kept in case of a break"
        )
        yield StoredPart(), None
        return
    if stored is not None and (run.files.fresh or stored.point is None):
        if run.files.fresh:
            run.progress.note(f"{name}: begun anew")
        elif not stored.matches:
            run.progress.note(f"{name}: begun anew, '{path}' is of another recording, model or other options")
        stored = None
    if stored is not None and stored.point is not None:
        run.progress.note(f"{name}: going on at {run.clock(stored.point)}")
    stored = stored or StoredPart()
    writer = PartWriter(path, header, stored.n_bytes)
    try:
        yield stored, writer
    except AudioError:
        writer.remove()  # the same call would fail again
        raise
    except KeyboardInterrupt:
        kept = read_part(path, header)  # an interrupt may have come in the middle of a line
        if kept is not None and kept.point is not None:
            at = run.clock(kept.point)
            run.progress.note(f"{name}: the same call goes on at {at} ('{path}' has what was read)")
        raise
    finally:
        writer.close()
    writer.remove()


def begin(
    name: str, run: TranscribeRun, resume: ResumePoint | None
) -> FileTranscription | MultiprocessTranscription | TogetherTranscription:
    model, second = run.models.first, run.models.second
    if speakers := run.inputs.speakers:
        return model.transcribe_together(speakers, starts_s=run.starts_s, options=run.options, second=second)
    if run.files.processors > 1:
        from sottovoce.archive.multiprocess import transcribe_parts

        return transcribe_parts(model, run.models.load, name, run.options, run.files.processors)
    return model.transcribe(name, options=run.options, second=second, resume=resume)


def transcribe_file(name: str, run: TranscribeRun) -> None:
    from sottovoce.offline.transcription import FileTranscription, spoken_most, turns_of

    info, model = run.headers[name], run.models.first
    if info is not None and len(info.tracks) > 1:
        run.progress.note(track_line(info))
    with resuming(name, run) as (stored, part), ExitStack() as stack:
        transcription = begin(name, run, stored.point)
        stack.callback(transcription.close)
        raw: Iterable[Segment] = transcription
        if part is not None and isinstance(transcription, FileTranscription):
            raw = chain(stored.segments, recorded(transcription, part))
        outputs = stack.enter_context(run.documents.opened(name))
        begun = replace(run.documents.info(name, model.name, run.options), token_text=model.token_text)
        segments = regrouped(raw, run.rules) if run.rules else raw
        if run.translation is not None:
            begun = replace(begun, translation=run.translation.target)
            segments = run.translation.of(segments, run.options.text_filters)
        for writer, write in outputs:
            write(writer.begin(begun))
        has_text = False
        for segment in segments:
            run.invocation.interrupts.check()
            has_text = True
            if run.files.print_special:
                text = model.with_timestamps(segment.tokens)
                segment = replace(segment, text=text, words=None)
            for writer, write in outputs:
                write(writer.segment(segment))
            run.progress.segment(segment, transcription.position, transcription.duration)
        run.invocation.interrupts.check()
        language, turns = transcription.language, transcription.turns
        if stored.segments and isinstance(transcription, FileTranscription):
            whole = [*stored.segments, *transcription.segments]
            language = spoken_most(whole)
            turns = turns if run.options.is_diarized else turns_of(whole)
        ended = replace(
            begun,
            language=language,
            duration=transcription.duration,
            turns=turns,
            unread=transcription.unread,
            language_probability=transcription.language_probability,
            language_probabilities=transcription.language_probabilities,
        )
        for writer, write in outputs:
            write(writer.end(ended))
        if not has_text and not transcription.unread:
            chosen = run.options.only_languages or run.options.except_languages
            what = "no speech in the languages of the options" if chosen else "no speech"
            run.progress.note(f"{name}: {what} was found")
        for note in summary_of(transcription, run):
            run.progress.note(f"{name}: {note}")
    run.progress.written(run.documents.renamed(name, language or ""))


def summary_of(
    transcription: FileTranscription | MultiprocessTranscription | TogetherTranscription, run: TranscribeRun
) -> Iterator[str]:
    second_s = getattr(transcription, "second_s", 0.0)
    if second_s > 0.0:
        duration_s = transcription.duration
        share = f" of {duration_s:.1f} s ({second_s / duration_s:.0%})" if duration_s else ""
        yield f"{second_s:.1f} s{share} were in doubt and read by {run.files.second_model}"
    if unread := transcription.unread:
        total = sum(end - start for start, end in unread)
        places = ", ".join(f"{clock(start)}-{clock(end)}" for start, end in unread[:MOST_PLACES])
        more = ", …" if len(unread) > MOST_PLACES else ""
        yield f"no words found in {total:.1f} s of speech: {places}{more}"
    among = ", ".join(run.options.decoding.allowed_languages)
    for code, seconds in transcription.outside_languages.items():
        yield f"{seconds:.1f} s sound like {language_name(code)} ({code}), which is not among {among}"
    if run.options.decoding.speaker_turns and len(transcription.turns) < 2:
        yield "no change of speaker was marked: --tinydiarize needs a checkpoint that has learnt to"


def skipped_line(skipped: Mapping[str, str], n_inputs: int) -> str:
    names = list(skipped)
    named = ", ".join(names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    causes = " or ".join(dict.fromkeys(cause.partition(":")[0] for cause in skipped.values()))
    return f"{len(names)} of {n_inputs} skipped, {causes.replace('its', 'their')}: {named}{more}"


def track_line(info: AudioInfo) -> str:
    others = ", ".join(str(track) for track in info.tracks if track != info.track)
    return f"{info.name}: audio track {info.track} of {len(info.tracks)}; others: {others} (--audio-track)"
