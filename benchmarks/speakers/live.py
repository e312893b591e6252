"""Speakers of the words of a live session: right in the partial, in the final, and how long after the word.

    python -m benchmarks speakers live ../shared --model base
    python -m benchmarks speakers live ../shared --model base --part dev      # voices that choose settings

Conversations of whole clips, as of `speakers turns --words`, pushed half a second at a time. Of the words
that were recognised: the share whose speaker is right in the first `partial`, the share without one there,
and the share that is right in the `final`; and the same words with the speakers of the whole recording's
diarization. Delays are seconds of audio from the end of a word to the event that first gives its speaker.
Prints a table and one JSON line.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
import torch

from benchmarks.harness.report import benchmark_parser, show_json
from benchmarks.speakers.conversations import Conversation, made
from benchmarks.speakers.errors import n_right_speakers
from benchmarks.speakers.turns import add_conversations, bare, matched, said_in, table
from sottovoce.api import Model, load_model
from sottovoce.audio.recording import Recording
from sottovoce.options.transcribe import SpeakerOptions
from sottovoce.speakers.diarize import load_voice_encoder, make_diarizer
from sottovoce.speakers.labels import SpeakerLabels
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.speakers.networks import load_segmentation
from sottovoce.types import SAMPLE_RATE, Final, Partial, Samples, Word

STEP = SAMPLE_RATE // 2


class Timed(LiveSpeakers):
    """Live speakers, with the processor seconds of `push`."""

    took_s = 0.0

    def push(self, pcm: Samples, *, is_speech: bool) -> None:
        began = time.process_time()
        super().push(pcm, is_speech=is_speech)
        self.took_s += time.process_time() - began


@dataclass
class Heard:
    """A conversation through a session: its words as first told, in finals, and when they had speakers."""

    first: list[Word] = field(default_factory=list)
    final: list[Word] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)

    def take(self, event: Partial | Final) -> None:
        if isinstance(event, Partial):
            self.first += event.words
            late = event.words
        else:
            before = self.first[len(self.final) :]
            self.final += event.words
            late = tuple(w for w, was in zip(event.words, before, strict=False) if was.speaker is None)
        self.delays_s += [event.emission_time - word.end for word in late if word.speaker is not None]


def heard(model: Model, talk: Conversation, speakers: LiveSpeakers) -> Heard:
    found = Heard()
    session = model.session("en", speakers=speakers)
    events = []
    for start in range(0, len(talk.samples), STEP):
        events += session.push(np.ascontiguousarray(talk.samples[start : start + STEP], np.float32))
    for event in events + session.close():
        if isinstance(event, Partial | Final):
            found.take(event)
    return found


def line(model: Model, talks: Sequence[Conversation], options: SpeakerOptions) -> dict[str, object]:
    sums = np.zeros(5)
    delays: list[float] = []
    took_s = 0.0
    for talk in talks:
        own = Timed(load_segmentation(), load_voice_encoder(options), options)
        found = heard(model, talk, own)
        took_s += own.took_s
        turns = make_diarizer(options).turns(Recording(talk.samples))
        names = SpeakerLabels(turns).of_words(found.final)
        whole = [replace(word, speaker=name) for word, name in zip(found.final, names, strict=True)]
        said = said_in(talk)
        first, last, offline = (matched(said, bare(words)) for words in (found.first, found.final, whole))
        none = sum(not name for _, name in first)
        sums += (len(first), n_right_speakers(first), none, n_right_speakers(last), n_right_speakers(offline))
        delays += found.delays_s
    n_words, *shares = sums
    names_of = ("right_at_first", "told_without", "right_in_final", "right_offline")
    return {
        "words": int(n_words),
        **dict(zip(names_of, (float(share / n_words) for share in shares), strict=True)),
        "delay_median": f"{median(delays):.1f} s",
        "delay_95": f"{np.percentile(delays, 95):.1f} s",
        "processor_s_per_s": took_s / (sum(len(talk.samples) for talk in talks) / SAMPLE_RATE),
    }


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_conversations(parser, speakers="2,3,4", n_conversations=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(given.model, device="cpu")
    lines: list[dict[str, object]] = []
    for n_speakers in map(int, given.speakers.split(",")):
        talks = made(given.shared / "data", given.part, n_speakers, given.conversations, whole=True)
        found = line(model, talks, SpeakerOptions(voices=given.voices))
        lines.append({"speakers": n_speakers, **found})
        print(lines[-1], flush=True)
    print(table(lines))
    show_json("speakers live", {"part": given.part, "lines": lines})
