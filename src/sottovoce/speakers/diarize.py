"""Diarization of a recording: by voice, built-in or with a pipeline of pyannote.audio, or by channel; and
voices that are kept by name, for later recordings and sessions.

The built-in one embeds the speech of each local speaker of short windows as a vector, clusters the vectors by
mean cosine distance, and overlays the windows.

Sources: H. Bredin and A. Laurent (arXiv 2104.04045) and pyannote.audio; F. Murtagh and P. Contreras (arXiv
    1105.0121): nearest-neighbour chains.

The adapter follows the documented interface of pyannote.audio 3 and 4, and was tested with a stand-in,
because the weights need a Hugging Face account.
"""

from __future__ import annotations

import importlib
import os
import wave
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from sottovoce.audio.io import Recording, Span, load_audio
from sottovoce.errors import AudioError, ModelNotFoundError, OptionError, cause_of, needs
from sottovoce.models.devices import require_torch
from sottovoce.options.transcribe import Diarizer, SpeakerOptions
from sottovoce.speakers.labels import letter, name_turns
from sottovoce.text.files import fitting_name, whole_file, writing
from sottovoce.types import SAMPLE_RATE, AudioChunk, Floats, Samples, Turn

if TYPE_CHECKING:
    from sottovoce.speakers.networks import SegmentationNetwork, VoiceEncoder

Labels = npt.NDArray[np.intp]
MOST_VECTORS = 4000
"""Vectors that are clustered (64 MB); the others join the nearest speaker."""


@dataclass(frozen=True, slots=True)
class Join:
    """A merge of two clusters, each given by one member."""

    first: int
    second: int
    distance: float


def mean_linkage(vectors: Floats) -> list[Join]:
    """Merge unit vectors (n, size) by mean linkage; return the joins by cosine distance."""
    n = len(vectors)
    distances = 1.0 - vectors @ vectors.T
    np.fill_diagonal(distances, np.inf)
    sizes = np.ones(n)
    joins: list[Join] = []
    chain: list[int] = []
    while len(joins) < n - 1:
        if not chain:
            chain.append(int(np.flatnonzero(sizes)[0]))
        tip = chain[-1]
        nearest = int(np.argmin(distances[tip]))
        if len(chain) > 1 and distances[tip, chain[-2]] <= distances[tip, nearest]:
            nearest = chain[-2]
            del chain[-2:]
            joins.append(Join(nearest, tip, float(distances[tip, nearest])))
            _join(distances, sizes, nearest, tip)
        else:
            chain.append(nearest)
    return sorted(joins, key=lambda join: join.distance)


def _join(distances: Floats, sizes: npt.NDArray[np.float64], retained: int, gone: int) -> None:
    total = sizes[retained] + sizes[gone]
    row = (sizes[retained] * distances[retained] + sizes[gone] * distances[gone]) / total
    row[retained] = np.inf
    distances[retained], distances[:, retained] = row, row
    distances[gone], distances[:, gone] = np.inf, np.inf
    sizes[retained], sizes[gone] = total, 0


def groups_after(n: int, joins: Sequence[Join]) -> Labels:
    parents = list(range(n))

    def root(index: int) -> int:
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    for join in joins:
        parents[root(join.second)] = root(join.first)
    _, labels = np.unique([root(index) for index in range(n)], return_inverse=True)
    return np.asarray(labels, dtype=np.intp)


def speaker_vectors(
    vectors: Floats,
    weights: Floats,
    *,
    n_speakers: int | None,
    least: int = 1,
    most: int,
    distance: float,
    least_weight: float,
) -> Floats:
    """Cluster voices; return a unit vector for each speaker: (n_speakers, size).

    vectors: (n, size) of unit length. weights: (n,) seconds of speech. n_speakers: None takes as many, from
    `least` to `most`, as differ by more than `distance` and weigh at least `least_weight`.
    """
    if len(vectors) == 0:
        return vectors
    chosen = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), MOST_VECTORS)).round().astype(int))
    vectors, weights = vectors[chosen], weights[chosen] * (len(vectors) / len(chosen))
    joins = mean_linkage(vectors.astype(np.float32))
    if n_speakers is None:
        labels = groups_after(len(vectors), [join for join in joins if join.distance <= distance])
        retained = _heaviest(labels, weights, most, least_weight)
        n_speakers = least if len(retained) < least else None
    if n_speakers is not None:
        labels, retained = _given(joins, weights, min(n_speakers, len(vectors)))
    return _refined(vectors, weights, _means(vectors, weights, labels, retained))


def _given(joins: Sequence[Join], weights: Floats, n_speakers: int) -> tuple[Labels, list[int]]:
    n = len(weights)
    # Each of the speakers whose number is given has at least 15 % of the mean weight.
    least = 0.15 * weights.sum() / n_speakers
    for n_groups in range(n_speakers, n + 1):
        labels = groups_after(n, joins[: n - n_groups])
        retained = _heaviest(labels, weights, n_speakers, least)
        if len(retained) == n_speakers:
            return labels, retained
        if n_groups > 4 * n_speakers + 20:
            break
    labels = groups_after(n, joins[: n - n_speakers])
    return labels, _heaviest(labels, weights, n_speakers, 0.0)


def _heaviest(labels: Labels, weights: Floats, most: int, least_weight: float) -> list[int]:
    sums = np.bincount(labels, weights)
    order = [int(group) for group in np.argsort(-sums, kind="stable")]
    return order[:1] + [group for group in order[1:most] if sums[group] >= least_weight]


def weighted_sums(vectors: Floats, weights: Floats, labels: Labels, groups: Sequence[int]) -> Floats:
    members = [labels == group for group in groups]
    return np.stack([(vectors[is_member] * weights[is_member, None]).sum(axis=0) for is_member in members])


def _means(vectors: Floats, weights: Floats, labels: Labels, retained: Sequence[int]) -> Floats:
    return unit(weighted_sums(vectors, weights, labels, retained))


def _refined(vectors: Floats, weights: Floats, centres: Floats) -> Floats:
    for _ in range(4):
        labels = np.argmax(vectors @ centres.T, axis=1)
        present = np.unique(labels)
        moved = centres.copy()
        moved[present] = _means(vectors, weights, labels, [int(group) for group in present])
        centres = moved
    return centres


def unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-9), dtype=np.float32)


STEP_FRAMES = 59
"""A second of the segmentation's frames of 270 samples."""
ACTIVE = 0.5
LONGEST_GAP_S = 0.3
"""Longest pause within a turn."""


@dataclass(frozen=True, slots=True, eq=False)
class DiarizedWindow:
    activity: Floats
    vectors: Floats
    alone_s: Floats


class ClusteringDiarizer:
    def __init__(self, local: SegmentationNetwork, voices: VoiceEncoder, options: SpeakerOptions) -> None:
        self._local = local
        self._voices = voices
        self._options = options

    def turns(self, recording: Recording) -> list[Turn]:
        with recording.open() as reader:
            diarized = [
                window for windows in self.batches(reader) for window in self.diarize_windows(windows)
            ]
        return self.cluster(diarized)

    def batches(self, audio: Iterable[AudioChunk]) -> Iterator[list[Floats]]:
        """Yield the windows (window_samples,) of a recording, about one a second, in batches."""
        windows = self._windows(audio)
        while batch := list(islice(windows, 8)):
            yield batch

    def diarize_windows(self, windows: Sequence[Floats]) -> list[DiarizedWindow]:
        activity = self._local.activity(np.stack(windows))
        spans = [
            self._alone(samples, frames, local)
            for samples, frames in zip(windows, activity, strict=True)
            for local in range(frames.shape[1])
        ]
        vectors = self._voices.embed(spans).reshape(len(windows), activity.shape[2], -1)
        lengths = np.array([len(span) / SAMPLE_RATE for span in spans], dtype=np.float32)
        return list(map(DiarizedWindow, activity, vectors, lengths.reshape(len(windows), -1)))

    def _windows(self, audio: Iterable[AudioChunk]) -> Iterator[Floats]:
        size, step = self._local.window_samples, STEP_FRAMES * self._local.frame_samples
        held = np.zeros(0, np.float32)
        is_first = True
        for chunk in audio:
            held = np.concatenate((held, chunk.samples))
            while len(held) >= size:
                yield held[:size]
                held, is_first = held[step:], False
        if is_first or len(held) > size - step:
            yield np.pad(held, (0, size - len(held)))

    def _alone(self, samples: Floats, activity: Floats, local: int) -> Floats:
        is_active = activity > ACTIVE
        is_alone = is_active[:, local] & (is_active.sum(axis=1) == 1)
        size = self._local.frame_samples
        first = self._local.first_samples - size // 2
        pieces = [samples[first + start * size : first + end * size] for start, end in active_spans(is_alone)]
        alone = np.concatenate(pieces) if pieces else samples[:0]
        # Less speech of one speaker gets no vector.
        return alone if len(alone) >= 0.4 * SAMPLE_RATE else samples[:0]

    def cluster(self, diarized: Sequence[DiarizedWindow]) -> list[Turn]:
        centres = self._centres(diarized)
        if len(centres) == 0:
            return []
        n_frames = STEP_FRAMES * (len(diarized) - 1) + self._local.n_frames
        placed = (
            (index * STEP_FRAMES, window, assign_speakers(window, centres))
            for index, window in enumerate(diarized)
        )
        return name_turns(self.overlaid(placed, n_frames, len(centres)), self._enrolled(centres))

    def _enrolled(self, centres: Floats) -> dict[Hashable, str]:
        names = list(self._options.known)
        if not names:
            return {}
        speech = [load_audio(samples) for samples in self._options.known.values()]
        similarity = self._voices.embed(speech) @ centres.T  # (n_known, n_speakers)
        pairs = nearest_pairs(similarity, least=1 - self._distance)
        return {speaker: names[known] for known, speaker in pairs.items()}

    @property
    def _distance(self) -> float:
        return self._options.distance or self._voices.distances.same

    def _centres(self, diarized: Sequence[DiarizedWindow]) -> Floats:
        vectors = np.concatenate([window.vectors for window in diarized])
        seconds = np.concatenate([window.alone_s for window in diarized])
        # Vectors of a second of speech are clustered; others join the nearest speaker.
        trusted = seconds >= 1.0
        if not trusted.any():
            trusted = seconds > 0
        options = self._options
        step_s = STEP_FRAMES * self._local.frame_samples / SAMPLE_RATE
        n_overlapping = self._local.window_samples / SAMPLE_RATE / step_s
        return speaker_vectors(
            vectors[trusted],
            seconds[trusted] / n_overlapping,
            n_speakers=options.n_speakers,
            least=options.least,
            most=options.most,
            distance=self._distance,
            least_weight=options.least_speech_s,
        )

    def overlaid(
        self,
        windows: Iterable[tuple[int, DiarizedWindow, Iterable[tuple[int, int]]]],
        n_frames: int,
        n_speakers: int,
    ) -> list[tuple[float, float, int]]:
        """Find the turns (start, end in seconds, speaker) of overlapping windows.

        windows: the first frame of each, and pairs of local speaker and speaker.
        """
        scores = np.zeros((n_frames, n_speakers), dtype=np.float32)
        counts, n_windows = np.zeros(n_frames, dtype=np.float32), np.zeros(n_frames, dtype=np.float32)
        for first, window, assigned in windows:
            span = slice(first, first + len(window.activity))
            for local, speaker in assigned:
                scores[span, speaker] += window.activity[:, local]
            counts[span] += (window.activity > ACTIVE).sum(axis=1)
            n_windows[span] += 1
        active = most_active(scores, np.rint(counts / np.maximum(n_windows, 1)).astype(int))
        frame_s = self._local.frame_samples / SAMPLE_RATE
        first_s = self._local.first_samples / SAMPLE_RATE - frame_s / 2
        nobody = ~active.any(axis=1)
        turns = []
        for speaker in range(n_speakers):
            for start, end in _joined(active_spans(active[:, speaker]), nobody, LONGEST_GAP_S / frame_s):
                if (end - start) * frame_s >= 0.1:  # shorter turns hold no word
                    turns.append((max(0.0, first_s + start * frame_s), first_s + end * frame_s, speaker))
        return sorted(turns)


def nearest_pairs(similarity: npt.NDArray[np.float32 | np.float64], least: float) -> dict[int, int]:
    """Pair rows with columns one to one, the most similar first, down to `least`."""
    pairs: dict[int, int] = {}
    for place in np.argsort(-similarity, axis=None, kind="stable"):
        row, column = divmod(int(place), similarity.shape[1])
        if similarity[row, column] >= least and row not in pairs and column not in pairs.values():
            pairs[row] = column
    return pairs


def assign_speakers(window: DiarizedWindow, centres: Floats) -> Iterator[tuple[int, int]]:
    """Assign each local speaker to one of the centres (n_speakers, size), the surest first.

    Local speakers get different speakers while there are enough.
    """
    similarity = window.vectors @ centres.T  # (n_local, n_speakers)
    free = set(range(len(centres)))
    left = {local for local in range(len(window.vectors)) if window.alone_s[local] > 0}
    while left:
        options = free or set(range(len(centres)))
        local, speaker = max(
            ((local, speaker) for local in left for speaker in options), key=lambda pair: similarity[pair]
        )
        yield local, speaker
        left.discard(local)
        free.discard(speaker)


def most_active(scores: Floats, n_active: npt.NDArray[np.int_]) -> npt.NDArray[np.bool_]:
    order = np.argsort(-scores, axis=1, kind="stable")
    ranks = np.argsort(order, axis=1, kind="stable")
    return (ranks < n_active[:, None]) & (scores > 0)


def active_spans(is_active: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_active, [False])).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _joined(
    spans: Sequence[tuple[int, int]], nobody: npt.NDArray[np.bool_], longest_gap: float
) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start - joined[-1][1] <= longest_gap and nobody[joined[-1][1] : start].all():
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


PIPELINE = "pyannote/speaker-diarization-community-1"
VARIABLE = "SOTTOVOCE_PYANNOTE"
"""Names another pipeline."""


Pipeline = Callable[..., Any]


class PyannoteDiarizer:
    """Runs a pipeline of pyannote.audio.

    pipeline: None loads that of VARIABLE or PIPELINE.
    Raises: MissingExtraError, ModelNotFoundError.
    """

    def __init__(self, options: SpeakerOptions, pipeline: Pipeline | None = None) -> None:
        self._options = options
        self._pipeline = pipeline or load_pipeline(os.environ.get(VARIABLE, PIPELINE))

    def turns(self, recording: Recording) -> list[Turn]:
        import torch

        with recording.open() as reader:
            samples = torch.from_numpy(np.concatenate([chunk.samples for chunk in reader]))
        audio: Mapping[str, torch.Tensor | int] = {"waveform": samples[None], "sample_rate": SAMPLE_RATE}
        n_speakers = self._options.n_speakers
        limits = {"max_speakers": self._options.most} if n_speakers is None else {"num_speakers": n_speakers}
        if self._options.least > 1 and n_speakers is None:
            limits["min_speakers"] = self._options.least
        output = self._pipeline(audio, **limits)
        # Version 4 returns an object with the annotation, earlier ones the annotation itself.
        annotation: Any = getattr(output, "speaker_diarization", output)
        return name_turns(
            (span.start, span.end, label) for span, _, label in annotation.itertracks(yield_label=True)
        )


def load_pipeline(name: str) -> Pipeline:
    with needs("pyannote.audio", "pyannote", "telling speakers apart with pyannote"):
        audio = importlib.import_module("pyannote.audio")
    try:
        loaded = audio.Pipeline.from_pretrained(name)
    except Exception as error:  # of the hub, the file or the network
        raise ModelNotFoundError(f"pyannote pipeline {name}: cannot be loaded ({cause_of(error)})") from error
    if loaded is None:
        raise ModelNotFoundError(
            f"pyannote pipeline {name}: cannot be loaded; accept its conditions on the hub and set HF_TOKEN"
        )
    return cast(Pipeline, loaded)


def make_diarizer(options: SpeakerOptions | Diarizer) -> Diarizer:
    if not isinstance(options, SpeakerOptions):
        return options
    if options.engine == "pyannote":
        return PyannoteDiarizer(options)
    return ClusteringDiarizer(*load_speaker_networks(options), options)


def load_speaker_networks(options: SpeakerOptions) -> tuple[SegmentationNetwork, VoiceEncoder]:
    """Raises: MissingExtraError without PyTorch, ModelNotFoundError, CheckpointError."""
    require_torch("telling speakers apart")
    from sottovoce.speakers.networks import load_campplus, load_ge2e, load_segmentation

    return load_segmentation(), load_campplus() if options.voices == "campplus" else load_ge2e()


FRAME_SAMPLES = SAMPLE_RATE // 50
SMOOTH_FRAMES = 15
"""Bridges the gaps between syllables (0.3 s)."""
QUIET_DB = 35.0
"""Frames this far below the loud ones are silent."""
SILENCE_DB = -70.0
APART_DB = 6.0
"""Channels this far below the loudest are silent."""
ALIKE_DB = 0.5
MARGIN_FRAMES = 5
"""Frames around a channel's own speech that are not crosstalk."""
LEAKS_DB = ((10.0, 10.0), (15.0, 6.0))
"""Crosstalk is this far below the loudest channel, and this far below the channel's own speaker."""


class ChannelDiarizer:
    def turns(self, recording: Recording) -> list[Turn]:
        """Find the turns.

        Raises: AudioError for one channel, or the same sound in all channels.
        """
        with recording.open_channels() as reader:
            levels = levels_db(reader.channels())
        n_channels = levels.shape[1]
        if n_channels < 2:
            raise AudioError(f"{recording.name}: expected a channel for each speaker, got 1 channel")
        loudest = levels.max(axis=1)
        is_loud = loud_frames(levels)
        if are_alike(levels):
            raise AudioError(
                f"{recording.name}: expected a channel for each speaker, got the same sound in all"
            )
        turns = [
            Turn(start * FRAME_SAMPLES / SAMPLE_RATE, end * FRAME_SAMPLES / SAMPLE_RATE, letter(channel))
            for channel in range(n_channels)
            for start, end in active_spans(is_loud & (levels[:, channel] > loudest - APART_DB))
            if (end - start) * FRAME_SAMPLES >= 0.2 * SAMPLE_RATE
        ]
        return sorted(turns, key=lambda turn: (turn.start, turn.end))


def has_channels_apart(recording: Recording) -> bool:
    with recording.open_channels() as reader:
        return reader.info.n_channels > 1 and not are_alike(levels_db(reader.channels()))


def leaks(recording: Recording) -> list[list[Span]]:
    """Find the crosstalk of each channel: spans [start, end) in samples.

    Raises: AudioError.
    """
    with recording.open_channels() as reader:
        levels = levels_db(reader.channels())
    return [
        [
            ((start + MARGIN_FRAMES) * FRAME_SAMPLES, (end - MARGIN_FRAMES) * FRAME_SAMPLES)
            for start, end in active_spans(is_other)
            if end - start > 2 * MARGIN_FRAMES
        ]
        for is_other in are_others(levels).T
    ]


def are_others(levels: Floats) -> npt.NDArray[np.bool_]:
    """Mark the crosstalk in levels (n_frames, n_channels)."""
    loudest = levels.max(axis=1, keepdims=True)
    is_own = loud_frames(levels)[:, None] & (levels > loudest - APART_DB)
    usual_levels = [
        np.median(level[is_there]) if is_there.any() else np.inf
        for level, is_there in zip(levels.T, is_own.T, strict=True)
    ]
    below, below_own = loudest - levels, np.array(usual_levels) - levels
    is_other = np.zeros(levels.shape, np.bool_)
    for least, least_own in LEAKS_DB:
        is_other |= (below > least) & (below_own > least_own)
    return is_other


def loud_frames(levels: Floats) -> npt.NDArray[np.bool_]:
    loudest = levels.max(axis=1)
    return np.asarray(loudest > max(SILENCE_DB, np.percentile(loudest, 98) - QUIET_DB))


def are_alike(levels: Floats) -> bool:
    is_loud = loud_frames(levels)
    return bool(is_loud.any() and np.ptp(levels[is_loud], axis=1).max() < ALIKE_DB)


def levels_db(blocks: Iterable[Samples]) -> Floats:
    """Measure smoothed levels (n_frames, n_channels) in dB of blocks (n_channels, n), in frames of 20 ms."""
    powers: list[npt.NDArray[np.float32]] = []
    rest: Samples | None = None
    for block in blocks:
        joined = block if rest is None else np.concatenate((rest, block), axis=1)
        n_frames = joined.shape[1] // FRAME_SAMPLES
        rest = joined[:, n_frames * FRAME_SAMPLES :]
        frames = joined[:, : n_frames * FRAME_SAMPLES].reshape(len(joined), n_frames, FRAME_SAMPLES)
        powers.append(np.mean(np.square(frames), axis=2).T)
    if rest is not None and rest.shape[1]:
        powers.append(np.mean(np.square(rest), axis=1)[None])
    power = np.concatenate(powers)
    sums = np.cumsum(np.concatenate((np.zeros((1, power.shape[1])), power.astype(np.float64))), axis=0)
    frames_at = np.arange(len(power))
    first = np.maximum(0, frames_at - SMOOTH_FRAMES // 2)
    last = np.minimum(len(power), frames_at + SMOOTH_FRAMES // 2 + 1)
    mean = (sums[last] - sums[first]) / (last - first)[:, None]
    return np.asarray(10 * np.log10(np.maximum(mean, 1e-10)), dtype=np.float32)


FOLDER = "SOTTOVOCE_VOICES"
"""Environment variable of the folder."""


def voice_folder() -> Path:
    """Return the user's folder of voices. Source: XDG Base Directory Specification."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.environ.get(FOLDER) or Path(data, "sottovoce", "voices"))


@dataclass(frozen=True, slots=True)
class VoiceBook:
    """A folder with a WAV file of each voice."""

    folder: Path = field(default_factory=voice_folder)

    @property
    def names(self) -> list[str]:
        return sorted(unquote(path.stem) for path in self.folder.glob("*.wav"))

    @property
    def voices(self) -> dict[str, Samples]:
        """Speech (n,) by name, for `SpeakerOptions.known`. Raises: AudioError."""
        return {name: load_audio(self._path(name)) for name in self.names}

    def add(self, name: str, speech: Samples) -> None:
        """Keep a voice, or replace it. Raises: OptionError for a name that is empty or not one line."""
        if not name.strip() or not name.isprintable():
            raise OptionError(f"voice: expected a name, got '{name}'")
        path = self._path(name)
        with writing(f"voice '{path}'"):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # voices are personal data
            with whole_file(path) as place, wave.open(str(place), "wb") as file:
                file.setparams((1, 2, SAMPLE_RATE, len(speech), "NONE", ""))
                file.writeframes((np.clip(speech, -1, 1) * 32767).astype("<i2").tobytes())

    def remove(self, name: str) -> None:
        """Raises: OptionError for an unknown name."""
        path = self._path(name)
        if not path.is_file():
            raise OptionError(f"voice '{name}': expected one of {', '.join(self.names) or 'no voices'}")
        path.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / fitting_name(quote(name.strip(), safe=" "), ".wav")
