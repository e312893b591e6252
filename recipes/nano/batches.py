"""Training samples, and batches of them as tensors.

A sample is one window of audio, what the decoder reads and should say, and where each token is. Five tasks
share a batch: transcripts, with or without timestamps, of one clip or of several with pauses, sometimes after
a prompt; one language in a window of two, the other hidden from the decoder; the language alone, from a short
cut; and no speech at all.

A batch is sorted by length, so that little is padding. Rows are padded with the value of silence or, half of
them, with 0.0: openai-whisper and faster-whisper fill a window with 0.0 after normalisation, transformers and
whisper.cpp with silence, and the model must not care. Token ids become rows of the trained table.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from recipes.nano.augment import Augmenter, Mel, silence
from recipes.nano.clips import FeatureStore
from recipes.nano.model import IGNORED, TokenTable
from recipes.nano.pieces import CtcSymbols, Pieces, token_spans
from recipes.nano.texts import spelled
from sottovoce.errors import OptionError
from sottovoce.text.tokenizer import Tokenizer

NO_SPEECH, LANGUAGE_ONLY, TWO_LANGUAGES = 0.04, 0.06, 0.06
SEVERAL_CLIPS, TIMESTAMPS, PROMPT = 0.2, 0.45, 0.05
"""Shares of the tasks in a batch; the rest are transcripts of one clip."""
REPLACED_INPUTS = 0.05
TIMESTAMP_EDGE_FRAMES = 3
"""Clips keep 30 ms of silence at both ends (see `trim_silence`): speech begins that much later."""
MAX_PROMPT_TOKENS = 200
BATCH_FRAMES = 2000
"""Encoder frames of a batch."""
FULL_WINDOW = 3000
LIMITS = ((0.15, 300), (0.35, 420), (0.5, 600))
"""Until which progress of the training which clip is the longest, in log-mel frames."""
WINDOWS_FROM, WINDOWS_EVERY, WINDOWS_AT_ONCE = 0.65, 12, 3
"""From which progress on every twelfth batch holds full windows of 30 s, and how many."""
HIDING = (4.0, 8.0, 15.0, 30.0)
"""Depths of the attention bias over speech in another language: from faint to not at all."""
MAX_MARGIN_FRAMES = 8


@dataclass(frozen=True, slots=True)
class Utterance:
    """A clip with everything that training needs of its text.

    spans: first and last CTC symbol of each token, as indices into `symbols`.
    """

    index: int
    language: str
    tokens: tuple[int, ...]
    symbols: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    n_frames: int


@dataclass(slots=True)
class Sample:
    """One row of a batch.

    mel: normalised (n_frames, 80); floor: the value of silence in it. inputs, targets: Whisper's ids, of
    equal length; IGNORED targets are not learnt. places: for each target the encoder frame (20 ms) where
    a timestamp points or the text ends, -1 for others. spans: for each target first and last symbol, -1
    for tokens without sound. speech: first and last encoder frame of speech in the language. hidden:
    encoder frames from and to which the decoder shall not listen, as they are in another language.
    """

    mel: Mel
    floor: float
    inputs: list[int]
    targets: list[int]
    places: list[float]
    spans: list[tuple[int, int]]
    symbols: list[int]
    language: str | None
    speech: tuple[float, float] | None
    hidden: list[tuple[float, float]] = field(default_factory=list)


def utterances(
    store: FeatureStore, chosen: Sequence[int], pieces: Pieces, symbols: CtcSymbols
) -> list[Utterance]:
    """The chosen clips of a store that have a text, each as often as it is to be heard in a round."""
    found = []
    for index in chosen:
        clip = store.clips[index]
        if clip.text is None:
            continue
        tokens = pieces.encode(clip.text, clip.language)
        spelling = spelled(clip.language, clip.text)
        spans = token_spans(pieces, tokens, clip.text, clip.language)
        ids = symbols.encode(spelling)
        if len(ids) == len(spelling):  # a rare symbol would shift every span after it
            item = Utterance(
                index, clip.language, tuple(tokens), tuple(ids), tuple(spans), store.n_frames(index)
            )
            found += [item] * clip.times
    return found


class SampleMaker:
    """Makes samples of clips; every random decision comes from one generator."""

    def __init__(
        self,
        store: FeatureStore,
        tokenizer: Tokenizer,
        augmenter: Augmenter,
        rng: random.Random,
        *,
        separator: int,
    ) -> None:
        """separator: the CTC symbol between two clips (the space)."""
        self._store, self._tokenizer, self._augmenter = store, tokenizer, augmenter
        self._rng, self._separator = rng, separator

    def no_speech(self, n_frames: int) -> Sample:
        """Silence or noise: SOT is followed by nospeech, where Whisper reads it."""
        mel, floor = self._augmenter.no_speech(n_frames)
        sot, none = self._tokenizer.sot, self._tokenizer.no_speech
        unplaced = [(-1, -1)] * 2
        end = self._tokenizer.eot
        return Sample(mel, floor, [sot, none], [none, end], [-1.0, -1.0], unplaced, [], None, None)

    def language_only(self, index: int) -> Sample:
        """A cut of 0.5 to 3 s: its language, nothing else."""
        mel = self._augmenter.clip(self._store.log_mel(index).astype(np.float32))
        n_frames = min(len(mel), self._rng.randint(50, 300))
        start = self._rng.randint(0, len(mel) - n_frames)
        mel, floor = self._augmenter.window(mel[start : start + n_frames])
        language = self._store.clips[index].language
        target = self._tokenizer.language_token(language)
        return Sample(mel, floor, [self._tokenizer.sot], [target], [-1.0], [(-1, -1)], [], None, None)

    def transcript(
        self,
        clips: Sequence[Utterance],
        *,
        language: str | None = None,
        max_frames: int = 3000,
        prompt: Sequence[int] = (),
    ) -> Sample:
        """One or several clips with pauses; what does not fit into max_frames is left out.

        language: of the text, the first clip's if None. Clips in another one are heard by the encoder
        and hidden from the decoder.
        """
        mel, bounds = self._joined(clips, max_frames)
        clips = clips[: len(bounds)]
        mel, floor = self._augmenter.window(mel)
        timed = self._rng.random() < TIMESTAMPS
        language = language or clips[0].language
        own = [at for clip, at in zip(clips, bounds, strict=True) if clip.language == language]
        sample = Sample(mel, floor, [], [], [], [], [], language, None)
        if own:
            sample.speech = (own[0][0], own[-1][1] if len(own) == len(clips) else own[0][1])
        self._write_tokens(sample, clips, bounds, timed)
        self._replace_inputs(sample, clips)
        if prompt:
            before = [self._tokenizer.sot_prev, *prompt[-MAX_PROMPT_TOKENS:]]
            sample.inputs = [*before, *sample.inputs]
            sample.targets = [*[IGNORED] * len(before), *sample.targets]
            sample.places = [*[-1.0] * len(before), *sample.places]
            sample.spans = [*[(-1, -1)] * len(before), *sample.spans]
        return sample

    def _joined(self, clips: Sequence[Utterance], max_frames: int) -> tuple[Mel, list[tuple[float, float]]]:
        """Log-mel of the clips with silence around them, and where each speaks, in encoder frames."""
        parts = [silence(self._rng.choice((0, self._rng.randint(0, 40), self._rng.randint(0, 120))))]
        n_frames = len(parts[0])
        bounds: list[tuple[float, float]] = []
        for clip in clips:
            mel = self._augmenter.clip(self._store.log_mel(clip.index).astype(np.float32))
            pause = self._rng.randint(15, 110) if bounds else 0
            if bounds and n_frames + pause + len(mel) > max_frames:
                break
            mel = mel[: max_frames - n_frames - pause]
            parts += [silence(pause), mel]
            start, n_frames = n_frames + pause, n_frames + pause + len(mel)
            bounds.append(((start + TIMESTAMP_EDGE_FRAMES) / 2, (n_frames - TIMESTAMP_EDGE_FRAMES) / 2))
        parts.append(silence(min(self._rng.choice((0, self._rng.randint(0, 60))), max_frames - n_frames)))
        return np.concatenate(parts), bounds

    def _write_tokens(
        self, sample: Sample, clips: Sequence[Utterance], bounds: Sequence[tuple[float, float]], timed: bool
    ) -> None:
        assert sample.language is not None
        tokenizer = self._tokenizer.with_language(sample.language)
        head = tokenizer.sot_sequence if timed else tokenizer.sot_sequence_including_notimestamps
        tokens, places, spans = list(head), [-1.0] * len(head), [(-1, -1)] * len(head)
        for clip, (start, end) in zip(clips, bounds, strict=True):
            if sample.symbols:
                sample.symbols.append(self._separator)
            offset = len(sample.symbols)
            sample.symbols += clip.symbols
            if clip.language != sample.language:
                sample.hidden.append((start, end))
                continue
            stamps = [start] if timed else []
            tokens += [*map(self._timestamp, stamps), *clip.tokens]
            places += [*stamps, *[-1.0] * len(clip.tokens)]
            spans += [*[(-1, -1)] * len(stamps), *[(offset + a, offset + b) for a, b in clip.spans]]
            if timed:
                tokens.append(self._timestamp(end))
                places.append(end)
                spans.append((-1, -1))
        sample.inputs, sample.targets = tokens, [*tokens[1:], tokenizer.eot]
        finished = sample.speech[1] if sample.speech and not sample.hidden else -1.0
        sample.places, sample.spans = [*places[1:], finished], [*spans[1:], (-1, -1)]

    def _timestamp(self, frame: float) -> int:
        return self._tokenizer.timestamp_begin + min(1500, round(frame))

    def _replace_inputs(self, sample: Sample, clips: Sequence[Utterance]) -> None:
        """Read some wrong tokens, so that one mistake does not end a transcript."""
        choices = [token for clip in clips for token in clip.tokens]
        for place, token in enumerate(sample.inputs):
            if token < self._tokenizer.eot and self._rng.random() < REPLACED_INPUTS:
                sample.inputs[place] = self._rng.choice(choices)


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


class BatchMaker:
    """An endless stream of batches; `progress` is set by the trainer."""

    def __init__(
        self,
        clips: Sequence[Utterance],
        language_clips: Sequence[int],
        maker: SampleMaker,
        table: TokenTable,
        shares: Mapping[str, float],
        rng: random.Random,
    ) -> None:
        """language_clips: indices of clips whose language is learnt from a short cut. shares: how often a
        round has the clips of a language, 1 for those that are not named.

        Raises: OptionError for a share of a language that no clip is in.
        """
        self.clips, self.language_clips = list(clips), list(language_clips)
        self._maker, self._table, self._shares, self._rng = maker, table, shares, rng
        self._by_language: dict[str, list[Utterance]] = {}
        for clip in clips:
            self._by_language.setdefault(clip.language, []).append(clip)
        strangers = sorted(set(shares) - set(self._by_language))
        if strangers:
            known = ", ".join(sorted(self._by_language))
            raise OptionError(
                f"share of {', '.join(strangers)}: expected one of the clips' languages, {known}"
            )
        self.progress = 0.0

    def __iter__(self) -> Iterator[Batch]:
        n_made = 0
        while True:
            for group in self._groups():
                yield self.collate([self._sample(clip) for clip in group])
                n_made += 1
                if self.progress > WINDOWS_FROM and n_made % WINDOWS_EVERY == 0:
                    yield self.full_windows()

    def full_windows(self) -> Batch:
        """Windows of 30 s with several clips, padded to the end."""
        samples = []
        for _ in range(WINDOWS_AT_ONCE):
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
        longest = next((limit for until, limit in LIMITS if self.progress < until), FULL_WINDOW)
        wanted = [clip for clip in self.clips for _ in range(self._times(clip.language))]
        chosen = [clip for clip in wanted if clip.n_frames < longest] or self.clips
        chosen = self._rng.sample(chosen, min(2000, len(chosen)))
        chosen.sort(key=lambda clip: clip.n_frames + self._rng.uniform(0, 10))
        groups: list[list[Utterance]] = [[]]
        for clip in chosen:
            if groups[-1] and (clip.n_frames // 2 + 20) * (len(groups[-1]) + 1) > BATCH_FRAMES:
                groups.append([])
            groups[-1].append(clip)
        self._rng.shuffle(groups)
        yield from groups

    def _times(self, language: str) -> int:
        """A language's share as a whole number, the rest by chance."""
        whole, rest = divmod(self._shares.get(language, 1.0), 1)
        return int(whole) + (self._rng.random() < rest)

    def _sample(self, clip: Utterance) -> Sample:
        draw = self._rng.random()
        if draw < NO_SPEECH:
            return self._maker.no_speech(max(20, clip.n_frames))
        if draw < NO_SPEECH + LANGUAGE_ONLY:
            return self._maker.language_only(self._rng.choice(self.language_clips))
        fellows = self._by_language[clip.language]
        if self._rng.random() < TWO_LANGUAGES:
            return self._two_languages(clip)
        several = self._rng.random() < SEVERAL_CLIPS
        clips = [clip, self._rng.choice(fellows)] if several else [clip]
        prompted = self._rng.random() < PROMPT
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
