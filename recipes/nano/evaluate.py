"""Every figure of the model card, from a manifest of held-out clips.

A row's `set` names the group it is reported with; rows without text are used for the language alone.
Rates come with 95 % bootstrap intervals over clips. Texts are compared by the "plain" normaliser, in
which only letters and digits count; Chinese is scored by characters.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipes.nano import homophones, measures
from recipes.nano.clips import Clip, read_manifest, trim_silence
from recipes.nano.measures import Recording
from recipes.nano.texts import UNSPACED, spelled
from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.wer import ErrorRate, ScoredUtterance, ScoreOptions, score
from sottovoce.types import SAMPLE_RATE, Samples

logger = logging.getLogger(__name__)

SCORING = ScoreOptions(normalization="plain")
LANGUAGE_SECONDS = 2.0
NOISY_DB = 10.0
Figures = dict[str, object]


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Clips of one language that are reported together."""

    name: str
    language: str
    recordings: tuple[Recording, ...]


def load_sets(manifest: Path, limit: int, seed: int = 4) -> list[EvaluationSet]:
    """The sets of a manifest, at most `limit` clips of each, drawn at random."""
    groups: dict[str, list[Clip]] = {}
    for clip in read_manifest(manifest):
        groups.setdefault(clip.group, []).append(clip)
    rng = random.Random(seed)
    sets = []
    for name, clips in sorted(groups.items()):
        chosen = clips if len(clips) <= limit else rng.sample(clips, limit)
        loaded = tuple(Recording(load_audio(clip.file), clip.language, clip.text or "") for clip in chosen)
        sets.append(EvaluationSet(name, clips[0].language, loaded))
    return sets


def evaluate(model: Model, sets: Sequence[EvaluationSet], *, n_joined: int = 8) -> dict[str, Figures]:
    """All figures, set by set; and those without a set of their own under "windows" and "no speech"."""
    figures: dict[str, Figures] = {}
    for group in sets:
        logger.info("measuring %s (%d clips)", group.name, len(group.recordings))
        figures[group.name] = language_figures(model, group)
        if group.recordings[0].text:
            figures[group.name] |= text_figures(model, group)
            figures[group.name] |= time_figures(model, group)
            figures[group.name] |= window_figures(model, group, n_joined)
    speech = [item.samples for group in sets for item in group.recordings[:3] if item.text]
    if speech:
        figures["no speech"] = no_speech_figures(model, speech)
    return figures


def text_figures(model: Model, group: EvaluationSet) -> Figures:
    """Word (Chinese: character) error rates, also with homophones taken as equal, and the CTC head's letters.

    A listener cannot know "quelque" from "quelques" in a random sequence: the rate with homophones equal says
    how much was misheard.
    """
    recordings = group.recordings
    zero = [result.text for result in measures.transcribe(model, recordings)]
    silent = [result.text for result in measures.transcribe(model, recordings, "silence")]
    heard = measures.spellings(model, recordings)
    said = [item.text for item in recordings]
    wanted = [spelled(item.language, text) for item, text in zip(recordings, said, strict=True)]
    return {
        "clips": len(recordings),
        "error rate": _rate(group, said, zero),
        "error rate, padded with silence": _rate(group, said, silent),
        "character error rate": _rate(group, said, zero, characters=True),
        **_figures_by_sound(group, said, zero),
        "ctc character error rate": _rate(group, wanted, heard, characters=True),
        "examples": [
            {"said": item.text, "written": text, "ctc": letters}
            for item, text, letters in list(zip(recordings, zero, heard, strict=True))[:4]
        ],
    }


def time_figures(model: Model, group: EvaluationSet, limit: int = 24) -> Figures:
    """Word times against CTC forced alignment, and how monotonic the attention is."""
    if group.language in UNSPACED:
        return {}
    times = measures.word_times(model, group.recordings[:limit])
    found = times.deviations
    return {
        "word time deviation, median (s)": round(float(np.median(found)), 3) if len(found) else None,
        "word times within 0.2 s": round(float(np.mean(found < 0.2)), 3) if len(found) else None,
        "words timed": len(found),
        "monotonic attention": round(times.monotonic, 3),
    }


def window_figures(model: Model, group: EvaluationSet, n_windows: int) -> Figures:
    """Windows of several clips with timestamps: texts, ends of speech, and how many segments came."""
    per_window = 3
    starts: list[float] = []
    ends: list[float] = []
    texts, written, right = [], [], 0
    groups = [group.recordings[i : i + per_window] for i in range(0, len(group.recordings) - 2, per_window)][
        :n_windows
    ]
    for clips in groups:
        window, spans = measures.joined([_trimmed(clip) for clip in clips])
        result = measures.transcribe(model, [window], timestamps=True)[0]
        stamps = measures.timestamps_of(model, result)
        texts.append(window.text)
        written.append(result.text)
        right += len(stamps) == 2 * len(clips)
        if len(stamps) >= 2:
            starts.append(abs(stamps[0] - spans[0][0]))
            ends.append(abs(stamps[-1] - spans[-1][1]))
    if not groups:
        return {}
    return {
        "windows": len(groups),
        "windows with timestamps": len(starts),
        "windows with one segment a clip": right,
        "windows' error rate": _rate(group, texts, written),
        "timestamp deviation, start (s)": _median(starts),
        "timestamp deviation, end (s)": _median(ends),
    }


def language_figures(model: Model, group: EvaluationSet) -> Figures:
    """Share of clips whose middle 2 s are named rightly, clean and at 10 dB."""
    generator = np.random.default_rng(1)
    cuts = [measures.middle(item.samples, LANGUAGE_SECONDS) for item in group.recordings]
    cuts = [cut for cut in cuts if len(cut) >= SAMPLE_RATE // 2]
    noisy = [measures.with_noise(cut, NOISY_DB, generator) for cut in cuts]
    return {
        "language at 2 s": _share(measures.language_rows(model, cuts), group.language),
        "language at 2 s, 10 dB": _share(measures.language_rows(model, noisy), group.language),
        "language cuts": len(cuts),
    }


def no_speech_figures(model: Model, speech: Sequence[Samples]) -> Figures:
    """Lowest probability of no speech on noise and silence, and the highest on speech."""
    generator = np.random.default_rng(2)
    makers: list[Callable[[], Samples]] = [
        lambda: np.zeros(5 * SAMPLE_RATE, np.float32),
        *[
            lambda level=level: (level * generator.standard_normal(4 * SAMPLE_RATE)).astype(np.float32)
            for level in (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
        ],
    ]
    quiet = measures.no_speech(model, [make() for make in makers])
    spoken = measures.no_speech(model, speech)
    return {
        "on noise and silence, lowest": round(min(quiet), 4),
        "on speech, highest": round(max(spoken), 4),
        "on speech, share at most 0.05": round(float(np.mean(np.array(spoken) <= 0.05)), 3),
        "clips of speech": len(spoken),
    }


def write_figures(figures: dict[str, Figures], path: Path) -> None:
    """Write the figures as JSON."""
    path.write_text(json.dumps(figures, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def table(figures: dict[str, Figures]) -> str:
    """The main figures as a Markdown table, in percent with their intervals."""
    lines = ["| set | clips | error rate | CTC CER | language 2 s / 10 dB |", "|---|---|---|---|---|"]
    for name, row in figures.items():
        if "error rate" in row:
            rates = [_percent(row[key]) for key in ("error rate", "ctc character error rate")]
            heard = f"{row['language at 2 s']} / {row['language at 2 s, 10 dB']}"
            lines.append(f"| {name} | {row['clips']} | {rates[0]} | {rates[1]} | {heard} |")
    return "\n".join(lines)


def _rate(
    group: EvaluationSet, wanted: Sequence[str], found: Sequence[str], *, characters: bool = False
) -> list[float | None]:
    """Rate, and the ends of its interval."""
    pairs = zip(wanted, found, strict=True)
    report = score([ScoredUtterance(text, guess, group.language) for text, guess in pairs], SCORING).overall
    rate: ErrorRate = report.cer if characters or group.language in UNSPACED else report.wer
    return [None if value is None else round(value, 3) for value in (rate.rate, rate.low, rate.high)]


def _figures_by_sound(group: EvaluationSet, said: Sequence[str], written: Sequence[str]) -> Figures:
    if not homophones.measurable(group.language):
        return {}
    rewritten = homophones.by_sound(group.language, [*said, *written])
    return {
        "error rate, homophones equal": _rate(group, rewritten[: len(said)], rewritten[len(said) :]),
        "least error rate by ear": round(homophones.least_error_rate(group.language, said), 3),
    }


def _trimmed(item: Recording) -> Recording:
    """Without the silence at its ends, so that the true times are known."""
    samples = trim_silence(item.samples)
    return item if samples is None else Recording(samples, item.language, item.text)


def _median(values: Sequence[float]) -> float | None:
    return round(float(np.median(values)), 3) if values else None


def _share(found: Sequence[str], wanted: str) -> float:
    return round(sum(one == wanted for one in found) / max(1, len(found)), 3)


def _percent(rate: object) -> str:
    assert isinstance(rate, list)
    middle, low, high = (100 * value for value in rate)
    return f"{middle:.1f} % ({low:.1f}–{high:.1f})"
