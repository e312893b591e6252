"""Which language is spoken, as a session follows it: stretches of a window to the timeline, once each.

Not known here: what follows from the language, and how it is smoothed.
"""

from __future__ import annotations

from sottovoce.language.probe import LanguageProbe, ProbeOptions
from sottovoce.language.timeline import LanguageTimeline
from sottovoce.streaming.window import Window
from sottovoce.streaming.work import Probe, Steps
from sottovoce.types import SAMPLE_RATE


class LanguageWatch:
    """Probes each stretch as soon as its audio is encoded; stretches end at fixed samples."""

    def __init__(self, probe: LanguageProbe, timeline: LanguageTimeline, options: ProbeOptions) -> None:
        self._probe = probe
        self._timeline = timeline
        self._options = options
        self._hop = round(options.hop_s * SAMPLE_RATE)
        self._from = 0
        self._until = 0

    def begin(self, sample: int) -> None:
        """Speech begins; what lies before it is not listened to."""
        self._from = self._until = sample

    def listen(self, window: Window, until: int, *, final: bool = False) -> Steps[None]:
        """Probe the stretches that end in the new audio, up to a sample.

        final: no more audio comes; a last stretch may be short.
        """
        first = self._until - self._until % self._hop + self._hop
        ends = [*range(first, until + 1, self._hop)]
        if final and (not ends or ends[-1] < until) and until > self._until:
            ends.append(until)
        stretches = self._stretches(window, ends, final=final)
        self._until = max([self._until, *ends])
        if not stretches:
            return
        work = Probe(self._probe, window.encoded, [(window.frame(a), window.frame(b)) for a, b in stretches])
        yield work
        for (start_s, end_s), heard in zip(stretches, work.probed, strict=True):
            self._timeline.add(start_s, end_s, heard)

    def _stretches(self, window: Window, ends: list[int], *, final: bool) -> list[tuple[float, float]]:
        """Seconds of those that are long enough, and lie in the window and in the speech."""
        least_s = min(self._options.min_width_s, 0.1) if final else self._options.min_width_s
        earliest_s = max(window.start_s, self._from / SAMPLE_RATE)
        found = []
        for end in ends:
            end_s = min(end / SAMPLE_RATE, window.end_s)
            start_s = max(earliest_s, end_s - self._options.width_s)
            if end_s - start_s >= least_s - 1e-6 and window.frame(start_s) < window.frame(end_s):
                found.append((start_s, end_s))
        return found
