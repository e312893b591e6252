"""Options that cannot hold together are refused; one that is merely idle is taken, and changes nothing."""

from __future__ import annotations

import pytest

from sottovoce.cli.invocation import Invocation
from sottovoce.cli.options import means_file
from sottovoce.cli.transcribe import EXCLUSIVE, transcribe, transcribe_options
from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions


def options_of(words: str) -> TranscribeOptions:
    """The options that a call of `transcribe` makes."""
    names = ["-h", "--help"]  # as the whole command line has them: click keeps what it once looked at
    typed = ["x.wav", *words.split()]
    context = transcribe.make_context("transcribe", typed, obj=Invocation(), help_option_names=names)
    return transcribe_options({name: raw for name, raw in context.params.items() if name != "files"})


@pytest.mark.parametrize(
    "words",
    [
        "--temperature 0 --beam-size 1 --length-penalty 1 --best-of 3 --seed 3",
        "--temperature 0.4 --patience 2 --beam-size 3",
        "--max-context 20 --vad --prompt-reset-on-temperature 0.2",
        "--carry-initial-prompt --append-punctuations . --word-threshold 0.1",
        "--max-context 0 --carry-initial-prompt --initial-prompt Anna",
        "--processors 1 --speakers 2 --min-speakers 2",
        "--lm-weight 1 --hotword-weight 1 --grammar-rule thing --grammar-penalty 5",
        "--speaker-voices campplus --speaker-engine pyannote --max-speakers 3",
        "--translation-model m --glossary terms.txt --defer-word 0.3",
    ],
)
def test_idle_options_are_taken(words: str) -> None:
    assert options_of(words)


@pytest.mark.parametrize("others", EXCLUSIVE.items(), ids=lambda item: item[0])
def test_every_pair_of_the_table_is_refused(others: tuple[str, tuple[str, ...]]) -> None:
    values = {"processors": "2", "channels": "apart", "clip_timestamps": "0,1"}
    params = {param.name: param for param in transcribe.params}

    def typed(name: str) -> str:
        flag = f"--{name.replace('_', '-')}"
        return flag if getattr(params[name], "is_flag", False) else f"{flag} {values.get(name, '2')}"

    first, excluded = others
    for second in excluded:
        with pytest.raises(OptionError, match="cannot be combined with"):
            options_of(f"{typed(first)} {typed(second)}")


def test_names_of_files_are_told_by_how_they_are_written() -> None:
    words = ["AC/DC", "Anna, Otto", "9/11", "...", "names.wav", "Anna\nnames.txt", None]
    names = ["/tmp/names", "./names", "../names", "~/names", "names.txt", "a b.TSV"]
    assert [text for text in [*words, *names] if means_file(text)] == names


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_temperatures_have_one_range(value: float) -> None:
    with pytest.raises(OptionError, match="temperature: expected 0 to 1"):
        DecodingOptions(temperature=value)
    with pytest.raises(OptionError, match="temperatures: expected 0 to 1"):
        FallbackOptions(temperatures=(0.0, value))
