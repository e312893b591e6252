"""Options of subtitle layout."""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.errors import OptionError
from sottovoce.options.schema import ApiField, Option, check_options


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Layout of subtitles, as in openai-whisper; lines need word times.

    Raises: OptionError for values out of range or that exclude each other.
    """

    max_line_width: int | None = Option(
        "Characters in a subtitle line (needs --word-timestamps).",
        group="Layout",
        least=1,
    ).as_field(None)
    max_line_count: int | None = Option(
        "Lines in a subtitle (needs a line width or a reading speed).",
        group="Layout",
        least=1,
    ).as_field(None)
    """Lets subtitles run across segments."""
    max_words_per_line: int | None = Option(
        "Words in a subtitle.",
        group="Layout",
        least=1,
    ).as_field(None)
    """Only if subtitles end with their segments."""
    reading_speed: float | None = Option(
        "Lay subtitles out for this many characters a second (usually 17): at most 2 lines of "
        "42, split at sentences (needs --word-timestamps).",
        group="Layout",
        metavar="CHARACTERS",
        least=1.0,
        expected="at least 1 a second",
    ).as_field(None)
    highlight_words: bool = Option(
        "Underline each word of a subtitle as it is spoken.",
        group="Layout",
    ).as_field(False)
    offset_n: int = Option(
        "srt: number the subtitles from N + 1.",
        group="Layout",
        metavar="N",
        least=0,
        apis={"whisper_cpp": ApiField("offset_n", "added to the numbers of `srt`", most=100_000)},
    ).as_field(0)

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_line_count is not None and self.max_line_width is None and self.reading_speed is None:
            raise OptionError(f"max_line_count {self.max_line_count}: needs max_line_width too")
        if self.max_words_per_line is not None and self.max_line_count is not None:
            raise OptionError("max_words_per_line: cannot be combined with max_line_count")
        if self.reading_speed is not None and (self.highlight_words or self.max_words_per_line is not None):
            raise OptionError("reading_speed: cannot be combined with highlight_words or max_words_per_line")

    @property
    def need_words(self) -> bool:
        limits = (self.max_line_width, self.max_line_count, self.max_words_per_line, self.reading_speed)
        return self.highlight_words or any(limit is not None for limit in limits)
