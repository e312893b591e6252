"""Does an accelerator compute what the processor computes, and how fast is each part of a model there?

    python -m benchmarks.accelerator --device cuda --report accelerator/        # nine minutes on a card
    python -m benchmarks.accelerator --device cpu --seconds 60 --sizes nano     # tries the command itself

Equality in float32: texts of files (greedy, a beam of five, word times), live sessions with a choice of
languages (the probe), and emissions of the CTC head and their search. Speed with random weights of real
dimensions: a decoder step at each number of rows, the encoder at each length, the probe; and with real
weights (--model): files in batches, and live sessions at once, of which the 95th percentile of the delay is
measured: the seconds from a chunk's arrival to the end of its update. Parts that the time (--seconds) does
not suffice for are left out, and named. Writes report.md and two pictures, and prints one JSON line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

from benchmarks.harness.report import benchmark_parser, listed, show_json
from sottovoce import CtcDecoder
from sottovoce.api import Model, as_whisper, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.decoding.search import BestTokensEnd
from sottovoce.evaluation.speed import timed
from sottovoce.lm.fusion import text_fusion
from sottovoce.models.backend import STEPS_AHEAD, StepGroup, ending_rows
from sottovoce.models.checkpoint.base import Checkpoint, expected_shapes
from sottovoce.models.devices import Device, choose_device, choose_number_format
from sottovoce.models.dims import ModelDims
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.batching import BatchingRuntime
from sottovoce.runtime.static_rows import STEP_SIZES
from sottovoce.runtime.torch import TorchBackend
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Features, Samples

mpl.use("Agg")
import matplotlib.pyplot as plt

SIZES = {
    "nano": ModelDims(80, 1500, 64, 2, 2, 51865, 448, 64, 2, 2),
    "base": ModelDims(80, 1500, 512, 8, 6, 51865, 448, 512, 8, 6),
    "turbo": ModelDims(128, 1500, 1280, 20, 32, 51866, 448, 1280, 20, 4),
}
CLIPS = Path(__file__).parents[1] / "examples" / "clips"
CHUNKS_S = (0.32, 0.56, 1.12)
STREAMS = (1, 8, 16, 32, 64)
WARM_UP_S = 3.0
PHRASES = ("Kubernetes", "the president", "Saoirse Ronan", "in the morning")
AUDIO = (".flac", ".mp3", ".ogg", ".opus", ".wav")
BATCHES = (1, 8, 16)
Row = tuple[str, ...]


class Report:
    """Markdown tables, which are printed as they grow. end_s: when no other part is begun."""

    def __init__(self, seconds: float) -> None:
        self.end_s = time.monotonic() + seconds
        self.lines: list[str] = []
        self.figures: dict[str, object] = {}
        self.left_out: list[str] = []

    def table(self, title: str, heads: Sequence[str], rows: Callable[[], Iterator[Row]]) -> list[Row]:
        """Add a table, row by row as far as the time suffices; an error is a row."""
        self._add(f"\n## {title}\n", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|")
        done: list[Row] = []
        if time.monotonic() > self.end_s:
            self.left_out.append(title)
            return done
        try:
            for row in rows():
                done.append(row)
                self._add(f"| {' | '.join(row)} |")
                if time.monotonic() > self.end_s:
                    self.left_out.append(f"{title}, after '{row[0]}'")
                    break
        except Exception as error:
            self._add(f"| failed | {type(error).__name__}: {error} |")
        self.figures[title] = done
        return done

    def _add(self, *lines: str) -> None:
        self.lines += lines
        print(*lines, sep="\n", flush=True)


def random_model(dims: ModelDims, name: str) -> Checkpoint:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        key: torch.randn(shape, generator=generator, dtype=torch.float32)
        .mul_(shape[-1] ** -0.5)
        .half()
        .numpy()
        for key, shape in expected_shapes(dims).items()
    }
    return Checkpoint(name=name, dims=dims, tensors=tensors)


def equality(device: str, clips: Sequence[Path]) -> Iterator[Row]:
    """Compare nano on the device with nano on the processor, in float32."""
    ours, theirs = (
        as_whisper(load_model("nano", device=where, dtype="float32", backend="torch"), "nano")
        for where in (device, "cpu")
    )
    for name, read in (
        ("greedy", lambda model, clip: model.transcribe(clip, beam_size=1).text),
        ("beam of 5", lambda model, clip: model.transcribe(clip, beam_size=5).text),
        ("boosted phrases", boosted_text),
        ("word times", word_times),
        ("live, any language", live_text),
        ("CTC", ctc_text),
    ):
        same = sum(read(ours, clip) == read(theirs, clip) for clip in clips)
        yield name, str(same), str(len(clips))


def boosted_text(model: Model, clip: Path) -> str:
    return model.transcribe(clip, beam_size=5, fusion=model.fusion(hotwords=PHRASES)).text


def word_times(model: Model, clip: Path) -> str:
    result = model.transcribe(clip, word_timestamps=True)
    return str([(word.word, word.start, word.end) for item in result for word in item.words or ()])


def live_text(model: Model, clip: Path) -> str:
    session, samples = model.session(languages=["en", "de", "es", "fr"]), load_audio(clip)[: 10 * SAMPLE_RATE]
    events = [event for at in range(0, len(samples), 8000) for event in session.push(samples[at : at + 8000])]
    return str([getattr(event, "text", "") for event in (*events, *session.close())])


def ctc_text(model: Model, clip: Path) -> str:
    assert model.ctc_head is not None
    mel = log_mel(load_audio(clip), model.backend.dims.n_mels)
    result = model.ctc_head.emissions(window_features([mel[:, :3000]], 3000))
    labels = [chr(0x4E00 + i) for i in range(result.log_probs.shape[2])]
    decoder = CtcDecoder(labels, blank=len(labels) - 1, beam_size=16)
    return str([item[0].tokens for item in decoder.decode(result.log_probs, result.lengths)])


def steps(backend: TorchBackend, n_prompt: int = 64) -> Iterator[Row]:
    """Time a token of greedy files, of live rows with captured heads, and of beams of five, without and with
    boosted phrases. Files take `STEPS_AHEAD` steps for one read.
    """
    dims, tokenizer = backend.dims, Tokenizer.for_model(backend.dims.n_vocab)
    mel = np.zeros((1, dims.n_mels, 2 * dims.n_audio_ctx), np.float32)
    encoded = backend.encode(Features(mel, (mel.shape[2],)))
    fusion = text_fusion(tokenizer, hotwords=PHRASES)
    for n in STEP_SIZES:
        cells = []
        for n_beams, capture, fused in (
            (1, (), None),
            (1, backend.alignment_heads[:6], None),
            (5, (), None),
            (5, (), fusion),
        ):
            if n_beams > n:
                cells.append("")
                continue
            rows = backend.rows()
            for _ in range(n // n_beams):
                rows.admit(encoded)
            rows.step([range(n_prompt)] * rows.n_rows, [[n_prompt - 1]] * rows.n_rows)
            rows.select([row for row in range(rows.n_rows) for _ in range(n_beams)])
            n_rows, begin = rows.n_rows, dims.n_vocab - 1501
            end = BestTokensEnd(
                n_beams + (n_beams > 1), begin, dims.n_vocab, tokenizer.eot, n_beams, fusion=fused
            )
            searched = (0, begin, dims.n_vocab, 0, begin, 0) + (0, 5, 0) * (fused is not None)
            group = StepGroup(end, range(n_rows), [(0,)] * n_rows, np.array([searched] * n_rows))
            ending = ending_rows(rows, end)

            def run(rows=rows, n_rows=n_rows, ending=ending, group=group, capture=capture) -> None:  # type: ignore[no-untyped-def]
                if ending is not None and not capture:
                    for _ in ending.steps([[5]] * n_rows, [group], STEPS_AHEAD):
                        pass
                else:
                    for _ in range(STEPS_AHEAD):
                        rows.step([[5]] * n_rows, [[0]] * n_rows, capture=capture)
                for row in range(n_rows):
                    rows.cut(row, STEPS_AHEAD)

            cells.append(f"{1e3 * timed(run, 5, device=backend.device).median_s / STEPS_AHEAD:.2f}")
        yield str(n), *cells


def encoders(backend: TorchBackend) -> Iterator[Row]:
    dims = backend.dims
    for seconds in (5, 10, 15, 20, 30):
        cells = []
        for n in (1, 4, 16):
            mel = np.zeros((n, dims.n_mels, 100 * seconds), np.float32)
            features = Features(mel, (mel.shape[2],) * n)

            def run(features: Features = features) -> object:
                return backend.keys_values(backend.encode(features))

            cells.append(f"{1e3 * timed(run, 3, device=backend.device).median_s:.1f}")
        yield f"{seconds} s", *cells


def files(model: Model, clips: Sequence[Path]) -> Iterator[Row]:
    samples = np.concatenate([load_audio(clip) for clip in clips] * 4)
    for size in (BATCHES[0], *BATCHES):  # the first records the steps
        begun = time.perf_counter()
        options = TranscribeOptions(mode="vad", batch_size=size)
        text = model.transcribe(samples, options=options).text
        took_s = time.perf_counter() - begun
        yield str(size), f"{len(samples) / SAMPLE_RATE / took_s:.1f}", str(len(text.split()))


def streams(model: Model, samples: Samples, lasts_s: float) -> Iterator[Row]:
    """Run sessions at once in real time, up to the first number that is late; yields the delays of their
    updates. Steps are recorded before.
    """
    for n in (1, 32):
        live_delays(model, samples[: int(WARM_UP_S * SAMPLE_RATE)], CHUNKS_S[1], n)
    for chunk_s in CHUNKS_S:
        for n in STREAMS:
            delays = live_delays(model, samples[: int(lasts_s * SAMPLE_RATE)], chunk_s, n)
            middle, late = np.percentile(delays, (50, 95))
            yield (
                f"{1e3 * chunk_s:.0f} ms",
                str(n),
                f"{middle:.2f}",
                f"{late:.2f}",
                "yes" if late < chunk_s else "no",
            )
            if late >= chunk_s:
                break


def live_delays(model: Model, samples: Samples, chunk_s: float, n_sessions: int) -> list[float]:
    """Return the seconds from each chunk's arrival to the end of its update, of all sessions."""
    runtime, delays, size = BatchingRuntime(model.backend), [], int(chunk_s * SAMPLE_RATE)

    async def run(number: int) -> None:
        caller, loop = runtime.caller(), asyncio.get_running_loop()
        session = model.session(languages=["en"], runtime=caller)
        begun = time.monotonic() + chunk_s * number / n_sessions
        for place, at in enumerate(range(0, len(samples), size)):
            due = begun + (place + 1) * chunk_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            done = loop.create_future()
            caller.begin_request(
                session.push_request(samples[at : at + size]),
                partial(loop.call_soon_threadsafe, done.set_result),
            )
            (await done).result()
            delays.append(time.monotonic() - due)

    async def run_all() -> None:
        await asyncio.gather(*(run(number) for number in range(n_sessions)))

    asyncio.run(run_all())
    runtime.close()
    return delays


def parts(report: Report, name: str, device: Device, dtype: str) -> list[Row]:
    """Time the decoder and the encoder of random weights; return the table of the decoder's steps."""
    numbers = choose_number_format(dtype, device)
    backend = TorchBackend.from_checkpoint(
        random_model(SIZES[name], name),
        device=torch.device(str(device)),
        dtype=getattr(torch, numbers.dtype),
        int8=numbers.int8,
    )
    heads = ("rows", "greedy, ms", "live, ms", "beams of 5, ms", "with phrases, ms")
    with torch.inference_mode():
        result = report.table(f"A decoder step, {name}", heads, lambda: steps(backend))
        heads = ("window", "1, ms", "4, ms", "16, ms")
        report.table(f"Encoder and cross-attention, {name}", heads, lambda: encoders(backend))
    return result


def plot_steps(path: Path, tables: dict[str, list[Row]]) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for name, rows in tables.items():
        for column, what in ((1, "greedy"), (2, "live"), (3, "beams of 5"), (4, "with phrases")):
            points = [(int(row[0]), float(row[column])) for row in rows if row[column]]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=f"{name}, {what}")
    axes.set(xlabel="rows", ylabel="ms a step", xscale="log", yscale="log")
    if axes.lines:
        axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def plot_streams(path: Path, rows: Sequence[Row]) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for chunk in dict.fromkeys(row[0] for row in rows):
        points = [(int(row[1]), float(row[3])) for row in rows if row[0] == chunk]
        axes.plot(*zip(*points, strict=True), marker="o", label=f"chunks of {chunk}")
    axes.set(xlabel="live sessions at once", ylabel="delay, 95th percentile (s)", xscale="log")
    if axes.lines:
        axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--model", default="nano", help="real weights, for files and streams [nano]")
    parser.add_argument(
        "--sizes", type=listed(), default=["base", "turbo"], help="dimensions of random weights"
    )
    parser.add_argument("--seconds", type=float, default=520.0, help="after which no part is begun")
    parser.add_argument("--live-seconds", type=float, default=8.0, help="of each number of sessions")
    parser.add_argument("--clips", type=int, default=6, help="that are compared and read")
    parser.add_argument(
        "--speech", type=Path, default=CLIPS, help="folder of other clips for files and streams"
    )
    parser.add_argument("--report", type=Path, default=Path("accelerator"))
    arguments = parser.parse_args()
    device, clips = choose_device(arguments.device), sorted(CLIPS.glob("*.flac"))[: arguments.clips]
    speech = sorted(file for file in arguments.speech.iterdir() if file.suffix in AUDIO)
    report, tables = Report(arguments.seconds), {}
    report.table(
        "Results equal to the processor's",
        ("of", "equal", "clips"),
        lambda: equality(arguments.device, clips),
    )
    for name in arguments.sizes:
        tables[name] = parts(report, name, device, arguments.dtype)
    model = as_whisper(
        load_model(arguments.model, device=arguments.device, dtype=arguments.dtype, backend="torch"),
        "accelerator",
    )
    report.table(
        f"Files, {arguments.model}", ("batch", "times real time", "words"), lambda: files(model, speech)
    )
    samples = np.concatenate([load_audio(clip) for clip in speech])
    live = report.table(
        f"Live sessions, {arguments.model}",
        ("chunk", "sessions", "median, s", "95 %, s", "in real time"),
        lambda: streams(model, samples, arguments.live_seconds),
    )
    arguments.report.mkdir(parents=True, exist_ok=True)
    plot_steps(arguments.report / "steps.png", tables)
    plot_streams(arguments.report / "streams.png", live)
    ends = ["\n![Steps](steps.png)\n\n![Streams](streams.png)\n"]
    if report.left_out:
        ends.append(f"Left out for lack of time: {'; '.join(report.left_out)}.\n")
    (arguments.report / "report.md").write_text(
        "\n".join([f"# {device}, {model.backend.runtime}", *report.lines, *ends])
    )
    show_json("accelerator", {"device": str(device), **report.figures})


if __name__ == "__main__":
    main()
