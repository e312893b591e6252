"""Options of forced alignment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from sottovoce.options.schema import Option, check_options

AlignMethod: TypeAlias = Literal["attention", "ctc"]


@dataclass(frozen=True, slots=True)
class AlignOptions:
    """Options of forced alignment.

    Raises: OptionError for values out of range.
    """

    method: AlignMethod = Option(
        "attention: of the decoder; ctc: the model's CTC head, where it has one.",
        group="Alignment",
        choices=("attention", "ctc"),
    ).as_field("attention")
    keep_to_speech: bool = Option(
        "Bring bounds of words that lie in silence to the speech beside it.", group="Alignment", switch=True
    ).as_field(True)
    least_found: float = Option(
        "Share of the words of a long text that must be heard, else it is another recording's.",
        flag=None,
        least=0.0,
        most=1.0,
        expected="a share from 0 to 1",
    ).as_field(0.1)

    def __post_init__(self) -> None:
        check_options(self)
