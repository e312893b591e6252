"""What --verbatim and --clean do to real speech; what the rules do to text is in `text.verbatim_texts`.

    python -m benchmarks text verbatim ../shared --log verbatim.jsonl
    python -m benchmarks text verbatim ../shared --part dev --log verbatim-dev.jsonl # chose the prompts

Recordings of people (`harness.clips`, those that report), read with the defaults of `sottovoce transcribe`:

spontaneous: clips of VoxLingua107, of which nobody wrote down what is said. Counted is what is written, and
    whether a filler has a sound of its own: the other words are aligned by the CTC head of base, and a filler
    has one where between its neighbours is voiced sound that no word takes. The same is counted between all
    other neighbours, to compare.
read: clips with a text, where nobody hesitates: what the styles cost.
repeated: the same clips with one or two words said twice, or one broken off before it is said whole, cut from
    the recording itself; the splice is not natural, but what is said is known.

Fillers are counted as errors where one is written that nobody said, and not counted where they are taken out
of both texts first. Prints Markdown and one JSON line; intervals are of 1000 sets of clips drawn anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, Part, clips, spread
from benchmarks.harness.log import add_row, read_rows
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.errors import SottovoceError
from sottovoce.evaluation.wer import count_edits
from sottovoce.offline.style import clean_segment
from sottovoce.options.align import AlignOptions
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.disfluency import DISFLUENCIES, VERBATIM_PROMPTS
from sottovoce.text.normalize import plain
from sottovoce.types import SAMPLE_RATE, Samples, Word

SPONTANEOUS = ("voxlingua107-dev",)
READ = ("kathleen-en", "librispeech-mini", "kerstin-de", "dona-es")
STYLES = ("default", "verbatim", "clean", "both")
"""Both, which the library alone takes: the verbatim reading, cleaned."""
N_RESAMPLES, SEED = 1000, 0
PAUSE_S = 0.2
SOUND_S = 0.1
"""Voiced sound that no word takes, and which is then somebody's."""
BROKEN_OFF = re.compile(r"\w-(?=[\s,]|$)")
REPEATED = re.compile(r"\b([^\W\d]+(?: [^\W\d]+){0,2}) \1\b")


@dataclass(frozen=True, slots=True)
class Item:
    """A recording to read. said: every word, None if unknown. meant: without what is said twice.

    again: what is said twice, as it is said; "" for nothing.
    """

    name: str
    part: str
    language: str
    samples: Samples
    said: str | None
    meant: str | None
    again: str = ""


@dataclass(slots=True)
class Reading:
    """What was written of an item in a style.

    sounded: of every filler, whether it has a sound of its own; elsewhere: the same of all other gaps.
    """

    name: str
    part: str
    style: str
    language: str
    seconds: float
    text: str
    said: str | None
    meant: str | None
    again: str
    sounded: list[bool] = field(default_factory=list)
    elsewhere: list[bool] = field(default_factory=list)


# Recordings


def items_of(shared: Path, part: Part, model: Model, n_clips: int) -> list[Item]:
    data = shared / "data"
    found: list[Item] = []
    for language in VERBATIM_PROMPTS:
        own = clips(data, part, sets=SPONTANEOUS, language=language)
        share = n_clips // len(VERBATIM_PROMPTS)
        found += [_item(clip, "spontaneous") for clip in spread(own, share)]
    for clip in spread(clips(data, part, sets=READ, with_text=True), n_clips):
        whole = _item(clip, "read")
        found += [whole, *spliced(whole, model, is_cut=len(found) % 4 > 1)]
    return found


def _item(clip: Clip, part: str) -> Item:
    return Item(clip.name, part, clip.language, load_audio(clip.file), clip.text, clip.text)


def spliced(item: Item, model: Model, *, is_cut: bool) -> list[Item]:
    """The item with a word or two said twice in its middle, or with the beginning of a word before it."""
    assert item.said is not None
    try:
        segments = model.align(item.samples, item.said, language=item.language).segments
    except SottovoceError:
        return []
    words = [word for segment in segments for word in segment.words or ()]
    place = _place(words, is_cut)
    if place is None:
        return []
    first, last = words[place], words[place] if is_cut else words[place + len(words) % 2]
    end_s = (first.start + first.end) / 2 if is_cut else last.end
    start, end = round(first.start * SAMPLE_RATE), round(end_s * SAMPLE_RATE)
    pause = np.zeros(round(PAUSE_S * SAMPLE_RATE), np.float32)
    samples = np.concatenate([item.samples[:end], pause, item.samples[start:]])
    again = "" if is_cut else "".join(word.word for word in words[place : words.index(last) + 1])
    written = [word.word for word in words]
    said = "".join(
        [*written[: words.index(last) + 1], *([again] if again else []), *written[words.index(last) + 1 :]]
    )
    meant = "".join(written)
    return [
        Item(item.name, "broken off" if is_cut else "repeated", item.language, samples, said, meant, again)
    ]


def _place(words: Sequence[Word], is_cut: bool) -> int | None:
    """The first word after the second that is long enough to be cut, or short enough to be stuttered."""
    for place in range(2, len(words) - 2):
        length = words[place].end - words[place].start
        letters = len(plain(words[place].word))
        if (length >= 0.35 and letters >= 6) if is_cut else (length >= 0.08 and letters <= 5):
            return place
    return None


# Readings


def read(item: Item, model: Model) -> list[Reading]:
    """What is written in every style; what is cleaned is cleaned segment by segment, as --clean does it."""
    texts: dict[str, str] = {}
    for style, cleaned in (("default", "clean"), ("verbatim", "both")):
        options = _options(item, is_verbatim=style == "verbatim")
        found = model.transcribe(item.samples, options=options).collect()
        kept = [clean_segment(segment, item.language) for segment in found.segments]
        texts[style] = found.text
        texts[cleaned] = "".join(segment.text for segment in kept if segment is not None).strip()
    seconds = len(item.samples) / SAMPLE_RATE
    known = item.said, item.meant, item.again
    readings = [
        Reading(item.name, item.part, style, item.language, seconds, texts[style], *known) for style in STYLES
    ]
    if item.part == "spontaneous":
        find_sounds(readings[1], item, model)
    return readings


def _options(item: Item, *, is_verbatim: bool) -> TranscribeOptions:
    """The defaults of the command line."""
    decoding = DecodingOptions(language=item.language, beam_size=5, verbatim=is_verbatim)
    return TranscribeOptions(decoding=decoding, fallback=FallbackOptions(best_of=5))


def find_sounds(reading: Reading, item: Item, model: Model) -> None:
    """Whether there is voiced sound that no word takes, where fillers are written and elsewhere."""
    pieces = [(piece, is_filler(piece, item.language)) for piece in reading.text.split()]
    others = " ".join(piece for piece, is_one in pieces if not is_one)
    try:
        aligned = model.align(
            item.samples, others, language=item.language, options=AlignOptions(method="ctc")
        )
    except SottovoceError:
        return
    words = spans_of([word for segment in aligned.segments for word in segment.words or ()])
    if len(words) != len(others.split()):
        return
    voiced = voiced_frames(item.samples)
    n_words, n_fillers = 0, 0
    for _, is_one in [*pieces, ("", False)]:
        if is_one:
            n_fillers += 1
            continue
        start_s = words[n_words - 1][1] if n_words else 0.0
        end_s = words[n_words][0] if n_words < len(words) else len(item.samples) / SAMPLE_RATE
        has_sound = bool(voiced[round(start_s * 100) : round(end_s * 100)].sum() >= SOUND_S * 100)
        if n_fillers:
            reading.sounded += [has_sound] * n_fillers
        elif 0 < n_words < len(words):
            reading.elsewhere.append(has_sound)
        n_words, n_fillers = n_words + 1, 0


def spans_of(words: Sequence[Word]) -> list[tuple[float, float]]:
    """Start and end of what spaces separate."""
    spans: list[tuple[float, float]] = []
    for word in words:
        begins = not spans or word.word[:1].isspace()
        spans.append((word.start, word.end)) if begins else spans.append((spans.pop()[0], word.end))
    return spans


def voiced_frames(samples: Samples) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Of every 10 ms, whether 40 ms around it repeat themselves at 70 to 400 Hz and are no silence."""
    size, hop = 640, 160
    padded = np.pad(samples, size // 2)
    frames = np.stack([padded[i : i + size] for i in range(0, len(samples), hop)])
    frames = frames - frames.mean(axis=1, keepdims=True)
    spectra = np.abs(np.fft.rfft(frames, 2 * size)) ** 2
    correlations = np.fft.irfft(spectra)[:, :size]
    energies = correlations[:, 0]
    peaks = correlations[:, SAMPLE_RATE // 400 : SAMPLE_RATE // 70].max(axis=1)
    is_loud = energies > np.quantile(energies, 0.95) * 10 ** (-30 / 10)
    voiced: np.ndarray[Any, np.dtype[np.bool_]] = (peaks > 0.4 * np.maximum(energies, 1e-12)) & is_loud
    return voiced


def read_all(items: Sequence[Item], model: Model, log: Path | None) -> list[Reading]:
    """Every item in every style; those in the log are not read again."""
    known: dict[tuple[str, str], list[Reading]] = {}
    for row in read_rows(log):
        one = Reading(**row)
        known.setdefault((one.part, one.name), []).append(one)
    for item in items:
        if (item.part, item.name) in known:
            continue
        known[item.part, item.name] = read(item, model)
        for one in known[item.part, item.name]:
            add_row(log, asdict(one))
    return [one for item in items for one in known[item.part, item.name]]


# Figures


def words_of(text: str) -> list[str]:
    return plain(text).split()


def is_filler(piece: str, language: str) -> bool:
    """Whether what spaces separate is one; "uh-huh" is none."""
    return DISFLUENCIES[language].is_filler(re.sub(r"^[\W_]+|[\W_]+$", "", piece))


def fillers_of(text: str, language: str) -> int:
    return sum(is_filler(piece, language) for piece in text.split())


def without_fillers(text: str, language: str) -> list[str]:
    return words_of(" ".join(piece for piece in text.split() if not is_filler(piece, language)))


def errors(reading: Reading, reference: str | None, *, are_counted: bool) -> tuple[float, float]:
    assert reference is not None
    texts = (reference, reading.text)
    found = [words_of(t) if are_counted else without_fillers(t, reading.language) for t in texts]
    counts = count_edits(*found)
    return counts.n_errors, counts.n_reference


def is_repeated(reading: Reading) -> bool:
    """Whether what is said twice is written twice."""
    again = " ".join(words_of(reading.again))
    return f" {again} {again} " in f" {' '.join(words_of(reading.text))} "


Measure = Callable[[Reading], tuple[float, float]]
MEASURES: dict[str, dict[str, Measure]] = {
    "read": {
        "word errors, fillers counted": lambda one: errors(one, one.said, are_counted=True),
        "word errors, fillers not counted": lambda one: errors(one, one.said, are_counted=False),
        "fillers a minute": lambda one: (fillers_of(one.text, one.language), one.seconds / 60),
    },
    "repeated": {
        "word errors against what is said": lambda one: errors(one, one.said, are_counted=True),
        "word errors against it without the repetition": lambda one: errors(one, one.meant, are_counted=True),
        "repetitions written": lambda one: (is_repeated(one), 1),
    },
    "broken off": {
        "word errors against the whole words": lambda one: errors(one, one.meant, are_counted=True),
        "broken-off words written": lambda one: (min(1, len(BROKEN_OFF.findall(one.text))), 1),
    },
    "spontaneous": {
        "fillers a minute": lambda one: (fillers_of(one.text, one.language), one.seconds / 60),
        "repetitions a minute": lambda one: (
            len(REPEATED.findall(" ".join(without_fillers(one.text, one.language)))),
            one.seconds / 60,
        ),
        "broken-off words a minute": lambda one: (len(BROKEN_OFF.findall(one.text)), one.seconds / 60),
        "other words a minute": lambda one: (
            len(without_fillers(one.text, one.language)),
            one.seconds / 60,
        ),
    },
}


def rate(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """A rate over clips and the interval of 95 % that it lies in."""
    table = np.array(pairs, dtype=np.float64)
    picks = np.random.default_rng(SEED).integers(0, len(table), (N_RESAMPLES, len(table)))
    sums = table[picks].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    return float(table[:, 0].sum() / table[:, 1].sum()), float(low), float(high)


def show(readings: Sequence[Reading]) -> dict[str, Any]:
    """Print a table for each part; the same as plain values."""
    show_heads(f"| {' | '.join(STYLES)}")
    figures: dict[str, Any] = {}
    for part, measures in MEASURES.items():
        own = [one for one in readings if one.part == part]
        if not own:
            continue
        seconds = sum(one.seconds for one in own if one.style == "default")
        n_clips = sum(one.style == "default" for one in own)
        print(f"| **{part}**, {n_clips} clips, {seconds / 60:.1f} min |{' |' * len(STYLES)}")
        for name, measure in measures.items():
            found = {style: rate([measure(one) for one in own if one.style == style]) for style in STYLES}
            figures[f"{part}: {name}"] = {s: [round(x, 4) for x in one] for s, one in found.items()}
            cells = [_cell(name, *found[style]) for style in STYLES]
            show_row(name, *cells)
    return figures


def _cell(name: str, value: float, low: float, high: float) -> str:
    if "minute" in name:
        return f"{value:.1f} ({low:.1f}–{high:.1f})"
    return f"{value:.1%} ({low:.1%}–{high:.1%})"


def show_by_language(readings: Sequence[Reading]) -> dict[str, Any]:
    """Fillers a minute of spontaneous speech, and how many of them have a sound of their own."""
    print("\n| | minutes | fillers: default | verbatim | clean | both | with a sound | other gaps with one |")
    print("|---|---|---|---|---|---|---|---|")
    figures = {}
    for language in VERBATIM_PROMPTS:
        own = [one for one in readings if one.part == "spontaneous" and one.language == language]
        minutes = sum(one.seconds for one in own if one.style == "default") / 60
        counts = [
            sum(fillers_of(one.text, one.language) for one in own if one.style == style) for style in STYLES
        ]
        sounded = [heard for one in own for heard in one.sounded]
        elsewhere = [heard for one in own for heard in one.elsewhere]
        told = [f"{sum(some)} of {len(some)}" for some in (sounded, elsewhere)]
        show_row(language, f"{minutes:.1f}", *map(str, counts), *told)
        figures[language] = {"minutes": round(minutes, 2), "fillers": dict(zip(STYLES, counts, strict=True))}
        figures[language] |= {"sounded": told[0], "elsewhere": told[1]}
    return figures


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--clips", type=int, default=40, help="spontaneous, and read, at most")
    parser.add_argument("--log", type=Path, help="readings so far: a file of JSON lines that is added to")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(arguments.model, device="cpu")
    readings = read_all(
        items_of(arguments.shared, arguments.part, model, arguments.clips), model, arguments.log
    )
    figures = show(readings) | {"by language": show_by_language(readings)}
    show_json("text verbatim", {"model": arguments.model, "part": arguments.part} | figures)
