"""Speak the clips that the live benchmarks run on: single languages, and mixtures with known switches.

    python benchmarks/speech_clips.py /tmp/clips            # 1 clip a language and sentence, 24 mixtures

Needs espeak-ng and pypinyin. Voices and sentences are not in nano's training data. Mixtures join 2 or 3
languages with pauses of 0 to 0.8 s; `phrase-*` put a short phrase of one language inside a sentence of
another. `long-*` are single-language recordings of all sentences. Writes FLAC files and manifest.jsonl.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

RATE = 16_000
SENTENCES = {
    "en": [
        "My sister bought a small house near the station last year.",
        "The children were playing in the street until it got dark.",
        "Nobody knows why the meeting was moved to Thursday.",
        "He opened the window because the room was too warm.",
        "They sold more bread this week than in the whole of May.",
        "Please bring the books back before the end of the month.",
    ],
    "de": [
        "Meine Schwester hat letztes Jahr ein kleines Haus gekauft.",
        "Die Kinder spielten auf der Straße, bis es dunkel wurde.",
        "Niemand weiß, warum das Treffen verschoben wurde.",
        "Er öffnete das Fenster, weil es im Zimmer zu warm war.",
        "Sie haben diese Woche mehr Brot verkauft als im ganzen Mai.",
        "Bitte bringen Sie die Bücher bis zum Ende des Monats zurück.",
    ],
    "es": [
        "Mi hermana compró una casa pequeña cerca de la estación.",
        "Los niños jugaban en la calle hasta que se hizo de noche.",
        "Nadie sabe por qué cambiaron la reunión al jueves.",
        "Abrió la ventana porque en la sala hacía mucho calor.",
        "Esta semana vendieron más pan que en todo el mes de mayo.",
        "Por favor, devuelva los libros antes del fin de mes.",
    ],
    "fr": [
        "Ma sœur a acheté une petite maison près de la gare.",
        "Les enfants jouaient dans la rue jusqu'à la nuit.",
        "Personne ne sait pourquoi la réunion a été déplacée.",
        "Il a ouvert la fenêtre parce qu'il faisait trop chaud.",
        "Ils ont vendu plus de pain cette semaine que tout le mois de mai.",
        "Merci de rapporter les livres avant la fin du mois.",
    ],
    "zh": [
        "我的姐姐去年在车站旁边买了一个小房子。",
        "孩子们在外面玩到天黑才回家。",
        "没有人知道会议为什么改到星期四。",
        "因为房间里太热,他打开了窗户。",
        "这个星期他们卖得比上个月还多。",
        "请在月底以前把书还回来。",
    ],
}
PHRASES = {
    "en": "good morning everybody",
    "de": "guten Morgen zusammen",
    "es": "buenos días a todos",
    "fr": "bonjour tout le monde",
    "zh": "大家早上好",
}


def demo_voices() -> ModuleType:
    """The demo's script, which knows how to speak and to write a clip."""
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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._voices = demo_voices()
        self._spoken: dict[tuple[str, str], np.ndarray] = {}
        self.lines: list[dict[str, object]] = []

    def part(self, language: str, text: str) -> np.ndarray:
        key = (language, text)
        if key not in self._spoken:
            self._spoken[key] = trimmed(self._voices.espeak(language, text))
        return self._spoken[key]

    def clip(self, name: str, parts: list[tuple[str, str]], pause_s: float) -> None:
        """Write one clip of (language, text) parts."""
        pieces, spans, at = [np.zeros(RATE // 2, np.float32)], [], RATE // 2
        for i, (language, text) in enumerate(parts):
            samples = self.part(language, text)
            spans.append(
                {
                    "start": round(at / RATE, 3),
                    "end": round((at + len(samples)) / RATE, 3),
                    "language": language,
                    "text": text,
                }
            )
            gap = np.zeros(round((pause_s if i < len(parts) - 1 else 1.0) * RATE), np.float32)
            pieces += [samples, gap]
            at += len(samples) + len(gap)
        audio = np.concatenate(pieces)
        self._voices.write_flac(self._folder / f"{name}.flac", audio)
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


def make(folder: Path, *, n_mixed: int, seed: int = 1) -> list[dict[str, object]]:
    """Make all clips; their manifest lines."""
    rng = random.Random(seed)
    maker = Maker(folder)
    languages = list(SENTENCES)
    for language in languages:
        for i, sentence in enumerate(SENTENCES[language]):
            maker.clip(f"single-{language}-{i}", [(language, sentence)], 0.0)
        maker.clip(f"long-{language}", [(language, s) for s in SENTENCES[language] * 2], 0.5)
    for i in range(n_mixed):
        chosen = rng.sample(languages, rng.choice([2, 2, 3]))
        parts = [(language, rng.choice(SENTENCES[language])) for language in chosen]
        maker.clip(f"mixed-{i:02d}", parts, rng.choice([0.0, 0.2, 0.4, 0.8]))
    for i in range(n_mixed // 3):
        outer, inner = rng.sample(languages, 2)
        first, second = rng.sample(SENTENCES[outer], 2)
        maker.clip(f"phrase-{i:02d}", [(outer, first), (inner, PHRASES[inner]), (outer, second)], 0.1)
    return maker.lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mixed", type=int, default=24, help="mixtures to make")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    lines = make(given.folder, n_mixed=given.mixed)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (given.folder / "manifest.jsonl").write_text(text, encoding="utf-8")
    print(f"{len(lines)} clips in {given.folder}")


if __name__ == "__main__":
    main()
