"""Input that cannot be decoded is an error that names what was expected and what came."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from sottovoce.ctc import CtcDecoder, CtcFusionOptions, CtcOptions
from sottovoce.errors import InputError, LanguageModelError, OptionError
from sottovoce.lm.neural import CausalWordModel
from sottovoce.lm.ngram import load_ngram
from tests.lm.test_ngram import BINARIES

LABELS = ["-", "a", "b", " "]
ARPA = (
    "\\data\\\nngram 1=5\nngram 2=2\n\n"
    "\\1-grams:\n-3\t<unk>\n-99\t<s>\t-0.3\n-0.9\t</s>\n-0.6\tab\t-0.2\n-0.8\tb\t0\n\n"
    "\\2-grams:\n-0.4\t<s> ab\n-0.7\tab b\n\n\\end\\\n"
)


def frames(*labels: int) -> torch.Tensor:
    """Log-probabilities (T, V) that are sure of these labels."""
    return torch.full((len(labels), 4), 0.01).scatter(1, torch.tensor(labels)[:, None], 0.97).log()


def one_nan() -> torch.Tensor:
    log_probs = frames(1, 0, 2)
    log_probs[1, 2] = float("nan")
    return log_probs


@pytest.mark.parametrize(
    ("log_probs", "message"),
    [
        (one_nan(), "expected log-probabilities, got NaN"),
        (frames(1, 0, 2) + 6, r"at most 0\), got 5.97: these look like logits, apply log_softmax"),
        (frames(1, 0, 2).exp(), "these look like probabilities, take their logarithm"),
        (frames(1, 0, 2) - 3, "probabilities sum to 1, got sums from 0.0498 to 0.0498: apply log_softmax"),
        (frames(1, 0, 2)[:, :3], "expected 4 labels in the last place, got 3"),
        (frames(1, 0, 2).exp().long(), "expected floats .*, got int64"),
        (frames(1, 0, 2)[0], "expected floats .* of shape"),
        (None, "expected numbers"),
        ([[0.0], [0.0, 1.0]], "expected numbers"),
    ],
    ids=["NaN", "logits", "probabilities", "logits below 0", "labels", "integers", "shape", "None", "ragged"],
)
def test_emissions(log_probs: object, message: str) -> None:
    decoder = CtcDecoder(LABELS)
    with pytest.raises(InputError, match=message):
        decoder.decode(log_probs)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        decoder.decode_chunk(decoder.start(), log_probs)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        decoder.greedy(log_probs)  # type: ignore[arg-type]


def test_states_of_other_streams_and_decoders() -> None:
    """The kernels would read beyond the arrays of such a state."""
    decoder, two = CtcDecoder(LABELS), torch.stack([frames(1, 0, 2)] * 2)
    for n_streams, chunk in ((1, two), (2, two[:1]), (2, two[0]), (0, two[:1])):
        n_given = 1 if chunk.ndim == 2 else len(chunk)
        expected = f"emissions: expected those of {n_streams} streams, as the state, got {n_given}"
        for advance in (decoder.decode_chunk, decoder.look_ahead):
            with pytest.raises(InputError, match=expected):
                advance(decoder.start(n_streams), chunk)
        with pytest.raises(InputError, match=expected):
            decoder.decode(chunk, state=decoder.start(n_streams))
    with pytest.raises(InputError, match="expected those of 1 streams, as the state, got 2"):
        list(decoder.stream([two]))
    others = (
        CtcDecoder(LABELS, beam_size=4),
        CtcDecoder([*LABELS, "c"]),
        CtcDecoder(LABELS, lexicon=["ab", "b"]),
        CtcDecoder(LABELS, hotwords=["ab"]),
    )
    for other in others:
        with pytest.raises(InputError, match="state: expected one that this decoder made"):
            decoder.decode_chunk(other.start(), frames(1, 0, 2))
        with pytest.raises(InputError, match="got that of another decoder"):
            decoder.finish(other.start())
    again = pickle.loads(pickle.dumps(decoder))
    state = copy.deepcopy(decoder.start())
    assert again.decode_chunk(state, frames(1, 0, 2)) == ["ab"]


def test_emissions_of_any_byte_order() -> None:
    log_probs = frames(1, 0, 2).numpy()
    expected = CtcDecoder(LABELS).decode(log_probs)
    assert CtcDecoder(LABELS).decode(log_probs.astype(">f4")) == expected


def test_logits_have_a_door_of_their_own() -> None:
    decoder = CtcDecoder(LABELS)
    assert decoder.decode_logits(frames(1, 0, 2)[None] + 6)[0][0].text == "ab"


@pytest.mark.parametrize(
    ("labels", "blank", "message"),
    [
        (["-", "a", "a"], 0, "expected each once, got 'a' 2 times"),
        (["-"], 0, "a blank and at least one more, got 1"),
        (LABELS, 4, "blank: expected an index from 0 to 3, got 4"),
        ({"-": 0, "a": 1}, None, r"labels: expected a list of their names, got \{'-': 0, 'a': 1\}"),
        (["-", None], None, "labels: expected a list of their names"),
        ([b"-", b"a"], 0, "labels: expected a list of their names"),
        (None, 0, "labels: expected a list of their names, got None"),
        (
            Path("labels.txt"),
            0,
            r"labels: expected a list of their names, got .* \(`labels_of` reads a file\)",
        ),
        ("labels.txt", None, r"got 'labels.txt' \(`labels_of` reads a file\)"),
        ("labels.txt", 0, r"got 'labels.txt' \(`labels_of` reads a file\)"),
        ([], None, "labels: expected a blank and at least one more, got 0"),
        (["a", "b"], None, r"blank: expected its index \(--blank\), or a label named"),
        (LABELS, "-", "blank: expected an index, got '-'"),
        (LABELS, 0.0, "blank: expected an index, got 0.0"),
    ],
)
def test_labels(labels: object, blank: int | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        CtcDecoder(labels, blank)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"beam_size": 4}}, r"options: expected CtcOptions, got \{'beam_size': 4\}"),
        ({"fusion": {"lm_weight": 1}}, r"fusion: expected CtcFusionOptions, got \{'lm_weight': 1\}"),
        ({"neural_lm": 7}, "neural_lm: expected a name, a folder, or a model with start, score .* got 7"),
        ({"lexicon": 7}, "lexicon: expected a file, words, or words with labels, got 7"),
        ({"hotwords": 7}, "hotwords: expected a file or a list of phrases, got 7"),
        ({"unknown_words": False}, "unknown_words: expected a lexicon or an lm over words, got neither"),
        ({"lm": 7}, "lm: expected models with their weights, got 7"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: dict[str, object], message: str) -> None:
    with pytest.raises((OptionError, LanguageModelError), match=message):
        CtcDecoder(LABELS, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "arguments", "message"),
    [
        (
            "AB BA",
            {"lexicon": ["ab"]},
            r"words of the lexicon, such as 'ab', got one of 'AB', 'BA'; is the case",
        ),
        ("a b |", {"lexicon": ["ab"]}, r"got one of 'a', 'b', '\|'; is it one over labels \(label_lm\)\?"),
        ("AB", {}, "lm: expected words that the labels can spell, got none; is the case of labels and words"),
        (
            "AB",
            {"fusion": CtcFusionOptions(level="token")},
            "labels such as 'a', 'b', ' ', got none",
        ),
    ],
)
def test_language_models_of_another_vocabulary(
    words: str, arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Else all words or labels would be <unk>, and the model no use."""
    listed = ["<unk>", "<s>", "</s>", *words.split()]
    lines = [f"\\data\\\nngram 1={len(listed)}\n\n\\1-grams:", *(f"-1\t{word}" for word in listed)]
    (tmp_path / "words.arpa").write_text("\n".join([*lines, "\n\\end\\\n"]))
    with pytest.raises((LanguageModelError, OptionError), match=message):
        CtcDecoder(LABELS, lm=tmp_path / "words.arpa", **arguments)


def test_a_model_over_labels_may_stand_with_a_lexicon(tmp_path: Path) -> None:
    """Also as `lm`, where its level is given."""
    lines = ["\\data\\\nngram 1=6\n\n\\1-grams:\n-3\t<unk>\n-99\t<s>\n-1\t</s>\n-0.2\ta\n-0.9\tb\n-0.5\t|"]
    (tmp_path / "labels.arpa").write_text("\n".join([*lines, "\n\\end\\\n"]))
    log_probs, lexicon = frames(1, 2, 3, 2), ["ab", "b"]
    fusion = CtcFusionOptions(level="token", lm_weight=0.3)
    as_lm = CtcDecoder(LABELS, lm=tmp_path / "labels.arpa", lexicon=lexicon, fusion=fusion)
    as_label_lm = CtcDecoder(LABELS, label_lm=tmp_path / "labels.arpa", lexicon=lexicon)
    assert as_lm.decode(log_probs) == as_label_lm.decode(log_probs)


@pytest.mark.parametrize("given", ["x", 3, [None]])
def test_priors_are_numbers(given: object) -> None:
    with pytest.raises(OptionError, match="label_priors: expected numbers, got "):
        CtcOptions(label_priors=given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", [ARPA.replace("\n", "\r\n"), ARPA.replace("-0.8\tb\t0", "-0.8\tb")], ids=["CRLF", "no back-off"]
)
def test_arpa_files_that_differ_in_form_alone(tmp_path: Path, text: str) -> None:
    """Windows line ends; a back-off that is left out is 0."""
    path, other = tmp_path / "words.arpa", tmp_path / "other.arpa"
    path.write_text(ARPA)
    other.write_bytes(text.encode())
    log_probs = frames(1, 2, 3, 2, 0, 3, 1, 2)
    result, again = (CtcDecoder(LABELS, lm=file, n_best=5).decode(log_probs)[0] for file in (path, other))
    assert result[0].text == "ab b ab"
    assert [(h.text, h.score) for h in result] == [(h.text, h.score) for h in again]


@pytest.mark.parametrize(
    ("hotwords", "message"),
    [
        ([""], "expected at least one token, got an empty phrase"),
        (["  "], "empty phrase"),
        (["abc"], "expected text that the labels can spell, got 'abc' at 'c'"),
        ([("ab", "many")], r"expected phrases, or phrases with numbers, got \('ab', 'many'\)"),
        ([("ab", 1.0, 2.0)], "expected phrases, or phrases with numbers"),
        ([7], "expected phrases, or phrases with numbers, got 7"),
        ({"ab": float("nan")}, "expected phrases, or phrases with numbers"),
        ({"ab": None}, "expected phrases, or phrases with numbers"),
        ([(1, 2)], r"expected phrases, or phrases with numbers, got \(1, 2\)"),
    ],
)
def test_hotwords(hotwords: object, message: str) -> None:
    with pytest.raises(LanguageModelError, match=message):
        CtcDecoder(LABELS, hotwords=hotwords)  # type: ignore[arg-type]


def test_hotwords_of_every_shape() -> None:
    log_probs = frames(1, 0, 2)
    expected = CtcDecoder(LABELS, hotwords={"ab": 3.0}).decode(log_probs)
    for hotwords in ([("ab", 3)], [["ab", 3.0]], (("ab", 3.0),), iter([("ab", 3.0)]), {"ab": 3}):
        assert CtcDecoder(LABELS, hotwords=hotwords).decode(log_probs) == expected  # type: ignore[arg-type]
    for nothing in ((), [], {}):
        assert CtcDecoder(LABELS, hotwords=nothing).decode(log_probs) == CtcDecoder(LABELS).decode(log_probs)


@pytest.mark.parametrize(
    "lexicon",
    [
        {"ab": [["a", "b"]], "b": [["b"], ["b", "b"]]},  # as torchaudio
        {"ab": [("a", "b", " ")], "b": [[2], [2, 2]]},
        {"ab": ["a", "b"], "b": [["b"], ["b", "b"]]},
        {"ab": torch.tensor([1, 2]), "b": ["b"]},
        [("ab", [1, 2]), ("b", "b"), ("b", ("b", "b"))],
        ["ab", "b"],
        ("ab", ("b", "b")),
        iter(["ab", "b", "abc"]),
    ],
)
def test_lexicons_of_every_shape(lexicon: object) -> None:
    decoder = CtcDecoder(LABELS, lexicon=lexicon)  # type: ignore[arg-type]
    assert decoder.decode(frames(1, 2, 3, 2))[0][0].text == "ab b"
    assert decoder.decode(frames(2, 1, 0, 1))[0][0].text != "baa"


@pytest.mark.parametrize(
    ("lexicon", "message"),
    [
        ({}, "lexicon: expected at least one word, got none"),
        ([], "lexicon: expected at least one word, got none"),
        (
            ["xyz"],
            r"lexicon: expected words that the labels can spell, got none: 'xyz' \(entry 1, no label 'x'\)",
        ),
        ({"ab": [["x"]]}, "no label 'x'"),
        ({"ab": [[1.5]]}, r"expected words, or words with their labels, got \('ab', \[\[1.5\]\]\)"),
        ({"ab": None}, "expected words, or words with their labels"),
        ([("ab", [1], [2])], "expected words, or words with their labels"),
        ([7], "expected words, or words with their labels, got 7"),
        ({"ab": [[9]]}, "expected 'ab' in tokens from 0 to 3"),
        ({"ab": [1, 0, 2]}, r"expected 'ab' in labels without the blank, got \(1, 0, 2\)"),
        ({"ab": ["a", LABELS[0], "b"]}, "expected 'ab' in labels without the blank"),
    ],
)
def test_lexicons(lexicon: object, message: str) -> None:
    with pytest.raises(LanguageModelError, match=message) as caught:
        CtcDecoder(LABELS, lexicon=lexicon)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lm", ["path", "model", "probing", None])
def test_decoders_are_copied_and_pickled(lm: str | None, tmp_path: Path) -> None:
    path = BINARIES / "probing.bin" if lm == "probing" else tmp_path / "words.arpa"
    (tmp_path / "words.arpa").write_text(ARPA)
    model = None if lm is None else path if lm == "path" else load_ngram(path)
    lexicon = iter([("ab", ["a", "b"]), ("b", ["b"])])
    decoder = CtcDecoder(LABELS, lm=model, lexicon=lexicon, hotwords=iter(["b"]), n_best=3)
    expected = decoder.decode(frames(1, 2, 3, 2))
    for again in (copy.copy(decoder), copy.deepcopy(decoder), pickle.loads(pickle.dumps(decoder))):
        assert again.decode(frames(1, 2, 3, 2)) == expected
    neural = object.__new__(CausalWordModel)
    with pytest.raises(TypeError, match="neural_lm: expected a name or folder to be pickled"):
        pickle.dumps(neural)


@pytest.mark.parametrize("fused", [False, True])
def test_nothing_to_decode(fused: bool, tmp_path: Path) -> None:
    """T = 0 is an empty text of probability 1, B = 0 no hypotheses at all; in chunks too."""
    (tmp_path / "words.arpa").write_text(ARPA)
    decoder = CtcDecoder(LABELS, lm=tmp_path / "words.arpa" if fused else None)
    ends = -0.9 - 0.3 if fused else 0.0  # </s> after <s>, half of its log10
    for (best,) in decoder.decode(torch.zeros(2, 0, 4)):
        assert (best.text, best.tokens, best.words) == ("", (), ())
        assert best.score == pytest.approx(0.5 * ends * 2.302585, abs=1e-5)
    assert decoder.decode(torch.zeros(0, 5, 4)) == []
    state = decoder.start(2)
    decoder.decode_chunk(state, torch.zeros(2, 0, 4))
    assert [result[0].text for result in decoder.finish(state)] == ["", ""]
    assert decoder.finish(decoder.start(0)) == []
