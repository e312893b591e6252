"""`live.py errors`: words wrong and how late they come, beside the files' transcripts and SimulStreaming."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from files import LANGUAGES
from human_clips import Clip, clips, spread
from live_count import Summary, beside, errors, summary
from live_run import Bench, Item, Live, Setting, Whole, counted
from live_simul import Simul

from sottovoce.errors import OptionError
from sottovoce.evaluation.wer import Comparison, ErrorCounts

HELP = """Words wrong and word latency of live sessions on clips of people.

Takes the processor time that it measures: with base about half a second for each second of audio and setting,
and SimulStreaming four; 30 clips are some 3 minutes of audio. Latencies are not computation-aware: audio
received when a word came, minus the end of that word in the float32 transcript of the file. What was done is
kept in --log under options, recording and the package's source (or --label)."""

HEADS = (
    *("errors", "beside the file, 95 %", "inserted", "loops"),
    *("latency, median", "90 %", "own median", "at the end", "first words"),
    *("cpu s/s", "frames", "starts", "ends", "< 40 ms"),
)


@dataclass(frozen=True, slots=True)
class Side:
    """One row of the table: a name, and what it makes of a recording."""

    name: str
    run: Callable[[Item], Live]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_clips(parser)
    parser.add_argument("--texts", action="store_true", help="print what was said and heard, clip by clip")
    parser.add_argument("--beside", metavar="LABEL", help="also the differences to what the log has of LABEL")
    parser.add_argument("--simul", type=Path, metavar="CHECKOUT", help="also SimulStreaming, from there")
    parser.add_argument("--simul-vac", action="store_true", help="with its voice activity controller")


def add_clips(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=("dev", "test"), default="dev", help="see human_clips [dev]")
    parser.add_argument("--clips", type=int, default=30, help="at most, spread over the sets [30]")
    parser.add_argument("--sets", type=lambda text: text.split(","), help="names of sets [all with text]")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of clips")
    parser.add_argument(
        "--spoken", type=lambda text: text.split(","), default=[*LANGUAGES], help="languages of the clips"
    )


def chosen(given: argparse.Namespace) -> list[Item]:
    """Clips of one language with their text."""
    found = [
        clip
        for clip in clips(given.shared / "data", given.part, sets=given.sets, with_text=True)
        if len(clip.languages) == 1 and clip.language in given.spoken
    ]
    if given.only:
        return [item_of(clip) for clip in found if clip.name in given.only]
    return [item_of(clip) for clip in spread(found, given.clips)]


def item_of(clip: Clip) -> Item:
    return Item(clip.name, clip.file, clip.languages, clip.text or "", clip.group)


def settings(given: argparse.Namespace) -> list[Setting]:
    """One for each threshold, update interval and number format that was asked for."""
    return [
        Setting(
            model=given.model,
            dtype=dtype,
            languages=given.languages,
            switching=given.switching,
            stream={"frame_threshold": threshold, "chunk_s": chunk_s} | given.stream,
            session=given.session,
            label=given.label,
        )
        for dtype, chunk_s, threshold in product(given.dtypes, given.chunk_s, given.frame_thresholds)
    ]


def sides(given: argparse.Namespace, bench: Bench) -> list[Side]:
    """Ours first, one dtype after the other, then the other program at the same thresholds and intervals."""
    ours = [Side(one.name, partial(bench.live, one)) for one in settings(given)]
    if given.simul is None:
        return ours
    simul = Simul(given.simul, given.model, bench.log, vac=given.simul_vac)
    asked = product(given.chunk_s, given.frame_thresholds)
    return ours + [
        Side(
            simul.name(threshold, chunk_s),
            partial(simul.live, frame_threshold=threshold, chunk_s=chunk_s),
        )
        for chunk_s, threshold in asked
    ]


def run(given: argparse.Namespace) -> None:
    bench = Bench(given.log)
    items = chosen(given)
    if not items:
        raise OptionError("errors: expected clips of one language with text, got none")
    wholes = [bench.whole(given.model, item) for item in counted(items, "files")]
    heard = {}
    for side in sides(given, bench):
        heard[side.name] = [side.run(item) for item in counted(items, side.name)]
    found = {name: summary(items, lives, wholes) for name, lives in heard.items()}
    show(items, wholes, found)
    show_sets(items, wholes, heard)
    if given.beside:
        show_beside(given, bench, items, heard)
    if given.texts:
        show_texts(items, wholes, heard)
    print(
        json.dumps(
            {
                "benchmark": "live errors",
                "part": given.part,
                "clips": len(items),
                "audio_s": round(sum(one.run.duration_s for one in next(iter(heard.values()))), 1),
                "label": given.label,
                "settings": {name: asdict(one) for name, one in found.items()},
            }
        )
    )


def show(items: Sequence[Item], wholes: Sequence[Whole], found: dict[str, Summary]) -> None:
    total = sum((errors(i, w.text) for i, w in zip(items, wholes, strict=True)), ErrorCounts())
    print(f"| {len(items)} clips, {total.n_reference} words | {' | '.join(HEADS)} |")
    print("|---" * (len(HEADS) + 1) + "|")
    print(f"| file | {total.rate or 0.0:.1%} |  | {total.insertions} |{' |' * (len(HEADS) - 3)}")
    for name, one in found.items():
        print(f"| {name} | {' | '.join(cells(one))} |")


def cells(one: Summary) -> list[str]:
    return [
        f"{one.rate:.1%}",
        apart(one.beside),
        str(one.insertions),
        str(one.loops),
        seconds(one.latency_s),
        seconds(one.latency_p90_s),
        seconds(one.own_latency_s),
        f"{one.at_end:.0%}",
        f"{one.first_words:.1f}",
        f"{one.cpu:.2f}",
        "" if one.frames is None else f"{one.frames:.1f}",
        seconds(one.start_s),
        seconds(one.end_s),
        f"{one.short:.0%}",
    ]


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def apart(one: Comparison) -> str:
    return f"{one.difference:+.1%} ({one.low:+.1%} to {one.high:+.1%})"


def show_sets(items: Sequence[Item], wholes: Sequence[Whole], heard: dict[str, list[Live]]) -> None:
    """Errors by set; the interval is that of the difference to the files' transcripts."""
    groups = list(dict.fromkeys(item.group for item in items))
    print(f"\n| errors by set | {' | '.join(groups)} |")
    print("|---" * (len(groups) + 1) + "|")
    for name, texts in {
        "file": [whole.text for whole in wholes],
        **{name: [one.text for one in lives] for name, lives in heard.items()},
    }.items():
        row = []
        for group in groups:
            at = [i for i, item in enumerate(items) if item.group == group]
            rate = sum((errors(items[i], texts[i]) for i in at), ErrorCounts()).rate or 0.0
            said = f"{rate:.1%} ({len(at)})"
            if name != "file" and len(at) > 1:
                found = beside([items[i] for i in at], [wholes[i].text for i in at], [texts[i] for i in at])
                said = f"{rate:.1%} ({found.low:+.0%} to {found.high:+.0%})"
            row.append(said)
        print(f"| {name} | {' | '.join(row)} |")


def show_beside(
    given: argparse.Namespace, bench: Bench, items: Sequence[Item], heard: dict[str, list[Live]]
) -> None:
    """Differences to what the log holds of another label, over the clips that both have."""
    print(f"\n| beside {given.beside} | clips | errors | difference, 95 % |\n|---|---|---|---|")
    for setting in settings(given):
        other = replace(setting, label=given.beside)
        at = [i for i, item in enumerate(items) if bench.log.get(other.key, item.name)]
        if not at:
            continue
        both = [items[i] for i in at]
        before = [bench.live(other, item).text for item in both]
        found = beside(both, before, [heard[setting.name][i].text for i in at])
        rate = sum((errors(i, t) for i, t in zip(both, before, strict=True)), ErrorCounts()).rate or 0.0
        print(f"| {setting.name} | {len(at)} | {rate:.1%} | {apart(found)} |")


def show_texts(items: Sequence[Item], wholes: Sequence[Whole], heard: dict[str, list[Live]]) -> None:
    for i, item in enumerate(items):
        print(f"\n{item.name}\n  said: {item.text}\n  file: {wholes[i].text}")
        for name, lives in heard.items():
            print(f"  {name} ({errors(item, lives[i].text).n_errors} wrong): {lives[i].text}")
