"""Decode batches of encoded windows of at most 30 s, and detect their languages.

Source: openai-whisper 20250625 `detect_language` and `decode_with_fallback`, whose loop is
`runtime.calls.decode_with_fallback`. If every temperature fails, the most probable text without repetition is
kept, as in faster-whisper 1.2.1.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from sottovoce.decoding.filters import LogitFilter, build_filters, log_softmax, newest_of
from sottovoce.decoding.search import (
    BeamSearch,
    BestTokens,
    BestTokensEnd,
    Candidate,
    Fusion,
    Sampling,
    Search,
    SearchState,
    StepsOfSearch,
    draw_uniforms,
    ranked_candidates,
)
from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend, EncoderOutput
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, shared_options
from sottovoce.text.disfluency import verbatim_tokens
from sottovoce.text.languages import find_language
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Floats

NO_PRIOR: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LanguageDetection:
    """The language of one window or recording.

    probability: among those allowed, with the prior. probabilities: of every language, without prior.
    allowed_mass: the sum of those allowed. no_speech_prob: of <|nospeech|> against all languages.
    """

    language: str
    probability: float
    probabilities: Mapping[str, float]
    allowed_mass: float
    no_speech_prob: float


def detect_language(
    backend: Backend, tokenizer: Tokenizer, encoded: EncoderOutput, *, allowed: Sequence[str] = ()
) -> list[LanguageDetection]:
    """Detect the language of every window among those allowed; empty: all.

    Raises:
        OptionError: an English-only model, or a language that it does not have.
    """
    if not tokenizer.is_multilingual:
        raise OptionError(f"{backend.name}: an English-only model has no languages to tell apart")
    n_windows = encoded.batch_size
    answers = np.array([*tokenizer.language_tokens, tokenizer.no_speech])
    rows = backend.rows()
    rows.admit(encoded)
    output = rows.step([[tokenizer.sot]] * n_windows, [[0]] * n_windows, vocabulary=answers)
    probabilities = np.exp(log_softmax(output.logits[:, :-1]))
    no_speech = np.exp(log_softmax(output.logits))[:, -1].tolist()
    return [_choose(probabilities[row], no_speech[row], tokenizer, allowed) for row in range(n_windows)]


def combine_detections(
    detections: Sequence[LanguageDetection],
    tokenizer: Tokenizer,
    *,
    allowed: Sequence[str] = (),
    weights: Sequence[float] | None = None,
    log_prior: Mapping[str, float] = NO_PRIOR,
) -> LanguageDetection:
    """Average detections of several windows by weight, then choose among `allowed`.

    log_prior: natural log-probability of each code, up to a constant; 0 for missing codes.
    """
    shares = np.array(weights or [1.0] * len(detections))
    shares = shares / shares.sum()
    table = np.array([list(detection.probabilities.values()) for detection in detections])
    no_speech = np.array([detection.no_speech_prob for detection in detections])
    odds = {code: math.exp(each) for code, each in log_prior.items()}
    return _choose(shares @ table, float(shares @ no_speech), tokenizer, allowed, odds)


def _choose(
    probabilities: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    no_speech_prob: float,
    tokenizer: Tokenizer,
    allowed: Sequence[str],
    odds: Mapping[str, float] = NO_PRIOR,
) -> LanguageDetection:
    codes = tokenizer.language_codes
    table = dict(zip(codes, probabilities.tolist(), strict=True))
    choice = dict.fromkeys([find_language(language, codes) for language in allowed] or codes)
    weighted = {code: table[code] * odds.get(code, 1.0) for code in choice}
    total = sum(weighted.values())
    best = max(weighted, key=lambda code: weighted[code])
    share = weighted[best] / total if total > 0.0 else 1.0 / len(choice)
    return LanguageDetection(best, share, table, sum(table[code] for code in choice), no_speech_prob)


@dataclass(frozen=True, slots=True)
class DecodingResult:
    """The transcript of one window.

    tokens: sampled text ids and timestamps. avg_logprob: mean natural log-probability of tokens and end.
    no_speech_prob: at <|startoftranscript|>. candidates: all final hypotheses, this one first.
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
    fusion: Fusion | None = None,
) -> list[DecodingResult]:
    """Decode every window of `encoded`; a window gives the same text alone and in a batch.

    options: of each window; they may differ in prompt, hotwords, language, seed and sample_len.

    Raises:
        OptionError: contradicting options, or options that the model does not support.
    """
    decoder = WindowDecoder(backend, tokenizer, shared_options(options), fusion)
    batch = decoder.new_batch()
    batch.admit(decoder, encoded, options)
    while True:
        for _, results in batch.step():
            return results


def compression_ratio(text: str) -> float:
    """Return the bytes of a text over its zlib bytes, above about 2.4 for repeated text."""
    encoded = text.encode("utf-8")
    return len(encoded) / len(zlib.compress(encoded))


def context_tokens(options: DecodingOptions, tokenizer: Tokenizer, n_text_ctx: int) -> list[int]:
    """Return the prompt, at most half of the text context: <|startofprev|>, style, hotwords, end of the text.

    Source: openai-whisper 20250625 `_get_initial_tokens`; hotwords as in faster-whisper 1.2.1 `get_prompt`.

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
    """Return <|0.00|> and the prefix; empty without a prefix. Source: faster-whisper 1.2.1 `get_prompt`."""
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


@dataclass(frozen=True, slots=True, eq=False)
class WindowDecoder:
    """Decodes windows by greedy search, sampling or beam search, in continuous batches.

    options: of all windows; prompt, hotwords, language, seed and sample_len are those of each request.
    """

    backend: Backend
    tokenizer: Tokenizer
    options: DecodingOptions
    fusion: Fusion | None = None

    @property
    def batch_key(self) -> Hashable:
        return id(self.tokenizer), repr(self.options), id(self.fusion)

    def new_batch(self) -> WindowBatch:
        return WindowBatch(self)

    def make_search(self, seeds: Sequence[int]) -> Search:
        options, eot, n_ctx = self.options, self.tokenizer.eot, self.backend.dims.n_text_ctx
        if options.beam_size is not None:
            return BeamSearch(eot, options.beam_size, patience=options.patience or 1.0, fusion=self.fusion)
        uniforms = None
        if options.temperature > 0.0:
            uniforms = draw_uniforms(seeds, options.n_hypotheses, n_ctx)
        return Sampling(
            eot,
            temperature=options.temperature,
            n_hypotheses=options.n_hypotheses,
            uniforms=uniforms,
            fusion=self.fusion,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """A window that joins a batch.

    n_before: tokens of its prompt before <|startoftranscript|>. limit: most tokens of its text.
    """

    ticket: int
    tokenizer: Tokenizer
    detection: LanguageDetection | None
    seed: int
    prompt: list[int]
    n_before: int
    limit: int


@dataclass(slots=True, eq=False)
class _Cohort:
    """Windows that joined in one step, so that the rows of their search have one age.

    no_speech_probs: of each window. open: tickets of the windows that are not done. n_sampled: tokens of each
    row.
    """

    windows: Sequence[_Window]
    search: Search
    state: SearchState
    no_speech_probs: Sequence[float]
    open: set[int]
    n_sampled: int = 0

    def extend(self, output: BestTokens | Floats, filters: Sequence[LogitFilter]) -> list[int]:
        """Extend every row, given its best tokens or logits (R, n_vocab); return the rows that go on."""
        state, rows = self.state, list(range(self.state.n_rows))
        if not isinstance(output, BestTokens):
            for rule in filters:
                rule.apply(output, state.tokens)
            output = self.search.choose(output, state)
        if state.lm_scores is not None and output.lm_states is not None:
            state.lm_scores.moved_to(output.lm_states)
        kept = self.search.extend(output, state)
        self.n_sampled += 1
        full = [audio for audio in dict.fromkeys(state.audio) if self.n_sampled >= self.windows[audio].limit]
        if full:
            remaining = self.search.stop(state, full)
            kept = remaining if kept is None else kept[remaining]
        return rows if kept is None else [rows[row] for row in kept.tolist()]

    def finished(self, options: DecodingOptions) -> list[tuple[int, list[DecodingResult]]]:
        """Return the requests that were done in this step: their tickets, and results of their windows."""
        still_open = {self.windows[audio].ticket for audio in self.state.audio}
        results: dict[int, list[DecodingResult]] = {ticket: [] for ticket in self.open - still_open}
        self.open = still_open
        for each in zip(self.windows, self.state.candidates, self.no_speech_probs, strict=True):
            if each[0].ticket in results:
                results[each[0].ticket].append(_result(*each, options))
        return list(results.items())


class WindowBatch:
    """Windows of any recordings, decoded together with the options of one `WindowDecoder`.

    A request is all windows of an encoder output. A step is one decoder pass: of the prompts of new
    requests, or of the newest token of every row.
    """

    def __init__(self, decoder: WindowDecoder) -> None:
        self._decoder = decoder
        self._rows = decoder.backend.rows()
        search, n_vocab = decoder.make_search([0]), decoder.backend.dims.n_vocab
        self._filters = build_filters(
            decoder.options,
            decoder.tokenizer,
            is_fused=decoder.fusion is not None,
            follows_text=bool(prefix_tokens(decoder.options, decoder.tokenizer)),
        )
        self._steps: StepsOfSearch | None = None
        """None: rows give logits, to which filters and the search are applied."""
        if search.n_best is not None:
            sizes = search.n_best, n_vocab, n_vocab, decoder.tokenizer.eot, search.n_hypotheses
            self._steps = StepsOfSearch.of(
                self._rows, BestTokensEnd(*sizes, fusion=decoder.fusion), self._filters
            )
        self._new: list[_Window] = []
        self._cohorts: list[_Cohort] = []
        self._n_admitted = 0

    @property
    def n_requests(self) -> int:
        return len({window.ticket for window in self._new}) + sum(
            len(cohort.open) for cohort in self._cohorts
        )

    def has_room(self, n_windows: int) -> bool:
        return self._rows.has_room(n_windows)

    def admit(
        self, decoder: WindowDecoder, encoded: EncoderOutput, options: Sequence[DecodingOptions]
    ) -> int:
        """Add windows from the next step on, with options each; return the ticket of their results.

        Raises:
            OptionError: as `decode`.
        """
        if len(options) != encoded.batch_size:
            raise OptionError(f"decoding options: expected {encoded.batch_size}, got {len(options)}")
        detections = _detections(decoder.backend, decoder.tokenizer, encoded, options)
        windows = [self._window(*each) for each in zip(options, detections, strict=True)]
        self._rows.admit(encoded)
        self._new += windows
        self._n_admitted += 1
        return self._n_admitted - 1

    def _window(self, options: DecodingOptions, detection: LanguageDetection | None) -> _Window:
        language = detection.language if detection else options.language or "en"
        tokenizer = self._decoder.tokenizer.with_language(language).with_task(options.task)
        n_ctx = self._decoder.backend.dims.n_text_ctx
        context = context_tokens(options, tokenizer, n_ctx)
        prompt = [*context, *start_tokens(options, tokenizer, n_ctx)]
        limit = min(options.sample_len or n_ctx // 2, n_ctx + 1 - len(prompt))
        return _Window(self._n_admitted, tokenizer, detection, options.seed, prompt, len(context), limit)

    def step(self) -> list[tuple[int, list[DecodingResult]]]:
        """Run one decoder pass, or some that the rows take without the host; return the results of finished
        requests with their tickets.
        """
        finished: list[tuple[int, list[DecodingResult]]] = []
        for rows in [self._begin()] if self._new else self._go_on():
            if rows != list(range(self._rows.n_rows)):
                self._rows.select(rows)
            for cohort in self._cohorts:
                finished += cohort.finished(self._decoder.options)
            self._cohorts = [cohort for cohort in self._cohorts if cohort.open]
            if not self._cohorts:
                break
        return finished

    def _begin(self) -> list[int]:
        decoder, windows = self._decoder, self._new
        n_old = self._rows.n_rows - len(windows)
        prompts: list[Sequence[int]] = [window.prompt for window in windows]
        places: list[Sequence[int]] = [(window.n_before, len(window.prompt) - 1) for window in windows]
        output = self._rows.step([()] * n_old + prompts, [()] * n_old + places)
        at_start, logits = output.logits[::2], output.logits[1::2]
        search = decoder.make_search([window.seed for window in windows])
        cohort = _Cohort(
            windows,
            search,
            state=search.start(len(windows)),
            no_speech_probs=np.exp(log_softmax(at_start)[:, decoder.tokenizer.no_speech]).tolist(),
            open={window.ticket for window in windows},
        )
        rows = list(cohort.state.audio)
        logits = logits[rows]
        self._cohorts.append(cohort)
        self._new = []
        kept = cohort.extend(logits, self._filters)
        return [*range(n_old), *(n_old + rows[row] for row in kept)]

    def _go_on(self) -> Iterator[list[int]]:
        """Read the newest token of every row; yield the rows that go on, of each step."""
        sampled = [cohort.state.tokens for cohort in self._cohorts]
        outputs: Iterable[BestTokens | Floats]
        if self._steps is not None:
            sums = [row for cohort in self._cohorts for row in cohort.state.sums_of_rows()]
            outputs = self._steps.run(sampled, sums)
        else:
            newest = newest_of(sampled)[:, None].tolist()
            outputs = [self._rows.step(newest, [(0,)] * len(newest)).logits]
        for output in outputs:
            rows: list[int] = []
            at = 0
            for cohort in self._cohorts:
                end = at + cohort.state.n_rows
                rows += [at + row for row in cohort.extend(_part(output, at, end), self._filters)]
                at = end
            yield rows


def _part(output: BestTokens | Floats, first: int, last: int) -> BestTokens | Floats:
    if isinstance(output, BestTokens):
        return output.of_rows(slice(first, last))
    return output[first:last]


def _detections(
    backend: Backend, tokenizer: Tokenizer, encoded: EncoderOutput, options: Sequence[DecodingOptions]
) -> list[LanguageDetection | None]:
    detections: list[LanguageDetection | None] = [None] * len(options)
    unknown = [window for window, wanted in enumerate(options) if wanted.language is None]
    if unknown and tokenizer.is_multilingual:
        windows = encoded.rows(unknown)
        detected = detect_language(backend, tokenizer, windows, allowed=options[0].allowed_languages)
        for window, detection in zip(unknown, detected, strict=True):
            detections[window] = detection
    return detections


def _result(
    window: _Window, candidates: Sequence[Candidate], no_speech_prob: float, options: DecodingOptions
) -> DecodingResult:
    ranked = ranked_candidates(candidates, options.length_penalty)
    best = ranked[0]
    text = window.tokenizer.decode(best.tokens).strip()
    return DecodingResult(
        language=window.tokenizer.language or "en",
        tokens=best.tokens,
        text=text,
        avg_logprob=best.logprob / (len(best.tokens) + 1),
        no_speech_prob=no_speech_prob,
        temperature=options.temperature,
        compression_ratio=compression_ratio(text),
        detection=window.detection,
        candidates=tuple(ranked),
    )


@dataclass(frozen=True, slots=True)
class Attempt:
    """english: the translation of the same window, if requested."""

    result: DecodingResult
    last_temperature: float
    english: DecodingResult | None = None


def mix_seed(*parts: int) -> int:
    seed = 0
    for part in parts:
        seed = (seed * 6364136223846793005 + part + 1442695040888963407) % 2**63
    return seed


def likeliest_result(tried: Sequence[DecodingResult], fallback: FallbackOptions) -> DecodingResult:
    """Return the last result of a window if it passed, else the likeliest, without repetition if possible."""
    if not fallback.fails(tried[-1]):
        return tried[-1]
    fresh = [result for result in tried if not fallback.repeats(result)]
    return max(fresh or tried, key=lambda result: result.avg_logprob)
