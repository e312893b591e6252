"""Follow the language of live speech by probing its newest audio."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sottovoce.errors import OptionError
from sottovoce.language.chain import Emission, LanguageChange, LanguageTimeline, base_prior
from sottovoce.language.probe import LanguageProbe, ProbedLanguage, ProbeOptions, change_boundary, sides_of
from sottovoce.models.backend import Backend
from sottovoce.options.transcribe import LANGUAGE_PRIOR
from sottovoce.runtime.calls import LanguageProbeCall, SpanProbeCall, Steps
from sottovoce.streaming.audio_window import SNAP_S
from sottovoce.streaming.options import LiveOptions
from sottovoce.streaming.utterance import LiveUtterance
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import HOP_SAMPLES, SAMPLE_RATE

LEAST_FINAL_S = 0.1
"""Shortest stretch probed at the end of speech."""
SHORTEST_S = 1.0
"""Shortest stretch that begins at its quietest moment, where changes mostly are."""
N_MOMENTS = 4
AROUND, SIDE, LEAST = (round(seconds * SAMPLE_RATE) for seconds in (1.5, 2.0, 0.5))
"""Samples: of the quiet moments within AROUND of a change, the best becomes the change; at most SIDE and at
least LEAST on both sides of each is probed.
"""


class LiveLanguageTracker:
    """Follows the language of a session by probing stretches of its newest speech, encoded separately.

    Raises:
        OptionError: languages that the model does not have.
    """

    def __init__(self, backend: Backend, tokenizer: Tokenizer, options: LiveOptions) -> None:
        self.languages = checked_languages(options.languages, tokenizer)
        several = len(self.languages) > 1
        self._options = options
        self._stretches = options.probe or ProbeOptions()
        codes = tokenizer.language_codes if several else self.languages
        self.timeline = LanguageTimeline(
            self.languages,
            Emission.shared(codes, self.languages),
            base_prior(codes, self.languages, LANGUAGE_PRIOR),
            certainty=options.switch_certainty,
            first_wait_s=options.first_language_s,
            initial=None if several else self.languages[0],
        )
        self._probe = LanguageProbe(backend, tokenizer, codes) if several else None
        self._hop = round(self._stretches.hop_s * SAMPLE_RATE)
        self._probed_until = 0
        self._unplaced: LanguageChange | None = None
        """A change whose sides could not be probed."""

    @property
    def is_following(self) -> bool:
        if self._probe is None:
            return False
        return self._options.switching != "off" or self.timeline.current is None

    @property
    def certain_until_s(self) -> float:
        """Time (s) up to which the language is certain: inf without doubt, -inf before any is known."""
        if not self.is_following:
            return math.inf
        return self.timeline.certain_until_s

    @property
    def language(self) -> str:
        """The current language, or the first allowed one."""
        return self.timeline.current or self.languages[0]

    def begin(self, sample: int) -> None:
        self.timeline.begin(sample / SAMPLE_RATE)
        self._probed_until = sample

    def update(
        self, utterance: LiveUtterance, until: int, *, final: bool = False
    ) -> Steps[LanguageChange | None]:
        """Probe new audio up to a sample; return the change that is due, or None.

        final: the utterance ends there.
        """
        if not self.is_following:
            return None
        since_s = self.timeline.since_s
        yield from self._probe_new(utterance, min(until, utterance.end_sample), final=final)
        change, self._unplaced = self._unplaced, None
        change = change or self.timeline.decide(at_end=final)
        return (yield from self._placed(change, utterance, since_s))

    def _placed(
        self, change: LanguageChange | None, utterance: LiveUtterance, since_s: float
    ) -> Steps[LanguageChange | None]:
        if change is None or change.source is None or change.at_s <= since_s:
            return change
        assert self._probe is not None, "a language changes only where several are allowed"
        first, end = round(since_s * SAMPLE_RATE), self._log_mel_end(utterance)
        first = max(first, utterance.start_sample)
        near = round(change.at_s * SAMPLE_RATE)
        reach = range(max(first + LEAST, near - AROUND), min(end - LEAST, near + AROUND))
        moments = utterance.quiet_samples(near, reach, N_MOMENTS) if reach else []
        if not moments:  # too close to the beginning or the end for sides
            return self.timeline.place(change, utterance.boundary_s(change.at_s, SNAP_S))
        self._unplaced = change
        places = [self._probe.languages.index(code) for code in (change.source, change.target)]
        sides = [utterance.log_mel_between(*side) for side in sides_of(moments, first, end, SIDE)]
        border = change_boundary(moments, (yield from LanguageProbeCall(self._probe, sides)), places)
        self._unplaced = None
        return self.timeline.place(change, border / SAMPLE_RATE)

    def _log_mel_end(self, utterance: LiveUtterance) -> int:
        return utterance.start_sample + utterance.log_mel().shape[1] * HOP_SAMPLES

    def _probe_new(self, utterance: LiveUtterance, until: int, *, final: bool = False) -> Steps[None]:
        """Add the stretches of new audio, which end at fixed samples, except a last one, to the timeline."""
        first = self._probed_until - self._probed_until % self._hop + self._hop
        ends = [*range(first, until + 1, self._hop)]
        if final and (not ends or ends[-1] < until) and until > self._probed_until:
            ends.append(until)
        self._probed_until = max([self._probed_until, *ends])
        stretches = self._spans(utterance, ends, final=final)
        if not stretches or self._probe is None:
            return
        parts = [utterance.log_mel_between(*stretch) for stretch in stretches]
        is_whole = parts[-1].shape[1] == utterance.log_mel().shape[1]
        mode = self._probe.window_mode if is_whole else None
        alone = parts if mode is None else parts[:-1]
        probes: list[ProbedLanguage] = []
        if alone:
            probes = yield from LanguageProbeCall(self._probe, alone)
        if mode is not None:
            encoded = yield from utterance.encoder.encode_for_probe(mode)
            probes += yield from SpanProbeCall(self._probe, encoded, [(0, encoded.n_frames)])
        for (start, end), probed in zip(stretches, probes, strict=True):
            self.timeline.add(start / SAMPLE_RATE, end / SAMPLE_RATE, probed)

    def _spans(self, utterance: LiveUtterance, ends: list[int], *, final: bool) -> list[tuple[int, int]]:
        least_s = self._stretches.min_width_s
        least = round((min(least_s, LEAST_FINAL_S) if final else least_s) * SAMPLE_RATE)
        earliest = max(utterance.start_sample, round(self.timeline.since_s * SAMPLE_RATE))
        last = self._log_mel_end(utterance)
        shortest = round(min(SHORTEST_S, self._stretches.width_s) * SAMPLE_RATE)
        stretches = []
        for end in ends:
            end = min(end, last)
            start = self._stretches.start(earliest, end, opening=self.timeline.is_opening)
            if start > earliest:
                start = utterance.quietest_sample(start, end - shortest)
            if end - start >= least:
                stretches.append((start, end))
        return stretches


def checked_languages(languages: Sequence[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the codes of allowed languages; empty: all of the model.

    Raises:
        OptionError: an unknown or repeated language.
    """
    if not tokenizer.is_multilingual:
        if tuple(languages) not in ((), ("en",)):
            raise OptionError(f"languages: an English-only model knows 'en', got {', '.join(languages)}")
        return ("en",)
    codes = tuple(tokenizer.with_language(language).language or "" for language in languages)
    if len(set(codes)) != len(codes):
        raise OptionError(f"languages: expected each once, got {', '.join(languages)}")
    return codes or tokenizer.language_codes
