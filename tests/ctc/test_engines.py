"""The native search finds what the search in tensors finds, whatever the prunings and language models."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sottovoce.ctc import CtcDecoder, CtcFusionOptions, native
from sottovoce.ctc.decoder import EmissionDecoder
from sottovoce.ctc.labels import Labels
from sottovoce.ctc.options import CtcOptions
from sottovoce.ctc.search import PrefixSearch
from sottovoce.errors import OptionError
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.types import Hypothesis
from tests.ctc.enumeration import RandomBigram, emissions

pytest.importorskip("sottovoce_kernels.ctc", reason="sottovoce-kernels is not installed")

LABELS = ["-", *"abcde", "|"]
WORDS = ("ab", "a", "bad", "cab", "dd", "abba", "be", "decade", "ace")


def random_arpa() -> str:
    """A trigram model of random scores, so that no two hypotheses score the same."""
    chooser = random.Random(0)
    known = ["<s>", *WORDS, "see", "bee"]
    pairs = [(a, b) for a in known for b in [*known[1:], "</s>"] if chooser.random() < 0.6]
    triples = [(a, b, c) for a, b in pairs for x, c in pairs if x == b and chooser.random() < 0.3]
    sections = [[(word,) for word in [*known, "<unk>", "</s>"]], pairs, triples]
    lines = ["\\data\\", *(f"ngram {n}={len(rows)}" for n, rows in enumerate(sections, start=1))]
    for n, rows in enumerate(sections, start=1):
        lines += ["", f"\\{n}-grams:"]
        for ngram in rows:
            backoff = f"\t{chooser.uniform(-0.6, 0.2):.4f}" if n < 3 else ""
            lines.append(f"{chooser.uniform(-2.5, -0.2):.4f}\t{' '.join(ngram)}{backoff}")
    return "\n".join([*lines, "", "\\end\\", ""])


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    path = tmp_path / "words.arpa"
    path.write_text(random_arpa())
    return path


def uncertain(n_frames: int, seed: int) -> torch.Tensor:
    """Emissions (T, V) of words and separators, half of the frames blank, with doubt everywhere."""
    chooser = random.Random(seed)
    logits = emissions(n_frames, len(LABELS), seed) * 2
    text = "|".join(chooser.choices(WORDS, k=n_frames))
    for frame in range(n_frames):
        logits[frame, LABELS.index(text[frame // 2]) if frame % 2 else 0] += 4
    return logits.log_softmax(dim=1)


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([uncertain(60, seed) for seed in range(6)]), torch.tensor([60, 41, 0, 60, 13, 59])


def differences(ours: list[list[Hypothesis]], theirs: list[list[Hypothesis]]) -> list[str]:
    """Where n-best lists differ: in what was found exactly, in scores by more than rounding."""
    found = []
    for row, (mine, others) in enumerate(zip(ours, theirs, strict=True)):
        for part in ("text", "tokens", "words"):
            if [getattr(h, part) for h in mine] != [getattr(h, part) for h in others]:
                found.append(f"utterance {row}: {part}")
        for rank, (a, b) in enumerate(zip(mine, others, strict=True)):
            if a.score != pytest.approx(b.score, rel=1e-5):
                found.append(f"utterance {row}, {rank}: score {a.score}, {b.score}")
            if a.lm_score != pytest.approx(b.lm_score, abs=1e-4):
                found.append(f"utterance {row}, {rank}: lm_score {a.lm_score}, {b.lm_score}")
    return found


FUSIONS = {
    "no language model": {},
    "word n-gram": {"lm": True},
    "word n-gram without look-ahead": {"lm": True, "fusion": CtcFusionOptions(look_ahead=False)},
    "hotwords": {"hotwords": {"bad": 3.0, "ab bad": 4.0, "e": -2.0}},
    "word score": {"fusion": CtcFusionOptions(word_score=0.8)},
    "lexicon": {"lexicon": True, "fusion": CtcFusionOptions(word_score=-0.37)},
    "lexicon, n-gram and hotwords": {"lm": True, "lexicon": True, "hotwords": {"cab": 5.0}},
    "lexicon with unknown words": {"lm": True, "lexicon": True, "unknown_words": True},
}


def spellings(*, homophones: bool) -> list[tuple[str, list[int]]]:
    """Words, with two that are spelled as others are where a language model tells them apart: hypotheses of
    equal score come in any order."""
    spelled = [(word, [LABELS.index(letter) for letter in word]) for word in WORDS]
    return [*spelled, ("see", spelled[1][1]), ("bee", spelled[6][1])] if homophones else spelled


@pytest.mark.parametrize(
    ("name", "has_separator"),
    [
        *((name, True) for name in FUSIONS),
        # Without a separator words need a lexicon, and readings of equal score come in any order.
        *((name, False) for name, given in FUSIONS.items() if {"lm", "lexicon"} <= given.keys()),
    ],
)
@pytest.mark.parametrize(
    "options",
    [{}, {"beam_threshold": 6.0}, {"top_tokens": 3, "acoustic_scale": 0.7}],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_same_hypotheses(name: str, options: dict[str, float], has_separator: bool, arpa: Path) -> None:
    given, labels = dict(FUSIONS[name]), LABELS if has_separator else [*LABELS[:-1], "f"]
    given["lm"] = arpa if given.get("lm") else None
    given["lexicon"] = (
        spellings(homophones=has_separator and given["lm"] is not None) if given.get("lexicon") else None
    )
    chosen = CtcOptions(**options)  # type: ignore[arg-type]
    log_probs, lengths = rows()
    found = []
    for engine in ("native", "tensors"):
        decoder = CtcDecoder(
            labels, 0, beam_size=12, n_best=5, options=replace(chosen, engine=engine), **given
        )
        found.append(decoder.decode(log_probs, lengths))
    assert not differences(*found)


def wide_labels(n: int) -> Labels:
    return Labels(("-", *(chr(0x4E00 + i) for i in range(n - 1))), 0)


@pytest.mark.parametrize("n_labels", [300, 5000])
@pytest.mark.parametrize("fused", [False, True])
def test_many_labels(n_labels: int, fused: bool) -> None:
    log_probs = torch.stack([emissions(12, n_labels, seed) * 1.5 for seed in range(2)]).log_softmax(dim=2)
    labels = wide_labels(n_labels)
    found = []
    for engine in ("native", "tensors"):
        options = CtcOptions(beam_size=6, n_best=6, top_tokens=200 if fused else None, engine=engine)
        scorer = ShallowFusion([RandomBigram(n_labels, 1)], [0.4]) if fused else None
        found.append(EmissionDecoder(labels, options, scorer=scorer).decode(log_probs))
    assert not differences(*found)


@pytest.mark.parametrize("begins", ["native", "tensors"])
def test_a_state_can_change_engines(begins: str, arpa: Path) -> None:
    """Both work on the same state, so that each can go on where the other stopped."""
    log_probs, _ = rows()
    decoders = {
        engine: CtcDecoder(LABELS, 0, lm=arpa, n_best=4, options=CtcOptions(engine=engine))
        for engine in ("native", "tensors")
    }
    state = decoders[begins].start(len(log_probs))
    turn = begins
    for part in log_probs.split(11, dim=1):
        decoders[turn].decode_chunk(state, part)
        turn = "tensors" if turn == "native" else "native"
    assert not differences(decoders["tensors"].finish(state), decoders["tensors"].decode(log_probs))


@pytest.mark.parametrize("n_threads", [1, 4])
def test_threads_share_the_batch(n_threads: int, arpa: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs, lengths = rows()
    decoder = CtcDecoder(LABELS, 0, lm=arpa, n_best=4, options=CtcOptions(engine="native"))
    monkeypatch.setattr(native, "_LEAST_FRAMES", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        found = decoder.decode(log_probs, lengths)
    finally:
        torch.set_num_threads(before)
    assert not differences(
        found, [decoder.decode(row[:n])[0] for row, n in zip(log_probs, lengths, strict=True)]
    )


class Opaque(RandomBigram):
    """A model without arrays, as a neural one is."""

    def automaton(self) -> None:
        return None


def test_models_without_arrays_run_in_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    plain = PrefixSearch.run
    monkeypatch.setattr(PrefixSearch, "run", lambda *given: (ran.append(1), plain(*given))[1])
    labels = Labels(("-", "a", "b", "c"), 0)
    log_probs = emissions(9, 4, 3)
    options = CtcOptions(beam_size=6, n_best=6)
    opaque = EmissionDecoder(labels, options, scorer=ShallowFusion([Opaque(4, 1)], [0.5]))
    found = opaque.decode(log_probs)
    assert ran
    ran.clear()
    clear = EmissionDecoder(labels, options, scorer=ShallowFusion([RandomBigram(4, 1)], [0.5]))
    assert not differences(found, clear.decode(log_probs))
    assert not ran


CPU = torch.device("cpu")


def test_without_the_kernels_the_search_runs_in_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sottovoce_kernels", None)
    search = PrefixSearch(4, 0, 6)
    assert native.choose_engine(search, "auto", CPU) is search
    with pytest.raises(OptionError, match=r"engine native: sottovoce-kernels is not installed \(pip install"):
        native.choose_engine(search, "native", CPU)
    with pytest.raises(OptionError, match="engine"):
        CtcOptions(engine="quick")  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["native", "tensors"])
def test_the_lone_mark_of_a_words_beginning_is_a_piece_like_others(engine: str) -> None:
    """SentencePiece vocabularies hold it beside "▁the"; nothing has to be said between words there."""
    names = ["-", "▁", "▁ab", "▁c", "a", "b"]
    log_probs = torch.full((8, 6), -9.0)
    for frame, label in enumerate((2, 0, 3, 0, 1, 4, 0, 5)):
        log_probs[frame, label] = 0.0
    lexicon = [("ab", [2]), ("c", [3]), ("ab", [1, 4, 5])]
    for chosen in (None, lexicon):
        decoder = CtcDecoder(names, 0, lexicon=chosen, options=CtcOptions(engine=engine))  # type: ignore[arg-type]
        best = decoder.decode(log_probs.log_softmax(dim=1))[0][0]
        assert best.text == "ab c ab"
        assert [word.word for word in best.words] == ["ab", "c", "ab"]
