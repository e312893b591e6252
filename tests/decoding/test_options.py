from __future__ import annotations

import re

import pytest

from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions, shared_options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "summarize"}, "task"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"sample_len": 0}, "sample_len"),
        ({"beam_size": 0}, "beam_size"),
        ({"beam_size": 2, "temperature": 0.5}, "beam search needs temperature 0"),
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


def test_best_of_counts_above_temperature_0_only() -> None:
    wish = DecodingOptions(best_of=5)
    assert wish.n_hypotheses == 1
    assert wish.at_temperature(0.0).n_hypotheses == 1
    assert wish.at_temperature(0.4).n_hypotheses == 5
    both = DecodingOptions(best_of=5, beam_size=2)
    assert (both.n_hypotheses, both.at_temperature(0.4).n_hypotheses) == (2, 5)


def test_a_batch_shares_all_but_prompt_language_and_seed() -> None:
    first = DecodingOptions(language="en", prompt="one", seed=1)
    assert shared_options([first, DecodingOptions(language="de", hotwords="x", seed=2)]) == DecodingOptions()
    with pytest.raises(OptionError, match="may differ"):
        shared_options([first, DecodingOptions(beam_size=2)])
    with pytest.raises(OptionError, match="got none"):
        shared_options([])
