"""A small causal transformer over letters, trained on a few thousand sentences in a minute or two."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.lm.causal import CausalWordModel

_RATE = 1.5e-3
_BATCH = 16


class Letters:
    """Letters as tokens: 0 begins and ends a text, 1 is the space."""

    bos_token_id = 0
    eos_token_id = 0

    def __init__(self, letters: str) -> None:
        self._ids = {letter: i + 2 for i, letter in enumerate(letters)} | {" ": 1}

    @property
    def size(self) -> int:
        return len(self._ids) + 1

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [self._ids[letter] for letter in text]


def trained(texts: Sequence[str], letters: Letters, seconds: float) -> CausalWordModel:
    """Train for some seconds of processor time."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = {"n_positions": 512, "n_embd": 128, "n_layer": 3, "n_head": 4, "loss_type": "ForCausalLM"}
    network = GPT2LMHeadModel(GPT2Config(vocab_size=letters.size, bos_token_id=0, eos_token_id=0, **shape))
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=0.05)
    rows = [
        torch.tensor([0, *letters.encode(f" {text}", add_special_tokens=False), 0])[:400] for text in texts
    ]
    begin, losses = time.process_time(), []
    while (spent := (time.process_time() - begin) / seconds) < 1:
        optimizer.param_groups[0]["lr"] = _RATE * (1 - spent)
        chosen = [rows[i] for i in torch.randint(len(rows), (_BATCH,)).tolist()]
        losses.append(_step(network, optimizer, chosen))
    last = losses[-50:]
    print(f"neural model: {len(losses)} steps, {sum(last) / len(last):.3f} nats a letter", flush=True)
    return CausalWordModel(network.eval(), letters)


def _step(network: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: list[Tensor]) -> float:
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    loss = network(batch.clamp_min(0), labels=batch).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())
