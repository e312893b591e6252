"""Recordings in, documents out, one line per file that fails."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from sottovoce.api import Model
from sottovoce.archive.multiprocess import MultiprocessTranscription, transcribe_parts
from sottovoce.audio.io import AudioInfo, probe_audio
from sottovoce.cli.call import Call, Interrupts
from sottovoce.cli.documents import Documents, documents_of, times_words
from sottovoce.cli.each_file import Progress, clock, each_file, exit_code
from sottovoce.cli.options import (
    Translation,
    check_fusion,
    fusion_of,
    is_file,
    open_model,
    second_of,
    translation_of,
)
from sottovoce.cli.resuming import FileStart, file_start_of, header_of, interrupted_note, recorded
from sottovoce.errors import AudioError, OptionError
from sottovoce.formats.output import STANDARD_INPUT
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.offline.regroup import Rule, parse_rules, regrouped
from sottovoce.offline.resume import ResumePoint
from sottovoce.offline.transcriber import SecondModel
from sottovoce.offline.transcription import FileTranscription, spoken_most
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.languages import language_name
from sottovoce.types import Segment

logger = logging.getLogger(__name__)

LOADED = ("model", "device", "dtype", "backend", "threads", "model_dir", "revision", "local_only")
"""What `open_model` looks at."""
ADVICE = "a smaller --batch-size or --beam-size, or a smaller --model"


@dataclass(frozen=True, slots=True)
class TranscribeRun:
    """What to do with every file of a call.

    interrupts: looked at between segments, and before documents appear. notes: what to say of an input when
    it begins. given: all options as they were typed.
    """

    model: Model
    options: TranscribeOptions
    fusion: ShallowFusion | None
    second: SecondModel | None
    documents: Documents
    progress: Progress
    interrupts: Interrupts
    translation: Translation | None = None
    rules: Sequence[Rule] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)


def transcribe_files(
    files: Sequence[str], given: Mapping[str, Any], options: TranscribeOptions, call: Call
) -> int:
    """Transcribe every file, whatever happens to the others; return the exit code.

    What can be wrong with the call is found out before the model is loaded.
    Raises: SottovoceError.
    """
    check_fusion(given, options.fallback.temperatures)
    if given["processors"] > 1 and "-" in files:
        raise OptionError(
            "--processors: every process reads the recording, which standard input is not; give a file"
        )
    if given["processors"] > 1 and is_file(given["hotwords"]):
        raise OptionError("--processors: cannot be combined with a file of --hotwords")
    if given["print_special"] and given["output_format"] != "txt":
        raise OptionError("--print-special: is for txt alone")
    rules = () if given["regroup"] is None else parse_rules(given["regroup"])
    if rules and not times_words(given):
        raise OptionError("--regroup: cuts between words; add --word-timestamps")
    translation = translation_of(given, files)
    documents = documents_of(files, given)
    inputs = inputs_to_read(documents.inputs(files), documents, given, call)
    if not inputs.left:
        return exit_code(inputs.n_refused, inputs.n_refused + inputs.n_skipped)
    model = open_model(given)
    run = TranscribeRun(
        model=model,
        options=model.options(given["language"], given["task"], given["word_timestamps"], None, options),
        fusion=fusion_of(model, given),
        second=second_of(given),
        documents=documents,
        progress=Progress(len(inputs.left), quiet=documents.is_text_on_terminal),
        interrupts=call.interrupts,
        translation=translation,
        rules=rules,
        notes=inputs.notes,
        given=given,
    )
    return each_file(
        inputs.left,
        lambda name: transcribe_file(name, run),
        progress=run.progress,
        call=call,
        advice=ADVICE,
        n_refused=inputs.n_refused,
        n_skipped=inputs.n_skipped,
    )


@contextmanager
def resuming(name: str, run: TranscribeRun) -> Iterator[FileStart]:
    """Yield where a recording begins; its part file goes when the block ends, and stays if interrupted."""
    begun_at = file_start_of(
        name,
        run.documents.places(name),
        header_of(name, run.model.name, run.given, run.options),
        is_fresh=run.given["fresh"],
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
        note = interrupted_note(name, writer, offset_s=run.options.offset_s)
        if note is not None:
            run.progress.note(note)
        raise
    finally:
        writer.close()
    writer.remove()


def begin(
    name: str, run: TranscribeRun, resume: ResumePoint | None
) -> FileTranscription | MultiprocessTranscription:
    """Begin the transcription of one recording, or of what follows a resume point."""
    n_processes = run.given["processors"]
    if n_processes > 1:
        load = partial(open_model, {name: run.given[name] for name in LOADED})
        return transcribe_parts(run.model, load, name, run.options, n_processes)
    source = sys.stdin.buffer if name == "-" else name
    return run.model.transcribe(
        source, options=run.options, fusion=run.fusion, second=run.second, resume=resume
    )


def transcribe_file(name: str, run: TranscribeRun) -> None:
    """Transcribe one file into all its documents, which appear together at its end."""
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
            if run.given["print_special"]:
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
        for note in notes_of(transcription, run):
            run.progress.note(f"{name}: {note}")


MOST_PLACES = 5
"""Places that are named in a line."""


def notes_of(
    transcription: FileTranscription | MultiprocessTranscription, run: TranscribeRun
) -> Iterator[str]:
    """Write what a person should know of a recording beside its text, a line each."""
    second_s = transcription.second_s if isinstance(transcription, FileTranscription) else 0.0
    if second_s > 0.0:
        duration_s = transcription.duration
        share = f" of {duration_s:.1f} s ({second_s / duration_s:.0%})" if duration_s else ""
        yield f"{second_s:.1f} s{share} were in doubt and read by {run.given['second_model']}"
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


MOST_NAMED = 3
"""So many skipped inputs are named in the line about them; with -v each has a line of its own."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is left of a call.

    left: the inputs to read; notes: what to say of those that have several tracks. n_refused: inputs that
    cannot be opened; n_skipped: inputs that are done.
    """

    left: Sequence[str]
    notes: Mapping[str, str] = field(default_factory=dict)
    n_refused: int = 0
    n_skipped: int = 0


def inputs_to_read(
    inputs: Sequence[str], documents: Documents, given: Mapping[str, Any], call: Call
) -> Inputs:
    """Find the inputs that are left: a line on standard error for each that cannot be opened, and one for
    all whose documents are there.

    Raises: OptionError for a track that is neither a number nor a language.
    """
    lines = Progress(len(inputs))
    skipped = [name for name in inputs if given["skip_existing"] and documents.are_there(name)]
    if skipped:
        lines.note(skipped_line(skipped, len(inputs)))
        for name in skipped:
            logger.info("%s: skipped, its documents are there", name)
    left = []
    notes: dict[str, str] = {}
    n_refused = 0
    for name in [name for name in inputs if name not in set(skipped)]:
        try:
            info = info_of(name, given["audio_track"], given["input_format"])
        except AudioError as error:
            lines.failed(str(error), call.trace())
            n_refused += 1
            continue
        left.append(name)
        if info is not None and len(info.tracks) > 1:
            notes[name] = track_line(info)
    return Inputs(left, notes, n_refused, len(skipped))


def skipped_line(skipped: Sequence[str], n_inputs: int) -> str:
    """Write the line about inputs that are left out."""
    named = ", ".join(skipped[:MOST_NAMED])
    more = f" and {len(skipped) - MOST_NAMED} more" if len(skipped) > MOST_NAMED else ""
    return f"{len(skipped)} of {n_inputs} skipped, their documents are there: {named}{more}"


def track_line(info: AudioInfo) -> str:
    """Write the line about a recording with several tracks: which one is read, and which are there."""
    others = ", ".join(str(track) for track in info.tracks if track != info.track)
    return f"{info.name}: audio track {info.track} of {len(info.tracks)}; others: {others} (--audio-track)"


def info_of(name: str, audio_track: str | None, input_format: str | None) -> AudioInfo | None:
    """Read the header of an input; None for what comes through a pipe: opening uses it up.

    Raises: AudioError; OptionError for a track that is neither a number nor a language.
    """
    is_there = os.path.exists(name)
    if name == STANDARD_INPUT or (is_there and not os.path.isfile(name) and not os.path.isdir(name)):
        return None
    return probe_audio(name, audio_track=audio_track, input_format=input_format)
