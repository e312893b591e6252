"""Damaged binary files of every format are refused with one line, or read as the whole ones are.

The files are read in a child process, so that a crash of the native kernels is a failure of its test.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.cli.ctc import read_emissions
from sottovoce.ctc import CtcDecoder
from sottovoce.errors import SottovoceError
from sottovoce.lm import ngram
from sottovoce.lm.base import WordModel
from sottovoce.models.checkpoint.base import CtcWeights
from sottovoce.models.ctc_head import CtcFile, read_ctc_file, save_ctc_file
from sottovoce.models.load import open_checkpoint
from tests.fresh_process import run_code
from tests.lm.test_ngram import BINARIES
from tests.lm.test_trie import random_table
from tests.models.test_bad_checkpoints import SMALL, opened, save

N_FILES, N_LONG = 25, int(os.environ.get("SOTTOVOCE_DAMAGED_FILES", "10000"))
"""Of each format in every run of the tests, and of all formats in the long one."""


@dataclass(frozen=True)
class Format:
    """make: writes a file into a folder. read: its content, but for numbers that no check can see. n_header:
    bytes at the beginning that checks can see.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    n_header: int


def _trie(folder: Path, bits: int) -> Path:
    path = folder / "small.trie"
    ngram.write_trie(path, *ngram.build_trie(random_table(0, (12, 60, 100, 80)), bits=bits))
    return path


def _kenlm(folder: Path, kind: str) -> Path:
    path = folder / "small.bin"
    path.write_bytes((BINARIES / f"{kind}.bin").read_bytes())
    return path


def _scores(path: Path) -> object:
    """The scores of all words after all contexts of two words, looked up in both ways."""
    model = ngram.load_ngram(path)
    assert isinstance(model, WordModel)
    n = model.n_tokens
    states = model.start(n * n)
    for each in (np.arange(n).repeat(n), np.tile(np.arange(n), n)):
        states = model.score(states, each)[1]
    after = states.repeat(n)
    looked_up = model.score(after, np.tile(np.arange(n), n * n))
    return model.vocabulary, [
        looked_up[0].tolist(),
        model.score(states)[0].tolist(),
        model.finish(states).tolist(),
    ]


def _weights(path: Path) -> object:
    """Tensors; the numbers of heads and the trained tokens stand nowhere else."""
    checkpoint = open_checkpoint(opened(path))
    tensors = {name: tensor.tobytes() for name, tensor in checkpoint.tensors.items()}
    del tensors["decoder.token_embedding.weight"]
    return tensors, dataclasses.replace(checkpoint.dims, n_audio_head=1, n_text_head=1)


def _ctc_head(folder: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((4, SMALL.n_audio_state), generator=generator).numpy()
    head = CtcWeights(weight, np.zeros(4, np.float32), ("<blank>", "a", "b", " "), 0)
    save_ctc_file(CtcFile(head, "0123456789abcdef"), folder / "head.ctc.safetensors")
    return folder / "head.ctc.safetensors"


def _head(path: Path) -> object:
    head = read_ctc_file(path, SMALL).head
    return head.weight.tobytes(), head.bias.tobytes()


def _emissions(folder: Path, name: str) -> Path:
    values = torch.randn((2, 30, 5), generator=torch.Generator().manual_seed(0)).log_softmax(dim=2).numpy()
    (np.save if name.endswith("npy") else np.savez)(folder / name, values)
    return folder / name


def _decoded(path: Path) -> object:
    decoder = CtcDecoder(["<blank>", "a", "b", "c", " "], beam_size=2)
    return [decoder.decode(source.values)[0][0].text for source in read_emissions(path)]


JSON = -1
"""A header of JSON behind its length in 8 bytes."""
FORMATS = {
    "trie-8": Format(lambda folder: _trie(folder, 8), _scores, JSON),
    "trie-32": Format(lambda folder: _trie(folder, 32), _scores, JSON),
    **{
        f"kenlm-{kind}": Format(partial(_kenlm, kind=kind), _scores, 112)
        for kind in ("probing", "trie", "trie-quantized", "trie-array", "trie-both")
    },
    **{
        kind: Format(partial(save, kind), _weights, n_header)
        for kind, n_header in (
            ("openai", 600),
            ("ggml", 48),
            ("compact", JSON),
            ("huggingface", JSON),
            ("ctranslate2", 48),
        )
    },
    "ctc-head": Format(_ctc_head, _head, JSON),
    "npy": Format(partial(_emissions, name="emissions.npy"), _decoded, 128),
    "npz": Format(partial(_emissions, name="emissions.npz"), _decoded, 2**20),
}
NUMBERS = (0, 1, 2, 3, 7, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 10**9, 2**63 - 1, 2**64 - 1)


def damaged(content: bytes, n_header: int, draw: random.Random) -> tuple[bytes, bool]:
    """Damage a file; return also whether all of it that is damaged can be seen."""
    n_header = 8 + int.from_bytes(content[:8], "little") if n_header == JSON else min(n_header, len(content))
    way = draw.choice(("cut", "lie", "lie", "header", "header", "anywhere", "anywhere", "moved"))
    if way == "cut":
        return content[: draw.randrange(len(content))], True
    if way == "lie" and content[8:9] == b"{":
        return _with_number(content, n_header, draw), True
    at = draw.randrange(len(content) if way == "anywhere" else n_header)
    if way == "moved":
        n = draw.choice((1, 3, 4, 8, 64))
        return content[:at] + (content[at + n :] if draw.random() < 0.5 else bytes(n) + content[at:]), False
    size = draw.choice((1, 1, 2, 4, 8))
    if draw.random() < 0.5:
        size, new = 1, bytes([content[at] ^ 1 << draw.randrange(8)])
    else:
        new = (draw.choice(NUMBERS) + draw.choice((0, 0, -1))).to_bytes(9, "little", signed=True)[:size]
    return content[:at] + new + content[at + size :], at + size <= n_header


def _with_number(content: bytes, n_header: int, draw: random.Random) -> bytes:
    """Change one number of a JSON header, whose length stays true."""
    text = content[8:n_header].decode()
    number = draw.choice([*re.finditer(r"\d+", text)])
    value = int(number[0])
    new = draw.choice((*NUMBERS, value - 1, value + 1, 2 * value, -value))
    edited = (text[: number.start()] + str(new) + text[number.end() :]).encode()
    edited += b" " * (-len(edited) % 8)
    return len(edited).to_bytes(8, "little") + edited + content[n_header:]


def read_damaged(name: str, first: int, end: int) -> None:
    """Read damaged files of a format; print the number of each, and a line for each fault."""
    resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))  # lies about sizes ask for memory
    form = FORMATS[name]
    path = form.make(Path.cwd())
    content, whole = path.read_bytes(), form.read(path)
    for number in range(first, end):
        print(name, number, end=" ", flush=True)  # before a crash
        edited, is_seen = damaged(content, form.n_header, random.Random(f"{name} {number}"))
        path.write_bytes(edited)
        try:
            answer = form.read(path)
        except SottovoceError as error:
            if "\n" in str(error) or not str(error).startswith((str(opened(path)), "emissions: ")):
                print(f"\nFAULT {name} {number}: {error}")
        except Exception as error:  # any other is a fault
            print(f"\nFAULT {name} {number}: {error!r}")
        else:
            if is_seen and answer != whole and edited != content:
                print(f"\nFAULT {name} {number}: another answer")
    print("done")


def _faults(names: Sequence[str], first: int, end: int, folder: Path) -> list[str]:
    printed = folder / "printed"
    calls = "; ".join(f"read_damaged({name!r}, {first}, {end})" for name in names)
    status = run_code(f"from tests.test_damaged_files import read_damaged; {calls}", folder, printed)
    text = printed.read_text()
    faults = [line for line in text.splitlines() if line.startswith("FAULT")]
    return [*faults, *([] if text.endswith("done\n") else [f"ended with {status} at {text[-300:]!r}"])]


def test_damaged_files_are_refused_or_read_as_whole_ones(tmp_path: Path) -> None:
    """One process reads the formats in turn; a crash ends it at the number that it printed last."""
    assert not _faults([*FORMATS], 0, N_FILES, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
def test_many_damaged_files_are_refused_or_read_as_whole_ones(name: str, tmp_path: Path) -> None:
    assert not _faults([name], N_FILES, N_FILES + N_LONG // len(FORMATS), tmp_path)
