"""Speak the clips that the live benchmarks run on, with known words, languages and switches.

    python benchmarks/speech_clips.py /tmp/clips                  # the reported ones
    python benchmarks/speech_clips.py /tmp/dev --part dev         # others, to choose constants on

Needs espeak-ng and pypinyin. Reported clips have the voices that nano never heard, the others have others;
no sentence is in both. Kinds, by the beginning of their names:

    single-   one sentence of everyday words
    talk-     many sentences of one language, half a minute and more without a break
    long-     one language for some minutes, also beyond nano's vocabulary; its switches are all false
    mixed-    sentences of 2 or 3 languages in turn, pauses of 0 to 0.8 s
    phrase-   a sentence, then one of the same language with a phrase of another inside, pauses of 0.05 s
    word-     the same with a single word inside

Writes FLAC files, manifest.jsonl and one manifest of each kind (single.jsonl, ...).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import numpy as np
from speech_texts import NEWS, PHRASES, SENTENCES, WORDS, halves, whole

RATE = 16_000
LANGUAGES = tuple(SENTENCES)
Part: TypeAlias = tuple[str, str]
"""Language and text."""


@dataclass(frozen=True, slots=True)
class Speakers:
    """espeak-ng voices of each language, words a minute, and which third of the sentences they say."""

    voices: dict[str, str]
    speed: int
    thirds: tuple[int, ...]

    def sentences(self, language: str) -> list[str]:
        return [s for i, s in enumerate(SENTENCES[language]) if i % 3 in self.thirds]


HELD_OUT = {"en": "en-us+m7", "de": "de+f4", "es": "es+m3", "fr": "fr-fr+f2", "zh": "cmn-latn-pinyin+m6"}
OTHERS = {"en": "en-gb+f3", "de": "de+m2", "es": "es-419+f1", "fr": "fr-be+m4", "zh": "cmn-latn-pinyin+f5"}
PARTS = {"test": Speakers(HELD_OUT, 150, (1, 2)), "dev": Speakers(OTHERS, 165, (0,))}


def demo_voices() -> ModuleType:
    """The demo's script, which knows how to read and to write a clip."""
    path = Path(__file__).parents[1] / "examples" / "make_clips.py"
    spec = importlib.util.spec_from_file_location("make_clips", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_clips"] = module
    spec.loader.exec_module(module)
    return module


def trimmed(samples: np.ndarray, floor: float = 0.01) -> np.ndarray:
    """Without the silence that espeak-ng puts around a sentence."""
    loud = np.flatnonzero(np.abs(samples) > floor)
    return samples[loud[0] : loud[-1] + 1] if len(loud) else samples


class Maker:
    """Joins spoken parts to clips, and keeps their manifest."""

    def __init__(self, folder: Path, speakers: Speakers) -> None:
        self._folder = folder
        self._speakers = speakers
        self._demo = demo_voices()
        self._spoken: dict[Part, np.ndarray] = {}
        self.lines: list[dict[str, object]] = []

    def part(self, part: Part) -> np.ndarray:
        if part not in self._spoken:
            self._spoken[part] = trimmed(self._speak(*part))
        return self._spoken[part]

    def _speak(self, language: str, text: str) -> np.ndarray:
        said = self._demo.pinyin(text.rstrip("？")) if language == "zh" else text
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            voice, speed = self._speakers.voices[language], str(self._speakers.speed)
            subprocess.run(["espeak-ng", "-v", voice, "-s", speed, "-w", file.name, said], check=True)
            return self._demo.read_wave(file.name)

    def clip(self, name: str, parts: Sequence[Part], pauses_s: Sequence[float]) -> None:
        """Write one clip of parts, with a pause after each but the last."""
        pieces, spans, at = [np.zeros(RATE // 2, np.float32)], [], RATE // 2
        for (language, text), pause_s in zip(parts, [*pauses_s, 1.0], strict=True):
            samples = self.part((language, text))
            start, end = round(at / RATE, 3), round((at + len(samples)) / RATE, 3)
            spans.append({"start": start, "end": end, "language": language, "text": text})
            gap = np.zeros(round(pause_s * RATE), np.float32)
            pieces += [samples, gap]
            at += len(samples) + len(gap)
        audio = np.concatenate(pieces)
        self._demo.write_flac(self._folder / f"{name}.flac", audio)
        languages = {language for language, _ in parts}
        self.lines.append(
            {
                "id": name,
                "file": f"{name}.flac",
                "duration": round(len(audio) / RATE, 3),
                "language": parts[0][0] if len(languages) == 1 else spans,
                "text": " ".join(text for _, text in parts),
                "segments": spans,
            }
        )


def one_language(maker: Maker, speakers: Speakers, rng: random.Random, long_s: float) -> None:
    """single-, talk- and long- clips."""
    for language in LANGUAGES:
        sentences = [(language, whole(s)) for s in speakers.sentences(language)]
        for i, sentence in enumerate(sentences):
            maker.clip(f"single-{language}-{i:02d}", [sentence], [])
        for i in range(2):
            talk = rng.sample(sentences, len(sentences))
            talk += rng.sample(sentences, len(sentences))
            maker.clip(f"talk-{language}-{i}", talk, [0.25] * (len(talk) - 1))
        everything = sentences + [(language, text) for text in NEWS[language]]
        parts: list[Part] = []
        pauses: list[float] = []
        while sum(len(maker.part(part)) for part in parts) / RATE + sum(pauses) < long_s:
            parts.append(rng.choice(everything))
            pauses.append(rng.choice([0.2, 0.4, 0.8, 1.5]))
        maker.clip(f"long-{language}", parts, pauses[:-1])


def several_languages(maker: Maker, speakers: Speakers, rng: random.Random, n_clips: int) -> None:
    """mixed-, phrase- and word- clips, n_clips of each."""
    for i in range(n_clips):
        chosen = rng.sample(LANGUAGES, rng.choice([2, 2, 3]))
        parts = [(code, whole(text)) for code in chosen for text in rng.sample(speakers.sentences(code), 1)]
        maker.clip(f"mixed-{i:02d}", parts, [rng.choice([0.0, 0.2, 0.4, 0.8])] * (len(parts) - 1))
    for kind, insertions in (("phrase", PHRASES), ("word", WORDS)):
        for i in range(n_clips):
            outer, inner = rng.sample(LANGUAGES, 2)
            first, second = rng.sample(speakers.sentences(outer), 2)
            before, after = halves(second)
            inserted = (inner, rng.choice(insertions[inner]))
            parts = [(outer, whole(first)), (outer, before), inserted, (outer, after)]
            maker.clip(f"{kind}-{i:02d}", parts, [0.3, 0.05, 0.05])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=sorted(PARTS), default="test")
    parser.add_argument("--several", type=int, default=24, help="mixed, phrase and word clips, of each")
    parser.add_argument("--long-s", type=float, default=240.0, help="seconds of a long- clip")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    speakers, rng = PARTS[given.part], random.Random(given.part)
    maker = Maker(given.folder, speakers)
    one_language(maker, speakers, rng, given.long_s)
    several_languages(maker, speakers, rng, given.several)
    kinds = {str(line["id"]).split("-")[0] for line in maker.lines}
    for kind in ("manifest", *kinds):
        lines = [line for line in maker.lines if kind in ("manifest", str(line["id"]).split("-")[0])]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (given.folder / f"{kind}.jsonl").write_text(text, encoding="utf-8")
    print(f"{len(maker.lines)} clips in {given.folder}: {', '.join(sorted(kinds))}")


if __name__ == "__main__":
    main()
