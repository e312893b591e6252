"""Rare names that people say, as hotwords: how many are written right, and what is written wrong for it.

    python -m benchmarks text names ../shared                       # the reported clips
    python -m benchmarks text names ../shared --part dev            # others, to choose the weight on

Two readers (English and German, CC0) say sentences; a name is a word that begins with a capital inside its
sentence and is not among the 20,000 most frequent words of the language. All names of a part are boosted at
once in every clip, also in those that hold none. Whisper's beam search of 5, no fallback, language given.
Recall is the share of spoken names that are written; a false alarm is a name of the list that is written in a
clip where nobody said it. Prints a table and one JSON line.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.tables import show_json
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.decoding.decode import decode
from sottovoce.evaluation.wer import ScoredUtterance, score
from sottovoce.options.decoding import DecodingOptions
from sottovoce.text.normalize import plain
from sottovoce.types import EncoderOutput

READERS = {"en": "kathleen-en", "de": "kerstin-de"}
FREQUENT = {"en": "en_50k_top20k.txt.gz", "de": "de_50k_top20k.txt.gz"}
WEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
WINDOW_FRAMES = 3000


@dataclass(frozen=True, slots=True)
class Clip:
    """A sentence, who says it, and the names in it."""

    file: Path
    language: str
    text: str
    names: tuple[str, ...]


@dataclass(slots=True)
class Counts:
    """What one weight makes of one language."""

    spoken: int = 0
    written: int = 0
    false_alarms: int = 0
    utterances: list[ScoredUtterance] = field(default_factory=list)

    def take(self, clip: Clip, listed: Sequence[str], text: str) -> None:
        words = set(plain(text).split())
        said = {plain(name) for name in clip.names}
        self.spoken += len(said)
        self.written += sum(name in words for name in said)
        heard = set(plain(clip.text).split())
        self.false_alarms += sum(plain(name) in words - heard for name in listed)
        self.utterances.append(ScoredUtterance(clip.text, text, clip.language))

    @property
    def recall(self) -> float:
        return self.written / max(1, self.spoken)

    @property
    def errors(self) -> float:
        return score(self.utterances).overall.wer.rate


def names_of(text: str, frequent: frozenset[str]) -> tuple[str, ...]:
    """Words that begin with a capital inside the sentence and are not frequent."""
    words = re.findall(r"(?<![.!?:…\"] )(?<!^)\b[A-ZÄÖÜ][a-zäöüß]{3,}\b", text)
    return tuple(dict.fromkeys(word for word in words if word.lower() not in frequent))


def frequent_words(shared: Path, language: str) -> frozenset[str]:
    with gzip.open(shared / "data/text/freqwords" / FREQUENT[language], "rt", encoding="utf-8") as lines:
        return frozenset(line.split()[0].lower() for line in lines if line.strip())


def choose_clips(shared: Path, language: str, part: str, n_clips: int) -> list[Clip]:
    """As many clips with names as without, spread over the part; no sentence twice.

    Of the sentences in their order, every other one is for choosing.
    """
    frequent = frequent_words(shared, language)
    by_text: dict[str, Clip] = {}
    for line in (shared / "data/manifest.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["id"].startswith(READERS[language] + "/"):
            clip = Clip(shared / "data" / row["file"], language, row["text"], names_of(row["text"], frequent))
            by_text.setdefault(row["text"], clip)
    clips = list(by_text.values())[0 if part == "dev" else 1 :: 2]
    halves = [[clip for clip in clips if bool(clip.names) is named] for named in (True, False)]
    return [clip for half in halves for clip in _spread(half, n_clips // 2)]


def _spread(clips: Sequence[Clip], n: int) -> Iterator[Clip]:
    n = min(n, len(clips))
    return (clips[i * len(clips) // n] for i in range(n))


def encoded(model: Model, clip: Clip) -> EncoderOutput:
    mel = log_mel(load_audio(clip.file, duration_s=30.0), model.backend.dims.n_mels, padding_samples=480_000)
    return model.backend.encode(window_features([mel[:, :WINDOW_FRAMES]], WINDOW_FRAMES))


def measure(model: Model, clips: Sequence[Clip], weights: Sequence[float]) -> dict[float, Counts]:
    names = sorted({name for clip in clips for name in clip.names})
    fusions = {w: model.fusion(hotwords=names, hotword_weight=w) if w else None for w in weights}
    counts = {weight: Counts() for weight in weights}
    options = DecodingOptions(language=clips[0].language, beam_size=5)
    for clip in clips:
        states = encoded(model, clip)
        for weight in weights:
            found = decode(model.backend, model.tokenizer, states, [options], fusion=fusions[weight])[0]
            counts[weight].take(clip, names, found.text)
    return counts


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    add_part(parser)
    parser.add_argument("--clips", type=int, default=60, help="of each language")
    parser.add_argument("--weights", type=float, nargs="+", default=WEIGHTS)
    parser.add_argument("--languages", nargs="+", choices=sorted(READERS), default=[*READERS])
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model(given.model, device="cpu", dtype="float32")
    rows = []
    for language in given.languages:
        clips = choose_clips(given.shared, language, given.part, given.clips)
        for weight, one in measure(model, clips, given.weights).items():
            row = {"language": language, "weight": weight, "clips": len(clips), "spoken": one.spoken}
            row |= {"written": one.written, "false_alarms": one.false_alarms, "wer": round(one.errors, 4)}
            rows.append(row)
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    show_json("text names", {"model": model.name, "part": given.part, "rows": rows})
