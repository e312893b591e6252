"""Which language is spoken, as a session follows it: stretches of the audio to the timeline, once each.

Not known here: what follows from the language, and how it is smoothed.
"""

from __future__ import annotations

from sottovoce.language.probe import LanguageProbe, ProbeOptions
from sottovoce.language.timeline import LanguageTimeline
from sottovoce.streaming.utterance import Utterance
from sottovoce.streaming.work import Probe, Steps
from sottovoce.types import HOP_SAMPLES, SAMPLE_RATE


class LanguageWatch:
    """Lets each stretch be heard as soon as its audio is in; stretches end at fixed samples.

    A stretch is the newest part of the speech, and no longer than what was said in the language in use. It
    is encoded by itself: within a window that goes on through a change, the encoder lets the language before
    into the states of the speech after it (docs/streaming.md).
    """

    def __init__(self, probe: LanguageProbe, timeline: LanguageTimeline, options: ProbeOptions) -> None:
        self._probe = probe
        self._timeline = timeline
        self._options = options
        self._hop = round(options.hop_s * SAMPLE_RATE)
        self._until = 0

    def begin(self, sample: int) -> None:
        """Speech begins; what lies before it is not listened to."""
        self._until = sample

    def listen(self, utterance: Utterance, until: int, *, final: bool = False) -> Steps[None]:
        """Let the stretches be heard that end in the new audio, up to a sample.

        final: no more audio comes; a last stretch may be short.
        """
        first = self._until - self._until % self._hop + self._hop
        ends = [*range(first, until + 1, self._hop)]
        if final and (not ends or ends[-1] < until) and until > self._until:
            ends.append(until)
        self._until = max([self._until, *ends])
        stretches = self._stretches(utterance, ends, final=final)
        if not stretches:
            return
        log_mel = utterance.log_mel()
        parts = [log_mel[:, _place(utterance, a) : _place(utterance, b)] for a, b in stretches]
        work = Probe(self._probe, parts)
        yield work
        for (start, end), heard in zip(stretches, work.probed, strict=True):
            self._timeline.add(start / SAMPLE_RATE, end / SAMPLE_RATE, heard)

    def _stretches(self, utterance: Utterance, ends: list[int], *, final: bool) -> list[tuple[int, int]]:
        """Samples [start, end) of those that are long enough and whose log-mel is in."""
        least_s = min(self._options.min_width_s, 0.1) if final else self._options.min_width_s
        earliest = max(utterance.start_sample, round(self._timeline.since_s * SAMPLE_RATE))
        last = utterance.start_sample + utterance.log_mel().shape[1] * HOP_SAMPLES
        found = []
        for end in ends:
            end = min(end, last)
            start = self._options.start(earliest, end, opening=self._timeline.is_opening)
            if end - start >= round(least_s * SAMPLE_RATE):
                found.append((start, end))
        return found


def _place(utterance: Utterance, sample: int) -> int:
    """The log-mel frame that begins at a sample, rounded down."""
    return (sample - utterance.start_sample) // HOP_SAMPLES
