"""Options of the picture of a recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sottovoce.errors import OptionError
from sottovoce.options.schema import Option, check_options

SHORTEST_S, LONGEST_S = 0.1, 30.0
Panel: TypeAlias = Literal["mel", "speech", "language", "attention", "confidence"]
PANELS: tuple[Panel, ...] = get_args(Panel)


def panels_of(names: str) -> tuple[Panel, ...]:
    """Parse a list of panels such as "mel,attention", or "all".

    Raises: OptionError.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in (*PANELS, "all")]
    if unknown or not wanted:
        got = f"'{unknown[0]}'" if unknown else "none"
        raise OptionError(f"panels: expected some of {', '.join(PANELS)} or all, got {got}")
    return PANELS if "all" in wanted else tuple(panel for panel in PANELS if panel in wanted)


@dataclass(frozen=True, slots=True)
class PictureOptions:
    panels: tuple[Panel, ...] = Option(
        "mel, speech, language, attention, confidence or all.",
        metavar="PANEL[,PANEL…]",
        cli_default="all",
        reads=panels_of,
    ).as_field(PANELS)
    offset: float | None = Option(
        "Start of the part.", unset="the beginning", kind="time", metavar="TIME"
    ).as_field(None)
    duration: float | None = Option(
        "Length of the part, at most 30 s.",
        unset="30",
        kind="time",
        metavar="TIME",
        least=SHORTEST_S,
        most=LONGEST_S,
        expected=f"{SHORTEST_S:g} to {LONGEST_S:g} s",
    ).as_field(None)
    text: str | None = Option(
        "Text of the part; it is aligned instead of transcribed.", metavar="FILE"
    ).as_field(None)

    def __post_init__(self) -> None:
        check_options(self)
