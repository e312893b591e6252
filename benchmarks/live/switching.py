"""Change points and errors in recordings joined from clips of several languages."""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.clips import clips
from benchmarks.harness.tables import percent, seconds, show_table
from benchmarks.live.command import run_command
from benchmarks.live.counts import TimedUnit, error_rate, errors, timed_units
from benchmarks.live.plots import plot_switches
from benchmarks.live.runs import AUTO, GIVEN, Bench, Item, Live, counted, spoken_on
from benchmarks.live.settings import settings, show_live_json
from sottovoce.evaluation.language_scores import NO_SCORES, SwitchScores, score_switches, true_switches
from sottovoce.evaluation.manifest import LabelledSpan, ManifestEntry, read_manifest
from sottovoce.evaluation.wer import ErrorCounts
from sottovoce.text.word_edits import align_words
from sottovoce.types import SAMPLE_RATE, Word

CONCAT, REAL = "codeswitch-concat", "codeswitch"
KNOWN = ("en", "de", "es", "fr", "it", "pt", "pl", "ru")
"""Languages of the recordings that are joined here."""
WELL = 0.3
"""Error rate of the whole files under which a language is known well."""
BORDER_S = 1.0
LEAST_S, MOST_S = 2.0, 8.0
PICTURED = 6
"""Recordings in a picture."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording with its spans; words of one language each, and the text where it is known."""

    item: Item
    spans: tuple[LabelledSpan, ...]

    @property
    def triples(self) -> list[tuple[float, float, str]]:
        return [(span.start_s, span.end_s, span.language) for span in self.spans]


def of_set(data: Path, part: str, group: str) -> list[Recording]:
    """Recordings of a set as they are. part: "all" for both."""
    entries = {entry.id: entry for entry in read_manifest(data / "manifest.jsonl")}
    parts = ("dev", "test") if part == "all" else (part,)
    found = [clip for one in parts for clip in clips(data, one, sets=[group])]
    return [recording_of(entries[clip.name], clip.languages, group) for clip in found]


def recording_of(entry: ManifestEntry, languages: Sequence[str], group: str) -> Recording:
    several = tuple(dict.fromkeys(languages))
    return Recording(Item(entry.id, entry.path, several, entry.text, group), entry.spans)


def joined(data: Path, part: str, n_recordings: int) -> list[Recording]:
    """Clips of three to five languages in turn, as long as `LEAST_S` to `MOST_S`, with pauses between."""
    by_language: dict[str, list[Item]] = {}
    for clip in clips(data, part, with_text=True):  # type: ignore[arg-type]
        if clip.group in (CONCAT, REAL) or len(clip.languages) > 1 or clip.language not in KNOWN:
            continue
        item = Item(clip.name, clip.file, clip.languages, clip.text or "", clip.group)
        by_language.setdefault(clip.language, []).append(item)
    made = []
    for number in range(n_recordings):
        draw = random.Random(f"{part} {number}")
        languages = draw.sample(sorted(by_language), min(len(by_language), draw.randint(3, 5)))
        made.append(
            put_together(f"joined/{part}-{number}", [fitting(by_language[c], draw) for c in languages])
        )
    return made


def fitting(items: Sequence[Item], draw: random.Random) -> Item:
    """One of the items, as long as is wanted; the last one that was drawn where none is."""
    order = draw.sample(list(items), len(items))
    lengths = ((item, len(item.samples()) / SAMPLE_RATE) for item in order)
    return next((item for item, length in lengths if LEAST_S <= length <= MOST_S), order[-1])


def put_together(name: str, items: Sequence[Item]) -> Recording:
    pieces = [item.samples() for item in items]
    spans, at = [], 0
    for number, (item, piece) in enumerate(zip(items, pieces, strict=True)):
        start = len(spoken_on(pieces[: number + 1])) - len(piece)
        at = start + len(piece)
        spans.append(LabelledSpan(start / SAMPLE_RATE, at / SAMPLE_RATE, item.language, item.text))
    languages = tuple(dict.fromkeys(item.language for item in items))
    text = " ".join(item.text for item in items)
    return Recording(Item(name, spoken_on(pieces), languages, text, "joined"), tuple(spans))


HELP = """Change points and errors where the language changes, on recordings joined from people's clips.

The set codeswitch-concat and recordings joined here, of eight languages (--joined). Beside it: the float32
transcript of each part as a file of its own, its language given; a language is known well where that has
fewer than 30 % errors. Lost and doubled: words within a second of a border that this transcript has and the
live one has not, and the other way round. With base half a second of processor time for each second of audio:
5 to 10 minutes a mode."""

FOLLOWS = ("restart", AUTO)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--part", choices=("dev", "test", "all"), default="dev", help="see harness.clips [dev]"
    )
    parser.add_argument("--joined", type=int, default=16, help="recordings joined here [16]")
    parser.add_argument("--limit", type=int, help="recordings in all, spread over both")
    parser.add_argument("--modes", type=lambda text: text.split(","), default=["restart", "parallel"])
    parser.add_argument("--texts", action="store_true", help="print what was said and heard")
    parser.add_argument(
        "--picture", type=Path, help="what was spoken and heard over time, of the first recordings"
    )


def run(given: argparse.Namespace) -> None:
    bench, data = Bench(given.log), given.shared / "data"
    found = [*of_set(data, given.part, CONCAT), *joined(data, given.part, given.joined)]
    if given.languages not in (AUTO, GIVEN):
        allowed = set(given.languages.split(","))
        found = [one for one in found if allowed >= set(one.item.languages)]
    n_left = min(given.limit or len(found), len(found))
    found = [found[i * len(found) // n_left] for i in range(n_left)]
    parts = [parts_of(bench, given.model, one) for one in counted_recordings(found, "parts")]
    well = known_well(found, parts)
    print(f"known well: {', '.join(sorted(well)) or 'none'}\n")
    asked = [replace(one, switching=mode) for one in settings(given) for mode in given.modes]
    rows, figures, runs = [], {}, {}
    for setting in asked:
        lives = [bench.live(setting, one.item) for one in counted_recordings(found, setting.name)]
        runs[setting.switching] = [live.run for live in lives]
        some = [set(one.item.languages) <= well for one in found]
        for name, at in {"all": [True] * len(found), "known well": some}.items():
            if any(at):
                chosen = [i for i, is_in in enumerate(at) if is_in]
                three = [[one[i] for i in chosen] for one in (found, parts, lives)]
                figure = figures_of(*three)
                rows.append([f"{setting.name}: {name}", *cells(figure)])
                figures[f"{setting.name}: {name}"] = figure
        if given.texts:
            show_texts(found, lives, setting.name)
    show_table(["recordings", *HEADS], rows)
    if given.picture:
        shown = found[:PICTURED]
        names = [one.item.name for one in shown]
        plot_switches(given.picture, names, [one.triples for one in shown], runs)
    show_live_json("switching", asked, {"part": given.part, "known_well": sorted(well), "found": figures})


HEADS = (
    *("n", "changes", "found", "F1 1 s", "F1 0.5 s", "delay", "taken back"),
    *("errors", "parts as files", "lost", "doubled", "in the wrong language", "cpu s/s"),
)


def counted_recordings(found: Sequence[Recording], what: str) -> Sequence[Recording]:
    """The recordings, while a line tells how far it is."""
    by_name = {one.item.name: one for one in found}
    return [by_name[item.name] for item in counted([one.item for one in found], what)]


def parts_of(bench: Bench, model: str, found: Recording) -> list[list[Word]]:
    """Words of each span, read as a file of its own, with times in the whole."""
    audio = None
    parts = []
    for number, span in enumerate(found.spans):
        if audio is None:
            audio = found.item.samples()
        cut = audio[round(span.start_s * SAMPLE_RATE) : round(span.end_s * SAMPLE_RATE)]
        item = Item(f"{found.item.name} part {number}", cut, (span.language,), span.text)
        whole = bench.whole(model, item)
        moved = [replace(w, start=w.start + span.start_s, end=w.end + span.start_s) for w in whole.words]
        parts.append(moved)
    return parts


def known_well(found: Sequence[Recording], parts: Sequence[list[list[Word]]]) -> set[str]:
    """Languages whose parts have few errors as files; those without a text are not known."""
    counts: dict[str, ErrorCounts] = {}
    for one, words in zip(found, parts, strict=True):
        for span, some in zip(one.spans, words, strict=True):
            if span.text:
                item = Item("", Path(), (span.language,), span.text)
                added = errors(item, "".join(word.word for word in some))
                counts[span.language] = counts.get(span.language, ErrorCounts()) + added
    return {language for language, count in counts.items() if (count.rate or 0.0) < WELL}


def figures_of(
    found: Sequence[Recording], parts: Sequence[list[list[Word]]], lives: Sequence[Live]
) -> dict[str, float | None]:
    wide = narrow = NO_SCORES
    lost = doubled = wrong = words = 0
    for one, some, live in zip(found, parts, lives, strict=True):
        run = live.run
        wide += score_switches(run.switches, one.triples, duration_s=run.duration_s)
        narrow += score_switches(run.switches, one.triples, duration_s=run.duration_s, tolerance_s=0.5)
        at_borders = border_errors(one.triples, [word for part in some for word in part], run.words)
        lost, doubled = lost + at_borders[0], doubled + at_borders[1]
        words += len(run.words)
        wrong += sum(language_at(one.spans, w) not in (None, w.language) for w in run.words)
    told = [i for i, one in enumerate(found) if one.item.text]
    items = [found[i].item for i in told]
    texts = ["".join(w.word for part in parts[i] for w in part) for i in told]
    audio_s = sum(live.run.duration_s for live in lives)
    return {
        **scores(len(found), wide, narrow),
        "errors": error_rate(items, [lives[i].text for i in told]) if told else None,
        "parts": error_rate(items, texts) if told else None,
        "lost": lost,
        "doubled": doubled,
        "wrong": wrong / max(1, words),
        "cpu": sum(live.run.cpu_s for live in lives) / audio_s,
    }


def scores(n: int, wide: SwitchScores, narrow: SwitchScores) -> dict[str, float | None]:
    return {
        "n": n,
        "changes": wide.n_true,
        "found": wide.n_found,
        "f1": wide.f1,
        "f1_half": narrow.f1,
        "delay_s": wide.median_delay_s,
        "flaps": wide.n_flaps,
    }


def cells(one: Mapping[str, float | None]) -> list[str]:
    shares = {"errors", "parts", "wrong"}
    shown = []
    for name, value in one.items():
        if name in shares or value is None:
            shown.append(percent(value))
        elif name == "delay_s":
            shown.append(seconds(value))
        else:
            shown.append(f"{value:.2f}" if isinstance(value, float) else str(value))
    return shown


def border_errors(
    spans: Sequence[tuple[float, float, str]], reference: Sequence[Word], heard: Sequence[Word]
) -> tuple[int, int]:
    """Units near a border that the parts as files have alone, and that the live transcript has alone."""
    borders = [(one.from_s, one.to_s) for one in true_switches(spans)]

    def is_near(unit: TimedUnit) -> bool:
        return any(a - BORDER_S <= unit.start_s and unit.end_s <= b + BORDER_S for a, b in borders)

    ours, theirs = timed_units(heard, None), timed_units(reference, None)
    pairs = align_words([one.text for one in ours], [one.text for one in theirs])
    lost = sum(i is None and j is not None and is_near(theirs[j]) for i, j in pairs)
    doubled = sum(j is None and i is not None and is_near(ours[i]) for i, j in pairs)
    return lost, doubled


def language_at(spans: Sequence[LabelledSpan], word: Word) -> str | None:
    """What is spoken in the middle of a word; None in a pause."""
    at = (word.start + word.end) / 2
    return next((span.language for span in spans if span.start_s <= at < span.end_s), None)


def show_texts(found: Sequence[Recording], lives: Sequence[Live], name: str) -> None:
    for one, live in zip(found, lives, strict=True):
        print(f"{one.item.name}, {name}\n  said: {one.item.text}\n  live: {live.text}")
        for switch in live.run.switches:
            times = f"at {switch.at_s:.1f} s, known at {switch.confirmed_s:.1f} s"
            print(f"  {switch.source} to {switch.target} {times}")


def main() -> None:
    run_command(HELP, add_arguments, run, FOLLOWS)
