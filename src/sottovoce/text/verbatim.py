"""Prompts that make Whisper write hesitations: earlier text that has them, in the language of the speech.

Whisper leaves fillers, repetitions and words that were broken off out of most transcripts, as those it was
trained on did, and goes on in the style of its prompt. The prompts are our own; how they were chosen, and
what they cost where nobody hesitates: docs/verbatim.md. No token has to be allowed for it: the hyphen that a
broken-off word ends with is none of those that are suppressed, nor is the ellipsis.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from sottovoce.errors import OptionError
from sottovoce.text.languages import find_language

if TYPE_CHECKING:  # not needed to check options, and `--help` need not wait for it
    from sottovoce.text.tokenizer import Tokenizer

VERBATIM_PROMPTS: Mapping[str, str] = MappingProxyType(
    {
        "en": "So I was, uh, in Berlin with Mr. Smith on, on Monday, and, um, we, we talked about, uh, "
        "the new- the next plan. Hmm, yeah.",
        "de": "Also, äh, ich war am, am Montag mit Herrn Schmidt in Berlin, und, ähm, wir, wir haben über, "
        "äh, den neu- den nächsten Plan gesprochen. Hm, ja.",
        "es": "Bueno, eh, yo estuve el, el lunes con el señor López en Madrid, y, em, hablamos, hablamos "
        "sobre, eh, el nue- el próximo plan. Mmm, sí.",
        "fr": "Alors, euh, j'étais à, à Paris lundi avec monsieur Martin, et, euh, on a, on a parlé du, hum, "
        "du nouv- du prochain projet. Hmm, oui.",
    }
)
"""By Whisper's code of the language. Names and capitals are in them because the style of the prompt is
kept in that too: one of hesitations alone cost capitals."""


def check_verbatim(language: str) -> None:
    """Check that a language has a prompt.

    Raises: OptionError where it has none.
    """
    if find_language(language) not in VERBATIM_PROMPTS:
        measured = ", ".join(VERBATIM_PROMPTS)
        raise OptionError(f"verbatim: expected a language that was measured ({measured}), got '{language}'")


def verbatim_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of the prompt in the tokenizer's language; none where there is no such prompt."""
    prompt = VERBATIM_PROMPTS.get(tokenizer.language or "en")
    return [] if prompt is None else tokenizer.encode(" " + prompt)
