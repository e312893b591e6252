"""How a given text is brought together with its recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sottovoce.errors import OptionError

AlignMethod: TypeAlias = Literal["attention", "ctc"]


@dataclass(frozen=True, slots=True)
class AlignOptions:
    """How words are timed.

    method: "attention" of the decoder, which every Whisper model has, or "ctc", the path of a CTC head where
        the model has one. keep_to_speech: bounds of words that lie in silence go to the speech beside it.
    least_found: share of the words of a long text that must be heard, else it is another recording's.

    Raises: OptionError for values out of range.
    """

    method: AlignMethod = "attention"
    keep_to_speech: bool = True
    least_found: float = 0.1

    def __post_init__(self) -> None:
        if self.method not in get_args(AlignMethod):
            raise OptionError(f"method: expected one of {get_args(AlignMethod)}, got '{self.method}'")
        if not 0.0 <= self.least_found <= 1.0:
            raise OptionError(f"least_found: expected a share from 0 to 1, got {self.least_found}")
