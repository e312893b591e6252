"""Who speaks in a live session: windows of five seconds as they come, and voices that are got to know.

The same networks as for recordings. A voice that is far from all that are known is a new speaker once enough
of it was heard; until then its words have none. When an utterance ends, the voices of the whole session are
clustered anew, and names stay with the voices that had most of them: so a speaker that was told may be
corrected once. What is kept does not grow: windows of the last minute, and a bounded number of vectors.
Not known here: words that were told, and when speech begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from sottovoce.errors import OptionError
from sottovoce.speakers.base import Floats, LocalSpeakers, VoiceDistances, VoiceEncoder
from sottovoce.speakers.clustering import Labels, speaker_vectors, unit
from sottovoce.speakers.diarize import ACTIVE, Heard, OwnDiarizer, assigned, is_heard
from sottovoce.speakers.names import letter
from sottovoce.speakers.options import SpeakerOptions
from sottovoce.speakers.words import FAR_S, SpeakerLabels
from sottovoce.types import SAMPLE_RATE, Samples, Turn, Word

STEP_FRAMES = 30
"""Between windows: half a second, as often as words come."""
KEPT_S = 60.0
"""Windows this old are forgotten: a final spans less."""
MOST_VECTORS = 500
"""Of a session; when there are more, every two neighbours of a speaker become one."""
MOST_NAMES = 100


@dataclass(frozen=True, slots=True)
class LiveSpeakerOptions:
    """When a voice is a new speaker; chosen on development voices (docs/speakers.md).

    least_alone_s: of it alone in a window of five seconds, for a voice to have a say. least_speech_s: a
    speaker of which less was heard is taken for one of the others when voices are clustered anew. distances:
    None: those of the network.
    """

    least_alone_s: float = 1.0
    least_speech_s: float = 1.0
    distances: VoiceDistances | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A window that was heard, and the frame of the session that it begins at."""

    heard: Heard
    first_frame: int


class LiveSpeakers:
    """Names of who says the words of one session.

    options: `n_speakers` and `most` are how many there may be at most; the others are those of recordings.
    """

    def __init__(
        self,
        local: LocalSpeakers,
        voices: VoiceEncoder,
        options: SpeakerOptions | None = None,
        live: LiveSpeakerOptions | None = None,
    ) -> None:
        self._local = local
        self._options = options or SpeakerOptions()
        self._live = live or LiveSpeakerOptions()
        self._ears = OwnDiarizer(local, voices, self._options)
        self._voices = voices
        self._distances = self._live.distances or voices.distances
        self.begin()
        self._vectors = np.zeros((0, 0), np.float32)
        self._weights = np.zeros(0, np.float32)
        self._sums = np.zeros((0, 0), np.float32)
        self._names: list[str] = []
        self._ever: set[str] = set()
        self._n_named = 0

    def begin(self) -> None:
        """Begin at sample 0 of a session; voices that are known stay known."""
        self.n_heard = 0
        """Samples of the session so far."""
        self._held = np.zeros(0, np.float32)
        self._next_end = STEP_FRAMES * self._local.frame_samples
        self._placed: deque[Placed] = deque()

    def hear(self, pcm: Samples, *, is_speech: bool) -> None:
        """Take the samples (n,) that follow those before; is_speech: whether to listen to them."""
        size = self._local.window_samples
        self._held = np.concatenate((self._held, pcm))
        self.n_heard += len(pcm)
        while self._next_end <= self.n_heard:
            if is_speech:
                self._listen(self._next_end)
            self._next_end += STEP_FRAMES * self._local.frame_samples
        self._held = self._held[-(size + STEP_FRAMES * self._local.frame_samples) :]

    @property
    def known(self) -> dict[str, Floats]:
        """The speakers so far, by name: vectors (size,), each as long as its voice was heard (seconds)."""
        pairs = zip(self._names, self._sums, strict=True)
        return {name: vector.copy() for name, vector in pairs if vector.any()}

    def know(self, voices: Mapping[str, Floats]) -> None:
        """Know the speakers of an earlier session, its `known`, before anything is heard.

        Raises: OptionError for more names than there can be or one that is there, or vectors that are not
            those of a voice.
        """
        n_known = len(self._names) + len(voices)
        if n_known > MOST_NAMES:
            raise OptionError(f"voices: expected at most {MOST_NAMES}, got {n_known}")
        if twice := [name for name in voices if name in self._names]:
            raise OptionError(f"voices: expected new names, got '{twice[0][:50]}', who is known already")
        size = self._voices.embed([torch.zeros(0)]).shape[1]
        for name, vector in voices.items():
            if vector.shape != (size,) or not np.isfinite(vector).all() or not vector.any():
                raise OptionError(f"voices: expected {size} finite numbers, not all 0, of '{name[:50]}'")
        for name, vector in voices.items():
            self._ever.add(name)
            self._names.append(name)
            self._sums = np.concatenate((self._sums.reshape(-1, size), vector[None]))
            self._remember(unit(vector[None]), np.array([np.linalg.norm(vector)], np.float32))

    def first(self, words: Sequence[Word]) -> list[Word]:
        """Words that have just been said, with their speakers as far as they are known by now."""
        return self._with_speakers(words, is_sure=False)

    def again(self, words: Sequence[Word]) -> list[Word]:
        """Words of an utterance that has ended, after another look at all voices."""
        self._cluster_anew()
        return self._with_speakers(words, is_sure=True)

    def _listen(self, end: int) -> None:
        """Hear the window that ends at a sample; at the beginning of a session it is filled up."""
        size, frame = self._local.window_samples, self._local.frame_samples
        first_frame = max(0, -(-(end - size) // frame))
        start = first_frame * frame
        held_from = self.n_heard - len(self._held)
        samples = self._held[max(0, start - held_from) : end - held_from]
        window = torch.zeros(size)
        window[: len(samples)] = torch.from_numpy(samples)
        (heard,) = self._ears.hear([window])
        n_frames = min(self._local.n_frames, len(samples) // frame)
        heard = replace(heard, activity=heard.activity[:n_frames])
        self._placed.append(Placed(heard, first_frame))
        oldest = first_frame - KEPT_S * SAMPLE_RATE / frame
        while self._placed[0].first_frame < oldest:
            self._placed.popleft()
        self._learn(heard)

    def _learn(self, heard: Heard) -> None:
        """Remember voices, and open a speaker for one that is far from all."""
        trusted = heard.alone_s >= self._live.least_alone_s
        vectors, seconds = heard.vectors[trusted], heard.alone_s[trusted]
        if not len(vectors):
            return
        step_s = STEP_FRAMES * self._local.frame_samples / SAMPLE_RATE
        weights = seconds * step_s * SAMPLE_RATE / self._local.window_samples
        self._remember(vectors, weights)
        near = dict(assigned(Heard(heard.activity, vectors, seconds), self._centres)) if self._names else {}
        for index, vector in enumerate(vectors):
            speaker = near.get(index)
            distance = 2.0 if speaker is None else 1.0 - float(vector @ self._centres[speaker])
            if distance > self._distances.known:
                if len(self._names) < self._most:
                    self._open(vector * weights[index])
            elif speaker is not None:
                self._sums[speaker] += vector * weights[index]

    def _remember(self, vectors: Floats, weights: Floats) -> None:
        if len(self._weights) >= MOST_VECTORS:
            self._condense()
        self._vectors = np.concatenate((self._vectors.reshape(-1, vectors.shape[1]), vectors))
        self._weights = np.concatenate((self._weights, weights)).astype(np.float32)

    def _condense(self) -> None:
        """Halve the vectors of every speaker; whoever has but one, long ago, keeps it."""
        owners = np.argmax(self._vectors @ self._centres.T, axis=1)
        pairs: list[Labels] = []
        for owner in np.unique(owners):
            own = np.flatnonzero(owners == owner)
            pairs += [own[i : i + 2] for i in range(0, len(own), 2)]
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
        """Who is who among all voices so far; names stay where most of what was told under them is."""
        if not len(self._weights):
            return
        centres = speaker_vectors(
            self._vectors,
            self._weights,
            n_speakers=None,
            most=self._most,
            distance=self._distances.again,
            least_weight=self._live.least_speech_s,
        )
        labels = np.argmax(self._vectors @ centres.T, axis=1)
        names = self._names_of(labels, len(centres))
        self._sums = np.stack(
            [
                (self._vectors[labels == i] * self._weights[labels == i, None]).sum(axis=0)
                for i in range(len(centres))
            ]
        )
        self._names = names

    def _names_of(self, labels: Labels, n_centres: int) -> list[str]:
        """The names of new centres: those of the old ones that they share most with, the largest first."""
        names: dict[int, str] = {}
        if self._names:
            before = np.argmax(self._vectors @ self._centres.T, axis=1)
            shared = np.zeros((n_centres, len(self._names)))
            np.add.at(shared, (labels, before), self._weights)
            for place in np.argsort(-shared, axis=None, kind="stable"):
                new, old = divmod(int(place), len(self._names))
                if shared[new, old] > 0 and new not in names and self._names[old] not in names.values():
                    names[new] = self._names[old]
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
        """Who speaks when within some seconds; a voice that is not known yet has no name."""
        frame_s = self._local.frame_samples / SAMPLE_RATE
        near = [
            one
            for one in self._placed
            if one.first_frame * frame_s < end_s
            and (one.first_frame + len(one.heard.activity)) * frame_s > start_s
        ]
        if not near:
            return []
        first = min(one.first_frame for one in near)
        last = max(one.first_frame + len(one.heard.activity) for one in near)
        n_speakers = len(self._names)
        scores = np.zeros((last - first, n_speakers + 1), np.float32)
        counts, n_windows = np.zeros(last - first, np.float32), np.zeros(last - first, np.float32)
        for one in near:
            span = slice(one.first_frame - first, one.first_frame - first + len(one.heard.activity))
            for local, speaker in self._assigned(one.heard, is_sure=is_sure):
                scores[span, speaker] += one.heard.activity[:, local]
            counts[span] += (one.heard.activity > ACTIVE).sum(axis=1)
            n_windows[span] += 1
        active = is_heard(scores, np.rint(counts / np.maximum(n_windows, 1)).astype(int))
        found = self._ears.stretches(active)
        names = [*self._names, ""]
        offset_s = first * frame_s
        return [Turn(offset_s + start, offset_s + end, names[who]) for start, end, who in found]

    def _assigned(self, heard: Heard, *, is_sure: bool) -> list[tuple[int, int]]:
        """The speaker of each local speaker; the one after the last is nobody who is known."""
        centres, nobody = self._centres, len(self._names)
        found: list[tuple[int, int]] = []
        for local, speaker in assigned(heard, centres):
            distance = 1.0 - float(heard.vectors[local] @ centres[speaker])
            found.append((local, speaker if is_sure or distance <= self._distances.known else nobody))
        known = {local for local, _ in found}
        return found + [
            (local, nobody) for local in range(len(heard.vectors)) if local not in known and not is_sure
        ]
