"""Training samples: one window of audio, what the decoder reads and should say, and where each token is.

Five tasks share the batch. Transcripts, with or without timestamps, of one clip or of several with pauses,
sometimes after a prompt; of one language in a window of two, the other being hidden from the decoder; the
language alone, from a short cut; and no speech at all. Knows no tensors.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from recipes.nano.augment import Augmenter, Mel, silence
from recipes.nano.clips import FeatureStore
from recipes.nano.pieces import CtcSymbols, Pieces, token_spans
from recipes.nano.texts import spelled
from sottovoce.text.tokenizer import Tokenizer

IGNORED = -100
TIMESTAMP_EDGE_FRAMES = 3
"""Clips keep 30 ms of silence at both ends (see `trim_silence`): speech begins that much later."""
MAX_PROMPT_TOKENS = 200


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


@dataclass(frozen=True, slots=True)
class TaskMix:
    """Shares of the tasks in a batch; what is left is a transcript of one clip."""

    no_speech: float = 0.04
    language_only: float = 0.06
    two_languages: float = 0.06
    several_clips: float = 0.2
    timestamps: float = 0.45
    prompt: float = 0.05
    replaced_inputs: float = 0.05


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
        mix: TaskMix,
        rng: random.Random,
        *,
        separator: int,
    ) -> None:
        """separator: the CTC symbol between two clips (the space)."""
        self._store, self._tokenizer, self._augmenter = store, tokenizer, augmenter
        self.mix, self._rng, self._separator = mix, rng, separator

    def no_speech(self, n_frames: int) -> Sample:
        """Silence or noise: SOT is followed by nospeech, where Whisper reads it."""
        mel, floor = self._augmenter.no_speech(n_frames)
        sot, none = self._tokenizer.sot, self._tokenizer.no_speech
        unplaced = [(-1, -1)] * 2
        end = self._tokenizer.eot
        return Sample(mel, floor, [sot, none], [none, end], [-1.0, -1.0], unplaced, [], None, None)

    def language_only(self, index: int) -> Sample:
        """A cut of 0.5 to 3 s: its language, nothing else."""
        mel = self._augmenter.clip(self._clip(index))
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
        timed = self._rng.random() < self.mix.timestamps
        language = language or clips[0].language
        own = [at for clip, at in zip(clips, bounds, strict=True) if clip.language == language]
        sample = Sample(mel, floor, [], [], [], [], [], language, None)
        if own:
            sample.speech = (own[0][0], own[-1][1] if len(own) == len(clips) else own[0][1])
        self._write_tokens(sample, clips, bounds, timed)
        self._replace_inputs(sample, clips)
        if prompt:
            self._put_before(sample, [self._tokenizer.sot_prev, *prompt[-MAX_PROMPT_TOKENS:]])
        return sample

    def _clip(self, index: int) -> Mel:
        return self._store.log_mel(index).astype(np.float32)

    def _joined(self, clips: Sequence[Utterance], max_frames: int) -> tuple[Mel, list[tuple[float, float]]]:
        """Log-mel of the clips with silence around them, and where each speaks, in encoder frames."""
        parts = [silence(self._rng.choice((0, self._rng.randint(0, 40), self._rng.randint(0, 120))))]
        n_frames = len(parts[0])
        bounds: list[tuple[float, float]] = []
        for clip in clips:
            mel = self._augmenter.clip(self._clip(clip.index))
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
                tokens, places, spans = (
                    [*tokens, self._timestamp(end)],
                    [*places, end],
                    [*spans, (-1, -1)],
                )
        sample.inputs, sample.targets = tokens, [*tokens[1:], tokenizer.eot]
        finished = sample.speech[1] if sample.speech and not sample.hidden else -1.0
        sample.places, sample.spans = [*places[1:], finished], [*spans[1:], (-1, -1)]

    def _timestamp(self, frame: float) -> int:
        return self._tokenizer.timestamp_begin + min(1500, round(frame))

    def _replace_inputs(self, sample: Sample, clips: Sequence[Utterance]) -> None:
        """Read some wrong tokens, so that one mistake does not end a transcript."""
        choices = [token for clip in clips for token in clip.tokens]
        for place, token in enumerate(sample.inputs):
            if token < self._tokenizer.eot and self._rng.random() < self.mix.replaced_inputs:
                sample.inputs[place] = self._rng.choice(choices)

    def _put_before(self, sample: Sample, prompt: list[int]) -> None:
        sample.inputs = [*prompt, *sample.inputs]
        sample.targets = [*[IGNORED] * len(prompt), *sample.targets]
        sample.places = [*[-1.0] * len(prompt), *sample.places]
        sample.spans = [*[(-1, -1)] * len(prompt), *sample.spans]
