"""Transcripts that the format tests write: by hand, at random, and as openai-whisper's dicts."""

from __future__ import annotations

import io
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from sottovoce.types import Segment, Transcript, Word

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CLIPS = Path(__file__).parents[2] / "examples" / "clips"
SCHEMA = Path(__file__).parents[2] / "docs" / "transcript.schema.json"
VOCABULARY = ("a", "the", "Hello,", "whispering?", "don't", "你好", "incomprehensibilities", "--", "(so)")


def module(name: str) -> Any:
    """A program that reads our documents, or a skip."""
    return pytest.importorskip(name, reason=f"{name} is not installed")


def spoken(seed: int, *, with_words: bool = True, n_segments: int = 6) -> Transcript:
    """Segments of 0 to 12 words with pauses of up to 8 s, some of them longer than an hour in."""
    rng = random.Random(seed)
    now = rng.choice([0.0, 1.234, 3590.5])
    segments = []
    for i in range(n_segments):
        words = []
        for _ in range(rng.randint(0, 12)):
            now += rng.choice([0.0, 0.0, 0.05, 0.4, 3.5, 8.0])
            end = now + rng.random()
            words.append(Word(" " + rng.choice(VOCABULARY), round(now, 2), round(end, 2), rng.random()))
            now = end
        start, end = (words[0].start, words[-1].end) if words else (round(now, 2), round(now, 2))
        text = "".join(word.word for word in words)
        segments.append(Segment(i, start, end, text, "en", words=tuple(words) if with_words else None))
    return Transcript(tuple(segments), "en", now, "nano")


def timed_segment(text: str, start: float = 0.0, *, id: int = 0, **fields: Any) -> Segment:
    """A segment whose words begin every 0.4 s and take 0.3 s."""
    words = tuple(
        Word(f" {word}", start + 0.4 * place, start + 0.4 * place + 0.3, 0.9, speaker=fields.get("speaker"))
        for place, word in enumerate(text.split())
    )
    return Segment(id, start, start + 0.4 * len(words), f" {text}", "en", words=words, **fields)


def shown(document: bytes) -> str:
    """What people read in a document: its text, or that of an archive of a word processor."""
    if not document.startswith(b"PK"):
        return document.decode("utf-8")
    return "\n".join(block.text for block in module("docx").Document(io.BytesIO(document)).paragraphs)


def as_result(transcript: Transcript) -> dict[str, object]:
    """The same in openai-whisper's shape."""
    segments = []
    for segment in transcript.segments:
        entry: dict[str, object] = {"start": segment.start, "end": segment.end, "text": segment.text}
        if segment.words is not None:
            entry["words"] = [{"word": w.word, "start": w.start, "end": w.end} for w in segment.words]
        segments.append(entry)
    return {"text": transcript.text, "segments": segments, "language": transcript.language}


@st.composite
def transcripts(draw: st.DrawFn, text: st.SearchStrategy[str] | None = None) -> Transcript:
    """Any text, times that never go back, with or without words."""
    if text is None:
        text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    texts = draw(st.lists(text, max_size=5))
    steps = st.integers(0, 100_000).map(lambda ms: ms / 1000)
    now, segments = 0.0, []
    for i, words_text in enumerate(texts):
        start = now + draw(steps)
        end = now = start + draw(steps)
        words = (Word(words_text, start, end, 0.5),) if draw(st.booleans()) else None
        segments.append(Segment(i, start, end, words_text, "en", words=words))
    return Transcript(tuple(segments), "en", now, "nano")
