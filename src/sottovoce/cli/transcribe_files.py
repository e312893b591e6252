"""Recordings in, documents out, one line per file that fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from sottovoce.api import Model
from sottovoce.archive.parts import PartsTranscription, transcribe_parts
from sottovoce.cli.call import Call
from sottovoce.cli.each_file import each_file
from sottovoce.cli.interrupt import Interrupts
from sottovoce.cli.options import check_fusion, fusion_of, is_file, open_model
from sottovoce.cli.progress import Progress
from sottovoce.cli.screen import ScreenWriter
from sottovoce.cli.transcribe_request import transcribe_options, writer_options
from sottovoce.cli.translation import Translation, translation_of
from sottovoce.errors import OptionError
from sottovoce.formats.base import TranscriptInfo, Writer
from sottovoce.formats.output import STANDARD_OUTPUT, open_outputs, writable_folder
from sottovoce.formats.output_names import label_of, output_paths
from sottovoce.formats.page.audio import audio_link, embedded_audio
from sottovoce.formats.page.html import HtmlWriter
from sottovoce.formats.page.spectrogram import spectrogram_address
from sottovoce.formats.registry import writers_for
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.offline.options import TranscribeOptions
from sottovoce.offline.regroup import Rule, parse_rules, regrouped
from sottovoce.offline.result import FileTranscription
from sottovoce.types import Segment

LOADED = ("model", "device", "dtype", "threads", "model_dir", "revision", "local_only")
"""What `open_model` looks at."""
ADVICE = "--dtype int8, a smaller --batch-size or --beam-size, or a smaller --model"

NEEDS_TINYDIARIZE = "--tinydiarize needs a checkpoint that has learnt to"


@dataclass(frozen=True, slots=True)
class Documents:
    """Where the text of every input goes.

    paths: by input and extension; None is standard output. shown: the text is for a person or a pipe to read
    as it comes. folder: where a page among them looks for its recording; None where there is no page.
    embeds: the page holds the recording.
    """

    writers: Sequence[Writer]
    paths: Mapping[tuple[str, str], Path] | None
    shown: bool
    folder: Path | None = None
    embeds: bool = False

    def info(self, name: str, model: str) -> TranscriptInfo:
        """What is known of an input before it is read.

        Raises: OptionError when it cannot be put into a page.
        """
        source = None if name == "-" else label_of(Path(name).name)
        if name == "-" or self.folder is None:
            return TranscriptInfo(model, source=source)
        audio = embedded_audio(Path(name)) if self.embeds else audio_link(Path(name), self.folder)
        return TranscriptInfo(model, source=source, audio=audio, spectrogram=spectrogram_address(Path(name)))

    def places(self, name: str) -> list[Path | str]:
        """Where the documents of one input go, in the order of the writers."""
        if self.paths is None:
            return [STANDARD_OUTPUT for _ in self.writers]
        return [self.paths[name, writer.extension] for writer in self.writers]

    def inputs(self, files: Sequence[str]) -> list[str]:
        """The inputs to work on: one that is given twice is written to standard output twice, as a program
        counts on that counts them, and to its file once."""
        return list(files) if self.paths is None else list(dict.fromkeys(name for name, _ in self.paths))


@dataclass(frozen=True, slots=True)
class Job:
    """What to do with every file of a call.

    interrupts: looked at between segments, and before documents appear.
    """

    model: Model
    options: TranscribeOptions
    fusion: ShallowFusion | None
    documents: Documents
    progress: Progress
    interrupts: Interrupts
    translation: Translation | None = None
    processors: int = 1
    load: Callable[[], Model] | None = None
    specials: bool = False
    rules: Sequence[Rule] = ()

    def begin(self, source: Any) -> FileTranscription | PartsTranscription:
        """The transcription of one recording.

        Raises: AudioError, OptionError.
        """
        if self.processors == 1 or self.load is None:
            return self.model.transcribe(source, options=self.options, fusion=self.fusion)
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
    inputs = documents.inputs(files)
    model = open_model(given)
    job = Job(
        model=model,
        options=model.options(given["language"], given["task"], given["word_timestamps"], None, options),
        fusion=fusion_of(model, given),
        documents=documents,
        progress=Progress(len(inputs), quiet=documents.shown and sys.stdout.isatty()),
        interrupts=call.interrupts,
        translation=translation,
        processors=given["processors"],
        load=partial(open_model, {name: given[name] for name in LOADED}),
        specials=given["print_special"],
        rules=rules,
    )
    return each_file(
        inputs,
        lambda name: transcribe_file(name, job),
        progress=job.progress,
        call=call,
        advice=ADVICE,
    )


def documents_of(files: Sequence[str], given: Mapping[str, Any]) -> Documents:
    """The documents that the options ask for; their folder is made.

    Raises: OptionError.
    """
    formats = given["output_format"]
    check_rttm(given, formats)
    writers = writers_for(formats, writer_options(given), has_speakers=tells_speakers(given))
    shown = given["output_dir"] is None and formats == "txt"
    check_colours(given, shown)
    if shown and (sys.stdout.isatty() or given["colour_confidence"]):
        writers = [screen_writer(given["colour_confidence"])]
    folder = given["output_dir"] or (STANDARD_OUTPUT if formats == "txt" else ".")
    page = page_folder(writers, folder, given["embed_audio"])
    if folder == STANDARD_OUTPUT:
        return Documents(writers, None, shown, page, given["embed_audio"])
    paths = output_paths(files, Path(folder), [writer.extension for writer in writers])
    writable_folder(Path(folder))
    return Documents(writers, paths, shown, page, given["embed_audio"])


def check_rttm(given: Mapping[str, Any], formats: str) -> None:
    """Raises: OptionError for turns where nobody tells speakers apart; a text to align may bring its own."""
    if "rttm" in formats.split(",") and "speakers" in given and not tells_speakers(given):
        raise OptionError("output format 'rttm': needs --speakers, --channels or --tinydiarize")


def tells_speakers(given: Mapping[str, Any]) -> bool:
    """Whether speakers are told apart, in whatever way; a command without these options does not."""
    told = given.get("speakers") or given.get("tinydiarize")
    return bool(told) or given.get("channels", "mixed") != "mixed"


def check_workers(files: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raises: OptionError for what several processes cannot do."""
    if given["processors"] == 1:
        return
    if "-" in files:
        raise OptionError(
            "--processors: every process reads the recording, which standard input is not; give a file"
        )
    for name in ("lm", "grammar", "clip_timestamps", "prefix", "speakers"):
        if given[name]:
            raise OptionError(f"--processors: cannot be combined with --{name.replace('_', '-')}")
    if given["channels"] != "mixed":
        raise OptionError("--processors: cannot be combined with --channels")
    if is_file(given["hotwords"]):
        raise OptionError("--processors: cannot be combined with a file of --hotwords")


def check_specials(given: Mapping[str, Any]) -> None:
    """Raises: OptionError for special tokens in another format than txt, or in a translation."""
    if given["print_special"] and (given["output_format"] != "txt" or given["translate_to"]):
        raise OptionError("--print-special: is for txt alone, without --translate-to")
    if given["print_special"] and given["regroup"] is not None:
        raise OptionError("--print-special: cannot be combined with --regroup")
    if given["print_special"] and given["colour_confidence"]:
        raise OptionError("--print-special: cannot be combined with --colour-confidence")


def with_specials(segment: Segment, model: Model) -> Segment:
    """The segment with the text of all its tokens, timestamps as the model writes them: <|1.08|>."""
    return replace(segment, text=model.tokenizer.decode_with_timestamps(segment.tokens), words=None)


def screen_writer(by_confidence: bool) -> ScreenWriter:
    """What shows the text; colours that were asked for go into a pipe too."""
    console = Console(highlight=False, force_terminal=by_confidence or None)
    return ScreenWriter(console, by_confidence=by_confidence)


def check_colours(given: Mapping[str, Any], shown: bool) -> None:
    """Raises: OptionError when words are to be coloured that are not shown, or not known."""
    if given["colour_confidence"] and not shown:
        raise OptionError("--colour-confidence: is for text on the terminal, without --output-dir")
    if given["colour_confidence"] and not (
        given["word_timestamps"] or given["speakers"] or given["channels"] == "energy"
    ):
        raise OptionError("--colour-confidence: needs --word-timestamps")


def page_folder(writers: Sequence[Writer], folder: str, embeds: bool) -> Path | None:
    """Where a page will lie, if there is one among the documents.

    Raises: OptionError when a page is to hold its recording and there is none.
    """
    if any(isinstance(writer, HtmlWriter) for writer in writers):
        return Path("." if folder == STANDARD_OUTPUT else folder)
    if embeds:
        raise OptionError("--embed-audio: is for html; add it to --output-format")
    return None


def transcribe_file(name: str, job: Job) -> None:
    """Transcribe one file into all its documents, which appear together at its end."""
    source = sys.stdin.buffer if name == "-" else name
    writers = job.documents.writers
    with ExitStack() as stack:
        transcription = job.begin(source)
        stack.callback(transcription.close)
        outputs = stack.enter_context(open_outputs(job.documents.places(name), live=job.documents.shown))
        begun = job.documents.info(name, job.model.name)
        segments: Iterable[Segment] = regrouped(transcription, job.rules) if job.rules else transcription
        if job.translation is not None:
            begun = replace(begun, translation=job.translation.target)
            segments = job.translation.of(segments, job.model, name, job.options)
        for writer, output in zip(writers, outputs, strict=True):
            output.write(writer.begin(begun))
        for segment in segments:
            job.interrupts.check()
            if job.specials:
                segment = with_specials(segment, job.model)
            for writer, output in zip(writers, outputs, strict=True):
                output.write(writer.segment(segment))
            job.progress.segment(segment, transcription.position, transcription.duration)
        job.interrupts.check()
        ended = replace(
            begun,
            language=transcription.language,
            duration=transcription.duration,
            turns=transcription.turns,
        )
        for writer, output in zip(writers, outputs, strict=True):
            output.write(writer.end(ended))
        if job.options.decoding.speaker_turns and len(transcription.turns) < 2:
            job.progress.note(f"{name}: no change of speaker was marked: {NEEDS_TINYDIARIZE}")
