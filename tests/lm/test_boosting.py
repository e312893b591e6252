"""Phrase boosting and its fusion with text: every occurrence counts once, partial matches cost nothing."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from sottovoce.decoding.search import BeamSearch
from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.boosting import Phrase, PhraseBooster, read_phrases
from sottovoce.lm.fusion import text_fusion, token_text
from sottovoce.text.tokenizer import Tokenizer


def total(booster: PhraseBooster, tokens: list[int]) -> float:
    states, score = booster.start(1), 0.0
    for token in tokens:
        gain, states = booster.score(states, np.array([token]))
        score += float(gain[0])
    return score + float(booster.finish(states)[0])


def occurrences(phrases: list[Phrase], tokens: list[int]) -> float:
    return sum(
        phrase.weight * len(phrase.tokens)
        for phrase in phrases
        for at in range(len(tokens))
        if tuple(tokens[at : at + len(phrase.tokens)]) == phrase.tokens
    )


def random_phrases(n: int, n_tokens: int, seed: int) -> list[Phrase]:
    chooser = random.Random(seed)
    return [
        Phrase(
            tuple(chooser.randrange(n_tokens) for _ in range(chooser.randint(1, 5))), chooser.uniform(-1, 3)
        )
        for _ in range(n)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_equals_counting_occurrences(seed: int) -> None:
    phrases = random_phrases(12, 3, seed)
    chooser = random.Random(seed)
    tokens = [chooser.randrange(3) for _ in range(30)]
    assert total(PhraseBooster(phrases, 3), tokens) == pytest.approx(occurrences(phrases, tokens), abs=1e-3)


def test_a_prefix_is_rewarded_at_once_and_gives_it_back() -> None:
    booster = PhraseBooster([Phrase((1, 2, 3), 2.0)], 5)
    states = booster.start(1)
    gains = []
    for token in (1, 2, 4):
        gain, states = booster.score(states, np.array([token]))
        gains.append(float(gain[0]))
    assert gains == pytest.approx([2.0, 2.0, -4.0])
    assert total(booster, [1, 2]) == pytest.approx(0.0)


def test_short_and_long_phrases_get_the_same_push_at_every_step() -> None:
    booster = PhraseBooster([Phrase((1,), 1.5), Phrase((2, 3, 4, 2, 3), 1.5)], 5)
    states = booster.start(1)
    for token in (1, 2, 3, 4, 2, 3):
        gain, states = booster.score(states, np.array([token]))
        assert float(gain[0]) == pytest.approx(1.5)
    assert float(booster.finish(states)[0]) == pytest.approx(0.0)


def test_whole_words_only_where_there_is_a_boundary() -> None:
    booster = PhraseBooster([Phrase((1, 2), 2.5)], 4, boundary=0)
    assert total(booster, [1, 2]) == pytest.approx(5.0)
    assert total(booster, [3, 0, 1, 2, 0, 1, 2]) == pytest.approx(10.0)
    assert total(booster, [1, 2, 3]) == pytest.approx(0.0)
    assert total(booster, [3, 1, 2]) == pytest.approx(0.0)


@pytest.mark.parametrize("boundary", [None, 0])
def test_phrases_that_repeat_themselves_are_no_long_chains(boundary: int | None) -> None:
    """A search goes from node to node that is backed off to, at every step and for all tokens."""
    word = (1,) if boundary is None else (1, boundary)
    phrases = [Phrase(word * n + (2 - n % 2,), 1.5) for n in range(1, 60)]
    booster = PhraseBooster([*phrases, Phrase((1, 3) * 20, -1.0)], 4, boundary=boundary)
    parent = booster.automaton().parent
    nodes, n_levels = parent, 1
    while nodes.any():
        nodes, n_levels = parent[nodes], n_levels + 1
    assert n_levels <= 4


@pytest.mark.parametrize("seed", range(5))
def test_all_tokens_at_once_score_as_each_alone_wherever_a_phrase_repeats_itself(seed: int) -> None:
    chooser = random.Random(seed)
    texts = [chooser.choices((1, 2), (5, 1), k=chooser.randint(1, 12)) for _ in range(30)]
    booster = PhraseBooster([Phrase(tuple(text), chooser.uniform(-1, 3)) for text in texts], 4, boundary=0)
    states = np.arange(booster.n_nodes)
    rows, _ = booster.score(states)
    for token in range(4):
        alone, _ = booster.score(states, np.full_like(states, token))
        assert np.allclose(rows[:, token], alone)


def test_phrases_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(LanguageModelError, match="empty"):
        Phrase((), 1.0)
    with pytest.raises(LanguageModelError, match="0 to 4"):
        PhraseBooster([Phrase((1, 5), 1.0)], 5)


def test_phrase_lists(tmp_path: Path) -> None:
    path = tmp_path / "hot.txt"
    path.write_text("New  York\t4.5\n\nsottovoce\r\n", encoding="utf-8")
    result = [(text, weight) for text, weight, _ in read_phrases(path, default_weight=2.0)]
    assert result == [("New York", 4.5), ("sottovoce", 2.0)]
    path.write_text("a\tmuch\n")
    with pytest.raises(LanguageModelError, match="line 1"):
        read_phrases(path, default_weight=1.0)
    path.write_text("\n")
    with pytest.raises(LanguageModelError, match="at least one"):
        read_phrases(path, default_weight=1.0)
    with pytest.raises(LanguageModelError, match=r"none\.txt"):
        read_phrases(tmp_path / "none.txt", default_weight=1.0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.for_model(51865)


def sequence_bonus(fusion, tokens: list[int]) -> float:  # type: ignore[no-untyped-def]
    states, total = fusion.start(1), 0.0
    for token in tokens:
        score, states = fusion.score(states, np.array([token]))
        total += float(score[0])
    return total + float(fusion.finish(states)[0])


def test_hotwords_count_once_wherever_they_stand(tokenizer: Tokenizer) -> None:
    fusion = text_fusion(tokenizer, hotwords={"Kubernetes": 4.0, "Saoirse Ronan": 6.0})
    encode = tokenizer.encode
    lengths = {text: len(encode(text)) for text in (" Kubernetes", "Kubernetes", " Saoirse Ronan")}
    assert sequence_bonus(fusion, encode(" We run Kubernetes.")) == pytest.approx(
        4.0 * lengths[" Kubernetes"]
    )
    both = 4.0 * lengths["Kubernetes"] + 6.0 * lengths[" Saoirse Ronan"]
    assert sequence_bonus(fusion, encode("Kubernetes and Saoirse Ronan")) == pytest.approx(both)
    assert sequence_bonus(fusion, encode(" We run Kubota and Saoirse Smith")) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("listed", "said", "is_meant"),
    [
        ("amoxicillin", " Amoxicillin", True),
        ("amoxicillin", "amoxicillin", True),
        ("saoirse ronan", " Saoirse Ronan", True),
        ("saoirse ronan", "Saoirse ronan", True),
        ("iPhone", " IPhone", True),
        ("Vogel", " vogel", False),
        ("NASA", " Nasa", False),
    ],
)
def test_small_letters_mean_capitals_too(
    listed: str, said: str, is_meant: bool, tokenizer: Tokenizer
) -> None:
    """Sentences begin with a capital, and lists of names are often all in small letters."""
    pieces = tokenizer.encode(said)
    bonus = sequence_bonus(
        text_fusion(tokenizer, hotwords={listed: 2.0}), [*pieces, *tokenizer.encode(" helps.")]
    )
    assert bonus == pytest.approx(2.0 * len(pieces) * is_meant, abs=1e-4)


def test_a_weight_of_its_own_wins_over_that_of_the_small_letters(tokenizer: Tokenizer) -> None:
    for listed in ({"vogel": 1.0, "Vogel": 3.0}, {"Vogel": 3.0, "vogel": 1.0}):
        fusion = text_fusion(tokenizer, hotwords=listed)
        for text, weight in ((" vogel", 1.0), (" Vogel", 3.0)):
            pieces = tokenizer.encode(text)
            assert sequence_bonus(fusion, pieces) == pytest.approx(weight * len(pieces), abs=1e-4)


def test_all_tokens_at_once_equal_one_by_one(tokenizer: Tokenizer) -> None:
    fusion = text_fusion(tokenizer, hotwords=["Kubernetes"])
    states = fusion.start(2)
    for token in tokenizer.encode(" Kubernetes"):
        rows, _ = fusion.score(states)
        assert rows.shape == (2, tokenizer.eot)
        scores, states = fusion.score(states, np.array([token, 11]))
        assert np.allclose(rows[np.arange(2), np.array([token, 11])], scores)


def test_token_ngrams(tokenizer: Tokenizer, tmp_path: Path) -> None:
    first, second = token_text(tokenizer, "hello there").split()
    path = tmp_path / "tokens.arpa"
    path.write_text(
        "\\data\\\nngram 1=5\nngram 2=1\n\n\\1-grams:\n-3 <unk>\n-99 <s> 0\n-1 </s>\n"
        f"-2 {first} -0.5\n-2 {second}\n\n\\2-grams:\n-0.25 {first} {second}\n\n\\end\\\n"
    )
    fusion = text_fusion(tokenizer, lm=path, lm_weight=0.5)
    ln10 = 2.302585
    assert sequence_bonus(fusion, [int(first), int(second)]) == pytest.approx(-0.5 * 3.25 * ln10, abs=1e-4)
    assert sequence_bonus(fusion, [int(first), 7]) == pytest.approx(-0.5 * 6.5 * ln10, abs=1e-4)


def test_timestamps_keep_the_state(tokenizer: Tokenizer) -> None:
    fusion = text_fusion(tokenizer, hotwords={"Saoirse Ronan": 4.0})
    pieces = tokenizer.encode(" Saoirse Ronan")
    with_time = [pieces[0], tokenizer.timestamp_begin, *pieces[1:]]
    assert sequence_bonus(fusion, with_time) == pytest.approx(4.0 * len(pieces))


def test_the_beam_search_takes_the_fusion(tokenizer: Tokenizer) -> None:
    fusion = text_fusion(tokenizer, hotwords={"Saoirse Ronan": 30.0})
    pieces = tokenizer.encode(" Saoirse Ronan")
    assert len(pieces) > 2
    search = BeamSearch(tokenizer.eot, 3, fusion=fusion)
    state = search.start(1)
    for _ in pieces:
        search.extend(search.choose(np.zeros((3, 51865), np.float32), state), state)
    best = int(state.scores.argmax())
    assert state.tokens[best].tolist() == pieces


class TokenCosts:
    """A model over the same tokens, of which each costs the number of those before it."""

    def __init__(self, n_tokens: int) -> None:
        self.n_tokens = n_tokens

    def start(self, n: int) -> np.ndarray:
        return np.zeros(n, np.int64)

    def score(self, states: np.ndarray, tokens: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        if tokens is None:
            return np.tile(-states[:, None].astype(np.float32), self.n_tokens), states
        return -states.astype(np.float32), states + 1

    def finish(self, states: np.ndarray) -> np.ndarray:
        return -10.0 * states


def test_models_over_the_same_tokens(tokenizer: Tokenizer) -> None:
    fusion = text_fusion(tokenizer, neural_lm=TokenCosts(tokenizer.eot), neural_weight=0.5)
    tokens = tokenizer.encode(" hello there you")
    n = len(tokens)
    assert n > 2
    assert sequence_bonus(fusion, tokens) == pytest.approx(-0.5 * (n * (n - 1) / 2 + 10 * n))


def test_nothing_to_fuse_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(OptionError, match="got none"):
        text_fusion(tokenizer)
    for empty in ("", "  "):
        with pytest.raises(LanguageModelError, match="empty phrase"):
            text_fusion(tokenizer, hotwords=[empty])


def test_an_empty_phrase_harms_no_other(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    """As clients send them: `hotwords=Vogel,,`."""
    fusion = text_fusion(tokenizer, hotwords=["", "Vogel", " "])
    assert sequence_bonus(fusion, tokenizer.encode(" Vogel")) > 1
    assert len(caplog.records) == 2


def test_classes_of_a_file_have_their_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("[birds] 1.5\nVogel\n[x]\nKubernetes\n")
    fusion = text_fusion(tokenizer, hotwords=path, hotword_weight=2.5)
    for text, weight in ((" Vogel", 1.5), (" Kubernetes", 2.5)):
        tokens = tokenizer.encode(text)
        assert sequence_bonus(fusion, tokens) == pytest.approx(weight * len(tokens), abs=1e-4)


def test_a_model_of_words_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "words.arpa"
    path.write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-1 <unk>\n-1 </s>\n-1 garden\n\n\\end\\\n")
    with pytest.raises(LanguageModelError, match=r"token ids .* got words such as 'garden'"):
        text_fusion(tokenizer, lm=path)


@pytest.mark.parametrize(
    ("text", "n_times"),
    [
        (" Vogel", 1),
        ("Vogel, Vogel. (Vogel)", 3),
        (" Vogels", 0),
        (" Bergvogel Urvogel BergVogel", 0),
        (' the "Vogel"!', 1),
        ("北京Vogel北京", 1),
    ],
)
def test_hotwords_are_whole_words(text: str, n_times: int, tokenizer: Tokenizer) -> None:
    fusion = text_fusion(tokenizer, hotwords={"Vogel": 1.5})
    lengths = {len(tokenizer.encode(written)) for written in ("Vogel", " Vogel")}
    result = sequence_bonus(fusion, tokenizer.encode(text))
    assert n_times * 1.5 * min(lengths) - 1e-4 <= result <= n_times * 1.5 * max(lengths) + 1e-4


def test_phrases_of_several_words_and_signs(tokenizer: Tokenizer) -> None:
    for phrase in ("Wolfram Vogel", "U.S. Army", "Jean-Luc", "C++", "rock 'n' roll"):
        fusion = text_fusion(tokenizer, hotwords={phrase: 1.0})
        tokens = tokenizer.encode(f" We saw {phrase} there")
        inside = len(tokenizer.encode(f" {phrase}"))
        assert sequence_bonus(fusion, tokens) == pytest.approx(inside, abs=1e-4)


def test_scripts_without_spaces_have_no_word_edges(tokenizer: Tokenizer) -> None:
    fusion = text_fusion(tokenizer, hotwords={"东京": 1.5})
    n_tokens = len(tokenizer.encode("东京"))
    assert sequence_bonus(fusion, tokenizer.encode("我去东京了")) == pytest.approx(1.5 * n_tokens, abs=1e-4)
    assert sequence_bonus(fusion, tokenizer.encode("我去东北了")) == pytest.approx(0.0, abs=1e-5)
