"""What Deepgram's `/v2/listen` tells of turns: one begins, may be over, goes on, is over.

A turn is one or more utterances: speech that goes on after a pause too short to end it belongs to it. Knows
no web framework.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sottovoce.formats.document import Json, score, seconds
from sottovoce.serving.apis.flux_params import FluxParams, confidence_of
from sottovoce.types import Event, Final, LanguageChanged, Partial, SpeechEnded, SpeechStarted, Unstable, Word

UPDATE_S = 0.25
"""Of audio between two updates, where nothing else is told."""
MOST_WORDS = 1_000
"""Of a turn: every message has all of them."""


@dataclass(slots=True)
class FluxTurn:
    """One turn. words: of utterances before the last one; newest: of that. unstable: text that may change.

    quiet_since_s: since when nobody speaks; None: somebody does, or nobody has yet.
    """

    start_s: float = 0.0
    words: list[Word] = field(default_factory=list)
    newest: list[Word] = field(default_factory=list)
    unstable: str = ""
    quiet_since_s: float | None = None
    has_begun: bool = False
    is_eager: bool = False

    @property
    def all_words(self) -> list[Word]:
        """Words that stay."""
        return [*self.words, *self.newest]

    @property
    def text(self) -> str:
        """What was said in it, as far as that is known."""
        return ("".join(word.word for word in self.all_words) + self.unstable).strip()


class FluxTurns:
    """The turns of one stream; times are seconds of its audio."""

    def __init__(self, params: FluxParams, request_id: str, is_multi: bool) -> None:
        self.params = params
        self._request_id = request_id
        self._is_multi = is_multi
        self._n_sent = 0
        self._index = 0
        self._turn = FluxTurn()
        self._updated_s = 0.0
        self._hangover_s = params.thresholds.hangover_s

    def message(self, kind: str, **more: Json) -> dict[str, Json]:
        """Render a message of any kind, with its number."""
        self._n_sent += 1
        return {"type": kind, "request_id": self._request_id, "sequence_id": self._n_sent - 1, **more}

    def render(self, events: Iterable[Event], received_s: float) -> Iterator[dict[str, Json]]:
        """Yield what follows from the session's events, and from the time that has passed."""
        n_before = self._n_sent
        for event in events:
            yield from self._take(event)
        yield from self._end_if_over(received_s)
        if self._n_sent == n_before and received_s - self._updated_s >= UPDATE_S:
            yield self._info("Update", received_s)

    def force(self, events: Iterable[Event], received_s: float) -> Iterator[dict[str, Json]]:
        """Yield what follows where the client ends a turn; nothing where there is none."""
        yield from self.render(events, received_s)
        if self._turn.has_begun:
            yield from self._end(received_s, "manual")

    def configure(self, params: FluxParams, received_s: float) -> None:
        """Go on with other parameters, in a session that was begun anew and knows of no speech."""
        self.params, self._hangover_s = params, params.thresholds.hangover_s
        if self._turn.quiet_since_s is None:
            self._turn.quiet_since_s = received_s

    def _take(self, event: Event) -> Iterator[dict[str, Json]]:
        if isinstance(event, LanguageChanged):  # words have their own
            return
        turn, now_s = self._turn, event.emission_time
        if isinstance(event, SpeechStarted):
            yield from self._end_if_over(now_s)
            yield from self._go_on(now_s)
        elif isinstance(event, SpeechEnded):
            turn.quiet_since_s, turn.unstable = now_s - self._hangover_s, ""
            yield from self._maybe_over(now_s)
        elif isinstance(event, Partial):
            yield from self._resume_for(event.text, now_s)
            turn.newest += event.words
            turn.unstable = ""
            yield from self._begin(now_s)
        elif isinstance(event, Unstable):
            yield from self._resume_for(event.text, now_s)
            turn.unstable = event.text
            yield from self._begin(now_s)
        elif isinstance(event, Final):
            turn.words, turn.newest, turn.unstable = [*turn.words, *event.words], [], ""
            yield from self._begin(now_s)

    def _begin(self, now_s: float) -> Iterator[dict[str, Json]]:
        """A turn begins with its first word."""
        if not self._turn.has_begun and self._turn.text:
            self._turn.has_begun = True
            yield self._info("StartOfTurn", now_s)

    def _go_on(self, now_s: float) -> Iterator[dict[str, Json]]:
        """Somebody speaks again, or for the first time."""
        self._turn.quiet_since_s = None
        if self._turn.is_eager:
            self._turn.is_eager = False
            yield self._info("TurnResumed", now_s)

    def _resume_for(self, text: str, now_s: float) -> Iterator[dict[str, Json]]:
        """What was said changes after it seemed to be over: that is told first."""
        if text and self._turn.is_eager:
            quiet_since_s = self._turn.quiet_since_s
            yield from self._go_on(now_s)
            self._turn.quiet_since_s = quiet_since_s

    def _maybe_over(self, now_s: float) -> Iterator[dict[str, Json]]:
        """Speech has ended: the turn may be over, where the client wants to know that early."""
        turn = self._turn
        is_wanted = self.params.thresholds.eager is not None
        if is_wanted and turn.has_begun and turn.text and not turn.is_eager:
            turn.is_eager = True
            yield self._info("EagerEndOfTurn", now_s)

    def _end_if_over(self, now_s: float) -> Iterator[dict[str, Json]]:
        """End the turn where nobody has spoken for as long as that takes, or it is too long."""
        quiet_since_s, thresholds = self._turn.quiet_since_s, self.params.thresholds
        if len(self._turn.words) >= MOST_WORDS and not self._turn.newest:
            yield from self._end(now_s, "length")
            return
        if quiet_since_s is None or now_s - quiet_since_s < thresholds.end_s - 1e-6:
            return
        if self._turn.has_begun:
            yield from self._end(now_s, "timeout" if thresholds.is_by_timeout else "model")

    def _end(self, now_s: float, trigger: str) -> Iterator[dict[str, Json]]:
        self._turn.unstable = ""
        yield {**self._info("EndOfTurn", now_s), "trigger": trigger}
        self._index += 1
        self._turn = FluxTurn(start_s=self._updated_s)

    def _info(self, event: str, now_s: float) -> dict[str, Json]:
        turn = self._turn
        self._updated_s = max(self._updated_s, now_s)
        pause_s = 0.0 if turn.quiet_since_s is None or not turn.has_begun else now_s - turn.quiet_since_s
        words = [word_item(word) for word in turn.all_words]
        words += [{"word": word, "confidence": 0.0} for word in turn.unstable.split()]
        more: dict[str, Json] = {}
        if self._is_multi:
            counts = Counter(word.language for word in turn.all_words if word.language)
            more["languages"] = [code for code, _ in counts.most_common()]
        if self.params.has_hints:
            more["languages_hinted"] = list(self.params.languages)
        return self.message(
            "TurnInfo",
            event=event,
            turn_index=self._index,
            audio_window_start=seconds(turn.start_s),
            audio_window_end=seconds(self._updated_s),
            transcript=turn.text,
            words=list(words),
            end_of_turn_confidence=score(confidence_of(pause_s)),
            **more,
        )


def word_item(word: Word) -> dict[str, Json]:
    """Render one of `words`."""
    return {
        "word": word.word.strip(),
        "confidence": score(word.probability),
        "start": seconds(word.start),
        "end": seconds(word.end),
    }
