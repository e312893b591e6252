"""Words that live sessions invent where nobody speaks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness.report import show_table
from benchmarks.harness.sounds import sounds
from benchmarks.live.runs import AUTO, Bench, Item, Live, counted, run_command, settings, show_live_json
from sottovoce.evaluation.wer import split_units
from sottovoce.text.normalize import plain
from sottovoce.types import SAMPLE_RATE, Samples

HELP = """Words invented in silence, noise, hum, tones and music-like tones, a minute of each.

About 20 minutes of sound; with voice activity detection a few minutes of processor time for each setting,
without it (--session vad=false) half of the sound's length."""

FOLLOWS = ("restart", AUTO)
LENGTH_S = 60.0
MUSIC_DB = -20.0
CHORDS = ((220.0, 277.2, 329.6), (196.0, 246.9, 293.7), (174.6, 220.0, 261.6), (164.8, 207.7, 246.9))
"""Hz of three voices, a chord a second."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=LENGTH_S, help="of each sound [60]")


def run(given: argparse.Namespace) -> None:
    bench = Bench(given.log)
    items = quiet(given.shared / "data", given.seconds)
    asked = settings(given)
    kinds = list(dict.fromkeys(item.group for item in items))
    rows, figures = [], {}
    for setting in asked:
        lives = [bench.live(setting, item) for item in counted(items, setting.name)]
        counts = {kind: invented(items, lives, kind) for kind in kinds}
        minutes = sum(live.run.duration_s for live in lives) / 60
        switches = sum(len(live.run.switches) for live in lives)
        rate = sum(counts.values()) / minutes
        rows.append([setting.name, *map(str, counts.values()), f"{rate:.2f}", str(switches)])
        figures[setting.name] = {"words": counts, "minutes": round(minutes, 1), "switches": switches}
        for item, live in zip(items, lives, strict=True):
            if live.text:
                print(f"{item.name}: {live.text}")
    heads = [f"{kind} ({sum(item.group == kind for item in items)})" for kind in kinds]
    show_table(["words in", *heads, "a minute", "switches"], rows)
    show_live_json("noise", asked, {"seconds": given.seconds, "found": figures})


def quiet(data: Path, length_s: float) -> list[Item]:
    """Sounds without speech, each of a length (said again where it is shorter); "en" where one is given."""
    n_samples = round(length_s * SAMPLE_RATE)
    found = [
        Item(f"{one.name} {length_s:g} s", np.resize(one.samples, n_samples), group=one.kind)
        for one in sounds(data)
    ]
    return [*found, Item(f"music {length_s:g} s", music(n_samples), group="music-like tones")]


def invented(items: Sequence[Item], lives: Sequence[Live], kind: str) -> int:
    """Words, and characters of scripts without spaces."""
    texts = [live.text for item, live in zip(items, lives, strict=True) if item.group == kind]
    return sum(len(split_units(plain(text), "mixed")) for text in texts)


def music(n_samples: int) -> Samples:
    """Chords of voices with overtones, struck four times a second, at `MUSIC_DB` of full scale."""
    seconds = np.arange(n_samples) / SAMPLE_RATE
    sound = np.zeros(n_samples)
    decay = np.exp(-6.0 * (seconds % 0.25))
    for number, chord in enumerate(CHORDS):
        sounding = (seconds.astype(int) % len(CHORDS)) == number
        for pitch in chord:
            for overtone in range(1, 6):
                wave = np.sin(2 * np.pi * pitch * overtone * seconds) / overtone
                sound += np.where(sounding, wave * decay, 0.0)
    sound *= 10 ** (MUSIC_DB / 20) / np.sqrt(np.mean(sound**2))
    return np.clip(sound, -1.0, 1.0).astype(np.float32)


def main() -> None:
    run_command(HELP, add_arguments, run, FOLLOWS)
