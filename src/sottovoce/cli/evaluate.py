"""`sottovoce eval`: errors, language, switches and latency over a manifest, as one JSON document."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.cli.flags import Finite, numbers
from sottovoce.cli.options import MODEL, open_model, with_options
from sottovoce.errors import ManifestError
from sottovoce.evaluation.language_scores import NO_SCORES, LanguageScores, SwitchScores, score_switches
from sottovoce.evaluation.latency import (
    LiveRun,
    ReferenceSegment,
    laal,
    run_live,
    stream_laal,
    word_latencies,
)
from sottovoce.evaluation.manifest import ManifestEntry, read_manifest
from sottovoce.evaluation.wer import ScoredUtterance, ScoreOptions, by_span, score
from sottovoce.formats.output import writable_folder
from sottovoce.language.probe import LanguageProbe
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.pictures.language_plot import plot_timeline, require_plots
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.text.languages import UNSPACED, LanguageChoice
from sottovoce.text.normalize import normalizer_for
from sottovoce.types import Samples, Word

SET = [
    click.option("--limit", type=click.IntRange(1), help="Only so many recordings, spread over the list."),
    click.option(
        "--languages",
        default="auto",
        show_default=True,
        metavar="auto|CODE[,CODE…]",
        help="Languages to choose among, and of recordings that are read.",
    ),
]
LIVE = [
    click.option(
        "--chunk-ms",
        type=click.IntRange(10),
        default=500,
        show_default=True,
        help="New audio of an update.",
    ),
    click.option(
        "--audio-max-len",
        type=Finite(1, 30),
        default=30.0,
        show_default=True,
        help="Seconds of audio that are read at once.",
    ),
]


@click.group("eval")
def evaluate() -> None:
    """Measure a model over a manifest (JSON lines: file, language, text, segments)."""


def set_up(given: dict[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """Load the model, and read the languages to choose among."""
    model = open_model(given)
    choice = LanguageChoice.parse(given["languages"], model.languages)
    return model, (choice.fixed,) if choice.fixed else choice.allowed or model.languages


def chosen(
    manifest: str, limit: int | None, languages: Sequence[str], *, spoken: bool = False, single: bool = False
) -> list[ManifestEntry]:
    """Choose recordings in these languages alone, spread evenly over the list.

    spoken: those that have a text. single: those in one language. Raises: ManifestError.
    """
    entries = [
        entry
        for entry in read_manifest(manifest)
        if entry.languages and set(entry.languages) <= set(languages) and (entry.text or not spoken)
    ]
    if single:
        entries = [entry for entry in entries if entry.language is not None]
    if not entries:
        kind = "recordings of one language each" if single else "recordings"
        raise ManifestError(f"{manifest}: expected {kind} in {', '.join(languages)}, got none")
    step = max(1.0, len(entries) / (limit or len(entries)))
    return [entries[int(i * step)] for i in range(min(limit or len(entries), len(entries)))]


def say(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, ensure_ascii=False, indent=1))


def offline(model: Model, entry: ManifestEntry, languages: Sequence[str]) -> tuple[str, list[Word]]:
    """Decode greedily, offline: the transcript and its words."""
    options = TranscribeOptions(fallback=FallbackOptions(temperatures=(0.0,)))
    language = entry.language or ",".join(languages)
    found = model.transcribe(str(entry.path), language=language, word_timestamps=True, options=options)
    segments = list(found)
    return "".join(s.text for s in segments).strip(), [word for s in segments for word in s.words or ()]


def label(entry: ManifestEntry) -> str | tuple[str, ...] | None:
    return entry.language or entry.languages or None


@evaluate.command()
@click.argument("manifest", type=click.Path(dir_okay=False))
@with_options(MODEL, SET)
def wer(manifest: str, **given: Any) -> None:
    """Word, character and mixed error rate of offline transcripts."""
    model, languages = set_up(given)
    utterances = [
        ScoredUtterance(entry.text, offline(model, entry, languages)[0], label(entry))
        for entry in chosen(manifest, given["limit"], languages, spoken=True)
    ]
    say({"model": model.name, **score(utterances).to_dict()})


@evaluate.command()
@click.argument("manifest", type=click.Path(dir_okay=False))
@with_options(MODEL, SET)
@click.option(
    "--widths", default="0.5,1,1.5,2,3,5", show_default=True, help="Seconds of the probe's windows."
)
@click.option(
    "--noise",
    type=click.Path(exists=True, dir_okay=False),
    multiple=True,
    help="Recording that is mixed in. May be repeated.",
)
@click.option(
    "--snr-db", type=Finite(), default=10.0, show_default=True, help="Loudness of speech over noise."
)
def language(manifest: str, **given: Any) -> None:
    """Language accuracy of the probe for each window width, over single-language recordings."""
    model, languages = set_up(given)
    entries = chosen(manifest, given["limit"], languages, single=True)
    widths = numbers("--widths", given["widths"])
    noises = [load_audio(path) for path in given["noise"]]
    probe = LanguageProbe(model.backend, model.tokenizer, languages)
    scores = {width: LanguageScores() for width in widths}
    for i, entry in enumerate(entries):
        audio = load_audio(str(entry.path), duration_s=30.0)
        if noises:
            audio = mixed_with(audio, noises[i % len(noises)], given["snr_db"])
        for width, detected in probed(model, probe, audio, widths):
            scores[width].add(entry.language or "", detected)
    rows = [
        {
            "width_s": w,
            "n": s.n,
            "accuracy": s.accuracy,
            "interval": s.interval(),
            "by_language": s.by_language,
        }
        for w, s in scores.items()
    ]
    say(
        {
            "model": model.name,
            "n_recordings": len(entries),
            "snr_db": given["snr_db"] if noises else None,
            "widths": rows,
        }
    )


def probed(
    model: Model, probe: LanguageProbe, audio: Samples, widths: Sequence[float]
) -> list[tuple[float, str]]:
    """(width, language said) of windows that tile the recording; widths longer than it are left out."""
    mel = log_mel(audio, model.backend.dims.n_mels, model.backend.device)
    n_frames = mel.shape[1] // 2
    encoded = model.backend.encode(window_features([mel], 2 * (n_frames + n_frames % 2)))
    spans = []
    for width in widths:
        n = round(50 * width)
        spans += [(width, (start, start + n)) for start in range(0, n_frames - n + 1, n)]
    found = probe.detect_spans(encoded, [span for _, span in spans])
    return [
        (width, probe.languages[int(one.probabilities.argmax())])
        for (width, _), one in zip(spans, found, strict=True)
    ]


def mixed_with(audio: Samples, noise: Samples, snr_db: float) -> Samples:
    """Speech with noise (repeated if short) at a signal-to-noise ratio over the whole recording."""
    repeated = np.resize(noise, len(audio))
    power = float(np.mean(repeated**2)) or 1.0
    gain = math.sqrt(float(np.mean(audio**2)) / power / 10 ** (snr_db / 10))
    return (audio + gain * repeated).astype(np.float32)


@evaluate.command()
@click.argument("manifest", type=click.Path(dir_okay=False))
@with_options(MODEL, SET, LIVE)
@click.option(
    "--switching",
    "mode",
    type=click.Choice(["restart", "parallel"]),
    default="restart",
    show_default=True,
    help="How changes are followed.",
)
@click.option("--plots", type=click.Path(file_okay=False), help="Folder for pictures of the timelines.")
def switching(manifest: str, **given: Any) -> None:
    """Change points, delays, false switches and mixed error rate of live sessions."""
    if given["plots"]:
        require_plots()
        writable_folder(Path(given["plots"]))
    model, languages = set_up(given)
    wide = narrow = NO_SCORES
    utterances, parts = [], []
    for entry in chosen(manifest, given["limit"], languages):
        audio = load_audio(str(entry.path))
        session = model.session(languages, switching=given["mode"], stream=stream_options(given))
        run = run_live(session, audio, chunk_s=given["chunk_ms"] / 1000)
        spans = [(span.start_s, span.end_s, span.language) for span in entry.spans]
        wide += score_switches(run.switches, spans, duration_s=run.duration_s)
        narrow += score_switches(run.switches, spans, duration_s=run.duration_s, tolerance_s=0.5)
        if entry.text:
            utterances.append(ScoredUtterance(entry.text, run.text, label(entry)))
            parts += by_span(entry.spans, run.text)
        if given["plots"]:
            draw(Path(given["plots"]), entry, session, run)
    rates = score(utterances, ScoreOptions(n_resamples=0)).to_dict() if utterances else None
    split = score(parts, ScoreOptions(n_resamples=0)).by_language if parts else {}
    say(
        {
            "model": model.name,
            "mode": given["mode"],
            "within_1_s": shown(wide),
            "within_0.5_s": shown(narrow),
            "errors": rates,
            "errors_by_spoken_language": {code: found.to_dict() for code, found in split.items()},
        }
    )


def shown(scores: SwitchScores) -> dict[str, Any]:
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


def draw(folder: Path, entry: ManifestEntry, session: Session, run: LiveRun) -> None:
    plot_timeline(
        folder / f"{entry.id.replace('/', '-')}.png",
        session.languages,
        session.timeline.frames,
        spans=entry.spans,
        switches=run.switches,
        words=run.words,
    )


@evaluate.command()
@click.argument("manifest", type=click.Path(dir_okay=False))
@with_options(MODEL, SET, LIVE)
@click.option(
    "--frame-thresholds",
    default="10,25,50,100",
    show_default=True,
    help="How near to the end attention may come, in 20 ms frames.",
)
def latency(manifest: str, **given: Any) -> None:
    """Errors against latency for each frame threshold, beside the offline transcript; language given."""
    model, languages = set_up(given)
    entries = chosen(manifest, given["limit"], languages, spoken=True, single=True)
    whole = [offline(model, entry, languages) for entry in entries]
    offline_rates = rates_of(entries, [text for text, _ in whole])
    rows = []
    for threshold in numbers("--frame-thresholds", given["frame_thresholds"]):
        runs = []
        for entry in entries:
            stream = stream_options(given, frame_threshold=threshold)
            session = model.session(entry.language or "en", switching="off", stream=stream)
            runs.append(run_live(session, load_audio(str(entry.path)), chunk_s=given["chunk_ms"] / 1000))
        rows.append({"frame_threshold": threshold, **latencies(entries, whole, runs)})
    say(
        {
            "model": model.name,
            "n_recordings": len(entries),
            "chunk_ms": given["chunk_ms"],
            "offline": offline_rates,
            "live": rows,
        }
    )


def latencies(
    entries: Sequence[ManifestEntry], whole: Sequence[tuple[str, list[Word]]], runs: Sequence[LiveRun]
) -> dict[str, Any]:
    """Error rates, lags and word latencies.

    StreamLAAL: sentence by sentence, where they are known. Word latency: emission minus the word's end in the
    offline alignment, for words in both.
    """
    lags, aware, streamed, latencies_s, aware_s = [], [], [], [], []
    for entry, (_, words), run in zip(entries, whole, runs, strict=True):
        n_reference = len(_units(entry.text, entry.language))
        lags.append(laal(run.delays_s, run.duration_s, n_reference))
        aware.append(laal(run.elapsed_s, run.duration_s, n_reference))
        ours = [_plain(word.word, entry.language) for word in run.words]
        streamed.append(stream_laal(ours, run.delays_s, _segments(entry)))
        theirs, ends = [_plain(word.word, entry.language) for word in words], [word.end for word in words]
        latencies_s += word_latencies(ours, run.delays_s, theirs, ends)
        aware_s += word_latencies(ours, run.elapsed_s, theirs, ends)
    audio_s = sum(run.duration_s for run in runs)
    return {
        **rates_of(entries, [run.text for run in runs]),
        "laal_s": _mean(lags),
        "laal_aware_s": _mean(aware),
        "stream_laal_s": _mean(streamed),
        "word_latency_s": _mean(latencies_s),
        "word_latency_aware_s": _mean(aware_s),
        "n_words_timed": len(latencies_s),
        "real_time_factor": round(sum(run.compute_s for run in runs) / audio_s, 3),
    }


def _segments(entry: ManifestEntry) -> list[ReferenceSegment]:
    """The sentences of a recording, where they are known."""
    code = entry.language
    return [
        ReferenceSegment(
            tuple(_plain(unit, code) for unit in _units(span.text, code)), span.start_s, span.end_s
        )
        for span in entry.spans
        if span.text
    ]


def stream_options(given: dict[str, Any], frame_threshold: float = 25) -> StreamOptions:
    return StreamOptions(
        chunk_s=given["chunk_ms"] / 1000,
        frame_threshold=frame_threshold,
        audio_max_len_s=given["audio_max_len"],
    )


def rates_of(entries: Sequence[ManifestEntry], texts: Sequence[str]) -> dict[str, float | None]:
    utterances = [ScoredUtterance(e.text, text, e.language) for e, text in zip(entries, texts, strict=True)]
    overall = score(utterances, ScoreOptions(n_resamples=0)).overall
    return {"wer": overall.wer.rate, "mer": overall.mer.rate}


def _units(text: str, language: str | None) -> list[str]:
    """What has a time of its own: words, and characters where no spaces are written between them."""
    return [*"".join(text.split())] if language in UNSPACED else text.split()


def _plain(word: str, language: str | None) -> str:
    return normalizer_for(language)(word).strip()


def _mean(values: Sequence[float]) -> float | None:
    numbers = [value for value in values if not math.isnan(value)]
    return round(statistics.fmean(numbers), 3) if numbers else None
