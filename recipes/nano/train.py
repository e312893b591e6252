"""The training loop: schedule, decoder replays, moving average, checkpoints, log.

Learning rate and curriculum follow the share of the time given that is used up, so a run ends when it
should on any machine. The decoder needs more steps than the encoder and costs a quarter of it: states of
recent batches are kept and decoded again. Batches are made by processes of their own; several copies may
train beside each other (see `averaging`).
"""

from __future__ import annotations

import json
import logging
import math
import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from recipes.nano.averaging import Alone, Team
from recipes.nano.batches import Batch, BatchMaker
from recipes.nano.devices import leave_interrupts_to_the_parent, products_in
from recipes.nano.losses import Heard, Weights, decoder_loss, total_loss
from recipes.nano.model import NanoModel
from sottovoce.errors import OptionError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a run spends its time.

    minutes: wall clock; max_steps ends it earlier. learning_rate: the decoder's highest; the encoder's is
    encoder_share of it. constant_until: progress at which the cosine begins. replays: decoder steps on
    kept states after every step, until progress replays_until. average: decay of the moving average.
    dtype: of the products; weights and losses stay float32. bfloat16 is 2.4 times faster where the
    processor has it, and several times slower where it has not. workers: processes that make batches.
    """

    minutes: float = 80.0
    max_steps: int | None = None
    learning_rate: float = 5e-4
    encoder_share: float = 0.8
    constant_until: float = 0.25
    warm_up_steps: int = 150
    replays: int = 1
    replays_until: float = 0.8
    oracle: float = 0.4
    oracle_until: float = 0.4
    average: float = 0.9985
    dtype: torch.dtype = torch.float32
    workers: int = 0
    log_every: int = 50
    save_every_s: float = 180.0

    def __post_init__(self) -> None:
        if self.minutes <= 0 or self.learning_rate <= 0 or min(self.replays, self.workers) < 0:
            raise OptionError(
                f"schedule: minutes {self.minutes} and learning rate {self.learning_rate} must be positive, "
                f"replays {self.replays} and workers {self.workers} not negative"
            )

    def rate(self, progress: float, step: int) -> float:
        """Learning rate: warm-up by steps, then constant, then a half cosine to 1.5 % and on to 0."""
        warm = min(1.0, (step + 1) / self.warm_up_steps)
        past = min(1.0, max(0.0, (progress - self.constant_until) / (1 - self.constant_until)))
        return self.learning_rate * warm * (0.4925 * (1 + math.cos(math.pi * past)) + 0.015 * (1 - past))

    def weights(self, progress: float) -> Weights:
        """Loss weights: the oracle fades out, guidance loosens towards the end."""
        oracle = max(0.0, self.oracle * (1 - progress / self.oracle_until))
        return Weights(guidance=0.6 if progress < 0.6 else 0.3, oracle=oracle)


class Trainer:
    """A model, its optimiser and its moving average; `run` trains until the schedule ends.

    It trains where the model's weights are. Of a team the first writes the log and the state.
    """

    def __init__(
        self,
        model: NanoModel,
        batches: BatchMaker,
        schedule: Schedule,
        folder: Path,
        rng: random.Random,
        team: Alone | Team | None = None,
    ) -> None:
        self.model, self._batches, self._schedule, self._folder = model, batches, schedule, folder
        self._rng, self._team = rng, team or Alone()
        self._device = model.unused_row.device
        self._optimizer = torch.optim.AdamW(self._groups(), lr=0.0, betas=(0.9, 0.98), eps=1e-8)
        self._halves = [
            [p for name, p in model.named_parameters() if _hears(name) == hears] for hears in (True, False)
        ]
        self._average = [parameter.detach().clone() for parameter in model.parameters()]
        self._kept: deque[Heard] = deque(maxlen=100)
        self.n_updates = 0
        self.seconds_heard = 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """Train; writes `log.jsonl` as it goes and `state.pt` every few minutes and at the end.

        Interrupted, it saves its state first.
        """
        try:
            self._run()
        except KeyboardInterrupt:
            logger.info("stopped; --resume %s goes on", self._folder / "state.pt")
            raise
        finally:
            self.save()

    def _run(self) -> None:
        start = saved = time.monotonic()
        sums: dict[str, float] = {}
        step = n_summed = 0
        for step, (batch, progress) in enumerate(self._until_end(start), 1):
            for name, value in self._step(batch, progress).items():
                sums[name] = sums.get(name, 0.0) + value
            n_summed += 1
            if step % self._schedule.log_every == 0:
                self._log(step, time.monotonic() - start, {k: v / n_summed for k, v in sums.items()})
                sums, n_summed = {}, 0
            if time.monotonic() - saved > self._schedule.save_every_s:
                saved = time.monotonic()
                self.save()
        if n_summed:
            self._log(step, time.monotonic() - start, {k: v / n_summed for k, v in sums.items()})

    def save(self) -> None:
        """Write everything that `resume` needs, whole or not at all."""
        if self._team.rank:
            return
        state = {
            "model": self.model.state_dict(),
            "average": self._average,
            "optimizer": self._optimizer.state_dict(),
            "n_updates": self.n_updates,
            "seconds_heard": self.seconds_heard,
        }
        partial = self._folder / "state.partial"
        torch.save(state, partial)
        partial.replace(self._folder / "state.pt")

    def resume(self, path: Path) -> None:
        """Go on from a `state.pt`; the schedule begins anew."""
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(state["model"])
        self._average = [average.to(self._device) for average in state["average"]]
        self._optimizer.load_state_dict(state["optimizer"])
        self.n_updates, self.seconds_heard = state["n_updates"], state["seconds_heard"]

    def averaged(self) -> NanoModel:
        """The model with its moving average as weights: what is exported. Ends the training."""
        with torch.no_grad():
            for parameter, average in zip(self.model.parameters(), self._average, strict=True):
                parameter.copy_(average)
        return self.model.eval()

    def _until_end(self, start: float) -> Iterator[tuple[Batch, float]]:
        limit = self._schedule.max_steps
        parameters = list(self.model.parameters())
        made = DataLoader(
            self._batches,
            batch_size=None,
            num_workers=self._schedule.workers,
            worker_init_fn=leave_interrupts_to_the_parent,
        )
        for step, batch in enumerate(made):
            progress = (time.monotonic() - start) / (60 * self._schedule.minutes)
            if limit is not None:
                progress = max(progress, step / limit)
            self._team.meet(parameters, progress)
            if progress >= 1:
                return
            self._batches.progress = progress
            yield batch.to(self._device), progress

    def _step(self, batch: Batch, progress: float) -> dict[str, float]:
        weights = self._schedule.weights(progress)
        with products_in(self._schedule.dtype, self._device):
            loss, parts, heard = total_loss(self.model, batch, weights)
        self._update(loss, progress)
        self.seconds_heard += batch.seconds
        self._kept.append(heard.detached())
        if progress < self._schedule.replays_until:
            for _ in range(self._schedule.replays):
                with products_in(self._schedule.dtype, self._device):
                    replayed, _ = decoder_loss(self.model, self._rng.choice(self._kept), weights)
                self._update(replayed, progress)
        return parts

    def _update(self, loss: Tensor, progress: float) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        norms = [torch.nn.utils.clip_grad_norm_(half, 1.0) for half in self._halves]
        if all(torch.isfinite(norm) for norm in norms):
            rate = self._schedule.rate(progress, self.n_updates)
            for group in self._optimizer.param_groups:
                group["lr"] = rate * group["share"]
            self._optimizer.step()
            self._move_average()
        else:
            logger.warning("update %d left out: the gradient is not finite", self.n_updates)
        self._optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _move_average(self) -> None:
        self.n_updates += 1
        decay = min(self._schedule.average, self.n_updates / (self.n_updates + 20))
        current = [parameter.detach() for parameter in self.model.parameters()]
        torch._foreach_lerp_(self._average, current, 1 - decay)

    def _groups(self) -> list[dict[str, object]]:
        """Encoder and decoder with their shares of the rate; only matrices decay."""
        groups: dict[tuple[bool, bool], list[Tensor]] = {}
        for name, parameter in self.model.named_parameters():
            groups.setdefault((_hears(name), parameter.dim() > 1), []).append(parameter)
        return [
            {
                "params": parameters,
                "share": self._schedule.encoder_share if encoder else 1.0,
                "weight_decay": 0.02 if matrix else 0.0,
            }
            for (encoder, matrix), parameters in groups.items()
        ]

    def _log(self, step: int, elapsed_s: float, parts: dict[str, float]) -> None:
        rounded = {name: round(value, 4) for name, value in parts.items()}
        hours = round(self.seconds_heard / 3600, 3)
        row = {"step": step, "updates": self.n_updates, "seconds": round(elapsed_s, 1), "hours": hours}
        if self._team.rank:
            return
        logger.info("step %d, %.1f h heard: %s", step, hours, rounded)
        with (self._folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps({**row, **rounded}) + "\n")


def _hears(name: str) -> bool:
    """Whether a parameter belongs to the encoder's half. The halves are clipped each by itself."""
    return name.startswith(("whisper.encoder", "ctc_head"))


def save_settings(folder: Path, schedule: Schedule, model: NanoModel) -> None:
    """Write what a run was made with beside its checkpoints."""
    content = {
        "schedule": {**asdict(schedule), "dtype": str(schedule.dtype)},
        "dims": asdict(model.dims),
        "token_ids": model.table.ids,
        "symbols": model.symbols,
    }
    (folder / "settings.json").write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
