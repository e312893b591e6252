"""Recordings through live sessions and as whole files, kept in a log that a later call goes on with; and
the arguments that choose clips and settings.

Only what a program would use is used: `load_model`, `Model.session`, `push`, `close` and events. A run is
kept under everything that it depends on: recording, options, and the package's own source, or a label
that stands for it. A benchmark prints a Markdown table and then one JSON line, and goes on where --log
ends. Clips: `harness.clips`, whose `dev` part chooses settings and whose `test` part reports. One thread;
processor time is this process's own.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
import torch

import sottovoce
from benchmarks.files.beside import LANGUAGES
from benchmarks.harness.clips import PAUSES_S, Clip, clips, spread
from benchmarks.harness.report import (
    Log,
    add_part,
    add_shared,
    benchmark_parser,
    listed,
    show_json,
)
from sottovoce.api import Model, as_whisper, load_model
from sottovoce.audio.io import load_audio
from sottovoce.decoding.search import Fusion
from sottovoce.evaluation.scores import FoundSwitch, LiveRun, run_live
from sottovoce.language.probe import ProbeOptions
from sottovoce.models.backend import IncrementalResult, IncrementalWindow
from sottovoce.recogniser import Recogniser
from sottovoce.streaming.live_session import LiveSession
from sottovoce.streaming.options import Finals, LiveOptions, StreamOptions
from sottovoce.types import SAMPLE_RATE, Features, Samples, Word

T = TypeVar("T")
GIVEN, AUTO = "given", "auto"
"""Languages of a setting: the recording's own, or all of the model. A list of codes is the third way."""
WARM_S = 2.0


@dataclass(frozen=True, slots=True)
class Item:
    """A recording: its name, text and languages. source: samples, or files that are joined with pauses."""

    name: str
    source: Samples | tuple[Path, ...] = field(repr=False)
    languages: tuple[str, ...] = ("en",)
    text: str = ""
    group: str = ""
    pauses_s: tuple[float, ...] = PAUSES_S

    @property
    def language(self) -> str:
        return self.languages[0]

    def samples(self) -> Samples:
        if isinstance(self.source, tuple):
            return spoken_on([load_audio(file) for file in self.source], self.pauses_s)
        return self.source


def spoken_on(pieces: Sequence[Samples], pauses_s: Sequence[float] = PAUSES_S) -> Samples:
    """Recordings one after the other, with these pauses between them, over and over."""
    parts: list[Samples] = []
    for number, piece in enumerate(pieces):
        pause = np.zeros(round(pauses_s[number % len(pauses_s)] * SAMPLE_RATE), np.float32)
        parts += [piece, pause]
    return np.concatenate(parts[:-1])


@dataclass(frozen=True, slots=True)
class Setting:
    """How live sessions are opened. stream: `StreamOptions`. final_model: "": that of the session."""

    model: str = "base"
    dtype: str = "float32"
    languages: str = GIVEN
    switching: str = "off"
    stream: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    finals: Finals = "committed"
    final_model: str = ""

    @property
    def chunk_s(self) -> float:
        return float(self.stream.get("chunk_s", StreamOptions().chunk_s))

    @property
    def key(self) -> str:
        return json.dumps({"program": "live", **asdict(self)}, sort_keys=True)

    @property
    def name(self) -> str:
        """For a table: what differs from one row to the next."""
        threshold = self.stream.get("frame_threshold")
        rule = self.stream.get("latency", "balanced") if threshold is None else f"{threshold:g} frames"
        parts = [rule, f"{self.chunk_s:g} s", self.dtype]
        parts += [self.switching] if self.languages != GIVEN or self.switching != "off" else []
        parts += [] if self.languages == GIVEN else [self.languages]
        shown = {"frame_threshold", "chunk_s", "latency"}
        usual = {"beam_size": StreamOptions().beam_size}
        others = {k: v for k, v in self.stream.items() if k not in shown and usual.get(k) != v}
        return ", ".join(parts + [f"{name}={value}" for name, value in others.items()])

    def choice(self, item: Item) -> Sequence[str] | str:
        return item.languages if self.languages == GIVEN else self.languages


@dataclass(frozen=True, slots=True)
class Whole:
    text: str
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Live:
    """A live run. encoder_frames: computed in all; None where nobody counted."""

    run: LiveRun
    encoder_frames: int | None = None

    @property
    def text(self) -> str:
        return self.run.text


class CountingBackend:
    """A backend that counts the frames that it encodes; the rest is seen through it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.total = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, features: Features) -> Any:
        self.total += features.mel.shape[0] * features.mel.shape[2] // 2
        return self._inner.encode(features)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        found: list[IncrementalResult] = self._inner.encode_incremental(windows)
        self.total += sum(one.n_computed for one in found)
        return found


class Bench:
    """Models one at a time, and the log of what they made of recordings."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._wish: tuple[str, str] | None = None
        self._model: Model | None = None
        self._final_models: dict[str, Recogniser] = {}
        torch.set_num_threads(1)

    def model(self, name: str, dtype: str) -> Model:
        if self._model is None or self._wish != (name, dtype):
            self._model = None
            gc.collect()
            self._model = model = as_whisper(load_model(name, device="cpu", dtype=dtype), "live")
            model.backend = CountingBackend(model.backend)
            self._wish = (name, dtype)
            session = model.session("en", switching="off", vad=False)
            session.push(np.zeros(round(WARM_S * SAMPLE_RATE), np.float32))
            session.close()
        return self._model

    def live(self, setting: Setting, item: Item) -> Live:
        found = self.log.get(setting.key, item.name)
        if found is None:
            found = self._run(setting, item)
            self.log.add(setting.key, item.name, found)
        return Live(run_from(found), found["encoder_frames"])

    def session(self, setting: Setting, item: Item) -> LiveSession:
        """A session of this setting; item: whose languages are given where those are."""
        torch.manual_seed(0)
        return self.model(setting.model, setting.dtype).session(
            setting.choice(item),
            options=LiveOptions(final_wait_s=math.inf),
            switching=setting.switching,  # type: ignore[arg-type]
            finals=setting.finals,
            final_model=self._final_model(setting),
            stream=built(StreamOptions, setting.stream),
        )

    def _final_model(self, setting: Setting) -> Recogniser | None:
        if not setting.final_model:
            return None
        if setting.final_model not in self._final_models:
            self._final_models[setting.final_model] = load_model(
                setting.final_model, device="cpu", dtype=setting.dtype
            )
        return self._final_models[setting.final_model]

    def n_encoded(self, setting: Setting) -> int:
        """Frames that the encoder of a setting's model has computed so far, padding included."""
        counter = self.model(setting.model, setting.dtype).backend
        assert isinstance(counter, CountingBackend)
        return counter.total

    def _run(self, setting: Setting, item: Item) -> dict[str, Any]:
        session = self.session(setting, item)
        before = self.n_encoded(setting)
        run = run_live(session, item.samples(), chunk_s=setting.chunk_s)
        return asdict(run) | {"encoder_frames": self.n_encoded(setting) - before}

    def whole(self, model: str, item: Item) -> Whole:
        """The transcript of the whole recording in float32, greedy, its first language given."""
        asked = {"program": "file", "model": model, "language": item.language}
        key = json.dumps(asked, sort_keys=True)
        found = self.log.get(key, item.name)
        if found is None:
            torch.manual_seed(0)
            segments = list(
                self.model(model, "float32").transcribe(
                    item.samples(),
                    language=item.language,
                    word_timestamps=True,
                )
            )
            words = [asdict(word) for segment in segments for word in segment.words or ()]
            found = {"text": "".join(one.text for one in segments).strip(), "words": words}
            self.log.add(key, item.name, found)
        return Whole(found["text"], tuple(Word(**word) for word in found["words"]))


def run_from(found: Mapping[str, Any]) -> LiveRun:
    return LiveRun(
        words=tuple(Word(**word) for word in found["words"]),
        delays_s=tuple(found["delays_s"]),
        elapsed_s=tuple(found["elapsed_s"]),
        switches=tuple(FoundSwitch(**switch) for switch in found["switches"]),
        duration_s=found["duration_s"],
        compute_s=found["compute_s"],
        cpu_s=found["cpu_s"],
        final_words=tuple(Word(**word) for word in found.get("final_words", ())),
    )


def source_version() -> str:
    """Eight digits that stand for the package's Python files."""
    folder = Path(sottovoce.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def options_from(words: Iterable[str]) -> dict[str, Any]:
    """`name=value` or `name.part=value` as options; a value is JSON, or text where it is none.

    Raises: ValueError without a `=`.
    """
    found: dict[str, Any] = {}
    for word in words:
        path, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"expected name=value, got '{word}'")
        *outer, name = path.split(".")
        place = found
        for one in outer:
            place = place.setdefault(one, {})
        try:
            place[name] = json.loads(value)
        except ValueError:
            place[name] = value
    return found


def built(kind: type[T], given: Mapping[str, Any]) -> T:
    """Options of a dataclass; those that are options themselves are given as mappings, tuples as lists."""
    hints = get_type_hints(kind, localns={"Fusion": Fusion, "ProbeOptions": ProbeOptions})
    return kind(**{name: _value(hints.get(name), value) for name, value in given.items()})


def _value(hint: Any, value: Any) -> Any:
    kinds = [one for one in (hint, *get_args(hint)) if is_dataclass(one)]
    if isinstance(value, dict) and kinds:
        return built(kinds[0], value)
    return tuple(value) if isinstance(value, list) else value


def counted(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, with a line on standard error that tells how far it is."""
    for number, item in enumerate(items, 1):
        print(f"\r{what}: {number} of {len(items)} {'':20}", end="", file=sys.stderr, flush=True)
        yield item
    print(file=sys.stderr)


def add_clips(parser: argparse.ArgumentParser, n_clips: int = 30) -> None:
    add_part(parser, "dev")
    parser.add_argument(
        "--clips", type=int, default=n_clips, help=f"at most, spread over the sets [{n_clips}]"
    )
    parser.add_argument("--together", type=int, default=1, help="clips a recording, with pauses between [1]")
    parser.add_argument("--pauses-s", type=listed(float), default=[*PAUSES_S], help="those pauses, in turn")
    parser.add_argument("--sets", type=listed(), help="of clips [all]")
    parser.add_argument("--spoken", type=listed(), default=[*LANGUAGES], help="languages of the clips")


def chosen(given: argparse.Namespace) -> list[Item]:
    found = [
        clip
        for clip in clips(given.shared / "data", given.part, sets=given.sets, with_text=True)
        if len(clip.languages) == 1 and clip.language in given.spoken
    ]
    groups: dict[tuple[str, str], list[Clip]] = {}
    for clip in spread(found, given.clips):
        groups.setdefault((clip.group, clip.language), []).append(clip)
    n_clips = given.together
    return [
        item_of(*some[at : at + n_clips], pauses_s=given.pauses_s)
        for some in groups.values()
        for at in range(0, len(some) - n_clips + 1, n_clips)
    ]


def item_of(*clips: Clip, pauses_s: Sequence[float] = PAUSES_S) -> Item:
    """Clips of a set and language as one recording, with pauses between."""
    first = clips[0]
    name = "+".join([first.name, *(clip.name.split("/")[-1] for clip in clips[1:])])
    if len(clips) > 1 and tuple(pauses_s) != PAUSES_S:
        name += f", pauses {pauses_s}"
    text = " ".join(clip.text or "" for clip in clips)
    files = tuple(clip.file for clip in clips)
    return Item(name, files, first.languages, text, first.group, tuple(pauses_s))


def settings(given: argparse.Namespace) -> list[Setting]:
    """One for each number format, update interval, threshold and width of beam that was asked for."""
    one = Setting(
        model=given.model,
        languages=given.languages,
        switching=given.switching,
        label=source_version(),
    )
    return [
        replace(
            one,
            dtype=dtype,
            stream={"chunk_s": chunk_s, "beam_size": beam_size, "latency": latency}
            | ({} if threshold is None else {"frame_threshold": threshold})
            | given.stream,
        )
        for dtype, chunk_s, latency, threshold, beam_size in product(
            given.dtypes, given.chunk_s, given.latencies, given.frame_thresholds or [None], given.beam_sizes
        )
    ]


def show_live_json(name: str, asked: Sequence[Setting], figures: Mapping[str, Any]) -> None:
    """Print the last line: what was asked for, and every figure."""
    show_json(f"live {name}", {"settings": [asdict(one) for one in asked], **figures})


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_shared(parser)
    parser.add_argument("--log", type=Path, help="what was done so far: JSON lines that are added to")
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtypes", type=listed(), default=["float32"])
    parser.add_argument("--latencies", type=listed(), default=["balanced"], metavar="NAME[,NAME…]")
    parser.add_argument("--frame-thresholds", type=listed(float), default=[], metavar="N[,N…]")
    parser.add_argument(
        "--chunk-s", type=listed(float), default=[0.25], metavar="S[,S…]", help="update intervals"
    )
    parser.add_argument("--beam-sizes", type=listed(int), default=[5], metavar="N[,N…]", help="1: greedy [5]")
    parser.add_argument("--switching", choices=("off", "restart"), default="off")
    parser.add_argument("--languages", default=GIVEN, metavar="given|auto|CODE,CODE")
    parser.add_argument(
        "--stream",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="of StreamOptions; commit.commit_prob=0.5, encoder={}",
    )


def run_command(
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], None],
) -> None:
    """Run a benchmark with the arguments of the command line."""
    parser = benchmark_parser(description)
    _add_common(parser)
    add_arguments(parser)
    given = parser.parse_args()
    given.log = Log(given.log)
    given.stream = options_from(given.stream)
    run(given)
