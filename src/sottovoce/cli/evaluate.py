"""`sottovoce eval`: errors, languages, switches and latency over a manifest."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sottovoce.cli.options import (
    FUSION,
    MODEL,
    FusionOptions,
    ModelOptions,
    SectionedCommand,
    grouped,
    open_model,
)
from sottovoce.errors import ManifestError
from sottovoce.evaluation.manifest import ManifestEntry, read_manifest
from sottovoce.formats.output import writable_folder
from sottovoce.options.decoding import FallbackOptions
from sottovoce.options.schema import Option, Values, from_values, options_of
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.streaming.options import Finals, LiveOptions
from sottovoce.text.languages import UNSPACED, LanguageChoice

if TYPE_CHECKING:
    from sottovoce.api import Model
    from sottovoce.evaluation.scores import LiveRun, ReferenceSegment, ScoredUtterance, SwitchScores
    from sottovoce.language.probe import LanguageProbe
    from sottovoce.recogniser import Recogniser
    from sottovoce.streaming.options import StreamOptions
    from sottovoce.types import Samples, Word

FINALS = next(option for option in options_of(LiveOptions) if option.key == "finals")


@dataclass(frozen=True, slots=True)
class EvalOptions:
    limit: int | None = Option(
        "Number of recordings to use, spread over the list.", group="Set", least=1
    ).as_field(None)
    languages: str = Option(
        "Languages to choose from; recordings in others are skipped.",
        group="Set",
        kind="languages",
        metavar="auto|CODE[,CODE…]",
    ).as_field("auto")
    chunk_ms: int = Option("Audio between two updates.", group="Live", least=10).as_field(250)
    audio_max_len: float = Option(
        "Most seconds of audio that are kept.", group="Live", least=1.0, most=30.0
    ).as_field(30.0)
    finals: Finals = replace(FINALS, group="Live").as_field("committed")
    widths: tuple[float, ...] = Option(
        "Window widths of the probe in seconds.", group="Probe", kind="numbers"
    ).as_field((0.5, 1, 1.5, 2, 3, 5))
    noise: tuple[str, ...] = Option(
        "Noise recording to mix in. Repeatable.", group="Probe", many=True, metavar="FILE"
    ).as_field(())
    snr_db: float = Option("Signal-to-noise ratio in dB.", group="Probe").as_field(10.0)
    plots: str | None = Option(
        "Folder for pictures of the timelines.", group="Switching", metavar="DIRECTORY"
    ).as_field(None)
    frame_thresholds: tuple[float, ...] = Option(
        "Distances from the end of the audio within which words wait, in 20 ms frames.",
        group="Thresholds",
        kind="numbers",
    ).as_field((10, 25, 50, 100))


@click.group("eval")
def evaluate() -> None:
    """Measure a model over a manifest (JSON lines: file, language, text, segments)."""


def measure(*groups: str) -> Callable[[Callable[..., None]], click.Command]:
    options = grouped("Set", *groups, of=options_of(EvalOptions))

    def decorate(function: Callable[..., None]) -> click.Command:
        with_argument = click.argument("manifest", type=click.Path(dir_okay=False))(function)
        sections = {"Model": MODEL, "Language models": FUSION, "Measurement": options}
        return evaluate.command(cls=SectionedCommand, sections=sections)(with_argument)

    return decorate


def set_up(
    manifest: str, given: Values, *, spoken: bool = False, single: bool = False
) -> tuple[Recogniser, list[ManifestEntry], Sequence[str]]:
    """Load the model, and choose recordings and languages.

    spoken: only recordings with a text. single: only those in one language.
    """
    entries = read_manifest(manifest)
    model = open_model(from_values(ModelOptions, given), from_values(FusionOptions, given))
    choice = LanguageChoice.parse(given["languages"], model.languages)
    languages = (choice.fixed,) if choice.fixed else choice.allowed or model.languages
    entries = [
        entry
        for entry in entries
        if entry.languages and set(entry.languages) <= set(languages) and (entry.text or not spoken)
    ]
    if single:
        entries = [entry for entry in entries if entry.language is not None]
    if not entries:
        kind = "recordings of one language each" if single else "recordings"
        raise ManifestError(f"{manifest}: expected {kind} in {', '.join(languages)}, got none")
    n_used = min(given["limit"] or len(entries), len(entries))
    step = len(entries) / n_used
    return model, [entries[int(i * step)] for i in range(n_used)], languages


def say(document: Mapping[str, object]) -> None:
    click.echo(json.dumps(document, ensure_ascii=False, indent=1))


@measure()
def wer(manifest: str, **given: object) -> None:
    """Measure error rates of transcripts of files.

    Of words, characters, and both mixed.
    """
    from sottovoce.evaluation.scores import score

    model, entries, languages = set_up(manifest, given, spoken=True)
    utterances = [scored(entry, offline(model, entry, languages)[0]) for entry in entries]
    say({"model": model.name, **score(utterances).to_dict()})


def offline(model: Recogniser, entry: ManifestEntry, languages: Sequence[str]) -> tuple[str, list[Word]]:
    options = TranscribeOptions(fallback=FallbackOptions(temperatures=(0.0,)))
    language = entry.language or ",".join(languages)
    transcription = model.transcribe(
        str(entry.path), language=language, word_timestamps=True, options=options
    )
    segments = list(transcription)
    return "".join(s.text for s in segments).strip(), [word for s in segments for word in s.words or ()]


def scored(entry: ManifestEntry, text: str) -> ScoredUtterance:
    from sottovoce.evaluation.scores import ScoredUtterance

    return ScoredUtterance(entry.text, text, entry.language or entry.languages or None)


@measure("Probe")
def language(
    manifest: str, noise: Sequence[str], snr_db: float, widths: Sequence[float], **given: object
) -> None:
    """Measure how often the language is detected.

    By the probe, for each window width, on recordings in one language.
    """
    from sottovoce.api import as_whisper
    from sottovoce.audio.io import load_audio
    from sottovoce.evaluation.scores import LanguageScores
    from sottovoce.language.probe import LanguageProbe

    noises = [load_audio(path) for path in noise]
    model, entries, languages = set_up(manifest, given, single=True)
    whisper = as_whisper(model, "eval language")
    probe = LanguageProbe(whisper.backend, whisper.tokenizer, languages)
    scores = {width: LanguageScores() for width in widths}
    for i, entry in enumerate(entries):
        audio = load_audio(str(entry.path), duration_s=30.0)
        if noises:
            audio = mixed_with(audio, noises[i % len(noises)], snr_db)
        for width, detected in probed(whisper, probe, audio, widths):
            scores[width].add(entry.language or "", detected)
    rows = [
        {
            "width_s": width,
            "n": score.n,
            "accuracy": score.accuracy,
            "interval": score.interval(),
            "by_language": score.by_language,
        }
        for width, score in scores.items()
    ]
    snr = snr_db if noises else None
    say({"model": model.name, "n_recordings": len(entries), "snr_db": snr, "widths": rows})


def probed(
    model: Model, probe: LanguageProbe, audio: Samples, widths: Sequence[float]
) -> list[tuple[float, str]]:
    from sottovoce.audio.mel import log_mel, window_features

    mel = log_mel(audio, model.backend.dims.n_mels)
    n_frames = mel.shape[1] // 2
    encoded = model.backend.encode(window_features([mel], 2 * (n_frames + n_frames % 2)))
    sizes = [(width, round(50 * width)) for width in widths]
    spans = [(width, (at, at + n)) for width, n in sizes for at in range(0, n_frames - n + 1, n)]
    detections = probe.detect_spans(encoded, [span for _, span in spans])
    return [
        (width, probe.languages[int(detection.probabilities.argmax())])
        for (width, _), detection in zip(spans, detections, strict=True)
    ]


def mixed_with(audio: Samples, noise: Samples, snr_db: float) -> Samples:
    """Mix speech with noise (repeated if short) at a signal-to-noise ratio."""
    import numpy as np

    repeated = np.resize(noise, len(audio))
    power = float(np.mean(repeated**2)) or 1.0
    gain = math.sqrt(float(np.mean(audio**2)) / power / 10 ** (snr_db / 10))
    return (audio + gain * repeated).astype(np.float32)


def stream_options(given: Values) -> StreamOptions:
    from sottovoce.streaming.options import StreamOptions

    return StreamOptions(chunk_s=given["chunk_ms"] / 1000, audio_max_len_s=given["audio_max_len"])


def second_pass(given: Values) -> dict[str, Any]:
    """Return arguments of `Recogniser.session`; finals are waited for."""
    return {"finals": given["finals"], "options": LiveOptions(final_wait_s=math.inf)}


@measure("Live", "Switching")
def switching(manifest: str, plots: str | None, **given: object) -> None:
    """Measure changes of language in live sessions.

    Change points, delays, false switches and mixed error rates.
    """
    from sottovoce.api import as_whisper
    from sottovoce.audio.io import load_audio
    from sottovoce.evaluation.scores import NO_SCORES, ScoreOptions, by_span, run_live, score, score_switches
    from sottovoce.pictures import plot_timeline, require_plots
    from sottovoce.streaming.session import Session

    if plots:
        require_plots()
        writable_folder(Path(plots))
    model, entries, languages = set_up(manifest, given)
    stream = stream_options(given)
    wide = narrow = NO_SCORES
    utterances, finals, parts = [], [], []
    for entry in entries:
        session = as_whisper(model, "eval switching").session(languages, stream=stream, **second_pass(given))
        assert isinstance(session, Session)
        run = run_live(session, load_audio(str(entry.path)), chunk_s=stream.chunk_s)
        spans = [(span.start_s, span.end_s, span.language) for span in entry.spans]
        wide += score_switches(run.switches, spans, duration_s=run.duration_s)
        narrow += score_switches(run.switches, spans, duration_s=run.duration_s, tolerance_s=0.5)
        if entry.text:
            utterances.append(scored(entry, run.text))
            finals.append(scored(entry, run.final_text))
            parts += by_span(entry.spans, run.text)
        if plots:
            plot_timeline(
                Path(plots) / f"{entry.id.replace('/', '-')}.png",
                session.languages,
                session.timeline.frames,
                spans=entry.spans,
                switches=run.switches,
                words=run.words,
            )
    quick = ScoreOptions(n_resamples=0)
    split = score(parts, quick).by_language if parts else {}
    say(
        {
            "model": model.name,
            "within_1_s": _shown(wide),
            "within_0.5_s": _shown(narrow),
            "errors": score(utterances, quick).to_dict() if utterances else None,
            "errors_of_finals": score(finals, quick).to_dict()
            if finals and given["finals"] == "read"
            else None,
            "errors_by_spoken_language": {code: counts.to_dict() for code, counts in split.items()},
        }
    )


def _shown(scores: SwitchScores) -> dict[str, object]:
    return {
        "true": scores.n_true,
        "found": scores.n_found,
        "precision": round(scores.precision, 3),
        "recall": round(scores.recall, 3),
        "f1": round(scores.f1, 3),
        "median_delay_s": scores.median_delay_s,
        "false_per_hour": round(scores.false_switches_per_hour, 1),
        "flaps": scores.n_flaps,
    }


@measure("Live", "Thresholds")
def latency(manifest: str, frame_thresholds: Sequence[float], **given: object) -> None:
    """Measure errors and latency of live sessions.

    For each frame threshold; the language is given.
    """
    from sottovoce.audio.io import load_audio
    from sottovoce.evaluation.scores import run_live

    model, entries, languages = set_up(manifest, given, spoken=True, single=True)
    whole = [offline(model, entry, languages) for entry in entries]
    stream = stream_options(given)
    rows = []
    for threshold in frame_thresholds:
        runs = []
        for entry in entries:
            chosen = replace(stream, frame_threshold=threshold)
            session = model.session(
                entry.language or "en", switching="off", stream=chosen, **second_pass(given)
            )
            runs.append(run_live(session, load_audio(str(entry.path)), chunk_s=stream.chunk_s))
        row = {"frame_threshold": threshold, **latencies(entries, whole, runs)}
        if given["finals"] == "read":
            row["finals"] = _rates_of(entries, [run.final_text for run in runs])
        rows.append(row)
    say(
        {
            "model": model.name,
            "n_recordings": len(entries),
            "chunk_ms": given["chunk_ms"],
            "offline": _rates_of(entries, [text for text, _ in whole]),
            "live": rows,
        }
    )


def latencies(
    entries: Sequence[ManifestEntry], whole: Sequence[tuple[str, list[Word]]], runs: Sequence[LiveRun]
) -> dict[str, object]:
    """Compute error rates, lags and word latencies.

    Word latency: emission minus the word's end in the offline alignment, for words in both.
    """
    from sottovoce.evaluation.scores import laal, stream_laal, word_latencies

    names, suffixes = ("laal", "stream_laal", "word_latency"), ("_s", "_aware_s")
    values: dict[str, list[float]] = {name + suffix: [] for name in names for suffix in suffixes}
    for entry, (_, words), run in zip(entries, whole, runs, strict=True):
        n_reference = len(_units(entry.text, entry.language))
        ours = [_plain(word.word, entry.language) for word in run.words]
        theirs, ends = [_plain(word.word, entry.language) for word in words], [word.end for word in words]
        for suffix, times_s in zip(suffixes, (run.delays_s, run.elapsed_s), strict=True):
            values["laal" + suffix].append(laal(times_s, run.duration_s, n_reference))
            values["stream_laal" + suffix].append(stream_laal(ours, times_s, _segments(entry)))
            values["word_latency" + suffix] += word_latencies(ours, times_s, theirs, ends)
    audio_s = sum(run.duration_s for run in runs)
    return {
        **_rates_of(entries, [run.text for run in runs]),
        **{name: _mean(numbers) for name, numbers in values.items()},
        "n_words_timed": len(values["word_latency_s"]),
        "real_time_factor": round(sum(run.compute_s for run in runs) / audio_s, 3),
    }


def _segments(entry: ManifestEntry) -> list[ReferenceSegment]:
    from sottovoce.evaluation.scores import ReferenceSegment

    code = entry.language
    return [
        ReferenceSegment(
            tuple(_plain(unit, code) for unit in _units(span.text, code)), span.start_s, span.end_s
        )
        for span in entry.spans
        if span.text
    ]


def _rates_of(entries: Sequence[ManifestEntry], texts: Sequence[str]) -> dict[str, float | None]:
    from sottovoce.evaluation.scores import ScoreOptions, score

    utterances = [scored(entry, text) for entry, text in zip(entries, texts, strict=True)]
    overall = score(utterances, ScoreOptions(n_resamples=0)).overall
    return {"wer": overall.wer.rate, "mer": overall.mer.rate}


def _units(text: str, language: str | None) -> list[str]:
    return [*"".join(text.split())] if language in UNSPACED else text.split()


def _plain(word: str, language: str | None) -> str:
    from sottovoce.text.normalize import normalizer_for

    return normalizer_for(language)(word).strip()


def _mean(values: Sequence[float]) -> float | None:
    numbers = [value for value in values if not math.isnan(value)]
    return round(statistics.fmean(numbers), 3) if numbers else None
