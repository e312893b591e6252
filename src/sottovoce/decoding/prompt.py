"""The decoder's prompt: earlier text, the start-of-transcript sequence, a prefix.

Whisper's order: <|startofprev|> style hotwords earlier text <|startoftranscript|> language task <|0.00|>
prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.text.disfluency import verbatim_tokens
from sottovoce.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class PromptBatch:
    """Prompts of different lengths, aligned at their right end.

    tokens: (B, n) int64. left_padding: (B,) int64 padding tokens of each row, None where none has any.
    sot_position: column of <|startoftranscript|> in every row. lengths: tokens of each row.
    """

    tokens: Tensor
    left_padding: Tensor | None
    sot_position: int
    lengths: tuple[int, ...]


def context_tokens(options: DecodingOptions, tokenizer: Tokenizer, n_text_ctx: int) -> list[int]:
    """Make <|startofprev|>, style, hotwords and the end of the prompt: at most half of the text context.

    Empty without any of them.

    Source: openai-whisper 20250625 `_get_initial_tokens` (last 223 tokens of the prompt); hotwords as in
    faster-whisper 1.2.1 `get_prompt`, but never with more than those 223 tokens in all.
    Raises: OptionError when the hotwords alone are longer.
    """
    style = verbatim_tokens(tokenizer) if options.verbatim else []
    room = n_text_ctx // 2 - 1 - len(style)
    hotwords = tokenizer.encode_prompt(options.hotwords or "")
    if len(hotwords) > room:
        raise OptionError(f"hotwords: expected at most {room} tokens, got {len(hotwords)}")
    left = room - len(hotwords)
    prompt = _as_tokens(options.prompt, tokenizer)[-left:] if left else []
    context = [*style, *hotwords, *prompt]
    return [tokenizer.sot_prev, *context] if context else []


def start_tokens(options: DecodingOptions, tokenizer: Tokenizer, n_text_ctx: int) -> list[int]:
    """Make the start-of-transcript sequence of the tokenizer's language and task, and the prefix.

    Raises: OptionError for a prefix longer than half of the text context.
    """
    n_prefix = len(prefix_tokens(options, tokenizer))
    if n_prefix > n_text_ctx // 2 - 1:
        raise OptionError(f"prefix: expected at most {n_text_ctx // 2 - 1} tokens, got {n_prefix}")
    timed = not options.without_timestamps
    start = tokenizer.sot_sequence if timed else tokenizer.sot_sequence_including_notimestamps
    return [*start, *opening_tokens(options, tokenizer)]


def opening_tokens(options: DecodingOptions, tokenizer: Tokenizer) -> list[int]:
    """Make the beginning of a window's transcript: <|0.00|> and the prefix; empty without a prefix.

    Source: faster-whisper 1.2.1 `get_prompt`. Without the timestamp, as in openai-whisper 20250625, the model
    has to write one behind the prefix, and takes the words of the prefix for all that is said.
    """
    prefix = prefix_tokens(options, tokenizer)
    if not prefix or options.without_timestamps:
        return prefix
    return [tokenizer.timestamp_begin, *prefix]


def prefix_tokens(options: DecodingOptions, tokenizer: Tokenizer) -> list[int]:
    """Encode the prefix; empty without one."""
    return _as_tokens(options.prefix, tokenizer)


def batch_prompts(
    contexts: Sequence[Sequence[int]], starts: Sequence[Sequence[int]], padding: int, device: torch.device
) -> PromptBatch:
    """Join each context with its start and pad them on the left with the token `padding`.

    starts: all of one length, beginning with <|startoftranscript|>.
    """
    rows = [[*context, *start] for context, start in zip(contexts, starts, strict=True)]
    longest = max(map(len, rows))
    missing = [longest - len(row) for row in rows]
    tokens = [[padding] * n + row for n, row in zip(missing, rows, strict=True)]
    return PromptBatch(
        tokens=torch.tensor(tokens, device=device),
        left_padding=torch.tensor(missing, device=device) if any(missing) else None,
        sot_position=longest - len(starts[0]),
        lengths=tuple(map(len, rows)),
    )


def _as_tokens(text: str | Sequence[int] | None, tokenizer: Tokenizer) -> list[int]:
    if text is None:
        return []
    if isinstance(text, str):
        return tokenizer.encode_prompt(text)
    return list(text)
