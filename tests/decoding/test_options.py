from __future__ import annotations

import re

import pytest

from sottovoce.decoding.options import DecodingOptions, shared_options
from sottovoce.errors import OptionError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "summarize"}, "task"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"sample_len": 0}, "sample_len"),
        ({"beam_size": 0}, "beam_size"),
        ({"best_of": 3}, "best_of 3: needs a temperature"),
        ({"beam_size": 2, "temperature": 0.5}, "beam search needs temperature 0"),
        ({"patience": 1.0}, "needs a beam_size"),
        ({"beam_size": 2, "patience": 0.1}, "at least 1"),
        ({"length_penalty": 1.5}, "length_penalty"),
        ({"max_initial_timestamp": 31.0}, "max_initial_timestamp"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
    ],
)
def test_bad_values_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        DecodingOptions(**options)  # type: ignore[arg-type]


def test_temperature_decides_which_search_options_count() -> None:
    beam = DecodingOptions(beam_size=5, patience=2.0)
    assert beam.at_temperature(0.4).beam_size is None
    assert beam.at_temperature(0.4).patience is None
    drawn = DecodingOptions(temperature=0.2, best_of=5)
    assert drawn.at_temperature(0.0).best_of is None
    assert drawn.at_temperature(0.8).best_of == 5


def test_a_batch_shares_all_but_prompt_language_and_seed() -> None:
    first = DecodingOptions(language="en", prompt="one", seed=1)
    assert shared_options([first, DecodingOptions(language="de", hotwords="x", seed=2)]) == DecodingOptions()
    with pytest.raises(OptionError, match="may differ"):
        shared_options([first, DecodingOptions(beam_size=2)])
    with pytest.raises(OptionError, match="got none"):
        shared_options([])
