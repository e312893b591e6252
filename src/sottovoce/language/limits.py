"""How much it takes before the language of speech, or of a text, is detected separately, which is an encoder
pass.

Where that found nothing it takes more, so that an hour in one language costs next to nothing; no limit rises
so far that clear evidence is not looked at. Not known here: who detects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

CLEAR, LEAST_CLEAR, CLEAR_STEP = 0.5, 0.2, 0.1
"""Where the masked probe gives a piece's expected language less than CLEAR among all languages of the model,
the piece is encoded by itself: on development recordings so were 98 % of the pieces in another language, and
63 % of those in one language. After each window in which no other language was clear it is a step less, down
to LEAST_CLEAR (92 and 45 %), and CLEAR again after one in which one was."""
LEAST_HINT_NATS, MOST_HINT_NATS = 3.0, 9.0
"""Nats that a hint must have to be heard, at first and at most: among 40 development recordings in several
languages the strongest of a window has 4.7 at least, of 24 in one language most have less than 3."""
REFUTED_NATS, REST_NATS = 1.0, 0.25
"""So much more a hint needs after a window in which they were nothing, and so much less with each window: an
hour in one language is disturbed by one in four windows, and never becomes deaf."""
LEAST_SURPRISAL, MOST_SURPRISAL = 0.45, 1.2
"""Mean surprisal of a text, in nats a token, above which its language is asked, at first and at most; one
step more after each that was in the right one, and half a step less with each window."""
SURPRISAL_STEP = 0.1


@dataclass(frozen=True, slots=True)
class AskingLimits:
    """Limits beyond which languages are detected separately.

    clear: of a piece whose expected language is less probable, where a recording is in several. hint_nats: of
    one with more nats for another language, where it counts as in one. surprisal: of a text of more nats a
    token.
    """

    clear: float = CLEAR
    hint_nats: float = LEAST_HINT_NATS
    surprisal: float = LEAST_SURPRISAL

    def in_next_window(self) -> AskingLimits:
        """Return those of the next window: texts are asked sooner."""
        return replace(self, surprisal=max(LEAST_SURPRISAL, self.surprisal - SURPRISAL_STEP / 2))

    def rested(self) -> AskingLimits:
        """Return those after a window that counts as in one language: hints are heard sooner."""
        return replace(self, hint_nats=max(LEAST_HINT_NATS, self.hint_nats - REST_NATS))

    def after_hints(self) -> AskingLimits:
        """Return those after hints that were nothing."""
        return replace(self, hint_nats=min(MOST_HINT_NATS, self.hint_nats + REFUTED_NATS))

    def after_pieces(self, *, finds_another: bool) -> AskingLimits:
        """Return those after the unclear pieces of a window were encoded by themselves."""
        return replace(self, clear=CLEAR if finds_another else max(LEAST_CLEAR, self.clear - CLEAR_STEP))

    def after_text(self) -> AskingLimits:
        """Return those after an improbable text that was in the right language."""
        return replace(self, surprisal=min(MOST_SURPRISAL, self.surprisal + SURPRISAL_STEP))
