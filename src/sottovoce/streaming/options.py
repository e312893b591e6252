"""What a caller can ask of a live stream, checked when it is made. Knows no model and no audio."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from sottovoce.backends.base import EXACT, EncoderMode
from sottovoce.decoding.beam import Fusion
from sottovoce.errors import OptionError
from sottovoce.streaming.agreement import AgreementOptions
from sottovoce.types import Task


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How live speech is decoded. Names and defaults are SimulStreaming's where it has them.

    frame_threshold: a word attended this near to the end of the audio waits, one that the model is sure of
        at a part of it where that is asked for; inf: all words wait. In frames of 20 ms, as rewind_threshold
        (see `ReadingRules`). agreement: which of the others are safe.
    final_frame_threshold: the same when no more audio comes; 0 reads to the end of text, where
        SimulStreaming stops 4 frames early.
    chunk_s: audio between two updates. audio_min_len_s: least audio before the first update.
    audio_max_len_s: most audio held; a cut leaves audio_trim_s less than that; None: a third, at most 10 s.
    beam_size: 1 is greedy. task: "translate" writes English.
    init_prompt: text before the first words; moves out as text is added. static_prompt: text that stays
        (terms, names). max_context_tokens: of both and of what was said; at most 223.
    encoder: how growing audio is encoded; None: as the checkpoint bears it. tail_s: with so much padding
        behind it instead, each frame computed where it was thinned up to the full window; not with `EXACT`.
    held_over_s: an utterance is held over pauses up to this, so that what comes next is read on from it.
    wordless_s: audio held while nothing in it gives words.
    sentence_s, longest_final_s: where nobody pauses, a final comes at the end of a sentence after the one,
        and anywhere after the other.
    max_repeats: see `ReadingRules`.
    fusion: language models beside the decoder; not in parallel switching.
    reread_tokens: the newest tokens of a prefix that every update reads anew; what the decoder made of those
        before is kept, until an utterance ends or its audio is cut. None: all of them; not in parallel
        switching.
    no_speech_threshold, logprob_threshold: an update is empty when <|nospeech|> is likelier than the
        one and the mean log-probability is below the other.
    """

    frame_threshold: float = 25
    agreement: AgreementOptions = field(default_factory=AgreementOptions)
    rewind_threshold: int = 200
    final_frame_threshold: float = 0
    chunk_s: float = 0.5
    audio_min_len_s: float = 0.0
    audio_max_len_s: float = 30.0
    audio_trim_s: float | None = None
    beam_size: int = 1
    task: Task = "transcribe"
    init_prompt: str = ""
    static_prompt: str = ""
    max_context_tokens: int = 223
    encoder: EncoderMode | None = None
    tail_s: float | None = None
    held_over_s: float = 3.0
    wordless_s: float = 5.0
    sentence_s: float = 10.0
    longest_final_s: float = 30.0
    max_repeats: int = 4
    no_speech_threshold: float = 0.6
    logprob_threshold: float = -1.0
    fusion: Fusion[Tensor] | None = None
    reread_tokens: int | None = 16

    def __post_init__(self) -> None:
        if not 0.01 <= self.chunk_s < math.inf:
            raise OptionError(f"chunk_s: expected at least 0.01 seconds, got {self.chunk_s}")
        if not 1.0 <= self.audio_max_len_s <= 30.0:
            raise OptionError(f"audio_max_len_s: expected 1 to 30 seconds, got {self.audio_max_len_s}")
        if not 0.0 <= self.trim_s < self.audio_max_len_s:
            raise OptionError(f"audio_trim_s: expected less than audio_max_len_s, got {self.audio_trim_s}")
        if self.chunk_s > self.audio_max_len_s:
            raise OptionError(f"chunk_s: expected at most audio_max_len_s, got {self.chunk_s}")
        if self.tail_s is not None and not 0.0 <= self.tail_s <= 30.0:
            raise OptionError(f"tail_s: expected 0 to 30 seconds or None, got {self.tail_s}")
        if self.tail_s is not None and self.encoder == EXACT:
            raise OptionError(f"tail_s: expected none where encoder is the full window, got {self.tail_s}")
        self._check_counts()
        self._check_thresholds()

    @property
    def trim_s(self) -> float:
        """Seconds that a cut leaves less than `audio_max_len_s`."""
        return min(10.0, self.audio_max_len_s / 3) if self.audio_trim_s is None else self.audio_trim_s

    @property
    def sure_frames(self) -> float:
        """Any word attended nearer to the end of the audio waits."""
        return self.agreement.sure_part * self.frame_threshold

    def _check_counts(self) -> None:
        for name, value, least in (
            ("beam_size", self.beam_size, 1),
            ("max_repeats", self.max_repeats, 1),
            ("reread_tokens", self.reread_tokens, 1),
            ("max_context_tokens", self.max_context_tokens, 0),
        ):
            if value is not None and not (isinstance(value, int) and value >= least):
                none = " or None" if name == "reread_tokens" else ""
                raise OptionError(f"{name}: expected a whole number of at least {least}{none}, got {value}")
        if self.max_context_tokens > 223:
            raise OptionError(
                f"max_context_tokens: expected 0 to 223 (Whisper's limit), got {self.max_context_tokens}"
            )

    def _check_thresholds(self) -> None:
        for name, value, least in (
            ("frame_threshold", self.frame_threshold, 0),
            ("final_frame_threshold", self.final_frame_threshold, 0),
            ("rewind_threshold", self.rewind_threshold, 0),
            ("audio_min_len_s", self.audio_min_len_s, 0),
            ("held_over_s", self.held_over_s, 0),
            ("wordless_s", self.wordless_s, 1),
            ("sentence_s", self.sentence_s, 1),
            ("longest_final_s", self.longest_final_s, 1),
        ):
            if not value >= least:
                raise OptionError(f"{name}: expected at least {least}, got {value}")
        if not 0.0 <= self.no_speech_threshold <= 1.0:
            raise OptionError(f"no_speech_threshold: expected 0 to 1, got {self.no_speech_threshold}")
        if math.isnan(self.logprob_threshold):
            raise OptionError("logprob_threshold: expected a number, got nan")
