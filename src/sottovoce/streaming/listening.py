"""Stretches of a window to the language timeline: which are probed, and when.

Not known here: what follows from the language, and how it is smoothed.
"""

from __future__ import annotations

from sottovoce.language.probe import LanguageProbe, ProbeOptions
from sottovoce.language.timeline import LanguageTimeline
from sottovoce.streaming.window import Window
from sottovoce.types import SAMPLE_RATE


class Listener:
    """Probes each stretch once, as soon as its audio is encoded; stretches end at fixed samples."""

    def __init__(self, probe: LanguageProbe, timeline: LanguageTimeline, options: ProbeOptions) -> None:
        self._probe = probe
        self._timeline = timeline
        self._options = options
        self._hop = round(options.hop_s * SAMPLE_RATE)
        self._until = 0

    def begin(self, sample: int) -> None:
        """Speech begins; what lies before it is not listened to."""
        self._until = sample

    def listen(self, window: Window, until: int, *, final: bool = False) -> None:
        """Probe the stretches that end in the new audio, up to a sample.

        final: no more audio comes; a last stretch may be short.
        """
        first = self._until - self._until % self._hop + self._hop
        ends = [*range(first, until + 1, self._hop)]
        if final and (not ends or ends[-1] < until) and until > self._until:
            ends.append(until)
        least_s = min(self._options.min_width_s, 0.1) if final else self._options.min_width_s
        stretches = []
        for end in ends:
            end_s = min(end / SAMPLE_RATE, window.end_s)
            start_s = max(window.start_s, end_s - self._options.width_s)
            span = (window.frame(start_s), window.frame(end_s))
            if end_s - start_s >= least_s - 1e-6 and span[0] < span[1]:
                stretches.append((start_s, end_s, span))
        probed = self._probe.probe(window.encoded, [span for _, _, span in stretches])
        for (start_s, end_s, _), heard in zip(stretches, probed, strict=True):
            self._timeline.add(start_s, end_s, heard)
        self._until = max([self._until, *ends])
