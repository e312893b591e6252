"""Words that live sessions invent where nobody speaks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness.report import show_table
from benchmarks.harness.sounds import at_level, n_units, sounds
from benchmarks.live.runs import AUTO, Bench, Item, Live, counted, run_command, settings, show_live_json
from sottovoce.types import SAMPLE_RATE, Samples

HELP = """Words invented in silence, noise, hum, tones and music-like tones, a minute of each.

About 20 minutes of sound; a few minutes of processor time for each setting."""

FOLLOWS = ("restart", AUTO)
LENGTH_S = 60.0
MUSIC_DB = -20.0
CHORDS = ((220.0, 277.2, 329.6), (196.0, 246.9, 293.7), (174.6, 220.0, 261.6), (164.8, 207.7, 246.9))
"""Hz of three voices, a chord a second."""


def run(given: argparse.Namespace) -> None:
    bench = Bench(given.log)
    items = quiet(given.shared / "data")
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
    show_live_json("noise", asked, {"seconds": LENGTH_S, "found": figures})


def quiet(data: Path) -> list[Item]:
    """Sounds without speech, each a minute long (repeated where it is shorter)."""
    n_samples = round(LENGTH_S * SAMPLE_RATE)
    found = [
        Item(f"{one.name} {LENGTH_S:g} s", np.resize(one.samples, n_samples), group=one.kind)
        for one in sounds(data)
    ]
    return [*found, Item(f"music {LENGTH_S:g} s", music(n_samples), group="music-like tones")]


def invented(items: Sequence[Item], lives: Sequence[Live], kind: str) -> int:
    return n_units([live.text for item, live in zip(items, lives, strict=True) if item.group == kind])


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
    return at_level(sound, MUSIC_DB)


def main() -> None:
    run_command(HELP, None, run, FOLLOWS)
