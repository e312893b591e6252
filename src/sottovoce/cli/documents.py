"""The documents of a call: which there are, where they go, and what a person sees of them meanwhile."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from sottovoce.cli.line_breaks import writer_options
from sottovoce.cli.screen import ScreenWriter
from sottovoce.errors import OptionError
from sottovoce.formats.base import TranscriptInfo, Writer, pieces_of
from sottovoce.formats.output import (
    STANDARD_OUTPUT,
    Output,
    format_named,
    label_of,
    named_document,
    open_output,
    open_outputs,
    output_paths,
    writable_folder,
)
from sottovoce.formats.page.html import HtmlWriter, audio_link, embedded_audio
from sottovoce.formats.writers import BINARY, FORMATS, extension_of, writer_for, writers_for
from sottovoce.types import Transcript


@dataclass(frozen=True, slots=True)
class Documents:
    """Where the text of every input goes.

    paths: by input and extension; None is standard output. shown: the text is for a person or a pipe to read
    as it comes. folder: where a page among them looks for its recording; None where there is no page.
    embeds: the page holds the recording. screen: shows the text on the terminal while documents are written
    to files; None where it is not shown.
    """

    writers: Sequence[Writer]
    paths: Mapping[tuple[str, str], Path] | None
    shown: bool
    folder: Path | None = None
    embeds: bool = False
    screen: ScreenWriter | None = None

    def info(self, name: str, model: str) -> TranscriptInfo:
        """Say what can be said of an input before it is read.

        Raises: OptionError when it cannot be put into a page.
        """
        if name == "-":
            return TranscriptInfo(model)
        return self.with_recording(TranscriptInfo(model, source=label_of(Path(name).name)), Path(name))

    def with_recording(self, info: TranscriptInfo, recording: Path) -> TranscriptInfo:
        """Add what a page needs to play a recording, where there is a page among the documents.

        Raises: OptionError when it cannot be put into a page; AudioError.
        """
        if self.folder is None:
            return info
        from sottovoce.formats.page.spectrogram import spectrogram_address  # imports PyTorch

        audio = embedded_audio(recording) if self.embeds else audio_link(recording, self.folder)
        return replace(info, audio=audio, spectrogram=spectrogram_address(recording))

    def places(self, name: str) -> list[Path | str]:
        """List where the documents of one input go, in the order of the writers."""
        if self.paths is None:
            return [STANDARD_OUTPUT for _ in self.writers]
        return [self.paths[name, writer.extension] for writer in self.writers]

    @contextmanager
    def opened(self, name: str) -> Iterator[list[tuple[Writer, Output]]]:
        """Give the writers of one input and where their text goes; documents appear when the block ends."""
        with (
            open_outputs(self.places(name), live=self.shown) as outputs,
            open_output(STANDARD_OUTPUT, live=True) as terminal,
        ):
            pairs = list(zip(self.writers, outputs, strict=True))
            yield pairs if self.screen is None else [(self.screen, terminal), *pairs]

    def write(self, name: str, transcript: Transcript, info: TranscriptInfo) -> None:
        """Write all documents of an input whose transcript is complete; they appear together.

        Raises: OptionError where a writer does, and where nothing can be written.
        """
        with self.opened(name) as outputs:
            for writer, output in outputs:
                for piece in pieces_of(writer, transcript, info):
                    output.write(piece)

    def are_there(self, name: str) -> bool:
        """Tell whether every document of an input is a file that is there already."""
        return self.paths is not None and all(Path(place).is_file() for place in self.places(name))

    @property
    def is_text_on_terminal(self) -> bool:
        """Whether a person reads the text on the terminal as it comes."""
        return (self.shown and sys.stdout.isatty()) or self.screen is not None

    def inputs(self, files: Sequence[str]) -> list[str]:
        """List the inputs to work on: one that is given twice is written to standard output twice, as a
        program counts on that counts them, and to its file once."""
        return list(files) if self.paths is None else list(dict.fromkeys(name for name, _ in self.paths))


def documents_of(files: Sequence[str], given: Mapping[str, Any]) -> Documents:
    """Make the documents that the options ask for, and their folder.

    Raises: OptionError.
    """
    formats = given["output_format"]
    check_rttm(given, formats)
    writers = writers_for(
        formats,
        writer_options(given),
        has_speakers=tells_speakers(given),
        has_files=given["output_dir"] != STANDARD_OUTPUT,
    )
    shown = given["output_dir"] is None and formats == "txt"
    check_colours(given, shown)
    if shown and (sys.stdout.isatty() or given["colour_confidence"]):
        writers = [screen_writer(given["colour_confidence"])]
    folder = given["output_dir"] or (STANDARD_OUTPUT if formats == "txt" else ".")
    if given.get("output_file") is not None:
        folder = str(given["output_file"].parent)
    page = page_folder(writers, folder, given["embed_audio"])
    if folder == STANDARD_OUTPUT:
        check_files(given)
        check_binary(files, writers)
        return Documents(writers, None, shown, page, given["embed_audio"])
    if given.get("output_file") is not None:
        paths = named_document(files[0], given["output_file"], writers[0].extension)
    else:
        paths = output_paths(files, Path(folder), [writer.extension for writer in writers])
    writable_folder(Path(folder))
    screen = screen_writer(False) if sys.stdout.isatty() and not given.get("quiet", True) else None
    return Documents(writers, paths, shown, page, given["embed_audio"], screen)


def with_output_file(
    files: Sequence[str], given: Mapping[str, Any], typed: Collection[str]
) -> dict[str, Any]:
    """Add `output_file` to the options: the path of the one document where `-o` names a file, else None.

    The format is then that of its extension. typed: the options that stand on the command line.
    Raises: OptionError for several inputs, and for a format that contradicts the extension.
    """
    output = given["output_dir"]
    if output in (None, STANDARD_OUTPUT) or not means_file(output):
        return {**given, "output_file": None}
    if len(set(files)) > 1:
        raise OptionError(f"output '{output}': is one file; expected one input, got {len(set(files))}")
    wanted = format_named(output)
    if "output_format" in typed:
        wanted = given["output_format"].strip()
        check_extension(output, wanted)
    elif wanted is None:
        raise OptionError(
            f"output '{output}': expected a file of a known format ({', '.join(FORMATS)}), or a folder; "
            f"a new folder of that name is '{output}/'"
        )
    return {**given, "output_format": wanted, "output_file": Path(output)}


def means_file(output: str) -> bool:
    """Tell whether `-o` names a file: it ends as files do, and no folder of that name is there."""
    if output.endswith(("/", os.sep)) or Path(output).is_dir():
        return False
    return format_named(output) is not None or bool(re.fullmatch(r"\.[A-Za-z]{2,4}", Path(output).suffix))


def check_extension(output: str, formats: str) -> None:
    """Raises: OptionError where a file is to hold several formats, or another one than its name says."""
    if "," in formats or formats == "all":
        raise OptionError(f"output '{output}': is one file; expected one format, got '{formats}'")
    extension = writer_for(formats).extension.rpartition(".")[2]
    if Path(output).suffix.lower() != f".{extension.lower()}":
        raise OptionError(
            f"output '{output}': expected a name in .{extension} for --output-format {formats}, "
            f"got {Path(output).suffix}"
        )


def check_files(given: Mapping[str, Any]) -> None:
    """Raises: OptionError for what is about documents in files, where they go to standard output."""
    if given.get("skip_existing"):
        raise OptionError("--skip-existing: looks for files, and there are none; add --output-dir")
    if given.get("fresh"):
        raise OptionError("--fresh: looks for files, and there are none; add --output-dir")
    if given.get("quiet"):
        raise OptionError("--quiet: there is nothing but the text, on standard output; add --output-dir")


def check_binary(files: Sequence[str], writers: Sequence[Writer]) -> None:
    """Raises: OptionError for what is no text, where a terminal or another document is on standard output."""
    extensions = [writer.extension for writer in writers]
    for name in set(extensions) & set(map(extension_of, BINARY)):
        if sys.stdout.isatty():
            raise OptionError(f"output format '{name}': is no text and not for terminals; name a file by -o")
        if len(extensions) > 1 or len(files) > 1:
            raise OptionError(
                f"output format '{name}': expected alone on standard output, got more documents"
            )


def check_rttm(given: Mapping[str, Any], formats: str) -> None:
    """Raises: OptionError for turns where nobody tells speakers apart; a text to align may bring its own."""
    if "rttm" in formats.split(",") and "speakers" in given and not tells_speakers(given):
        raise OptionError("output format 'rttm': needs --speakers, --channels or --tinydiarize")


def tells_speakers(given: Mapping[str, Any]) -> bool:
    """Tell whether speakers are told apart, in whatever way; a command without these options does not."""
    speakers = given.get("speakers") or given.get("tinydiarize")
    return bool(speakers) or given.get("channels", "mixed") != "mixed"


def screen_writer(by_confidence: bool) -> ScreenWriter:
    """Make what shows the text; colours that were asked for go into a pipe too."""
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
    """Find where a page will lie, if there is one among the documents.

    Raises: OptionError when a page is to hold its recording and there is none.
    """
    if any(isinstance(writer, HtmlWriter) for writer in writers):
        return Path("." if folder == STANDARD_OUTPUT else folder)
    if embeds:
        raise OptionError("--embed-audio: is for html; add it to --output-format")
    return None
