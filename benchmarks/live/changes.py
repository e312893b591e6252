"""Changes of language in live speech: probe and timeline alone, without a decoder, on people's speech.

    python -m benchmarks live changes DATA --log changes.jsonl                     # the reported part
    python -m benchmarks live changes DATA --log changes-dev.jsonl --part dev      # to choose on
    python -m benchmarks live changes DATA --log changes-dev.jsonl --part dev --set switch.margin=0.5

Recordings joined from clips of several languages (pauses of 0.2 to 1 s), those of `codeswitch-concat`, and
long ones of one language (`harness.joined_languages`); with `--conditions` those of `language followed` whose
text is known (`mixed_recordings`). Each goes through the voice activity detector; at
every hop the newest stretch of the utterance is heard by itself and given to the timeline, as a session
does. Scored are change points (F1 within 1 s), their delay from the start of the new language, switches
where there are none, and the time that is put down to the wrong language, with a choice among all
languages, in a list of twelve and in one of those spoken. The log keeps the logits of every stretch that
was heard, so that a run goes on where it ended and other options cost little."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness.arguments import add_part, benchmark_parser
from benchmarks.harness.joined_languages import Joined, recordings
from benchmarks.harness.log import add_row, read_rows
from benchmarks.harness.tables import show_json
from benchmarks.language.conditions import CONDITIONS
from benchmarks.language.mixed_recordings import MixedRecording, mixed_recordings
from sottovoce.api import Model, load_model
from sottovoce.audio.mel import log_mel
from sottovoce.audio.vad import VadStream
from sottovoce.evaluation.language_scores import NO_SCORES, FoundSwitch, SwitchScores, score_switches
from sottovoce.language.follow import sides_of, surest_border
from sottovoce.language.probe import LanguageProbe, ProbedLanguage, ProbeOptions, probed_languages
from sottovoce.language.switching import SmoothingOptions, SwitchOptions
from sottovoce.language.timeline import LanguageChange, LanguageTimeline
from sottovoce.streaming.audio_window import SAMPLES_PER_FRAME, loudness, quiet_frames, quietest_frame
from sottovoce.streaming.language_follower import (
    N_MOMENTS,
    SHORTEST_S,
    SIDE,
    border_reach,
)
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Samples

CODES = Tokenizer.for_model(51865).language_codes
COMMON = (
    *("en", "de", "es", "fr", "it", "pt", "pl", "nl", "ru", "ja", "zh", "sv"),
    *("tr", "ar", "fi", "uk", "fa", "hi", "el", "da", "hu", "ko"),
)
"""What lists are filled with."""
LISTS: dict[str, int | None] = {"own": 0, "12": 12, "all": None}
Edges = tuple[int, int, int, int]
"""Of an utterance, in samples: start, end, and when each was known."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of a recording without its sound."""

    name: str
    kind: str
    spans: tuple[tuple[float, float, str], ...]
    duration_s: float
    utterances: tuple[Edges, ...]
    loudness: npt.NDArray[np.float64]
    """Of each frame of 20 ms; empty in logs of before, whose stretches begin anywhere."""

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(language for _, _, language in self.spans))

    def quietest(self, start: int, end: int) -> int:
        """The quietest sample between two."""
        loud = self.loudness[start // SAMPLES_PER_FRAME : end // SAMPLES_PER_FRAME]
        return start + quietest_frame(loud) * SAMPLES_PER_FRAME

    def quiet(self, near: int, reach: range) -> list[int]:
        """The quietest moments of a part, in samples."""
        first, last = reach.start // SAMPLES_PER_FRAME, reach.stop // SAMPLES_PER_FRAME
        frames = quiet_frames(self.loudness[first:last], near // SAMPLES_PER_FRAME - first, N_MOMENTS)
        return [reach.start + frame * SAMPLES_PER_FRAME for frame in frames]


Source: TypeAlias = Joined | MixedRecording


class Log:
    """Recordings, and the logits of their stretches by name, first sample and end; kept in a file."""

    def __init__(self, path: Path, load: Callable[[], Model], make: Callable[[], Sequence[Source]]) -> None:
        self._path, self._load, self._make = path, load, make
        self.recorded: dict[str, Recorded] = {}
        self._logits: dict[tuple[str, int, int], list[float]] = {}
        self._sounds: dict[str, Samples] = {}
        for row in read_rows(path):
            self._take(row)

    @cached_property
    def joined(self) -> dict[str, Source]:
        return {one.name: one for one in self._make()}

    @cached_property
    def _ears(self) -> LanguageProbe:
        model = self._load()
        return LanguageProbe(model.backend, model.tokenizer, CODES)

    def complete(self) -> None:
        """Take up every recording that is asked for."""
        for one in self.joined.values():
            if one.name not in self.recorded:
                sound = self._sound(one.name)
                edges = utterances(sound)
                row = {
                    "recording": one.name,
                    "kind": one.kind,
                    "spans": one.spans,
                    "duration_s": one.duration_s,
                    "loudness": loudness(log_mel(sound)).round(2).tolist(),
                }
                self._add(row | {"utterances": edges})

    def heard(self, name: str, start: int, end: int, allowed: Sequence[int]) -> ProbedLanguage:
        """What the probe says of a stretch."""
        if (name, start, end) not in self._logits:
            mel = log_mel(self._sound(name)[start:end])
            logits = [round(value, 2) for value in self._ears.logits([mel])[0].tolist()]
            self._add({"stretch": name, "start": start, "end": end, "logits": logits})
        return probed_languages(np.array([self._logits[name, start, end]]), allowed)[0]

    def _sound(self, name: str) -> Samples:
        if name not in self._sounds:
            self._sounds = {name: self.joined[name].audio()}
        return self._sounds[name]

    def _add(self, row: dict[str, Any]) -> None:
        add_row(self._path, row)
        self._take(row)

    def _take(self, row: dict[str, Any]) -> None:
        if "stretch" in row:
            self._logits[row["stretch"], row["start"], row["end"]] = row["logits"]
            return
        spans = tuple((start, end, code) for start, end, code in row["spans"])
        edges = tuple((a, b, c, d) for a, b, c, d in row["utterances"])
        self.recorded[row["recording"]] = Recorded(
            *(row["recording"], row["kind"], spans, row["duration_s"], edges),
            loudness=np.array(row.get("loudness", ())),
        )


def utterances(audio: Samples) -> list[Edges]:
    vad = VadStream()
    edges = [*vad.push(audio), *vad.close()]
    return [
        (start.sample, end.sample, start.detected_sample, end.detected_sample)
        for start, end in zip(edges[::2], edges[1::2], strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Options:
    probe: ProbeOptions
    smoothing: SmoothingOptions
    switch: SwitchOptions


def followed(log: Log, one: Recorded, languages: Sequence[str], options: Options) -> list[LanguageChange]:
    """The changes that a session would tell of."""
    allowed = [CODES.index(code) for code in languages]
    width_s = options.probe.width_s
    line = LanguageTimeline(languages, options.smoothing, options.switch, full_width_s=width_s)
    found: list[LanguageChange | None] = []
    for begin, end, _, known in one.utterances:
        line.begin(begin / SAMPLE_RATE)
        for now in (*updates(begin, known, options.probe.hop_s), known):
            until = min(now, end) if now == known else now
            earliest = round(line.since_s * SAMPLE_RATE)
            start = options.probe.start(earliest, until, opening=line.is_opening)
            if start > earliest:
                start = one.quietest(start, until - round(SHORTEST_S * SAMPLE_RATE))
            if until - start >= options.probe.min_width_s * SAMPLE_RATE:
                probed = log.heard(one.name, start, until, allowed)
                line.add(start / SAMPLE_RATE, until / SAMPLE_RATE, probed)
            change = line.due(now / SAMPLE_RATE, at_end=now == known)
            found.append(placed(log, one, line, change, range(earliest, until)))
        earliest = round(line.since_s * SAMPLE_RATE)
        change = line.resolve(known / SAMPLE_RATE)
        found.append(placed(log, one, line, change, range(earliest, end)))
    return [change for change in found if change is not None]


def placed(
    log: Log, one: Recorded, line: LanguageTimeline, change: LanguageChange | None, speech: range
) -> LanguageChange | None:
    """A change within an utterance where a session puts it. speech: since the last change, in samples."""
    if change is None or change.source is None or round(change.at_s * SAMPLE_RATE) <= speech.start:
        return change
    at = round(change.at_s * SAMPLE_RATE)
    reach = border_reach(at, speech.start, speech.stop)
    moments = one.quiet(at, reach) if reach else []
    if not moments:
        return change
    allowed = [CODES.index(code) for code in line.languages]
    sides = sides_of(moments, speech.start, speech.stop, SIDE)
    probed = [log.heard(one.name, *side, allowed) for side in sides]
    places = line.languages.index(change.source), line.languages.index(change.target)
    return line.place(change, surest_border(moments, probed, *places) / SAMPLE_RATE)


def updates(begin: int, end: int, hop_s: float) -> range:
    hop = round(hop_s * SAMPLE_RATE)
    return range(begin - begin % hop + hop, end, hop)


def list_of(one: Recorded, size: int | None) -> list[str]:
    """The languages of a recording, and others up to a size; None: all that there are."""
    if size is None:
        return list(CODES)
    others = [code for code in COMMON if code not in one.languages]
    random.Random(one.name).shuffle(others)
    return [*one.languages, *others][: max(size, len(one.languages))]


@dataclass(slots=True)
class Tally:
    """Of a kind of recordings. confused_s: speech put down to another language than its own."""

    scores: SwitchScores = NO_SCORES
    n: int = 0
    speech_s: float = 0.0
    confused_s: float = 0.0
    wrong_first: int = 0
    first_s: list[float] | None = None

    def add(self, one: Recorded, changes: Sequence[LanguageChange]) -> None:
        found = [
            FoundSwitch(c.at_s, c.confirmed_s, c.source, c.target) for c in changes if c.source is not None
        ]
        self.scores += score_switches(found, one.spans, duration_s=one.duration_s)
        self.n += 1
        self.wrong_first += not changes or changes[0].target != one.spans[0][2]
        if changes:
            self.first_s = [*(self.first_s or ()), changes[0].confirmed_s - one.spans[0][0]]
        for start, end, language in one.spans:
            at = np.arange(start + 0.05, end, 0.1)
            said = [next((c.target for c in reversed(changes) if c.at_s <= t), "") for t in at]
            self.speech_s += 0.1 * len(at)
            self.confused_s += 0.1 * sum(code != language for code in said)

    def row(self) -> dict[str, Any]:
        one = self.scores
        return {
            "n": self.n,
            "true": one.n_true,
            "found": one.n_found,
            "F1": round(one.f1, 3),
            "precision": round(one.precision, 3),
            "recall": round(one.recall, 3),
            "delay_s": None if one.median_delay_s is None else round(one.median_delay_s, 2),
            "false": one.n_found - one.n_matched,
            "minutes": round(one.duration_s / 60, 1),
            "wrong time %": round(100 * self.confused_s / max(1e-9, self.speech_s), 1),
            "wrong first": self.wrong_first,
            "first_s": round(median(self.first_s), 2) if self.first_s else None,
        }


def scored(
    log: Log, options: Options, kinds: Sequence[str], lists: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """A row for each list and kind; "several" is all recordings of more than one language."""
    for name, size in ((name, LISTS[name]) for name in lists):
        tallies: dict[str, Tally] = {}
        for one in log.recorded.values():
            if one.kind not in kinds:
                continue
            changes = followed(log, one, list_of(one, size), options)
            for kind in (one.kind, *(("several",) if len(one.languages) > 1 else ())):
                tallies.setdefault(kind, Tally()).add(one, changes)
        for kind, tally in sorted(tallies.items()):
            yield {"languages": name, "recordings": kind} | tally.row()


def options_with(settings: Sequence[str]) -> Options:
    """The defaults, with settings such as `switch.margin=0.5`."""
    options = Options(ProbeOptions(), SmoothingOptions(), SwitchOptions())
    for setting in settings:
        name, _, value = setting.partition("=")
        room, _, field = name.partition(".")
        part = getattr(options, room)
        kind = type(getattr(part, field))
        options = replace(options, **{room: replace(part, **{field: kind(value)})})
    return options


def show(rows: Sequence[dict[str, Any]]) -> None:
    columns = list(rows[0])
    print("  ".join(f"{column:>12}" for column in columns))
    for row in rows:
        print("  ".join(f"{row[column]!s:>12}" for column in columns))


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path, help="folder that holds manifest.jsonl")
    parser.add_argument("--log", type=Path, required=True, help="JSON lines of what was heard")
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="auto", help="a log for each [auto]")
    add_part(parser)
    parser.add_argument("--known", type=int, default=20, help="recordings in well-known languages")
    parser.add_argument("--mixed", type=int, default=20, help="recordings in all languages")
    parser.add_argument("--singles", type=int, default=1, help="recordings of one language, for each")
    parser.add_argument("--conditions", nargs="+", default=[], choices=tuple(CONDITIONS), help="see above")
    parser.add_argument("--recordings", type=int, default=20, help="of each condition")
    parser.add_argument("--kinds", nargs="+", default=["known", "mixed", "concat", "single"])
    parser.add_argument("--lists", nargs="+", default=["12", "all"], choices=tuple(LISTS))
    parser.add_argument("--set", nargs="+", default=[], metavar="ROOM.FIELD=VALUE", help="other options")
    parser.add_argument("--only-log", action="store_true", help="take up no recording that the log lacks")
    given = parser.parse_args()
    torch.set_num_threads(1)
    counts = {"known": given.known, "mixed": given.mixed, "singles": given.singles}
    load = partial(load_model, given.model, device="cpu", dtype=given.dtype)

    def make() -> list[Source]:
        joined = recordings(given.data, given.part, **counts) if any(counts.values()) else []
        mixed = [
            mixed_recordings(given.data, given.part, given.recordings, with_text=True, condition=condition)
            for condition in given.conditions
        ]
        return [*joined, *(one for found in mixed for one in found)]

    log = Log(given.log, load, make)
    if not given.only_log:
        log.complete()
    kinds = [*given.kinds, *given.conditions]
    rows = list(scored(log, options_with(given.set), kinds, given.lists))
    show(rows)
    asked = {"model": given.model, "dtype": given.dtype, "part": given.part, "options": given.set}
    show_json("live changes", asked | {"rows": rows})
