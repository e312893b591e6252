"""Fit the model of which language is spoken when, and write its numbers (`sottovoce/language/fitted.json`).

    python -m benchmarks language fit ../shared/data collect --log evidence.jsonl   # goes on; an hour
    python -m benchmarks language fit ../shared/data fit --log evidence.jsonl [--write]
    python -m benchmarks language fit ../shared/data collect --part test --log held-out.jsonl
    python -m benchmarks language fit ../shared/data show --log held-out.jsonl

`collect` probes stretches of every clip, and the pieces of speech of recordings in several languages
(`mixed_recordings`) and in one (`one_language`): in their window of 30 s, and encoded separately. Doubtful
pieces are decoded in a few languages too. The stretches that a live session probes are kept as well.

`fit` counts what is detected where a language is spoken. It maximises the likelihood of the languages of the
pieces and of the live stretches over weight_a_second, ceiling, change and unspoken_s (everything heard, with
the recording's languages and with all of the model), over masked (masked probes alone) and over text.
several and understood separate recordings in one language from those in several with the fewest errors, then
the largest margin. It prints the curvature: the factor by which each number changes until the log-likelihood
falls by 2. `show` reports seconds in a wrong language, what asking costs for several values of `chain.ASK`,
and the calibration of pieces and of stretches of clips.
Needs `make test-all`'s environment and base.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from benchmarks.harness.clips import NOISE, VOXLINGUA, Clip, clips
from benchmarks.harness.report import Log, add_part, benchmark_parser, show_json, show_table
from benchmarks.language.mixed_recordings import mixed_recordings
from benchmarks.language.one_language import items
from sottovoce.api import as_whisper, load_model
from sottovoce.audio.io import Recording, load_audio
from sottovoce.audio.mel import RecordingFeatures
from sottovoce.audio.vad import SpeechFinder, speech_segments
from sottovoce.evaluation.scores import run_live
from sottovoce.language import chain
from sottovoce.language.chain import Array, Emission, Fit, LanguageTimeline, Numbers
from sottovoce.language.probe import LanguageProbe, ProbedLanguage
from sottovoce.offline.languages import TextLikelihood
from sottovoce.offline.pipeline import transcriber_for
from sottovoce.offline.windows import PIECE_VAD, SpeechSpan, speech_pieces
from sottovoce.options.decoding import VadOptions
from sottovoce.options.transcribe import LANGUAGE_PRIOR, TranscribeOptions
from sottovoce.runtime.calls import DirectRuntime, EncodeCall, LanguageProbeCall, SpanProbeCall
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.types import SAMPLE_RATE, Samples

STRETCHES_S = (1.0, 1.5, 2.0, 3.0, 4.5, 6.0)
COUNTED_S = (1.5, 6.0)
"""Stretches that are counted for the confusion matrix."""
WINDOW = 3000
DOUBTFUL = 0.95
"""Pieces whose likeliest language has less are decoded."""
SETS = (("text", "clean", 20), ("text", "noise", 20), ("all", "clean", 20))
DISTRACTORS = ("en", "de", "es", "pl")
"""The list of a recording in one language is its own and these."""
LEAST_COUNT = 0.02
LIVE_SHARE = 0.05
"""Weight of a live stretch against a piece: neighbouring stretches share up to 5 s, and their errors."""


class Prober:
    """Whisper base and what it detects; probabilities are rounded to 1e-5."""

    def __init__(self) -> None:
        self._model = as_whisper(load_model("base", device="cpu"), "fit")
        self._runtime = DirectRuntime(self._model.backend)
        self.codes = list(self._model.tokenizer.language_codes)
        self._probe = LanguageProbe(self._model.backend, self._model.tokenizer, self.codes)

    def clip(self, clip: Clip) -> list[dict[str, Any]]:
        """Probe two stretches of each length at random places of the speech."""
        samples = load_audio(clip.file)
        result = speech_segments(samples, VadOptions(min_silence_ms=160.0, speech_pad_ms=50.0))
        if not result:
            return []
        rng, rows = random.Random(clip.name), []
        features = RecordingFeatures(Recording(samples, sample_rate=SAMPLE_RATE))
        first, last = result[0].start_sample // 160, result[-1].end_sample // 160
        features.has(last)
        for seconds in STRETCHES_S:
            length = round(100 * seconds)
            for _ in range(2 if last - first > length else 0):
                at = rng.randrange(first, last - length)
                rows.append({"seconds": seconds, "own": self._alone(features, SpeechSpan(at, at + length))})
        return rows

    def recording(self, samples: Samples, parts: Sequence[tuple[float, float, str]]) -> list[dict[str, Any]]:
        """Probe the pieces of windows of 30 s."""
        finder = SpeechFinder(PIECE_VAD)
        options = TranscribeOptions()
        transcriber = transcriber_for(self._runtime, self._model.tokenizer, options, None)
        recording = Recording(samples, sample_rate=SAMPLE_RATE)
        rows: list[dict[str, Any]] = []
        with RecordingFeatures(recording, observer=finder) as features:
            texts = TextLikelihood(transcriber, features)
            for start in range(0, round(100 * len(samples) / SAMPLE_RATE) - 10, WINDOW):
                features.has(start + WINDOW + 200)
                end = min(start + WINDOW, features.n_frames or start + WINDOW)
                pieces = speech_pieces(features, finder, start, end)
                if not pieces:
                    continue
                encoded = self._runtime.run(EncodeCall(features.window(start, end, n_frames=WINDOW)))
                inside = [
                    ((item.start - start) // 2, max((item.start - start) // 2 + 1, (item.end - start) // 2))
                    for item in pieces
                ]
                masked = self._runtime.run(SpanProbeCall(self._probe, encoded, inside))
                for piece, other in zip(pieces, masked, strict=True):
                    kept = self._alone(features, piece) if piece.n_frames > 10 else _row(other)
                    likely = np.argsort(-np.array(kept["p"]))[:3]
                    codes = dict.fromkeys([*(code for *_, code in parts), *(self.codes[i] for i in likely)])
                    is_asked = piece.duration_s >= chain.SHORTEST_TEXT_S and max(kept["p"]) < DOUBTFUL
                    nats = (
                        texts.log_likelihood_ratios(SpeechSpan(piece.start - 10, piece.end + 10), list(codes))
                        if is_asked and len(parts) > 1 and piece.start > 10
                        else {}
                    )
                    rows.append(
                        {
                            "start": piece.start,
                            "end": piece.end,
                            "window": start,
                            "own": kept,
                            "masked": _row(other),
                            "text": nats,
                            "spoken": _spoken(piece, parts),
                        }
                    )
        return rows

    def live(self, samples: Samples, parts: Sequence[tuple[float, float, str]]) -> list[dict[str, Any]]:
        """Return what a live session probes, by utterance; its words are held back."""
        rows: list[dict[str, Any]] = []
        held = StreamOptions(frame_threshold=math.inf, stall_timeout_s=math.inf)
        codes = dict.fromkeys(code for *_, code in parts)
        session = self._model.session([*codes, *(DISTRACTORS if len(codes) == 1 else ())], stream=held)
        assert isinstance(session, Session)
        begin, add = session.timeline.begin, session.timeline.add

        def begun(start_s: float) -> None:
            rows.append({"start": start_s, "stretches": []})
            begin(start_s)

        def added(start_s: float, end_s: float, probed: ProbedLanguage) -> None:
            newest = SpeechSpan(round(100 * end_s) - 50, round(100 * end_s))
            stretch = {"start": start_s, "end": end_s, "own": _row(probed), "spoken": _spoken(newest, parts)}
            rows[-1]["stretches"].append(stretch)
            add(start_s, end_s, probed)

        session.timeline.begin, session.timeline.add = begun, added  # type: ignore[method-assign]
        run_live(session, samples, chunk_s=session._options.stream.chunk_s)
        return rows

    def _alone(self, features: RecordingFeatures, piece: SpeechSpan) -> dict[str, Any]:
        log_mel = features.log_mel(piece.start, piece.end)
        (probed,) = self._runtime.run(LanguageProbeCall(self._probe, [log_mel]))
        return _row(probed)


def _row(probed: ProbedLanguage) -> dict[str, Any]:
    return {"p": [round(float(item), 6) for item in probed.probabilities], "no_speech": probed.no_speech}


def _probed(row: Mapping[str, Any]) -> ProbedLanguage:
    return ProbedLanguage(np.array(row["p"]), 1.0, row["no_speech"])


def _spoken(piece: SpeechSpan, parts: Sequence[tuple[float, float, str]]) -> str | None:
    """Return the language of three quarters of a piece, or None."""
    shares: dict[str, float] = {}
    for start_s, end_s, code in parts:
        shared = min(piece.end, 100 * end_s) - max(piece.start, 100 * start_s)
        shares[code] = shares.get(code, 0.0) + max(0.0, shared)
    best = max(shares, key=lambda code: shares[code])
    return best if shares[best] > 0.75 * sum(shares.values()) > 0.0 else None


def collect(data: Path, part: Any, log: Log) -> None:
    prober = Prober()
    log.add("codes", "", {"codes": prober.codes})
    for clip in clips(data, part):
        if not clip.languages[1:] and clip.group != NOISE and log.get("clip", clip.name) is None:
            log.add("clip", clip.name, {"language": clip.language, "rows": prober.clip(clip)})
    for item in items(data, part, 40, 24):
        if len(item.files) > 1 and log.get("one", item.name) is None:
            samples = item.audio()
            parts = [(0.0, len(samples) / SAMPLE_RATE, item.language)]
            log.add("one", item.name, prober.recording(samples, parts))
            log.add("live-one", item.name, prober.live(samples, parts))
    for kind, condition, n in SETS:
        for each in mixed_recordings(data, part, n, with_text=kind == "text", condition=condition):
            if log.get(f"{kind}-{condition}", each.name) is None:
                samples = each.audio()
                log.add(f"{kind}-{condition}", each.name, prober.recording(samples, each.spans))
                log.add(f"live-{kind}-{condition}", each.name, prober.live(samples, each.spans))
                print(each.name, flush=True)


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """The pieces of a recording. spoken: an index of all languages each, or -1. languages: those spoken."""

    name: str
    seconds: Array
    own: list[ProbedLanguage]
    masked: list[ProbedLanguage]
    text: list[dict[str, float]]
    window: list[int]
    spoken: list[int]
    languages: tuple[str, ...]


def evidence(log: Log, kind: str, codes: Sequence[str]) -> list[Evidence]:
    result = []
    for (key, name), rows in log.found.items():
        if key == kind and rows:
            seconds = np.array([(row["end"] - row["start"]) / 100 for row in rows])
            spoken = [codes.index(row["spoken"]) if row["spoken"] in codes else -1 for row in rows]
            languages = dict.fromkeys(row["spoken"] for row in rows if row["spoken"])
            if kind == "one":
                languages |= dict.fromkeys(DISTRACTORS)
            kept, masked = ([_probed(row[which]) for row in rows] for which in ("own", "masked"))
            texts, windows = [row["text"] for row in rows], [row["window"] for row in rows]
            result.append(Evidence(name, seconds, kept, masked, texts, windows, spoken, tuple(languages)))
    return result


@dataclass(frozen=True, slots=True, eq=False)
class LiveEvidence:
    """The stretches of a live session, by utterance. languages: those spoken."""

    utterances: list[tuple[float, list[tuple[float, float, ProbedLanguage, str | None]]]]
    languages: tuple[str, ...]


def live_evidence(log: Log, kind: str) -> list[LiveEvidence]:
    result = []
    for (key, _), rows in log.found.items():
        if key == f"live-{kind}":
            utterances = [
                (
                    row["start"],
                    [
                        (item["start"], item["end"], _probed(item["own"]), item["spoken"])
                        for item in row["stretches"]
                    ],
                )
                for row in rows
            ]
            languages = dict.fromkeys(code for _, some in utterances for *_, code in some if code)
            if kind == "one":
                languages |= dict.fromkeys(DISTRACTORS)
            result.append(LiveEvidence(utterances, tuple(languages)))
    return result


def counts(log: Log, codes: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return clips by language spoken, divided by the mean probability of each one detected."""
    result: dict[str, Array] = {}
    for (kind, _), clip in log.found.items():
        rows = (
            [row["own"]["p"] for row in clip["rows"] if COUNTED_S[0] <= row["seconds"] <= COUNTED_S[1]]
            if kind == "clip"
            else []
        )
        if rows:
            result[clip["language"]] = result.get(clip["language"], np.zeros(len(codes))) + np.mean(
                rows, axis=0
            )
    table = {}
    for code, row in sorted(result.items()):
        places = [place for place in np.argsort(-row) if row[place] >= LEAST_COUNT]
        table[code] = {codes[place]: round(float(row[place]), 2) for place in places}
    return table


class Judge:
    """Scores numbers on recordings; with a list, or with all languages."""

    def __init__(self, codes: Sequence[str], detected: Mapping[str, Mapping[str, float]]) -> None:
        self._codes, self._detected = list(codes), detected
        self._emissions: dict[tuple[str, ...], Emission] = {}

    def allowed(self, item: Evidence | LiveEvidence, *, is_listed: bool) -> tuple[str, ...]:
        return item.languages if is_listed and len(item.languages) > 1 else tuple(self._codes)

    def base(self, allowed: tuple[str, ...]) -> Array:
        return chain.base_prior(self._codes, allowed, LANGUAGE_PRIOR)

    def emission(self, allowed: tuple[str, ...], numbers: Numbers) -> Emission:
        result = self._emissions.setdefault(
            allowed, Emission(self._codes, allowed, Fit(numbers, self._detected))
        )
        result.numbers = numbers
        return result

    def posterior(
        self, item: Evidence, numbers: Numbers, *, is_listed: bool, masked: bool = False, text: bool = False
    ) -> tuple[Array, tuple[str, ...]]:
        """Return the posterior (T, A) of all pieces together, with the evidence of one kind of probe."""
        allowed = self.allowed(item, is_listed=is_listed)
        emission, probes = self.emission(allowed, numbers), item.masked if masked else item.own
        pairs = zip(probes, item.seconds, strict=True)
        nats = np.stack([emission.log_likelihood(probe, s, masked=masked) for probe, s in pairs])
        for index, row in enumerate(item.text if text else ()):
            kept = {code: value for code, value in row.items() if code in allowed}
            if kept:
                added = np.full(len(allowed), min(kept.values()))
                for code, value in kept.items():
                    added[allowed.index(code)] = value
                nats[index] += numbers.text * (added - added.max())
        base, spoken_s = self.base(allowed), np.zeros(len(allowed))
        for _ in range(2):
            prior = chain.prior_after(base, spoken_s, numbers.unspoken_s)
            result, _ = chain.posterior(nats, prior, numbers.change)
            spoken_s = result.T @ item.seconds
        return result, allowed

    def live_nats(self, some: Sequence[LiveEvidence], numbers: Numbers, *, is_listed: bool) -> float:
        """Return the log-likelihood of the languages spoken at the ends of live stretches."""
        total = 0.0
        for item in some:
            allowed = self.allowed(item, is_listed=is_listed)
            emission, base = self.emission(allowed, numbers), self.base(allowed)
            line = LanguageTimeline(allowed, emission, base, certainty=1.0, first_wait_s=math.inf)
            for start_s, stretches in item.utterances:
                line.begin(start_s)
                for first_s, end_s, probed, spoken in stretches:
                    line.add(first_s, end_s, probed)
                    if spoken in allowed:
                        total += max(-8.0, math.log(max(line.belief[spoken], 1e-9)))
        return total

    def nats(self, some: Sequence[Evidence], numbers: Numbers, **kind: bool) -> float:
        """Return the log-likelihood of the languages spoken; one piece costs eight nats at most."""
        total = 0.0
        for item in some:
            result, allowed = self.posterior(item, numbers, **kind)
            for row, place in zip(result, item.spoken, strict=True):
                if place >= 0 and self._codes[place] in allowed:
                    total += max(-8.0, float(np.log(max(row[allowed.index(self._codes[place])], 1e-9))))
        return total


def best(objective: Callable[[Array], float], start: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the positive numbers that maximise an objective, and factors by which each may change until it
    falls by 2.
    """
    first = np.log(np.array(start))
    simplex = np.vstack([first, first + 0.5 * np.eye(len(first))])
    options = {"initial_simplex": simplex, "xatol": 0.02, "fatol": 0.2, "maxiter": 40 * len(first)}
    result = minimize(lambda x: -objective(np.exp(x)), first, method="Nelder-Mead", options=options)
    factors = []
    for index in range(len(first)):
        step = 0.25 * np.eye(len(first))[index]
        falls = [result.fun - -objective(np.exp(result.x + sign * step)) for sign in (1, -1)]
        bend = max(1e-6, -(falls[0] + falls[1]) / 0.25**2)
        factors.append(float(np.exp(min(3.0, np.sqrt(4.0 / bend)))))
    return [float(item) for item in np.exp(result.x)], factors


def several(
    judge: Judge, some: Sequence[Evidence], numbers: Numbers, codes: Sequence[str]
) -> list[tuple[float, float]]:
    """Return the ratio and the understanding of the window of each recording that shows several most."""
    result = []
    for item in some:
        emission = judge.emission(tuple(codes), numbers)
        values = []
        for window in dict.fromkeys(item.window):
            inside = [index for index, kept in enumerate(item.window) if kept == window]
            nats = np.stack([emission.log_likelihood(item.own[i], float(item.seconds[i])) for i in inside])
            prior = np.full(len(codes), -np.log(len(codes)))
            shares, _ = chain.posterior(nats, prior, numbers.change)
            prior = chain.prior_after(np.exp(prior), shares.T @ item.seconds[inside], numbers.unspoken_s)
            path = chain.best_path(nats, prior, numbers.change)
            ratio = float(sum(nats[i, place] for i, place in enumerate(path)) - nats.sum(axis=0).max())
            means = [
                emission.likelihood(item.own[index])[place] for index, place in zip(inside, path, strict=True)
            ]
            values.append((ratio, float(np.average(means, weights=item.seconds[inside]))))
        result.append(max(values, key=lambda pair: min(pair[0] / 8.0, pair[1] / 0.37)))
    return result


def separation(
    apart: Sequence[tuple[float, float]], together: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """Return the limits of ratio and understanding that separate two kinds of recordings best."""

    def quality(limits: tuple[float, float]) -> tuple[int, float]:
        shown = [
            [min(np.log(max(r, 1e-3) / limits[0]), np.log(u / limits[1])) for r, u in some]
            for some in (apart, together)
        ]
        margins = [*shown[0], *(-item for item in shown[1])]
        return sum(margin > 0.0 for margin in margins), float(min(margins))

    ratio, understood = max(product(np.arange(3.0, 15.0, 0.5), np.arange(0.2, 0.6, 0.01)), key=quality)
    n_right, margin = quality((ratio, understood))
    print(f"{n_right} of {len(apart) + len(together)} recordings are told apart, margin {margin:.2f} (log)")
    return {"several": round(float(ratio), 1), "understood": round(float(understood), 2)}


def fit(log: Log, target: Path | None) -> None:
    codes = log.found["codes", ""]["codes"]
    numbers, table = chain.fitted().numbers, counts(log, codes)
    judge = Judge(codes, table)
    mixed = [item for kind, condition, _ in SETS for item in evidence(log, f"{kind}-{condition}", codes)]
    single = evidence(log, "one", codes)
    live = [item for kind, condition, _ in SETS for item in live_evidence(log, f"{kind}-{condition}")]
    live_single = live_evidence(log, "one")

    def heard(x: Array) -> float:
        now = replace(numbers, weight_a_second=x[0], ceiling=x[1], change=x[2], unspoken_s=x[3])

        def of(nats: Callable[..., float], some: Sequence[Any], item: Sequence[Any]) -> float:
            listed = nats(some, now, is_listed=True) + nats(item, now, is_listed=True)
            return listed + nats(some, now, is_listed=False)

        return of(judge.nats, mixed, single) + LIVE_SHARE * of(judge.live_nats, live, live_single)

    (a_second, ceiling, change, unspoken), factors = best(heard, (1.0, 3.0, 1.2, 3.0))
    numbers = replace(numbers, weight_a_second=a_second, ceiling=ceiling, change=change, unspoken_s=unspoken)
    (masked,), more = best(
        lambda x: judge.nats([*mixed, *single], replace(numbers, masked=x[0]), is_listed=True, masked=True),
        (0.8,),
    )
    numbers, factors = replace(numbers, masked=masked), factors + more
    (text,), more = best(
        lambda x: judge.nats(mixed, replace(numbers, text=x[0]), is_listed=True, text=True), (0.1,)
    )
    numbers, factors = replace(numbers, text=text), factors + more
    apart, together = several(judge, mixed, numbers, codes), several(judge, single, numbers, codes)
    least = separation(apart, together)
    names = ("weight_a_second", "ceiling", "change", "unspoken_s", "masked", "text")
    rows = [
        [name, f"{getattr(numbers, name):.3g}", f"{factor:.2f}"]
        for name, factor in zip(names, factors, strict=True)
    ]
    show_table(("number", "fitted", "factor within 2 nats"), rows)
    values = {name: float(f"{getattr(numbers, name):.3g}") for name in Numbers.__dataclass_fields__} | least
    if target is not None:
        target.write_text(
            json.dumps({"numbers": values, "detected": table}, indent=1) + "\n", encoding="utf-8"
        )
    show_json("language fit", {"numbers": values})


def asked(
    item: Evidence, judge: Judge, numbers: Numbers, *, is_listed: bool
) -> Iterator[tuple[float, bool, float, bool]]:
    """Yield the seconds of each piece, whether its language is right and how probable, and whether it was
    heard.
    """
    allowed = judge.allowed(item, is_listed=is_listed)
    before, spoken_s = None, np.zeros(len(allowed))
    for window in dict.fromkeys(item.window):
        inside = [index for index, kept in enumerate(item.window) if kept == window]
        model = chain.Spans(
            judge.emission(allowed, numbers),
            [float(item.seconds[index]) for index in inside],
            [item.masked[index] for index in inside],
            base=judge.base(allowed),
            spoken_s=spoken_s,
            before=before,
        )
        heard = set()
        while (question := model.question()) is not None:
            index = inside[question.span]
            if not question.languages:
                heard.add(index)
                model.hear(question.span, item.own[index])
            else:
                kept = {
                    allowed.index(code): nats for code, nats in item.text[index].items() if code in allowed
                }
                model.read(
                    question.span,
                    {place: nats for place, nats in kept.items() if place in question.languages},
                )
        for run in model.runs():
            for place in range(run.first, run.end):
                spoken, index = item.spoken[inside[place]], inside[place]
                if spoken >= 0:
                    is_right = judge._codes[spoken] == allowed[run.language]
                    yield (
                        float(item.seconds[index]),
                        is_right,
                        float(model.posterior[place, run.language]),
                        index in heard,
                    )
            before = run.language
        spoken_s = spoken_s + model.posterior.T @ item.seconds[inside]


def show(log: Log) -> None:
    codes = log.found["codes", ""]["codes"]
    fit = chain.fitted()
    judge, numbers, rows, all_pieces = Judge(codes, fit.detected), fit.numbers, [], []
    kinds = [*(f"{kind}-{condition}" for kind, condition, _ in SETS), "one"]
    for ask in (0.05, 0.1, 0.2, 0.4):
        chain.ASK = ask
        for kind in kinds:
            for is_listed in (True, False) if kind != "one" else (True,):
                some = evidence(log, kind, codes)
                result = [
                    piece for item in some for piece in asked(item, judge, numbers, is_listed=is_listed)
                ]
                wrong = sum(seconds for seconds, is_right, *_ in result if not is_right)
                share = np.mean([heard for *_, heard in result])
                rows.append(
                    [
                        f"{ask:g}",
                        kind,
                        "list" if is_listed else "all",
                        f"{wrong:.1f}",
                        f"{sum(f[0] for f in result):.0f}",
                        f"{100 * share:.0f} %",
                    ]
                )
                if ask == 0.1:
                    all_pieces += result
    show_table(("ask", "recordings", "languages", "wrong s", "of s", "encoded separately"), rows)
    pieces = [(probability, is_right) for _, is_right, probability, _ in all_pieces]
    errors = {"pieces": calibration(pieces), "clips": calibration(stretches_of_clips(log, codes))}
    for name, (bins, error, n) in errors.items():
        shown = [[f"{sure:.2f}", f"{right:.2f}", str(count)] for sure, right, count in bins]
        show_table((f"mean probability, {name}", "right", "number"), shown)
        show_json("language fit show", {"of": name, "calibration_error": round(error, 4), "number": n})


def stretches_of_clips(log: Log, codes: Sequence[str]) -> list[tuple[float, bool]]:
    """Return the probability of the likeliest of all languages in each stretch of a VoxLingua clip, with a
    uniform prior, and whether it is right.
    """
    emission, result = Emission(codes, codes), []
    for (kind, name), clip in log.found.items():
        for row in clip["rows"] if kind == "clip" and VOXLINGUA in name else ():
            nats = emission.log_likelihood(_probed(row["own"]), row["seconds"])
            best = int(nats.argmax())
            sure = float(np.exp(nats[best] - np.logaddexp.reduce(nats)))
            result.append((sure, codes[best] == clip["language"]))
    return result


def calibration(result: Sequence[tuple[float, bool]]) -> tuple[list[tuple[float, float, int]], float, int]:
    """Return (mean probability, share right, number) in ten bins of probability, and the expected error."""
    sure, right = (np.array(column, dtype=float) for column in zip(*result, strict=True))
    places = np.minimum((10 * sure).astype(int), 9)
    inside = [places == place for place in range(10) if (places == place).any()]
    rows = [(float(sure[item].mean()), float(right[item].mean()), int(item.sum())) for item in inside]
    return rows, sum(abs(a - b) * n for a, b, n in rows) / len(result), len(result)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("action", choices=("collect", "fit", "show"))
    add_part(parser, "dev")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="write fitted.json in the source")
    given = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(given.log)
    if given.action == "collect":
        collect(given.data, given.part, log)
    elif given.action == "fit":
        fit(log, Path(chain.__file__).with_name("fitted.json") if given.write else None)
    else:
        show(log)
