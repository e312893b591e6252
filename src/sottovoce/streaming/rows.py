"""Greedy AlignAtt for several prefixes over one window, as rows of one batch.

Not known here: languages, words, and how rows are fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sottovoce.backends.base import Backend
from sottovoce.streaming.frontier import AttentionTracker
from sottovoce.streaming.reading import Ending, Path, Prefix, Reading, ReadingRules
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.types import EncoderOutput


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads prefixes side by side; a row reads as it would alone."""

    backend: Backend
    eot: int
    vocabulary: LiveVocabulary

    @torch.inference_mode()
    def read(
        self,
        encoded: EncoderOutput,
        prefixes: Sequence[Prefix],
        biases: Tensor,
        rules: Sequence[ReadingRules],
    ) -> list[Reading]:
        """One reading for each prefix; encoded: one audio for all, or one a row; biases: (R, n_frames), see
        `Backend.step`."""
        return _Update(self, encoded, prefixes, biases, rules).run()


class _Update:
    """One update of a RowReader. Rows that are done leave the batch; `_open` are those that are in it."""

    def __init__(
        self,
        reader: RowReader,
        encoded: EncoderOutput,
        prefixes: Sequence[Prefix],
        biases: Tensor,
        rules: Sequence[ReadingRules],
    ) -> None:
        self._reader = reader
        self._prefixes = prefixes
        self._biases = biases
        self._rules = rules
        n_rows, n_audio = len(prefixes), encoded.batch_size
        self._n_frames = [encoded.n_content_frames[row * n_audio // n_rows] for row in range(n_rows)]
        self._tracker = AttentionTracker(max(self._n_frames))
        self._paths = [Path() for _ in prefixes]
        self._open = list(range(len(prefixes)))
        self._done: dict[int, Reading] = {}
        self._longest = max(len(prefix.tokens) for prefix in prefixes)
        device = reader.backend.device
        self._padding = torch.tensor([self._longest - len(p.tokens) for p in prefixes], device=device)
        padded = bool(self._padding.any())
        self._state = reader.backend.start(
            encoded, n_rows // n_audio, left_padding=self._padding if padded else None
        )

    def run(self) -> list[Reading]:
        silent, logits = self._read_prefixes()
        room = self._reader.backend.dims.n_text_ctx - self._longest
        for n_read in range(room):
            going = self._advance(logits, n_read)
            if not going:
                break
            if len(going) < len(self._open):
                order = torch.tensor(going, device=logits.device)
                self._state.reorder(order)
                self._tracker.reorder(order)
                self._open = [self._open[place] for place in going]
            newest = [[self._paths[row].tokens[-1]] for row in self._open]
            logits = self._step(torch.tensor(newest, device=logits.device))[:, -1]
        for row in self._open:
            self._done.setdefault(row, self._paths[row].reading(Ending.FULL))
        return [replace(self._done[row], no_speech_prob=silent[row]) for row in range(len(self._paths))]

    def _read_prefixes(self) -> tuple[list[float], Tensor]:
        """Probability of no speech of each row, and the logits (R, V) of the first token."""
        longest, eot = self._longest, self._reader.eot
        tokens = [[eot] * (longest - len(p.tokens)) + [*p.tokens] for p in self._prefixes]
        places = [longest - len(p.tokens) + p.sot for p in self._prefixes]
        wanted = sorted({*places, longest - 1})
        device = self._reader.backend.device
        logits = self._step(torch.tensor(tokens, device=device), wanted, n_padding=self._padding)
        at_sot = torch.stack([logits[row, wanted.index(place)] for row, place in enumerate(places)])
        return self._reader.vocabulary.no_speech_probs(at_sot), logits[:, -1]

    def _step(
        self,
        tokens: Tensor,
        positions: Sequence[int] = (-1,),
        *,
        n_padding: Tensor | None = None,
    ) -> Tensor:
        backend = self._reader.backend
        output = backend.step(
            tokens,
            self._state,
            positions=positions,
            vocabulary=self._reader.vocabulary.rows,
            capture=backend.alignment_heads,
            bias=self._biases[self._open],
        )
        assert output.attention is not None
        self._tracker.extend(output.attention, n_padding=n_padding)
        return output.logits.float()

    def _advance(self, logits: Tensor, n_read: int) -> list[int]:
        """Give each open row its next token or its end; the places of those that go on."""
        log_probs = self._reader.vocabulary.log_probs(logits, first=n_read == 0)
        entropies = torch.special.entr(log_probs.exp()).sum(dim=-1).tolist()
        best, places = log_probs.max(dim=-1, keepdim=True)
        values = best[:, 0].tolist()
        tokens = [row[0] for row in self._reader.vocabulary.tokens(places)]
        going = []
        for place, (row, frame) in enumerate(zip(self._open, self._tracker.frontier().tolist(), strict=True)):
            reading = self._halt(row, tokens[place], frame, n_read)
            if reading is None:
                frame = min(frame, self._n_frames[row] - 1)
                path = self._paths[row].said(tokens[place], frame, values[place], entropies[place])
                self._paths[row] = path
                reading = self._rules[row].loop(path, self._prefixes[row].committed)
            if reading is None:
                going.append(place)
            else:
                self._done[row] = reading
        return going

    def _halt(self, row: int, token: int, frame: int, n_read: int) -> Reading | None:
        """The reading of a row that stops before this token."""
        path = self._paths[row]
        if token == self._reader.eot:
            return path.reading(Ending.END_OF_TEXT)
        if n_read >= self._rules[row].max_tokens:
            return path.reading(Ending.FULL)
        return self._rules[row].halt(path, min(frame, self._n_frames[row] - 1), self._n_frames[row], token)
