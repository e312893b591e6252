"""A small causal transformer over the words of a language, trained on a few thousand sentences in a minute.

What it does not have to learn from them is how frequent words are: that is the bias of its output, from
counts made elsewhere. So it begins as a unigram model of the language and learns what context changes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sottovoce.lm.causal import CausalWordModel

_RATE = 1e-3
_BATCH = 16
_N_POSITIONS = 160


class Words:
    """Words as tokens: 0 begins and ends a text, 1 is every unknown word."""

    bos_token_id = 0
    eos_token_id = 0

    def __init__(self, words: Sequence[str]) -> None:
        self._ids = {word: i + 2 for i, word in enumerate(words)}

    def __len__(self) -> int:
        return len(self._ids) + 2

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [self._ids.get(word, 1) for word in text.split()]


def trained(texts: Sequence[str], frequent: Mapping[str, int], seconds: float) -> CausalWordModel:
    """Train for some seconds of processor time; frequent: counts of words elsewhere."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    here = Counter(word for text in texts for word in text.split())
    words = Words([*(here | Counter(frequent))])
    shape = {"n_positions": _N_POSITIONS, "n_embd": 64, "n_layer": 1, "n_head": 4}
    drops = {"resid_pdrop": 0.4, "embd_pdrop": 0.4, "attn_pdrop": 0.1}
    tokens = {"vocab_size": len(words), "bos_token_id": 0, "eos_token_id": 0, "loss_type": "ForCausalLM"}
    network = GPT2LMHeadModel(GPT2Config(**shape, **drops, **tokens))
    network.lm_head.bias = torch.nn.Parameter(_frequencies(words, texts, here, frequent), requires_grad=False)
    rows = [torch.tensor([0, *words.encode(text, add_special_tokens=False), 0]) for text in texts]
    losses = _train(network, [row[:_N_POSITIONS] for row in rows], seconds)
    last = losses[-50:]
    print(f"neural model: {len(losses)} steps, {sum(last) / len(last):.3f} nats a word", flush=True)
    return CausalWordModel(network.eval(), words)


def _frequencies(
    words: Words, texts: Sequence[str], here: Counter[str], frequent: Mapping[str, int]
) -> Tensor:
    """log-probability (V,) of every word: as often from these texts as from elsewhere."""
    shares = torch.full((len(words),), 1e-7)
    shares[0] = len(texts) / (here.total() + len(texts))
    for counts in (here, frequent):
        total = 2 * sum(counts.values())
        for word, count in counts.items():
            shares[words.encode(word, add_special_tokens=False)] += count / total
    return (shares / shares.sum()).log()


def _train(network: torch.nn.Module, rows: Sequence[Tensor], seconds: float) -> list[float]:
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=0.1)
    begin, losses = time.process_time(), []
    order: list[int] = []
    while (spent := (time.process_time() - begin) / seconds) < 1:
        optimizer.param_groups[0]["lr"] = _RATE * (1 - spent)
        if len(order) < _BATCH:
            order = torch.randperm(len(rows)).tolist()
        losses.append(_step(network, optimizer, [rows[order.pop()] for _ in range(min(_BATCH, len(order)))]))
    return losses


def _step(network: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: list[Tensor]) -> float:
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    loss = network(batch.clamp_min(0), labels=batch).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())
