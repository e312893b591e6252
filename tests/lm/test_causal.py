"""A neural model over words equals the plain network on whole texts, and does no work twice."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.decoder import EmissionDecoder
from sottovoce.ctc.labels import Labels
from sottovoce.ctc.options import CtcOptions
from sottovoce.ctc.search import PrefixScorer
from sottovoce.errors import LanguageModelError, MissingExtraError, OptionError
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.neural import CausalWordModel
from sottovoce.lm.rescoring import History, HistoryWord, NeuralRescorer, WordHistory
from tests.ctc.enumeration import RandomBigram, all_texts, best_of, emissions, readings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

transformers = pytest.importorskip("transformers", reason="the extra neural-lm is not installed")

pytestmark = pytest.mark.usefixtures("kernels")
WORDS = ("ab", "b", "a", "ba", "abba")


class LetterTokenizer:
    """Pieces are " a", " b", "a", "b"; 4 begins and ends a text."""

    bos_token_id = 4
    eos_token_id = 4

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert text[0] == " "
        assert not add_special_tokens
        return [{"a": 0, "b": 1}[text[1]], *({"a": 2, "b": 3}[letter] for letter in text[2:])]


@pytest.fixture
def network() -> PreTrainedModel:
    return random_network()


def random_network() -> PreTrainedModel:
    config = transformers.GPT2Config(
        vocab_size=5, n_positions=512, n_embd=16, n_layer=2, n_head=2, bos_token_id=4, eos_token_id=4
    )
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(8)  # far from uniform
    return model


def plain_score(network: PreTrainedModel, words: tuple[str, ...]) -> float:
    """Log-probability of a whole sentence with its end, without any cache."""
    tokenizer = LetterTokenizer()
    ids = [4] + [piece for word in words for piece in tokenizer.encode(" " + word, False)] + [4]
    with torch.no_grad():
        log_probs = network(torch.tensor([ids])).logits[0].log_softmax(dim=1)
    return sum(float(log_probs[i, token]) for i, token in enumerate(ids[1:]))


def sentence(model: CausalWordModel, words: tuple[str, ...]) -> float:
    pairs = [(words[:i], word) for i, word in enumerate(words)]
    return sum(model.score_words(pairs).values()) + model.score_ends([words])[words]


def test_words_after_histories_equal_the_whole_text(network: PreTrainedModel) -> None:
    texts = [("ab", "b"), ("ab",), (), ("a", "abba", "a", "ba", "ab"), ("ab", "b", "abba"), ("b",) * 9]
    model = CausalWordModel(network, LetterTokenizer())
    pairs = [(text[:i], word) for text in texts for i, word in enumerate(text)]
    scores, ends = model.score_words(pairs), model.score_ends(texts)
    for text in texts:
        ours = sum(scores[text[:i], word] for i, word in enumerate(text)) + ends[text]
        assert ours == pytest.approx(plain_score(network, text), abs=1e-4)


def test_a_gguf_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        LanguageModelError, match=r"model\.gguf: expected a causal language model, got no such file"
    ):
        CausalWordModel.load(str(tmp_path / "model.gguf"))


def test_every_piece_is_run_once(network: PreTrainedModel) -> None:
    """The last piece of a word runs when a word after it is asked for."""
    model = CausalWordModel(network, LetterTokenizer())
    sentence(model, ("ab", "b", "a"))
    assert model._tree.n_run == 1 + 2 + 1 + 1
    sentence(model, ("ab", "b", "a"))
    sentence(model, ("ab", "b"))
    assert model._tree.n_run == 5
    model.score_words([(("ab", "b"), "a"), (("ab", "b"), "b"), (("ab", "b"), "ab")])
    assert model._tree.n_run == 5
    model.score_words([(("ab", "b"), "ba")])
    assert model._tree.n_run == 6


texts_of_words = st.lists(st.lists(st.sampled_from(WORDS), max_size=7).map(tuple), min_size=1, max_size=12)


@given(asked=st.lists(texts_of_words, min_size=1, max_size=4), n_nodes=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_the_bound_of_the_cache_changes_no_score(asked: list[list[tuple[str, ...]]], n_nodes: int) -> None:
    network = random_network()
    small = CausalWordModel(network, LetterTokenizer(), cache_mb=1e-9)
    small._tree._most_nodes = n_nodes
    for texts in asked:
        pairs = [(text[:i], word) for text in texts for i, word in enumerate(text)]
        scores, ends = small.score_words(pairs), small.score_ends(texts)
        for text in texts:
            ours = sum(scores[text[:i], word] for i, word in enumerate(text)) + ends[text]
            assert ours == pytest.approx(plain_score(network, text), abs=1e-3)
    longest = max(1 + sum(map(len, text)) for texts in asked for text in texts)
    assert len(small._tree._children) + len(small._tree._free) <= max(n_nodes, longest)


def test_the_cache_stays_within_its_bytes(network: PreTrainedModel) -> None:
    model = CausalWordModel(network, LetterTokenizer(), cache_mb=0.02)
    for n in range(12):
        model.score_ends([tuple("ab"[(n >> i) % 2] for i in range(k)) for k in range(12)])
        assert 0 < model._tree.n_bytes <= 0.02 * 2**20
    assert model._tree.n_run > 60


def test_a_failure_leaves_no_piece_without_its_values(network: PreTrainedModel) -> None:
    model = CausalWordModel(network, LetterTokenizer())
    body = network.base_model
    original = body.forward
    body.forward = lambda *_, **__: (_ for _ in ()).throw(MemoryError())
    with pytest.raises(MemoryError):
        model.score_ends([("ab", "b")])
    body.forward = original
    assert sentence(model, ("ab", "b")) == pytest.approx(plain_score(network, ("ab", "b")), abs=1e-4)


INT8_NATS = 0.5
"""What int8 may change of a word's log-probability in a small random network; of SmolLM2-135M's see
docs/research/ctc.md.
"""


def test_int8_stays_near_float32(network: PreTrainedModel) -> None:
    pytest.importorskip("sottovoce_kernels", reason="the native kernels are not installed")
    for parameter in network.parameters():
        parameter.data.mul_(0.5)
    texts = [("ab", "b"), ("ab",), ("a", "abba", "a", "ba", "ab"), ("b",) * 9]
    exact = [plain_score(network, text) for text in texts]
    model = CausalWordModel(network, LetterTokenizer(), dtype="int8")
    for text, score in zip(texts, exact, strict=True):
        ours = sentence(model, text)
        assert ours != score
        assert abs(ours - score) < INT8_NATS * (len(text) + 1)


def test_a_head_of_its_own_is_refused() -> None:
    config = transformers.Gemma2Config(
        vocab_size=5, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, final_logit_softcapping=0.01,
    )  # fmt: skip
    with pytest.raises(LanguageModelError, match=r"expected logits that are .* got Gemma2ForCausalLM"):
        CausalWordModel(transformers.Gemma2ForCausalLM(config), LetterTokenizer())


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_lora_adapter_is_merged_into_its_model(
    network: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peft = pytest.importorskip("peft", reason="the extra neural-lm is not installed")
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: LetterTokenizer())
    network.save_pretrained(tmp_path / "base")
    plain = sentence(CausalWordModel.load(str(tmp_path / "base"), dtype="float32"), ("ab", "b"))
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    adapted = peft.get_peft_model(base, config).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    ours = sentence(CausalWordModel.load(str(tmp_path / "adapter"), dtype="float32"), ("ab", "b"))
    assert ours == pytest.approx(plain_score(adapted, ("ab", "b")), abs=1e-3)
    assert abs(ours - plain) > 0.01


def test_an_adapter_without_its_package_names_the_extra(
    network: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    network.save_pretrained(tmp_path / "base")
    adapter = tmp_path / "adapter_config.json"
    adapter.write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "base")}))
    with pytest.raises(MissingExtraError, match=r"the adapter .* needs the package 'peft'"):
        CausalWordModel.load(str(tmp_path), dtype="float32")


@pytest.mark.parametrize(
    ("dtype", "device", "message"),
    [
        ("int8", "cuda", "expected a CPU and the native kernels for int8, got "),
        ("int4", "cpu", "dtype 'int4' given, expected one of auto, float32"),
    ],
)
def test_numbers_that_cannot_be_had_are_named(
    network: PreTrainedModel, dtype: str, device: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        CausalWordModel(network, LetterTokenizer(), dtype=dtype, device=torch.device(device))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_near(network: PreTrainedModel, dtype: str) -> None:
    for parameter in network.parameters():
        parameter.data.mul_(0.5)
    exact = plain_score(network, ("ab", "b", "a"))
    model = CausalWordModel(network, LetterTokenizer(), dtype=dtype)
    assert sentence(model, ("ab", "b", "a")) == pytest.approx(exact, abs=0.2)


def test_long_histories_drop_whole_blocks() -> None:
    words = [f"w{i}" for i in range(300)]
    history = WordHistory()
    for n, word in enumerate(words):
        assert history.context() == tuple(words[max(n // 64 - 1, 0) * 64 : n])
        history = history.after([HistoryWord(word)])


def decoder(network: PreTrainedModel, every: int, ngram: RandomBigram, **width: int) -> EmissionDecoder:
    """Words over letters without a separator, an n-gram of weight 0.7 and the network of weight 0.4."""
    lexicon = Lexicon([(word, ["-ab".index(letter) for letter in word]) for word in WORDS], 3)
    fusion = PrefixScorer(3, lexicon=lexicon, words=[(ngram.automaton(), 0.7)], word_score=0.2)
    named = NamedBigram(ngram)
    rescorer = NeuralRescorer(CausalWordModel(network, LetterTokenizer()), 0.4, replaces=[(named, 0.7)])
    options = CtcOptions(times=False, adjust_every_frames=every, **width)
    labels = Labels(("-", "a", "b"), 0)
    return EmissionDecoder(labels, options, scorer=fusion, lexicon=lexicon.words, history_scorer=rescorer)


class NamedBigram(RandomBigram):
    def __init__(self, inside: RandomBigram, words: tuple[str, ...] = WORDS) -> None:
        self.table, self.n_tokens, self.words = inside.table, inside.n_tokens, words

    def ids(self, words: Sequence[str]) -> list[int]:
        return [self.words.index(word) for word in words]


class NoWords:
    """A `WordLanguageModel` that says nothing."""

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> dict[tuple[History, str], float]:
        return dict.fromkeys(pairs, 0.0)

    def score_ends(self, histories: Sequence[History]) -> dict[History, float]:
        return dict.fromkeys(histories, 0.0)


@pytest.mark.parametrize("every", [1, 2, 100])
def test_an_unknown_word_of_a_known_ones_text_gives_back_what_it_was_given(every: int) -> None:
    """The search scored it as <unk>: as that it is replaced, whatever word is written alike."""
    log_probs, ngram = emissions(5, 3, seed=6), RandomBigram(2, 3)
    lexicon = Lexicon([("ab", (1, 2))], 3, allow_unknown=True)
    fusion = PrefixScorer(
        3, lexicon=lexicon, words=[(ngram.automaton(), 0.7)], word_score=0.2, unknown_score=-0.4
    )
    inside = NamedBigram(ngram, ("ab", "<unk>"))
    rescorer = NeuralRescorer(NoWords(), 1.0, replaces=[(inside, 0.7)])
    truth = best_of(
        all_texts(log_probs, 0),
        lambda tokens: readings(tokens, [(0, (1, 2))], unknown=True),
        lambda _, words: 0.2 * len(words) - 0.4 * words.count(-1),
    )[:12]
    options = CtcOptions(times=False, adjust_every_frames=every, beam_size=900, n_best=12)
    searcher = EmissionDecoder(
        Labels(("-", "a", "b"), 0), options, scorer=fusion, lexicon=lexicon.words, history_scorer=rescorer
    )
    result = searcher.decode(log_probs)[0]
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-4)


@pytest.mark.parametrize("every", [1, 2, 100])
def test_delayed_fusion_replaces_and_never_compounds(network: PreTrainedModel, every: int) -> None:
    """However often the words are scored again, a full-width search equals enumeration."""
    log_probs = emissions(5, 3, seed=4)
    spellings = [(i, tuple("-ab".index(c) for c in word)) for i, word in enumerate(WORDS)]
    truth = best_of(
        all_texts(log_probs, 0),
        lambda tokens: readings(tokens, spellings),
        lambda _, words: 0.4 * plain_score(network, tuple(WORDS[w] for w in words)) + 0.2 * len(words),
    )[:10]
    searcher = decoder(network, every, RandomBigram(5, 2), beam_size=300, n_best=10)
    result = searcher.decode(log_probs)[0]
    assert [h.score for h in result] == pytest.approx([score for score, _, _ in truth], abs=1e-4)
    assert [h.text for h in result] == [" ".join(WORDS[w] for w in words) for _, _, words in truth]


def test_batches_and_chunks_with_a_neural_model(network: PreTrainedModel) -> None:
    rows, lengths = np.stack([emissions(24, 3, seed) for seed in range(3)]), np.array([24, 10, 17])
    together = decoder(network, 4, RandomBigram(5, 2), beam_size=6).decode(rows, lengths)
    searcher = decoder(network, 4, RandomBigram(5, 2), beam_size=6)
    for row, length, (best,) in zip(rows, lengths, together, strict=True):
        state = searcher.start()
        for begin in range(0, int(length), 5):
            searcher.decode_chunk(state, row[begin : min(begin + 5, int(length))])
        alone = searcher.finish(state)[0][0]
        assert (alone.text, alone.score) == (best.text, pytest.approx(best.score, abs=1e-3))


def test_a_share_of_the_ngram_stays_beside_the_neural_model(network: PreTrainedModel, tmp_path: Path) -> None:
    arpa = tmp_path / "words.arpa"
    arpa.write_text("\\data\\\nngram 1=4\n\n\\1-grams:\n-2 <unk>\n-99 <s>\n-0.7 </s>\n-0.4 ab\n\n\\end\\\n")
    log_probs = torch.full((3, 4), 0.01).log()
    log_probs[[0, 1, 2], [1, 2, 0]] = 0.0
    scores = []
    for kept in (0.0, 0.25, 1.0):
        decoder = CtcDecoder(
            ["-", "a", "b", " "],
            lm=arpa,
            neural_lm=CausalWordModel(network, LetterTokenizer()),
            fusion=CtcFusionOptions(lm_weight=0.8, neural_weight=0.3, lm_kept=kept),
        )
        (best,) = decoder.decode(log_probs.log_softmax(dim=1))[0]
        assert best.text == "ab"
        scores.append(best.lm_score)
    neural, ngram = 0.3 * plain_score(network, ("ab",)), 0.8 * -1.1 * math.log(10)
    assert scores == pytest.approx([neural + kept * ngram for kept in (0.0, 0.25, 1.0)], abs=1e-3)
