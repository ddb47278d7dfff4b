"""Data sets of training tasks: rows of token ids padded to their bucket, and where each answer lies."""

from __future__ import annotations

import multiprocessing
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from .curriculum import SHAPES, sample
from .tokens import PAD

BUCKETS: Final = tuple(SHAPES)
ROWS: Final = {512: 400_000, 1024: 240_000, 2048: 140_000}
HELD_OUT_ROWS: Final = 1_000
# held-out tasks come from seeds no training task uses.
HELD_OUT_SEED: Final = 10**9
CHUNK_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of one bucket: `tokens` [n, bucket] int16, `spans` [n, 2] with the answer's first and past-the-last
    position."""

    tokens: Tensor
    spans: Tensor

    def to(self, device: torch.device) -> Tasks:
        """The same tasks on a device."""
        return Tasks(self.tokens.to(device), self.spans.to(device))


def generate(bucket: int, rows: int, seed: int) -> Tasks:
    """`rows` tasks of a bucket (rounded up to whole chunks), made by all processors."""
    jobs = [(seed + bucket * 10**5 + number, bucket, min(rows, CHUNK_ROWS)) for number in range(-(-rows // CHUNK_ROWS))]
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        parts = pool.starmap(_chunk, jobs, chunksize=1)
    tokens = np.concatenate([part for part, _ in parts])
    spans = np.concatenate([part for _, part in parts])
    return Tasks(torch.from_numpy(tokens), torch.from_numpy(spans))


def load_or_generate(directory: Path, split: str, bucket: int, rows: int) -> Tasks:
    """Tasks of a split ("train" or "held_out"), from `directory` when an earlier run left them there."""
    path = directory / f"tasks_{split}_{bucket}_{rows}.npz"
    if path.exists():
        stored = np.load(path)
        return Tasks(torch.from_numpy(stored["tokens"]), torch.from_numpy(stored["spans"]))
    tasks = generate(bucket, rows, 0 if split == "train" else HELD_OUT_SEED)
    np.savez(path, tokens=tasks.tokens.numpy(), spans=tasks.spans.numpy())
    return tasks


def _chunk(seed: int, bucket: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    source = random.Random(seed)
    tokens = np.full((rows, bucket), PAD, dtype=np.int16)
    spans = np.zeros((rows, 2), dtype=np.int32)
    row = 0
    while row < rows:
        prompt, answer = sample(source, bucket)
        length = len(prompt) + len(answer)
        # what a smaller bucket holds as well is left to it.
        if bucket // 4 < length <= bucket:
            tokens[row, :length] = [*prompt, *answer]
            spans[row] = len(prompt), length
            row += 1
    return tokens, spans
