"""Captions of a session that is shared as HLS: segments of WebVTT and their playlist, in a folder.

A segment is written once the words of its seconds had time to come; what comes later stands in the next one,
with its own times. What is corrected after that stays as it was there: players do not read a segment again.
Knows no web framework.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TypedDict

from sottovoce.serving.captions.shared_captions import SharedCaptions

logger = logging.getLogger(__name__)

SEGMENT_S = 6
WORDS_COME_WITHIN_S = 4.0
"""After they were said: so long a segment waits for its words."""
MOST_SEGMENTS = 200
"""Written at once."""
BEFORE_SHARED_S = 12 * 3600.0
"""Of captions from before they were shared, at most: what lies later has no time that can be true."""
CUE_S = 6.0
CUE_LETTERS = 84
PLAYLIST = "captions.m3u8"
TIMES = "X-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0"
"""Second 0 of the session is 0 of a video's clock."""


class CaptionWord(TypedDict):
    """A word as publishers send it."""

    word: str
    start: float
    end: float
    speaker: str | None
    language: str | None


class CaptionUtterance(TypedDict):
    """What `hls` reads of an utterance."""

    id: int
    words: list[CaptionWord]


class Change(TypedDict, total=False):
    """What `hls` reads of a message to readers."""

    clear: bool
    now: CaptionUtterance | None
    utterances: list[CaptionUtterance]
    names: dict[str, str | None]


class HlsWriter:
    """Writes one session. folder: made when the first segment is written.

    `look` is of the event loop, `write` of any thread.
    """

    def __init__(self, shared: SharedCaptions, folder: Path) -> None:
        self._shared = shared
        self._folder = folder
        self._seen = -1
        self._messages: deque[str] = deque()
        self._lock = threading.Lock()
        self._n_texts = 0
        self._waiting: dict[tuple[int, int], Sequence[CaptionWord]] = {}  # by text and utterance
        self._written_until: dict[int, float] = {}  # where the last word of each utterance begins
        self._names: dict[str, str | None] = {}
        self._newest_s = 0.0
        self._base_s = 0.0
        self._newest_at_s: float | None = None
        self._n_segments = 0
        self._is_broken = False

    def write_due(self, *, is_last: bool = False) -> None:
        """Look, and write."""
        self.look()
        self.write(is_last=is_last)

    def look(self) -> None:
        """Take what has changed, to be written."""
        message = self._shared.since(self._seen)
        self._seen = self._shared.revision
        if message is not None:
            self._messages.append(message)

    def write(self, *, is_last: bool = False) -> None:
        """Write segments whose words have come, `MOST_SEGMENTS` at once; all that is left for the last.

        A folder that cannot be written is told in the log, once.
        """
        with self._lock:
            while self._messages:
                self._read(json.loads(self._messages.popleft()))
            if self._newest_at_s is None or self._is_broken:
                return
            try:
                self._write_segments(self._n_due(self._newest_at_s, is_last=is_last), is_last=is_last)
            except OSError:
                self._is_broken = True
                logger.exception("captions cannot be written as HLS")

    @property
    def _longest_s(self) -> float:
        """Seconds that captions can have by now."""
        return self._shared.age_s + BEFORE_SHARED_S

    def _n_due(self, newest_at_s: float, *, is_last: bool) -> int:
        """Return how many segments are to be there."""
        if is_last:
            return max(self._n_segments, math.ceil(self._newest_s / SEGMENT_S))
        waited_s = time.monotonic() - newest_at_s
        transcribed_s = min(self._newest_s + waited_s - WORDS_COME_WITHIN_S, self._longest_s)
        return min(max(self._n_segments, int(transcribed_s // SEGMENT_S)), self._n_segments + MOST_SEGMENTS)

    def _read(self, change: Change) -> None:
        """Take what has changed."""
        if change.get("clear"):  # the page begins another text, whose seconds are counted from 0
            self._n_texts += 1
            self._written_until = {}
            self._base_s = float(SEGMENT_S * max(self._n_segments, math.ceil(self._newest_s / SEGMENT_S)))
        now = change.get("now")
        for utterance in [*change.get("utterances", []), *([now] if now else [])]:
            number = utterance["id"]
            from_s = self._written_until.get(number, -1.0)
            words = [later(word, self._base_s) for word in utterance["words"]]
            self._waiting[self._n_texts, number] = [word for word in words if from_s < word["start"]]
            end_s = min(max((word["end"] for word in words), default=0.0), self._longest_s)
            if self._newest_at_s is None or end_s > self._newest_s:
                self._newest_s, self._newest_at_s = end_s, time.monotonic()
        self._names = change.get("names", self._names)

    def _write_segments(self, n_due: int, *, is_last: bool) -> None:
        """Write segments until there are so many, then their playlist. Raises: OSError."""
        if n_due > self._n_segments:
            found = self._words_of_segments(n_due)
            for number in range(self._n_segments, n_due):
                self._write_segment(number, found.get(number, []))
            self._n_segments = n_due
            self._write_playlist(is_last=is_last)
        elif is_last:
            self._write_playlist(is_last=True)

    def _words_of_segments(self, n_due: int) -> Mapping[int, Sequence[Sequence[CaptionWord]]]:
        """Take words that wait, of segments before n_due: by segment, of one utterance after another."""
        found: dict[int, list[list[CaptionWord]]] = {}
        for text, utterance in sorted(self._waiting):
            waiting = self._waiting.pop((text, utterance))
            due: dict[int, list[CaptionWord]] = {}
            for word in waiting:
                if word["start"] < n_due * SEGMENT_S:
                    due.setdefault(max(self._n_segments, int(word["start"] // SEGMENT_S)), []).append(word)
            for number, words in due.items():
                found.setdefault(number, []).append(words)
            if due and text == self._n_texts:
                self._written_until[utterance] = max(words[-1]["start"] for words in due.values())
            if rest := [word for word in waiting if word["start"] >= n_due * SEGMENT_S]:
                self._waiting[text, utterance] = rest
        return found

    def _write_segment(self, number: int, utterances: Sequence[Sequence[CaptionWord]]) -> None:
        cues = [cue for words in utterances for cue in cues_of(words)]
        lines = [f"{clock(cue[0]['start'])} --> {clock(cue[-1]['end'])}\n{self._text(cue)}\n" for cue in cues]
        self._put(f"captions{number}.vtt", f"WEBVTT\n{TIMES}\n\n" + "\n".join(lines))

    def _text(self, cue: Sequence[CaptionWord]) -> str:
        text = escape(" ".join("".join(word["word"] for word in cue).split()), quote=False)
        speaker = cue[0]["speaker"]
        name = " ".join((self._names.get(speaker) or speaker).split()) if speaker else ""
        return f"<v {escape(name, quote=False)}>{text}" if name else text

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


def later(word: CaptionWord, seconds: float) -> CaptionWord:
    """Return a word at a later time."""
    return {**word, "start": word["start"] + seconds, "end": word["end"] + seconds}


def cues_of(words: Sequence[CaptionWord]) -> list[list[CaptionWord]]:
    """Cut words into cues of one speaker that can be read, `CUE_S` and `CUE_LETTERS` long at most."""
    cues: list[list[CaptionWord]] = []
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
