"""Files in several languages: what is lost, what is told of languages, and what it costs.

    python -m benchmarks language followed ../shared/data run --log followed.jsonl
    python -m benchmarks language followed ../shared/data show --log followed.jsonl

Recordings joined from people's clips (`mixed_recordings`): those of kind "text" count words, those of kind
"all" have eight languages and count changes; `--condition` alters them. Systems: `parts` reads every part as
a file of its own with its language given; `list` and `auto` read the recording whole, `list` with the
recording's languages, `auto` with none, and "untimed" without word times, as the command does by default;
`live` is the live session with the same list; `given` reads the file in its first language (for the cost
alone); the other programs follow languages as far as they can. `wrong s` are seconds of parts that were read
in another language, `told` those of speech that the transcription says has no words. PIER (arXiv 2501.09512)
counts errors of the words beside a change of language: the last of the part before it and the first of the
part after. `unread` are seconds of speech, by the detector, in stretches of a second or more that no word
covers. Of live words: seconds from their end in `parts` to their coming; those put down to another language
than is spoken; those within a second of a change that `parts` have and it has not ("lost"), and the other way
round ("doubled"). Processor seconds are those of one process with one thread, without loading. Needs `make
test`'s environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.report import add_part, benchmark_parser, show_json
from benchmarks.language.mixed_recordings import CONDITIONS, MixedRecording, described, mixed_recordings
from benchmarks.language.systems import PARTS, Outcome, outcomes, read_missing, systems
from benchmarks.live.counts import TimedUnit, pairs, timed_units
from sottovoce.audio.vad import speech_segments
from sottovoce.evaluation.scores import (
    NO_SCORES,
    FoundSwitch,
    ScoredUtterance,
    ScoreOptions,
    compare,
    score,
    score_switches,
    true_switches,
)
from sottovoce.offline.verify import covered_by_word, uncovered
from sottovoce.offline.windows import PIECE_VAD, SpeechSpan
from sottovoce.text.normalize import normalizer_for
from sottovoce.text.word_edits import align_words
from sottovoce.types import HOP_SAMPLES, Word

BORDER_S = 1.0
KINDS = "text", "all"


def unread_s(recording: MixedRecording, outcome: Outcome) -> list[tuple[float, float]]:
    """Stretches of speech that no word covers."""
    result = speech_segments(recording.audio(), PIECE_VAD)
    pieces = [
        SpeechSpan(item.start_sample // HOP_SAMPLES, -(-item.end_sample // HOP_SAMPLES)) for item in result
    ]
    words = [Word(text, start, end, 1.0) for start, end, text in outcome.words]
    left = uncovered(pieces, map(covered_by_word, words))
    return [(stretch[0].start / 100, stretch[-1].end / 100) for stretch in left]


def changes(outcome: Outcome) -> list[FoundSwitch]:
    neighbours = pairwise(outcome.spans)
    return [FoundSwitch((a[1] + b[0]) / 2, b[0], a[2], b[2]) for a, b in neighbours if a[2] != b[2]]


def wrong_s(recording: MixedRecording, outcome: Outcome) -> float:
    """Seconds of parts that were read in another language than theirs."""
    return sum(
        max(0.0, min(end, part.end_s) - max(start, part.start_s))
        for part in recording.parts
        for start, end, language in outcome.spans
        if language != part.language
    )


def beside_changes(recording: MixedRecording) -> Iterator[int]:
    """Places, among all words of the reference, of those beside a change of language."""
    n_words = 0
    before = ""
    for part in recording.parts:
        n_of_part = len(normalizer_for(part.language)(part.text or "").split())
        if before and before != part.language:
            yield n_words - 1
            yield n_words
        n_words, before = n_words + n_of_part, part.language


def pier(recording: MixedRecording, outcome: Outcome) -> tuple[int, int]:
    """Words beside a change that are not written as they were said, and how many there are."""
    normalize = normalizer_for(None)
    reference = " ".join(part.text or "" for part in recording.parts)
    said, written = normalize(reference).split(), normalize(outcome.text).split()
    blocks = SequenceMatcher(None, said, written, autojunk=False).get_matching_blocks()
    right = {place for block in blocks for place in range(block.a, block.a + block.size)}
    places = [place for place in beside_changes(recording) if place < len(said)]
    return sum(place not in right for place in places), len(places)


def show(recordings: Sequence[MixedRecording], log: Path) -> None:
    result = outcomes(log)
    rows = []
    print(described([item for item in recordings if item.name.startswith("text")]), "| text")
    print(described([item for item in recordings if item.name.startswith("all")]), "| all")
    for name in dict.fromkeys(system for system, _ in result):
        rows.append(summary(name, recordings, result))
        print(" | ".join(f"{key} {value}" for key, value in rows[-1].items()))
    show_json("language followed", {"rows": rows})


def scored(recording: MixedRecording, outcome: Outcome) -> ScoredUtterance:
    """A recording as one utterance, with all that was said in it."""
    said = " ".join(part.text or "" for part in recording.parts)
    return ScoredUtterance(said, outcome.text, recording.languages)


def summary(
    name: str, recordings: Sequence[MixedRecording], result: dict[tuple[str, str], Outcome]
) -> dict[str, Any]:
    """One row: errors of words with their interval, PIER, changes, unread speech, processor seconds."""
    kept = [(item, result[name, item.name]) for item in recordings if (name, item.name) in result]
    texts = [(item, outcome) for item, outcome in kept if item.name.startswith("text")]
    utterances = [scored(*pair) for pair in texts]
    row: dict[str, Any] = {"system": name, "recordings": len(kept)}
    if utterances:
        rate = score(utterances, ScoreOptions()).overall.wer
        row |= {"words wrong %": _percent(rate.rate), "low": _percent(rate.low), "high": _percent(rate.high)}
        wrong, n_places = map(sum, zip(*(pier(*item) for item in texts), strict=True))
        row["PIER %"] = _percent(wrong / max(1, n_places))
        alone = [scored(item, result[PARTS, item.name]) for item, _ in texts if (PARTS, item.name) in result]
        if any(outcome.delays_s for _, outcome in texts) and len(alone) == len(texts):
            row |= live_figures([(*pair, result[PARTS, pair[0].name]) for pair in texts])
        if name != PARTS and len(alone) == len(texts):
            others_too = compare(alone, utterances)
            low, high = 100 * others_too.low, 100 * others_too.high
            row["beside parts"] = f"{100 * others_too.difference:+.1f} ({low:+.1f} to {high:+.1f})"
    for kind in ("text", "all"):
        some = [(item, outcome) for item, outcome in kept if item.name.startswith(kind)]
        if any(outcome.spans for _, outcome in some):
            total = NO_SCORES
            for item, outcome in some:
                total += score_switches(changes(outcome), item.spans, duration_s=item.duration_s)
            wrong = sum(wrong_s(item, outcome) for item, outcome in some)
            row |= {f"F1 {kind}": round(total.f1, 3), f"changes {kind}": total.n_true}
            row[f"wrong s {kind}"] = round(wrong, 1)
        left = [stretch for pair in some for stretch in unread_s(*pair)]
        row[f"unread {kind}"] = f"{len(left)} / {sum(end - start for start, end in left):.1f} s"
        reported = sum(end - start for _, outcome in some for start, end in outcome.told)
        row[f"told {kind}"] = round(reported, 1)
        row[f"cpu s {kind}"] = round(sum(outcome.cpu_s for _, outcome in some), 1)
    return row


def live_figures(result: Sequence[tuple[MixedRecording, Outcome, Outcome]]) -> dict[str, Any]:
    """How late the words of a live session come, and what it does to those around changes.

    found: recordings, what the session made of them, and their parts alone."""
    late: list[float] = []
    n_words = wrong = lost = doubled = 0
    for recording, outcome, alone in result:
        heard, reference = _as_words(outcome), _as_words(alone)
        both = pairs(timed_units(heard, None), timed_units(reference, None))
        late += [outcome.delays_s[item.at] - other.end_s for item, other in both]
        here, there = border_errors(recording.spans, reference, heard)
        lost, doubled, n_words = lost + here, doubled + there, n_words + len(heard)
        wrong += sum(spoken_at(recording, word) not in (None, word.language) for word in heard)
    return {
        "median s": round(float(np.median(late)), 2),
        "90 % s": round(float(np.quantile(late, 0.9)), 2),
        "wrong language %": _percent(wrong / max(1, n_words)),
        "lost / doubled": f"{lost} / {doubled}",
    }


def border_errors(
    spans: Sequence[tuple[float, float, str]], reference: Sequence[Word], heard: Sequence[Word]
) -> tuple[int, int]:
    """Units near a border that the parts as files have alone, and that the live transcript has alone."""
    borders = [(item.from_s, item.to_s) for item in true_switches(spans)]

    def is_near(unit: TimedUnit) -> bool:
        return any(a - BORDER_S <= unit.start_s and unit.end_s <= b + BORDER_S for a, b in borders)

    ours, theirs = timed_units(heard, None), timed_units(reference, None)
    aligned = align_words([item.text for item in ours], [item.text for item in theirs])
    lost = sum(i is None and j is not None and is_near(theirs[j]) for i, j in aligned)
    doubled = sum(j is None and i is not None and is_near(ours[i]) for i, j in aligned)
    return lost, doubled


def spoken_at(recording: MixedRecording, word: Word) -> str | None:
    """The language that is spoken in the middle of a word; None in a pause."""
    at = (word.start + word.end) / 2
    return next((language for start, end, language in recording.spans if start <= at < end), None)


def _as_words(outcome: Outcome) -> list[Word]:
    languages = [language for _, _, language in outcome.spans]
    if len(languages) != len(outcome.words):
        languages = [""] * len(outcome.words)
    return [
        Word(text, start, end, 1.0, language=language)
        for (start, end, text), language in zip(outcome.words, languages, strict=True)
    ]


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("action", choices=("run", "show"))
    add_part(parser)
    parser.add_argument("--recordings", type=int, default=20, help="of each kind")
    parser.add_argument("--systems", default="list,auto,given,parts,live")
    parser.add_argument("--kind", choices=KINDS, help="only these recordings")
    parser.add_argument(
        "--condition", choices=tuple(CONDITIONS), default="clean", help="what was done to them"
    )
    parser.add_argument("--log", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    recordings = [
        item
        for kind in (KINDS if given.kind is None else (given.kind,))
        for item in mixed_recordings(
            given.data, given.part, given.recordings, with_text=kind == "text", condition=given.condition
        )
    ]
    if given.action == "run":
        known = systems()
        read_missing(recordings, {name: known[name] for name in given.systems.split(",")}, given.log)
    show(recordings, given.log)
