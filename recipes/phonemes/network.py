"""The phoneme network of the package `hama`: sound in, log-probabilities of IPA phonemes out."""

from __future__ import annotations

import importlib

import numpy as np
import numpy.typing as npt

from sottovoce.types import SAMPLE_RATE, Samples


class PhonemeNetwork:
    """labels: 191 of IPA, Korean ones too; `|` stands between words. blank, separator: their ids.

    Raises:
        ImportError: without `hama` (Apache-2.0): `pip install --no-deps hama==1.7.0`.
    """

    def __init__(self) -> None:
        self._model = importlib.import_module("hama").ASRModel()
        tokens: list[str] = self._model.decoder_tokens
        names = {"<wb>": "|", " ": "<space>"}  # a space of written Korean, which is no end of a word
        self.labels = tuple(names.get(token, token) for token in tokens)
        self.blank, self.separator = tokens.index("<blank>"), tokens.index("<wb>")

    def log_probs(self, samples: Samples) -> npt.NDArray[np.float32]:
        """Return log-probabilities (T, 191) of samples at 16 kHz; a frame is 20 ms."""
        assert self._model.model_sample_rate == SAMPLE_RATE
        given = {"waveform": samples[None].astype(np.float32), "waveform_lengths": np.array([len(samples)])}
        log_probs, lengths = self._model.session.run(["log_probs", "out_lengths"], given)
        row: npt.NDArray[np.float32] = log_probs[0, : int(lengths[0])]
        return row
