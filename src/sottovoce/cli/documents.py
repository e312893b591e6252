"""The documents of a call: formats, paths, and text on the terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import escape as escape_glob
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sottovoce.archive.results import is_recording
from sottovoce.cli.options import OutputOptions, is_typed
from sottovoce.errors import OptionError
from sottovoce.formats.files import BINARY, FORMATS, extension_of, format_named, writer_for, writers_for
from sottovoce.formats.output import (
    STANDARD_OUTPUT,
    TranscriptInfo,
    Write,
    Writer,
    is_device,
    label_of,
    named_document,
    open_output,
    open_outputs,
    output_paths,
    pieces_of,
    writable_folder,
)
from sottovoce.formats.pages import HtmlWriter, audio_link, clock, embedded_audio
from sottovoce.formats.subtitles import CueWriter
from sottovoce.options.schema import from_values
from sottovoce.options.transcribe import TranscribeOptions, WriterOptions
from sottovoce.text.languages import language_codes
from sottovoce.types import Segment, Transcript, Word

if TYPE_CHECKING:
    from rich.console import Console

UNDETERMINED = "und"
"""In names of documents. Source: BCP 47."""
LANGUAGE_CODES = frozenset(language_codes())


@dataclass(frozen=True, slots=True)
class Documents:
    """Where the text of each input is written.

    paths: by input and extension; None writes to standard output. shown: print text while it is decoded.
    folder: of HTML pages, or None. embeds: pages contain the recording. terminal: shows the text too, or
    None. are_renamed: `UNDETERMINED` in their names becomes the language of the recording.
    """

    formats: str
    writers: Sequence[Writer]
    paths: Mapping[tuple[str, str], Path] | None
    shown: bool
    folder: Path | None = None
    embeds: bool = False
    terminal: TerminalWriter | None = None
    are_renamed: bool = False

    def info(self, name: str, model: str, options: TranscribeOptions | None = None) -> TranscriptInfo:
        if name == "-":
            return TranscriptInfo(model)
        info = TranscriptInfo(model, source=label_of(Path(name).name))
        here = self
        if self.folder is not None and self.paths is not None:
            here = replace(self, folder=Path(self.places(name)[0]).parent)
        return here.with_recording(info, Path(name), options)

    def with_recording(
        self, info: TranscriptInfo, recording: Path, options: TranscribeOptions | None = None
    ) -> TranscriptInfo:
        """Add the address and the spectrogram of a recording to a page. options: how it is opened."""
        if self.folder is None:
            return info
        from sottovoce.audio.io import Source
        from sottovoce.pictures import spectrogram_address  # imports PyTorch

        audio = embedded_audio(recording) if self.embeds else audio_link(recording, self.folder)
        return replace(info, audio=audio, spectrogram=spectrogram_address(Source.of(recording, options)))

    def places(self, name: str) -> list[Path | str]:
        if self.paths is None:
            return [STANDARD_OUTPUT for _ in self.writers]
        return [self.paths[name, writer.extension] for writer in self.writers]

    @contextmanager
    def opened(self, name: str) -> Iterator[list[tuple[Writer, Write]]]:
        with (
            open_outputs(self.places(name), live=self.shown) as outputs,
            open_output(STANDARD_OUTPUT, live=True) as standard_output,
        ):
            pairs = list(zip(self.writers, outputs, strict=True))
            yield pairs if self.terminal is None else [(self.terminal, standard_output), *pairs]

    def write(self, name: str, transcript: Transcript, info: TranscriptInfo) -> None:
        with self.opened(name) as outputs:
            for writer, write in outputs:
                for piece in pieces_of(writer, transcript, info):
                    write(piece)

    @property
    def need_words(self) -> bool:
        """Whether a document places words in time."""
        layouts = [writer.options for writer in self.writers if isinstance(writer, CueWriter)]
        is_laid_out = any(layout.need_words or layout.is_for_reading for layout in layouts)
        writers = [*self.writers, self.terminal]
        return is_laid_out or any(isinstance(each, TerminalWriter) and each.by_confidence for each in writers)

    def are_there(self, name: str, *, since_ns: int = 0) -> bool:
        """Whether all documents of an input exist. since_ns: earliest time of their last change."""
        if self.paths is None:
            return False
        written = [[*self._written(Path(place))] for place in self.places(name)]
        return all(any(path.stat().st_mtime_ns >= since_ns for path in paths) for paths in written)

    def _written(self, place: Path) -> Iterator[Path]:
        """Yield the documents of a place: one, or one of each language."""
        if not self.are_renamed:
            yield from (path for path in (place,) if path.is_file())
            return
        stem, _, ending = place.name.rpartition(f".{UNDETERMINED}.")
        for path in place.parent.glob(f"{escape_glob(stem)}.*.{escape_glob(ending)}"):
            if path.name[len(stem) + 1 : -len(ending) - 1] in LANGUAGE_CODES and path.is_file():
                yield path

    def renamed(self, name: str, language: str) -> list[Path | str]:
        """Put the language of a recording into the names of its documents; return where these are."""
        places = self.places(name)
        if not self.are_renamed or not language:
            return places
        final: list[Path | str] = []
        for place in map(Path, places):
            stem, _, ending = place.name.rpartition(f".{UNDETERMINED}.")
            final.append(place.replace(place.with_name(f"{stem}.{language}.{ending}")))
        return final

    @property
    def is_text_on_terminal(self) -> bool:
        return (self.shown and sys.stdout.isatty()) or self.terminal is not None

    def inputs(self, files: Sequence[str]) -> list[str]:
        """Return the inputs; duplicates are kept for standard output only."""
        return list(files) if self.paths is None else list(dict.fromkeys(name for name, _ in self.paths))


def documents_of(
    context: click.Context,
    files: Sequence[str],
    *,
    has_speakers: bool = False,
    trees: Mapping[str, Path] | None = None,
    language: str | None = None,
) -> Documents:
    """Choose the documents by the options of a command.

    trees: folders that were named instead of what is in them, by its name. language: of the documents;
    None: known at their end. Raises: OptionError.
    """
    given = context.params
    output = from_values(OutputOptions, given, quiet=given.get("quiet", True))
    output = with_output_file(files, output, has_format=is_typed(context, "output_format"))
    layout, formats = from_values(WriterOptions, given), output.output_format
    if given.get("print_special") and formats != "txt":
        raise OptionError("--print-special: needs --output-format txt")
    if "speakers" in given and "rttm" in formats.split(",") and not has_speakers:
        raise OptionError("output format 'rttm': needs --speakers, --channels or --tinydiarize")
    writers = writers_for(
        formats, layout, has_speakers=has_speakers, has_files=output.output_dir != STANDARD_OUTPUT
    )
    shown = output.output_dir is None and formats == "txt" and not given.get("watch")
    by_confidence = output.colour_confidence
    if shown and (sys.stdout.isatty() or by_confidence):
        writers = [terminal_writer(by_confidence)]
    folder = output.output_dir or (STANDARD_OUTPUT if shown else ".")
    if output.output_file is not None:
        folder = str(output.output_file.parent)
    has_page = any(isinstance(writer, HtmlWriter) for writer in writers)
    page = Path("." if folder == STANDARD_OUTPUT else folder) if has_page else None
    if output.name_language and (folder == STANDARD_OUTPUT or output.output_file is not None):
        raise OptionError("--name-language: expected a folder for the documents (-o DIR)")
    if folder == STANDARD_OUTPUT:
        check_binary(files, writers)
        return Documents(formats, writers, None, shown, page, output.embed_audio)
    if output.output_file is not None:
        check_overwriting(files[0], output.output_file, overwrite=output.overwrite)
        paths = named_document(files[0], output.output_file, writers[0].extension)
    else:
        named = f".{language or UNDETERMINED}" if output.name_language else ""
        extensions = [writer.extension for writer in writers]
        paths = paths_in_trees(files, output.output_dir, extensions, suffix=named, trees=trees or {})
    if not given.get("dry_run"):
        for place in {path.parent for path in paths.values() if not is_device(path)}:
            writable_folder(place)
    terminal = terminal_writer(by_confidence) if sys.stdout.isatty() and not output.quiet else None
    are_renamed = output.name_language and language is None
    return Documents(formats, writers, paths, shown, page, output.embed_audio, terminal, are_renamed)


def paths_in_trees(
    files: Sequence[str],
    folder: str | None,
    extensions: Sequence[str],
    *,
    suffix: str,
    trees: Mapping[str, Path],
) -> Mapping[tuple[str, str], Path]:
    """Choose document paths as `output_paths`; those of the recordings of a folder keep its subfolders.

    folder: None: the current one, or that of a recording in a named folder.
    """
    trees = {name: tree for name, tree in trees.items() if not os.path.isdir(name)}
    plain = [name for name in files if name not in trees]
    paths = dict(output_paths(plain, Path(folder or "."), extensions, suffix=suffix))
    for inside in dict.fromkeys(Path(name).parent for name in files if name in trees):
        # Recordings that are not transcribed now share the names too.
        siblings = [str(path) for path in sorted(inside.iterdir()) if is_recording(Path(path.name))]
        tree = next(tree for name, tree in trees.items() if Path(name).parent == inside)
        place = inside if folder is None else Path(folder, inside.relative_to(tree.absolute()))
        for key, path in output_paths(siblings, place, extensions, suffix=suffix).items():
            if key[0] in files:
                paths[key] = path
    return paths


def with_output_file(files: Sequence[str], output: OutputOptions, *, has_format: bool) -> OutputOptions:
    """Add the path of the only document if `-o` names a file. has_format: --output-format was typed.

    Raises: OptionError.
    """
    name = output.output_dir
    if name is None or name == STANDARD_OUTPUT or not means_file(name):
        return output
    if len(set(files)) > 1:
        raise OptionError(f"output '{name}': expected one input for one file, got {len(set(files))}")
    wanted = format_named(name)
    if is_device(Path(name)):
        wanted = output.output_format.strip()
        if "," in wanted or wanted == "all":
            raise OptionError(f"output '{name}': is no folder; expected one format for it, got '{wanted}'")
    elif has_format:
        wanted = output.output_format.strip()
        check_extension(name, wanted)
    elif wanted is None:
        raise OptionError(
            f"output '{name}': expected an extension of a format ({', '.join(FORMATS)}), or "
            f"'{name}/' for a folder"
        )
    return replace(output, output_format=wanted, output_file=Path(name))


def check_overwriting(name: str, path: Path, *, overwrite: bool) -> None:
    """Ask before a document of another recording, after which it is named, is replaced.

    Raises: OptionError without a terminal; Abort if the answer is no.
    """
    if overwrite or not path.is_file() or path.stem == Path(name).stem:
        return
    neighbours = (
        other
        for folder in {path.parent, Path(name).parent}
        for other in folder.glob(f"{escape_glob(path.stem)}.*")
    )
    others = [near for near in neighbours if str(guess_type(near)[0]).startswith(("audio/", "video/"))]
    if not others:
        return
    reason = f"output '{path}': is there, and is named after '{others[0].name}'"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise OptionError(f"{reason}; --overwrite replaces it")
    click.confirm(f"{reason}. Replace it?", abort=True, err=True)


def means_file(output: str) -> bool:
    if output.endswith(("/", os.sep)) or Path(output).is_dir():
        return False
    if is_device(Path(output)):
        return True
    is_short = bool(re.fullmatch(r"\.[A-Za-z]{2,4}", Path(output).suffix))
    return is_short or format_named(output) is not None or is_recording(Path(Path(output).name))


def check_extension(output: str, formats: str) -> None:
    if "," in formats or formats == "all":
        raise OptionError(f"output '{output}': expected one format for one file, got '{formats}'")
    extension = writer_for(formats).extension.rpartition(".")[2]
    if Path(output).suffix.lower() not in (f".{extension.lower()}", f".{formats}"):
        raise OptionError(
            f"output '{output}': expected a name in .{extension} for --output-format {formats}, "
            f"got {Path(output).suffix}"
        )


def check_binary(files: Sequence[str], writers: Sequence[Writer]) -> None:
    """Raises: OptionError for a binary format on a terminal or mixed into standard output."""
    extensions = [writer.extension for writer in writers]
    for name in set(extensions) & set(map(extension_of, BINARY)):
        if sys.stdout.isatty():
            raise OptionError(f"output format '{name}': is binary; expected a file (-o FILE), got a terminal")
        if len(extensions) > 1 or len(files) > 1:
            raise OptionError(
                f"output format '{name}': is binary; expected no other documents on standard output"
            )


def terminal_writer(by_confidence: bool) -> TerminalWriter:
    from rich.console import Console

    console = Console(highlight=False, force_terminal=by_confidence or None)
    return TerminalWriter(console, by_confidence=by_confidence)


CONFIDENCE = ((0.5, "red"), (0.7, "dark_orange"), (0.85, "yellow"), (0.95, "green_yellow"))


def coloured(word: Word) -> str:
    from rich.markup import escape

    colour = next((name for limit, name in CONFIDENCE if word.probability < limit), "green")
    return f"[{colour}]{escape(word.word)}[/{colour}]"


class LanguageColours(dict[str, str]):
    """Colours of languages on a terminal, in the order in which these come."""

    order = ("cyan", "magenta", "green", "yellow", "blue", "red")

    def __missing__(self, language: str) -> str:
        return self.setdefault(language, self.order[len(self) % len(self.order)])


class TerminalWriter(Writer):
    """Writes one segment a line for people."""

    extension = "txt"

    def __init__(self, console: Console, *, by_confidence: bool = False) -> None:
        self._console = console
        self.by_confidence = by_confidence
        self._colours = LanguageColours()

    def segment(self, segment: Segment) -> str:
        from rich.markup import escape

        colour = self._colours[segment.language]
        times = f"[dim]{clock(segment.start):>7}-{clock(segment.end):<7}[/dim]"
        text = escape(segment.text.strip())
        if self.by_confidence and segment.words:
            text = "".join(map(coloured, segment.words)).strip()
        if segment.speaker:
            text = f"[bold]{escape(segment.speaker)}:[/bold] {text}"
        with self._console.capture() as capture:
            self._console.print(f"{times} [{colour}]{segment.language}[/{colour}]  {text}", soft_wrap=True)
        return capture.get()
