"""Which recordings of people teach the head, and what those say that nobody wrote down.

Only clips that choose settings ("dev", see `benchmarks.harness.clips`) are taken: no report uses them, nor
are sentences taken that a reported clip says too. Every twentieth is held out to choose by. Where there is
no text, the Whisper whose head is made writes it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import clips as human_clips
from recipes.nano.clips import Clip
from recipes.nano.texts import LANGUAGES, plain, spelled
from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.types import SAMPLE_RATE

logger = logging.getLogger(__name__)

HELD_EVERY = 20
LEAST_AVG_LOGPROB = -0.6
MAX_CLIP_S = 24.0
"""Longer clips do not fit into a window with the padding behind them."""
TIMES = 3
"""How often a clip is heard in a round, of a set of many speakers."""
READERS = ("kathleen-en", "kerstin-de")
"""Sets of one reader each; of all others every clip is heard several times."""


def human_clips_of(data: Path) -> list[Clip]:
    """Clips of the head's languages that may teach; held-out ones have the split "dev".

    data: the folder of `manifest.jsonl`.
    """
    reported = {plain(clip.text) for clip in human_clips.clips(data, "test", with_text=True) if clip.text}
    found = [
        clip
        for language in LANGUAGES
        for clip in human_clips.clips(data, "dev", language=language)
        if clip.group != "noise-rir" and plain(clip.text or "") not in reported
    ]
    return [_taught(clip, index) for index, clip in enumerate(found)]


def written(clips: Iterable[Clip], model: Model) -> Iterator[Clip]:
    """The clips whose text is known or written down by the model with confidence, and has letters alone."""
    for clip in clips:
        text = clip.text if clip.text is not None else _written_by(model, clip)
        if text is not None and is_spelt(clip.language, text):
            yield replace(clip, text=text)


def is_spelt(language: str, text: str) -> bool:
    """Whether the letters say how the text sounds: it has some, and no digits but the tones of pinyin."""
    spelling = spelled(language, text)
    syllables = [word[:-1] if language == "zh" else word for word in spelling.split()]
    return bool(syllables) and not any(letter.isdigit() for word in syllables for letter in word)


def save_manifest(clips: Iterable[Clip], path: Path) -> None:
    """Write clips as `recipes.nano.clips.read_manifest` reads them."""
    rows = [
        {"id": clip.id, "file": clip.file, "language": clip.language, "text": clip.text, "split": clip.split}
        | {"speaker": clip.speaker, "set": clip.group, "times": clip.times}
        for clip in clips
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _taught(clip: human_clips.Clip, index: int) -> Clip:
    return Clip(
        id=clip.name,
        file=str(clip.file.resolve()),
        language=clip.language,
        text=clip.text,
        split="dev" if index % HELD_EVERY == HELD_EVERY - 1 else "train",
        speaker=clip.speaker or "",
        group=clip.group,
        times=1 if clip.group in READERS else TIMES,
    )


def _written_by(model: Model, clip: Clip) -> str | None:
    samples = load_audio(clip.file)
    if len(samples) > MAX_CLIP_S * SAMPLE_RATE:
        return None
    segments = list(model.transcribe(samples, language=clip.language))
    if not segments or min(segment.avg_logprob for segment in segments) < LEAST_AVG_LOGPROB:
        logger.info("%s: nothing written with confidence", clip.id)
        return None
    return " ".join(segment.text.strip() for segment in segments)
