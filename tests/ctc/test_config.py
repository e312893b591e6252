"""`decoder.toml`: what is written is read again, and what is wrong is named."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.options import CtcOptions, known_keys, read_config, write_config
from sottovoce.errors import OptionError

LABELS = ["-", "a", "b", "c", "|"]
ARPA = "\\data\\\nngram 1=5\n\n\\1-grams:\n-5 <unk>\n-99 <s>\n-0.5 </s>\n-0.3 ab\n-3 ac\n\n\\end\\\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "labels.txt").write_text("\n".join(LABELS) + "\n")
    (tmp_path / "lm.arpa").write_text(ARPA)
    (tmp_path / "words.txt").write_text("ab a b |\nac a c |\n")
    (tmp_path / "priors.txt").write_text("0.6\n0.1\n0.1\n0.1\n0.1\n")
    return tmp_path


EVERY = {
    "labels": LABELS,
    "blank": 0,
    "unknown_words": True,
    "lm_weight": 0.75,
    "beam_size": 4,
    "beam_threshold": 9.5,
    "label_priors": [0.6, 0.1, 0.1, 0.1, 0.1],
    "level": "word",
    "times": False,
    "commit_frames": None,
    "hotwords": {'a "b" \\ é': 1.5, "c": 2.0},
}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "decoder.toml"
    write_config(path, EVERY)
    config = read_config(path)
    assert config.labels == tuple(LABELS)
    assert config.hotwords == EVERY["hotwords"]
    assert config.unknown_words is True
    assert (config.fusion.lm_weight, config.fusion.level) == (0.75, "word")
    assert config.options == CtcOptions(
        beam_size=4,
        beam_threshold=9.5,
        label_priors=(0.6, 0.1, 0.1, 0.1, 0.1),
        times=False,
        commit_frames=None,
    )
    assert [*tmp_path.iterdir()] == [path]


def test_every_option_of_the_search_is_a_key() -> None:
    names = {item.name for owner in (CtcOptions, CtcFusionOptions) for item in fields(owner)}
    assert names < set(known_keys())
    assert {"labels", "blank", "lm", "label_lm", "lexicon", "hotwords", "neural_lm", "unknown_words"} < set(
        known_keys()
    )


def test_paths_are_relative_to_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed = folder / "deployed"
    deployed.mkdir()
    path = deployed / "decoder.toml"
    files = {key: folder / f"{key}.x" for key in ("labels", "lm", "label_lm", "lexicon", "hotwords")}
    write_config(path, files)
    assert 'lm = "../lm.x"' in path.read_text().splitlines()
    monkeypatch.chdir(os.sep)
    config = read_config(path)
    assert {key: getattr(config, key).resolve() for key in files} == {
        key: files[key].resolve() for key in files
    }
    (deployed / "model").mkdir()
    write_config(path, {"neural_lm": deployed / "model"})
    assert read_config(path).neural_lm == str(deployed / "model")
    write_config(path, {"neural_lm": "gpt2"})  # no folder of that name: one of the hub
    assert read_config(path).neural_lm == "gpt2"


def test_a_decoder_of_a_file_decodes_as_one_of_arguments(folder: Path) -> None:
    rows = np.full((6, 5), 0.02)
    for frame, label in enumerate((1, 0, 3, 0, 4, 0)):
        rows[frame, label] = 1.0
    rows[2, 2] = 0.9
    log_probs = np.log(rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)
    path = folder / "decoder.toml"
    values = {
        "lm_weight": 1.25,
        "acoustic_scale": 0.8,
        "blank_penalty": 0.5,
        "word_score": 0.5,
        "beam_size": 8,
    }
    files = {"labels": folder / "labels.txt", "lm": folder / "lm.arpa", "lexicon": folder / "words.txt"}
    write_config(path, {**files, "label_priors": folder / "priors.txt", **values})
    result = CtcDecoder.from_config(path).decode(log_probs)
    direct = CtcDecoder(
        LABELS,
        0,
        lm=folder / "lm.arpa",
        lexicon=folder / "words.txt",
        fusion=CtcFusionOptions(lm_weight=1.25, word_score=0.5),
        options=CtcOptions(
            beam_size=8, acoustic_scale=0.8, blank_penalty=0.5, label_priors=(0.6, 0.1, 0.1, 0.1, 0.1)
        ),
    ).decode(log_probs)
    assert result == direct
    assert result[0][0].text == "ab"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lm_wieght = 1", "unknown key 'lm_wieght'; did you mean 'lm_weight'?"),
        ("zzz = 1", "unknown key 'zzz'; known are labels, blank, "),
        ("lm_weight = 'much'", "lm_weight: expected a number, got 'much'"),
        ("lm_weight = true", "lm_weight: expected a number, got True"),
        ("beam_size = 1.5", "beam_size: expected a whole number, got 1.5"),
        ("beam_size = 0", "beam_size: expected at least 1, got 0"),
        ("lm = 3", "lm: expected a path or a table of numbers, got 3"),
        ("times = 1", "times: expected true or false, got 1"),
        ("level = 'letter'", "level: expected 'auto' or 'token' or 'word', got 'letter'"),
        ("labels = [1]", "labels: expected a path or a list of texts, got [1]"),
        ("hotwords = {a = 'x'}", "hotwords: expected a path or a list of texts or a table of numbers"),
        ("[fusion]\nlm_weight = 1", "unknown key 'fusion'"),
        ("lm_weight =", "expected a decoder's configuration in TOML, got '"),
    ],
)
def test_errors_name_the_file_the_key_and_what_was_expected(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "decoder.toml"
    path.write_text(text)
    with pytest.raises(OptionError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_decoder_needs_labels(tmp_path: Path) -> None:
    path = tmp_path / "decoder.toml"
    path.write_text("beam_size = 8\n")
    with pytest.raises(OptionError, match="labels: expected a file of labels, or a list of them, got none"):
        CtcDecoder.from_config(path)
    with pytest.raises(
        OptionError, match=r"none.toml: no such file; expected a decoder's configuration in TOML"
    ):
        CtcDecoder.from_config(tmp_path / "none.toml")
