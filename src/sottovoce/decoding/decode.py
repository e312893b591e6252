"""Decode batches of encoded windows of at most 30 s, with temperature fallback.

Source of the fallback: openai-whisper 20250625 `decode_with_fallback`. If every temperature fails, the
most probable text without repetition is kept, as in faster-whisper 1.2.1, instead of the last one.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from sottovoce.decoding.detect import LanguageDetection, detect_language
from sottovoce.decoding.filters import LogitFilter, RulesOfChoice, build_filters
from sottovoce.decoding.prompt import PromptBatch, batch_prompts, context_tokens, start_tokens
from sottovoce.decoding.search import (
    BeamSearch,
    Candidate,
    Fusion,
    Sampling,
    Search,
    SearchState,
    draw_uniforms,
    ranked_candidates,
)
from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend, BestTokens, ChoosingRows, RunningRows
from sottovoce.options.decoding import DecodingOptions, shared_options
from sottovoce.options.fallback import FallbackOptions
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput

Result = TypeVar("Result")
Stepwise: TypeAlias = Generator[None, None, Result]
"""Yields before each decoder pass, and returns its result."""


def finish(steps: Stepwise[Result]) -> Result:
    """Run all steps; return their result."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result


State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class DecodingResult:
    """The transcript of one window.

    tokens: sampled text ids and timestamps, without prompt, prefix and end of text. avg_logprob: mean
    natural log-probability of tokens and end. no_speech_prob: of <|nospeech|> at the position of
    <|startoftranscript|>. compression_ratio: bytes over zlib bytes of the text. detection: if the language
    was detected. candidates: all final hypotheses, this one first.
    """

    language: str
    tokens: tuple[int, ...]
    text: str
    avg_logprob: float
    no_speech_prob: float
    temperature: float
    compression_ratio: float
    detection: LanguageDetection | None = None
    candidates: tuple[Candidate, ...] = field(default=(), repr=False, compare=False)

    @property
    def token_logprobs(self) -> list[float]:
        """Natural log-probability of each token; 0 for a prefix, and if unknown."""
        sums = self.candidates[0].sums if self.candidates else ()
        given = [0.0] * (len(self.tokens) - len(sums))
        return given + [after - before for before, after in pairwise((0.0, *sums))]


def decode(
    backend: Backend,
    tokenizer: Tokenizer,
    encoded: EncoderOutput,
    options: Sequence[DecodingOptions],
    *,
    fusion: Fusion[State] | None = None,
) -> list[DecodingResult]:
    """Decode every window of `encoded`; a window gives the same text alone and in a batch.

    tokenizer: of the model; the options replace its language and task. options: one for every window; they
    may differ in prompt, hotwords, language and seed. fusion: language models for the search, or None.

    Raises:
        OptionError: contradicting options, or options that the model does not support.
    """
    return finish(decode_stepwise(backend, tokenizer, encoded, options, fusion=fusion))


@torch.inference_mode()
def decode_stepwise(
    backend: Backend,
    tokenizer: Tokenizer,
    encoded: EncoderOutput,
    options: Sequence[DecodingOptions],
    *,
    fusion: Fusion[State] | None = None,
) -> Stepwise[list[DecodingResult]]:
    """`decode` as a generator that yields before each decoder pass."""
    shared = shared_options(options)
    if len(options) != encoded.batch_size:
        raise OptionError(f"decoding options: expected {encoded.batch_size}, got {len(options)}")
    detections = yield from _detections(backend, tokenizer, encoded, options)
    tokenizers = [
        _tokenizer_of(tokenizer, one, detection) for one, detection in zip(options, detections, strict=True)
    ]
    n_ctx = backend.dims.n_text_ctx
    prompts = batch_prompts(
        [context_tokens(*pair, n_ctx) for pair in zip(options, tokenizers, strict=True)],
        [start_tokens(*pair, n_ctx) for pair in zip(options, tokenizers, strict=True)],
    )
    search: Search = _make_search(options, tokenizer.eot, n_ctx, fusion, backend.device)
    filters = build_filters(shared, tokenizer, backend.device, is_fused=fusion is not None)
    rules = RulesOfChoice.of(filters, search.n_best, backend.dims.n_vocab) if search.n_best else None
    candidates, no_speech_probs = yield from _Decoding(backend, encoded, prompts, search, filters, rules).run(
        tokenizer.no_speech, shared.sample_len or n_ctx // 2
    )
    return [
        _result(*each, shared)
        for each in zip(tokenizers, candidates, no_speech_probs, detections, strict=True)
    ]


def compression_ratio(text: str) -> float:
    """Return the bytes of a text over its zlib bytes, above about 2.4 for repeated text; 0 for no text."""
    encoded = text.encode("utf-8")
    return len(encoded) / len(zlib.compress(encoded))


def select_windows(encoded: EncoderOutput, windows: Sequence[int]) -> EncoderOutput:
    """Select windows of an encoder output, with cached keys and values."""
    if list(windows) == list(range(encoded.batch_size)):
        return encoded
    rows = torch.tensor(windows, dtype=torch.int64, device=encoded.states.device)
    cross_kv = encoded.cross_kv
    return EncoderOutput(
        states=encoded.states[rows],
        n_content_frames=tuple(encoded.n_content_frames[window] for window in windows),
        cross_kv=None if cross_kv is None else [(keys[rows], values[rows]) for keys, values in cross_kv],
        log_weights=None if encoded.log_weights is None else encoded.log_weights[rows],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Decoding:
    """One search over a batch of windows. rules: the filters as data, if a backend can apply them."""

    backend: Backend
    encoded: EncoderOutput
    prompts: PromptBatch
    search: Search
    filters: tuple[LogitFilter, ...]
    rules: RulesOfChoice | None

    def run(self, no_speech: int, sample_len: int) -> Stepwise[tuple[list[list[Candidate]], list[float]]]:
        """Search until every window is done or full.

        Returns the candidates of each window, and its probability of <|nospeech|>.
        """
        yield
        rows = self.backend.rows()
        rows.admit(self.encoded)
        places = [(self.prompts.sot_positions[row], n - 1) for row, n in enumerate(self.prompts.lengths)]
        logits = rows.step(self.prompts.tokens, places).logits  # two of each window
        logits_at_sot, logits = logits[::2], logits[1::2].clone()
        no_speech_probs = logits_at_sot.softmax(dim=1)[:, no_speech].tolist()
        n_ctx = self.backend.dims.n_text_ctx
        limits = [min(sample_len, n_ctx + 1 - length) for length in self.prompts.lengths]
        # A search that needs the best tokens alone runs on the host.
        device = torch.device("cpu") if self.search.n_best else self.backend.device
        state = self.search.start(len(limits), device)
        if self.search.n_hypotheses > 1:
            rows.select(state.audio)
            logits = logits[torch.tensor(state.audio, device=logits.device)]
        output: BestTokens | Tensor = logits
        for n_sampled in range(1, max(limits) + 1):
            kept = self._extend(output, state)
            full = [audio for audio in dict.fromkeys(state.audio) if n_sampled >= limits[audio]]
            if full:
                remaining = self.search.stop(state, full)
                kept = remaining if kept is None else kept[remaining]
            if state.n_rows == 0:
                break
            chosen = None if kept is None else kept.tolist()
            if chosen is not None and chosen != list(range(rows.n_rows)):
                rows.select(chosen)
            yield
            output = self._read(rows, state)
        return state.candidates, no_speech_probs

    def _read(self, rows: RunningRows, state: SearchState) -> BestTokens | Tensor:
        """Process the newest token of every row; return the best next tokens, or logits (R, n_vocab)."""
        newest = state.tokens[:, -1].tolist()
        if self.rules is not None and isinstance(rows, ChoosingRows):
            return rows.step_best(newest, self.rules.choice(state.tokens))
        return rows.step([[token] for token in newest], [(0,)] * len(newest)).logits

    def _extend(self, output: BestTokens | Tensor, state: SearchState) -> Tensor | None:
        if isinstance(output, BestTokens):
            return self.search.extend(output, state)
        sampled = state.tokens.to(output.device)
        for rule in self.filters:
            rule.apply(output, sampled)
        return self.search.step(output, state)


def _detections(
    backend: Backend, tokenizer: Tokenizer, encoded: EncoderOutput, options: Sequence[DecodingOptions]
) -> Stepwise[list[LanguageDetection | None]]:
    detections: list[LanguageDetection | None] = [None] * len(options)
    unknown = [window for window, one in enumerate(options) if one.language is None]
    if unknown and tokenizer.is_multilingual:
        windows = select_windows(encoded, unknown)
        yield
        found = detect_language(backend, tokenizer, windows, allowed=options[0].allowed_languages)
        for window, detection in zip(unknown, found, strict=True):
            detections[window] = detection
    return detections


def _tokenizer_of(
    tokenizer: Tokenizer, options: DecodingOptions, detection: LanguageDetection | None
) -> Tokenizer:
    language = detection.language if detection else options.language or "en"
    return tokenizer.with_language(language).with_task(options.task)


def _make_search(
    options: Sequence[DecodingOptions],
    eot: int,
    n_ctx: int,
    fusion: Fusion[State] | None,
    device: torch.device,
) -> Search:
    shared = options[0]
    if shared.beam_size is not None:
        return BeamSearch(eot, shared.beam_size, patience=shared.patience or 1.0, fusion=fusion)
    uniforms = None
    if shared.temperature > 0.0:
        seeds = [one.seed for one in options]
        uniforms = draw_uniforms(seeds, shared.n_hypotheses, n_ctx, device)
    return Sampling(
        eot,
        temperature=shared.temperature,
        n_hypotheses=shared.n_hypotheses,
        uniforms=uniforms,
        fusion=fusion,
    )


def _result(
    tokenizer: Tokenizer,
    candidates: Sequence[Candidate],
    no_speech_prob: float,
    detection: LanguageDetection | None,
    options: DecodingOptions,
) -> DecodingResult:
    ranked = ranked_candidates(candidates, options.length_penalty)
    best = ranked[0]
    text = tokenizer.decode(best.tokens).strip()
    return DecodingResult(
        language=tokenizer.language or "en",
        tokens=best.tokens,
        text=text,
        avg_logprob=best.logprob / (len(best.tokens) + 1),
        no_speech_prob=no_speech_prob,
        temperature=options.temperature,
        compression_ratio=compression_ratio(text),
        detection=detection,
        candidates=tuple(ranked),
    )


@dataclass(frozen=True, slots=True)
class Attempt:
    """The chosen result of a window, and the last temperature that was tried."""

    result: DecodingResult
    last_temperature: float


def decode_with_fallback(
    backend: Backend,
    tokenizer: Tokenizer,
    encoded: EncoderOutput,
    options: Sequence[DecodingOptions],
    fallback: FallbackOptions,
    *,
    divisible: Sequence[bool] | None = None,
    fusion: Fusion[State] | None = None,
) -> Stepwise[list[Attempt]]:
    """Decode every window, and failed ones again at the next temperature. Yields before each decoder pass.

    options: as for `decode`, except temperature; beam_size and patience apply at temperature 0, best_of
    above 0. divisible: per window, whether it will be split if its first text repeats itself, instead of
    decoded again; None: no. fusion: language models at every temperature, or None.

    Raises:
        OptionError: as `decode`.
    """
    tried: list[list[DecodingResult]] = [[] for _ in options]
    last = [0.0] * len(options)
    open_windows = list(range(len(options)))
    for index, temperature in enumerate(fallback.temperatures):
        chosen = [
            fallback.at_temperature(options[window], temperature, mix_seed(options[window].seed, index))
            for window in open_windows
        ]
        windows = select_windows(encoded, open_windows)
        results = yield from decode_stepwise(backend, tokenizer, windows, chosen, fusion=fusion)
        for window, result in zip(open_windows, results, strict=True):
            tried[window].append(result)
            last[window] = temperature
        open_windows = [
            window
            for window in open_windows
            if fallback.fails(tried[window][-1])
            and not (index == 0 and divisible and divisible[window] and fallback.repeats(tried[window][0]))
        ]
        if not open_windows:
            break
    return [
        Attempt(_choose(results, fallback), temperature)
        for results, temperature in zip(tried, last, strict=True)
    ]


def mix_seed(*parts: int) -> int:
    """Hash several numbers to one seed."""
    seed = 0
    for part in parts:
        seed = (seed * 6364136223846793005 + part + 1442695040888963407) % 2**63
    return seed


def _choose(tried: Sequence[DecodingResult], fallback: FallbackOptions) -> DecodingResult:
    """Return the last result if it is good, else the most probable one without repetition."""
    if not fallback.fails(tried[-1]):
        return tried[-1]
    fresh = [result for result in tried if not fallback.repeats(result)]
    return max(fresh or tried, key=lambda result: result.avg_logprob)
