"""Several languages at once: one encoder pass, one decoder row for each active language, fused by time.

Every row has its own start-of-transcript sequence, its own committed text and its own cache, and is
softly kept to the frames that the language timeline gives its language. Where words of two rows lie on
the same audio, the higher log p + lambda * log q wins (p: of the decoder, q: of the timeline).

Not known here: when updates are due, voice activity, and how the timeline comes about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.audio.mel import window_features
from sottovoce.backends.base import Backend
from sottovoce.decoding.filters import LogitFilter
from sottovoce.errors import OptionError
from sottovoce.language.timeline import LanguageTimeline, TimelineFrame
from sottovoce.streaming.alignatt import (
    AttentionTracker,
    Ending,
    Reading,
    ReadingRules,
    most_tokens,
    n_looping,
)
from sottovoce.streaming.committed import CommittedWords
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.stream import context_frames, live_filters
from sottovoce.streaming.window import MELS_PER_FRAME, MelBuffer, Window
from sottovoce.streaming.words import ReadWord, WordMaker
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, EncoderOutput, Samples, Word


@dataclass(frozen=True, slots=True)
class ParallelOptions:
    """How rows are gated and fused.

    max_languages: rows at most. active_share: a language is active when the timeline gives it this much
        of some frame. bias: strength of the soft mask, a factor on the log of a frame's share over the
        largest share (the owner of a frame is never held back). weight: lambda.
    stable_s: a word waits until the timeline is this far past it. least_share: a word whose language has
        less of its frames than this part of the largest share is dropped.
    """

    max_languages: int = 2
    active_share: float = 0.3
    bias: float = 1.0
    weight: float = 0.5
    stable_s: float = 0.25
    least_share: float = 0.5

    def __post_init__(self) -> None:
        if self.max_languages < 1:
            raise OptionError(f"max_languages: expected at least 1, got {self.max_languages}")
        for name, value in (("active_share", self.active_share), ("least_share", self.least_share)):
            if not 0.0 <= value <= 1.0:
                raise OptionError(f"{name}: expected 0 to 1, got {value}")
        if self.bias < 0.0 or self.weight < 0.0 or self.stable_s < 0.0:
            raise OptionError("bias, weight, stable_s: expected 0 or more")


_LEAST_SHARE = 1e-3
_OVERLAP_S = 0.06
"""Words of two rows this near to each other lie on the same audio."""


def shares_over(
    frames: Sequence[TimelineFrame], window: Window, belief: Sequence[float]
) -> npt.NDArray[np.float64]:
    """The timeline at every frame of a window: (n_frames, L), between stretches by straight lines.

    belief: (L,), what is believed where no stretch of the window was heard.
    """
    heard = [frame for frame in frames if frame.end_s > window.start_s]
    n_languages = len(belief)
    if not heard:
        return np.tile(np.asarray(belief, dtype=np.float64), (window.n_frames, 1))
    centres = np.array([frame.centre_s for frame in heard])
    table = np.stack([frame.heard for frame in heard])
    at = window.start_s + (np.arange(window.n_frames) + 0.5) / FRAMES_PER_SECOND
    return np.stack([np.interp(at, centres, table[:, i]) for i in range(n_languages)], axis=1)


def frame_bias(shares: npt.NDArray[np.float64], language: int, strength: float) -> npt.NDArray[np.float64]:
    """Bias (n_frames,) on the attention of a language's row: 0 on frames it owns, negative elsewhere."""
    ratio = np.maximum(shares[:, language], _LEAST_SHARE) / np.maximum(shares.max(axis=1), _LEAST_SHARE)
    bias: npt.NDArray[np.float64] = strength * np.log(ratio)
    return bias


@dataclass(slots=True)
class _Row:
    """What one language's row has said in this update."""

    tokens: list[int]
    frames: list[int]
    logprobs: list[float]
    entropies: list[float]

    def reading(self, ending: Ending, n_kept: int | None = None, refused: int | None = None) -> Reading:
        kept = slice(None, n_kept)
        return Reading(
            tuple(self.tokens[kept]),
            tuple(self.frames[kept]),
            tuple(self.logprobs[kept]),
            tuple(self.entropies[kept]),
            ending,
            sum(self.logprobs) / max(1, len(self.logprobs)),
            refused,
        )


class ParallelReader:
    """Greedy AlignAtt for several prefixes over one window, as rows of one batch."""

    def __init__(self, backend: Backend, eot: int, filters: tuple[LogitFilter, ...]) -> None:
        self._backend = backend
        self._eot = eot
        self._filters = filters

    @torch.inference_mode()
    def read(
        self, encoded: EncoderOutput, prefixes: Sequence[tuple[int, ...]], biases: Tensor, rules: ReadingRules
    ) -> list[Reading]:
        """One reading for each prefix; biases (R, n_frames). A row reads as it would alone."""
        device = self._backend.device
        longest = max(map(len, prefixes))
        padding = torch.tensor([longest - len(prefix) for prefix in prefixes], device=device)
        tokens = torch.tensor([[self._eot] * (longest - len(p)) + [*p] for p in prefixes], device=device)
        state = self._backend.start(
            encoded, len(prefixes), left_padding=padding if bool(padding.any()) else None
        )
        tracker = AttentionTracker(encoded.n_content_frames[0])
        rows = [_Row([], [], [], []) for _ in prefixes]
        open_rows = list(range(len(prefixes)))
        readings: dict[int, Reading] = {}
        heads = self._backend.alignment_heads
        n_padding: Tensor | None = padding
        for _ in range(min(rules.max_tokens, self._backend.dims.n_text_ctx - longest)):
            output = self._backend.step(tokens, state, capture=heads, bias=biases[open_rows])
            assert output.attention is not None
            tracker.extend(output.attention, n_padding=n_padding)
            n_padding = None
            going = self._advance(output.logits[:, -1], tracker, rows, open_rows, readings, rules)
            if not going:
                break
            if len(going) < len(open_rows):
                order = torch.tensor(going, device=device)
                state.reorder(order)
                tracker.reorder(order)
            open_rows = [open_rows[i] for i in going]
            tokens = torch.tensor([[rows[row].tokens[-1]] for row in open_rows], device=device)
        for row in open_rows:
            readings.setdefault(row, rows[row].reading(Ending.FULL))
        return [readings[row] for row in range(len(prefixes))]

    def _advance(
        self,
        logits: Tensor,
        tracker: AttentionTracker,
        rows: list[_Row],
        open_rows: list[int],
        readings: dict[int, Reading],
        rules: ReadingRules,
    ) -> list[int]:
        """Give each open row its next token or its end; the places of those that go on."""
        logits = logits.float().clone()
        sampled = torch.tensor(
            [rows[row].tokens for row in open_rows], dtype=torch.int64, device=logits.device
        )
        for rule in self._filters:
            rule.apply(logits, sampled.reshape(len(open_rows), -1))
        log_probs = logits.log_softmax(dim=-1)
        entropies = torch.special.entr(log_probs.exp()).sum(dim=-1).tolist()
        values, tokens = (part.tolist() for part in log_probs.max(dim=-1))
        going = []
        for place, (row, frame) in enumerate(zip(open_rows, tracker.frontier().tolist(), strict=True)):
            said, token = rows[row], tokens[place]
            last = said.frames[-1] if said.frames else None
            if token == self._eot:
                readings[row] = said.reading(Ending.END_OF_TEXT)
            elif rules.rewound(frame, last):
                readings[row] = said.reading(Ending.REWOUND, 0)
            elif rules.at_frontier(frame, tracker.n_frames):
                readings[row] = said.reading(Ending.FRONTIER, refused=token)
            else:
                said.tokens.append(token)
                said.frames.append(frame)
                said.logprobs.append(values[place])
                said.entropies.append(entropies[place])
                if n_looped := n_looping(said.tokens, rules.max_repeats):
                    readings[row] = said.reading(Ending.REPEATED, len(said.tokens) - n_looped)
                else:
                    going.append(place)
        return going


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A word of one row: its fused score, its language's share and part of the largest share there, and
    how far before the end of the audio it lies."""

    read: ReadWord
    score: float
    ownership: float
    margin_s: float

    def beats(self, other: Candidate) -> bool:
        """Higher score; within 0.01, lower entropy, then the larger margin."""
        if abs(self.score - other.score) > 0.01:
            return self.score > other.score
        if abs(self.read.entropy - other.read.entropy) > 0.01:
            return self.read.entropy < other.read.entropy
        return self.margin_s >= other.margin_s


def fuse(rows: Sequence[Sequence[Candidate]], least_share: float) -> list[ReadWord]:
    """Words that win their audio, in order of time.

    A word stands when its language has enough of the frames and no overlapping word of another row that
    does so too beats it.
    """
    able = [[word for word in row if word.ownership >= least_share] for row in rows]
    winners = [
        word
        for i, row in enumerate(able)
        for word in row
        if all(
            not _overlap(word, other) or word.beats(other)
            for j, others in enumerate(able)
            if j != i
            for other in others
        )
    ]
    return sorted((word.read for word in winners), key=lambda read: (read.word.start, read.word.end))


def _overlap(a: Candidate, b: Candidate) -> bool:
    return (
        a.read.word.start < b.read.word.end + _OVERLAP_S and b.read.word.start < a.read.word.end + _OVERLAP_S
    )


class ParallelStream:
    """Words of several languages from audio that is still coming; used like `Stream`.

    timeline: followed, not changed.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        options: StreamOptions,
        parallel: ParallelOptions,
        timeline: LanguageTimeline,
        *,
        start_sample: int = 0,
    ) -> None:
        self._backend = backend
        self._options = options
        self._parallel = parallel
        self._timeline = timeline
        self._tokenizers = [
            tokenizer.with_language(code).with_task(options.task) for code in timeline.languages
        ]
        self._mels = MelBuffer(backend.dims.n_mels, start_sample, backend.device)
        self._committed = CommittedWords(start_sample / SAMPLE_RATE)
        self._reader = ParallelReader(
            backend, tokenizer.eot, live_filters(tokenizer, backend.dims.n_vocab, backend.device)
        )

    @property
    def language(self) -> str:
        """The timeline's; words carry their own."""
        return self._timeline.current or self._timeline.languages[0]

    @property
    def start_sample(self) -> int:
        return self._mels.start_sample

    @property
    def end_sample(self) -> int:
        return self._mels.end_sample

    @property
    def committed_until_s(self) -> float:
        return self._committed.until_s

    @property
    def waiting(self) -> tuple[Word, ...]:
        """Nothing is shown before it is committed."""
        return ()

    @property
    def context(self) -> tuple[int, ...]:
        """Prompts are not used: text of one language would mislead the row of another."""
        return ()

    def append(self, samples: Samples) -> None:
        self._mels.append(samples)

    def encode(self, *, final: bool = False, until_sample: int | None = None) -> Window | None:
        """See `Stream.encode`."""
        limit_s = self._options.audio_max_len_s
        if (self._mels.end_sample - self._mels.start_sample) / SAMPLE_RATE > limit_s:
            earliest_s = self._mels.end_sample / SAMPLE_RATE - limit_s
            cut_s = self._committed.cut_point(earliest_s, earliest_s + self._options.audio_trim_s)
            self._committed.drop_before(cut_s)
            self._mels.cut(round(cut_s * SAMPLE_RATE))
        frames = self._mels.frames(final=final, until_sample=until_sample)
        if frames.shape[1] < MELS_PER_FRAME:
            return None
        n_frames = context_frames(frames.shape[1], self._options, self._backend.dims.n_audio_ctx)
        encoded = self._backend.encode(window_features([frames], n_frames))
        content = (frames.shape[1] // MELS_PER_FRAME,)
        return Window(EncoderOutput(encoded.states, content, encoded.cross_kv), self._mels.start_sample)

    def commit(self, window: Window, *, settled_until_s: float = math.inf, final: bool = False) -> list[Word]:
        """Commit the words that won their audio and that the timeline and every row have passed."""
        frames = self._timeline.frames
        threshold = self._options.final_frame_threshold if final else self._options.frame_threshold
        if threshold >= window.n_frames:
            return []
        rules = ReadingRules(
            threshold,
            self._options.rewind_threshold,
            self._options.max_repeats,
            most_tokens(window.end_s - window.start_s),
        )
        shares = shares_over(frames, window, list(self._timeline.belief.values()))
        active = self._active(shares)
        readings = self._read(window, shares, active, rules)
        stable_s = math.inf if final or not frames else frames[-1].centre_s - self._parallel.stable_s
        if not final:
            stable_s = min(stable_s, settled_until_s, *(self._read_until(r, window) for r in readings))
        rows = [
            self._candidates(reading, window, shares, language, final=final)
            for reading, language in zip(readings, active, strict=True)
        ]
        taken = []
        for read in fuse(rows, self._parallel.least_share):
            if read.word.end <= stable_s and read.word.start >= self._committed.until_s - 1e-6:
                self._committed.add(read)
                taken.append(read.word)
        return taken

    def finish(self, until_sample: int | None = None, *, settled_until_s: float = math.inf) -> list[Word]:
        """See `Stream.finish`."""
        window = self.encode(final=True, until_sample=until_sample)
        return [] if window is None else self.commit(window, final=True)

    def _active(self, shares: npt.NDArray[np.float64]) -> list[int]:
        """Languages with a share in the window, the largest first."""
        peak, mass = shares.max(axis=0), shares.sum(axis=0)
        order = [int(i) for i in np.argsort(-mass, kind="stable")]
        return [i for n, i in enumerate(order) if n == 0 or peak[i] >= self._parallel.active_share][
            : self._parallel.max_languages
        ]

    def _read(
        self, window: Window, shares: npt.NDArray[np.float64], active: list[int], rules: ReadingRules
    ) -> list[Reading]:
        prefixes = []
        biases = torch.zeros(len(active), window.encoded.n_frames, device=self._backend.device)
        for row, language in enumerate(active):
            tokenizer = self._tokenizers[language]
            said = self._committed.tokens(tokenizer.language)
            prefixes.append((*tokenizer.sot_sequence_including_notimestamps, *said))
            bias = torch.from_numpy(frame_bias(shares, language, self._parallel.bias))
            biases[row, : window.n_frames] = bias.to(biases)
        return self._reader.read(window.encoded, prefixes, biases, rules)

    def _candidates(
        self,
        reading: Reading,
        window: Window,
        shares: npt.NDArray[np.float64],
        language: int,
        *,
        final: bool,
    ) -> list[Candidate]:
        if reading.ending is Ending.REWOUND:
            return []
        maker = WordMaker(self._tokenizers[language])
        candidates = []
        for read in maker.words(reading, window, after_s=window.start_s, final=final):
            first = window.frame(read.word.start)
            last = max(first + 1, window.frame(read.word.end))
            share = shares[min(first, len(shares) - 1) : last]
            q = np.maximum(share[:, language], _LEAST_SHARE)
            score = math.log(max(read.word.probability, 1e-9)) + self._parallel.weight * float(
                np.log(q).mean()
            )
            ownership = float((share[:, language] / np.maximum(share.max(axis=1), _LEAST_SHARE)).mean())
            candidates.append(Candidate(read, score, ownership, window.end_s - read.word.end))
        return candidates

    def _read_until(self, reading: Reading, window: Window) -> float:
        """How far a row has read: to the end of the audio, or to its last token where it was held."""
        if reading.ending in (Ending.END_OF_TEXT, Ending.REPEATED, Ending.REWOUND):
            return math.inf
        frames = self._options.frame_threshold if reading.ending is Ending.FRONTIER else 0
        last = window.n_frames - frames if reading.ending is Ending.FRONTIER else (reading.frames or (0,))[-1]
        return window.seconds(max(0, int(last)))
