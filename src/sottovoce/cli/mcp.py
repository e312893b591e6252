"""`sottovoce mcp`: tools for assistants, by the Model Context Protocol."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property, lru_cache, wraps
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from sottovoce.cli.options import MODEL, ModelOptions, SectionedCommand, open_model
from sottovoce.errors import OptionError, SottovoceError, needs
from sottovoce.options.schema import from_values

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from sottovoce.recogniser import Recogniser
    from sottovoce.types import Transcript

P = ParamSpec("P")
T = TypeVar("T")
TEXT_FORMATS = ("txt", "srt", "vtt", "json", "md")


@click.command(cls=SectionedCommand, sections={"Model": MODEL})
def mcp(**given: object) -> None:
    """Serve an assistant on standard input and output by the Model Context Protocol (extra `mcp`).

    Tools: transcribe a recording, find a phrase in a recording or transcript, listen to the microphone. The
    assistant can read every recording that you can.
    """
    options = from_values(ModelOptions, given)
    make_server(Tools(lambda: open_model(options))).run()


def make_server(tools: Tools) -> MCPServer:
    """Raises: MissingExtraError."""
    with needs("mcp>=2", "mcp", "serving assistants"):
        from mcp.server import MCPServer
    server = MCPServer("sottovoce", instructions="Speech to text on this machine; nothing leaves it.")
    for tool in (tools.transcribe, tools.find, tools.listen):
        server.tool()(_with_causes(tool))
    return server


def _with_causes(tool: Callable[P, T]) -> Callable[P, T]:
    """Give the assistant the line of an error that a user can cause."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def called(*given: P.args, **named: P.kwargs) -> T:
        try:
            return tool(*given, **named)
        except SottovoceError as error:
            raise ToolError(str(error)) from error

    return called


class Tools:
    """The tools; one at a time uses the model, which is loaded at its first use."""

    def __init__(self, load: Callable[[], Recogniser]) -> None:
        self._load = load
        self._lock = Lock()
        self._transcripts = lru_cache(maxsize=16)(self._transcribed)

    @cached_property
    def _model(self) -> Recogniser:
        return self._load()

    def transcribe(
        self,
        path: str,
        language: str = "auto",
        format: str = "txt",
        translate: bool = False,
        speakers: str = "",
    ) -> str:
        """Transcribe an audio or video file.

        language: a code such as de, several (en,de), or auto. format: txt, srt, vtt, json or md. translate:
        into English. speakers: their number, or auto, to write who speaks.
        """
        from sottovoce.formats.files import writer_for
        from sottovoce.formats.output import write_transcript

        if format not in TEXT_FORMATS:
            raise OptionError(f"format: expected one of {', '.join(TEXT_FORMATS)}, got '{format}'")
        transcript = self._transcript(path, language, "translate" if translate else "transcribe", speakers)
        return write_transcript(writer_for(format), transcript, source=Path(path).name)

    def find(self, path: str, phrase: str, language: str = "auto") -> list[dict[str, float | str]]:
        """Find where a phrase is said, in an audio or video file or a transcript (json, srt, vtt).

        Returns start and end in seconds, the text, and its similarity up to 1.
        """
        from sottovoce.alignment import find_phrase
        from sottovoce.formats.files import READABLE, load_transcript

        is_transcript = path.lower().endswith(READABLE)
        spoken = (
            load_transcript(path) if is_transcript else self._transcript(path, language, "transcribe", "")
        )
        return [
            {"start": each.start, "end": each.end, "text": each.text.strip(), "score": round(each.score, 3)}
            for each in find_phrase(spoken, phrase)
        ]

    def listen(self, seconds: float = 10.0, language: str = "auto") -> str:
        """Listen to the microphone for some seconds, at most 600, and return what is said."""
        from itertools import takewhile

        from sottovoce.audio.io import Microphone
        from sottovoce.types import SAMPLE_RATE, Final

        if not 0 < seconds <= 600:
            raise OptionError(f"seconds: expected up to 600, got {seconds:g}")
        with self._lock:
            session = self._model.session(None if language == "auto" else language)
            with Microphone() as microphone, session:
                end = round(seconds * SAMPLE_RATE)
                chunks = takewhile(lambda chunk: chunk.start_sample < end, microphone)
                events = [event for chunk in chunks for event in session.push(chunk.samples)]
                events += session.close()
        return " ".join(event.text for event in events if isinstance(event, Final))

    def _transcript(self, path: str, language: str, task: str, speakers: str) -> Transcript:
        with self._lock:
            changed_ns = os.stat(path).st_mtime_ns if os.path.isfile(path) else 0
            return self._transcripts(path, changed_ns, language, task, speakers)

    def _transcribed(self, path: str, _: int, language: str, task: str, speakers: str) -> Transcript:
        return self._model.transcribe(
            path,
            language=language,
            task="translate" if task == "translate" else "transcribe",
            word_timestamps=True,
            speakers=speakers or None,
        ).collect()
