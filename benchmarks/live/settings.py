"""Which clips and which settings of live sessions a command line asks for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.files.beside import LANGUAGES
from benchmarks.harness.arguments import add_part
from benchmarks.harness.clips import Clip, clips, spread
from benchmarks.harness.tables import show_json
from benchmarks.live.runs import Item, Setting


def add_clips(parser: argparse.ArgumentParser, n_clips: int = 30) -> None:
    add_part(parser, "dev")
    parser.add_argument(
        "--clips", type=int, default=n_clips, help=f"at most, spread over the sets [{n_clips}]"
    )
    parser.add_argument("--sets", type=lambda text: text.split(","), help="names of sets [all with text]")
    parser.add_argument("--together", type=int, default=1, help="clips a recording, with pauses between [1]")
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
        found = [clip for clip in found if clip.name in given.only]
    return said_on([item_of(clip) for clip in spread(found, given.clips)], given.together)


def said_on(items: Sequence[Item], n_clips: int) -> list[Item]:
    """So many clips of a set and language one after the other; what is left over is left out."""
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        groups.setdefault((item.group, item.language), []).append(item)
    found = []
    for some in groups.values():
        for at in range(0, len(some) - n_clips + 1, n_clips):
            found.append(as_one(some[at : at + n_clips]))
    return found


def as_one(items: Sequence[Item]) -> Item:
    """Clips as one recording, with pauses between."""
    name = "+".join([items[0].name, *(item.name.split("/")[-1] for item in items[1:])])
    files = tuple(item.source for item in items if isinstance(item.source, Path))
    text = " ".join(item.text for item in items)
    return Item(name, files, items[0].languages, text, items[0].group)


def item_of(clip: Clip) -> Item:
    return Item(clip.name, clip.file, clip.languages, clip.text or "", clip.group)


def settings(given: argparse.Namespace) -> list[Setting]:
    """One for each number format, update interval, threshold and width of beam that was asked for."""
    one = Setting(
        model=given.model,
        languages=given.languages,
        switching=given.switching,
        session=given.session,
        label=given.label,
    )
    return [
        replace(one, dtype=dtype, stream=_stream(threshold, chunk_s, beam_size) | given.stream)
        for dtype, chunk_s, threshold, beam_size in product(
            given.dtypes, given.chunk_s, given.frame_thresholds, given.beam_sizes
        )
    ]


def _stream(threshold: float, chunk_s: float, beam_size: int) -> dict[str, float]:
    beams = {} if beam_size == 1 else {"beam_size": beam_size}
    return {"frame_threshold": threshold, "chunk_s": chunk_s, **beams}


def show_live_json(name: str, asked: Sequence[Setting], figures: Mapping[str, Any]) -> None:
    """Print the last line: what was asked for, and every figure."""
    show_json(f"live {name}", {"settings": [asdict(one) for one in asked], **figures})
