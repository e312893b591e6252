"""Fusion over Whisper's tokens: n-gram, hotwords and a neural model, through the beam search's hook."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sottovoce.decoding.search import BeamSearch
from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.fusion import text_fusion, token_text
from sottovoce.text.tokenizer import Tokenizer


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
