"""The speech that a stream holds: its audio, encoded on demand, and the words committed of it.

When it grows past its limit it is cut at a pause between committed words. Not known here: decoding,
languages, and what becomes of the words that are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from sottovoce.audio.mel import DYNAMIC_RANGE, window_features
from sottovoce.backends.base import Backend
from sottovoce.streaming.committed import CommittedWords
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.window import MELS_PER_FRAME, MelBuffer, Window
from sottovoce.streaming.words import ReadWord
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, EncoderOutput, Samples


class HeldSpeech:
    """Audio from a sample on, and the words committed of it."""

    def __init__(self, backend: Backend, options: StreamOptions, start_sample: int) -> None:
        self._backend = backend
        self._options = options
        self._mels = MelBuffer(backend.dims.n_mels, start_sample, backend.device)
        self._frames = torch.zeros(backend.dims.n_mels, 0)
        self.committed = CommittedWords(start_sample / SAMPLE_RATE)

    @property
    def start_sample(self) -> int:
        """First sample held."""
        return self._mels.start_sample

    @property
    def end_sample(self) -> int:
        """Sample after the last one appended."""
        return self._mels.end_sample

    @property
    def unread_s(self) -> float:
        """Seconds of audio after the committed words."""
        return self.end_sample / SAMPLE_RATE - self.committed.until_s

    def append(self, samples: Samples) -> None:
        """Take audio (n,) float32 that follows what was appended before."""
        self._mels.append(samples)

    def encode(self, *, final: bool = False, until_sample: int | None = None) -> Window | None:
        """Encode what is held; None without a frame of audio. See `MelBuffer.frames`."""
        frames = self._mels.frames(final=final, until_sample=until_sample)
        n_frames = frames.shape[1]
        if n_frames < MELS_PER_FRAME:
            return None
        self._frames = frames
        n_context = context_frames(n_frames, self._options, self._backend)
        encoded = self._backend.encode(window_features([frames], n_context))
        return Window(replace(encoded, n_content_frames=(n_frames // MELS_PER_FRAME,)), self.start_sample)

    def encode_parts(self, places: Sequence[npt.NDArray[np.int64]]) -> tuple[EncoderOutput, list[int]]:
        """Encode chosen encoder frames of the last window, joined, as a batch.

        places: of each part, ascending, at least one. Returns the states, and how many frames each part
        would have by itself, rounded up as a window is.
        """
        parts, contexts = [], []
        for chosen in places:
            mels = (MELS_PER_FRAME * chosen[:, None] + np.arange(MELS_PER_FRAME)).reshape(-1)
            parts.append(self._frames[:, torch.from_numpy(mels).to(self._frames.device)])
            contexts.append(context_frames(len(mels), self._options, self._backend))
        encoded = self._backend.encode(window_features(parts, max(contexts)))
        n_content = tuple(len(chosen) for chosen in places)
        return replace(encoded, n_content_frames=n_content), [n // MELS_PER_FRAME for n in contexts]

    def loudness(self, n_frames: int) -> npt.NDArray[np.float64]:
        """How loud the first encoder frames of the last window are: (n_frames,), log10 of power, averaged
        over the spectrum, within Whisper's dynamic range."""
        mels = self._frames[:, : n_frames * MELS_PER_FRAME]
        means = mels.clamp(min=float(mels.max()) - DYNAMIC_RANGE).mean(dim=0)
        loud: npt.NDArray[np.float64] = means.reshape(n_frames, -1).mean(dim=1).double().cpu().numpy()
        return loud

    def trim(self) -> list[ReadWord]:
        """Cut what is held to its limit, at the widest gap between words near it; the words dropped."""
        limit = round(self._options.audio_max_len_s * SAMPLE_RATE)
        crowded = len(self.committed.tokens()) > self._backend.dims.n_text_ctx // 2 - 64
        if self.end_sample - self.start_sample <= limit and not crowded:
            return []
        earliest_s = (self.end_sample - limit) / SAMPLE_RATE
        return self.drop_before(self.committed.cut_point(earliest_s, earliest_s + self._options.audio_trim_s))

    def drop_before(self, cut_s: float) -> list[ReadWord]:
        """Drop audio before a moment, and the words in it, which are returned."""
        gone = self.committed.drop_before(cut_s)
        self._mels.cut(round(cut_s * SAMPLE_RATE))
        return gone


def context_frames(n_frames: int, options: StreamOptions, backend: Backend) -> int:
    """Log-mel frames of the encoder's window for this many frames of audio: rounded up, and the tail."""
    full = 2 * backend.dims.n_audio_ctx
    if options.context_bucket_s is None:
        return full
    bucket = MELS_PER_FRAME * max(1, round(options.context_bucket_s * FRAMES_PER_SECOND))
    tail_s = backend.tail_s if options.tail_s is None else options.tail_s
    tail = MELS_PER_FRAME * round(tail_s * FRAMES_PER_SECOND)
    return min(full, -(-n_frames // bucket) * bucket + tail)
