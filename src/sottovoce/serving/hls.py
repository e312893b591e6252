"""Captions of a session that is shared as HLS: segments of WebVTT and their playlist, in a folder.

A segment is written once the words of its seconds had time to come; what comes later stands in the next one,
with its own times. What is corrected after that stays as it was there: players do not read a segment again.
Knows no web framework.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TypedDict

from sottovoce.serving.shared_captions import SharedCaptions

logger = logging.getLogger(__name__)

SEGMENT_S = 6
WORDS_COME_WITHIN_S = 4.0
"""After they were said: so long a segment waits for its words."""
CUE_S = 6.0
CUE_LETTERS = 84
PLAYLIST = "captions.m3u8"
TIMES = "X-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0"
"""Second 0 of the session is 0 of a video's clock."""


class HeardWord(TypedDict):
    """A word as publishers send it."""

    word: str
    start: float
    end: float
    speaker: str | None


class HlsWriter:
    """Writes one session. folder: made when the first segment is written."""

    def __init__(self, shared: SharedCaptions, folder: Path) -> None:
        self._shared = shared
        self._folder = folder
        self._seen = -1
        self._utterances: dict[int, Sequence[HeardWord]] = {}
        self._written_until: dict[int, float] = {}  # seconds of each utterance
        self._names: dict[str, str] = {}
        self._newest_s = 0.0
        self._base_s = 0.0
        self._newest_at_s: float | None = None
        self._n_segments = 0
        self._is_broken = False

    def write_due(self, *, is_last: bool = False) -> None:
        """Write segments whose words have come; all that is left for the last.

        A folder that cannot be written is told in the log, once.
        """
        self._read()
        if self._newest_at_s is None or self._is_broken:
            return
        waited_s = time.monotonic() - self._newest_at_s
        known_s = self._newest_s + (0.0 if is_last else waited_s - WORDS_COME_WITHIN_S)
        try:
            while (self._n_segments + 1) * SEGMENT_S <= known_s or (
                is_last and self._n_segments * SEGMENT_S < known_s
            ):
                self._write_segment()
                self._write_playlist()
            if is_last:
                self._write_playlist(is_last=True)
        except OSError:
            self._is_broken = True
            logger.exception("captions cannot be written as HLS")

    def _read(self) -> None:
        """Take what has changed."""
        message = self._shared.since(self._seen)
        self._seen = self._shared.revision
        if message is None:
            return
        change = json.loads(message)
        if change.get("clear"):  # the page begins another text, whose seconds are counted from 0
            self._utterances, self._written_until = {}, {}
            self._base_s = float(self._n_segments * SEGMENT_S)
        now = change.get("now")
        for utterance in [*change.get("utterances", []), *([now] if now else [])]:
            words = [later(word, self._base_s) for word in utterance["words"]]
            self._utterances[utterance["id"]] = words
            end_s = max((word["end"] for word in words), default=0.0)
            if self._newest_at_s is None or end_s > self._newest_s:
                self._newest_s, self._newest_at_s = end_s, time.monotonic()
        self._names = change.get("names", self._names)

    def _write_segment(self) -> None:
        until_s = (self._n_segments + 1) * SEGMENT_S
        cues = [
            cue for number in sorted(self._utterances) for cue in cues_of(self._new_words(number, until_s))
        ]
        lines = [f"{clock(cue[0]['start'])} --> {clock(cue[-1]['end'])}\n{self._text(cue)}\n" for cue in cues]
        self._put(f"captions{self._n_segments}.vtt", f"WEBVTT\n{TIMES}\n\n" + "\n".join(lines))
        self._n_segments += 1

    def _new_words(self, number: int, until_s: float) -> Sequence[HeardWord]:
        """Return words of an utterance that no segment has and that begin before a second."""
        from_s = self._written_until.get(number, -1.0)
        new = [word for word in self._utterances[number] if from_s <= word["start"] < until_s]
        if new:
            self._written_until[number] = new[-1]["end"]
        return new

    def _text(self, cue: Sequence[HeardWord]) -> str:
        text = escape(" ".join("".join(word["word"] for word in cue).split()), quote=False)
        speaker = cue[0]["speaker"]
        return f"<v {escape(self._names.get(speaker, speaker), quote=False)}>{text}" if speaker else text

    def _write_playlist(self, *, is_last: bool = False) -> None:
        head = [
            "#EXTM3U",
            "#EXT-X-VERSION:3",
            f"#EXT-X-TARGETDURATION:{SEGMENT_S}",
            "#EXT-X-MEDIA-SEQUENCE:0",
        ]
        head.append("#EXT-X-PLAYLIST-TYPE:EVENT")
        segments = [f"#EXTINF:{SEGMENT_S}.000,\ncaptions{n}.vtt" for n in range(self._n_segments)]
        end = ["#EXT-X-ENDLIST"] if is_last else []
        self._put(PLAYLIST, "\n".join([*head, *segments, *end]) + "\n")

    def _put(self, name: str, text: str) -> None:
        """Write a file that is there whole or not at all. Raises: OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f".{name}.part"
        part.write_text(text, encoding="utf-8")
        os.replace(part, self._folder / name)


def later(word: HeardWord, seconds: float) -> HeardWord:
    """Return a word at a later time."""
    return {**word, "start": word["start"] + seconds, "end": word["end"] + seconds}


def cues_of(words: Sequence[HeardWord]) -> list[list[HeardWord]]:
    """Cut words into cues of one speaker that can be read, `CUE_S` and `CUE_LETTERS` long at most."""
    cues: list[list[HeardWord]] = []
    for word in words:
        last = cues[-1] if cues else None
        is_full = last is not None and (
            word["end"] - last[0]["start"] > CUE_S
            or sum(len(one["word"]) for one in last) + len(word["word"]) > CUE_LETTERS
            or word["speaker"] != last[0]["speaker"]
        )
        if last is None or is_full:
            cues.append([word])
        else:
            last.append(word)
    return cues


def clock(seconds: float) -> str:
    """Write a time as WebVTT has it: 00:01:02.345."""
    milliseconds = round(seconds * 1000)
    whole, rest = divmod(milliseconds, 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}.{rest:03}"
