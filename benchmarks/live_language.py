"""The language of the first seconds of an utterance: the live probe beside openai-whisper, on people's speech.

    python benchmarks/live_language.py ../shared/data --log language.jsonl                  # the reported clips
    python benchmarks/live_language.py ../shared/data --log language-dev.jsonl --part dev   # to choose on

Each clip gives its first 1, 2, 3 and 5 seconds from where speech begins. openai-whisper itself detects them padded
to 30 s with silence, as its documentation does. Ours are the states of a live window, the seconds and the tail
behind them, under different masks: "tail" hears both, "speech" the seconds alone, "newest" their last 1.5 s
alone, "newest, tail" these and the tail; "30 s" is "tail" with as much padding as fills the window. Choice among all
languages of the model, and in lists of 2, 5 and 12 that hold the true one: the others are drawn from the
languages of the clips, 20 times a clip, the same for every side. What the log holds is not computed anew.
Needs the environment of `make test`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from human_clips import Clip, Part, clips, spread
from references import openai_model

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.audio.vad_stream import VadStream
from sottovoce.evaluation.language_id import LanguageScores
from sottovoce.models.load import load_checkpoint
from sottovoce.offline.options import LANGUAGE_PRIOR
from sottovoce.streaming.held import context_frames
from sottovoce.streaming.options import StreamOptions
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, Samples

SECONDS = (1, 2, 3, 5)
NEWEST_S = 1.5
THEIRS = "openai-whisper"
EXACT = "30 s"
SIDES = (THEIRS, "tail", "speech", "newest", "newest, tail")
LISTS = (2, 5, 12)
DRAWS = 20
VOXLINGUA = "voxlingua107-dev"
READERS = (
    *("commonvoice-en-mini", "librispeech-mini", "ljspeech-mini", "kathleen-en", "kerstin-de"),
    *("dona-es", "nemo-pl", "hindi-hsc", "smoke-multi"),
)
Logits = npt.NDArray[np.float64]
"""(n_languages,) natural logarithms, up to a constant."""


@dataclass(frozen=True, slots=True)
class Key:
    clip: str
    seconds: int
    side: str


class Sides:
    """Both programs with the same weights, float32, loaded when they are first asked."""

    def __init__(self, model_name: str) -> None:
        self._name = model_name

    @cached_property
    def ours(self) -> Model:
        return load_model(self._name, device="cpu", dtype="float32")

    @cached_property
    def theirs(self) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return openai_model(load_checkpoint(self._name), Path(folder))

    @torch.inference_mode()
    def heard(self, audio: Samples, sides: Sequence[str]) -> dict[str, Logits]:
        """What each side hears in some seconds."""
        found = {THEIRS: self._by_openai(audio)} if THEIRS in sides else {}
        live = [side for side in sides if side not in (THEIRS, EXACT)]
        if live:
            found |= self._by_probe(audio, live, StreamOptions())
        if EXACT in sides:
            found[EXACT] = self._by_probe(audio, ["tail"], StreamOptions(context_bucket_s=None))["tail"]
        return found

    def _by_openai(self, audio: Samples) -> Logits:
        import whisper

        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(audio))
        _, shares = self.theirs.detect_language(mel)
        return np.log(np.array([shares[code] for code in self.ours.tokenizer.language_codes]) + 1e-30)

    def _by_probe(self, audio: Samples, sides: Sequence[str], options: StreamOptions) -> dict[str, Logits]:
        backend, tokenizer = self.ours.backend, self.ours.tokenizer
        mel = log_mel(audio, backend.dims.n_mels)
        encoded = backend.encode(window_features([mel], context_frames(mel.shape[1], options, backend)))
        n = len(audio) * FRAMES_PER_SECOND // SAMPLE_RATE
        newest = max(0, n - round(NEWEST_S * FRAMES_PER_SECOND))
        spans = {
            "tail": (0, encoded.n_frames),
            "speech": (0, n),
            "newest": (newest, n),
            "newest, tail": (newest, encoded.n_frames),
        }
        rows = torch.tensor(tokenizer.language_tokens)
        chosen = [spans[side] for side in sides]
        logits = backend.first_step(encoded, chosen, token=tokenizer.sot, vocabulary=rows).double().numpy()
        return dict(zip(sides, logits, strict=True))


def beginning_of_speech(audio: Samples) -> int:
    """The sample at which a session's first utterance begins; 0 if no speech is found."""
    vad = VadStream()
    edges = [*vad.push(audio), *vad.close()]
    return edges[0].sample if edges else 0


def asked(data: Path, part: Part, n_readers: int) -> list[Clip]:
    """All clips of VoxLingua, and so many of people reading."""
    spoken = clips(data, part, sets=[VOXLINGUA])
    readers = [clip for clip in clips(data, part, sets=READERS) if len(clip.languages) == 1]
    return [*spoken, *spread(readers, n_readers)]


def logged(log: Path | None) -> dict[Key, Logits]:
    if log is None or not log.exists():
        return {}
    rows = map(json.loads, log.read_text("utf-8").splitlines())
    return {Key(row["clip"], row["seconds"], row["side"]): np.array(row["logits"]) for row in rows}


def measured(name: str, chosen: Sequence[Clip], sides: Sequence[str], log: Path | None) -> dict[Key, Logits]:
    """What every side heard of every clip; what the log lacks is computed and added to it."""
    known, programs = logged(log), Sides(name)
    for clip in chosen:
        audio: Samples | None = None
        for seconds in SECONDS:
            missing = [side for side in sides if Key(clip.name, seconds, side) not in known]
            if not missing:
                continue
            if audio is None:
                audio = load_audio(clip.file)
                audio = audio[beginning_of_speech(audio) :]
            part = audio[: seconds * SAMPLE_RATE]
            short = len(part) < seconds * SAMPLE_RATE
            found = dict.fromkeys(missing, np.zeros(0)) if short else programs.heard(part, missing)
            known |= {Key(clip.name, seconds, side): logits for side, logits in found.items()}
            if log is not None:
                append(log, clip.name, seconds, found)
    return known


def append(log: Path, clip: str, seconds: int, found: dict[str, Logits]) -> None:
    """A line for each side; no logits for a clip that is too short."""
    with log.open("a", encoding="utf-8") as file:
        for side, logits in found.items():
            row = {"clip": clip, "seconds": seconds, "side": side}
            file.write(json.dumps(row | {"logits": [round(float(one), 3) for one in logits]}) + "\n")


def lists_of(clip: Clip, size: int, languages: Sequence[str]) -> Iterator[list[str]]:
    rng = random.Random(f"{clip.name} {size}")
    others = [code for code in languages if code != clip.language]
    for _ in range(DRAWS):
        yield [clip.language, *rng.sample(others, size - 1)]


def score(
    chosen: Sequence[Clip], known: dict[Key, Logits], side: str, seconds: int, codes: Sequence[str]
) -> dict[str, Any]:
    """Accuracy among all languages, with the prior of files too, and in lists."""
    place = {code: index for index, code in enumerate(codes)}
    prior = np.array([LANGUAGE_PRIOR.get(code, 0.0) for code in codes])
    spoken = sorted({clip.language for clip in chosen})
    plain, weighed = LanguageScores(), LanguageScores()
    within = {size: LanguageScores() for size in LISTS if size <= len(spoken)}
    for clip in chosen:
        logits = known[Key(clip.name, seconds, side)]
        if not len(logits):
            continue
        plain.add(clip.language, codes[int(logits.argmax())])
        weighed.add(clip.language, codes[int((logits + prior).argmax())])
        for size, scores in within.items():
            for allowed in lists_of(clip, size, spoken):
                scores.add(clip.language, max(allowed, key=lambda code: logits[place[code]]))
    low, high = plain.interval()
    row = {"n": plain.n, "all": plain.accuracy, "low": low, "high": high, "all, prior": weighed.accuracy}
    return row | {f"of {size}": scores.accuracy for size, scores in within.items()}


def show(rows: Sequence[dict[str, Any]]) -> None:
    columns = list(rows[0])
    print("  ".join(f"{column:>14}" for column in columns))
    for row in rows:
        cells = [f"{100 * v:.1f} %" if isinstance(v, float) else str(v) for v in map(row.get, columns)]
        print("  ".join(f"{cell:>14}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder that holds manifest.jsonl")
    parser.add_argument("--model", default="base")
    parser.add_argument("--part", choices=["dev", "test"], default="test")
    parser.add_argument("--sides", nargs="+", choices=[*SIDES, EXACT], default=list(SIDES))
    parser.add_argument("--readers", type=int, default=80, help="clips of people reading")
    parser.add_argument("--log", type=Path, help="JSON lines of what was heard")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = asked(given.data, given.part, given.readers)
    known = measured(given.model, chosen, given.sides, given.log)
    codes = Sides(given.model).ours.tokenizer.language_codes
    groups = {
        "VoxLingua": [clip for clip in chosen if clip.group == VOXLINGUA],
        "readers": [clip for clip in chosen if clip.group != VOXLINGUA],
    }
    rows = [
        {"clips": name, "seconds": seconds, "side": side} | score(group, known, side, seconds, codes)
        for name, group in groups.items()
        for seconds in SECONDS
        for side in given.sides
    ]
    show(rows)
    print(json.dumps({"model": given.model, "part": given.part, "dtype": "float32", "rows": rows}))


if __name__ == "__main__":
    main()
