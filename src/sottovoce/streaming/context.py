"""The text before the audio that is held, as a prompt: terms that stay, and what was said before.

Not known here: audio, and what was committed of the audio held.
"""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.reading import Prefix
from sottovoce.text.tokenizer import Tokenizer


class TextContext:
    """Text tokens for the prompt of one language, at most `max_context_tokens` of them.

    said: text tokens said before; None: nothing was said in the session yet, and `init_prompt` stands for it.
    """

    def __init__(
        self, tokenizer: Tokenizer, options: StreamOptions, said: Sequence[int] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._limit = options.max_context_tokens
        self._static = self._encode(options.static_prompt)
        self._said = self._encode(options.init_prompt) if said is None else tuple(said)

    def add(self, tokens: Sequence[int]) -> None:
        """Text whose audio is held no longer."""
        self._said = (*self._said, *tokens)[-223:]

    def clear(self) -> None:
        """Forget what was said; terms stay."""
        self._said = ()

    def followed_by(self, committed: Sequence[int]) -> tuple[int, ...]:
        """What was said in all, for a stream that goes on from here."""
        return (*self._said, *committed)[-self._limit :] if self._limit else ()

    def prefix(self, committed: Sequence[int], before: Sequence[int] = ()) -> Prefix:
        """What the decoder says first: prompt, start of transcript, committed text.

        before: text whose audio is held but not heard; it ends the prompt.
        """
        room = max(0, self._limit - len(self._static))
        said = (*self._said, *before)[-room:] if room else ()
        static = self._static[: self._limit]
        prompt = (self._tokenizer.sot_prev, *static, *said) if static or said else ()
        start = self._tokenizer.sot_sequence_including_notimestamps
        return Prefix((*prompt, *start, *committed), len(prompt), len(committed))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(" " + text.strip())) if text.strip() else ()
