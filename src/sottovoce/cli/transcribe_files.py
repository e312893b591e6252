"""Transcription of files into documents; repeating the call resumes interrupted recordings.

Part files are JSON lines: a header with recording, model and options, then segments and, after every window,
a resume point. An incomplete line is ignored.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from sottovoce.api import Model
from sottovoce.archive.multiprocess import MultiprocessTranscription, transcribe_parts
from sottovoce.audio.io import AudioInfo, probe_audio
from sottovoce.cli.documents import Documents, documents_of
from sottovoce.cli.flags import Given, given_as, value_of
from sottovoce.cli.invocation import Interrupts, Invocation
from sottovoce.cli.options import (
    FileOptions,
    FusionOptions,
    ModelOptions,
    OutputOptions,
    Translation,
    TranslationOptions,
    fusion_of,
    is_file,
    open_model,
    translation_of,
)
from sottovoce.cli.progress import Progress, exit_code, for_each_file, source_of
from sottovoce.errors import AudioError, OptionError, cause_of
from sottovoce.formats.output import STANDARD_INPUT, STANDARD_OUTPUT
from sottovoce.formats.paragraphs import clock
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.offline.regroup import Rule, parse_rules, regrouped
from sottovoce.offline.resume import ResumePoint, segment_of_json, segment_to_json
from sottovoce.offline.transcriber import SecondModel
from sottovoce.offline.transcription import FileTranscription, spoken_most
from sottovoce.options.fallback import DeferralOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.writer import WriterOptions
from sottovoce.text.languages import language_name
from sottovoce.types import Segment, Task

logger = logging.getLogger(__name__)
FORMAT = "sottovoce part 1"
ENDING = ".part"
SYNC_S = 5.0
READ_WITH = (
    "model",
    "second_model",
    "defer_logprob",
    "defer_word",
    "device",
    "dtype",
    "backend",
    "model_dir",
    "revision",
    "lm",
    "lm_weight",
    "hotwords",
    "hotword_weight",
    "vocabulary_from",
    "grammar",
    "grammar_rule",
    "grammar_penalty",
)
"""Other options that change the text; the files that they name are compared too."""
ADVICE = "a smaller --batch-size or --beam-size, or a smaller --model"
MOST_PLACES, MOST_NAMED = 5, 3


PartHeader: TypeAlias = Mapping[str, str | int]
"""Format of a part file, and the conditions under which it is valid."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """is_foreign: not a part file, and left alone. matches: recording, model and options are the same.
    n_bytes: up to the last resume point.
    """

    is_foreign: bool = False
    matches: bool = False
    segments: Sequence[Segment] = ()
    point: ResumePoint | None = None
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FileStart:
    """writer: of the part file, or None. stored: the file's content. note: message to show, or None."""

    writer: PartWriter | None = None
    stored: StoredPart = field(default_factory=StoredPart)
    note: str | None = None


def read_part(path: Path, header: PartHeader) -> StoredPart | None:
    try:
        with path.open("rb") as file:
            first = _row(file.readline())
            if first is None or first.get("format") != FORMAT:
                return StoredPart(is_foreign=True)
            if first != header:
                return StoredPart()
            return _read_rows(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OptionError(f"part file '{path}': cannot be read ({cause_of(error)})") from error


def _read_rows(file: BinaryIO) -> StoredPart:
    segments: list[Segment] = []
    found = StoredPart(matches=True)
    n_bytes = file.tell()
    for line in file:
        n_bytes += len(line)
        row = _row(line)
        if row is None:
            break
        try:
            if "segment" in row:
                segments.append(segment_of_json(cast(Mapping[str, object], row["segment"])))
            else:
                point = ResumePoint.of_json(row["point"])
                found = StoredPart(False, True, tuple(segments), point, n_bytes)
        except (KeyError, TypeError, ValueError, OptionError):
            break
    return found


def _row(line: bytes) -> dict[str, object] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


@dataclass(slots=True)
class PartWriter:
    """Writes a part file: everything up to each resume point at once. n_bytes: size of the file to append to;
    0 starts a new one. Write failures are a warning.
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
        self._lines.append(_line({"segment": segment_to_json(segment)}))

    def note(self, point: ResumePoint | None) -> None:
        if point is None or point is self._point or self._has_failed:
            return
        self._point = point
        lines = [*self._lines, _line({"point": point.to_json()})]
        self._lines.clear()
        try:
            self._write("".join(lines).encode())
        except OSError as error:
            self._has_failed = True
            logger.warning("%s: nothing is kept in case of a break (%s)", self.path, cause_of(error))

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._opened()
        self._file.write(data)
        self._file.flush()
        if time.monotonic() - self._synced_s >= SYNC_S:
            os.fsync(self._file.fileno())
            self._synced_s = time.monotonic()

    def _opened(self) -> BinaryIO:
        if self.n_bytes:
            file = self.path.open("r+b")
            file.truncate(self.n_bytes)
            file.seek(self.n_bytes)
            return file
        begun = self.path.open("wb")
        begun.write(_line(self.header).encode())
        return begun

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


def file_start_of(
    name: str,
    places: Sequence[Path | str],
    header: PartHeader | None,
    *,
    is_fresh: bool,
    offset_s: float = 0.0,
) -> FileStart:
    if header is None or str(places[0]) == STANDARD_OUTPUT:
        return FileStart()
    path = Path(f"{places[0]}{ENDING}")
    stored = read_part(path, header)
    if stored is None:
        return FileStart(PartWriter(path, header))
    if stored.is_foreign:
        return FileStart(note=f"{name}: '{path}' is another program's; nothing is kept in case of a break")
    if is_fresh or stored.point is None:
        reason = "" if is_fresh else f", '{path}' is of another recording, model or other options"
        begun = None if stored.matches and not is_fresh else f"{name}: begun anew{reason}"
        return FileStart(PartWriter(path, header), note=begun)
    writer = PartWriter(path, header, stored.n_bytes)
    return FileStart(writer, stored, f"{name}: going on at {clock(stored.point.position + offset_s)}")


def header_of(name: str, model: str, given: Given, options: TranscribeOptions) -> PartHeader | None:
    """Create the header that a part file has to match; None if the input cannot be resumed."""
    is_resumable = options.is_resumable and given["processors"] == 1
    if not is_resumable or not os.path.isfile(name):
        return None
    about = os.stat(name)
    named = {one: _with_files(given[one]) for one in READ_WITH if one in given}
    return {
        "format": FORMAT,
        "version": version("sottovoce"),
        "model": model,
        "options": f"{named!r} {options!r}",
        "size_bytes": about.st_size,
        "changed_ns": about.st_mtime_ns,
    }


def _with_files(value: object) -> object:
    values = value if isinstance(value, tuple | list) else [value]
    files = [os.stat(one) for one in map(str, values) if is_file(one)]
    return value, [(one.st_size, one.st_mtime_ns) for one in files]


@dataclass(frozen=True, slots=True)
class TranscribeRun:
    """State shared by all files of a call. given: its options."""

    model: Model
    loaded: ModelOptions
    options: TranscribeOptions
    files: FileOptions
    fusion: ShallowFusion | None
    second: SecondModel | None
    documents: Documents
    progress: Progress
    interrupts: Interrupts
    translation: Translation | None
    rules: Sequence[Rule]
    notes: Mapping[str, str]
    given: Given


def transcribe_files(
    names: Sequence[str],
    given: Given,
    options: TranscribeOptions,
    output: OutputOptions,
    invocation: Invocation,
) -> int:
    """Transcribe every file; return the exit code. Raises: SottovoceError."""
    files, fusion = given_as(FileOptions, given), given_as(FusionOptions, given)
    loaded = given_as(ModelOptions, given)
    fusion.check(value_of(given, "beam_size", int) or 1, options.fallback.temperatures)
    if files.processors > 1 and "-" in names:
        raise OptionError("--processors: expected a file, which every process reads, got standard input")
    if files.processors > 1 and fusion.phrase_file is not None:
        raise OptionError("--processors: cannot be combined with a file of --hotwords")
    if files.print_special and output.output_format != "txt":
        raise OptionError("--print-special: needs --output-format txt")
    rules = () if files.regroup is None else parse_rules(files.regroup)
    if rules and not options.needs_words:
        raise OptionError("--regroup: needs --word-timestamps")
    task = value_of(given, "task", str) or "transcribe"
    translation = translation_of(given_as(TranslationOptions, given), task, names)
    has_speakers = (
        options.speakers is not None or options.channels != "mixed" or options.decoding.speaker_turns
    )
    if "rttm" in output.output_format.split(",") and not has_speakers:
        raise OptionError("output format 'rttm': needs --speakers, --channels or --tinydiarize")
    documents = documents_of(
        names,
        output,
        given_as(WriterOptions, given),
        has_words=options.needs_words,
        has_speakers=has_speakers,
    )
    inputs = inputs_to_read(documents.inputs(names), documents, files, options, invocation)
    if not inputs.left:
        return exit_code(inputs.n_refused, inputs.n_refused + inputs.n_skipped)
    model = open_model(loaded)
    run = TranscribeRun(
        model=model,
        loaded=loaded,
        options=model.options(files.language, cast(Task, task), None, None, options),
        files=files,
        fusion=fusion_of(model, fusion),
        second=second_of(files, loaded, fusion, given_as(DeferralOptions, given)),
        documents=documents,
        progress=Progress(len(inputs.left), quiet=documents.is_text_on_terminal),
        interrupts=invocation.interrupts,
        translation=translation,
        rules=rules,
        notes=inputs.notes,
        given=given,
    )
    return for_each_file(
        inputs.left,
        lambda name: transcribe_file(name, run),
        progress=run.progress,
        invocation=invocation,
        advice=ADVICE,
        n_refused=inputs.n_refused,
        n_skipped=inputs.n_skipped,
    )


def second_of(
    files: FileOptions, loaded: ModelOptions, fusion: FusionOptions, deferral: DeferralOptions
) -> SecondModel | None:
    if files.second_model is None:
        return None
    model = open_model(replace(loaded, model=files.second_model))
    return model.as_second(deferral, fusion_of(model, fusion))


@contextmanager
def resuming(name: str, run: TranscribeRun) -> Iterator[FileStart]:
    begun_at = file_start_of(
        name,
        run.documents.places(name),
        header_of(name, run.model.name, run.given, run.options),
        is_fresh=run.files.fresh,
        offset_s=run.options.offset_s,
    )
    if begun_at.note is not None:
        run.progress.note(begun_at.note)
    writer = begun_at.writer
    if writer is None:
        yield begun_at
        return
    try:
        yield begun_at
    except AudioError:
        writer.remove()  # the same call would fail again
        raise
    except KeyboardInterrupt:
        stored = read_part(writer.path, writer.header)  # an interrupt may have come in the middle of a line
        if stored is not None and stored.point is not None:
            at = clock(stored.point.position + run.options.offset_s)
            run.progress.note(f"{name}: the same call goes on at {at} ('{writer.path}' has what was read)")
        raise
    finally:
        writer.close()
    writer.remove()


def begin(
    name: str, run: TranscribeRun, resume: ResumePoint | None
) -> FileTranscription | MultiprocessTranscription:
    if run.files.processors > 1:
        load = partial(open_model, run.loaded)
        return transcribe_parts(run.model, load, name, run.options, run.files.processors)
    return run.model.transcribe(
        source_of(name), options=run.options, fusion=run.fusion, second=run.second, resume=resume
    )


def transcribe_file(name: str, run: TranscribeRun) -> None:
    if name in run.notes:
        run.progress.note(run.notes[name])
    with resuming(name, run) as begun_at, ExitStack() as stack:
        transcription = begin(name, run, begun_at.stored.point)
        stack.callback(transcription.close)
        raw: Iterable[Segment] = transcription
        if begun_at.writer is not None and isinstance(transcription, FileTranscription):
            raw = chain(begun_at.stored.segments, recorded(transcription, begun_at.writer))
        outputs = stack.enter_context(run.documents.opened(name))
        begun = replace(run.documents.info(name, run.model.name), token_text=run.model.tokenizer.token_text)
        segments = regrouped(raw, run.rules) if run.rules else raw
        if run.translation is not None:
            begun = replace(begun, translation=run.translation.target)
            segments = run.translation.of(segments, run.model, name, run.options)
        for writer, output in outputs:
            output.write(writer.begin(begun))
        for segment in segments:
            run.interrupts.check()
            if run.files.print_special:
                text = run.model.tokenizer.decode_with_timestamps(segment.tokens)
                segment = replace(segment, text=text, words=None)
            for writer, output in outputs:
                output.write(writer.segment(segment))
            run.progress.segment(segment, transcription.position, transcription.duration)
        run.interrupts.check()
        language = transcription.language
        if begun_at.stored.segments and isinstance(transcription, FileTranscription):
            language = spoken_most([*begun_at.stored.segments, *transcription.segments])
        ended = replace(
            begun,
            language=language,
            duration=transcription.duration,
            turns=transcription.turns,
            unread=transcription.unread,
            language_probability=transcription.language_probability,
            language_probabilities=transcription.language_probabilities,
        )
        for writer, output in outputs:
            output.write(writer.end(ended))
        for note in summary_of(transcription, run):
            run.progress.note(f"{name}: {note}")


def summary_of(
    transcription: FileTranscription | MultiprocessTranscription, run: TranscribeRun
) -> Iterator[str]:
    second_s = transcription.second_s if isinstance(transcription, FileTranscription) else 0.0
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


@dataclass(frozen=True, slots=True)
class Inputs:
    """left: inputs to read. notes: about those with several tracks. n_refused: unreadable; n_skipped:
    finished.
    """

    left: Sequence[str]
    notes: Mapping[str, str] = field(default_factory=dict)
    n_refused: int = 0
    n_skipped: int = 0


def inputs_to_read(
    inputs: Sequence[str],
    documents: Documents,
    files: FileOptions,
    options: TranscribeOptions,
    invocation: Invocation,
) -> Inputs:
    lines = Progress(len(inputs))
    skipped = [name for name in inputs if files.skip_existing and documents.are_there(name)]
    if skipped:
        lines.note(skipped_line(skipped, len(inputs)))
        for name in skipped:
            logger.info("%s: skipped, its documents are there", name)
    left = []
    notes: dict[str, str] = {}
    n_refused = 0
    for name in [name for name in inputs if name not in set(skipped)]:
        try:
            info = info_of(name, options.audio_track, options.input_format)
        except AudioError as error:
            lines.failed(str(error), invocation.trace())
            n_refused += 1
            continue
        left.append(name)
        if info is not None and len(info.tracks) > 1:
            notes[name] = track_line(info)
    return Inputs(left, notes, n_refused, len(skipped))


def skipped_line(skipped: Sequence[str], n_inputs: int) -> str:
    named = ", ".join(skipped[:MOST_NAMED])
    more = f" and {len(skipped) - MOST_NAMED} more" if len(skipped) > MOST_NAMED else ""
    return f"{len(skipped)} of {n_inputs} skipped, their documents are there: {named}{more}"


def track_line(info: AudioInfo) -> str:
    others = ", ".join(str(track) for track in info.tracks if track != info.track)
    return f"{info.name}: audio track {info.track} of {len(info.tracks)}; others: {others} (--audio-track)"


def info_of(name: str, audio_track: int | str | None, input_format: str | None) -> AudioInfo | None:
    """Read the header of an input; None for a pipe."""
    is_there = os.path.exists(name)
    if name == STANDARD_INPUT or (is_there and not os.path.isfile(name) and not os.path.isdir(name)):
        return None
    return probe_audio(name, audio_track=audio_track, input_format=input_format)
