"""The recipe of the CTC head at toy scale: letters are states, and a small network learns to read them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from recipes.ctc_head.human import human_clips_of, is_spelt, save_manifest
from recipes.ctc_head.network import HeadNetwork
from recipes.ctc_head.states import Said, StateStore, WindowMaker, encode_all
from recipes.ctc_head.texts import sentences_to_speak
from recipes.ctc_head.train import (
    Batches,
    Schedule,
    StateBatch,
    Trainer,
    collapsed,
    ctc_loss,
    held_out_errors,
)
from recipes.nano.clips import read_manifest, write_store
from sottovoce.errors import OptionError
from sottovoce.models.ctc_head import CtcHead
from sottovoce.types import EncoderOutput
from tests.models import tiny

LABELS = ("<blank>", " ", "a", "b", "c")
D = 16


def states_of(text: str, generator: torch.Generator) -> torch.Tensor:
    """Four frames a letter: its direction and noise, with silence between."""
    directions = torch.eye(D)
    frames = []
    for letter in text:
        frames += [directions[LABELS.index(letter)]] * 3 + [torch.zeros(D)]
    return 3 * torch.stack(frames) + 0.3 * torch.randn(len(frames), D, generator=generator) + 5.0


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """Sixty windows of four to ten letters, a tenth held out."""
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    texts = ["".join(rng.choices("abc ", k=rng.randint(4, 10))).strip() or "a" for _ in range(60)]
    parts = [states_of(text, generator).half().numpy() for text in texts]
    splits = ["dev" if i % 10 == 0 else "train" for i in range(60)]
    said = [
        {"text": text, "language": "en", "group": "toy", "split": split}
        for text, split in zip(texts, splits, strict=True)
    ]
    offsets = [0, *np.cumsum([len(part) for part in parts]).tolist()]
    (tmp_path / "states.f16").write_bytes(np.concatenate(parts).tobytes())
    (tmp_path / "windows.json").write_text(json.dumps({"said": said, "offsets": offsets, "d": D}))
    return StateStore(tmp_path)


def test_a_network_learns_to_read_and_the_library_reads_the_same(store: StateStore) -> None:
    torch.manual_seed(0)
    schedule = Schedule(
        minutes=60, max_steps=400, learning_rate=5e-3, frames=200, average=0.9, warm_up_steps=5
    )
    batches = Batches(store, LABELS, schedule)
    network = HeadNetwork(D, LABELS, layers=((12, 1), (12, 3)), dropout=0.0)
    network.fit(batches.sample())
    before = held_out_errors(network, store, batches)["en toy"]
    Trainer(network, batches, schedule).run()
    after = held_out_errors(network, store, batches)["en toy"]
    assert after.letters == before.letters > 0
    assert after.wrong < 0.2 * before.wrong
    states, lengths = torch.randn(2, 30, D) + 5, torch.tensor([30, 17])
    with torch.no_grad():
        expected = network(states, lengths)
    head = CtcHead(network.weights(), tiny.backend().encode)
    found = head.emissions_of(EncoderOutput(states, (30, 17))).log_probs
    torch.testing.assert_close(found[0], expected[0], atol=1e-3, rtol=0)
    torch.testing.assert_close(found[1, :17], expected[1, :17], atol=1e-3, rtol=0)


def test_a_row_that_cannot_fit_its_letters_teaches_nothing() -> None:
    log_probs = torch.randn(2, 3, 4, requires_grad=True)
    batch = StateBatch(torch.zeros(2, 3, D), torch.tensor([3, 3]), [[1], [1, 2, 3, 1, 2]])
    ctc_loss(log_probs.log_softmax(-1), batch).backward()  # type: ignore[no-untyped-call]
    assert log_probs.grad is not None
    assert log_probs.grad[0].abs().sum() > 0
    assert torch.isfinite(log_probs.grad).all()


def test_a_round_holds_every_window_once_in_batches_that_are_not_too_long(store: StateStore) -> None:
    batches = Batches(store, LABELS, Schedule(frames=150))
    groups = batches._groups()
    train = [i for i, said in enumerate(store.said) if said.split == "train"]
    assert sorted(i for group in groups for i in group) == train
    for group in groups:
        assert len(group) == 1 or len(group) * max(map(store.n_frames, group)) <= 150


def test_a_schedule_says_what_it_expects() -> None:
    with pytest.raises(OptionError, match="above 0"):
        Schedule(minutes=0)
    schedule = Schedule(learning_rate=1.0, warm_up_steps=10)
    assert schedule.rate(0.0, 0) < schedule.rate(0.0, 9) == pytest.approx(1.0)
    assert schedule.rate(1.0, 99) == pytest.approx(0.0)


def test_likeliest_labels_become_text() -> None:
    assert collapsed([0, 2, 2, 0, 2, 1, 3, 0], LABELS) == "aa b"


def test_windows_are_encoded_without_their_padding(tmp_path: Path) -> None:
    rows = []
    for i, split in enumerate(("train", "train", "train", "dev")):
        time = np.arange(6000 + 800 * i) / 16_000
        sound = (0.3 * np.sin(2 * np.pi * 440 * time) * 32767).astype(np.int16)
        wavfile.write(tmp_path / f"{i}.wav", 16_000, sound)
        rows.append({"file": f"{i}.wav", "language": "de", "text": "Ach so", "split": split, "times": 2})
    (tmp_path / "clips.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    features = write_store(read_manifest(tmp_path / "clips.jsonl"), tmp_path)
    backend = tiny.backend(tiny.dims(n_audio_ctx=1500))
    maker = WindowMaker(features, random.Random(0))
    held, changed = list(maker.plain("dev")), list(maker.changed(2))
    assert [window.said for window in held] == [Said("ach so", "de", "de-speech", "dev")]
    assert sum(window.said.text.count("ach so") for window in changed) == 3 * 2 * 2
    store = encode_all(iter([*held, *changed]), backend, tmp_path / "states")
    assert len(store) == len(held) + len(changed)
    for index, window in enumerate([*held, *changed]):
        assert store.states(index).shape == (len(window.mel) // 2, 32)
        assert store.said[index] == window.said


def test_no_reported_clip_and_no_reported_sentence_teaches(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"reader/{i}",
            "file": f"{i}.wav",
            "language": "en",
            "human": True,
            "text": text,
            "split": split,
        }
        for i, (text, split) in enumerate(
            [("One two.", "train"), ("Three", "train"), ("One, two", "test"), ("Four", "test")]
        )
    ]
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = human_clips_of(tmp_path)
    assert [clip.text for clip in found] == ["Three"]
    save_manifest(found, tmp_path / "human.jsonl")
    assert read_manifest(tmp_path / "human.jsonl") == found


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [("en", "Room 12", False), ("en", "It is.", True), ("en", "…", False), ("zh", "你好", True)],
)
def test_only_texts_whose_letters_sound_are_used(language: str, text: str, expected: bool) -> None:
    assert is_spelt(language, text) is expected


def test_sentences_are_spoken_in_the_numbers_asked_for() -> None:
    found = sentences_to_speak(None, {"de": 8, "fr": 4}, random.Random(0))
    assert found == sentences_to_speak(None, {"de": 8, "fr": 4}, random.Random(0))
    assert {one.language for one in found} == {"de", "fr"}
    assert len([one for one in found if one.language == "de"]) <= 8
    assert not any(one.held_out for one in found)
