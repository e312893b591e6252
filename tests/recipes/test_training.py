"""The recipe at toy scale: letters are tones, and a tiny model learns to write them down."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing
from scipy.io import wavfile
from torch.utils.data import DataLoader

from recipes.nano.augment import Strengths
from recipes.nano.averaging import Team
from recipes.nano.batches import Batch, Curriculum
from recipes.nano.build import Setup, set_up
from recipes.nano.clips import FeatureStore, read_manifest, write_store
from recipes.nano.losses import Weights, decoder_loss, find_places, guided_heads, total_loss
from recipes.nano.pack import average, trained_tokens, unpack, write
from recipes.nano.samples import IGNORED, TaskMix
from recipes.nano.train import Schedule, Trainer
from sottovoce.errors import CheckpointError, OptionError
from sottovoce.models.checkpoint.base import validated
from sottovoce.models.checkpoint.openai import read_openai
from sottovoce.models.dims import ModelDims
from sottovoce.models.nano import ASSET, read_compact

DIMS = ModelDims(
    n_mels=80,
    n_audio_ctx=1500,
    n_audio_state=64,
    n_audio_head=2,
    n_audio_layer=2,
    n_vocab=51865,
    n_text_ctx=448,
    n_text_state=64,
    n_text_head=2,
    n_text_layer=2,
)
ALPHABET = "abde"
STILL = Strengths(tempo=0, vocal_tract=0, colour=0, reverberation=0, noise=0, mask=0)


def tones(text: str) -> np.ndarray:
    """Each letter 120 ms of its own tone, spaces silent."""
    time = np.arange(1920) / 16_000
    parts = []
    for letter in text:
        pitch = 300 * 2 ** (ALPHABET.find(letter) + 1)
        parts.append(0.3 * np.sin(2 * np.pi * pitch * time) * (letter != " "))
    return (np.concatenate(parts) * 32767).astype(np.int16)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    folder = tmp_path_factory.mktemp("tones")
    rng = random.Random(3)
    rows = []
    for index in range(24):
        words = ("".join(rng.choice(ALPHABET) for _ in range(3)) for _ in range(rng.randint(2, 3)))
        text = " ".join(words)
        wavfile.write(folder / f"{index}.wav", 16_000, tones(text))
        split = "test" if index >= 20 else "train"
        language = ("en", "de")[index % 2]
        rows.append({"file": f"{index}.wav", "language": language, "text": text, "split": split})
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return write_store(read_manifest(manifest), folder / "features")


def make(store: FeatureStore, mix: TaskMix) -> Setup:
    curriculum = Curriculum(frames=600, windows_from=2.0)
    return set_up(store, DIMS, curriculum=curriculum, mix=mix, strengths=STILL, min_word_count=4)


PLAIN = TaskMix(
    no_speech=0, language_only=0, two_languages=0, several_clips=0, timestamps=0, prompt=0, replaced_inputs=0
)


def test_a_tiny_model_learns_and_comes_back_from_its_package(store: FeatureStore, tmp_path: Path) -> None:
    setup = make(store, PLAIN)
    schedule = Schedule(minutes=60, max_steps=60, learning_rate=3e-3, warm_up_steps=10, log_every=20)
    setup.model.fit_convolutions(next(iter(setup.batches)).mel)
    trainer = Trainer(setup.model, setup.batches, schedule, tmp_path / "run", random.Random(1))
    trainer.run()
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in log] == [20, 40, 60]
    assert log[-1]["tokens"] < 0.8 * log[0]["tokens"]
    assert log[-1]["ctc"] < 0.8 * log[0]["ctc"]
    assert log[-1]["hours"] > 0

    heads = guided_heads(DIMS.n_text_layer)[1]
    checkpoint = trainer.averaged().to_checkpoint("toy", setup.languages, heads)
    assert write(validated(checkpoint, "toy"), tmp_path / "toy.safetensors") < 3_000_000
    packed = read_compact(tmp_path / "toy.safetensors")
    assert packed.alignment_heads == heads
    assert packed.ctc_head is not None
    assert packed.ctc_head.labels == setup.model.symbols
    unpack(tmp_path / "toy.safetensors", tmp_path / "toy.pt")
    embedding = read_openai(tmp_path / "toy.pt").tensors["decoder.token_embedding.weight"]
    assert trained_tokens(embedding) == packed.trained_tokens


def test_packages_are_averaged(tmp_path: Path) -> None:
    nano = read_compact(ASSET)
    assert nano.ctc_head is not None
    louder = {name: tensor.float() + 0.5 for name, tensor in nano.tensors.items()}
    head = replace(nano.ctc_head, bias=nano.ctc_head.bias.float() - 1)
    write(replace(nano, tensors=louder, ctc_head=head), tmp_path / "louder.safetensors")
    average([ASSET, tmp_path / "louder.safetensors"], tmp_path / "mean.safetensors")
    mean = read_compact(tmp_path / "mean.safetensors")
    assert mean.ctc_head is not None
    assert (mean.trained_tokens, mean.languages) == (nano.trained_tokens, nano.languages)
    name = "encoder.conv1.weight"
    torch.testing.assert_close(
        mean.tensors[name].float(), nano.tensors[name].float() + 0.25, atol=2e-3, rtol=0
    )
    torch.testing.assert_close(
        mean.ctc_head.bias.float(), nano.ctc_head.bias.float() - 0.5, atol=5e-3, rtol=0
    )

    other = replace(nano, ctc_head=replace(nano.ctc_head, labels=nano.ctc_head.labels[::-1]))
    write(other, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="symbols"):
        average([ASSET, tmp_path / "other.safetensors"], tmp_path / "none.safetensors")
    assert not (tmp_path / "none.safetensors").exists()


def test_a_run_goes_on_from_its_state(store: FeatureStore, tmp_path: Path) -> None:
    setup = make(store, PLAIN)
    schedule = Schedule(minutes=60, max_steps=2, log_every=1, replays=0)
    first = Trainer(setup.model, setup.batches, schedule, tmp_path, random.Random(1))
    first.run()
    weights = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    again = make(store, PLAIN)
    second = Trainer(again.model, again.batches, schedule, tmp_path, random.Random(1))
    second.resume(tmp_path / "state.pt")
    assert second.n_updates == first.n_updates
    assert all(torch.equal(weights[name], tensor) for name, tensor in again.model.state_dict().items())


def test_every_task_gives_rows_that_fit_together(store: FeatureStore) -> None:
    mix = TaskMix(no_speech=0.2, language_only=0.2, several_clips=0.5, timestamps=0.5, prompt=0.5)
    setup = make(store, mix)
    table = setup.model.table
    end = table.rows_of([table.tokenizer.eot])[0]
    seen: set[str] = set()
    for batch, _ in zip(batches(setup), range(12), strict=False):
        assert batch.inputs.shape == batch.targets.shape == batch.places.shape
        assert batch.mel.shape[2] % 2 == 0
        for row, symbols in enumerate(batch.symbols):
            targets = batch.targets[row]
            stamps = (targets >= table.timestamp_rows.start) & (targets < table.timestamp_rows.stop)
            placed = batch.places[row] >= 0
            assert placed[stamps].all()
            assert (targets[placed & ~stamps] == end).all()
            seen |= {"end"} if (placed & ~stamps).any() else set()
            assert int(batch.spans[row].max()) < max(1, len(symbols))
            seen |= {"text" if symbols else "no text", "times" if stamps.any() else "no times"}
            seen |= {"prompt"} if (targets[:2] == IGNORED).all() else set()
    assert seen == {"text", "no text", "times", "no times", "prompt", "end"}


def test_the_other_language_of_a_window_is_hidden(store: FeatureStore) -> None:
    """The encoder spells both languages, the decoder writes one and does not see where the other is."""
    setup = make(store, replace(PLAIN, two_languages=1.0))
    languages = {setup.model.table.language_row(code) for code in ("en", "de")}
    by_tokens = {clip.tokens: clip for clip in setup.batches.clips}
    batch = next(iter(setup.batches))
    assert batch.hidden is not None
    assert set(batch.languages.tolist()) <= languages
    for row, symbols in enumerate(batch.symbols):
        hidden = batch.hidden[row] < 0
        assert 0.1 < float(hidden.float().mean()) < 0.9
        text = [t for t in batch.targets[row].tolist() if 0 <= t < len(setup.model.table.ids)]
        written = [setup.model.table.ids[t] for t in text]
        own = [clip for tokens, clip in by_tokens.items() if _holds(written, tokens)]
        assert own
        assert {setup.model.table.language_row(clip.language) for clip in own} == {int(batch.languages[row])}
        assert len(symbols) > sum(len(clip.symbols) for clip in own)
        spoken = batch.spans[row, :, 0] >= 0
        start, end = batch.windows[row].tolist()
        assert spoken.any()
        assert not hidden[(start + end) // 2]
    loss, _, _ = total_loss(setup.model, batch, Weights(oracle=0.5))
    assert torch.isfinite(loss)


def _holds(written: list[int], tokens: tuple[int, ...]) -> bool:
    n = len(tokens)
    return any(tuple(written[i : i + n]) == tokens for i in range(len(written) - n + 1))


def test_a_run_begins_with_the_weights_of_a_checkpoint(store: FeatureStore) -> None:
    nano = read_compact(ASSET)
    assert nano.trained_tokens is not None
    setup = set_up(
        store,
        nano.dims,
        curriculum=Curriculum(frames=600, windows_from=2.0),
        mix=PLAIN,
        strengths=STILL,
        start=nano,
    )
    again = setup.model.to_checkpoint("again", setup.languages, ())
    assert set(again.trained_tokens or ()) >= set(nano.trained_tokens)
    for name, tensor in nano.tensors.items():
        rows = list(nano.trained_tokens) if name == "decoder.token_embedding.weight" else slice(None)
        torch.testing.assert_close(again.tensors[name][rows], tensor[rows].float(), atol=0.01, rtol=0)
    loss, _, _ = total_loss(setup.model, next(iter(setup.batches)), Weights())
    assert torch.isfinite(loss)


def test_products_in_bfloat16_teach_the_same(store: FeatureStore, tmp_path: Path) -> None:
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        setup = make(store, PLAIN)
        schedule = Schedule(minutes=60, max_steps=2, log_every=1, replays=1, dtype=dtype)
        Trainer(setup.model, setup.batches, schedule, tmp_path / str(dtype), random.Random(1)).run()
        log = (tmp_path / str(dtype) / "log.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["ctc"] for line in log])
        assert all(p.dtype == torch.float32 for p in setup.model.parameters())
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0] != losses[1]


def test_test_clips_are_never_in_a_batch(store: FeatureStore) -> None:
    held = {index for index, clip in enumerate(store.clips) if clip.split == "test"}
    setup = make(store, PLAIN)
    assert held
    assert not held & {clip.index for clip in setup.batches.clips}
    assert not held & set(setup.batches.language_clips)


def test_every_part_of_the_loss_reaches_the_encoder(store: FeatureStore) -> None:
    setup = make(store, PLAIN)
    batch = next(iter(setup.batches))
    for weights in (Weights(ctc=1, guidance=0, language=0), Weights(ctc=0, guidance=0, language=0)):
        setup.model.zero_grad()
        loss, _, _ = total_loss(setup.model, batch, weights)
        loss.backward()
        gradient = setup.model.whisper.encoder.conv1.weight.grad
        assert gradient is not None
        assert float(gradient.abs().sum()) > 0


def test_padding_is_silence_or_zero_in_equal_parts(store: FeatureStore) -> None:
    setup = make(store, PLAIN)
    last: list[float] = []
    for _ in range(20):
        batch = setup.batches.full_windows()
        last += batch.mel[:, 0, -1].tolist()
    zeros = sum(value == 0.0 for value in last)
    assert 0.25 * len(last) < zeros < 0.75 * len(last)
    assert min(last) < 0


def test_the_losses_make_nothing_on_another_device(store: FeatureStore) -> None:
    """What they make without naming a device would be on this one, and could not meet the model's tensors."""
    setup = make(store, replace(PLAIN, two_languages=0.5, timestamps=0.5, language_only=0.2))
    batch = next(iter(setup.batches))
    with torch.device("meta"):
        loss, _, heard = total_loss(setup.model, batch.to(torch.device("cpu")), Weights(oracle=0.5))
        replayed, _ = decoder_loss(setup.model, heard.detached(), Weights(oracle=0.5))
    assert torch.isfinite(loss)
    assert torch.isfinite(replayed)


def test_a_batch_moves_with_all_its_tensors(store: FeatureStore) -> None:
    setup = make(store, replace(PLAIN, two_languages=1.0))
    moved = next(iter(setup.batches)).to(torch.device("meta"))
    tensors = [getattr(moved, part.name) for part in fields(moved)]
    assert {part.device.type for part in tensors if isinstance(part, torch.Tensor)} == {"meta"}


def test_processes_make_batches_of_their_own(store: FeatureStore, tmp_path: Path) -> None:
    setup = make(store, PLAIN)
    loader = iter(DataLoader(setup.batches, batch_size=None, num_workers=2))
    one, other = next(loader), next(loader)
    assert one.symbols != other.symbols

    schedule = Schedule(minutes=60, max_steps=4, log_every=1, replays=0, workers=1)
    trainer = Trainer(setup.model, setup.batches, schedule, tmp_path, random.Random(1))
    trainer.run()
    assert trainer.n_updates == 4
    assert setup.batches.progress == pytest.approx(0.75)


def test_an_interrupted_run_keeps_its_state(
    store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make(store, PLAIN)
    trainer = Trainer(setup.model, setup.batches, Schedule(replays=0), tmp_path, random.Random(1))
    meant = Trainer._log

    def interrupted(self: Trainer, step: int, elapsed_s: float, parts: dict[str, float]) -> None:
        meant(self, step, elapsed_s, parts)
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_log", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    again = Trainer(setup.model, setup.batches, Schedule(), tmp_path, random.Random(1))
    again.resume(tmp_path / "state.pt")
    assert again.n_updates == 50


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0, 2.5])
def test_a_language_is_heard_as_often_as_asked(store: FeatureStore, share: float) -> None:
    curriculum = Curriculum(frames=600, windows_from=2.0, shares={"de": share})
    setup = set_up(store, DIMS, curriculum=curriculum, mix=PLAIN, strengths=STILL, min_word_count=4)
    heard = [
        language for batch, _ in zip(batches(setup), range(60), strict=False) for language in batch.languages
    ]
    rows = [setup.model.table.language_row(code) for code in ("de", "en")]
    german, english = (sum(int(language) == row for language in heard) for row in rows)
    assert german / english == pytest.approx(share, rel=0.3)


def test_a_share_of_a_language_without_clips_is_refused(store: FeatureStore) -> None:
    curriculum = Curriculum(shares={"de": 2.0, "fz": 2.0})
    with pytest.raises(OptionError, match="share of fz: expected one of the clips' languages, de, en"):
        set_up(store, DIMS, curriculum=curriculum, mix=PLAIN, strengths=STILL, min_word_count=4)


def _train_in_a_team(rank: int, store: FeatureStore, folder: Path) -> None:
    """One of two processes: updates of its own, four or six, averaged half way and at the end."""
    torch.set_num_threads(1)
    team = Team(rank, 2, folder / "meeting", torch.device("cpu"), n_meetings=2)
    setup = make(store, PLAIN)
    setup.batches.reseed(rank)
    limit = 4 + 2 * rank
    schedule = Schedule(minutes=60, max_steps=limit, warm_up_steps=1, log_every=1, replays=0)
    trainer = Trainer(setup.model, setup.batches, schedule, folder / f"run-{rank}", random.Random(1), team)
    trainer.run()
    torch.save({"weights": setup.model.state_dict(), "updates": trainer.n_updates}, folder / f"{rank}.pt")


def test_a_team_ends_with_the_same_weights(store: FeatureStore, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_train_in_a_team, (store, tmp_path), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert (first["updates"], second["updates"]) == (4, 6)
    assert all(torch.equal(value, second["weights"][name]) for name, value in first["weights"].items())
    assert (tmp_path / "run-0" / "state.pt").exists()
    assert not (tmp_path / "run-1" / "state.pt").exists()


def batches(setup: Setup) -> Iterator[Batch]:
    return iter(setup.batches)


def test_each_head_is_shown_its_own_letter_of_a_word(store: FeatureStore) -> None:
    """Symbols spoken at frames 10, 20, 30, 40: four heads share them out; the end has one place for all."""
    setup = make(store, PLAIN)
    batch = next(iter(setup.batches))
    n_symbols = len(setup.model.symbols)
    log_probs = torch.full((1, 60, n_symbols), -9.0)
    log_probs[..., 0] = -0.1
    for symbol, frame in enumerate((10, 20, 30, 40), start=1):
        log_probs[0, frame] = -9.0
        log_probs[0, frame, symbol] = -0.1
    targets = replace(
        batch,
        places=torch.tensor([[-1.0, -1.0, -1.0, 55.0]]),
        spans=torch.tensor([[[0, 3], [2, 2], [-1, -1], [-1, -1]]]),
        symbols=[[1, 2, 3, 4]],
    )
    places = find_places(log_probs, targets, n_heads=4)
    assert places.centres[0].T.tolist() == [[10, 20, 30, 40], [30] * 4, [-1] * 4, [55] * 4]
    assert places.known.tolist() == [[True, True, False, True]]
    assert places.previous().centres.tolist() == [[[-1, 40, 30, -1]]]
    assert places.heard(60)[0, :, 0].argmax(dim=-1).tolist() == [10, 20, 30, 40]
