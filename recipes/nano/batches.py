"""Batches of samples as tensors: sorted by length, so that little is padding.

Rows are padded with the value of silence or, half of them, with 0.0: openai-whisper and faster-whisper
fill a window with 0.0 after normalisation, transformers and whisper.cpp with silence, and the model must
not care. Token ids are mapped to rows of the small table that is trained.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from recipes.nano.model import TokenTable
from recipes.nano.samples import IGNORED, Sample, SampleMaker, Utterance
from sottovoce.errors import OptionError

FULL_WINDOW = 3000
HIDING = (4.0, 8.0, 15.0, 30.0)
"""Depths of the attention bias over speech in another language: from faint to not at all."""
MAX_MARGIN_FRAMES = 8


@dataclass(slots=True)
class Batch:
    """Tensors of B samples; L tokens, T log-mel frames.

    mel: (B, 80, T) float32. inputs, targets: (B, L) int64 rows of the token table, targets IGNORED where
    nothing is learnt. places: (B, L) float32, encoder frame of timestamps and of the end, -1 elsewhere.
    spans: (B, L, 2) int64, symbols of each target, -1 without sound. symbols: one list a row. languages:
    (B,) row of the language token, IGNORED for none; windows: (B, 2) int64 encoder frames to tell it from.
    hidden: (B, n_frames) float32, added to the logits of the cross-attention; None where all is heard.
    seconds: audio in the batch.
    """

    mel: Tensor
    inputs: Tensor
    targets: Tensor
    places: Tensor
    spans: Tensor
    symbols: list[list[int]]
    languages: Tensor
    windows: Tensor
    hidden: Tensor | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Curriculum:
    """How the batches change with the progress of training, 0 to 1.

    frames: encoder frames a batch. limits: (progress, longest clip in log-mel frames) steps. windows_from:
    progress at which full 30 s windows begin; every windows_every-th batch is then one. shares: how often
    the clips of a language are heard beside those of the others, 1 if not named.
    """

    frames: int = 2000
    limits: tuple[tuple[float, int], ...] = ((0.15, 300), (0.35, 420), (0.5, 600))
    windows_from: float = 0.65
    windows_every: int = 12
    windows_size: int = 3
    shares: Mapping[str, float] = field(default_factory=dict)

    def longest(self, progress: float) -> int:
        """Longest clip (log-mel frames) at this progress."""
        return next((limit for until, limit in self.limits if progress < until), FULL_WINDOW)


class BatchMaker:
    """An endless stream of batches; `progress` is set by the trainer."""

    def __init__(
        self,
        clips: Sequence[Utterance],
        language_clips: Sequence[int],
        maker: SampleMaker,
        table: TokenTable,
        curriculum: Curriculum,
        rng: random.Random,
    ) -> None:
        """language_clips: indices of clips whose language is learnt from a short cut.

        Raises: OptionError for a share of a language that no clip is in.
        """
        self.clips, self.language_clips = list(clips), list(language_clips)
        self._maker, self._table, self._curriculum, self._rng = maker, table, curriculum, rng
        self._by_language: dict[str, list[Utterance]] = {}
        for clip in clips:
            self._by_language.setdefault(clip.language, []).append(clip)
        strangers = sorted(set(curriculum.shares) - set(self._by_language))
        if strangers:
            known = ", ".join(sorted(self._by_language))
            raise OptionError(
                f"share of {', '.join(strangers)}: expected one of the clips' languages, {known}"
            )
        self.progress = 0.0

    def __iter__(self) -> Iterator[Batch]:
        """Batches without end."""
        n_made = 0
        while True:
            for group in self._groups():
                yield self.collate([self._sample(clip) for clip in group])
                n_made += 1
                full = self.progress > self._curriculum.windows_from
                if full and n_made % self._curriculum.windows_every == 0:
                    yield self.full_windows()

    def full_windows(self) -> Batch:
        """Windows of 30 s with several clips, padded to the end."""
        samples = []
        for _ in range(self._curriculum.windows_size):
            clips = self._rng.choice(list(self._by_language.values()))
            chosen = [self._rng.choice(clips) for _ in range(self._rng.randint(1, 7))]
            samples.append(self._maker.transcript(chosen, max_frames=FULL_WINDOW - 10))
        return self.collate(samples, n_frames=FULL_WINDOW)

    def collate(self, samples: Sequence[Sample], n_frames: int | None = None) -> Batch:
        """Pad samples to a batch of n_frames log-mel frames (the longest sample's, if not given)."""
        longest = max(len(sample.mel) for sample in samples)
        n_frames = n_frames or min(FULL_WINDOW, (longest + self._rng.randint(0, 8) + 7) // 8 * 8)
        n_tokens = max(len(sample.inputs) for sample in samples)
        mel = np.zeros((len(samples), n_frames, 80), dtype=np.float32)
        for row, sample in enumerate(samples):
            mel[row] = sample.floor if self._rng.random() < 0.5 else 0.0
            mel[row, : len(sample.mel)] = sample.mel[:n_frames]
        to_row = self._table.rows_of
        return Batch(
            mel=torch.from_numpy(mel).transpose(1, 2).contiguous(),
            inputs=_stack([to_row(sample.inputs) for sample in samples], n_tokens, 0),
            targets=_stack([to_row(sample.targets) for sample in samples], n_tokens, IGNORED),
            places=_stack([sample.places for sample in samples], n_tokens, -1.0),
            spans=torch.stack([_spans(sample.spans, n_tokens) for sample in samples]),
            symbols=[sample.symbols for sample in samples],
            languages=torch.tensor([self._language_row(sample) for sample in samples]),
            windows=torch.tensor([self._window(sample, n_frames // 2) for sample in samples]),
            hidden=self._hidden(samples, n_frames // 2),
            seconds=sum(len(sample.mel) for sample in samples) / 100,
        )

    def _groups(self) -> Iterator[list[Utterance]]:
        """One round over clips that are short enough, as batches of similar length, in random order."""
        longest = self._curriculum.longest(self.progress)
        wanted = [clip for clip in self.clips for _ in range(self._times(clip.language))]
        chosen = [clip for clip in wanted if clip.n_frames < longest] or self.clips
        chosen = self._rng.sample(chosen, min(2000, len(chosen)))
        chosen.sort(key=lambda clip: clip.n_frames + self._rng.uniform(0, 10))
        groups: list[list[Utterance]] = [[]]
        for clip in chosen:
            if groups[-1] and (clip.n_frames // 2 + 20) * (len(groups[-1]) + 1) > self._curriculum.frames:
                groups.append([])
            groups[-1].append(clip)
        self._rng.shuffle(groups)
        yield from groups

    def _times(self, language: str) -> int:
        """A language's share as a whole number, the rest by chance."""
        whole, rest = divmod(self._curriculum.shares.get(language, 1.0), 1)
        return int(whole) + (self._rng.random() < rest)

    def _sample(self, clip: Utterance) -> Sample:
        mix, draw = self._maker.mix, self._rng.random()
        if draw < mix.no_speech:
            return self._maker.no_speech(max(20, clip.n_frames))
        if draw < mix.no_speech + mix.language_only:
            return self._maker.language_only(self._rng.choice(self.language_clips))
        fellows = self._by_language[clip.language]
        if self._rng.random() < mix.two_languages:
            return self._two_languages(clip)
        several = self._rng.random() < mix.several_clips
        clips = [clip, self._rng.choice(fellows)] if several else [clip]
        prompted = self._rng.random() < mix.prompt
        prompt = self._rng.choice(fellows).tokens if prompted else ()
        return self._maker.transcript(clips, prompt=prompt)

    def _two_languages(self, clip: Utterance) -> Sample:
        """Two or three clips in two languages, of which one is to be written."""
        others = [clips for language, clips in self._by_language.items() if language != clip.language]
        if not others:
            return self._maker.transcript([clip])
        other = self._rng.choice(others)
        clips = [clip, self._rng.choice(other)]
        if self._rng.random() < 0.5:
            clips.append(self._rng.choice(self._by_language[self._rng.choice(clips).language]))
        self._rng.shuffle(clips)
        return self._maker.transcript(clips, language=clips[0].language)

    def _hidden(self, samples: Sequence[Sample], n_frames: int) -> Tensor | None:
        """Hidden frames, a little more than the speech, by a bias that differs from row to row."""
        if not any(sample.hidden for sample in samples):
            return None
        bias = torch.zeros(len(samples), n_frames)
        for row, sample in enumerate(samples):
            depth = self._rng.choice(HIDING)
            for start, end in sample.hidden:
                margin = self._rng.randint(0, MAX_MARGIN_FRAMES)
                bias[row, max(0, int(start) - margin) : int(end) + margin] = -depth
        return bias

    def _language_row(self, sample: Sample) -> int:
        return IGNORED if sample.language is None else self._table.language_row(sample.language)

    def _window(self, sample: Sample, n_frames: int) -> tuple[int, int]:
        """1 to 3 s inside the speech, from which the language is to be told."""
        if sample.speech is None:
            return 0, n_frames
        start, end = sample.speech
        width = self._rng.randint(50, 150)
        first = min(int(self._rng.uniform(start, max(start, end - width))), n_frames - 1)
        return first, min(first + width, n_frames)


def _stack(rows: Sequence[Sequence[float]], length: int, padding: float) -> Tensor:
    return torch.tensor([[*row, *[padding] * (length - len(row))] for row in rows])


def _spans(spans: Sequence[tuple[int, int]], length: int) -> Tensor:
    return torch.tensor([*spans, *[(-1, -1)] * (length - len(spans))])
