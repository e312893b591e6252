"""An utterance: its audio, committed words and prompt, and how it is decoded.

It continues across short pauses. Long audio is cut between committed words, whose text moves into the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, takewhile

from sottovoce.audio.mel import MELS_PER_FRAME, quiet_frames, quietest_frame, smoothed
from sottovoce.models.backend import EncoderOutput, EncoderState, IncrementalResult, IncrementalWindow
from sottovoce.models.dims import EXACT, FULL_WINDOW_S, EncoderMode
from sottovoce.runtime.calls import DecodeCall, IncrementalEncodeCall, Steps
from sottovoce.streaming.alignatt import (
    AlignAttDecoder,
    AlignAttHypothesis,
    AlignAttRequest,
    DecoderPrefix,
    PrefixCache,
    StopReason,
)
from sottovoce.streaming.audio_window import (
    QUIET_FRAMES,
    SAMPLES_PER_FRAME,
    SNAP_S,
    AudioWindow,
    MelBuffer,
    loudness,
    quietest_boundary,
)
from sottovoce.streaming.commit_policy import (
    CommitPolicy,
    HypothesisWord,
    Reading,
    WordBuilder,
    is_punctuation,
)
from sottovoce.streaming.options import StreamOptions, TextEnd
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import (
    FRAMES_PER_SECOND,
    HOP_SAMPLES,
    SAMPLE_RATE,
    Floats,
    Samples,
    Word,
)

MAX_COMMITTED_TOKENS = 160
"""Most committed tokens of the buffered audio; new ones still fit behind a prompt of 223."""


@dataclass(eq=False)
class UtteranceEncoder:
    """Encodes the buffered audio for language probes and decoding, which share states."""

    mels: MelBuffer
    mode: EncoderMode

    def __post_init__(self) -> None:
        self._state: EncoderState | None = None
        self._probed: tuple[EncoderMode, int, IncrementalResult] | None = None
        """Mode, log-mel frames and result of the last probe of the whole buffer."""
        self._full_encode = (self.mels.start_sample, 0.0)
        """First sample of the buffer, and end (s) of the audio, at the last full encode."""

    def encode_for_probe(self, mode: EncoderMode) -> Steps[EncoderOutput]:
        log_mel = self.mels.frames()
        (result,) = yield from IncrementalEncodeCall([IncrementalWindow(log_mel, mode)])
        self._probed = mode, log_mel.shape[1], result
        return result.encoded

    def window(
        self, mode: EncoderMode | None = None, *, until_sample: int | None = None, is_last: bool = False
    ) -> Steps[AudioWindow | None]:
        """Encode the buffer up to a sample, unless a probe just did; None without a frame of audio.

        mode: None: of growing audio. is_last: no audio may follow.
        """
        log_mel = self.mels.frames(final=is_last, until_sample=until_sample)
        if log_mel.shape[1] < MELS_PER_FRAME:
            return None
        result = self._result_of_probe(mode or self.mode, log_mel.shape[1])
        is_full = mode is not None or result is not None or self._state is None
        if result is None:
            self._probed = None
            windows = [IncrementalWindow(log_mel, mode or self.mode, self._state)]
            (result,) = yield from IncrementalEncodeCall(windows)
        self._state = result.state
        encoded = result.encoded.with_content((log_mel.shape[1] // MELS_PER_FRAME,))
        window = AudioWindow(encoded, log_mel, self.mels.start_sample)
        if is_full:
            self._full_encode = window.start_sample, window.end_s
        return window

    def _result_of_probe(self, mode: EncoderMode, n_columns: int) -> IncrementalResult | None:
        if self._probed is None or self._probed[:2] != (mode.whole(), n_columns):
            return None
        return self._probed[2]

    def flush_mode(self, until_sample: int) -> EncoderMode:
        """Return how the end of an utterance is encoded: all audio since the last full encode at once."""
        start_sample, encoded_s = self._full_encode
        if self.mode.recompute_s is None or start_sample != self.mels.start_sample:
            return self.mode.whole()
        since_s = max(0.0, until_sample / SAMPLE_RATE - encoded_s)
        newest_s = min(FULL_WINDOW_S, since_s + self.mode.recompute_s)
        return replace(self.mode, recompute_s=newest_s, refresh_s=0.0)

    def reset(self) -> None:
        self._state = self._probed = None


class LiveUtterance:
    """Audio from a sample on, its committed words, and the text before it in each language.

    mode: of the encoder. history: text tokens before it by language; None: nothing was committed in the
    session yet.
    """

    def __init__(
        self,
        tokenizer_of: Callable[[str], Tokenizer],
        options: StreamOptions,
        mode: EncoderMode,
        n_mels: int,
        *,
        start_sample: int = 0,
        history: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._options = options
        self._mels = MelBuffer(n_mels, start_sample)
        self.encoder = UtteranceEncoder(self._mels, mode)
        self._tokenizer_of = tokenizer_of
        self._history = history
        self._is_first = history is None
        self._contexts: dict[str, PromptContext] = {}
        self.committed = CommittedWords(start_sample / SAMPLE_RATE)

    @property
    def start_sample(self) -> int:
        return self._mels.start_sample

    @property
    def end_sample(self) -> int:
        return self._mels.end_sample

    @property
    def history(self) -> dict[str, tuple[int, ...]] | None:
        if self._is_first:
            return None
        tokens = self.committed.tokens
        here = {code: context.followed_by(tokens(code)) for code, context in self._contexts.items()}
        return {**(self._history or {}), **here}

    def append(self, samples: Samples) -> None:
        self._mels.append(samples)
        self._trim()

    def log_mel(self) -> Floats:
        return self._mels.frames()

    def boundary_s(self, around_s: float, reach_s: float) -> float:
        """Return the quietest time within reach_s of around_s, after the committed words."""
        start_s, until_s = self.start_sample / SAMPLE_RATE, self.committed.until_s
        spans_s = (max(around_s, until_s) - start_s, until_s - start_s, reach_s)
        boundary, least, reach = (math.ceil(seconds * FRAMES_PER_SECOND) for seconds in spans_s)
        quiet = quietest_boundary(loudness(self.log_mel()), boundary, reach, least=least)
        return max(until_s, start_s + quiet / FRAMES_PER_SECOND)

    def quietest_sample(self, start: int, end: int) -> int:
        loud = smoothed(loudness(self.log_mel_between(start, end)), QUIET_FRAMES)
        return start + SAMPLES_PER_FRAME * quietest_frame(loud, len(loud) - 1)

    def quiet_samples(self, near: int, reach: range, n_most: int) -> list[int]:
        """Return quiet samples within `reach`, quietest first, then nearest to `near`."""
        at = (near - reach.start) // SAMPLES_PER_FRAME
        loud = smoothed(loudness(self.log_mel_between(reach.start, reach.stop)), QUIET_FRAMES)
        return [reach.start + SAMPLES_PER_FRAME * frame for frame in quiet_frames(loud, at)[:n_most]]

    def log_mel_between(self, start: int, end: int) -> Floats:
        first, last = ((sample - self.start_sample) // HOP_SAMPLES for sample in (start, end))
        return self.log_mel()[:, first:last]

    def prefix(self, language: str) -> DecoderPrefix:
        return self._context(language).prefix(self.committed.tokens(language))

    def commit(self, words: Sequence[HypothesisWord]) -> None:
        if words and self._is_first:
            self._is_first = False
            for language, context in self._contexts.items():
                if language != words[0].word.language:
                    context.clear()
        for word in words:
            self.committed.add(word)

    def drop_before(self, cut_s: float, *, words_until_s: float | None = None) -> None:
        """Drop audio before a time, and move the text of words that end by words_until_s into the prompt."""
        for word in self.committed.drop_before(cut_s if words_until_s is None else words_until_s):
            self._context(word.word.language or "").add(word.tokens)
        self._mels.cut(round(cut_s * SAMPLE_RATE))
        self.encoder.reset()

    def clear_prompt(self) -> None:
        for context in self._contexts.values():
            context.clear()

    def _trim(self) -> None:
        limit = round(self._options.audio_max_len_s * SAMPLE_RATE)
        if self.end_sample - self.start_sample > limit:
            # A cut is rounded down to a whole encoder frame.
            earliest_s = (self.end_sample - limit + SAMPLES_PER_FRAME) / SAMPLE_RATE
            latest_s = earliest_s + self._options.trim_step_s
            self.drop_before(self.committed.cut_point(earliest_s, latest_s))
        elif self.committed.n_tokens > MAX_COMMITTED_TOKENS:
            self.drop_before(self.committed.half_point())

    def _context(self, language: str) -> PromptContext:
        if language not in self._contexts:
            history = None if self._is_first else (self._history or {}).get(language, ())
            self._contexts[language] = PromptContext(self._tokenizer_of(language), self._options, history)
        return self._contexts[language]


class CommittedWords:
    """Committed words of the buffered audio; until_s: end of the last word ever committed."""

    def __init__(self, start_s: float) -> None:
        self._words: list[HypothesisWord] = []
        self._tokens: dict[str | None, tuple[int, ...]] = {}
        """By language."""
        self.letters: list[str] = []
        self.n_tokens = 0
        self.until_s = start_s

    def __len__(self) -> int:
        return len(self._words)

    @property
    def last(self) -> Word | None:
        return self._words[-1].word if self._words else None

    @property
    def earliest_boundary_s(self) -> float:
        """Earliest change point (s): the middle of the last word, or `SNAP_S` before its end."""
        last = self.last
        return self.until_s if last is None else max(self.until_s - SNAP_S, (last.start + last.end) / 2)

    def add(self, word: HypothesisWord) -> None:
        self._append(word)
        self.until_s = max(self.until_s, word.word.end)

    def _append(self, word: HypothesisWord) -> None:
        self._words.append(word)
        self._tokens[word.word.language] = (*self.tokens(word.word.language), *word.tokens)
        self.letters.append(word.letters)
        self.n_tokens += len(word.tokens)

    def tokens(self, language: str | None) -> tuple[int, ...]:
        return self._tokens.get(language, ())

    def cut_point(self, earliest_s: float, target_s: float) -> float:
        """Return the middle of the widest gap from earliest_s to target_s + 2 s.

        Without a gap: target_s if all words before it are committed, else earliest_s.
        """
        gaps = [gap for gap in self._gaps() if earliest_s <= gap[1] <= target_s + 2.0]
        if gaps:
            return max(gaps)[1]
        return target_s if self.until_s >= target_s else earliest_s

    def half_point(self) -> float:
        """Return the middle of the widest gap in the middle third of the tokens, or the end."""
        total = self.n_tokens
        gaps = [gap for gap in self._gaps() if total / 3 <= gap[2] <= 2 * total / 3]
        return max(gaps)[1] if gaps else self.until_s

    def _gaps(self) -> list[tuple[float, float, int]]:
        n_tokens = accumulate(len(word.tokens) for word in self._words)
        starts = [*(word.word.start for word in self._words[1:]), self.until_s + 0.2]
        return [
            (start_s - word.word.end, (word.word.end + start_s) / 2, n)
            for word, start_s, n in zip(self._words, starts, n_tokens, strict=False)
        ]

    def drop_before(self, cut_s: float) -> list[HypothesisWord]:
        words, dropped = self._words, [*takewhile(lambda word: word.word.end <= cut_s + 1e-6, self._words)]
        self._words, self._tokens, self.letters, self.n_tokens = [], {}, [], 0
        for word in words[len(dropped) :]:
            self._append(word)
        return dropped


class PromptContext:
    """The prompt of one language: `static_prompt` and the newest text, at first `init_prompt`."""

    def __init__(
        self, tokenizer: Tokenizer, options: StreamOptions, history: Sequence[int] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._limit = options.max_context_tokens
        self._static = tuple(tokenizer.encode_prompt(options.static_prompt))
        self._history = tuple(tokenizer.encode_prompt(options.init_prompt) if history is None else history)

    def add(self, tokens: Sequence[int]) -> None:
        self._history = (*self._history, *tokens)[-223:]

    def clear(self) -> None:
        self._history = ()

    def followed_by(self, committed: Sequence[int]) -> tuple[int, ...]:
        return (*self._history, *committed)[-self._limit :] if self._limit else ()

    def prefix(self, committed: Sequence[int]) -> DecoderPrefix:
        room = max(0, self._limit - len(self._static))
        history = self._history[-room:] if room else ()
        static = self._static[: self._limit]
        prompt = (self._tokenizer.sot_prev, *static, *history) if static or history else ()
        return DecoderPrefix((*prompt, *self._start, *committed), len(prompt), len(committed))

    @cached_property
    def _start(self) -> tuple[int, ...]:
        return self._tokenizer.sot_sequence_including_notimestamps


RETRY_AFTER_S = 0.8
"""Speech of this length after the last word is decoded again at the end of an utterance."""
STALL_KEEP_S = 2.0
"""Seconds of audio kept where decoding fails."""
REST_OF_WORD_S = 0.3
"""A word ends within this time after its last attended frame; the rest would become another word."""


@dataclass(eq=False)
class UtteranceDecoder:
    """Decodes an utterance, in one language at a time; what calls the model are `Steps` of a request.

    on_words: called with committed words and their language. on_window: called with each decoded window.
    retry_after_s: see `RETRY_AFTER_S`. reads_ahead: decode the uncommitted words too, greedily.
    """

    utterance: LiveUtterance
    aligner: AlignAttDecoder
    builder: WordBuilder
    on_words: Callable[[Sequence[Word], str], None]
    options: StreamOptions
    on_window: Callable[[AudioWindow], None]
    retry_after_s: float = RETRY_AFTER_S
    reads_ahead: bool = False

    def __post_init__(self) -> None:
        self.is_open = True
        """Whether speech continues; False in a pause."""
        self._greedy = replace(self.aligner, beam_size=1)
        self._from_s = self.utterance.start_sample / SAMPLE_RATE
        """Where speech began after the last pause or skipped audio."""
        self.begin_language(self.builder)

    def begin_language(self, builder: WordBuilder) -> None:
        self.builder = builder
        self.policy = CommitPolicy(self.options)
        self._cached: tuple[int, PrefixCache | None] = (0, None)
        """First sample of the last window, and its cache."""
        self.read_until_s = -math.inf
        """End of the audio of the last update that reached the end of the text and committed all of it."""

    @property
    def language(self) -> str:
        return self.builder.language

    def resume(self, from_s: float) -> None:
        self.is_open, self._from_s = True, from_s

    def release(self) -> None:
        """Drop the audio and its states; the text stays in the prompt."""
        self.utterance.drop_before(self.utterance.end_sample / SAMPLE_RATE, words_until_s=math.inf)
        self._cached = 0, None

    def undecoded_s(self, end_s: float) -> float:
        return end_s - max(self.utterance.committed.until_s, self._from_s)

    @property
    def is_long_enough(self) -> bool:
        n_samples = self.utterance.end_sample - self.utterance.start_sample
        return n_samples / SAMPLE_RATE >= self.options.audio_min_len_s

    def may_commit(self, certain_until_s: float) -> bool:
        committed_s = self.utterance.committed.until_s
        undecoded_s = self.utterance.end_sample / SAMPLE_RATE - committed_s
        return undecoded_s * FRAMES_PER_SECOND > self.options.near_frames and certain_until_s > committed_s

    def update(self, certain_until_s: float, *, greedy: bool = False) -> Steps[None]:
        window = yield from self.utterance.encoder.window()
        if window is not None:
            yield from self.decode(window, certain_until_s=certain_until_s, greedy=greedy)
            self._trim_stalled(window)

    def text_end(self) -> Steps[TextEnd | None]:
        window = yield from self.utterance.encoder.window()
        if window is None:
            return None
        undecoded_s = window.end_s - self.utterance.committed.until_s
        rules = replace(self.policy.stop_rules(undecoded_s, final=False), frame_threshold=0)
        start_sample, cache = self._cached
        prefix = self.utterance.prefix(self.language)
        request = AlignAttRequest(
            prefix, rules, prefix_cache=cache if start_sample == window.start_sample else None
        )
        hypothesis = yield from DecodeCall(self.aligner, window.encoded, request)
        n_committed, text = prefix.n_committed, [*prefix.committed, *hypothesis.tokens]
        while text and is_punctuation(self.builder.tokenizer.decode(text[-1:])):
            text.pop()
        whole = (*prefix.tokens[: len(prefix.tokens) - n_committed], *text)
        request = replace(
            request,
            prefix=DecoderPrefix(whole, prefix.sot, len(text)),
            rules=replace(rules, max_tokens=0),
            measures_end=True,
        )
        hypothesis = yield from DecodeCall(self.aligner, window.encoded, request)
        assert hypothesis.text_end is not None
        return hypothesis.text_end

    def flush(self, until_sample: int, *, is_last: bool = False) -> Steps[None]:
        """Commit all words of the audio up to a sample.

        If much of it gave no word, the rest is decoded again, without a prompt, in the full window; then
        agreed words are committed.
        """
        encoder = self.utterance.encoder
        for is_retry, mode in ((False, encoder.flush_mode(until_sample)), (True, EXACT)):
            window = yield from encoder.window(mode, until_sample=until_sample, is_last=is_last)
            if window is None:
                return
            yield from self.decode(window, final=True)
            if is_retry:
                self._commit_agreed(window.end_s)
            if not self.policy.is_stuck and self.undecoded_s(window.end_s) < self.retry_after_s:
                return
            self._restart_after_last_word(window)

    def decode(
        self,
        window: AudioWindow,
        *,
        certain_until_s: float = math.inf,
        greedy: bool = False,
        final: bool = False,
    ) -> Steps[None]:
        self.on_window(window)
        after_s = self.utterance.committed.until_s
        rules = self.policy.stop_rules(
            window.end_s - after_s,
            final=final,
            committed_until=window.frame(after_s) if len(self.utterance.committed) else None,
        )
        if rules.frame_threshold >= window.n_frames:
            return
        start_sample, cache = self._cached
        request = AlignAttRequest(
            self.utterance.prefix(self.language),
            rules,
            prefix_cache=None if final or start_sample != window.start_sample else cache,
            n_recomputed=None if final else self.options.recompute_tokens,
        )
        decoder = self._greedy if greedy else self.aligner
        hypothesis = yield from DecodeCall(decoder, window.encoded, request)
        self._cached = window.start_sample, hypothesis.prefix_cache
        reading = Reading(window, self.builder, after_s, self.utterance.committed.letters)
        words = self.policy.commit(hypothesis, reading, certain_until_s=certain_until_s, final=final)
        is_read = hypothesis.stop_reason is StopReason.END_OF_TEXT and not self.policy.unstable
        self.read_until_s = window.end_s if is_read else -math.inf
        if self.reads_ahead and hypothesis.stop_reason is StopReason.FRONTIER:
            whole = yield from self._read_ahead(hypothesis, request, window)
            shown = reading.without_loop(whole, final=True)
            if shown and rules.at_frontier(shown[-1].last_frame, window.n_frames):
                shown.pop()  # a word at the end of the audio is often half spoken
            self.policy.unstable = tuple(word.word for word in shown[len(words) :])
        self._commit(words)

    def _read_ahead(
        self, hypothesis: AlignAttHypothesis, request: AlignAttRequest, window: AudioWindow
    ) -> Steps[AlignAttHypothesis]:
        prefix, held_back = request.prefix, hypothesis.held_back_token
        tokens = (*hypothesis.tokens, *(() if held_back is None else (held_back,)))
        ahead = AlignAttRequest(
            DecoderPrefix((*prefix.tokens, *tokens), prefix.sot, prefix.n_committed + len(tokens)),
            replace(request.rules, frame_threshold=0.0, committed_until=None),
            prefix_cache=hypothesis.prefix_cache,
        )
        rest = yield from DecodeCall(self._greedy, window.encoded, ahead)
        return hypothesis.followed_by(rest)

    def _commit(self, words: Sequence[HypothesisWord]) -> None:
        self.utterance.commit(words)
        self.on_words([word.word for word in words], self.language)

    def _commit_agreed(self, until_s: float) -> None:
        committed_s = self.utterance.committed.until_s
        self._commit(self.policy.take_agreed(committed_s, until_s))

    def _trim_stalled(self, window: AudioWindow) -> None:
        is_overdue = self.undecoded_s(window.end_s) > self.options.stall_timeout_s
        if not self.policy.is_stuck and (self.policy.unstable or not is_overdue):
            return
        if self.utterance.committed.last is not None:
            self._restart_after_last_word(window)
        elif is_overdue:
            self._commit_agreed(window.end_s - STALL_KEEP_S)
            self._from_s = max(self._from_s, window.end_s - STALL_KEEP_S)
            self.utterance.drop_before(window.end_s - STALL_KEEP_S)

    def _restart_after_last_word(self, window: AudioWindow) -> None:
        committed_s = self.utterance.committed.until_s
        self.utterance.drop_before(window.quietest_s(committed_s, committed_s + REST_OF_WORD_S))
        self.utterance.clear_prompt()
