"""Several networks over the same frames: the mean of their probabilities, or their lists joined."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.cli.main import run
from sottovoce.ctc import CtcDecoder
from sottovoce.ctc.emissions import log_softmax
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import InputError, OptionError
from tests.ctc.enumeration import emissions

LABELS = ["-", "a", "b", " "]


def networks(n: int, n_batch: int = 2) -> list[np.ndarray]:
    return [np.stack([emissions(12, 4, 10 * k + row) for row in range(n_batch)]) for k in range(n)]


@pytest.mark.parametrize("weights", [None, (1.0, 3.0, 0.5)])
def test_the_mean_is_of_probabilities(weights: tuple[float, ...] | None) -> None:
    parts = networks(3)
    shares = np.array(weights or (1.0, 1.0, 1.0)) / sum(weights or (1.0, 1.0, 1.0))
    mean = np.log(sum(share * np.exp(part) for share, part in zip(shares, parts, strict=True)))
    options = CtcOptions(beam_size=8, n_best=4, network_weights=weights)
    decoder = CtcDecoder(LABELS, options=options)
    plain = CtcDecoder(LABELS, beam_size=8, n_best=4)
    lengths = [12, 7]
    for ours, theirs in zip(decoder.decode(parts, lengths), plain.decode(mean, lengths), strict=True):
        assert [h.text for h in ours] == [h.text for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
    assert [h.text for h in decoder.greedy(parts, lengths)] == [h.text for h in plain.greedy(mean, lengths)]
    state = decoder.start()
    for begin in range(0, 12, 5):
        text = decoder.decode_chunk(state, [part[:1, begin : begin + 5] for part in parts])
    assert decoder.finish(state)[0][0].text == plain.decode(mean)[0][0].text
    assert text


def test_arrays_and_utterances_alone_are_networks_too() -> None:
    parts = [part[0] for part in networks(2)]
    result = CtcDecoder(LABELS).decode(parts)
    assert len(result) == 1
    assert result == CtcDecoder(LABELS).decode([torch.from_numpy(part) for part in parts])
    assert len(CtcDecoder(LABELS).decode([part.tolist() for part in parts])) == 2, "lists are a batch"


def test_logits_are_normalised_before_the_mean() -> None:
    parts = networks(2)
    result = CtcDecoder(LABELS).decode_logits([part + 3.0 for part in parts])
    assert [h[0].text for h in result] == [h[0].text for h in CtcDecoder(LABELS).decode(parts)]


def test_lists_are_joined_by_the_mean_of_posteriors() -> None:
    parts, shares = networks(2), (0.75, 0.25)
    options = CtcOptions(beam_size=16, n_best=16, combine="nbest", network_weights=(3, 1))
    joined = CtcDecoder(LABELS, options=options).decode(parts)
    alone = [CtcDecoder(LABELS, beam_size=16, n_best=16).decode(part) for part in parts]
    for row, result in enumerate(joined):
        expected: dict[str, float] = {}
        for share, lists in zip(shares, alone, strict=True):
            for item in lists[row]:
                expected[item.text] = expected.get(item.text, 0.0) + share * (item.posterior or 0.0)
        ranked = sorted(expected, key=lambda text: -expected[text])[:16]
        assert [h.text for h in result] == ranked
        assert [h.posterior for h in result] == pytest.approx([expected[text] for text in ranked])


@pytest.mark.parametrize(
    ("shapes", "options", "error", "message"),
    [
        ([(2, 12, 4), (2, 11, 4)], {}, InputError, r"got \(2, 12, 4\) and, from network 2, \(2, 11, 4\)"),
        ([(2, 12, 4), (2, 12, 5)], {}, InputError, "expected 4 labels in the last place, got 5"),
        ([(2, 12, 4)] * 2, {"network_weights": (1,)}, OptionError, "expected 2, one a network, got 1"),
        ([(2, 12, 4)], {"network_weights": (2, 1)}, OptionError, "expected 1, one a network, got 2"),
        ([(2, 12, 4)] * 2, {"is_normalised": False}, OptionError, "expected log-probabilities to average"),
    ],
)
def test_networks_that_do_not_fit_are_named(
    shapes: Sequence[tuple[int, ...]], options: dict[str, object], error: type[Exception], message: str
) -> None:
    parts = [log_softmax(np.zeros(shape)) for shape in shapes]
    with pytest.raises(error, match=message):
        CtcDecoder(LABELS, options=CtcOptions(**options)).decode(parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", [(1.0, 0.0), (1.0, -1.0)])
def test_weights_are_positive(weights: tuple[float, ...]) -> None:
    with pytest.raises(OptionError, match="network_weights: expected a positive number"):
        CtcOptions(network_weights=weights)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.txt").write_text("-\na\nb\n|\n")
    for name, part in zip("abc", networks(3), strict=True):
        np.save(tmp_path / f"{name}.npy", part)
    np.save(tmp_path / "short.npy", networks(1, 1)[0])
    np.save(tmp_path / "long.npy", np.stack([emissions(13, 4, row) for row in range(2)]))
    return tmp_path


@pytest.mark.parametrize("combine", ["mean", "nbest"])
def test_the_command_takes_networks_between_commas(
    folder: Path, capsys: pytest.CaptureFixture[str], combine: str
) -> None:
    arguments = ["a.npy,b.npy", "--labels", "labels.txt", "--nbest", "4", "--combine", combine]
    assert run(["ctc", *arguments, "--network-weights", "2,1"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    options = CtcOptions(n_best=4, network_weights=(2, 1), combine=combine)  # type: ignore[arg-type]
    lists = CtcDecoder(["-", "a", "b", "|"], options=options).decode(networks(2))
    assert [row["text"] for row in rows] == [item.text for result in lists for item in result]
    assert rows[0]["id"] == "a.npy[0],b.npy[0]"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("a.npy,short.npy", "expected equal numbers of utterances of each network, got fewer of one"),
        ("a.npy,long.npy", "expected equal numbers of frames of each network, got 12, 13"),
        ("a.npy,none.npy", "none.npy: expected emissions"),
    ],
)
def test_the_command_names_networks_that_do_not_fit(
    folder: Path, capsys: pytest.CaptureFixture[str], files: str, message: str
) -> None:
    assert run(["ctc", files, "--labels", "labels.txt"]) == 2
    assert message in capsys.readouterr().err
