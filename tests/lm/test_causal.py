"""A neural model over words equals the plain network on whole texts, and does no work twice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.decoder import EmissionDecoder
from sottovoce.ctc.labels import Labels
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import LanguageModelError
from sottovoce.lm.causal import CausalWordModel
from sottovoce.lm.fusion import WordFusion, WordModel
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.neural import History, NeuralRescorer, ReplacedModel
from tests.ctc.enumeration import RandomBigram, all_texts, best_of, emissions, readings

transformers = pytest.importorskip("transformers", reason="the extra neural-lm is not installed")

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
def network() -> torch.nn.Module:
    config = transformers.GPT2Config(
        vocab_size=5, n_positions=512, n_embd=16, n_layer=2, n_head=2, bos_token_id=4, eos_token_id=4
    )
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(8)  # far from uniform
    return model


def plain_score(network: torch.nn.Module, words: tuple[str, ...]) -> float:
    """Log-probability of a whole sentence with its end, without any cache."""
    tokenizer = LetterTokenizer()
    ids = [4] + [piece for word in words for piece in tokenizer.encode(" " + word, False)] + [4]
    with torch.no_grad():
        log_probs = network(torch.tensor([ids])).logits[0].log_softmax(dim=1)
    return sum(float(log_probs[i, token]) for i, token in enumerate(ids[1:]))


def sentence(model: CausalWordModel, words: tuple[str, ...]) -> float:
    pairs = [(words[:i], word) for i, word in enumerate(words)]
    return sum(model.score_words(pairs).values()) + model.score_ends([words])[words]


def test_words_after_histories_equal_the_whole_text(network: torch.nn.Module) -> None:
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


def test_every_piece_is_run_once(network: torch.nn.Module) -> None:
    model = CausalWordModel(network, LetterTokenizer())
    sentence(model, ("ab", "b", "a"))
    assert model.n_forward_pieces == 1 + 2 + 1 + 1
    sentence(model, ("ab", "b", "a"))
    sentence(model, ("ab", "b"))
    assert model.n_forward_pieces == 5
    model.score_words([(("ab", "b"), "a"), (("ab", "b"), "b")])  # one piece each: look-ups
    assert model.n_forward_pieces == 5


def test_long_histories_drop_whole_blocks(network: torch.nn.Module) -> None:
    model = CausalWordModel(network, LetterTokenizer())
    history = ("a", "b") * 150
    score = model.score_words([(history, "ab")])[history, "ab"]
    assert score == model.score_words([(history[192:], "ab")])[history[192:], "ab"]


def decoder(network: torch.nn.Module, every: int, ngram: RandomBigram, **width: int) -> EmissionDecoder:
    """Words over letters without a separator, an n-gram of weight 0.7 and the network of weight 0.4."""
    lexicon = Lexicon([(word, ["-ab".index(letter) for letter in word]) for word in WORDS], 3)
    fusion = WordFusion(lexicon, [WordModel(ngram, torch.arange(5), 0.7)], word_score=0.2)
    named = NamedBigram(ngram)
    rescorer = NeuralRescorer(
        CausalWordModel(network, LetterTokenizer()),
        0.4,
        replaces=ReplacedModel(named, 0.7),
    )
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

    def begin(self) -> None: ...

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> dict[tuple[History, str], float]:
        return dict.fromkeys(pairs, 0.0)

    def score_ends(self, histories: Sequence[History]) -> dict[History, float]:
        return dict.fromkeys(histories, 0.0)


@pytest.mark.parametrize("every", [1, 2, 100])
def test_an_unknown_word_of_a_known_ones_text_gives_back_what_it_was_given(every: int) -> None:
    """The search scored it as <unk>: as that it is replaced, whatever word is written alike."""
    log_probs, ngram = emissions(5, 3, seed=6), RandomBigram(2, 3)
    lexicon = Lexicon([("ab", (1, 2))], 3, allow_unknown=True)
    fusion = WordFusion(lexicon, [WordModel(ngram, torch.arange(2), 0.7)], word_score=0.2, unknown_score=-0.4)
    inside = NamedBigram(ngram, ("ab", "<unk>"))
    rescorer = NeuralRescorer(NoWords(), 1.0, replaces=ReplacedModel(inside, 0.7))
    truth = best_of(
        all_texts(log_probs, 0),
        lambda tokens: readings(tokens, [(0, (1, 2))], unknown=True),
        lambda _, words: 0.2 * len(words) - 0.4 * words.count(-1),
    )[:12]
    options = CtcOptions(times=False, adjust_every_frames=every, beam_size=900, n_best=12)
    searcher = EmissionDecoder(
        Labels(("-", "a", "b"), 0), options, scorer=fusion, lexicon=lexicon.words, history_scorer=rescorer
    )
    found = searcher.decode(log_probs)[0]
    assert [h.score for h in found] == pytest.approx([score for score, _, _ in truth], abs=1e-4)


@pytest.mark.parametrize("every", [1, 2, 100])
def test_delayed_fusion_replaces_and_never_compounds(network: torch.nn.Module, every: int) -> None:
    """However often the words are scored again, a full-width search equals enumeration."""
    log_probs = emissions(5, 3, seed=4)
    spellings = [(i, tuple("-ab".index(c) for c in word)) for i, word in enumerate(WORDS)]
    truth = best_of(
        all_texts(log_probs, 0),
        lambda tokens: readings(tokens, spellings),
        lambda _, words: 0.4 * plain_score(network, tuple(WORDS[w] for w in words)) + 0.2 * len(words),
    )[:10]
    searcher = decoder(network, every, RandomBigram(5, 2), beam_size=300, n_best=10)
    found = searcher.decode(log_probs)[0]
    assert [h.score for h in found] == pytest.approx([score for score, _, _ in truth], abs=1e-4)
    assert [h.text for h in found] == [" ".join(WORDS[w] for w in words) for _, _, words in truth]


def test_batches_and_chunks_with_a_neural_model(network: torch.nn.Module) -> None:
    rows = torch.stack([emissions(24, 3, seed) for seed in range(3)])
    lengths = torch.tensor([24, 10, 17])
    together = decoder(network, 4, RandomBigram(5, 2), beam_size=6).decode(rows, lengths)
    searcher = decoder(network, 4, RandomBigram(5, 2), beam_size=6)
    for row, length, (best,) in zip(rows, lengths, together, strict=True):
        state = searcher.start()
        for begin in range(0, int(length), 5):
            searcher.decode_chunk(state, row[begin : min(begin + 5, int(length))])
        alone = searcher.finish(state)[0][0]
        assert (alone.text, alone.score) == (best.text, pytest.approx(best.score, abs=1e-3))


def test_a_share_of_the_ngram_stays_beside_the_neural_model(network: torch.nn.Module, tmp_path: Path) -> None:
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
