"""People who change language inside a sentence, beside openai-whisper told one."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.clips import clips
from benchmarks.harness.programs import openai_model
from benchmarks.harness.report import add_part, percent, show_table
from benchmarks.live.counts import error_rate, errors
from benchmarks.live.runs import GIVEN, Bench, Item, counted, item_of, run_command, settings, show_live_json
from sottovoce.models.load import load_checkpoint

MODES = "off", "restart"

HELP = """Real code-switching: errors of each mode beside openai-whisper told its best single language.

The set codeswitch (14 recordings, 6 minutes; those with a text). The best language is the one, of those
spoken, that has the fewest errors in that recording, which nobody could know beforehand. About 5 minutes of
processor time for each part."""

FOLLOWS = ("restart", GIVEN)


def run(given: argparse.Namespace) -> None:
    bench = Bench(given.log)
    items = [
        replace(item_of(clip), languages=tuple(dict.fromkeys(clip.languages)))
        for clip in clips(given.shared / "data", given.part, sets=["codeswitch"], with_text=True)
        if len(set(clip.languages)) > 1
    ]
    texts = {"openai-whisper, best single language": best_single(bench, given.model, items)}
    asked = [replace(one, switching=mode) for one in settings(given) for mode in MODES]
    cpu = {}
    for setting in asked:
        lives = [bench.live(setting, item) for item in counted(items, setting.name)]
        texts[setting.name] = [live.text for live in lives]
        cpu[setting.name] = sum(live.run.cpu_s for live in lives) / sum(live.run.duration_s for live in lives)
    pairs = list(dict.fromkeys("+".join(item.languages) for item in items))
    rows, figures = [], {}
    for name, some in texts.items():
        rates = [error_rate(*of_pair(items, some, pair)) for pair in pairs]
        total = error_rate(items, some)
        rows.append([name, *map(percent, [*rates, total]), f"{cpu[name]:.2f}" if name in cpu else ""])
        figures[name] = {"errors": total, "by_pair": dict(zip(pairs, rates, strict=True))}
    show_table([f"{len(items)} recordings", *pairs, "all", "cpu s/s"], rows)
    show_live_json("codeswitch", asked, {"part": given.part, "recordings": len(items), "found": figures})


def of_pair(items: Sequence[Item], texts: Sequence[str], pair: str) -> tuple[list[Item], list[str]]:
    at = [i for i, item in enumerate(items) if "+".join(item.languages) == pair]
    return [items[i] for i in at], [texts[i] for i in at]


def best_single(bench: Bench, model: str, items: Sequence[Item]) -> list[str]:
    """openai-whisper's texts, each in the language, of those spoken, that has the fewest errors."""
    engine = None
    texts = []
    for item in counted(items, "openai-whisper"):
        tried = []
        for language in item.languages:
            key = json.dumps({"program": "openai-whisper", "model": model, "language": language})
            found = bench.log.get(key, item.name)
            if found is None:
                if engine is None:
                    with tempfile.TemporaryDirectory() as folder:
                        engine = openai_model(load_checkpoint(model), Path(folder))
                text = engine.transcribe(item.samples(), language=language, fp16=False)["text"]
                found = {"text": text}
                bench.log.add(key, item.name, found)
            tried.append(found["text"])
        texts.append(min(tried, key=lambda text: errors(item, text).n_errors))
    return texts


def main() -> None:
    run_command(HELP, lambda parser: add_part(parser, "dev"), run, FOLLOWS)
