"""Recordings in, documents out, one line per file that fails."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from sottovoce.api import Model
from sottovoce.archive.multiprocess import MultiprocessTranscription, transcribe_parts
from sottovoce.audio.io import AudioInfo, probe_audio
from sottovoce.cli.call import Call, Interrupts
from sottovoce.cli.documents import Documents, documents_of
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
from sottovoce.cli.transcribe import transcribe_options
from sottovoce.errors import AudioError, OptionError
from sottovoce.formats.output_names import STANDARD_INPUT
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.offline.regroup import Rule, parse_rules, regrouped
from sottovoce.offline.resume import ResumePoint
from sottovoce.offline.transcriber import SecondModel
from sottovoce.offline.transcription import FileTranscription, spoken_most
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.languages import language_name
from sottovoce.types import Segment, Span

LOADED = ("model", "device", "dtype", "backend", "threads", "model_dir", "revision", "local_only")
"""What `open_model` looks at."""
ADVICE = "a smaller --batch-size or --beam-size, or a smaller --model"

NEEDS_TINYDIARIZE = "--tinydiarize needs a checkpoint that has learnt to"


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
    processors: int = 1
    load: Callable[[], Model] | None = None
    specials: bool = False
    rules: Sequence[Rule] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    def file_start(self, name: str) -> FileStart:
        """Find where one recording begins.

        Raises: OptionError.
        """
        return file_start_of(
            name,
            self.documents.places(name),
            header_of(name, self.model.name, self.given, self.options),
            is_fresh=self.given["fresh"],
            offset_s=self.options.offset_s,
        )

    def begin(
        self, source: Any, resume: ResumePoint | None = None
    ) -> FileTranscription | MultiprocessTranscription:
        """Begin the transcription of one recording, or of what follows a resume point.

        Raises: AudioError, OptionError.
        """
        if self.processors == 1 or self.load is None:
            return self.model.transcribe(
                source, options=self.options, fusion=self.fusion, second=self.second, resume=resume
            )
        return transcribe_parts(self.model, self.load, source, self.options, self.processors)


def transcribe_files(files: Sequence[str], given: Mapping[str, Any], call: Call) -> int:
    """Transcribe every file, whatever happens to the others; return the exit code.

    What can be wrong with the call is found out before the model is loaded.
    Raises: SottovoceError.
    """
    options = transcribe_options(given)
    check_workers(files, given)
    check_fusion(given)
    check_specials(given)
    rules = () if given["regroup"] is None else parse_rules(given["regroup"])
    translation = translation_of(given, files)
    documents = documents_of(files, given)
    inputs = inputs_to_read(
        documents.inputs(files),
        documents,
        skips=given["skip_existing"],
        audio_track=given["audio_track"],
        input_format=given["input_format"],
        call=call,
    )
    if not inputs.left:
        return inputs.exit_code
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
        processors=given["processors"],
        load=partial(open_model, {name: given[name] for name in LOADED}),
        specials=given["print_special"],
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


def check_workers(files: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raises: OptionError for what several processes cannot do."""
    if given["processors"] == 1:
        return
    if "-" in files:
        raise OptionError(
            "--processors: every process reads the recording, which standard input is not; give a file"
        )
    if is_file(given["hotwords"]):
        raise OptionError("--processors: cannot be combined with a file of --hotwords")


def check_specials(given: Mapping[str, Any]) -> None:
    """Raises: OptionError for special tokens in another format than txt, or in a translation."""
    if given["print_special"] and (given["output_format"] != "txt" or given["translate_to"]):
        raise OptionError("--print-special: is for txt alone, without --translate-to")


def with_specials(segment: Segment, model: Model) -> Segment:
    """Return the segment with the text of all its tokens, timestamps as the model writes them: <|1.08|>."""
    return replace(segment, text=model.tokenizer.decode_with_timestamps(segment.tokens), words=None)


@contextmanager
def resuming(name: str, run: TranscribeRun) -> Iterator[FileStart]:
    """Yield where a recording begins; its part file goes when the block ends, and stays if interrupted."""
    begun_at = run.file_start(name)
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


def raw_segments(
    transcription: FileTranscription | MultiprocessTranscription, begun_at: FileStart
) -> Iterable[Segment]:
    """Yield all segments of a recording: those of its part file, and those that come, which are put there."""
    if begun_at.writer is None or not isinstance(transcription, FileTranscription):
        return transcription
    return chain(begun_at.stored.segments, recorded(transcription, begun_at.writer))


def language_of(
    transcription: FileTranscription | MultiprocessTranscription, begun_at: FileStart
) -> str | None:
    """Return the language spoken most in a recording."""
    if not begun_at.stored.segments or not isinstance(transcription, FileTranscription):
        return transcription.language
    return spoken_most([*begun_at.stored.segments, *transcription.segments])


def transcribe_file(name: str, run: TranscribeRun) -> None:
    """Transcribe one file into all its documents, which appear together at its end."""
    source = sys.stdin.buffer if name == "-" else name
    if name in run.notes:
        run.progress.note(run.notes[name])
    with resuming(name, run) as begun_at, ExitStack() as stack:
        transcription = run.begin(source, begun_at.stored.point)
        stack.callback(transcription.close)
        raw = raw_segments(transcription, begun_at)
        outputs = stack.enter_context(run.documents.opened(name))
        begun = replace(run.documents.info(name, run.model.name), token_text=run.model.tokenizer.token_text)
        segments: Iterable[Segment] = regrouped(raw, run.rules) if run.rules else raw
        if run.translation is not None:
            begun = replace(begun, translation=run.translation.target)
            segments = run.translation.of(segments, run.model, name, run.options)
        for writer, output in outputs:
            output.write(writer.begin(begun))
        for segment in segments:
            run.interrupts.check()
            if run.specials:
                segment = with_specials(segment, run.model)
            for writer, output in outputs:
                output.write(writer.segment(segment))
            run.progress.segment(segment, transcription.position, transcription.duration)
        run.interrupts.check()
        ended = replace(
            begun,
            language=language_of(transcription, begun_at),
            duration=transcription.duration,
            turns=transcription.turns,
            unread=transcription.unread,
            language_probability=transcription.language_probability,
            language_probabilities=transcription.language_probabilities,
        )
        for writer, output in outputs:
            output.write(writer.end(ended))
        listed = run.options.decoding.allowed_languages
        second_s = transcription.second_s if isinstance(transcription, FileTranscription) else 0.0
        for note in (
            *second_notes(run.given["second_model"], second_s, transcription.duration),
            *unread_notes(transcription.unread),
            *outside_notes(transcription.outside_languages, listed),
        ):
            run.progress.note(f"{name}: {note}")
        if run.options.decoding.speaker_turns and len(transcription.turns) < 2:
            run.progress.note(f"{name}: no change of speaker was marked: {NEEDS_TINYDIARIZE}")


logger = logging.getLogger(__name__)

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

    @property
    def exit_code(self) -> int:
        """Of the call, where nothing is left."""
        return exit_code(self.n_refused, self.n_refused + self.n_skipped)


def inputs_to_read(
    inputs: Sequence[str],
    documents: Documents,
    *,
    skips: bool,
    audio_track: str | None,
    input_format: str | None,
    call: Call,
) -> Inputs:
    """Find out what is left to do: a line on standard error for what cannot be opened, one for what is done.

    skips: leave out inputs whose documents are all there. audio_track: the one that is asked for.
    input_format: of samples without a header.
    Raises: OptionError for a track that is neither a number nor a language.
    """
    lines = Progress(len(inputs))
    skipped = [name for name in inputs if skips and documents.are_there(name)]
    if skipped:
        lines.note(skipped_line(skipped, len(inputs)))
        for name in skipped:
            logger.info("%s: skipped, its documents are there", name)
    left = []
    notes: dict[str, str] = {}
    n_refused = 0
    for name in [name for name in inputs if name not in set(skipped)]:
        try:
            info = info_of(name, audio_track, input_format)
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


MOST_PLACES = 5
"""Places that are named in a line."""


def second_notes(model: str, seconds: float, duration_s: float | None) -> Iterator[str]:
    """Write a line where a second model read; seconds: how much of the recording."""
    if seconds > 0.0:
        share = f" of {duration_s:.1f} s ({seconds / duration_s:.0%})" if duration_s else ""
        yield f"{seconds:.1f} s{share} were in doubt and read by {model}"


def unread_notes(unread: Sequence[Span] | None) -> Iterator[str]:
    """Write a line where speech has no words; unread: its stretches, None where nobody looked for them."""
    if not unread:
        return
    total = sum(end - start for start, end in unread)
    places = ", ".join(f"{clock(start)}-{clock(end)}" for start, end in unread[:MOST_PLACES])
    more = ", …" if len(unread) > MOST_PLACES else ""
    yield f"no words found in {total:.1f} s of speech: {places}{more}"


def outside_notes(outside: Mapping[str, float], listed: Sequence[str]) -> Iterator[str]:
    """Write a line for each language that was spoken and is not listed; outside: its seconds, by code."""
    for code, seconds in outside.items():
        name, among = language_name(code), ", ".join(listed)
        yield f"{seconds:.1f} s sound like {name} ({code}), which is not among {among}"
