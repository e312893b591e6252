"""How many phrases that are said does `find` find, and how many that are not?

    python -m benchmarks text find ../shared

Clips of people (`harness.clips`) joined with pauses into recordings of one or two minutes. Of each clip one
phrase of one, two and three words of at least five letters in all is looked for, in its own recording (it
should be found, within a second of its clip) and in the others, where nobody says it. Prints a row for each
least score, then one JSON line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import PAUSES_S, Clip, clips, spread
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce import load_model
from sottovoce.alignment.phrases import find_phrase
from sottovoce.audio.io import load_audio
from sottovoce.text.normalize import plain
from sottovoce.types import SAMPLE_RATE, Samples, Transcript

CLIPS_A_RECORDING = 8
SCORES = (0.6, 0.7, 0.8, 0.9, 1.0)
LENGTHS = (1, 2, 3)
LEAST_LETTERS = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """A phrase, and the seconds within which it is said."""

    phrase: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Said:
    """A recording: what is looked for in it, all that is said, and what the model wrote."""

    wanted: tuple[Wanted, ...]
    text: str
    transcript: Transcript


def phrases(clip: Clip, rng: np.random.Generator) -> Iterator[str]:
    """One phrase of each length, anywhere in the clip."""
    spoken = plain(clip.text or "").split()
    for length in LENGTHS:
        whole = [" ".join(spoken[i : i + length]) for i in range(len(spoken) - length + 1)]
        long = [phrase for phrase in whole if len(phrase.replace(" ", "")) >= LEAST_LETTERS]
        if long:
            yield long[int(rng.integers(len(long)))]


def recordings(chosen: list[Clip]) -> Iterator[tuple[Samples, tuple[Wanted, ...], str]]:
    """Samples, what is looked for, and the words that are said."""
    rng = np.random.default_rng(0)
    for first in range(0, len(chosen), CLIPS_A_RECORDING):
        pieces: list[Samples] = []
        wanted: list[Wanted] = []
        said: list[str] = []
        at = 0.0
        for index, clip in enumerate(chosen[first : first + CLIPS_A_RECORDING]):
            samples = load_audio(clip.file)
            pause = np.zeros(int(PAUSES_S[index % len(PAUSES_S)] * SAMPLE_RATE), np.float32)
            end = at + len(samples) / SAMPLE_RATE
            wanted += [Wanted(phrase, at, end) for phrase in phrases(clip, rng)]
            said.append(plain(clip.text or ""))
            pieces += [samples, pause]
            at = end + len(pause) / SAMPLE_RATE
        yield np.concatenate(pieces), tuple(wanted), " | ".join(said)


def is_found(one: Said, wanted: Wanted, least_score: float) -> bool:
    matches = find_phrase(one.transcript, wanted.phrase, least_score=least_score)
    return any(wanted.start - 1 <= match.start and match.end <= wanted.end + 1 for match in matches)


def n_invented(every: list[Said], least_score: float) -> tuple[int, int]:
    """Searches for what nobody says in a recording, and how many of them find something."""
    n_asked = n_found = 0
    for one in every:
        for other in every:
            for wanted in other.wanted:
                if other is not one and wanted.phrase not in one.text:
                    n_asked += 1
                    n_found += bool(find_phrase(one.transcript, wanted.phrase, least_score=least_score))
    return n_asked, n_found


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="auto")
    add_part(parser)
    parser.add_argument("--clips", type=int, default=24, help="of each language")
    parser.add_argument("--languages", default="en,de,es")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model(given.model, dtype=given.dtype)
    every: list[Said] = []
    for language in given.languages.split(","):
        chosen = spread(
            clips(given.shared / "data", given.part, language=language, with_text=True), given.clips
        )
        for samples, wanted, said in recordings(chosen):
            transcript = model.transcribe(samples, language=language, word_timestamps=True).collect()
            every.append(Said(wanted, said, transcript))
    n_wanted = sum(len(one.wanted) for one in every)
    print(f"{len(every)} recordings, {n_wanted} phrases of 1 to 3 words, {given.model}")
    show_heads("least score", "found where it is said", "found where nobody says it")
    rows = {}
    for score in SCORES:
        n_found = sum(is_found(one, wanted, score) for one in every for wanted in one.wanted)
        n_asked, n_false = n_invented(every, score)
        rows[score] = {"found": n_found / n_wanted, "invented": n_false / n_asked}
        show_row(score, f"{n_found} of {n_wanted} ({n_found / n_wanted:.1%})", f"{n_false} of {n_asked}")
    show_json("text find", {"model": given.model, "part": given.part, "rows": rows})
