"""The language of a recording: from its first window, and from several, on people's speech.

    python -m benchmarks language recording ../shared                       # the reported clips
    python -m benchmarks language recording ../shared --part dev            # others, to choose constants on

Every clip of one language is a window: padded to 30 s and detected among all languages, as openai-whisper
does with the first window of a recording. Recordings of four windows are drawn from clips of one language (of
several speakers, which is harder than one), and `transcribe`'s rule is asked how many windows it wants.
Clips of VoxLingua (32 languages, about as many of each) and of the other sets (mostly English, German,
Spanish, Polish) count apart. `--log` keeps detections. Prints a table and one JSON line.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips
from benchmarks.harness.log import add_row, read_rows
from benchmarks.harness.tables import show_json
from sottovoce.api import Model, load_model
from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.recording import Recording
from sottovoce.decoding.detect import LanguageDetection, detect_language
from sottovoce.offline.languages import LEAST_WINDOWS, SURE, SURE_ALONE
from sottovoce.offline.transcriber import Transcriber
from sottovoce.options.transcribe import TranscribeOptions

VOXLINGUA = "voxlingua107-dev"
N_WINDOWS = 4
DRAWS = 40
"""Recordings of each language."""


def heard(model: Model, clip: Clip) -> LanguageDetection:
    """The detection of a clip's first 30 s."""
    with (
        Recording(clip.file) as recording,
        RecordingFeatures(recording, model.backend.dims.n_mels, normalization="running") as features,
    ):
        window = features.window(0, n_frames=2 * model.backend.dims.n_audio_ctx, fill="silence")
        return detect_language(model.backend, model.tokenizer, model.backend.encode(window))[0]


def detections(model: Model, chosen: Sequence[Clip], log: Path | None) -> dict[str, LanguageDetection]:
    """By clip; from the log where it has them."""
    known: dict[str, LanguageDetection] = {}
    for row in read_rows(log):
        name = row.pop("clip")
        known[name] = LanguageDetection(**row)
    for clip in chosen:
        if clip.name in known:
            continue
        known[clip.name] = found = heard(model, clip)
        row = {"clip": clip.name, "language": found.language, "probability": found.probability}
        row |= {"probabilities": dict(found.probabilities), "allowed_mass": found.allowed_mass}
        add_row(log, row | {"no_speech_prob": found.no_speech_prob})
    return known


def recordings(chosen: Sequence[Clip]) -> list[tuple[str, list[str]]]:
    """A language, and the names of the clips that are its windows."""
    by_language: dict[str, list[str]] = defaultdict(list)
    for clip in chosen:
        by_language[clip.language].append(clip.name)
    rng = random.Random(0)
    return [
        (language, rng.sample(names, N_WINDOWS))
        for language, names in by_language.items()
        if len(names) >= N_WINDOWS
        for _ in range(DRAWS)
    ]


def by_rule(transcriber: Transcriber, windows: Sequence[LanguageDetection]) -> tuple[str, int]:
    """The language that the rule of `offline.languages` finds, and the windows it takes; one that is sure is
    enough where languages are followed."""
    for n in range(1, len(windows) + 1):
        found = transcriber.combine(windows[:n], [1.0] * n)
        is_sure = transcriber.may_follow and found.probability >= SURE_ALONE
        if (is_sure and n == 1) or (n >= LEAST_WINDOWS and found.probability >= SURE):
            break
    return found.language, n


def measure(model: Model, chosen: Sequence[Clip], known: dict[str, LanguageDetection]) -> dict[str, float]:
    plain = Transcriber(model.backend, model.tokenizer, TranscribeOptions())
    neutral = replace(plain, options=TranscribeOptions(language_prior={}))
    kept = replace(plain, options=TranscribeOptions(follow_languages=False))
    drawn = recordings(chosen)

    def ruled(transcriber: Transcriber) -> tuple[float, float]:
        """Share of recordings that are right by the rule, and windows that it takes."""
        by_name = [(code, by_rule(transcriber, [known[name] for name in names])) for code, names in drawn]
        n = max(1, len(by_name))
        return sum(code == one for code, (one, _) in by_name) / n, sum(taken for _, (_, taken) in by_name) / n

    several, n_heard = ruled(kept)
    followed, n_followed = ruled(plain)

    def right(transcriber: Transcriber) -> float:
        hits = [transcriber.combine([known[c.name]], [1.0]).language == c.language for c in chosen]
        return sum(hits) / len(hits)

    return {
        "clips": len(chosen),
        "one window": right(neutral),
        "one window, rare languages held back": right(plain),
        "recordings": len(drawn),
        "first window": sum(known[n[0]].language == code for code, n in drawn) / max(1, len(drawn)),
        "several windows": several,
        "windows heard": n_heard,
        "where languages are followed": followed,
        "windows heard there": n_followed,
    }


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    add_part(parser)
    parser.add_argument("--every", type=int, default=1, help="one clip of so many, of the other sets")
    parser.add_argument("--log", type=Path, help="detections so far: a file of JSON lines that is added to")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model(given.model, device="cpu", dtype="float32")
    found = [clip for clip in clips(given.shared / "data", given.part) if len(clip.languages) == 1]
    groups = {
        "VoxLingua": [clip for clip in found if clip.group == VOXLINGUA],
        "other sets": [clip for clip in found if clip.group != VOXLINGUA][:: given.every],
    }
    known = detections(model, [clip for group in groups.values() for clip in group], given.log)
    figures = {name: measure(model, group, known) for name, group in groups.items()}
    print("| | " + " | ".join(figures["VoxLingua"]) + " |\n" + "|---" * 10 + "|")
    for name, row in figures.items():
        cells = [f"{v:.1%}" if v <= 1 else f"{v:.1f}" if v % 1 else f"{v:.0f}" for v in row.values()]
        print(f"| {name} | " + " | ".join(cells) + " |")
    show_json("language recording", {"model": model.name, "part": given.part, **figures})
