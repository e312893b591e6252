"""Labels of other toolkits: one function, and the format recognised by the file."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.emissions import likely_blank
from sottovoce.ctc.labels import LabelList, labels_of
from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.lexicon import read_lexicon
from tests.ctc.enumeration import emissions, likely

CONFIG = """\
target: nemo.collections.asr.models.ctc_bpe_models.EncDecCTCModelBPE
tokenizer: {type: bpe, model_path: "nemo:0a_tokenizer.model"}
decoder:
  num_classes: 3
  vocabulary: ["▁the", a, "no"]
"""


def archive(path: Path, members: Mapping[str, str], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as file:  # type: ignore[call-overload]
        for name, text in members.items():
            data = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return path


def folder(path: Path, **documents: object) -> Path:
    path.mkdir()
    for name, document in documents.items():
        (path / f"{name}.json").write_text(json.dumps(document))
    return path


def text(path: Path, lines: str) -> Path:
    path.write_text(lines)
    return path


TOKENIZER = {
    "added_tokens": [{"id": 2, "content": "<pad>", "special": True}],
    "model": {"type": "BPE", "vocab": {"▁a": 0, "b": 1}},
}
UNIGRAM = {"added_tokens": [], "model": {"type": "Unigram", "vocab": [["<pad>", 0.0], ["▁a", -1.5]]}}
WAV2VEC2 = {"<pad>": 0, "<unk>": 1, "|": 2, "E": 3}

FILES: dict[str, tuple[Callable[[Path], Path], tuple[str, ...], int]] = {
    "text": (lambda p: text(p / "labels.txt", "-\na\n \n"), ("-", "a", " "), 0),
    "flashlight's tokens": (
        lambda p: text(p / "tokens.txt", "|\nE\nT\n<blank>\n"),
        ("|", "E", "T", "<blank>"),
        3,
    ),
    "icefall's tokens": (
        lambda p: text(p / "tokens.txt", "<blk> 0\n<sos/eos> 1\n▁THE 2\n#0 3\n#1 4\n"),
        ("<blk>", "<sos/eos>", "▁THE"),
        0,
    ),
    "Kaldi's table in another order, with tabs": (
        lambda p: text(p / "tokens.txt", "a\t1\n \t2\n<blk>\t0\n"),
        ("<blk>", "a", " "),
        0,
    ),
    "a list": (lambda p: text(p / "labels.json", '["-", "a"]'), ("-", "a"), 0),
    "names and blank": (
        lambda p: text(p / "labels.json", '{"vocab": ["a", "-"], "blank": 1}'),
        ("a", "-"),
        1,
    ),
    "vocab.json": (lambda p: text(p / "vocab.json", json.dumps({"a": 0, "[PAD]": 1})), ("a", "[PAD]"), 1),
    "tokenizer.json": (lambda p: text(p / "tokenizer.json", json.dumps(TOKENIZER)), ("▁a", "b", "<pad>"), 2),
    "a unigram tokenizer": (lambda p: text(p / "tokenizer.json", json.dumps(UNIGRAM)), ("<pad>", "▁a"), 0),
    "a folder with vocab.json": (
        lambda p: folder(
            p / "hf", vocab=WAV2VEC2, added_tokens={"<s>": 4}, tokenizer_config={"pad_token": "|"}
        ),
        ("<pad>", "<unk>", "|", "E", "<s>"),
        2,
    ),
    "a folder with a padding token of many keys": (
        lambda p: folder(
            p / "hf",
            tokenizer=TOKENIZER,
            special_tokens_map={"pad_token": {"content": "<pad>", "lstrip": False}},
        ),
        ("▁a", "b", "<pad>"),
        2,
    ),
    "a folder with a model's configuration": (
        lambda p: folder(p / "hf", vocab={"a": 0, "b": 1}, config={"pad_token_id": 1}, processor_config={}),
        ("a", "b"),
        1,
    ),
    "model_config.yaml": (lambda p: text(p / "model_config.yaml", CONFIG), ("▁the", "a", "no", "<blank>"), 3),
    "a hybrid model's configuration": (
        lambda p: text(
            p / "m.yaml", "decoder: {prednet: {}}\naux_ctc:\n  decoder:\n    vocabulary: [a, b]\n"
        ),
        ("a", "b", "<blank>"),
        2,
    ),
    "a character model's configuration": (
        lambda p: text(p / "m.yaml", "labels: [' ', a, \"'\"]\n"),
        (" ", "a", "'", "<blank>"),
        3,
    ),
    ".nemo": (
        lambda p: archive(p / "m.nemo", {"./model_config.yaml": CONFIG, "./model_weights.ckpt": "x"}),
        ("▁the", "a", "no", "<blank>"),
        3,
    ),
    "a gzipped .nemo": (
        lambda p: archive(p / "m.nemo", {"model_config.yaml": CONFIG}, "w:gz"),
        ("▁the", "a", "no", "<blank>"),
        3,
    ),
    "a .nemo whose tokenizer alone has the pieces": (
        lambda p: archive(
            p / "m.nemo",
            {
                "model_config.yaml": "decoder: {}\n",
                "0a_tokenizer.vocab": "<unk>\t0\n▁a\t-1.5\n",
                "0b_vocab.txt": "x\n",
            },
        ),
        ("<unk>", "▁a", "<blank>"),
        2,
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_labels_of_a_file(kind: str, tmp_path: Path) -> None:
    write, names, blank = FILES[kind]
    assert labels_of(write(tmp_path)) == LabelList(names, blank)


class HubTokenizer:
    pad_token_id: int | None = 1

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "<pad>": 1, "|": 2}


class HubProcessor:
    tokenizer = HubTokenizer()


def test_labels_of_objects() -> None:
    assert labels_of(HubProcessor()) == labels_of(HubTokenizer()) == (("a", "<pad>", "|"), 1)
    assert labels_of(("-", "|", "E", "T")) == (("-", "|", "E", "T"), 0)  # a torchaudio bundle's
    assert labels_of([" ", "a", "<blank>"]).blank == 2
    tokenizer = HubTokenizer()
    tokenizer.pad_token_id = None
    with pytest.raises(OptionError, match="expected a padding token"):
        labels_of(tokenizer)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda p: p / "none.txt", "none.txt: no such file; expected labels"),
        (lambda p: p / "none.nemo", "none.nemo: expected labels .* got No such file"),
        (lambda p: text(p / "m.nemo", "no archive"), "m.nemo: expected labels .* got "),
        (lambda p: archive(p / "m.nemo", {"weights": ""}), "without model_config.yaml"),
        (
            lambda p: archive(p / "m.nemo", {"model_config.yaml": "a: 1"}),
            "m.nemo: model_config.yaml: expected decoder",
        ),
        (lambda p: text(p / "m.yaml", "a: [b"), "m.yaml: expected YAML"),
        (
            lambda p: text(p / "m.yaml", "a: 1"),
            "expected decoder.vocabulary, aux_ctc.decoder.vocabulary or labels",
        ),
        (lambda p: text(p / "t.txt", "a 0\nb 2\n"), "t.txt: expected label ids 0 to 1, each once"),
        (lambda p: text(p / "t.json", "{"), "t.json: expected labels"),
        (lambda p: text(p / "t.json", '{"eng": {"a": 0}}'), "nor a vocabulary of one language"),
        (lambda p: text(p / "t.json", '{"model": {}}'), "t.json: expected labels"),
        (lambda p: folder(p / "hf", config={}), "hf: expected labels .* a folder without vocab.json"),
    ],
)
def test_errors_name_the_file_and_what_was_expected(
    write: Callable[[Path], Path], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        labels_of(write(tmp_path))
    assert "\n" not in str(caught.value)


LEXICONS = {
    "flashlight": ("read\tr eh d |\nred\tr eh d |\n", [("read", "r eh d |"), ("red", "r eh d |")]),
    "Kaldi's lexicon.txt": ("red r eh d\n", [("red", "r eh d")]),
    "Kaldi's lexiconp.txt": (
        "red 1.0 r eh d #1\nread 0.5 r eh d #2\n",
        [("red", "r eh d"), ("read", "r eh d")],
    ),
    "Kaldi's words.txt": ("<eps> 0\nabe 1\n#0 2\n<s> 3\n", [("abe", "a b e")]),
    "CMUdict": (
        ";;; # CMUdict\nread  R EH1 D\nread(2)  R IY0 D # tense\n",
        [("read", "R EH D"), ("read", "R IY D")],
    ),
}


@pytest.mark.parametrize("kind", LEXICONS)
def test_lexicons_of_other_toolkits(kind: str, tmp_path: Path) -> None:
    labels = ["-", "|", "r", "eh", "d", "R", "EH", "D", "IY", "a", "b", "e"]
    lines, expected = LEXICONS[kind]
    result = read_lexicon(text(tmp_path / "lexicon.txt", lines), labels)
    assert result == [
        (word, tuple(labels.index(label) for label in spelt.split())) for word, spelt in expected
    ]


def test_a_label_keeps_its_stress(tmp_path: Path) -> None:
    path = text(tmp_path / "dict", "read R EH1 D\n")
    assert read_lexicon(path, ["-", "R", "EH", "EH1", "D"]) == [("read", (1, 3, 4))]
    assert read_lexicon(path, ["-", "R", "EH", "D"]) == [("read", (1, 2, 3))]


def last_emitted(text: str, names: list[str]) -> np.ndarray:
    """Log-probabilities (T, V) of a text with a frame of the last label after each letter."""
    path = [place for letter in text for place in (names.index(letter), len(names) - 1)]
    return likely(path, len(names), share=0.94)


@pytest.mark.parametrize("name", ["<blank>", "<BLK>", "<pad>", "<eps>", "_", ""])
def test_a_blank_is_known_by_its_name_wherever_it_stands(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["a", "b", " ", name]
    (tmp_path / "labels.json").write_text(json.dumps(names))
    (tmp_path / "vocab.json").write_text(json.dumps({label: i for i, label in enumerate(names)}))
    (tmp_path / "decoder.toml").write_text('labels = "labels.json"')
    decoders = [
        CtcDecoder(names),
        *(CtcDecoder(*labels_of(tmp_path / file)) for file in ("labels.json", "vocab.json")),
        CtcDecoder.from_config(tmp_path / "decoder.toml"),
    ]
    for decoder in decoders:
        assert decoder.labels.blank == 3
        assert decoder.decode(last_emitted("aa b", names))[0][0].text == "aa b"
    assert ("label 3" in caplog.text) == (name in ("<eps>", "_", ""))
    assert CtcDecoder(names, 0).labels.blank == 0


@pytest.mark.parametrize("special", [["<unk>"], ["<s>", "</s>", "<unk>"], ["[UNK]"], []])
def test_special_names_put_no_spaces_between_characters(special: list[str]) -> None:
    """As the vocabularies of transformers have them."""
    names = ["<pad>", *special, "日", "本", "語"]
    first = names.index("日")
    log_probs = likely([first, 0, first + 1, 0, first + 2], len(names), share=0.94)
    assert CtcDecoder(names).decode(log_probs)[0][0].text == "日本語"
    assert CtcDecoder(names).greedy(log_probs)[0].text == "日本語"


def test_a_blank_without_a_name_is_asked_for() -> None:
    with pytest.raises(OptionError, match=r"blank: expected its index \(--blank\)"):
        CtcDecoder(["a", "-", "b", "c"])
    assert CtcDecoder(["-", "a", "b"]).labels.blank == 0
    assert likely_blank(last_emitted("ab", ["a", "b", "c", "d"])) is None  # half of the frames
    assert likely_blank(np.zeros((0, 4), np.float32)) is None


NAMES = [f"▁w{i}" if i % 3 else f"x{i}" for i in range(70)]
LABELS = [*NAMES, "<blank>"]


def bigrams(words: list[str]) -> str:
    """Random scores, the same for every set of 70 words."""
    chooser = random.Random(1)
    lines = ["\\data\\", f"ngram 1={len(words) + 3}", f"ngram 2={len(words)}", "", "\\1-grams:"]
    lines += [f"{chooser.uniform(-3, -1):.4f}\t{word}\t-0.2" for word in ("<unk>", "<s>", "</s>", *words)]
    pairs = zip(words, reversed(words), strict=True)
    lines += ["", "\\2-grams:", *(f"{chooser.uniform(-2, 0):.4f}\t{a} {b}" for a, b in pairs)]
    return "\n".join([*lines, "", "\\end\\", ""])


def test_labels_by_number_score_as_labels_by_name(tmp_path: Path) -> None:
    """Among the 70 characters from 100 on are white space (U+0085, U+00A0) and control characters."""
    named, numbered = tmp_path / "named.arpa", tmp_path / "numbered.arpa"
    named.write_text(bigrams(NAMES), encoding="utf-8")
    numbered.write_text(bigrams([chr(i + 100) for i in range(70)]), encoding="utf-8")
    log_probs = np.stack([emissions(12, 71, seed) for seed in range(3)])
    expected = CtcDecoder(LABELS, -1, lm=named).decode(log_probs)
    fusion = CtcFusionOptions(token_offset=100)
    assert CtcDecoder(LABELS, -1, lm=numbered, fusion=fusion).decode(log_probs) == expected
    with pytest.raises(LanguageModelError, match=r"expected words chr\(label \+ 100\)"):
        CtcDecoder(LABELS, -1, lm=named, fusion=fusion)
    with pytest.raises(OptionError, match="token_offset: expected an n-gram model over labels"):
        CtcFusionOptions(token_offset=100, level="word")
