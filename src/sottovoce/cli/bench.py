"""`sottovoce bench`: speed of models on this machine."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from sottovoce.cli.options import BEAM_SIZE, LANGUAGE, MODEL, ModelOptions, SectionedCommand, open_model
from sottovoce.cli.progress import progress_bar
from sottovoce.errors import OptionError, cause_of
from sottovoce.options.schema import Option, from_values, options_of
from sottovoce.types import SAMPLE_RATE

if TYPE_CHECKING:
    from sottovoce.api import Model
    from sottovoce.evaluation.speed import Timing
    from sottovoce.models.dims import EncoderMode
    from sottovoce.types import Samples

LEAST_S = 0.1
CHOSEN = ("model", "dtype", "backend")


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    language: str
    beam_size: int | None
    repeats: int = Option("Repeats of each measurement.", least=1).as_field(3)
    seconds: float = Option(
        "Length of the recording to use, from its start; at least 0.1.", least=LEAST_S
    ).as_field(60.0)
    no_live: bool = Option("Skip the live session.").as_field(False)
    live: bool = Option("Only the live session and the encoder mode.").as_field(False)
    json: bool = Option("One JSON document for each model instead of a table.").as_field(False)


MEASURE = (LANGUAGE, BEAM_SIZE, *options_of(MeasureOptions))


@dataclass(frozen=True, slots=True)
class Measured:
    name: str
    shown: str
    numbers: Mapping[str, float]


@click.command(cls=SectionedCommand, sections={"Model": MODEL, "Measure": MEASURE})
@click.argument("file", required=False)
def bench(file: str | None, language: str, beam_size: int | None, **given: object) -> None:
    """Measure the speed of models on this machine.

    Without FILE: loading, spectrogram, encoder and decoder on a window of noise. With a recording also its
    transcription and a live session at the shortest interval between updates that this machine keeps up with,
    and the number of such sessions. With --live, FILE (at least 24 s of speech) also finds the cheapest
    encoder mode of weights without a known one, and stores it for live sessions. --model, --dtype and
    --backend take several values, separated by commas.
    """
    from sottovoce.models.sources import resolve

    options = from_values(MeasureOptions, given, language=language, beam_size=beam_size)
    if options.live and (options.no_live or file is None):
        raise OptionError("--live: expected FILE, and not --no-live")
    model = from_values(ModelOptions, given)
    names: Sequence[str | None] = [None] if model.model is None else _names(model.model)
    chosen = product(names, _names(model.dtype), _names(model.backend))
    models = [replace(model, model=name, dtype=dtype, backend=backend) for name, dtype, backend in chosen]
    for each in models:
        _check(each)
    samples = None if file is None else _beginning(file, options.seconds)
    for each in models:
        if each.model is not None:
            resolve(each.model, each.sources())
    results: dict[str, list[Measured]] = {}
    n_of_file = 0 if file is None else 1 + (not options.no_live)
    n_rows = 5 if options.live else 7 + int(beam_size != 1) + n_of_file
    with progress_bar(auto_refresh=False) as bar:  # a thread that draws would disturb the measurements
        task = bar.add_task("measures", total=n_rows * len(models))
        for each in models:
            for measured in measures(each, options, samples):
                results.setdefault(_label(each), []).append(measured)
                bar.update(task, advance=1, refresh=True)
    if not options.json:
        _print(results)
        return
    for each, (runtime, *rows) in zip(models, results.values(), strict=True):
        named = {name: getattr(each, name) for name in CHOSEN}
        numbers = {row.name: row.numbers for row in rows}
        click.echo(json.dumps({**named, "runtime": runtime.shown, "measures": numbers}))


def measures(opened: ModelOptions, options: MeasureOptions, samples: Samples | None) -> Iterator[Measured]:
    from sottovoce.api import as_whisper
    from sottovoce.evaluation.speed import forget_peak, model_parts, peak_bytes, timed

    loading = timed(partial(open_model, opened), options.repeats)
    forget_peak()
    model = as_whisper(open_model(opened), "bench")
    beam_size = options.beam_size or model.beam_size
    yield Measured("runtime", model.backend.runtime, {})
    numbers = {"s": loading.median_s, "lowest_s": loading.lowest_s, "highest_s": loading.highest_s}
    shown = f"{loading.median_s:.2f} s ({loading.lowest_s:.2f}-{loading.highest_s:.2f})"
    yield Measured("loading", shown, {name: round(seconds, 4) for name, seconds in numbers.items()})
    parts = [] if options.live else model_parts(model.backend, beam_size, options.repeats)
    for name, timing in parts:
        yield _of_timing(name, timing)
    if samples is not None and not options.live:
        yield _transcribed(model, samples, options, beam_size)
    if samples is not None and not options.no_live:
        mode = None
        if options.live:
            mode, measured = _self_test(model, samples, options.language)
            yield measured
        yield _live(model, samples, options.language, mode)
    peak = peak_bytes()  # peak memory since the model was opened
    if peak is None:
        yield Measured("peak memory", "unknown here", {})
    else:
        yield Measured("peak memory", f"{peak / 1e6:.0f} MB", {"mb": round(peak / 1e6, 1)})


def _label(options: ModelOptions) -> str:
    runtime = "" if options.backend == "auto" else f" {options.backend}"
    return f"{options.model or 'default'} {options.dtype}{runtime}"


def _of_timing(name: str, timing: Timing) -> Measured:
    low, middle, high = (1000 * seconds for seconds in (timing.lowest_s, timing.median_s, timing.highest_s))
    numbers = {"ms": round(middle, 3), "lowest_ms": round(low, 3), "highest_ms": round(high, 3)}
    return Measured(name, f"{_rounded(middle)} ms ({_rounded(low)}-{_rounded(high)})", numbers)


def _transcribed(model: Model, samples: Samples, options: MeasureOptions, beam_size: int) -> Measured:
    from sottovoce.evaluation.speed import timed

    def transcribe() -> None:
        model.transcribe(samples, language=options.language, beam_size=beam_size).collect()

    timing = timed(transcribe, options.repeats)
    duration = len(samples) / SAMPLE_RATE
    speed = duration / timing.median_s
    numbers = {
        "s": round(timing.median_s, 3),
        "audio_s": round(duration, 3),
        "times_real_time": round(speed, 3),
    }
    name = f"transcription, {duration:.0f} s, beam {beam_size}"
    return Measured(name, f"{timing.median_s:.2f} s ({speed:.1f} x real time)", numbers)


def _self_test(model: Model, samples: Samples, language: str) -> tuple[EncoderMode | None, Measured]:
    """Find and store the encoder mode of weights without a published one."""
    from sottovoce.evaluation.encoder_mode import find_encoder_mode
    from sottovoce.models.load import store_mode

    if model.mode_key is None:
        return None, Measured("encoder mode", "known", {})
    tokenizer = model.tokenizer
    if tokenizer.is_multilingual:
        code = model.detect_language(samples).language if language == "auto" else language
        tokenizer = tokenizer.with_language(code)
    try:
        trial = find_encoder_mode(model.backend, tokenizer, samples)
        path, mode = store_mode(model.mode_key, trial.mode), trial.mode
    except OptionError as error:
        return None, Measured("encoder mode", f"not found: {error}", {})
    except OSError as error:
        return None, Measured("encoder mode", f"cannot be stored ({cause_of(error)})", {})
    padding = f"{len(mode.anchors)} anchors and 1 frame in {mode.stride}" if mode.stride > 1 else "all frames"
    newest = "everything" if mode.recompute_s is None else f"the newest {mode.recompute_s:g} s"
    numbers = {"work": trial.work, "divergence": trial.mean, "worst_divergence": trial.worst}
    numbers = {name: round(number, 4) for name, number in numbers.items()}
    shown = f"{padding} of the padding, {newest} of the audio; {trial.work:.1f} frames a frame; in {path}"
    return mode, Measured("encoder mode", shown, numbers)


def _live(model: Model, samples: Samples, language: str, encoder: EncoderMode | None) -> Measured:
    from sottovoce.evaluation.scores import run_live
    from sottovoce.runtime.update_interval import BUSY, INTERVALS_S
    from sottovoce.streaming.options import StreamOptions

    for interval_s in INTERVALS_S:
        stream = StreamOptions(chunk_s=interval_s, encoder=encoder)
        session = model.session(None if language == "auto" else language, stream=stream)
        run = run_live(session, samples, chunk_s=interval_s)
        if run.compute_s <= BUSY * run.duration_s:
            break
    load, n_sessions = run.cpu_s / run.duration_s, BUSY * run.duration_s / run.compute_s
    if model.backend.device.type == "cpu":
        n_sessions = BUSY * (os.cpu_count() or 1) / load
    numbers = {
        "interval_s": interval_s,
        "sessions": float(int(n_sessions)),
        "processor_s_a_second": round(load, 4),
        "late_updates": round(run.late_updates, 4),
        "n_words": float(len(run.words)),
    }
    shown = f"{int(n_sessions)} at a time, updates of {interval_s:g} s, {load:.2f} processor s/s each, "
    shown += f"{run.late_updates:.0%} of updates late"
    if run.words:
        late = statistics.median(
            elapsed - word.end for word, elapsed in zip(run.words, run.elapsed_s, strict=True)
        )
        numbers["word_delay_s"] = round(late, 3)
        shown += f", words {late:.2f} s late"
    return Measured("live sessions", shown, numbers)


def _print(results: Mapping[str, list[Measured]]) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 3, 0, 0), pad_edge=False)
    for heading in ("", *results):
        table.add_column(heading, no_wrap=not sys.stdout.isatty())
    for rows in zip(*results.values(), strict=True):
        table.add_row(rows[0].name, *(row.shown for row in rows))
    Console(width=None if sys.stdout.isatty() else 100 * (1 + len(results))).print(table)


def _beginning(file: str, seconds: float) -> Samples:
    from sottovoce.audio.io import load_audio

    samples = load_audio(file)[: round(seconds * SAMPLE_RATE)]
    if len(samples) < LEAST_S * SAMPLE_RATE:
        raise OptionError(f"{file}: expected {LEAST_S} s of audio or more, got {len(samples)} samples")
    return samples


def _check(options: ModelOptions) -> None:
    from sottovoce.models.devices import choose_device, choose_number_format
    from sottovoce.runtime.registry import check_runtime

    choose_number_format(options.dtype, choose_device(options.device))
    check_runtime(options.backend)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len({*names}) < len(names):
        raise OptionError(
            f"--model, --dtype and --backend: expected different names between commas, got '{text}'"
        )
    return names


def _rounded(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"
