"""Runs the tests of a module twice: with the search in tensors, and with the compiled one alone."""

from __future__ import annotations

import pytest

from sottovoce.ctc import emission_decoder
from sottovoce.ctc.compiled import choose_engine
from sottovoce.ctc.prefix_search import PrefixSearch


@pytest.fixture(params=["compiled", "tensors"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    chosen: str = request.param
    if chosen == "compiled":
        pytest.importorskip("numba", reason="the extra fast is not installed")

        def refuse(*_: object) -> None:
            raise AssertionError("the compiled search handed over to the one in tensors")

        monkeypatch.setattr(PrefixSearch, "run", refuse)
    monkeypatch.setattr(emission_decoder, "choose_engine", lambda search, _: choose_engine(search, chosen))  # type: ignore[arg-type]
    return chosen
