"""Diarization of a live session: windows of five seconds, and an online clustering of voices.

A voice far from all known speakers becomes a new speaker once it has enough speech; until then its words have
no speaker. At the end of an utterance all voices are clustered again, so a speaker may be corrected once.
State is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.audio.io import load_audio
from sottovoce.errors import OptionError
from sottovoce.options.transcribe import SpeakerOptions, Speakers, parse_speakers
from sottovoce.speakers.diarize import (
    ClusteringDiarizer,
    DiarizedWindow,
    Labels,
    assign_speakers,
    load_speaker_networks,
    nearest_pairs,
    speaker_vectors,
    unit,
    weighted_sums,
)
from sottovoce.speakers.labels import FAR_S, SpeakerLabels, letter
from sottovoce.types import SAMPLE_RATE, Floats, Samples, Turn, Word

if TYPE_CHECKING:
    from sottovoce.speakers.networks import SegmentationNetwork, VoiceEncoder

UPDATE_FRAMES = 30
"""Half a second, the rate of updates."""
WINDOWS_HELD_S = 60.0
"""Windows are dropped at this age; finals are shorter."""
MOST_REMEMBERED = 500
"""Above this number neighbouring vectors of a speaker are merged."""
MOST_NAMES = 100
RELIABLE_ALONE_S = 1.0
"""Shortest speech of one speaker in a window that counts."""


class LiveSpeakers:
    """Labels the words of one session with speakers.

    options: `n_speakers` and `most` limit the number of speakers.
    """

    def __init__(
        self, local: SegmentationNetwork, voices: VoiceEncoder, options: SpeakerOptions | None = None
    ) -> None:
        self._local = local
        self._options = options or SpeakerOptions()
        self._diarizer = ClusteringDiarizer(local, voices, self._options)
        self._encoder = voices
        self._distances = voices.distances
        self.start_session()
        self._vectors = np.zeros((0, 0), np.float32)
        self._weights = np.zeros(0, np.float32)
        self._sums = np.zeros((0, 0), np.float32)
        self._names: list[str] = []
        self._ever: set[str] = set()
        self._n_named = 0
        if self._options.known:
            speech = [load_audio(samples) for samples in self._options.known.values()]
            seconds = np.array([len(samples) / SAMPLE_RATE for samples in speech], np.float32)
            vectors = unit(voices.embed(speech)) * seconds[:, None]
            self.add_voices(dict(zip(self._options.known, vectors, strict=True)))

    def start_session(self) -> None:
        self.n_samples = 0
        self._held = np.zeros(0, np.float32)
        self._next_end = UPDATE_FRAMES * self._local.frame_samples
        self._windows: deque[tuple[int, DiarizedWindow]] = deque()

    def push(self, pcm: Samples, *, is_speech: bool) -> None:
        """Append samples (n,) float32; without speech only time advances.

        If the networks fail, the windows that end in these samples are left out.
        """
        size, step = self._local.window_samples, UPDATE_FRAMES * self._local.frame_samples
        self._held = np.concatenate((self._held, pcm))
        self.n_samples += len(pcm)
        ends = range(self._next_end, self.n_samples + 1, step)
        self._next_end += len(ends) * step
        try:
            for end in ends if is_speech else ():
                self._diarize_window(end)
        finally:
            self._held = self._held[-(size + step) :]

    @property
    def voices(self) -> dict[str, Floats]:
        """Vectors (size,) by speaker; their length is the seconds of speech."""
        pairs = zip(self._names, self._sums, strict=True)
        return {name: vector.copy() for name, vector in pairs if vector.any()}

    def add_voices(self, voices: Mapping[str, Floats]) -> None:
        """Add the `voices` of an earlier session, before any audio.

        Raises: OptionError for too many or duplicate names, or malformed vectors.
        """
        n_voices = len(self._names) + len(voices)
        if n_voices > MOST_NAMES:
            raise OptionError(f"voices: expected at most {MOST_NAMES}, got {n_voices}")
        if twice := [name for name in voices if name in self._names]:
            raise OptionError(f"voices: expected new names, got '{twice[0][:50]}', who is known already")
        size = self._encoder.embed([np.zeros(0, np.float32)]).shape[1]
        for name, vector in voices.items():
            if vector.shape != (size,) or not np.isfinite(vector).all() or not vector.any():
                raise OptionError(f"voices: expected {size} finite numbers, not all 0, of '{name[:50]}'")
        for name, vector in voices.items():
            self._ever.add(name)
            self._names.append(name)
            self._sums = np.concatenate((self._sums.reshape(-1, size), vector[None]))
            self._remember(unit(vector[None]), np.array([np.linalg.norm(vector)], np.float32))

    def label(self, words: Sequence[Word]) -> list[Word]:
        return self._with_speakers(words, is_sure=False)

    def relabel(self, words: Sequence[Word]) -> list[Word]:
        """Label the words of a finished utterance, after clustering all voices again."""
        self._cluster_anew()
        return self._with_speakers(words, is_sure=True)

    def _diarize_window(self, end: int) -> None:
        size, frame = self._local.window_samples, self._local.frame_samples
        first_frame = max(0, -(-(end - size) // frame))
        start = first_frame * frame
        held_from = self.n_samples - len(self._held)
        samples = self._held[max(0, start - held_from) : end - held_from]
        padded = np.zeros(size, np.float32)
        padded[: len(samples)] = samples
        (window,) = self._diarizer.diarize_windows([padded])
        n_frames = min(self._local.n_frames, len(samples) // frame)
        window = replace(window, activity=window.activity[:n_frames])
        self._windows.append((first_frame, window))
        oldest = first_frame - WINDOWS_HELD_S * SAMPLE_RATE / frame
        while self._windows[0][0] < oldest:
            self._windows.popleft()
        self._learn(window)

    def _learn(self, window: DiarizedWindow) -> None:
        trusted = window.alone_s >= RELIABLE_ALONE_S
        vectors, seconds = window.vectors[trusted], window.alone_s[trusted]
        if not len(vectors):
            return
        step_s = UPDATE_FRAMES * self._local.frame_samples / SAMPLE_RATE
        weights = seconds * step_s * SAMPLE_RATE / self._local.window_samples
        self._remember(vectors, weights)
        near = (
            dict(assign_speakers(DiarizedWindow(window.activity, vectors, seconds), self._centres))
            if self._names
            else {}
        )
        for index, vector in enumerate(vectors):
            speaker = near.get(index)
            distance = 2.0 if speaker is None else 1.0 - float(vector @ self._centres[speaker])
            if distance > self._distances.new_speaker:
                if len(self._names) < self._most:
                    self._open(vector * weights[index])
            elif speaker is not None:
                self._sums[speaker] += vector * weights[index]

    def _remember(self, vectors: Floats, weights: Floats) -> None:
        if len(self._weights) >= MOST_REMEMBERED:
            self._condense()
        self._vectors = np.concatenate((self._vectors.reshape(-1, vectors.shape[1]), vectors))
        self._weights = np.concatenate((self._weights, weights)).astype(np.float32)

    def _condense(self) -> None:
        owners = np.argmax(self._vectors @ self._centres.T, axis=1)
        pairs: list[Labels] = []
        for owner in np.unique(owners):
            members = np.flatnonzero(owners == owner)
            pairs += [members[i : i + 2] for i in range(0, len(members), 2)]
        pairs.sort(key=lambda pair: int(pair[0]))
        sums = [(self._vectors[pair] * self._weights[pair, None]).sum(axis=0) for pair in pairs]
        self._weights = np.array([self._weights[pair].sum() for pair in pairs], np.float32)
        self._vectors = unit(np.stack(sums))

    def _open(self, total: Floats) -> None:
        self._sums = np.concatenate((self._sums.reshape(-1, len(total)), total[None]))
        self._names.append(self._new_name())

    def _new_name(self) -> str:
        while letter(self._n_named) in self._ever:
            self._n_named += 1
        self._ever.add(letter(self._n_named))
        return letter(self._n_named)

    @property
    def _most(self) -> int:
        return self._options.n_speakers or self._options.most

    @property
    def _centres(self) -> Floats:
        return unit(self._sums)

    def _cluster_anew(self) -> None:
        if not len(self._weights):
            return
        centres = speaker_vectors(
            self._vectors,
            self._weights,
            n_speakers=None,
            most=self._most,
            distance=self._distances.recluster,
            least_weight=1.0,  # a second of speech
        )
        labels = np.argmax(self._vectors @ centres.T, axis=1)
        names = self._names_of(labels, len(centres))
        self._sums = weighted_sums(self._vectors, self._weights, labels, range(len(centres)))
        self._names = names

    def _names_of(self, labels: Labels, n_centres: int) -> list[str]:
        names: dict[int, str] = {}
        if self._names:
            before = np.argmax(self._vectors @ self._centres.T, axis=1)
            shared = np.zeros((n_centres, len(self._names)))
            np.add.at(shared, (labels, before), self._weights)
            pairs = nearest_pairs(shared, least=float(np.finfo(np.float64).tiny))
            names = {new: self._names[old] for new, old in pairs.items()}
        return [names.get(index) or self._new_name() for index in range(n_centres)]

    def _with_speakers(self, words: Sequence[Word], *, is_sure: bool) -> list[Word]:
        if not words or not self._names:
            return list(words)
        turns = self._turns(words[0].start - FAR_S, words[-1].end + FAR_S, is_sure=is_sure)
        if not turns:
            return list(words)
        speakers = SpeakerLabels(turns).of_words(words)
        return [replace(word, speaker=name or None) for word, name in zip(words, speakers, strict=True)]

    def _turns(self, start_s: float, end_s: float, *, is_sure: bool) -> list[Turn]:
        frame_s = self._local.frame_samples / SAMPLE_RATE
        near = [
            (begin, window)
            for begin, window in self._windows
            if begin * frame_s < end_s and (begin + len(window.activity)) * frame_s > start_s
        ]
        if not near:
            return []
        first = min(begin for begin, _ in near)
        last = max(begin + len(window.activity) for begin, window in near)
        placed = ((begin - first, window, self._assigned(window, is_sure=is_sure)) for begin, window in near)
        spans = self._diarizer.overlaid(placed, last - first, len(self._names) + 1)
        names = [*self._names, ""]
        offset_s = first * frame_s
        return [Turn(offset_s + start, offset_s + end, names[who]) for start, end, who in spans]

    def _assigned(self, window: DiarizedWindow, *, is_sure: bool) -> list[tuple[int, int]]:
        centres, nobody = self._centres, len(self._names)
        pairs: list[tuple[int, int]] = []
        for local, speaker in assign_speakers(window, centres):
            distance = 1.0 - float(window.vectors[local] @ centres[speaker])
            pairs.append((local, speaker if is_sure or distance <= self._distances.new_speaker else nobody))
        assigned = {local for local, _ in pairs}
        return pairs + [
            (local, nobody) for local in range(len(window.vectors)) if local not in assigned and not is_sure
        ]


def make_live_speakers(request: Speakers | LiveSpeakers) -> LiveSpeakers:
    """Create the live diarizer of a new session, or restart one with its voices.

    Raises: OptionError for another engine than the built-in one; ModelNotFoundError, CheckpointError.
    """
    if isinstance(request, LiveSpeakers):
        request.start_session()
        return request
    options = parse_speakers(request)
    if not isinstance(options, SpeakerOptions) or options.engine != "own":
        raise OptionError("speakers of a live session: expected the engine 'own', got another")
    if options.least > 1:
        raise OptionError(f"speakers of a live session: expected no least number, got {options.least}")
    return LiveSpeakers(*load_speaker_networks(options), options)
