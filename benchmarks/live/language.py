"""The language of the first seconds of an utterance: the live probe beside openai-whisper.

    python -m benchmarks live language DATA --log language.jsonl                  # the reported clips
    python -m benchmarks live language DATA --log language-dev.jsonl --part dev   # to choose on

Each clip gives its first 1, 2, 3 and 5 seconds from where speech begins. openai-whisper itself detects them
padded to 30 s with silence, as its documentation does. Ours are what a session's timeline believes at that
moment, from stretches of speech that are encoded by themselves. Choice among all languages of the model, and
in lists of 2, 5 and 12 that hold the true one: the others are drawn from the languages of the clips, the same
for both. VoxLingua's clips (32 languages) are taken in turns of languages. Both run in the dtype that ours
takes by default. The log keeps the logits of everything that was heard: a run goes on where it ended, and
`--only-log` scores what is there. Needs the environment of `make test`."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.arguments import add_part, benchmark_parser
from benchmarks.harness.clips import Clip, Part, clips, spread
from benchmarks.harness.log import add_row, read_rows
from benchmarks.harness.programs import openai_model
from benchmarks.harness.tables import show_json
from benchmarks.live.changes import Options, options_with
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel
from sottovoce.audio.vad import VadStream
from sottovoce.evaluation.language_scores import LanguageScores
from sottovoce.language.probe import LanguageProbe, ProbeOptions, probed_languages
from sottovoce.language.timeline import LanguageTimeline
from sottovoce.models.load import load_checkpoint
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Samples

CODES = Tokenizer.for_model(51865).language_codes
SECONDS = (1.0, 2.0, 3.0, 5.0)
THEIRS, OURS = "openai-whisper", "ours"
LISTS = (2, 5, 12)
DEFAULTS = options_with([])
DRAWS = 5
"""Lists of each size a clip."""
VOXLINGUA = "voxlingua107-dev"
READERS = (
    *("commonvoice-en-mini", "librispeech-mini", "ljspeech-mini", "kathleen-en", "kerstin-de"),
    *("dona-es", "nemo-pl", "hindi-hsc", "smoke-multi"),
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Of a clip, in seconds from where its speech begins, heard by one of the programs."""

    clip: str
    side: str
    start_s: float
    end_s: float


class Programs:
    """Both with the same weights, loaded when they are first asked."""

    def __init__(self, model_name: str, dtype: str) -> None:
        self._name, self._dtype = model_name, dtype

    @cached_property
    def ours(self) -> Model:
        return load_model(self._name, device="cpu", dtype=self._dtype)

    @cached_property
    def _probe(self) -> LanguageProbe:
        return LanguageProbe(self.ours.backend, self.ours.tokenizer, CODES)

    @cached_property
    def _theirs(self) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return openai_model(load_checkpoint(self._name), Path(folder))

    def logits(self, side: str, audio: Samples) -> list[float]:
        """Of all languages, and of no speech where ours is asked."""
        if side == OURS:
            return list(self._probe.logits([log_mel(audio)])[0].tolist())
        return self._by_openai(audio)

    @torch.inference_mode()
    def _by_openai(self, audio: Samples) -> list[float]:
        import whisper

        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(audio)).to(self.ours.backend.dtype)
        _, shares = self._theirs.detect_language(mel)
        return [float(np.log(shares[code] + 1e-30)) for code in CODES]


class Log:
    """Logits by stretch; none for a clip that is too short. Kept in a file, if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.known: dict[Stretch, list[float]] = {}
        for row in read_rows(path):
            logits = row.pop("logits")
            self.known[Stretch(**row)] = logits

    def add(self, stretch: Stretch, logits: Sequence[float]) -> None:
        self.known[stretch] = [round(value, 3) for value in logits]
        add_row(self._path, asdict(stretch) | {"logits": self.known[stretch]})


def beginning_of_speech(audio: Samples) -> int:
    """The sample at which a session's first utterance begins; 0 if no speech is found."""
    vad = VadStream()
    edges = [*vad.push(audio), *vad.close()]
    return edges[0].sample if edges else 0


def asked(data: Path, part: Part, n_voxlingua: int, n_readers: int) -> list[Clip]:
    """So many clips of VoxLingua, languages in turns, and of people reading."""
    by_language: dict[str, list[Clip]] = {}
    for clip in clips(data, part, sets=[VOXLINGUA]):
        by_language.setdefault(clip.language, []).append(clip)
    in_turns = [clip for turn in zip_longest(*by_language.values()) for clip in turn if clip is not None]
    readers = [clip for clip in clips(data, part, sets=READERS) if len(clip.languages) == 1]
    return [*spread(readers, n_readers), *in_turns[:n_voxlingua]]


def stretches(clip: str, side: str, options: ProbeOptions = DEFAULTS.probe) -> list[Stretch]:
    """What a program hears of a clip: the first seconds, or what a session hears at every hop of them."""
    if side == THEIRS:
        return [Stretch(clip, side, 0.0, seconds) for seconds in SECONDS]
    n_hops = round(SECONDS[-1] / options.hop_s)
    ends = [hop * options.hop_s for hop in range(1, n_hops + 1) if hop * options.hop_s >= options.min_width_s]
    starts = [options.start(0, round(end * SAMPLE_RATE), opening=True) / SAMPLE_RATE for end in ends]
    return [Stretch(clip, side, start, end) for start, end in zip(starts, ends, strict=True)]


def listen(
    programs: Programs, chosen: Sequence[Clip], sides: Sequence[str], log: Log, options: ProbeOptions
) -> None:
    """Hear what the log lacks."""
    for clip in chosen:
        wanted = [one for side in sides for one in stretches(clip.name, side, options)]
        wanted = [one for one in wanted if one not in log.known]
        if not wanted:
            continue
        audio = load_audio(clip.file)
        audio = audio[beginning_of_speech(audio) :]
        for one in wanted:
            start, end = round(one.start_s * SAMPLE_RATE), round(one.end_s * SAMPLE_RATE)
            log.add(one, programs.logits(one.side, audio[start:end]) if end <= len(audio) else [])


def said(
    log: Log,
    clip: str,
    side: str,
    seconds: float,
    languages: Sequence[str],
    options: Options = DEFAULTS,
    *,
    in_use: bool = False,
) -> str | None:
    """The language that a program names after some seconds; None for a clip that is too short.

    in_use: of a session, the one that it writes in then, which it does not give up for any lead.
    """
    allowed = [CODES.index(code) for code in languages]
    if side == THEIRS:
        logits = log.known.get(Stretch(clip, side, 0.0, seconds))
        return max(languages, key=lambda code: logits[CODES.index(code)]) if logits else None
    line = LanguageTimeline(languages, options.smoothing, options.switch, full_width_s=options.probe.width_s)
    line.begin(0.0)
    for one in stretches(clip, side, options.probe):
        logits = log.known.get(one)
        if one.end_s <= seconds and not logits:
            return None
        if one.end_s <= seconds and logits:
            line.add(one.start_s, one.end_s, probed_languages(np.array([logits]), allowed)[0])
            line.due(one.end_s)
    return (in_use and line.current) or line.likeliest


def lists_of(clip: Clip, size: int, languages: Sequence[str]) -> Iterator[list[str]]:
    rng = random.Random(f"{clip.name} {size}")
    others = [code for code in languages if code != clip.language]
    for _ in range(DRAWS):
        yield [clip.language, *rng.sample(others, size - 1)]


def score(
    chosen: Sequence[Clip],
    spoken: Sequence[str],
    log: Log,
    side: str,
    seconds: float,
    options: Options = DEFAULTS,
) -> dict[str, Any]:
    """Accuracy among all languages, and in lists; spoken: the languages of all clips."""
    sizes = [size for size in LISTS if size <= len(spoken)]
    scores: dict[str | int, LanguageScores] = {size: LanguageScores() for size in ("all", *sizes)}
    in_use = LanguageScores()
    for clip in chosen:
        if said(log, clip.name, side, seconds, CODES, options) is None:
            continue
        for size, tally in scores.items():
            for allowed in [list(CODES)] if isinstance(size, str) else lists_of(clip, size, spoken):
                tally.add(clip.language, said(log, clip.name, side, seconds, allowed, options) or "")
        written = said(log, clip.name, side, seconds, CODES, options, in_use=True)
        in_use.add(clip.language, written or "")
    low, high = scores["all"].interval()
    found: Mapping[str, Any] = {f"{size}": tally.accuracy for size, tally in scores.items()}
    return {"n": scores["all"].n, **found, "all, from": low, "to": high, "in use": in_use.accuracy}


def show(rows: Sequence[dict[str, Any]]) -> None:
    columns = list(rows[0])
    print("  ".join(f"{column:>14}" for column in columns))
    for row in rows:
        cells = [
            f"{100 * v:.1f} %" if isinstance(v, float) and k != "seconds" else str(v) for k, v in row.items()
        ]
        print("  ".join(f"{cell:>14}" for cell in cells))


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path, help="folder that holds manifest.jsonl")
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="auto", help="of both programs; a log for each [auto]")
    add_part(parser)
    parser.add_argument("--clips", type=int, default=160, help="clips of VoxLingua")
    parser.add_argument("--readers", type=int, default=80, help="clips of people reading")
    parser.add_argument("--sides", nargs="+", choices=[THEIRS, OURS], default=[THEIRS, OURS])
    parser.add_argument("--log", type=Path, help="JSON lines of what was heard")
    parser.add_argument("--only-log", action="store_true", help="score what the log holds")
    parser.add_argument("--set", nargs="+", default=[], metavar="ROOM.FIELD=VALUE", help="other options")
    given = parser.parse_args()
    torch.set_num_threads(1)
    options = options_with(given.set)
    log, chosen = Log(given.log), asked(given.data, given.part, given.clips, given.readers)
    if not given.only_log:
        listen(Programs(given.model, given.dtype), chosen, given.sides, log, options.probe)
    heard = {one.clip for one in log.known}
    chosen = [clip for clip in chosen if clip.name in heard]
    spoken = sorted({clip.language for clip in chosen})
    groups = {
        "VoxLingua": [clip for clip in chosen if clip.group == VOXLINGUA],
        "readers": [clip for clip in chosen if clip.group != VOXLINGUA],
    }
    rows = [
        {"clips": name, "seconds": seconds, "side": side} | score(group, spoken, log, side, seconds, options)
        for name, group in groups.items()
        for seconds in SECONDS
        for side in given.sides
    ]
    show(rows)
    show_json("live language", {"model": given.model, "dtype": given.dtype, "part": given.part, "rows": rows})
