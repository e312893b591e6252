"""A speech processor for simulstream (https://github.com/hlt-mt/simulstream, Apache-2.0): its server, client
and metrics (StreamLAAL with and without computation) on sottovoce's live sessions.

    pip install simulstream sottovoce
    PYTHONPATH=examples simulstream_inference --speech-processor-config examples/simulstream.yaml \\
        --wav-list-file wavs.txt --src-lang en --tgt-lang en --metrics-log-file metrics.jsonl
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
from simulstream.server.speech_processors import SpeechProcessor
from simulstream.server.speech_processors.incremental_output import IncrementalOutput

import sottovoce
from sottovoce.streaming.options import StreamOptions
from sottovoce.types import Event, Partial, Samples, Unstable


class SottovoceProcessor(SpeechProcessor):
    """Tokens are words. A target language other than that of the speech must be English."""

    model: ClassVar[sottovoce.Model]

    @classmethod
    def load_model(cls, config: SimpleNamespace) -> None:
        cls.model = sottovoce.load_model(config.model, dtype=getattr(config, "dtype", "auto"))

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__(config)
        self._source = self._target = ""
        self.clear()

    def set_source_language(self, language: str) -> None:
        self._source = language
        self.clear()

    def set_target_language(self, language: str) -> None:
        self._target = language
        self.clear()

    def clear(self) -> None:
        is_translated = self._target == "en" and self._source not in ("", "en")
        stream = StreamOptions(
            chunk_s=self.config.speech_chunk_size,
            latency=getattr(self.config, "latency", "balanced"),
            task="translate" if is_translated else "transcribe",
        )
        captions = getattr(self.config, "captions", "firm")
        self._session = self.model.session(self._source or None, captions=captions, stream=stream)
        self._unstable: list[str] = []

    def process_chunk(self, waveform: Samples) -> IncrementalOutput:
        return self._output(self._session.push(np.ascontiguousarray(waveform, np.float32)))

    def end_of_stream(self) -> IncrementalOutput:
        return self._output(self._session.close())

    def tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).strip()

    def _output(self, events: Sequence[Event]) -> IncrementalOutput:
        """Return new words, with those that may change behind them, in place of those that were shown."""
        deleted, words = self._unstable, []
        unstable = deleted
        for event in events:
            if isinstance(event, Partial):
                words += [word.word for word in event.words]
                unstable = []
            elif isinstance(event, Unstable):
                unstable = [f" {word}" for word in event.text.split()]
        if not words and unstable == deleted:
            deleted, new = [], []
        else:
            new = [*words, *unstable]
        self._unstable = unstable
        return IncrementalOutput(new, self.tokens_to_string(new), deleted, self.tokens_to_string(deleted))
