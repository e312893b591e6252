"""An agent for SimulEval (https://github.com/facebookresearch/SimulEval, CC BY-SA 4.0): quality and latency
(LAAL, AL, with and without computation) of sottovoce's live sessions.

    pip install simuleval sottovoce
    simuleval --agent examples/simuleval_agent.py --source wavs.txt --target references.txt \\
        --source-segment-size 250 --quality-metrics BLEU --latency-metrics LAAL --output results
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import numpy as np
from simuleval.agents import SpeechToTextAgent
from simuleval.agents.actions import Action, ReadAction, WriteAction
from simuleval.utils import entrypoint

import sottovoce
from sottovoce.streaming.options import StreamOptions
from sottovoce.types import SAMPLE_RATE, Partial


@entrypoint
class SottovoceAgent(SpeechToTextAgent):
    """Writes words as they are committed, and reads on until then."""

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        parser.add_argument("--model", default="base")
        parser.add_argument("--language", default="en", help="of the speech, or auto")
        parser.add_argument("--latency", default="balanced", choices=("low", "balanced", "sure"))
        parser.add_argument("--translate", action="store_true", help="into English")

    def __init__(self, args: Namespace) -> None:
        self._model = sottovoce.load_model(args.model)
        self._language = None if args.language == "auto" else args.language
        self._stream = StreamOptions(
            chunk_s=args.source_segment_size / 1000,
            latency=args.latency,
            task="translate" if args.translate else "transcribe",
        )
        super().__init__(args)

    def reset(self) -> None:
        super().reset()
        self._session = self._model.session(self._language, stream=self._stream)
        self._n_taken = 0

    def policy(self) -> Action:
        rate = self.states.source_sample_rate
        if rate not in (0, SAMPLE_RATE):
            raise ValueError(f"source: expected audio at {SAMPLE_RATE} Hz, got {rate}")
        samples = np.asarray(self.states.source[self._n_taken :], np.float32)
        self._n_taken += len(samples)
        events = self._session.push(samples)
        if self.states.source_finished:
            events += self._session.close()
        text = "".join(event.text for event in events if isinstance(event, Partial)).strip()
        if not text and not self.states.source_finished:
            return ReadAction()
        return WriteAction(text, finished=self.states.source_finished)
