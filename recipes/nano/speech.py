"""Synthetic speech: espeak-ng in some fifty voices, flite for a quarter of the English.

Both are programs of the system, called once a clip. Chinese is spoken from pinyin, because espeak-ng's
plain Chinese voice spells pinyin out in English. Nothing here knows features or models.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from recipes.nano.texts import UNSPACED, Sentence
from sottovoce.errors import InputError

BASES: dict[str, tuple[str, ...]] = {
    "en": ("en-us", "en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland"),
    "de": ("de",),
    "es": ("es", "es-419"),
    "fr": ("fr-fr", "fr-fr", "fr-be", "fr-ch"),
    "zh": ("cmn-latn-pinyin",),
}
VARIANTS = """
    m1 m2 m3 m4 m5 m6 m7 m8 f1 f2 f3 f4 f5 Alex Alicia Andrea Andy Annie Diogo Gene Hugo Lee Marco Mario
    Michael Mike adam anika antonio belinda benjamin boris david ed edward gustave iven john linda max
    michel miguel norbert pablo paul pedro quincy rob robert sandro steph travis victor zac
"""
"""Names of espeak-ng's voices."""
HELD_OUT_VARIANT = {"en": "m7", "de": "f4", "es": "m3", "fr": "f2", "zh": "m6"}
"""The voice of each language that is never trained on."""
FLITE_VOICES = ("slt", "rms", "awb", "kal16")


@dataclass(frozen=True, slots=True)
class Voice:
    """How one clip is spoken. engine: "espeak" or "flite". words_per_minute and pitch are espeak-ng's; flite
    stretches to match.
    """

    engine: str
    name: str
    words_per_minute: int = 170
    pitch: int = 50
    gap: int = 0

    def command(self, language: str, text: str, target: Path) -> list[str]:
        if self.engine == "flite":
            stretch = f"duration_stretch={170 / self.words_per_minute:.3f}"
            return ["flite", "-voice", self.name, "--setf", stretch, "-t", text, "-o", str(target)]
        spoken = pinyin(text) if language in UNSPACED else text
        options = ["-s", str(self.words_per_minute), "-p", str(self.pitch), "-g", str(self.gap)]
        return ["espeak-ng", "-v", self.name, *options, "-w", str(target), spoken]


def pinyin(text: str) -> str:
    """Chinese as pinyin with tone digits, commas and stops kept for the pauses."""
    from pypinyin import Style, lazy_pinyin

    for marks, pause in (("，、；：", ", "), ("。！？", ". ")):
        text = "".join(pause if character in marks else character for character in text)
    syllables = lazy_pinyin(text, style=Style.TONE3, neutral_tone_with_five=True)
    return " ".join(" ".join(syllables).split())


def draw_voice(language: str, rng: random.Random, *, held_out: bool = False) -> Voice:
    """A voice for training at random, or the language's held-out one; speed, pitch and gaps at random."""
    if language == "en" and not held_out and rng.random() < 0.25 and shutil.which("flite"):
        return Voice("flite", rng.choice(FLITE_VOICES), words_per_minute=rng.randint(140, 200))
    variants = [variant for variant in VARIANTS.split() if variant != HELD_OUT_VARIANT[language]]
    variant = HELD_OUT_VARIANT[language] if held_out else rng.choice(variants)
    return Voice(
        "espeak",
        f"{rng.choice(BASES[language])}+{variant}",
        words_per_minute=rng.randint(120, 220),
        pitch=rng.randint(25, 75),
        gap=rng.choice((0, 0, 0, 1, 2, 4)),
    )


def speak(sentence: Sentence, voice: Voice, target: Path) -> None:
    """Write a WAV file of the sentence.

    Raises: InputError when the program is missing or fails.
    """
    command = voice.command(sentence.language, sentence.text, target)
    if shutil.which(command[0]) is None:
        raise InputError(
            f"{command[0]}: no such program, expected it on the path (apt-get install {command[0]})"
        )
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode or not target.is_file():
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit {done.returncode}"]
        raise InputError(f"{command[0]}: could not speak {sentence.text!r}: {reason[0]}")


def write_corpus(sentences: Iterable[Sentence], folder: Path, rng: random.Random) -> Path:
    """Speak all sentences into a folder and return its manifest.

    Held-out sentences are spoken twice, by the held-out voice and by one seen in training, and marked
    `"split": "test"`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for index, sentence in enumerate(sentences):
        for take, held in enumerate((True, False) if sentence.held_out else (False,)):
            voice = draw_voice(sentence.language, rng, held_out=held)
            name = f"{sentence.language}-{index:06d}-{take}"
            row = {"id": name, "file": f"{name}.wav", "language": sentence.language, "text": sentence.text}
            row |= {"kind": sentence.kind, "speaker": voice.name}
            rows.append({**row, "split": "test" if sentence.held_out else "train"})
            speak(sentence, voice, folder / row["file"])
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return manifest
