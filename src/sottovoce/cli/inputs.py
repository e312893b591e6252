"""Which inputs of a call are worth loading a model for: those that can be opened and are not done yet."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sottovoce.audio.io import AudioInfo, probe_audio
from sottovoce.cli.call import Call
from sottovoce.cli.documents import Documents
from sottovoce.cli.each_file import exit_code
from sottovoce.cli.progress_bar import Progress
from sottovoce.errors import AudioError
from sottovoce.formats.output import STANDARD_INPUT

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
