"""Options that another one switches off are errors; the same ones are none where something looks at them."""

from __future__ import annotations

import pytest

from sottovoce.cli.call import Call
from sottovoce.cli.options import means_file
from sottovoce.cli.transcribe import check_idle, transcribe, typed_options
from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions


def check(*words: str) -> frozenset[str]:
    """Look at a call of `transcribe`; the names that were typed."""
    names = ["-h", "--help"]  # as the whole command line has them: click keeps what it once looked at
    context = transcribe.make_context("transcribe", ["x.wav", *words], obj=Call(), help_option_names=names)
    typed = typed_options(context)
    check_idle(context)
    return typed - {"files"}


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--temperature 0",
        "--no-fallback",
        "--best-of 3",
        "--best-of 3 --temperature 0.4 --no-fallback",
        "--seed 3 --temperature 0.4,0",
        "--beam-size 1 --temperature 0.4",
        "--beam-size 3 --temperature 0.4,0",
        "--length-penalty 1 --temperature 0.4",
        "--length-penalty 1 --no-fallback",
        "--max-context 20 --vad",
        "--max-context 20 --no-condition-on-previous-text --initial-prompt Anna",
        "--max-context 0 --carry-initial-prompt --initial-prompt Anna",
        "--prompt-reset-on-temperature 1",
        "--batch-size 4",
    ],
)
def test_what_something_looks_at_is_taken(words: str) -> None:
    names = check(*words.split())
    assert names == {word[2:].replace("-", "_") for word in words.split() if word.startswith("--")}


def test_initial_prompts_keep_the_limit_and_lose_the_reset() -> None:
    with pytest.raises(OptionError, match="--prompt-reset-on-temperature: earlier text"):
        check(
            *("--no-condition-on-previous-text", "--initial-prompt", "Anna"),
            *("--prompt-reset-on-temperature", "0.2"),
        )


@pytest.mark.parametrize("text", ["AC/DC", "Anna, Otto", "9/11", "...", "names.wav", "Anna\nnames.txt", None])
def test_words_are_no_files(text: str | None) -> None:
    assert not means_file(text)


@pytest.mark.parametrize("text", ["/tmp/names", "./names", "../names", "~/names", "names.txt", "a b.TSV"])
def test_names_of_files_are_told_by_how_they_are_written(text: str) -> None:
    assert means_file(text)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_temperatures_have_one_range(value: float) -> None:
    with pytest.raises(OptionError, match="temperature: expected 0 to 1"):
        DecodingOptions(temperature=value)
    with pytest.raises(OptionError, match="temperatures: expected 0 to 1"):
        FallbackOptions(temperatures=(0.0, value))
