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
        "attention of the decoder, or the model's CTC head.",
        group="Alignment",
        choices=("attention", "ctc"),
    ).as_field("attention")
    keep_to_speech: bool = Option(
        "Move word bounds out of silence to the nearest speech.", group="Alignment", switch=True
    ).as_field(True)
    least_found: float = Option(
        "Share of the words of a long text that must be recognised, else the text is of another recording.",
        flag=None,
        least=0.0,
        most=1.0,
        expected="a share from 0 to 1",
    ).as_field(0.1)

    def __post_init__(self) -> None:
        check_options(self)
