"""The decoder's prompt, in Whisper's order:

<|startofprev|> style hotwords earlier text <|startoftranscript|> language task <|0.00|> prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.text.disfluency import verbatim_tokens
from sottovoce.text.tokenizer import Tokenizer


def context_tokens(options: DecodingOptions, tokenizer: Tokenizer, n_text_ctx: int) -> list[int]:
    """Return <|startofprev|>, style, hotwords and the end of the prompt: at most half of the text context.

    Empty without any of them.

    Source: openai-whisper 20250625 `_get_initial_tokens` (last 223 tokens of the prompt); hotwords as in
    faster-whisper 1.2.1 `get_prompt`, but at most 223 tokens in all.

    Raises:
        OptionError: the hotwords alone are longer.
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
    """Return the start-of-transcript sequence of the tokenizer's language and task, and the prefix.

    Raises:
        OptionError: a prefix longer than half of the text context.
    """
    n_prefix = len(prefix_tokens(options, tokenizer))
    if n_prefix > n_text_ctx // 2 - 1:
        raise OptionError(f"prefix: expected at most {n_text_ctx // 2 - 1} tokens, got {n_prefix}")
    timed = not options.without_timestamps
    start = tokenizer.sot_sequence if timed else tokenizer.sot_sequence_including_notimestamps
    return [*start, *opening_tokens(options, tokenizer)]


def opening_tokens(options: DecodingOptions, tokenizer: Tokenizer) -> list[int]:
    """Return the beginning of a window's transcript: <|0.00|> and the prefix; empty without a prefix.

    Without the timestamp, as in openai-whisper 20250625, the model writes one behind the prefix and takes
    the prefix for all speech. Source: faster-whisper 1.2.1 `get_prompt`.
    """
    prefix = prefix_tokens(options, tokenizer)
    if not prefix or options.without_timestamps:
        return prefix
    return [tokenizer.timestamp_begin, *prefix]


def prefix_tokens(options: DecodingOptions, tokenizer: Tokenizer) -> list[int]:
    return _as_tokens(options.prefix, tokenizer)


def _as_tokens(text: str | Sequence[int] | None, tokenizer: Tokenizer) -> list[int]:
    if text is None:
        return []
    if isinstance(text, str):
        return tokenizer.encode_prompt(text)
    return list(text)
