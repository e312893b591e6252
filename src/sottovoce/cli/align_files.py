"""A recording and its text in, documents with times out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce.cli.call import Call
from sottovoce.cli.documents import documents_of
from sottovoce.cli.each_file import each_file
from sottovoce.cli.options import open_model
from sottovoce.cli.progress_bar import Progress
from sottovoce.errors import OptionError
from sottovoce.formats.base import info_of
from sottovoce.formats.files import READABLE, load_transcript
from sottovoce.options.align import AlignOptions
from sottovoce.options.schema import made
from sottovoce.text import files
from sottovoce.types import Transcript

ADVICE = "a smaller --model"


def align_file(recording: str, text: str, given: Mapping[str, Any], call: Call) -> int:
    """Align a recording with its text; return the exit code.

    Raises: SottovoceError for a text that cannot be read, or wrong options.
    """
    options = made(AlignOptions, given)
    if recording == text == "-":
        raise OptionError("standard input: expected the recording or the text there, got '-' for both")
    shown = {**given, "word_timestamps": True, "colour_confidence": False}
    documents = documents_of([recording], shown)
    script = read_text(text)
    progress = Progress(1, quiet=False)
    model = open_model(given)

    def work(name: str) -> None:
        aligned = model.align(
            sys.stdin.buffer if name == "-" else name, script, language=given["language"], options=options
        )
        call.interrupts.check()
        begun = documents.info(name, aligned.model)
        info = replace(info_of(aligned, begun.source), audio=begun.audio, spectrogram=begun.spectrogram)
        documents.write(name, aligned, info)

    return each_file([recording], work, progress=progress, call=call, advice=ADVICE)


def read_text(name: str) -> str | Transcript:
    """Read a text, or the transcript of a file that is one.

    Raises: OptionError naming the file.
    """
    if name == "-":
        return read_standard_input()
    path = Path(name)
    if path.suffix.lower() in READABLE:
        return load_transcript(path)
    return files.read_text(path, "a text", name=f"text '{name}'")


def read_standard_input() -> str:
    """Read a text from a pipe, whatever the locale says.

    Raises: OptionError for other bytes.
    """
    try:
        return files.decode_text(sys.stdin.buffer.read())
    except ValueError as error:
        raise OptionError(f"standard input: expected a text, got {error}") from error
