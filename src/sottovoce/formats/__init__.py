"""Writers of transcripts and events in all formats, and readers of transcripts.

No model and no PyTorch is needed.
"""

from __future__ import annotations

from sottovoce.formats.files import FORMATS, load_transcript, save_transcript, writer_for, writers_for
from sottovoce.formats.output import TranscriptInfo, Writer, write_document, write_transcript
from sottovoce.options.transcribe import WriterOptions

__all__ = [
    "FORMATS",
    "TranscriptInfo",
    "Writer",
    "WriterOptions",
    "load_transcript",
    "save_transcript",
    "write_document",
    "write_transcript",
    "writer_for",
    "writers_for",
]
