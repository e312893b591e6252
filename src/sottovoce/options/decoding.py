"""Options of decoding a window of audio, of decoding it again at other temperatures or by another model, and
of voice activity detection.

Sources: openai-whisper 20250625 `decode_with_fallback`; deferral: Narasimhan et al. 2022, "Post-hoc
estimators for learning to defer to an expert".
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sottovoce.errors import OptionError
from sottovoce.options.schema import ApiField, Option, check_options, in_python, unchecked
from sottovoce.text.disfluency import check_verbatim
from sottovoce.text.languages import find_language
from sottovoce.types import SAMPLE_RATE, Segment, Task

NON_SPEECH = -1
HOTTEST = 1.0
"""As in OpenAI's API; 1 samples the model's own probabilities."""
BEAM_SIZE = 5
"""Of commands, the server, live sessions, and calls without options. Source: openai-whisper's command."""
MOST_BEAM = 16
SPECIALS_ALONE = (50_258,)
"""`<|startoftranscript|>` (`<|en|>` of English models), which is no text."""

ENTROPY_TOKENS = 32
"""Last tokens over which the entropy is computed."""

_search = partial(Option, group="Search")
_fallback = partial(Option, group="Fallback")


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How to decode one window of at most 30 s. Names and defaults are openai-whisper's.

    Raises: OptionError.
    """

    language: str | None = None
    """Code, tag or English name, stored as a code; None detects it among `allowed_languages`."""
    task: Task = Option(
        "translate: translate into English.",
        group="Task",
        choices=("transcribe", "translate"),
        whisper_cpp=ApiField(
            "translate",
            "translate into English",
            kind="flag",
            reads=lambda on: "translate" if on else "transcribe",
        ),
        whisper_asr=ApiField("task", "`transcribe`, or `translate` into English"),
    ).as_field("transcribe")
    temperature: float = in_python(
        "0 takes the most probable token, above 0 samples.", key="window_temperature", least=0.0, most=HOTTEST
    ).as_field(0.0)
    """For a recording, 0 uses the fallback's temperatures; another value is the only one tried."""
    sample_len: int | None = in_python(
        "Largest number of tokens.", unset="half of the model's text context (224)", least=1
    ).as_field(None)
    best_of: int | None = in_python(
        "Samples at temperatures above 0, of which the most probable is taken.", key="window_best_of", least=1
    ).as_field(None)
    beam_size: int | None = _search(
        "Hypotheses of the beam search; 1 is greedy.",
        least=1,
        unset=f"{BEAM_SIZE}; CTC networks 16",
        whisper_cpp=ApiField(
            "beam_size",
            "up to 16; without it, 0 or -1: the server's `--beam-size`; 1 is greedy",
            least=-1,
            most=MOST_BEAM,
            none_upto=0,
        ),
    ).as_field(None)
    patience: float | None = _search(
        "Finished hypotheses to wait for, as a multiple of the beam size.", above=0.0
    ).as_field(None)
    """The search ends at round(beam_size * patience) of them; None is 1.
    Source: Kasai et al. 2022, https://arxiv.org/abs/2204.05424.
    """
    length_penalty: float | None = _search(
        "Exponent of the length penalty of Google NMT.",
        unset="mean of the log-probabilities",
        least=0.0,
        most=1.0,
    ).as_field(None)
    """Alpha of ((5 + n) / 6) ** alpha; None divides by the length n.
    Source: Wu et al. 2016, https://arxiv.org/abs/1609.08144."""
    prompt: str | tuple[int, ...] | None = in_python("Earlier text, as text or tokens.").as_field(None)
    prefix: str | tuple[int, ...] | None = Option(
        "Beginning of the text.", group="Context", metavar="TEXT"
    ).as_field(None)
    """Text or tokens; `decode` returns what follows them. Of a recording's first window; in openai-whisper of
    every one.
    """
    hotwords: str | None = in_python("Expected words, put before the prompt.", key="hotword_text").as_field(
        None
    )
    suppress_tokens: tuple[int, ...] | None = _search(
        "Tokens that are never written; -1 stands for symbols that are not speech, '' allows all.",
        kind="integers",
        metavar="ID[,ID…]",
        whisper_cpp=ApiField(
            "suppress_nst suppress_non_speech",
            "`false` also writes symbols such as ♪ and [; default `true`",
            kind="flag",
            reads=lambda on: None if on else SPECIALS_ALONE,
        ),
    ).as_field((NON_SPEECH,))
    suppress_regex: str | None = _search(
        "Tokens whose whole text, with the space before a word, matches this are never written.",
        metavar="REGEX",
    ).as_field(None)
    verbatim: bool = Option(
        "Keep fillers, repetitions and broken-off words as far as the model can (en, de, es, fr).",
        group="Style",
    ).as_field(False)
    """By a prompt in the spoken language (`text.disfluency`)."""
    speaker_turns: bool = Option(
        "Split at the speaker turns of a tinydiarize checkpoint, and number them.",
        group="Speakers",
        key="tinydiarize",
        whisper_cpp=ApiField(
            "tinydiarize", "with a tinydiarize checkpoint: ` [SPEAKER_TURN]` before another speaker"
        ),
    ).as_field(False)
    """Allows their token of a speaker change (`<|startoflm|>`)."""
    suppress_blank: bool = in_python("Do not begin with a space or the end of text.").as_field(True)
    without_timestamps: bool = Option("Do not predict the times of segments.", group="Times").as_field(False)
    max_initial_timestamp: float | None = in_python(
        "Latest first timestamp in seconds; None or 0 sets no limit.",
        least=0.0,
        most=30.0,
        expected="0 to 30 seconds",
    ).as_field(1.0)
    repetition_penalty: float = _search(
        "Above 1, makes tokens that occurred less likely.", above=0.0
    ).as_field(1.0)
    no_repeat_ngram_size: int = _search(
        "No sequence of this many tokens occurs twice; 0 allows all.", least=0
    ).as_field(0)
    allowed_languages: tuple[str, ...] = ()
    seed: int = Option(
        "Random seed of sampling at temperatures above 0.",
        group="Fallback",
        openai=ApiField(
            "seed", "random seed at temperatures above 0; equal seeds give equal text", least=0, most=2**53
        ),
    ).as_field(0)

    def __post_init__(self) -> None:
        check_options(self)
        code = None if self.language is None else find_language(self.language)
        object.__setattr__(self, "language", code)
        object.__setattr__(self, "allowed_languages", tuple(map(find_language, self.allowed_languages)))
        if self.beam_size is not None and self.temperature > 0.0:
            raise OptionError(f"beam_size {self.beam_size}: beam search needs temperature 0")
        if self.verbatim and self.task != "transcribe":
            raise OptionError(f"verbatim: needs task 'transcribe', got '{self.task}'")
        if self.verbatim and (self.no_repeat_ngram_size or self.repetition_penalty != 1.0):
            raise OptionError(
                "verbatim: keeps repetitions; expected no repetition_penalty or no_repeat_ngram_size"
            )
        try:
            re.compile(self.suppress_regex or "")
        except re.error as error:
            regex = self.suppress_regex
            raise OptionError(
                f"suppress_regex: expected a regular expression, got '{regex}' ({error})"
            ) from None
        n_finished = (self.beam_size or 1) * (self.patience or 1.0)
        if self.beam_size is not None and round(n_finished) < 1:
            raise OptionError(
                f"patience {self.patience}: expected beam_size * patience of at least 1, got {n_finished}"
            )
        if self.verbatim and self.language is not None:
            check_verbatim(self.language)

    @property
    def n_hypotheses(self) -> int:
        if self.temperature > 0.0:
            return self.best_of or 1
        return self.beam_size or 1

    def at_temperature(self, temperature: float) -> DecodingOptions:
        """Return these options with beam search only at temperature 0, and best_of only above."""
        if temperature > 0.0:
            return unchecked(self, temperature=temperature, beam_size=None, patience=None)
        return unchecked(self, temperature=0.0, best_of=None)


def shared_options(options: Sequence[DecodingOptions]) -> DecodingOptions:
    """Return the common options of a batch; prompt, hotwords, language, seed and sample_len may differ.

    Raises: OptionError.
    """
    if not options:
        raise OptionError("decoding options: expected one for every window, got none")
    common = [
        unchecked(each, prompt=None, hotwords=None, language=None, seed=0, sample_len=None)
        for each in options
    ]
    if any(each != common[0] for each in common):
        raise OptionError(
            "decoding options of one batch may differ in prompt, hotwords, language, seed and sample_len only"
        )
    return common[0]


class ScoredText(Protocol):
    @property
    def tokens(self) -> tuple[int, ...]: ...
    @property
    def avg_logprob(self) -> float: ...
    @property
    def no_speech_prob(self) -> float: ...
    @property
    def compression_ratio(self) -> float: ...


@dataclass(frozen=True, slots=True)
class FallbackOptions:
    """Conditions and temperatures of decoding again. Raises: OptionError."""

    temperatures: tuple[float, ...] = _fallback(
        "Temperatures, tried in turn while the result looks wrong.",
        key="temperature",
        kind="numbers",
        metavar="T[,T…]",
        least=0.0,
        most=HOTTEST,
        openai=ApiField(
            "temperature",
            "0 or none: higher ones are tried if the result looks wrong; above 0: only this one",
            kind="number",
            reads=lambda first: (first,) if first else None,
        ),
    ).as_field((0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    compression_ratio_threshold: float | None = _fallback(
        "Text with a higher compression ratio is repetitive: try the next temperature.", may_be_infinite=True
    ).as_field(2.4)
    logprob_threshold: float | None = _fallback(
        "With a lower mean log-probability, try the next temperature.",
        may_be_infinite=True,
        whisper_cpp=ApiField(
            "logprob_thold", "a result with a lower mean log-probability looks wrong", least=-1e3, most=1.0
        ),
    ).as_field(-1.0)
    no_speech_threshold: float | None = _fallback(
        "With a higher no-speech probability, and below --logprob-threshold, the window is silent.",
        least=0.0,
        most=1.0,
        whisper_cpp=ApiField(
            "no_speech_thold", "silence: a higher no-speech probability, and a text that looks wrong"
        ),
    ).as_field(0.6)
    """None: no window is silent."""
    max_loops: int | None = in_python(
        "How often the same run of up to 24 tokens may end a text, one after the other.",
        unset="any number",
        least=1,
    ).as_field(None)
    entropy_threshold: float | None = _fallback(
        "Text whose last 32 tokens have a lower entropy is repetitive too (2.4 in whisper.cpp).",
        unset="off",
        least=0.0,
        whisper_cpp=ApiField(
            "entropy_thold", "a text with a lower entropy looks wrong; default off", least=0.0, most=1e3
        ),
    ).as_field(None)
    """In nats; None: no limit."""
    best_of: int | None = Option(
        "Samples at temperatures above 0.",
        group="Search",
        cli_default=5,
        least=1,
        whisper_cpp=ApiField(
            "best_of", "samples at temperatures above 0, up to 16", least=-1, most=MOST_BEAM, none_upto=0
        ),
    ).as_field(None)
    """None uses the decoding options' value."""

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise OptionError("temperatures: expected one or more, got none")
        check_options(self)

    def at_temperature(self, options: DecodingOptions, temperature: float, seed: int) -> DecodingOptions:
        chosen = unchecked(options.at_temperature(temperature), seed=seed)
        return chosen if self.best_of is None else unchecked(chosen, best_of=self.best_of)

    def repeats(self, result: ScoredText) -> bool:
        limit = self.compression_ratio_threshold
        if limit is not None and result.compression_ratio > limit:
            return True
        least, tokens = self.entropy_threshold, result.tokens
        is_long = len(tokens) > ENTROPY_TOKENS
        if least is not None and is_long and token_entropy(tokens[-ENTROPY_TOKENS:]) < least:
            return True
        return self.max_loops is not None and count_repeated(result.tokens, self.max_loops) > 0

    def is_guess(self, result: ScoredText) -> bool:
        return self.logprob_threshold is not None and result.avg_logprob < self.logprob_threshold

    def is_silence(self, result: ScoredText) -> bool:
        """Return whether a window is silent by a text that is improbable, or repetitive."""
        limit = None if self.repeats(result) else self.logprob_threshold
        return is_silence(result.no_speech_prob, self.no_speech_threshold, result.avg_logprob, limit)

    def fails(self, result: ScoredText) -> bool:
        return (self.is_guess(result) or self.repeats(result)) and not self.is_silence(result)


def is_silence(
    no_speech_prob: float,
    no_speech_threshold: float | None,
    avg_logprob: float = -math.inf,
    logprob_threshold: float | None = None,
) -> bool:
    """Return whether a window is silent: by a high no-speech probability, and an improbable text.

    no_speech_threshold: None: no window is. logprob_threshold: None: whatever the text.
    Source: openai-whisper 20250625, transcribe.py.
    """
    is_likely = no_speech_threshold is not None and no_speech_prob > no_speech_threshold
    return is_likely and (logprob_threshold is None or avg_logprob <= logprob_threshold)


LONGEST_BLOCK = 24


def count_repeated(items: Sequence[object], max_repeats: int, *, least: int = 1) -> int:
    """Count the items at the end that repeat a block of at most LONGEST_BLOCK items before them.

    The block must occur more than `max_repeats` times, with at least `least` items in all.
    """
    if not items or items[-1] not in items[-LONGEST_BLOCK - 1 : -1]:
        return 0
    for period in range(1, min(LONGEST_BLOCK, len(items) // 2) + 1):
        n_same = 0
        if max_repeats and items[-1] != items[-1 - period]:
            continue
        while n_same + period < len(items) and items[-1 - n_same] == items[-1 - n_same - period]:
            n_same += 1
        if n_same + period >= max(least, period * (max_repeats + 1)):
            return n_same
    return 0


def token_entropy(tokens: Sequence[int]) -> float:
    """Return the entropy of the tokens in nats.

    Source: whisper.cpp, `whisper_sequence_score`.
    """
    shares = [count / len(tokens) for count in Counter(tokens).values()]
    return -sum(share * math.log(share) for share in shares)


@dataclass(frozen=True, slots=True)
class DeferralOptions:
    """Which segments the second model transcribes again, beside skipped speech. Raises: OptionError."""

    min_avg_logprob: float = Option(
        "Windows with a lower mean log-probability are uncertain.",
        group="Second model",
        key="defer_logprob",
        most=0.0,
    ).as_field(-0.6)
    min_word_prob: float = Option(
        "Segments with a word of lower probability are uncertain; above 0, words are timed for this.",
        group="Second model",
        key="defer_word",
        least=0.0,
        most=1.0,
    ).as_field(0.5)

    def __post_init__(self) -> None:
        check_options(self)

    def defers(self, segment: Segment) -> bool:
        return (
            segment.avg_logprob < self.min_avg_logprob
            or segment.temperature > 0.0
            or any(word.probability < self.min_word_prob for word in segment.words or ())
        )


WINDOW_SAMPLES = 512
"""Samples of one speech probability (32 ms)."""
_of_recording = partial(Option, group="Speech", prefix="vad_", cli_default=None)
_of_stream = partial(Option, group="Edges")


def ms_to_samples(duration_ms: float) -> float:
    return SAMPLE_RATE * duration_ms / 1000


def exit_threshold(threshold: float, neg_threshold: float | None) -> float:
    return max(threshold - 0.15, 0.01) if neg_threshold is None else neg_threshold


def require_thresholds(threshold: float, neg_threshold: float | None) -> None:
    if not 0 < threshold < 1:
        raise OptionError(f"threshold: expected a probability between 0 and 1, got {threshold}")
    if neg_threshold is not None and not 0 <= neg_threshold <= threshold:
        raise OptionError(f"neg_threshold: expected 0 to threshold ({threshold}), got {neg_threshold}")


@dataclass(frozen=True, slots=True)
class VadOptions:
    """How speech probabilities become segments of a recording; the defaults are faster-whisper's.

    The command line and requests default to `WINDOW_VAD`. Raises: OptionError.
    """

    threshold: float = _of_recording(
        "Probability at which speech begins.",
        unset="0.5",
        least=0.0,
        most=1.0,
        whisper_cpp=ApiField("vad_threshold", least=0.0, most=1.0),
    ).as_field(0.5)
    neg_threshold: float | None = _of_recording(
        "Probability below which speech ends.", unset="threshold - 0.15", least=0.0, most=1.0
    ).as_field(None)
    min_speech_ms: float = _of_recording(
        "Shorter speech is dropped.",
        unset="0",
        least=0.0,
        whisper_cpp=ApiField("vad_min_speech_duration_ms", least=0.0, most=60_000.0),
    ).as_field(0.0)
    min_silence_ms: float = _of_recording(
        "Shorter pauses do not end speech.",
        unset="160",
        least=0.0,
        whisper_cpp=ApiField("vad_min_silence_duration_ms", least=0.0, most=60_000.0),
    ).as_field(2000.0)
    max_speech_s: float = _of_recording(
        "Longer speech is split at a pause.",
        unset="30",
        above=0.0,
        may_be_infinite=True,
        whisper_cpp=ApiField(
            "vad_max_speech_duration_s",
            "longer speech is split at a pause; at most 30 s",
            least=0.0,
            most=3.5e38,
            reads=lambda seconds: min(seconds, 30.0),
        ),
    ).as_field(math.inf)
    """At the longest pause of `min_silence_at_max_speech_ms`, else at the limit."""
    min_silence_at_max_speech_ms: float = _of_recording(
        "Shortest pause at which long speech is split.", unset="98", least=0.0
    ).as_field(98.0)
    speech_pad_ms: float = _of_recording(
        "Padding at both ends of speech.",
        unset="200",
        least=0.0,
        whisper_cpp=ApiField("vad_speech_pad_ms", least=0.0, most=5_000.0),
    ).as_field(400.0)
    """At most to the middle of a pause."""
    overlap_s: float = _of_recording(
        "Overlap with the next piece, after the padding.",
        unset="0",
        least=0.0,
        whisper_cpp=ApiField("vad_samples_overlap", least=0.0, most=5.0),
    ).as_field(0.0)
    """Added at each end; 0.1 in whisper.cpp."""

    def __post_init__(self) -> None:
        require_thresholds(self.threshold, self.neg_threshold)
        check_options(self)
        if not self.max_samples >= WINDOW_SAMPLES:
            raise OptionError(
                f"max_speech_s: expected more than the padding and two windows "
                f"({2 * self.speech_pad_ms / 1000 + 0.064:.3f} s), got {self.max_speech_s}"
            )

    @property
    def exit_threshold(self) -> float:
        return exit_threshold(self.threshold, self.neg_threshold)

    @property
    def max_samples(self) -> float:
        return SAMPLE_RATE * self.max_speech_s - WINDOW_SAMPLES - 2 * ms_to_samples(self.speech_pad_ms)


WINDOW_VAD = VadOptions(min_silence_ms=160.0, max_speech_s=30.0, speech_pad_ms=200.0)
"""Speech in pieces that fit a window, as in faster-whisper's batched pipeline, which pads with 400 ms
(docs/research/files.md).
"""


LONGEST_UTTERANCE_S = 30.0
"""Speech without a pause ends after so many seconds: the window of Whisper."""


@dataclass(frozen=True, slots=True)
class VadStreamOptions:
    """How speech probabilities become starts and ends of speech in a stream.

    threshold, neg_threshold: as in `VadOptions`. Raises: OptionError.
    """

    threshold: float = 0.5
    neg_threshold: float | None = None
    onset_ms: float = _of_stream("Shorter speech is ignored.", least=0.0).as_field(64.0)
    hangover_ms: float = _of_stream("Silence that ends speech.", least=0.0).as_field(500.0)
    pre_roll_ms: float = _of_stream(
        "Audio included before the detected start of speech.", least=0.0
    ).as_field(300.0)
    post_roll_ms: float = _of_stream(
        "The end is set so much after the last window of speech.", group="", flag=None, least=0.0
    ).as_field(100.0)

    def __post_init__(self) -> None:
        require_thresholds(self.threshold, self.neg_threshold)
        check_options(self)
        if self.post_roll_ms > self.hangover_ms:
            raise OptionError(
                f"post_roll_ms: expected at most hangover_ms ({self.hangover_ms}), got {self.post_roll_ms}"
            )

    @property
    def exit_threshold(self) -> float:
        return exit_threshold(self.threshold, self.neg_threshold)
