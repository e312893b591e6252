"""The measurements of `sottovoce eval`: errors, languages, switches, latency."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
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
from sottovoce.language.probe import LanguageProbe
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.live import Switching
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.pictures import plot_timeline
from sottovoce.streaming.options import StreamOptions
from sottovoce.text.languages import UNSPACED
from sottovoce.text.normalize import normalizer_for
from sottovoce.types import Samples, Word


def chosen_entries(
    manifest: str, limit: int | None, languages: Sequence[str], *, spoken: bool = False, single: bool = False
) -> list[ManifestEntry]:
    """Choose recordings in these languages. spoken: only with a text. single: only in one language."""
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


def error_rates(
    model: Model, entries: Sequence[ManifestEntry], languages: Sequence[str]
) -> dict[str, object]:
    utterances = [ScoredUtterance(e.text, offline(model, e, languages)[0], _label(e)) for e in entries]
    return score(utterances).to_dict()


def offline(model: Model, entry: ManifestEntry, languages: Sequence[str]) -> tuple[str, list[Word]]:
    options = TranscribeOptions(fallback=FallbackOptions(temperatures=(0.0,)))
    language = entry.language or ",".join(languages)
    found = model.transcribe(str(entry.path), language=language, word_timestamps=True, options=options)
    segments = list(found)
    return "".join(s.text for s in segments).strip(), [word for s in segments for word in s.words or ()]


def _label(entry: ManifestEntry) -> str | tuple[str, ...] | None:
    return entry.language or entry.languages or None


def language_accuracy(
    model: Model,
    entries: Sequence[ManifestEntry],
    languages: Sequence[str],
    *,
    widths: Sequence[float],
    noises: Sequence[Samples],
    snr_db: float,
) -> list[dict[str, object]]:
    probe = LanguageProbe(model.backend, model.tokenizer, languages)
    scores = {width: LanguageScores() for width in widths}
    for i, entry in enumerate(entries):
        audio = load_audio(str(entry.path), duration_s=30.0)
        if noises:
            audio = mixed_with(audio, noises[i % len(noises)], snr_db)
        for width, detected in probed(model, probe, audio, widths):
            scores[width].add(entry.language or "", detected)
    return [
        {
            "width_s": width,
            "n": one.n,
            "accuracy": one.accuracy,
            "interval": one.interval(),
            "by_language": one.by_language,
        }
        for width, one in scores.items()
    ]


def probed(
    model: Model, probe: LanguageProbe, audio: Samples, widths: Sequence[float]
) -> list[tuple[float, str]]:
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
    """Mix speech with noise (repeated if short) at a signal-to-noise ratio."""
    repeated = np.resize(noise, len(audio))
    power = float(np.mean(repeated**2)) or 1.0
    gain = math.sqrt(float(np.mean(audio**2)) / power / 10 ** (snr_db / 10))
    return (audio + gain * repeated).astype(np.float32)


def switch_scores(
    model: Model,
    entries: Sequence[ManifestEntry],
    languages: Sequence[str],
    stream: StreamOptions,
    switching: Switching,
    plots: str | None,
) -> dict[str, object]:
    wide = narrow = NO_SCORES
    utterances, parts = [], []
    for entry in entries:
        audio = load_audio(str(entry.path))
        session = model.session(languages, switching=switching, stream=stream)
        run = run_live(session, audio, chunk_s=stream.chunk_s)
        spans = [(span.start_s, span.end_s, span.language) for span in entry.spans]
        wide += score_switches(run.switches, spans, duration_s=run.duration_s)
        narrow += score_switches(run.switches, spans, duration_s=run.duration_s, tolerance_s=0.5)
        if entry.text:
            utterances.append(ScoredUtterance(entry.text, run.text, _label(entry)))
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
    rates = score(utterances, ScoreOptions(n_resamples=0)).to_dict() if utterances else None
    split = score(parts, ScoreOptions(n_resamples=0)).by_language if parts else {}
    return {
        "within_1_s": _shown(wide),
        "within_0.5_s": _shown(narrow),
        "errors": rates,
        "errors_by_spoken_language": {code: found.to_dict() for code, found in split.items()},
    }


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


def latency_by_threshold(
    model: Model,
    entries: Sequence[ManifestEntry],
    languages: Sequence[str],
    thresholds: Sequence[float],
    stream: StreamOptions,
) -> dict[str, object]:
    whole = [offline(model, entry, languages) for entry in entries]
    offline_rates = _rates_of(entries, [text for text, _ in whole])
    rows = []
    for threshold in thresholds:
        runs = []
        for entry in entries:
            chosen = replace(stream, frame_threshold=threshold)
            session = model.session(entry.language or "en", switching="off", stream=chosen)
            runs.append(run_live(session, load_audio(str(entry.path)), chunk_s=stream.chunk_s))
        rows.append({"frame_threshold": threshold, **latencies(entries, whole, runs)})
    return {"offline": offline_rates, "live": rows}


def latencies(
    entries: Sequence[ManifestEntry], whole: Sequence[tuple[str, list[Word]]], runs: Sequence[LiveRun]
) -> dict[str, object]:
    """Compute error rates, lags and word latencies.

    Word latency: emission minus the word's end in the offline alignment, for words in both.
    """
    lags, aware, streamed, streamed_aware, latencies_s, aware_s = [], [], [], [], [], []
    for entry, (_, words), run in zip(entries, whole, runs, strict=True):
        n_reference = len(_units(entry.text, entry.language))
        lags.append(laal(run.delays_s, run.duration_s, n_reference))
        aware.append(laal(run.elapsed_s, run.duration_s, n_reference))
        ours = [_plain(word.word, entry.language) for word in run.words]
        streamed.append(stream_laal(ours, run.delays_s, _segments(entry)))
        streamed_aware.append(stream_laal(ours, run.elapsed_s, _segments(entry)))
        theirs, ends = [_plain(word.word, entry.language) for word in words], [word.end for word in words]
        latencies_s += word_latencies(ours, run.delays_s, theirs, ends)
        aware_s += word_latencies(ours, run.elapsed_s, theirs, ends)
    audio_s = sum(run.duration_s for run in runs)
    return {
        **_rates_of(entries, [run.text for run in runs]),
        "laal_s": _mean(lags),
        "laal_aware_s": _mean(aware),
        "stream_laal_s": _mean(streamed),
        "stream_laal_aware_s": _mean(streamed_aware),
        "word_latency_s": _mean(latencies_s),
        "word_latency_aware_s": _mean(aware_s),
        "n_words_timed": len(latencies_s),
        "real_time_factor": round(sum(run.compute_s for run in runs) / audio_s, 3),
    }


def _segments(entry: ManifestEntry) -> list[ReferenceSegment]:
    code = entry.language
    return [
        ReferenceSegment(
            tuple(_plain(unit, code) for unit in _units(span.text, code)), span.start_s, span.end_s
        )
        for span in entry.spans
        if span.text
    ]


def stream_options(chunk_ms: int, audio_max_len_s: float) -> StreamOptions:
    return StreamOptions(chunk_s=chunk_ms / 1000, audio_max_len_s=audio_max_len_s)


def _rates_of(entries: Sequence[ManifestEntry], texts: Sequence[str]) -> dict[str, float | None]:
    utterances = [ScoredUtterance(e.text, text, e.language) for e, text in zip(entries, texts, strict=True)]
    overall = score(utterances, ScoreOptions(n_resamples=0)).overall
    return {"wer": overall.wer.rate, "mer": overall.mer.rate}


def _units(text: str, language: str | None) -> list[str]:
    return [*"".join(text.split())] if language in UNSPACED else text.split()


def _plain(word: str, language: str | None) -> str:
    return normalizer_for(language)(word).strip()


def _mean(values: Sequence[float]) -> float | None:
    numbers = [value for value in values if not math.isnan(value)]
    return round(statistics.fmean(numbers), 3) if numbers else None
