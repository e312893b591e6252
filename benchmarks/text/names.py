"""Rare names that people say, as hotwords: how many are written right, and what is written wrong for it.

    python -m benchmarks text names ../shared                       # the reported clips
    python -m benchmarks text names ../shared --part dev            # others, to choose the weight on
    python -m benchmarks text names ../shared --languages en --clips 40 --without 200 --weights 0 2
    python -m benchmarks text names ../shared --languages en --clips 40 --without 200 --weights 0 2 --document

Two readers (English and German, CC0) say sentences; a name is a word that begins with a capital inside its
sentence and is not among the 20,000 most frequent words of the language. All names of a part are boosted at
once in every clip, also in those that hold none. Whisper's beam search of 5, no fallback, language given.
Recall is the share of spoken names that are written; a false alarm is a name of the list that is written in a
clip where nobody said it; words made worse are those that more are wrong of than at the first weight, summed
over clips where more are. --document boosts what `--vocabulary-from` takes out of a text that has every
sentence of the clips twice, in the place of the names; --small lists the names in small letters. Prints a
table and one JSON line.
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from benchmarks.harness.report import add_part, add_shared, benchmark_parser, show_json
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.decoding.decode import decode
from sottovoce.evaluation.wer import ScoredUtterance, count_errors, score
from sottovoce.formats.document_words import with_vocabulary
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.options.decoding import DecodingOptions
from sottovoce.text.normalize import plain
from sottovoce.types import EncoderOutput

READERS = {"en": "kathleen-en", "de": "kerstin-de"}
FREQUENT = {"en": "en_50k_top20k.txt.gz", "de": "de_50k_top20k.txt.gz"}
WEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
WINDOW_FRAMES = 3000
Listed: TypeAlias = Literal["names", "small", "document"]


@dataclass(frozen=True, slots=True)
class Clip:
    """A sentence, who says it, and the names in it."""

    file: Path
    language: str
    text: str
    names: tuple[str, ...]


@dataclass(slots=True)
class Counts:
    """Counts of one weight in one language."""

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
        return score(self.utterances).overall.wer.rate or 0.0


def names_of(text: str, frequent: frozenset[str]) -> tuple[str, ...]:
    """Words that begin with a capital inside the sentence and are not frequent."""
    words = re.findall(r"(?<![.!?:…\"] )(?<!^)\b[A-ZÄÖÜ][a-zäöüß]{3,}\b", text)
    return tuple(dict.fromkeys(word for word in words if word.lower() not in frequent))


def frequent_words(shared: Path, language: str) -> frozenset[str]:
    with gzip.open(shared / "data/text/freqwords" / FREQUENT[language], "rt", encoding="utf-8") as lines:
        return frozenset(line.split()[0].lower() for line in lines if line.strip())


def choose_clips(shared: Path, language: str, part: str, n_named: int, n_others: int) -> list[Clip]:
    """Clips with names and without, spread over the part; no sentence twice.

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
    named, others = ([clip for clip in clips if bool(clip.names) is has] for has in (True, False))
    pairs = (named, min(n_named, len(named))), (others, min(n_others, len(others)))
    return [some[i * len(some) // n] for some, n in pairs for i in range(n)]


def encoded(model: Model, clip: Clip) -> EncoderOutput:
    mel = log_mel(load_audio(clip.file, duration_s=30.0), model.backend.dims.n_mels, padding_samples=480_000)
    return model.backend.encode(window_features([mel[:, :WINDOW_FRAMES]], WINDOW_FRAMES))


def boosted(model: Model, clips: Sequence[Clip], weight: float, listed: Listed) -> ShallowFusion:
    """The names of clips, or the rare words of a text that has their sentences twice."""
    if listed != "document":
        names = sorted({name for clip in clips for name in clip.names})
        names = [name.lower() for name in names] if listed == "small" else names
        return model.fusion(hotwords=names, hotword_weight=weight)
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder) / "sentences.txt"
        document.write_text("\n".join(2 * [clip.text for clip in clips]), encoding="utf-8")
        phrases = with_vocabulary(None, [document], default_weight=weight, tokenizer=model.tokenizer)
    return model.fusion(hotwords=phrases, hotword_weight=weight)


def n_worse(before: Counts, after: Counts) -> int:
    """Words that more are wrong of, over the clips where more are."""
    wrong = [[count_errors(one).word.n_errors for one in counts.utterances] for counts in (before, after)]
    return sum(max(0, b - a) for a, b in zip(*wrong, strict=True))


def measure(
    model: Model, clips: Sequence[Clip], weights: Sequence[float], listed: Listed
) -> dict[float, Counts]:
    names = sorted({name for clip in clips for name in clip.names})
    fusions = {w: boosted(model, clips, w, listed) if w else None for w in weights}
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
    parser.add_argument("--clips", type=int, default=60, help="of each language; half of them with names")
    parser.add_argument("--without", type=int, help="clips without names, in the place of the other half")
    parser.add_argument("--document", action="store_true", help="boost what --vocabulary-from finds")
    parser.add_argument("--small", action="store_true", help="names in small letters")
    parser.add_argument("--weights", type=float, nargs="+", default=WEIGHTS)
    parser.add_argument("--languages", nargs="+", choices=sorted(READERS), default=[*READERS])
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(given.model, device="cpu", dtype="float32")
    listed: Listed = "document" if given.document else "small" if given.small else "names"
    rows = []
    for language in given.languages:
        n_named = given.clips // 2
        n_others = n_named if given.without is None else given.without
        clips = choose_clips(given.shared, language, given.part, n_named, n_others)
        counted = measure(model, clips, given.weights, listed)
        for weight, one in counted.items():
            row = {"language": language, "weight": weight, "clips": len(clips), "spoken": one.spoken}
            row |= {"written": one.written, "false_alarms": one.false_alarms, "wer": round(one.errors, 4)}
            row["worse"] = n_worse(counted[given.weights[0]], one)
            rows.append(row)
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    show_json("text names", {"model": model.name, "part": given.part, "rows": rows})
