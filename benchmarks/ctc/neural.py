"""A neural model in the search over real phonemes: errors and time by beam, interval, numbers and chunks.

    python -m benchmarks ctc neural ../shared/ctc/phonemes --neural-lm FOLDER --beams 16,100

Development clips of LibriSpeech through the phoneme network of the package `hama` (`dev.npz`), a lexicon
with homophones and a bigram. A row for every combination of the lists given. Seconds are of the processor and
for a second of audio; eight clips at a time, one thread. --stream reads clip by clip in chunks of 80 ms.

    python -m benchmarks ctc neural ../shared/ctc/phonemes --networks ../shared/data

reads the clips by the same network in several ways, without a neural model, each alone and their means (needs
`hama`): as they are, 10 ms later (half a frame), and with white noise twice, 15 dB below the speech.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.harness.report import benchmark_parser, listed, resident_bytes, show_json
from sottovoce.audio.io import load_audio
from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.options import CtcOptions
from sottovoce.evaluation.wer import ErrorCounts, count_edits
from sottovoce.lm.neural import CausalWordModel
from sottovoce.types import Hypothesis

LM_WEIGHT, NEURAL_WEIGHT, LM_KEPT = 0.6, 0.5, 0.25
BATCH, CHUNK_FRAMES, FRAME_S = 8, 4, 0.02
SHIFT_SAMPLES, NOISE_DB = 160, 15.0


class Clips:
    """Emissions (T, V) and texts by name, and the decoder's files. step: every so many clips."""

    def __init__(self, folder: Path, step: int) -> None:
        with np.load(folder / "dev.npz", allow_pickle=False) as archive:
            meta = json.loads(str(archive["meta"]))
            names = [name for name in archive.files if name != "meta"][::step]
            rows = {name: torch.from_numpy(archive[name].astype(np.float32)) for name in names}
        self.emissions = {name: row.log_softmax(dim=1) for name, row in rows.items()}
        self.texts: dict[str, str] = meta["texts"]
        self.labels: list[str] = meta["labels"]
        self.blank: int = meta["blank"]
        self.seconds = FRAME_S * sum(map(len, self.emissions.values()))
        self.folder = folder

    def errors(self, found: Mapping[str, Sequence[Hypothesis]]) -> ErrorCounts:
        counts = [
            count_edits(self.texts[name].split(), lists[0].text.split() if lists else [])
            for name, lists in found.items()
        ]
        return sum(counts[1:], start=counts[0])

    def decoder(self, model: CausalWordModel | None, options: CtcOptions, **weights: float) -> CtcDecoder:
        fusion = CtcFusionOptions(**{"lm_weight": LM_WEIGHT, **weights})  # type: ignore[arg-type]
        lm, lexicon = self.folder / "bigram.arpa.gz", self.folder / "lexicon.txt"
        return CtcDecoder(
            self.labels, self.blank, lm=lm, lexicon=lexicon, neural_lm=model, fusion=fusion, options=options
        )


def batches(rows: Mapping[str, Tensor]) -> Iterator[tuple[list[str], Tensor, list[int]]]:
    names = list(rows)
    for begin in range(0, len(names), BATCH):
        some = names[begin : begin + BATCH]
        yield (
            some,
            pad_sequence([rows[name] for name in some], batch_first=True),
            [len(rows[n]) for n in some],
        )


def whole(decoder: CtcDecoder, clips: Clips) -> dict[str, list[Hypothesis]]:
    found: dict[str, list[Hypothesis]] = {}
    for names, batch, lengths in batches(clips.emissions):
        found |= zip(names, decoder.decode(batch, lengths), strict=True)
    return found


def streamed(decoder: CtcDecoder, clips: Clips) -> tuple[dict[str, list[Hypothesis]], dict[str, float]]:
    """Read every clip in chunks; also measure how late words of the final text are shown and committed.

    A word is late by the time from the end of its last label to the chunk after which it stays in the best
    text, or is committed.
    """
    found: dict[str, list[Hypothesis]] = {}
    shown: list[float] = []
    told: list[float] = []
    spent: list[float] = []
    n_revised = n_words = 0
    for name, frames in clips.emissions.items():
        updates = []
        chunks = decoder.stream(frames.split(CHUNK_FRAMES))
        started = time.process_time()
        for update in chunks:
            spent.append(time.process_time() - started)
            updates.append(update)
            started = time.process_time()
        found[name] = list(updates[-1].hypotheses)
        words = found[name][0].words
        texts = [update.text.split() for update in updates]
        final = texts[-1]
        n_words += len(final)
        n_revised += sum(update.n_revised for update in updates)
        since = [updates[-1].time_s] * len(words)
        for i in range(len(words)):
            for update, text in zip(reversed(updates), reversed(texts), strict=True):
                if text[: i + 1] != final[: i + 1]:
                    break
                since[i] = update.time_s
        shown += [at - word.end for at, word in zip(since, words, strict=True)]
        committed = [update.time_s for update in updates for _ in update.committed]
        told += [at - word.end for at, word in zip(committed, words, strict=True)]
    figures = {
        "shown_median_ms": 1000 * float(np.median(shown)),
        "shown_p90_ms": 1000 * float(np.quantile(shown, 0.9)),
        "told_median_ms": 1000 * float(np.median(told)),
        "revised_a_word": n_revised / n_words,
        "chunk_median_ms": 1000 * float(np.median(spent)),
        "chunk_p99_ms": 1000 * float(np.quantile(spent, 0.99)),
    }
    return found, figures


def readings(clips: Clips, data: Path) -> dict[str, dict[str, Tensor]]:
    """Read every clip by the phoneme network in several ways, of the same frames."""
    from hama.asr import ASRModel

    session = ASRModel().session
    files = {}
    for line in (data / "manifest.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        files[row["id"].replace("/", "__")] = data / row["file"]
    noise = np.random.default_rng(0)
    ways: dict[str, dict[str, Tensor]] = {}
    for name in clips.emissions:
        audio = load_audio(files[name]).astype(np.float32)
        level = float(np.sqrt(np.mean(audio**2))) * 10 ** (-NOISE_DB / 20)
        variants = {
            "as it is": audio,
            "10 ms later": np.concatenate((np.zeros(SHIFT_SAMPLES, np.float32), audio))[: len(audio)],
            "noise 1": audio + level * noise.standard_normal(len(audio)).astype(np.float32),
            "noise 2": audio + level * noise.standard_normal(len(audio)).astype(np.float32),
        }
        for way, samples in variants.items():
            feeds = {"waveform": samples[None], "waveform_lengths": np.array([len(samples)])}
            (log_probs,) = session.run(["log_probs"], feeds)
            ways.setdefault(way, {})[name] = torch.from_numpy(np.array(log_probs[0])).log_softmax(dim=1)
    return ways


def networks(clips: Clips, data: Path, beams: Sequence[int]) -> None:
    ways = readings(clips, data)
    pairs = (("as it is", "10 ms later"), ("noise 1", "noise 2"), ("as it is", "noise 1"))
    for beam in beams:
        for chosen in [(way,) for way in ways] + list(pairs):
            for combine in ("mean", "nbest") if len(chosen) > 1 else ("mean",):
                options = CtcOptions(beam_size=beam, n_best=20, combine=combine)  # type: ignore[arg-type]
                decoder = clips.decoder(None, options)
                found = {
                    name: decoder.decode([ways[way][name] for way in chosen])[0] for name in clips.emissions
                }
                wrong = clips.errors(found)
                show_json(
                    "ctc networks", {"beam": beam, "networks": chosen, "combine": combine, **rate(wrong)}
                )


def rate(wrong: ErrorCounts) -> dict[str, float]:
    percent = 100 * wrong.n_errors / wrong.n_reference
    return {"errors": wrong.n_errors, "words": wrong.n_reference, "percent": round(percent, 1)}


def optional(text: str) -> float | None:
    return None if text == "none" else float(text)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("phonemes", type=Path)
    parser.add_argument("--neural-lm", default=None)
    parser.add_argument("--beams", type=listed(int), default=[16, 100])
    parser.add_argument("--intervals", type=listed(int), default=[10], help="frames; 0: at the end only")
    parser.add_argument("--thresholds", type=listed(optional), default=[None])
    parser.add_argument("--dtypes", type=listed(), default=["auto"])
    parser.add_argument("--cache-mb", type=listed(float), default=[512.0])
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--networks", type=Path, metavar="DATA")
    parser.add_argument("--step", type=int, default=1, help="every so many clips")
    given = parser.parse_args()
    torch.set_num_threads(1)
    clips = Clips(given.phonemes, given.step)
    if given.networks is not None:
        networks(clips, given.networks, given.beams)
        return
    for dtype, cache_mb in itertools.product(given.dtypes, given.cache_mb):
        for beam, interval, threshold in itertools.product(given.beams, given.intervals, given.thresholds):
            model = None
            if given.neural_lm is not None:
                model = CausalWordModel.load(given.neural_lm, dtype=dtype, cache_mb=cache_mb)
            options = CtcOptions(
                beam_size=beam, adjust_every_frames=interval or None, adjust_threshold=threshold
            )
            kept = {} if model is None else {"neural_weight": NEURAL_WEIGHT, "lm_kept": LM_KEPT}
            decoder = clips.decoder(model, options, **kept)
            started, figures = time.process_time(), dict[str, float]()
            if given.stream:
                found, figures = streamed(decoder, clips)
            else:
                found = whole(decoder, clips)
            spent = time.process_time() - started
            row = {
                "dtype": dtype,
                "cache_mb": cache_mb,
                "beam": beam,
                "interval": interval,
                "threshold": threshold,
                **rate(clips.errors(found)),
                "seconds_a_second": round(spent / clips.seconds, 3),
                "pieces": 0 if model is None else model.n_forward_pieces,
                "cache_taken_mb": 0 if model is None else round(model.n_cache_bytes / 2**20),
                "memory_mb": round(resident_bytes() / 2**20),
                **{name: round(value, 2) for name, value in figures.items()},
            }
            show_json("ctc neural", row)
