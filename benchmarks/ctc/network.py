"""A phoneme network from sound to words: whole clips, windows, files and live.

    python -m recipes.phonemes model work                                              # its network
    python -m benchmarks ctc network ../shared --model work/network.toml               # development clips
    python -m benchmarks ctc network ../shared --model work/network.toml --part test   # another reader

The lexicon and the bigram are those of shared/ctc/phonemes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.harness.report import add_part, add_shared, benchmark_parser
from sottovoce.api import load_model
from sottovoce.audio.io import load_audio
from sottovoce.ctc.options import CtcFusionOptions, DecoderConfig
from sottovoce.evaluation.scores import count_edits, run_live
from sottovoce.network_model import CtcModel
from sottovoce.streaming.options import StreamOptions
from sottovoce.text.normalize import plain
from sottovoce.types import AudioChunk, Samples

WINDOWS = ((20.0, 1.0), (10.0, 1.0), (10.0, 2.0), (5.0, 0.625), (5.0, 2.0))


def clips_of(part: str, shared: Path) -> dict[str, str]:
    """Return the texts of recordings, by their paths below `shared`/data."""
    if part == "dev":
        texts = json.loads(str(np.load(shared / "ctc" / "phonemes" / "dev.npz")["meta"]))["texts"]
        return {f"{name.replace('__', '/')}.opus": text for name, text in texts.items()}
    lines = (shared / "data" / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["file"].startswith("kathleen-en/")]
    return {row["file"]: plain(row["text"]) for row in rows if row["split"] == "test"}


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser, "dev")
    parser.add_argument("--model", required=True, help="network.toml")
    arguments = parser.parse_args()
    shared: Path = arguments.shared
    phonemes = shared / "ctc" / "phonemes"
    texts = clips_of(arguments.part, shared)
    clips = {name: load_audio(shared / "data" / name) for name in texts}
    network = load_model(arguments.model).network
    config = DecoderConfig(
        lm=phonemes / "bigram.arpa.gz",
        lexicon=phonemes / "lexicon.txt",
        fusion=CtcFusionOptions(lm_weight=0.6),
    )
    model = CtcModel(network, config=config)
    decoder = model.fusion()

    def row(name: str, read: Callable[[Samples], str]) -> None:
        began_s = time.process_time()
        counts = [count_edits(texts[clip].split(), read(samples).split()) for clip, samples in clips.items()]
        seconds = (time.process_time() - began_s) / sum(len(samples) for samples in clips.values()) * 16_000
        wrong, spoken = sum(item.n_errors for item in counts), sum(item.n_reference for item in counts)
        print(f"{name:24} {wrong} of {spoken} words wrong, {seconds:.3f} s a second", flush=True)

    emissions = {id(samples): network.emissions([samples])[0] for samples in clips.values()}
    row("emissions of whole clips", lambda samples: decoder.decode(emissions[id(samples)])[0][0].text)
    row("transcribe", lambda samples: model.transcribe(samples).text)
    for longest_s, context_s in WINDOWS:
        cut = replace(network, longest_s=longest_s, context_s=context_s)
        row(
            f"windows {longest_s:g}, {context_s:g} s",
            lambda samples, cut=cut: decoder.decode(cut.whole_emissions([AudioChunk(samples)]))[0][0].text,  # type: ignore[misc]
        )
    for latency in ("low", "balanced", "sure"):
        delays: list[float] = []

        def live(samples: Samples, latency: str = latency, delays: list[float] = delays) -> str:
            stream = StreamOptions(latency=latency)  # type: ignore[arg-type]
            run = run_live(model.session(stream=stream), samples, chunk_s=stream.chunk_s)
            delays.extend(at - word.end for at, word in zip(run.delays_s, run.words, strict=True))
            return run.text

        row(f"live, latency {latency}", live)
        print(f"{'':24} committed {np.median(delays):.2f} s late, 90 %: {np.quantile(delays, 0.9):.2f} s")
