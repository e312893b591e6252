"""The recipe's parts, each on its own: texts, pieces, alignment, augmentation, samples of speech."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.nano import augment
from recipes.nano.alignment import UNKNOWN, align
from recipes.nano.batches import Curriculum
from recipes.nano.clips import read_manifest, trim_silence
from recipes.nano.pieces import CtcSymbols, Pieces, frequent_words, token_spans
from recipes.nano.plot import plot_curve
from recipes.nano.speech import HELD_OUT_VARIANT, draw_voice, write_corpus
from recipes.nano.texts import BUILT_IN, LANGUAGES, Sentence, corpus, plain, sentences_of, spelled, words_of
from recipes.nano.train import Schedule
from sottovoce.audio.io import load_audio
from sottovoce.errors import InputError, ManifestError, OptionError
from sottovoce.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.for_model(51865)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_corpus_is_the_same_every_time_and_holds_each_text_once(language: str) -> None:
    first = corpus(None, language, 200, random.Random(1))
    assert first == corpus(None, language, 200, random.Random(1))
    texts = [plain(sentence.text) for sentence in first]
    assert len(set(texts)) == len(texts)
    held = sum(sentence.held_out for sentence in corpus(None, language, 3000, random.Random(2)))
    assert 0.01 * 3000 < held < 0.06 * 3000


def test_a_folder_without_the_language_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"es\.txt"):
        corpus(tmp_path, "es", 1, random.Random(1))


@pytest.mark.parametrize("language", LANGUAGES)
def test_few_pieces_still_spell_every_text(tokenizer: Tokenizer, language: str) -> None:
    texts = [(language, text) for text in BUILT_IN[language]]
    few = frequent_words(tokenizer, texts, min_count=3)
    for _, text in texts:
        tokens = few.encode(text, language)
        assert tokenizer.decode(tokens).strip() == text
        assert len(tokens) >= len(tokenizer.encode(text))


def test_known_words_stay_whole_and_others_are_spelled(tokenizer: Tokenizer) -> None:
    single = tokenizer.encoding.encode_single_token
    pieces = Pieces(tokenizer, frozenset([single(b" house")]))
    written = [tokenizer.token_bytes(token) for token in pieces.encode("house mouse", "en")]
    assert written == [b" house", b" m", b"o", b"u", b"s", b"e"]


def test_frequent_words_are_kept_in_their_case(tokenizer: Tokenizer) -> None:
    texts = [("de", "Der Morgen, das Haus."), ("de", "Guten Morgen!"), ("zh", "我们我们")]
    pieces = frequent_words(tokenizer, texts, min_count=2)
    assert {tokenizer.token_bytes(token).decode() for token in pieces.kept} == {" Morgen", "我们"}


def test_words_are_drawn_as_sentences_write_them(tmp_path: Path) -> None:
    (tmp_path / "de.txt").write_text("Das Haus ist alt.\nEin Haus am Meer.\n", encoding="utf-8")
    sentences = sentences_of(tmp_path, "de")
    assert words_of(tmp_path, sentences)[0] == "Haus"
    (tmp_path / "de.words.txt").write_text("das 20\nhaus 9\nneu 3\n", encoding="utf-8")
    assert words_of(tmp_path, sentences) == ["das", "Haus", "neu"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_spans_lead_from_tokens_to_their_sounds(tokenizer: Tokenizer, language: str) -> None:
    if language == "zh":
        pytest.importorskip("pypinyin", reason="Chinese is spelled by the extra 'recipes'")
    text = BUILT_IN[language][0]
    pieces = frequent_words(tokenizer, [(language, text)], min_count=1)
    tokens = pieces.encode(text, language)
    spelling = spelled(language, text)
    spans = token_spans(pieces, tokens, text, language)
    assert len(spans) == len(tokens)
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)
    assert all(0 <= start <= end < len(spelling) for start, end in spans)
    if language != "zh":
        for token, (start, end) in zip(tokens, spans, strict=True):
            sound = plain(tokenizer.decode([token]))
            assert not sound or sound == spelling[start : end + 1]


def test_symbols_are_blank_first_and_skip_what_is_rare() -> None:
    symbols = CtcSymbols.of(["abba", "az"], min_count=2)
    assert symbols.symbols == ("<blank>", "a", "b")
    assert symbols.encode("abz") == [1, 2]


def brute_force(log_probs: np.ndarray, labels: list[int]) -> float:
    """The best score over all paths that collapse to the labels."""
    n_frames, n_labels = log_probs.shape
    best = -np.inf
    for path in itertools.product(range(n_labels), repeat=n_frames):
        collapsed = [k for k, _ in itertools.groupby(path) if k != 0]
        if collapsed == labels:
            best = max(best, sum(log_probs[t, k] for t, k in enumerate(path)))
    return best


@pytest.mark.parametrize("labels", [[1], [1, 2], [1, 1], [2, 1, 2]])
def test_alignment_is_the_best_of_all_paths(labels: list[int]) -> None:
    generator = np.random.default_rng(len(labels))
    log_probs = np.log(generator.dirichlet(np.ones(3), size=6)).astype(np.float32)
    frames = align(torch.from_numpy(log_probs)[None], [labels])[0].numpy()
    assert (np.diff(frames) >= 0).all()
    # The path that the frames imply is as good as the best one: fix it there and search again.
    fixed = log_probs.copy()
    for frame, label in zip(frames, labels, strict=True):
        if frame == int(frame):
            others = [k for k in range(3) if k != label]
            fixed[int(frame), others] = -100.0
    assert brute_force(fixed, labels) == pytest.approx(brute_force(log_probs, labels))


def test_a_text_longer_than_its_emissions_has_no_places() -> None:
    emissions = torch.full((3, 3, 4), -2.0)
    places = align(emissions, [[1, 2, 3], [1, 1, 2], []])
    assert (places[0] >= 0).all()
    assert (places[1:] == UNKNOWN).all()  # two equal symbols need a blank between them


def test_noise_is_as_loud_as_asked() -> None:
    speech = np.full((100, 80), -2.0, dtype=np.float32)
    noise = np.full((100, 80), -5.0, dtype=np.float32)
    mixed = augment.noisy(speech, noise, snr_db=10.0)
    added = 10.0**mixed - 10.0**speech
    assert np.allclose(added, 10.0**speech / 10, rtol=1e-3)


def test_normalised_silence_is_the_floor() -> None:
    mel, floor = augment.normalized(np.concatenate([augment.silence(5), np.full((5, 80), 1.0, np.float32)]))
    assert mel[0, 0] == pytest.approx(floor)
    assert mel.max() - mel.min() == pytest.approx(2.0)


def test_stretching_by_one_changes_nothing() -> None:
    mel = np.random.default_rng(0).normal(size=(50, 80)).astype(np.float32)
    assert np.allclose(augment.stretched(mel, 1.0, axis=0), mel)
    assert np.allclose(augment.stretched(mel, 1.0, axis=1), mel)
    assert len(augment.stretched(mel, 1.2, axis=0)) == 60


def test_silence_is_trimmed_and_too_little_speech_is_none() -> None:
    tone = np.sin(np.arange(16_000) * 0.3).astype(np.float32)
    trimmed = trim_silence(np.concatenate([np.zeros(8000, np.float32), tone, np.zeros(8000, np.float32)]))
    assert trimmed is not None
    assert 16_000 <= len(trimmed) < 18_000
    assert trim_silence(tone[:800]) is None


def test_a_manifest_line_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps({"file": "a.wav", "language": "en"}) + "\n{no json\n")
    with pytest.raises(ManifestError, match="line 2"):
        read_manifest(path)


def test_a_clip_is_heard_a_whole_number_of_times(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    line = {"file": "a.wav", "language": "en", "times": 3}
    path.write_text(json.dumps(line) + "\n")
    assert read_manifest(path)[0].times == 3
    for wrong in (0, 1.5, "2", True):
        path.write_text(json.dumps({**line, "times": wrong}) + "\n")
        with pytest.raises(ManifestError, match="times"):
            read_manifest(path)


def test_the_held_out_voice_never_trains() -> None:
    rng = random.Random(7)
    for language in LANGUAGES:
        names = {draw_voice(language, rng).name for _ in range(400)}
        assert not any(name.endswith("+" + HELD_OUT_VARIANT[language]) for name in names)
        assert draw_voice(language, rng, held_out=True).name.endswith("+" + HELD_OUT_VARIANT[language])


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_a_spoken_corpus_marks_what_is_held_out(tmp_path: Path) -> None:
    sentences = [Sentence("de", "guten Tag", "words")]
    while not sentences[-1].held_out:
        sentences.append(Sentence("de", f"guten Tag {len(sentences)}", "words"))
    chosen = [sentences[0], sentences[-1]]
    clips = read_manifest(write_corpus(chosen, tmp_path, random.Random(0)))
    assert [clip.split for clip in clips] == ["train", "test", "test"]
    assert clips[1].speaker.endswith("+f4")
    assert all(len(load_audio(clip.file)) > 4000 for clip in clips)


def test_the_curriculum_ends_with_every_clip_and_the_rate_at_zero() -> None:
    curriculum = Curriculum()
    limits = [curriculum.longest(p / 10) for p in range(11)]
    assert limits == sorted(limits)
    assert limits[-1] == 3000
    schedule = Schedule()
    rates = [schedule.rate(p / 20, 10_000) for p in range(21)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(OptionError, match="minutes"):
        Schedule(minutes=0)


def test_the_curve_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_curve([{"hours": 0.1, "ctc": 3.0}, {"hours": 0.2, "ctc": 2.0}], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="no row"):
        plot_curve([], tmp_path / "none.png")
