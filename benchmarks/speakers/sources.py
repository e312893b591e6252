"""Words wrong by source, of several live sources in one session and of recordings of one meeting.

    python -m benchmarks speakers sources ../shared --model base

Conversations of held-out clips (`speakers.conversations`), a microphone for each speaker. "Merged": the
transcript by time against all words in the order in which they were said; what it adds to the words wrong by
source is their order. --leak: each microphone hears the others 20 dB quieter, which nothing removes here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks.harness.report import add_part, add_shared, benchmark_parser, percent, show_json, show_table
from benchmarks.speakers.conversations import LEAK_DB, Conversation, made
from sottovoce import load_model
from sottovoce.evaluation.scores import ErrorCounts, count_edits
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.recogniser import Recogniser
from sottovoce.text.normalize import normalizer_for
from sottovoce.types import SAMPLE_RATE, Final, Samples, Word

CHUNK = SAMPLE_RATE // 4
Reading = Sequence[tuple[float, Sequence[Word]]]
"""Starts of segments or finals as they leave, and their words with speakers."""
Read = Callable[[Samples, Sequence[str]], Reading]


def read_live(model: Recogniser, channels: Samples, names: Sequence[str]) -> Reading:
    session = model.sources_session(names, languages="en")
    pushed = [session.push(channels[:, at : at + CHUNK]) for at in range(0, channels.shape[1], CHUNK)]
    events = [event for events in [*pushed, session.close()] for event in events]
    return [(event.start, event.words) for event in events if isinstance(event, Final)]


def read_files(model: Recogniser, channels: Samples, names: Sequence[str]) -> Reading:
    recordings = dict(zip(names, channels, strict=True))
    result = model.transcribe_together(
        recordings, language="en", options=TranscribeOptions(word_timestamps=True)
    )
    return [(segment.start, segment.words or ()) for segment in result]


def unmixed(channels: Samples) -> Samples:
    """The channels without what the microphones hear of the others."""
    leak, n_others = 10 ** (-LEAK_DB / 20), len(channels) - 1
    whole = channels.sum(axis=0) / (1 + leak * n_others)
    separate: Samples = (channels - leak * whole) / (1 - leak)
    return separate


def spoken(words: Sequence[Word], speaker: str | None = None) -> list[str]:
    text = "".join(word.word for word in words if speaker in (None, word.speaker))
    return normalizer_for("en")(text).split()


def names_of(said: Conversation) -> list[str]:
    """The speaker of each channel: whose turns are loudest there."""
    speakers = sorted({turn.speaker for turn in said.turns})
    energy = np.zeros((len(speakers), len(said.channels)))
    for turn in said.turns:
        part = said.channels[:, round(turn.start * SAMPLE_RATE) : round(turn.end * SAMPLE_RATE)]
        energy[speakers.index(turn.speaker)] += np.square(part, dtype=np.float64).sum(axis=1)
    loudest = energy.argmax(axis=0)
    assert sorted(loudest) == list(range(len(speakers))), "a channel each"
    return [speakers[place] for place in loudest]


def counted(read: Read, said: Conversation, *, leak: bool) -> list[ErrorCounts]:
    """Words wrong by source, merged as segments leave, and merged by their starts."""
    names, normalize = names_of(said), normalizer_for("en")
    result = read(said.channels if leak else unmixed(said.channels), names)
    words = [word for _, of_segment in result for word in of_segment]
    by_time = [word for _, of_segment in sorted(result, key=lambda each: each[0]) for word in of_segment]

    def reference(*speakers: str) -> list[str]:
        return normalize(" ".join(word for word, speaker in said.words if speaker in speakers)).split()

    by_source = ErrorCounts()
    for name in names:
        by_source += count_edits(reference(name), spoken(words, name))
    return [by_source, *(count_edits(reference(*names), spoken(each)) for each in (words, by_time))]


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--leak", action="store_true")
    given = parser.parse_args()
    model = load_model(given.model)
    conversations = made(given.shared / "data", given.part, 2, given.conversations, whole=True)
    reads: dict[str, Read] = {"live": partial(read_live, model), "files together": partial(read_files, model)}
    rows, figures = [], {}
    for name, read in reads.items():
        counts = [counted(read, each, leak=given.leak) for each in conversations]
        totals = [sum(column, ErrorCounts()) for column in zip(*counts, strict=True)]
        figures[name] = [percent(total.rate) for total in totals]
        rows.append([name, str(totals[0].n_reference), *figures[name]])
    show_table(["", "words", "wrong by source", "merged, as they leave", "merged, by their starts"], rows)
    show_json("speakers sources", {"model": given.model, "part": given.part, "leak": given.leak, **figures})


if __name__ == "__main__":
    main()
