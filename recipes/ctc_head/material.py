"""What teaches the head: recordings of people, and sentences to speak.

Only recordings that choose settings ("dev", see `benchmarks.harness.clips`) are taken: no report uses them,
nor are sentences taken that a reported clip says too. Every twentieth is held out to choose by. Where there
is no text, the Whisper whose head is made writes it. Sentences are those whose letters say how they sound.
"""

from __future__ import annotations

import gzip
import json
import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import clips as human_clips
from recipes.nano.clips import Clip
from recipes.nano.texts import LANGUAGES, Sentence, corpus, plain, spelled
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
MAX_LETTERS = 110
SPANISH_WORDS = "text/freqwords/es_50k_top20k.txt.gz"
"""Spanish sentences have lost letters: only those of frequent words are spoken."""


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
    return [
        Clip(
            id=clip.name,
            file=str(clip.file.resolve()),
            language=clip.language,
            text=clip.text,
            split="dev" if index % HELD_EVERY == HELD_EVERY - 1 else "train",
            group=clip.group,
            times=1 if clip.group in READERS else TIMES,
        )
        for index, clip in enumerate(found)
    ]


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
        {"id": clip.id, "file": clip.file, "language": clip.language, "text": clip.text}
        | {"split": clip.split, "set": clip.group, "times": clip.times}
        for clip in clips
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _written_by(model: Model, clip: Clip) -> str | None:
    samples = load_audio(clip.file)
    if len(samples) > MAX_CLIP_S * SAMPLE_RATE:
        return None
    segments = list(model.transcribe(samples, language=clip.language))
    if not segments or min(segment.avg_logprob for segment in segments) < LEAST_AVG_LOGPROB:
        logger.info("%s: nothing written with confidence", clip.id)
        return None
    return " ".join(segment.text.strip() for segment in segments)


def sentences_to_speak(data: Path | None, counts: Mapping[str, int], rng: random.Random) -> list[Sentence]:
    """So many sentences of each language, half of them as they are found and half of words drawn at random.

    data: the folder with `text/sentences` and `text/freqwords`; None: the few that are built in.
    """
    chosen: list[Sentence] = []
    for language, n in counts.items():
        found = corpus(data and data / "text" / "sentences", language, n, rng)
        known = None
        if data is not None and language == "es":
            with gzip.open(data / SPANISH_WORDS, "rt", encoding="utf-8") as lines:
                known = {line.split()[0] for line in lines if line.strip()}
        usable = [
            one
            for one in found
            if not one.held_out
            and is_spelt(language, one.text)
            and len(one.text) <= MAX_LETTERS
            and (known is None or known >= set(plain(one.text).split()))
        ]
        for kind in ("sentence", "words"):
            of_kind = [one for one in usable if one.kind == kind]
            chosen += rng.sample(of_kind, min(n // 2, len(of_kind)))
    return chosen
