"""Who hears what of an utterance: one language the whole of it, or several by the timeline (`by_timeline`).

Not known here: when updates are due, voice activity, and which language it is.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

from sottovoce.streaming.agreed import Agreed
from sottovoce.streaming.agreement import Agreement
from sottovoce.streaming.alignatt import Reader, ReadRequest
from sottovoce.streaming.known import KnownPrefix
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.reading import MAX_TOKENS, Ending, Reading, ReadingRules, most_tokens
from sottovoce.streaming.utterance import Utterance
from sottovoce.streaming.window import Window
from sottovoce.streaming.words import ReadWord, WordMaker
from sottovoce.streaming.work import Read, Steps
from sottovoce.types import Word


class Plan(Protocol):
    """A way to read an utterance on."""

    @property
    def language(self) -> str:
        """The language that is spoken now; words carry their own."""
        ...

    @property
    def waiting(self) -> tuple[Word, ...]:
        """Words that the last update read but that are not safe yet."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether the last update found no way on: it fell into a loop, or jumped back."""
        ...

    def read(
        self, utterance: Utterance, window: Window, *, settled_until_s: float = math.inf, final: bool = False
    ) -> Steps[list[ReadWord]]:
        """The words after the committed ones that are safe and end before `settled_until_s`.

        window: encoded last of the utterance. final: no more audio comes; all words are safe.
        """
        ...

    def give_up(self, after_s: float, until_s: float) -> list[ReadWord]:
        """What two readings agreed on and those after them, which lost the thread, did not say.

        For audio that is not read again. after_s: where the committed words end. until_s: where it does.
        """
        ...


class OneLanguage:
    """All of the audio is one language's.

    maker: of the language's words.
    """

    def __init__(self, reader: Reader, maker: WordMaker, options: StreamOptions) -> None:
        self._reader = reader
        self._maker = maker
        self._options = options
        self._agreement = Agreement(options.agreement, options.frame_threshold, options.sure_frames)
        self._agreed = Agreed()
        self._guess: tuple[int, ...] = ()
        self._known: tuple[int, KnownPrefix | None] = (0, None)  # first sample of the window it belongs to
        self._waiting: tuple[Word, ...] = ()
        self._is_stuck = False

    @property
    def language(self) -> str:
        return self._maker.language

    @property
    def waiting(self) -> tuple[Word, ...]:
        return self._waiting

    @property
    def is_stuck(self) -> bool:
        return self._is_stuck

    def read(
        self, utterance: Utterance, window: Window, *, settled_until_s: float = math.inf, final: bool = False
    ) -> Steps[list[ReadWord]]:
        rules = rules_for(self._options, window.end_s - utterance.committed.until_s, final=final)
        if rules.frame_threshold >= window.n_frames:
            return []
        if len(utterance.committed):
            rules = replace(rules, said_until=window.frame(utterance.committed.until_s))
        start_sample, known = self._known
        if final or start_sample != window.start_sample:
            known = None
        request = ReadRequest(
            utterance.prefix(self.language),
            rules,
            None,
            self._guess,
            known,
            None if final else self._options.reread_tokens,
        )
        work = Read(self._reader, [window.encoded], [request])
        yield work
        self._known = window.start_sample, work.readings[0].known
        return self._taken(work.readings[0], utterance, window, settled_until_s, final=final)

    def _taken(
        self,
        reading: Reading,
        utterance: Utterance,
        window: Window,
        settled_until_s: float,
        *,
        final: bool,
    ) -> list[ReadWord]:
        silent = is_no_speech(reading, self._options)
        self._is_stuck = not silent and is_stuck(reading)
        if silent or reading.ending is Ending.REWOUND:
            self._guess, self._waiting = (), ()
            self._agreement.forget()
            self._agreed.follow((), (), 0, is_lost=self._is_stuck)
            return []
        after_s = utterance.committed.until_s
        words = self._maker.words(reading, window, after_s=after_s, final=final)
        n_safe = len(words) if final else self._agreement.n_safe(words, window)
        n_settled = next((i for i, read in enumerate(words) if read.word.end > settled_until_s), len(words))
        taken = words[: min(n_safe, n_settled)]
        self._agreement.committed(len(taken))
        self._agreed.follow(taken, words[len(taken) :], self._agreement.n_agreed, is_lost=self._is_stuck)
        self._waiting = tuple(read.word for read in words[len(taken) :])
        tokens = reading.tokens if reading.refused is None else (*reading.tokens, reading.refused)
        self._guess = tokens[sum(len(read.tokens) for read in taken) :]
        return taken

    def give_up(self, after_s: float, until_s: float) -> list[ReadWord]:
        return self._agreed.take(after_s, until_s)


def is_stuck(reading: Reading) -> bool:
    """Whether a reading found no way on."""
    return reading.ending in (Ending.REWOUND, Ending.REPEATED)


AHEAD = 0.6
"""A reading goes on beyond what is safe, to this part of the distance: what is said there twice is surer."""


def is_no_speech(reading: Reading, options: StreamOptions) -> bool:
    silent = reading.no_speech_prob > options.no_speech_threshold
    return silent and reading.avg_logprob < options.logprob_threshold


def rules_for(options: StreamOptions, unread_s: float, *, final: bool) -> ReadingRules:
    """When a reading of so much unread audio stops."""
    return ReadingRules(
        options.final_frame_threshold if final else AHEAD * options.sure_frames,
        options.rewind_threshold,
        options.max_repeats,
        MAX_TOKENS if final else most_tokens(unread_s),
    )
