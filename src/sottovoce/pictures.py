"""Plots with matplotlib: panels of a part of a recording, and language posteriors over time; and the
spectrogram of a recording as a small PNG for a page.
"""

from __future__ import annotations

import base64
import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sottovoce.api import Model
from sottovoce.audio.io import AudioSource, open_audio
from sottovoce.audio.mel import (
    DYNAMIC_RANGE,
    MEL_FRAMES_PER_SECOND,
    MelStream,
    hz_to_mel,
    log_mel,
    normalize,
    window_features,
)
from sottovoce.audio.vad import SpeechFinder, SpeechWindows, load_silero
from sottovoce.decoding.alignment import WindowText, attention_of
from sottovoce.errors import OptionError, needs
from sottovoce.evaluation.manifest import LabelledSpan
from sottovoce.evaluation.scores import FoundSwitch
from sottovoce.formats.document import VERY_LOW_CONFIDENCE, has_low_confidence
from sottovoce.language.chain import Emission, Spans, TimelineFrame, base_prior
from sottovoce.language.probe import LanguageProbe
from sottovoce.offline.windows import PIECE_VAD, pieces_between
from sottovoce.options.decoding import WINDOW_SAMPLES
from sottovoce.options.transcribe import LANGUAGE_PRIOR, LONGEST_PICTURE_S, PANELS, SHORTEST_PICTURE_S, Panel
from sottovoce.text.files import whole_file, writing
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, Floats, Samples, Transcript, Word

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LEAST_FRAMES, HOP_FRAMES = 20, 50
"""Log-mel frames: shortest piece of speech, and hop."""


@dataclass(frozen=True, slots=True, eq=False)
class Languages:
    """Posteriors (n, n_languages) of `codes` at times `centres_s` (n,)."""

    codes: tuple[str, ...]
    centres_s: Floats
    posterior: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    matrix: Floats
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FigureData:
    """The data of a figure; times are seconds of the recording.

    mel: (n_mels, n), normalised. speech: (n,) probabilities of windows of 32 ms.
    """

    name: str
    model: str
    start_s: float
    duration_s: float
    mel: Floats
    speech: Floats
    words: tuple[Word, ...]
    languages: Languages | None
    attention: Attention | None


def check_length(samples: Samples) -> float:
    """Return the seconds of a part. Raises: OptionError for less than 0.1 or more than 30 s."""
    duration_s = len(samples) / SAMPLE_RATE
    if not SHORTEST_PICTURE_S <= duration_s <= LONGEST_PICTURE_S + 0.01:
        raise OptionError(
            f"picture: expected {SHORTEST_PICTURE_S:g} to {LONGEST_PICTURE_S:g} s, got {duration_s:.2f} s"
        )
    return duration_s


def collect(
    model: Model, samples: Samples, transcript: Transcript, *, name: str = "", start_s: float = 0.0
) -> FigureData:
    """Run the model and the speech detector over a part of a recording, whose transcript has word times.

    samples: (n,) float32 at 16 kHz. start_s: in the recording.
    Raises: OptionError for less than 0.1 or more than 30 s.
    """
    duration_s = check_length(samples)
    mel = log_mel(samples, model.backend.dims.n_mels)
    windows = SpeechWindows(load_silero())
    speech = np.array([*windows.push(samples), *windows.finish()], np.float32)
    return FigureData(
        name=name,
        model=model.name,
        start_s=start_s,
        duration_s=duration_s,
        mel=normalize(mel),
        speech=speech,
        words=tuple(
            replace(word, start=word.start + start_s, end=word.end + start_s)
            for segment in transcript.segments
            for word in segment.words or ()
        ),
        languages=_languages(model, samples, mel, start_s),
        attention=_attention(model, mel, transcript),
    )


def _languages(model: Model, samples: Samples, mel: Floats, start_s: float) -> Languages | None:
    if not model.tokenizer.is_multilingual:
        return None
    finder = SpeechFinder(PIECE_VAD)
    finder.push(samples)
    finder.finish()
    pieces = [piece for piece in pieces_between(finder, 0, mel.shape[1]) if piece.n_frames >= LEAST_FRAMES]
    if not pieces:
        return None
    codes, seconds = model.languages, [piece.duration_s for piece in pieces]
    probe = LanguageProbe(model.backend, model.tokenizer, codes)
    probed = probe.detect([mel[:, piece.start : piece.end] for piece in pieces])
    emission, base = Emission(codes, codes), base_prior(codes, codes, LANGUAGE_PRIOR)
    spans = Spans(emission, seconds, probed, base=base, spoken_s=np.zeros(len(codes)))
    for index, probabilities in enumerate(probed):
        spans.hear(index, probabilities)
    frames = [[*range(piece.start, piece.end, HOP_FRAMES), piece.end] for piece in pieces]
    return Languages(
        codes,
        np.concatenate(frames).astype(np.float32) / MEL_FRAMES_PER_SECOND + np.float32(start_s),
        np.repeat(spans.posterior, list(map(len, frames)), axis=0).astype(np.float32),
    )


def _attention(model: Model, mel: Floats, transcript: Transcript) -> Attention | None:
    tokenizer = model.tokenizer
    code = transcript.language or "en"
    if tokenizer.is_multilingual:
        tokenizer = tokenizer.with_language(code)
    tokens = _text_tokens(transcript, tokenizer.eot)
    if not tokens:
        return None
    features = window_features([mel], 2 * model.backend.dims.n_audio_ctx)
    encoded = model.backend.encode(features)
    matrix = attention_of(model.backend, encoded, WindowText(tokenizer, tokens, mel.shape[1]))
    texts = tuple(tokenizer.token_bytes(token).decode(errors="replace") for token in tokens)
    return Attention(matrix[:-1], texts)


def _text_tokens(transcript: Transcript, eot: int) -> tuple[int, ...]:
    tokens = [token for segment in transcript.segments for token in segment.tokens if token < eot]
    return tuple(tokens[:440])  # Whisper's text context holds 448


def likeliest(languages: Languages, n_languages: int = 5, least: float = 0.15) -> Sequence[int]:
    mean, peak = languages.posterior.mean(axis=0), languages.posterior.max(axis=0)
    order = np.argsort(-mean)
    return [int(i) for i in order if peak[i] >= least][:n_languages] or [int(order[0])]


ENDINGS = (".png", ".svg", ".pdf")
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#997722", "#66ccee")
SURE, DOUBTFUL, GUESSED = "#228833", "#d9a300", "#cc3311"
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
)


def check_picture(path: Path) -> None:
    """Check that a picture can be written there.

    Raises: OptionError for another extension or a missing folder; MissingExtraError.
    """
    if path.suffix.lower() not in ENDINGS:
        raise OptionError(f"picture '{path}': expected a name that ends in {', '.join(ENDINGS)}")
    if not path.parent.is_dir():
        raise OptionError(f"picture '{path}': its folder is not there")
    if path.is_dir():
        raise OptionError(f"picture '{path}': expected a file, it is a directory")
    require_plots("the picture of a recording")


def draw(data: FigureData, path: str | Path, panels: Sequence[Panel] = PANELS) -> None:
    """Write the picture atomically, in the format of its extension; panels without data are left out.

    Raises: OptionError, MissingExtraError.
    """
    path = Path(path)
    check_picture(path)
    picture = io.BytesIO()
    with warnings.catch_warnings():  # letters without a font are drawn as boxes
        warnings.simplefilter("ignore")
        _figure(data, panels).savefig(picture, format=path.suffix[1:].lower(), dpi=130, facecolor="white")
    with writing(f"picture '{path}'"), whole_file(path) as unfinished:
        unfinished.write_bytes(picture.getvalue())


def _figure(data: FigureData, panels: Sequence[Panel]) -> Figure:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = [panel for panel in panels if _has(data, panel)] or ["mel"]
    heights = {
        "mel": 2.2,
        "speech": 0.8,
        "language": 1.4,
        "confidence": 1.2,
        "attention": _attention_height(data),
    }
    with mpl.rc_context({"font.family": _fonts(), "svg.fonttype": "path"}):
        figure = Figure(
            figsize=(_width(data), sum(heights[panel] for panel in shown) + 1.0), layout="constrained"
        )
        axes = figure.subplots(
            len(shown), sharex=True, squeeze=False, height_ratios=[heights[panel] for panel in shown]
        )[:, 0]
        for panel, axis in zip(shown, axes, strict=True):
            DRAWERS[panel](axis, data)
            axis.tick_params(labelsize=8)
            axis.yaxis.label.set_fontsize(9)
            axis.spines[["top", "right"]].set_visible(False)
        _words_on_top(axes[0], data)
        axes[-1].set_xlim(data.start_s, data.start_s + data.duration_s)
        axes[-1].set_xlabel("seconds", fontsize=9)
        figure.suptitle(
            f"{data.name}   ·   {data.model}", fontsize=10, color="0.3", x=0.01, ha="left", parse_math=False
        )
    return figure


def _width(data: FigureData) -> float:
    return min(22.0, max(9.0, 0.62 * data.duration_s + 1.5))


def _fonts() -> list[str]:
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    return [name for name in FONTS if name in installed] or ["sans-serif"]


def _has(data: FigureData, panel: str) -> bool:
    needed = {"language": data.languages, "attention": data.attention, "confidence": data.words or None}
    return panel not in needed or needed[panel] is not None


def _attention_height(data: FigureData) -> float:
    n_tokens = 0 if data.attention is None else len(data.attention.tokens)
    return min(9.0, max(2.0, 0.115 * n_tokens))


def _words_on_top(axis: Axes, data: FigureData) -> None:
    place = float("-inf")
    for word in data.words:
        place = max(word.start, place + data.duration_s * 0.135 / _width(data))
        axis.annotate(
            word.word.strip(),
            (place, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(1, 3),
            textcoords="offset points",
            rotation=60,
            fontsize=7,
            color=_colour(word.probability),
            annotation_clip=True,
            parse_math=False,
        )


def _colour(probability: float) -> str:
    if not has_low_confidence(probability):  # also nan: unknown
        return "0.15"
    return GUESSED if probability < VERY_LOW_CONFIDENCE else "#aa7700"


def _draw_mel(axis: Axes, data: FigureData) -> None:
    extent = (data.start_s, data.start_s + data.mel.shape[1] / 100, 0, data.mel.shape[0])
    axis.imshow(data.mel, origin="lower", aspect="auto", extent=extent, cmap="magma", interpolation="nearest")
    for word in data.words:
        for time in (word.start, word.end):
            axis.axvline(time, color="white", lw=0.5, alpha=0.45)
    ticks = [250, 500, 1000, 2000, 4000, 8000]
    heights = hz_to_mel(np.array(ticks, np.float64))
    labels = [f"{hz} Hz" if hz < 1000 else f"{hz // 1000} kHz" for hz in ticks]
    axis.set_yticks(heights / heights[-1] * data.mel.shape[0], labels)  # the last one is at the top
    axis.set_ylabel("log-mel")


def _draw_speech(axis: Axes, data: FigureData) -> None:
    seconds = data.start_s + np.arange(len(data.speech) + 1) * WINDOW_SAMPLES / SAMPLE_RATE
    values = np.append(data.speech, data.speech[-1:])
    axis.fill_between(seconds, values, step="post", color=COLOURS[0], alpha=0.5, lw=0)
    axis.axhline(0.5, color="0.5", lw=0.6, ls="--")
    axis.set(ylim=(0, 1.05), yticks=[0, 1], ylabel="speech")


def _draw_language(axis: Axes, data: FigureData) -> None:
    assert data.languages is not None
    centres = data.languages.centres_s
    gaps = np.flatnonzero(np.diff(centres) > 1.1)  # no speech in between
    for number, index in enumerate(likeliest(data.languages)):
        values = data.languages.posterior[:, index]
        axis.plot(
            np.insert(centres, gaps + 1, np.nan),
            np.insert(values, gaps + 1, np.nan),
            color=COLOURS[number % len(COLOURS)],
            marker="o",
            ms=3,
            lw=1.4,
            label=data.languages.codes[index],
        )
    axis.set(ylim=(-0.03, 1.05), yticks=[0, 0.5, 1], ylabel="language")
    axis.grid(axis="y", lw=0.4, color="0.85")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)


def _draw_attention(axis: Axes, data: FigureData) -> None:
    assert data.attention is not None
    matrix = data.attention.matrix
    extent = (data.start_s, data.start_s + matrix.shape[1] / FRAMES_PER_SECOND, matrix.shape[0] - 0.5, -0.5)
    low, high = np.quantile(matrix, [0.02, 0.995])
    axis.imshow(
        matrix, aspect="auto", extent=extent, cmap="Blues", vmin=low, vmax=high, interpolation="nearest"
    )
    for first, n_tokens, word in _rows_of_words(data.words, data.attention.tokens):
        axis.plot(
            [word.start, word.end, word.end, word.start, word.start],
            [first - 0.5, first - 0.5, first + n_tokens - 0.5, first + n_tokens - 0.5, first - 0.5],
            color="#ee6677",
            lw=0.9,
        )
    labels = [text.strip() or "␣" for text in data.attention.tokens]
    axis.set_yticks(range(len(labels)), labels, fontsize=5.5, parse_math=False)
    axis.tick_params(axis="y", length=0)
    axis.set_ylabel("attention of tokens")


def _rows_of_words(words: Sequence[Word], tokens: Sequence[str]) -> Sequence[tuple[int, int, Word]]:
    rows, at = [], 0
    for word in words:
        first, text = at, ""
        while at < len(tokens) and len(text.strip()) < len(word.word.strip()):
            text += tokens[at]
            at += 1
        if at > first:
            rows.append((first, at - first, word))
    return rows


def _draw_confidence(axis: Axes, data: FigureData) -> None:
    for word in data.words:
        probability = word.probability
        if np.isfinite(probability):
            colour = DOUBTFUL if has_low_confidence(probability) else SURE
            colour = GUESSED if probability < VERY_LOW_CONFIDENCE else colour
            width = max(0.02, word.end - word.start)
            axis.bar(
                word.start, probability, width, align="edge", color=colour, alpha=0.75, lw=0.4, ec="white"
            )
    axis.set(ylim=(0, 1.05), yticks=[0, 0.5, 1], ylabel="confidence")
    axis.grid(axis="y", lw=0.4, color="0.85")


DRAWERS: dict[str, Callable[[Axes, FigureData], None]] = {
    "mel": _draw_mel,
    "speech": _draw_speech,
    "language": _draw_language,
    "attention": _draw_attention,
    "confidence": _draw_confidence,
}


def require_plots(what: str = "the picture of the language timeline") -> None:
    with needs("matplotlib", "plot", what):
        import matplotlib as mpl
    assert mpl


def plot_timeline(
    path: str | Path,
    languages: Sequence[str],
    frames: Sequence[TimelineFrame],
    *,
    spans: Sequence[LabelledSpan] = (),
    switches: Sequence[FoundSwitch] = (),
    words: Sequence[Word] = (),
) -> None:
    """Plot language posteriors, true languages as background, found switches and words.

    Raises: MissingExtraError.
    """
    require_plots()
    from matplotlib.figure import Figure

    end_s = max([frame.end_s for frame in frames] + [span.end_s for span in spans] + [1.0])
    figure = Figure(figsize=(min(24.0, max(7.0, 0.6 * end_s)), 3.2), layout="constrained")
    axes = figure.subplots()
    colours = {code: f"C{i}" for i, code in enumerate(languages)}
    for span in spans:
        axes.axvspan(span.start_s, span.end_s, color=colours.get(span.language, "0.5"), alpha=0.12, lw=0)
    centres = [frame.centre_s for frame in frames]
    for i, code in enumerate(languages):
        posterior = [float(frame.posterior[i]) for frame in frames]
        if max(posterior, default=0.0) > 0.05:
            axes.plot(centres, posterior, color=colours[code], label=code, marker=".", ms=3, lw=1)
    for switch in switches:
        axes.axvline(switch.at_s, color=colours.get(switch.target, "k"), ls="--", lw=1.2)
    for word in words:
        colour = colours.get(word.language or "", "k")
        axes.text(word.start, 1.04, word.word.strip(), fontsize=6, rotation=60, color=colour, ha="left")
    axes.set(xlim=(0.0, end_s), ylim=(0.0, 1.0), xlabel="seconds", ylabel="posterior")
    axes.legend(loc="lower left", fontsize=7, ncol=len(languages))
    figure.savefig(path, dpi=110)


MOST_COLUMNS = 1600
N_ROWS = 40
FRAMES_A_COLUMN = 5
N_SHADES = 64
SPECTROGRAM_COLOURS = ("000004", "2b115e", "721f81", "b73779", "f1605d", "feb078", "fcfdbf")


def spectrogram_address(recording: AudioSource) -> str:
    """Encode the spectrogram of a recording as a `data:` address: a PNG of at most 1600 by 40 pixels."""
    columns = np.concatenate(list(_columns(recording)))
    if len(columns) > MOST_COLUMNS:
        starts = np.arange(MOST_COLUMNS) * len(columns) // MOST_COLUMNS
        counts = np.diff(np.append(starts, len(columns)))
        columns = np.add.reduceat(columns, starts, axis=0) / counts[:, None]
    relative = (columns - columns.max()) / (DYNAMIC_RANGE * 0.75) + 1.0
    shades = (np.clip(relative, 0.0, 1.0) * (N_SHADES - 1)).round().astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(png(shades.T[::-1])).decode("ascii")


def _columns(recording: AudioSource) -> Iterator[Floats]:
    waiting = np.zeros((0, 2 * N_ROWS), np.float32)
    for frames in _log_mel(recording):
        waiting = np.concatenate([waiting, frames])
        n_whole = len(waiting) // FRAMES_A_COLUMN * FRAMES_A_COLUMN
        yield _pooled(waiting[:n_whole])
        waiting = waiting[n_whole:]
    if len(waiting):
        yield _pooled(np.resize(waiting, (FRAMES_A_COLUMN, 2 * N_ROWS)))


def _log_mel(recording: AudioSource) -> Iterator[Floats]:
    stream = MelStream(2 * N_ROWS)
    with open_audio(recording) as reader:
        for chunk in reader:
            yield stream.push(chunk.samples).T
    yield stream.finish().T


def _pooled(frames: Floats) -> Floats:
    pooled: Floats = frames.reshape(-1, FRAMES_A_COLUMN, N_ROWS, 2).mean(axis=(1, 3))
    return pooled


def png(shades: npt.NDArray[np.uint8]) -> bytes:
    """Encode shades (n_rows, n_columns) uint8 as a PNG of 8 bits a pixel. Source: RFC 2083."""
    height, width = shades.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), shades], axis=1)  # a byte for the filter: none
    places = np.linspace(0, len(SPECTROGRAM_COLOURS) - 1, N_SHADES)
    levels = np.array([list(bytes.fromhex(colour)) for colour in SPECTROGRAM_COLOURS]).T
    channels = [np.interp(places, range(len(SPECTROGRAM_COLOURS)), level) for level in levels]
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", np.stack(channels, axis=1).round().astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
