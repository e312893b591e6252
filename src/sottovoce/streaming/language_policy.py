"""Which language a session is in: where it is listened for, up to when it is sure, and when it changes.

Not known here: what becomes of words when it changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sottovoce.backends.base import Backend
from sottovoce.errors import OptionError
from sottovoce.language.probe import LanguageProbe
from sottovoce.language.timeline import LanguageChange, LanguageTimeline
from sottovoce.streaming.language_watch import LanguageWatch
from sottovoce.streaming.session_options import SessionOptions
from sottovoce.streaming.utterance import Utterance
from sottovoce.streaming.work import Steps
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE


class LanguagePolicy:
    """The languages of a session, as its options want them followed.

    options: suited to the checkpoint. Raises: OptionError for languages that the model does not have.
    """

    def __init__(self, backend: Backend, tokenizer: Tokenizer, options: SessionOptions) -> None:
        self.languages = checked_languages(options.languages, tokenizer)
        several = len(self.languages) > 1
        self.timeline = LanguageTimeline(
            self.languages,
            options.smoothing,
            options.switch,
            full_width_s=options.stretches.width_s,
            current=None if several else self.languages[0],
        )
        self._options = options
        self._watch: LanguageWatch | None = None
        if several:
            probe = LanguageProbe(backend, tokenizer, self.languages)
            self._watch = LanguageWatch(probe, self.timeline, options.stretches)

    @property
    def is_parallel(self) -> bool:
        """Whether several languages are read side by side."""
        return self._watch is not None and self._options.switching == "parallel"

    @property
    def follows(self) -> bool:
        """Whether the language still has to be watched."""
        if self._watch is None:
            return False
        return self._options.switching != "off" or self.timeline.current is None

    @property
    def settled_until_s(self) -> float:
        """Where the language is sure until."""
        if not self.follows:
            return math.inf
        parallel = self._options.parallel
        waits = not self.is_parallel or (parallel is not None and parallel.confirmed)
        if self.timeline.current is not None and not waits:
            return math.inf
        return self.timeline.settled_until_s

    @property
    def language(self) -> str:
        """The one that is spoken; the first allowed one while none is known."""
        return self.timeline.current or self.languages[0]

    def begin(self, sample: int) -> None:
        """Speech begins."""
        self.timeline.begin(sample / SAMPLE_RATE)
        if self._watch is not None:
            self._watch.begin(sample)

    def listen(self, utterance: Utterance, until: int) -> Steps[LanguageChange | None]:
        """Listen to what is new up to a sample, which is now; a change of language that is due then."""
        if not self.follows or self._watch is None:
            return None
        yield from self._watch.listen(utterance, until)
        return self.timeline.due(until / SAMPLE_RATE)

    def decide(self, utterance: Utterance, until: int, now_s: float) -> Steps[LanguageChange | None]:
        """The same at the end of speech: what is in doubt is decided."""
        if not self.follows or self._watch is None:
            return None
        yield from self._watch.listen(utterance, min(until, utterance.end_sample), final=True)
        return self.timeline.resolve(now_s)


def checked_languages(languages: Sequence[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The allow-list as codes; of an English-only model, English."""
    if not tokenizer.is_multilingual:
        if tuple(languages) not in ((), ("en",)):
            raise OptionError(f"languages: an English-only model knows 'en', got {', '.join(languages)}")
        return ("en",)
    codes = tuple(tokenizer.with_language(language).language or "" for language in languages)
    if len(set(codes)) != len(codes):
        raise OptionError(f"languages: expected each once, got {', '.join(languages)}")
    return codes or tokenizer.language_codes
