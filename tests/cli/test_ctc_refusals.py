"""`sottovoce ctc`: an option that would do nothing is an error of one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.cli.main import run
from tests.cli.test_ctc import folder

__all__ = ["folder"]

GREEDY = "--greedy: takes the likeliest path without a search, got"
OVER_LABELS = "needs a model over words, got one over labels"
WORDS = ("--lm", "lm.arpa", "--lexicon", "words.txt")
LETTERS = ("--lm", "letters.arpa")


@pytest.fixture(autouse=True)
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unigrams = "\n".join(f"-0.7 {name}" for name in ("a", "b", "c", "|", "</s>", "<unk>"))
    text = f"\\data\\\nngram 1=6\n\n\\1-grams:\n{unigrams}\n\n\\end\\\n"
    (folder / "letters.arpa").write_text(text)
    (folder / "dev.jsonl").write_text(json.dumps({"emissions": "one.npy", "text": "ab c"}) + "\n")
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lm-weight", "0.9"], "--lm-weight: needs --lm"),
        (["--token-offset", "100"], "--token-offset: needs --lm or --label-lm"),
        (["--greedy", "--lm", "lm.arpa"], "--greedy: takes the likeliest path without a search, got --lm"),
        (["--greedy", "--nbest", "3"], "--greedy: takes the likeliest path without a search, got --nbest"),
        (["--greedy", "--beam-size", "16"], f"{GREEDY} --beam-size"),
        (["--greedy", "--top-tokens", "9"], f"{GREEDY} --top-tokens"),
        (["--greedy", "--beam-threshold", "9"], f"{GREEDY} --beam-threshold"),
        (["--greedy", "--engine", "tensors", "--blank-skip", "0.9"], f"{GREEDY} --blank-skip and --engine"),
        (["--unknown-score", "-3"], "--unknown-score: needs --lexicon or --lm"),
        (["--no-unknown-words"], "--unknown-words: needs --lexicon or --lm"),
        (["--case", "upper"], "--case: needs --hotwords, or --lm without --lexicon"),
        (
            ["--case", "upper", "--lm", "lm.arpa", "--lexicon", "words.txt"],
            "--case: needs --hotwords, or --lm without --lexicon",
        ),
        (
            ["--lexicon", "words.txt", "--unknown-score", "-3"],
            "--unknown-score: needs --unknown-words beside --lexicon",
        ),
        (
            ["--lm", "letters.arpa", "--unknown-score", "-3"],
            "--unknown-score: needs a model over words, got one over labels",
        ),
        (
            ["--lm", "letters.arpa", "--no-look-ahead"],
            "--no-look-ahead: needs a model over words, got one over labels",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["ctc", "one.npy", "--labels", "labels.txt", *options]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--labels", "labels.txt"], "--labels: a model brings its own, got --model nano"),
        (["--blank", "0"], "--blank: a model brings its own, got --model nano"),
        (["--frame-ms", "20"], "--frame-ms: a model brings its own, got --model nano"),
        (["--logits"], "--logits: a model brings its own, got --model nano"),
    ],
)
@pytest.mark.parametrize("command", [[], ["tune"]])
def test_what_a_model_knows_by_itself_is_not_asked_for(
    command: list[str],
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["ctc", *command, "one.wav", "--model", "nano", *options]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lm-weight", "0.9"], "--lm-weight: tune tries the values of --lm-weights"),
        (["--word-score", "1"], "--word-score: tune tries the values of --word-scores"),
        (["--neural-weights", "1,2"], "--neural-weights: needs --neural-lm"),
        (["--hotword-weights", "1,2"], "--hotword-weights: needs --hotwords or --vocabulary-from"),
        (["--lm-weights", "0.5"], "--lm-weights: needs --lm"),
        (
            ["--hotwords", "words.txt", "--hotword-weight", "1", "--hotword-weights", "1,2"],
            "--hotword-weight: tune tries the values of --hotword-weights",
        ),
        (["--unknown-score", "-3"], "--unknown-score: needs --lexicon or --lm"),
    ],
)
def test_tuning_refuses_what_would_do_nothing(
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if options[0] == "--lm-weight":
        options = ["--lm", "lm.arpa", *options]
    assert run(["ctc", "tune", "dev.jsonl", "--labels", "labels.txt", *options]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"
