"""What was said before, as the prompt of the next window."""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.normalize import plain
from sottovoce.text.tokenizer import Tokenizer


class Context:
    """Tokens of earlier windows, as many as a prompt can hold, after an initial prompt.

    n_text_ctx: of the model; a prompt has at most half of it, less one.
    Source: openai-whisper 20250625, transcribe.py; with `carry_initial_prompt` the initial prompt stands
    before every window, otherwise it is forgotten with the rest at the first reset.
    """

    def __init__(self, tokenizer: Tokenizer, options: TranscribeOptions, n_text_ctx: int) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._room = n_text_ctx // 2 - 1
        text = options.initial_prompt
        initial = tokenizer.encode_prompt(text or "")
        self._carried = initial if options.carry_initial_prompt else []
        self._tokens = [] if options.carry_initial_prompt else initial

    def prompt(self) -> tuple[int, ...]:
        """Tokens to give the next window; empty for none."""
        room = max(0, self._room - len(self._carried))
        if self._options.max_context is not None:
            room = min(room, self._options.max_context)
        return (*self._carried, *(self._tokens[-room:] if room else ()))

    @property
    def tokens(self) -> tuple[int, ...]:
        """Those of earlier windows."""
        return tuple(self._tokens)

    def restore(self, tokens: Sequence[int]) -> None:
        """Go on with tokens of earlier windows."""
        self._tokens = list(tokens)

    def remember(self, tokens: Sequence[int]) -> None:
        """Add a segment: its text and timestamps."""
        self._tokens = [*self._tokens, *tokens][-self._room :]

    def holds(self, text: str) -> bool:
        """Tell whether the words of a text follow each other in that of earlier windows."""
        words = plain(text).split()
        earlier = plain(self._tokenizer.decode(self._tokens)).split()
        return any(earlier[at : at + len(words)] == words for at in range(len(earlier) - len(words) + 1))

    def end_window(self, temperature: float) -> None:
        """Forget everything after a window that needed a high temperature, or if nothing is to be kept."""
        too_hot = temperature > self._options.prompt_reset_on_temperature
        if too_hot or not self._options.is_conditioned:
            self.reset()

    def reset(self) -> None:
        """Forget what was said; a carried prompt stays."""
        self._tokens = []
