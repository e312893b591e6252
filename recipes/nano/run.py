"""A whole training: from the features in a folder to checkpoints beside its log."""

from __future__ import annotations

import logging
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.multiprocessing.spawn import spawn

from recipes.nano.augment import Strengths
from recipes.nano.averaging import Alone, Team
from recipes.nano.batches import Curriculum
from recipes.nano.build import set_up
from recipes.nano.clips import FeatureStore
from recipes.nano.losses import guided_heads
from recipes.nano.model import NANO_DIMS
from recipes.nano.pack import write
from recipes.nano.samples import TaskMix
from recipes.nano.train import Schedule, Trainer, save_settings
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.openai import save_openai

logger = logging.getLogger(__name__)

MEET_EVERY_S = 60.0
"""Seconds between two averages of the weights."""


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """start: begin with these weights and pieces. resume: go on from this `state.pt`.

    min_word_count: rarer words are written by letters. processes: copies that train and are averaged; of
    several on CUDA each has a card of its own.
    """

    schedule: Schedule
    curriculum: Curriculum
    device: torch.device
    min_word_count: int = 60
    seed: int = 5
    start: Checkpoint | None = None
    resume: Path | None = None
    processes: int = 1


def train_model(plan: TrainPlan, folder: Path, output: Path) -> None:
    """Train on the features in `folder`; write `nano.pt`, `nano.safetensors` and the log into `output`."""
    if plan.processes == 1:
        _train(plan, folder, output, plan.device, Alone())
        return
    with tempfile.TemporaryDirectory() as meeting:
        work = (plan, folder, output, Path(meeting) / "team")
        spawn(_train_in_team, work, nprocs=plan.processes)  # type: ignore[no-untyped-call]


def _train_in_team(rank: int, plan: TrainPlan, folder: Path, output: Path, meeting: Path) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(max(1, torch.get_num_threads() // plan.processes))
    device = plan.device if plan.device.type == "cpu" else torch.device(plan.device.type, rank)
    n_meetings = max(1, round(60 * plan.schedule.minutes / MEET_EVERY_S))
    team = Team(rank, plan.processes, meeting, device, n_meetings)
    _train(plan, folder, output, device, team)


def _train(plan: TrainPlan, folder: Path, output: Path, device: torch.device, team: Alone | Team) -> None:
    """Of a team, all begin with the same weights and hear batches of their own, and the first writes."""
    setup = set_up(
        FeatureStore(folder),
        NANO_DIMS,
        curriculum=plan.curriculum,
        mix=TaskMix(),
        strengths=Strengths(),
        min_word_count=plan.min_word_count,
        seed=plan.seed,
        start=plan.start,
    )
    if plan.resume is None and plan.start is None:
        setup.model.fit_convolutions(next(iter(setup.batches)).mel)
    torch.manual_seed(plan.seed + team.rank)
    setup.batches.reseed(plan.seed + team.rank)
    model = setup.model.to(device)
    trainer = Trainer(model, setup.batches, plan.schedule, output, random.Random(plan.seed), team)
    if plan.resume is not None:
        trainer.resume(plan.resume)
    if team.rank == 0:
        save_settings(output, plan.schedule, model)
    trainer.run()
    if team.rank == 0:
        _export(trainer, setup.languages, output)


def _export(trainer: Trainer, languages: tuple[str, ...], output: Path) -> None:
    model = trainer.averaged().cpu()
    heads = guided_heads(model.dims.n_text_layer)[1]
    checkpoint = model.to_checkpoint("nano", languages, heads)
    save_openai(checkpoint, output / "nano.pt")
    write(checkpoint, output / "nano.safetensors")
    logger.info("%.1f h heard, %d updates", trainer.seconds_heard / 3600, trainer.n_updates)
