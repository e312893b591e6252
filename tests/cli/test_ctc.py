"""`sottovoce ctc`: files in, JSON lines out; lists of other programs; weights tuned; errors in one line."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce import load_model
from sottovoce.cli.ctc import DecoderOptions, RememberedWords, Utterances
from sottovoce.cli.main import run
from sottovoce.ctc import CtcDecoder
from sottovoce.ctc.options import read_config
from sottovoce.lm.lexicon import Lexicon
from sottovoce.runtime.registry import RuntimeChoice
from tests.cli.conftest import Call

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
pytestmark = pytest.mark.usefixtures("kernels")
LABELS = ["-", "a", "b", "c", "|"]
Row = dict[str, Any]
Rows = Callable[..., list[Row]]
ARPA = "\\data\\\nngram 1=5\n\n\\1-grams:\n-5 <unk>\n-99 <s>\n-0.5 </s>\n-0.3 ab\n-3 ac\n\n\\end\\\n"


def emitted(text: str, doubt: str = "") -> np.ndarray:
    """Log-probabilities (T, 5) of a text; letters of `doubt` share the last letter's frame."""
    rows = np.full((2 * len(text), 5), 1e-4)
    for i, letter in enumerate(text):
        rows[2 * i, LABELS.index(letter)] = 1.0
        rows[2 * i + 1, 0] = 1.0
    for letter in doubt:
        rows[2 * len(text) - 2, LABELS.index(letter)] = 0.8
    return np.log(rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with emissions, labels, a language model and a development set."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.txt").write_text("\n".join(LABELS) + "\n")
    np.save(tmp_path / "one.npy", emitted("ab|c"))
    np.savez(tmp_path / "two.npz", first=emitted("a"), second=emitted("cab"))
    rows = emitted("ac", doubt="b")
    (tmp_path / "three.csv").write_text("\n".join(";".join(map(str, row)) + ";" for row in rows))
    (tmp_path / "lm.arpa").write_text(ARPA)
    (tmp_path / "words.txt").write_text("ab a b |\nac a c |\n")
    np.save(tmp_path / "logits.npy", np.full((3, 5), 4.0, dtype=np.float32))
    np.save(tmp_path / "dev.npy", emitted("ac", doubt="b"))
    said = json.dumps({"emissions": "dev.npy", "text": "ab", "speaker": "one"}) + "\n"
    (tmp_path / "dev.jsonl").write_text(said * 2)
    return tmp_path


def with_labels(*arguments: object) -> list[str]:
    labels = [] if {"--labels", "--model", "--config"} & {*arguments} else ["--labels", "labels.txt"]
    return [*map(str, arguments), *labels]


@pytest.fixture
def ctc(folder: Path, call: Call) -> Rows:
    """The rows that `ctc` writes."""

    def written(*words: object) -> list[Row]:
        return [json.loads(line) for line in call("ctc", *with_labels(*words)).out.splitlines()]

    return written


def test_every_utterance_of_every_file(ctc: Rows) -> None:
    result = ctc("one.npy", "two.npz", "three.csv", "--beam-size", 4)
    assert [row["text"] for row in result] == ["ab c", "a", "cab", "ac"]
    assert [row["id"] for row in result] == ["one.npy", "two.npz#first", "two.npz#second", "three.csv"]
    assert [word["word"] for word in result[0]["words"]] == ["ab", "c"]


@pytest.mark.parametrize("more", [(), ("--stream",), ("--greedy",)])
def test_a_blank_without_a_name_is_the_likeliest_label_or_asked_for(
    more: tuple[str, ...], folder: Path, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "unnamed.txt").write_text("a\nb\nc\n|\nq\n")
    values = np.concatenate((emitted("abc"), emitted("a")[1:].repeat(3, axis=0)))
    np.save("mostly.npy", values[:, [1, 2, 3, 4, 0]])
    written = call("ctc", "mostly.npy", "--labels", "unnamed.txt", *more)
    assert json.loads(written.out.splitlines()[-1])["text"] == "abc"
    assert caplog.messages == ["blank: label 4 ('q'), the likeliest in most frames"]
    written = call("ctc", "one.npy", "--labels", "unnamed.txt", *more, code=2)
    assert written.err.startswith("error: blank: expected its index (--blank)")
    written = call("ctc", "missing.npy", "--labels", "unnamed.txt", *more, code=2)
    assert written.err.startswith("error: missing.npy: expected emissions")
    call("ctc", "one.npy", "--labels", "unnamed.txt", "--blank", 0, *more)
    assert len(caplog.messages) == 1


def test_emissions_from_standard_input(ctc: Rows, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    class Piped:
        buffer = io.BytesIO(Path("one.npy").read_bytes())

    monkeypatch.setattr("sys.stdin", Piped)
    (row,) = ctc("-")
    assert (row["id"], row["text"]) == ("-", "ab c")
    empty = call("ctc", *with_labels("-"), code=2)  # nothing comes any more
    assert empty.err.startswith("error: -: expected emissions as .npy")


def test_n_best_are_ranked(ctc: Rows) -> None:
    result = ctc("three.csv", "--nbest", 3)
    assert [row["rank"] for row in result] == [0, 1, 2]
    assert [row["text"] for row in result][:2] == ["ac", "ab"]
    assert result[0]["score"] >= result[1]["score"] >= result[2]["score"]


def test_a_language_model_changes_its_mind(ctc: Rows) -> None:
    shared = ["three.csv", "--lm", "lm.arpa"]
    assert ctc(*shared)[0]["text"] == "ab"
    assert ctc(*shared, "--lexicon", "words.txt")[0]["text"] == "ab"
    (row,) = ctc(*shared, "--lm-weight", 0.0)
    assert row["text"] == "ac"


def test_rare_words_of_a_document_are_hotwords(folder: Path, ctc: Rows, call: Call) -> None:
    """A list's weight goes before; a word that is common, or stands there once, is none."""
    notes = folder / "notes.md"
    notes.write_text("acbab acbab, abba and once cabb. And and and.\n")
    weight = ["--hotword-weight", "5"]
    (plain,) = ctc("three.csv")
    (row,) = ctc("three.csv", *weight, "--vocabulary-from", notes, "--nbest", "1")
    (listed,) = ctc("three.csv", *weight, "--hotwords", _list(folder, "acbab"))
    assert (row["text"], row["score"]) == (listed["text"], listed["score"])
    both = ["--vocabulary-from", notes, "--hotwords", _list(folder, "acbab\t0")]
    (off,) = ctc("three.csv", *weight, *both)
    assert (off["text"], off["score"]) == (plain["text"], plain["score"])
    notes.write_text("and and\n")
    wrong = call("ctc", *with_labels("three.csv", *weight, "--vocabulary-from", notes), code=2)
    assert "notes.md: expected words that are rare elsewhere" in wrong.err


def _list(folder: Path, text: str) -> Path:
    path = folder / "some.txt"
    path.write_text(text + "\n")
    return path


def test_a_bad_line_of_a_list_is_one_warning(
    folder: Path, ctc: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    path = _list(folder, "ab\t3\nqu\nac\tmuch")
    (row,) = ctc("three.csv", "--hotwords", path)
    assert row["text"] == "ab"
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        f"{path}, line 3",
        f"{path}, line 2",
    ]


def test_greedy_and_logits(ctc: Rows) -> None:
    np.save("logits.npy", emitted("ab") * 1.0 + 7.0)
    (row,) = ctc("logits.npy", "--logits", "--greedy")
    assert row["text"] == "ab"


def test_tuning_writes_a_decoder_that_reads_the_set_right(ctc: Rows) -> None:
    shared = ["tune", "dev.jsonl", "--lm", "lm.arpa", "--lm-weight", 0, "--decodings", 24]
    (row,) = ctc(*shared, "-o", "decoder.toml", "--beam-threshold", 30)
    assert (row["before"], row["wer"], row["held_out"]) == (1.0, 0.0, None)
    assert set(row) - {"before", "wer", "held_out", "interval", "decodings"} == {
        "acoustic_scale",
        "blank_penalty",
        "lm_weight",
        "word_score",
        "unknown_score",
    }
    config = read_config("decoder.toml")
    assert (config.labels, config.lm) == (Path("labels.txt"), Path("lm.arpa"))
    assert config.fusion.lm_weight == row["lm_weight"]
    assert config.options.beam_threshold == 30
    assert ctc("three.csv", "--config", "decoder.toml")[0]["text"] == "ab"
    (typed,) = ctc("three.csv", "--config", "decoder.toml", "--lm-weight", 0, "--word-score", 0)
    assert typed["text"] == "ac"
    (result,) = CtcDecoder.from_config("decoder.toml").decode(emitted("ac", doubt="b"))
    assert result[0].text == "ab"


def test_several_models_have_weights_and_are_kept_by_tuning(ctc: Rows, call: Call) -> None:
    Path("second.arpa").write_bytes(Path("lm.arpa").read_bytes())
    given = ("--lm", "lm.arpa=0.5", "--lm", "second.arpa=1")
    (row,) = ctc("tune", "dev.jsonl", *given, "--decodings", 4, "-o", "decoder.toml")
    assert "lm_weight" not in row
    assert read_config("decoder.toml").lm == {"lm.arpa": 0.5, "second.arpa": 1.0}
    (both,) = ctc("three.csv", *given)
    (single,) = ctc("three.csv", "--lm", "lm.arpa", "--lm-weight", 1.5)
    assert (both["text"], both["score"]) == (single["text"], single["score"])
    wrong = ("--lm", "lm.arpa", "--lm", "second.arpa=1")
    error = call("ctc", "three.csv", "--labels", "labels.txt", *wrong, code=2).err
    assert error == "error: --lm: expected FILE=WEIGHT, got 'lm.arpa'\n"


def test_options_without_a_flag_are_read_from_a_configuration(folder: Path, ctc: Rows, call: Call) -> None:
    Path("decoder.toml").write_text('labels = ["-", "a", "b", "c", "|"]\ntimes = false\nhotwords = ["ab"]\n')
    (row,) = ctc("three.csv", "--config", "decoder.toml")
    assert (row["text"], row["words"]) == ("ab", [])
    (row,) = ctc("three.csv", "--config", "decoder.toml", "--hotwords", _list(folder, "ac"))
    assert row["text"] == "ac"
    Path("decoder.toml").write_text("beam = 3\n")
    wrong = call("ctc", "three.csv", "--config", "decoder.toml", code=2)
    assert "error: decoder.toml: unknown key 'beam'; did you mean 'beam_size'?" in wrong.err


def test_what_is_held_out_is_said_with_an_interval(ctc: Rows) -> None:
    """Weights of a speaker are chosen on the other's: "ab" and "ac" have the same emissions."""
    rows = [{"emissions": "dev.npy", "text": text, "speaker": text} for text in ("ab", "ac", "ab", "ac")]
    Path("dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shared = ["tune", "dev.jsonl", "--lm", "lm.arpa", "--decodings", 16, "--tune", "lm-weight=-1..1"]
    (row,) = ctc(*shared)
    assert (row["before"], row["wer"], row["held_out"], row["interval"]) == (0.5, 0.5, 1.0, [1.0, 1.0])
    assert ctc(*shared, "--folds", 1)[0]["held_out"] is None


def test_tuning_builds_the_lexicon_once(ctc: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """No weight is in the tree of its words; one that is used again finds the same."""
    built: list[int] = []
    make = Lexicon.__init__

    def counted(self: Lexicon, *given: Any, **named: Any) -> None:
        built.append(1)
        make(self, *given, **named)

    monkeypatch.setattr(Lexicon, "__init__", counted)
    (row,) = ctc("tune", "dev.jsonl", "--lm", "lm.arpa", "--decodings", 4)
    assert row["decodings"] >= 4
    assert len(built) == 1


def test_words_of_a_neural_model_are_scored_once_for_all_weights() -> None:
    class Counted:
        n_pairs = n_ends = 0

        def score_words(self, pairs: Any) -> dict[Any, float]:
            self.n_pairs += len(pairs)
            return dict.fromkeys(pairs, -1.0)

        def score_ends(self, histories: Any) -> dict[Any, float]:
            self.n_ends += len(histories)
            return dict.fromkeys(histories, -2.0)

    model = Counted()
    kept = RememberedWords(model)
    for _ in range(2):
        assert kept.score_words([((), "a"), (("a",), "b")]) == {((), "a"): -1.0, (("a",), "b"): -1.0}
        assert kept.score_ends([("a",)]) == {("a",): -2.0}
    assert (model.n_pairs, model.n_ends) == (2, 1)


def test_a_tuned_beam_is_a_whole_number(ctc: Rows) -> None:
    shared = ["tune", "dev.jsonl", "--lm", "lm.arpa", "--decodings", 12, "--tune", "beam_size=2..16"]
    (row,) = ctc(*shared, "-o", "decoder.toml")
    assert row["beam_size"] < 16  # narrower ones read it as well
    assert read_config("decoder.toml").options.beam_size == row["beam_size"]
    ctc(*shared, "--decodings", 2, "--beam-size", 2, "-o", "decoder.toml")
    assert read_config("decoder.toml").options.beam_size == 2


ERRORS = """
one.npy --config empty.toml | --labels: expected a file of labels
none.npy | none.npy: expected emissions as .npy, .npz or .csv, got No such file
labels.txt | .npy, .npz or .csv
logits.npy | logits.npy: emissions: expected log-probabilities (at most 0), got 4: these look like logits
logits.npy | apply log_softmax over the labels (decode_logits, --logits), or say
text.npy | text.npy: expected emissions as .npy, .npz or .csv, got EOF: reading magic string
padded.npz == padded.npz#lengths: expected emissions (T, V) or (B, T, V), got an array of shape (2,)
one.npy --labels few.txt == one.npy: expected 3 labels, as in few.txt, got 5
one.npy --config few.toml == one.npy: expected 3 labels, as in few.toml, got 5
one.npy --labels unnamed.txt == one.npy: expected 2 labels, as in unnamed.txt, got 5
one.npy --labels none.txt == none.txt: labels: expected a blank and at least one more, got 0
one.npy --labels twice.txt == twice.txt: labels: expected each once, got 'a' 2 times
one.npy --labels blank.json == blank.json: blank: expected an index from 0 to 1, got 9
one.npy --labels deep.json | deep.json: expected labels (text, JSON
one.npy --labels damaged.json | damaged.json: expected labels (text, JSON
one.npy --blank 9 | blank
one.npy --lm labels.txt | not an ARPA file
one.npy --lexicon wrong.txt | no label 'x'
one.npy --device cuda:99 | CUDA devices are visible
one.npy --hotwords nowhere.txt | nowhere.txt
one.npy --lm none.arpa | none.arpa
tune none.jsonl | none.jsonl: no such file; expected JSON lines
tune two.jsonl --decodings 2 == two.npy: expected one utterance, got several
tune empty.jsonl --decodings 2 == empty.npy: expected one utterance, got none
tune dev.jsonl --tune lm_kept == --tune: expected one of blank_penalty, word_score, beam_size, got 'lm_kept'
tune dev.jsonl --tune word_score=a..b == --tune: expected word_score=LOW..HIGH, got 'word_score=a..b'
tune dev.jsonl --tune word_score=2..1 == --tune: expected word_score=LOW..HIGH, got 'word_score=2..1'
tune dev.jsonl --tune beam_size=0..8 == --tune: expected beam_size=LOW..HIGH, got 'beam_size=0..8'
one.npy --greedy --lm lm.arpa == --greedy: cannot be combined with --lm
one.npy --greedy --nbest 3 == --greedy: cannot be combined with --nbest
one.wav --labels labels.txt --model nano == --model: cannot be combined with --labels
one.wav --labels labels.txt | got a file that ends in '.wav'; a recording needs --model
tune one.wav --labels labels.txt --model nano == --model: cannot be combined with --labels
"""
"""Calls, and what the only line that they write says (==), or has in it (|)."""


@pytest.mark.parametrize("call", ERRORS.strip().splitlines())
def test_errors_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str], call: str) -> None:
    (folder / "few.txt").write_text("-\na\nb\n")
    (folder / "few.toml").write_text('labels = ["-", "a", "b"]')
    (folder / "unnamed.txt").write_text("a\nb\n")
    (folder / "none.txt").touch()
    (folder / "twice.txt").write_text("-\na\na\nb\nc\n")
    (folder / "blank.json").write_text('{"vocab": ["a", "b"], "blank": 9}')
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "damaged.json").write_text("{a")
    (folder / "wrong.txt").write_text("ax a x\n")
    (folder / "empty.toml").touch()
    (folder / "text.npy").write_text("ab")
    np.savez(folder / "padded.npz", lengths=np.array([3, 2]))
    for n, name in ((0, "empty"), (2, "two")):
        np.save(folder / f"{name}.npy", np.log(np.full((n, 3, 5), 0.2)))
        (folder / f"{name}.jsonl").write_text(json.dumps({"emissions": f"{name}.npy", "text": "a"}) + "\n")
    words, sign, message = re.split(r" (\||==) ", call)
    assert run(["ctc", *with_labels(*words.split())]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error == f"error: {message}" if sign == "==" else message in error


def test_idle_options_change_nothing(ctc: Rows) -> None:
    more = "--lm-weight 0.9 --token-offset 100 --case upper --unknown-score -3 --no-look-ahead"
    assert ctc("one.npy") == ctc("one.npy", *more.split())


@pytest.mark.parametrize("way", [[], ["--greedy"]])
def test_batches_of_any_size_say_the_same(ctc: Rows, way: list[str]) -> None:
    shared = ["one.npy", "two.npz", "three.csv", *way]
    result = [ctc(*shared, "--batch-size", size) for size in (1, 3, 8)]
    texts = [[(row["id"], row["text"]) for row in rows] for rows in result]
    assert len(texts[0]) == 4
    assert texts[0] == texts[1] == texts[2]


def test_one_bad_utterance_of_a_batch_does_not_stop_the_others(folder: Path, call: Call) -> None:
    np.save("narrow.npy", np.zeros((3, 1), dtype=np.float32))
    names = ("one.npy", "logits.npy", "narrow.npy", "three.csv")
    output = call("ctc", *names, "--labels", "labels.txt", code=1)
    assert [json.loads(line)["id"] for line in output.out.splitlines()] == ["one.npy", "three.csv"]
    errors = output.err.splitlines()
    assert len(errors) == 2
    assert "logits.npy: emissions" in errors[0]
    assert "narrow.npy" in errors[1]


@pytest.mark.shared
def test_a_recording_through_the_bundled_ctc_head(shared_dir: Path, ctc: Rows) -> None:
    manifest = (shared_dir / "data" / "manifest.jsonl").read_text(encoding="utf-8")
    rows = (json.loads(line) for line in manifest.splitlines())
    clip = next(row for row in rows if row["language"] == "en" and 2 < row["duration"] < 6)
    (row,) = ctc(shared_dir / "data" / clip["file"], "--model", "nano")
    assert row["tokens"]
    assert row["words"][-1]["end"] <= clip["duration"] + 0.1


def test_emissions_of_a_model_are_pytorchs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = []

    def choose(backend: str, *_: object) -> RuntimeChoice:
        backends.append(backend)
        return RuntimeChoice("torch", "")

    monkeypatch.setattr("sottovoce.api.choose_runtime", choose)
    monkeypatch.setattr("sottovoce.api.load_model", load_model)
    run(["ctc", str(CLIP), "--model", "nano"])
    assert backends == ["torch"]


def test_scores_on_purpose_penalty_and_priors(folder: Path, ctc: Rows, call: Call) -> None:
    shared = ["--labels", "labels.txt", "--greedy"]
    np.save("scores.npy", emitted("ab") + 4)
    (row,) = ctc("scores.npy", *shared, "--unnormalised")
    assert row["text"] == "ab"
    np.save("doubt.npy", np.log(np.array([[0.5, 0.3, 0.1, 0.05, 0.05]], dtype=np.float32)))
    priors = folder / "priors.txt"
    priors.write_text("0.6\n0.1\n0.1\n0.1\n0.1\n")
    texts = [
        ctc("doubt.npy", *shared, *more)[0]["text"]
        for more in ([], ["--blank-penalty", 1], ["--label-priors", priors])
    ]
    assert texts == ["", "a", "a"]
    assert ctc("doubt.npy", *shared, "--label-priors", priors, "--prior-scale", 0)[0]["text"] == ""
    priors.write_text("0.6\nmuch\n")
    wrong = call("ctc", "doubt.npy", *shared, "--label-priors", priors, code=2)
    assert "priors.txt: expected one number a label" in wrong.err


def test_unknown_words_and_look_ahead(ctc: Rows) -> None:
    shared = ["one.npy", "--labels", "labels.txt"]
    named = [*shared, "--lexicon", "words.txt", "--lm", "lm.arpa"]
    assert ctc(*named)[0]["text"] != "ab c"
    for more in ([], ["--no-look-ahead"]):
        result = ctc(*named, "--unknown-score", -1, "--unknown-words", *more)
        assert result[0]["text"] == "ab c"


@pytest.mark.parametrize("command", [["one.npy"], ["tune", "dev.jsonl", "--decodings", "2"]])
def test_the_search_has_the_threads_that_are_asked_for(
    command: list[str], ctc: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr("sottovoce.threads.set_threads", threads.append)
    Path("dev.jsonl").write_text(json.dumps({"emissions": "one.npy", "text": "ab c"}) + "\n")
    ctc(*command, "--threads", 3)
    assert threads == [3]


def test_the_file_gives_way_to_what_is_typed(folder: Path) -> None:
    Path("decoder.toml").write_text("labels = 'labels.txt'\nlm_weight = 0.75\nbeam_size = 3\ntimes = false\n")
    typed = {"beam_size": 16, "neural_interval": None}
    config = Utterances.opened(DecoderOptions(config=Path("decoder.toml")), typed).config
    assert (config.fusion.lm_weight, config.options.beam_size) == (0.75, 16)
    assert config.options.adjust_every_frames is None
    assert not config.options.times


@pytest.fixture
def reports(shared_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shared_dir / "fixtures/reports")
    return shared_dir / "fixtures/reports"


def best(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """The first hypothesis."""
    assert run(["ctc", *words]) == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[0])
    return result


@pytest.mark.parametrize(
    ("options", "text", "reported"),
    [
        ("", "the cafe is open", ""),
        ("--hotwords hotwords-nfc.txt", "the café is open", ""),
        ("--hotwords hotwords-nfd.txt", "the café is open", ""),
        ("--lexicon lexicon.txt", "the café is open", ""),
        ("--lexicon lexicon-bom.txt", "the café is open", ""),
        ("--lexicon words.txt", "the café is open", ""),
        ("--lexicon words-strange.txt", "the café is open", "'2nd' (line 4, no label '2'), 'foo-bar'"),
        ("--lm lm-nfd.arpa", "the café is open", ""),
    ],
)
def test_lists_of_the_reports(
    reports: Path,
    options: str,
    text: str,
    reported: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = best(capsys, "cafe.npy", "--labels", "labels.txt", *options.split())
    assert result["text"] == text
    assert reported in caplog.text
    assert bool(caplog.text) == bool(reported)


def test_the_weight_of_a_class_behind_a_byte_order_mark_counts(
    reports: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    words = ["--hotwords", "hotwords-bom-class.txt", "--hotword-weight", "0.001"]
    result = best(capsys, "cafe.npy", "--labels", "labels.txt", *words)
    assert "café" in str(result["text"])
    assert caplog.text == ""


@pytest.mark.parametrize("lm", ["lm-nfc.arpa", "lm-nfd.arpa"])
def test_n_grams_of_either_form_score_the_same(
    reports: Path, lm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = best(capsys, "cafe.npy", "--labels", "labels.txt", "--lexicon", "words.txt", "--lm", lm)
    assert result["text"] == "the café is open"
    assert result["lm_score"] == pytest.approx(-4.49, abs=0.005)


def test_labels_behind_a_byte_order_mark(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = best(capsys, "cat.npy", "--labels", "labels-bom.txt", "--blank", "-1")
    assert result["text"] == "a cat sat"
