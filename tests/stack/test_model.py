"""The model's forward passes against a second, dense implementation written for this test alone."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

from pdwatch.kernels import kernel_table
from pdwatch.stack.embedded import checkpoint
from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.curriculum import sample
from pdwatch.stack.embedded.device import prepare_device
from pdwatch.stack.embedded.model import Model
from pdwatch.stack.embedded.pool import KvPool
from pdwatch.stack.embedded.request import Request
from pdwatch.stack.embedded.rows import DecodeRows
from pdwatch.stack.embedded.sequence import SequenceState
from pdwatch.stack.embedded.tokens import PAD

WEIGHTS = Path(checkpoint.__file__).parent / "weights" / "tiny_toolcaller.safetensors"
CONFIG, PARAMETERS = checkpoint.load_checkpoint(WEIGHTS)
# logits reach 40 and more; float32 rounding through four layers stays below 1e-4.
TOLERANCE = 1e-3
CONTEXT = 1024


def normed(x: torch.Tensor) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps)."""
    return x / (x.square().mean(-1, keepdim=True) + CONFIG.norm_eps).sqrt()


def rotated(x: torch.Tensor, width: int, sign: int = 1) -> torch.Tensor:
    """Rotates pairs of neighbours among the last `width` entries of x [tokens, ..., dim] by position."""
    result = x.clone()
    start = x.shape[-1] - width
    positions = torch.arange(x.shape[0], dtype=torch.float64).view(-1, *[1] * (x.dim() - 2))
    for pair in range(width // 2):
        angle = sign * positions * CONFIG.rope_base ** (-2 * pair / width)
        one, two = x[..., start + 2 * pair], x[..., start + 2 * pair + 1]
        result[..., start + 2 * pair] = one * angle.cos() - two * angle.sin()
        result[..., start + 2 * pair + 1] = one * angle.sin() + two * angle.cos()
    return result


def dense_logits(tokens: list[int]) -> torch.Tensor:
    """Logits [tokens, vocab] in float64: every score is computed, then masked."""
    c = CONFIG
    weights = {name: tensor.double() for name, tensor in PARAMETERS.items()}
    count = len(tokens)
    x = torch.zeros(count, c.dim, dtype=torch.float64)
    for back in range(c.ngram):
        shifted = [PAD] * back + tokens[: count - back]
        x = x + weights["embed"][back, shifted]
    gap = torch.arange(count)[:, None] - torch.arange(count)
    for index in range(c.layers):
        w = {name.removeprefix(f"blocks.{index}."): tensor for name, tensor in weights.items()}
        h = normed(x) * w["n1"]
        query = rotated(normed((h @ w["attn.q.weight"].T).view(count, c.heads, -1)) * w["attn.q_norm"], c.rope_dim)
        latent = rotated(normed(h @ w["attn.kv.weight"].T) * w["attn.kv_norm"], c.rope_dim)
        index_query = rotated((h @ w["attn.idx_q.weight"].T).view(count, c.idx_heads, -1), c.idx_rope_dim)
        index_key = rotated(normed(h @ w["attn.idx_k.weight"].T), c.idx_rope_dim)
        relu = torch.einsum("thd,sd->ths", index_query, index_key).clamp(min=0)
        scores = torch.einsum("ths,th->ts", relu, h @ w["attn.idx_w.weight"].T)
        scores = scores.masked_fill(gap < c.window, -math.inf)
        best = scores.argsort(dim=-1, descending=True, stable=True)[:, : c.topk]
        chosen = torch.zeros(count, count, dtype=torch.bool).scatter_(1, best, True) & (gap >= c.window)
        allowed = chosen | ((gap >= 0) & (gap < c.window))
        logits = torch.einsum("thd,sd->ths", query, latent) / c.head_dim**0.5
        logits = logits.masked_fill(~allowed[:, None], -math.inf)
        with_sink = torch.cat([logits, w["attn.sink"][None, :, None].expand(count, -1, 1)], dim=-1)
        attended = with_sink.softmax(-1)[..., :-1] @ latent
        x = x + rotated(attended, c.rope_dim, -1).flatten(1) @ w["attn.o.weight"].T
        g = normed(x) * w["n2"]
        gate = g @ w["ffn.w1.weight"].T
        x = x + (gate * gate.sigmoid() * (g @ w["ffn.w3.weight"].T)) @ w["ffn.w2.weight"].T
    return normed(x) * weights["norm"] @ weights["head.weight"].T


@pytest.fixture(scope="module")
def task() -> list[int]:
    """Prompt and answer of a task that is longer than top-k + window, so that the sparse path is really sparse."""
    source = random.Random(1)
    while True:
        prompt, answer = sample(source, CONTEXT)
        if 400 <= len(prompt) + len(answer) <= 600:
            return prompt + answer


@pytest.fixture(scope="module")
def expected(task: list[int]) -> torch.Tensor:
    """The dense logits of the task."""
    return dense_logits(task)


@pytest.fixture
def model() -> Model:
    prepare_device("cpu")
    return Model(CONFIG, PARAMETERS, kernel_table("eager"), CONTEXT)


@pytest.fixture
def pool() -> KvPool:
    return KvPool(CONFIG, num_pages=40, page_size=64, device="cpu")


def test_prefill_equals_the_dense_forward(model: Model, pool: KvPool, task: list[int], expected: torch.Tensor) -> None:
    logits = model.prefill(task, 0, pool, pool.allocate(10), 0)

    torch.testing.assert_close(logits.double(), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("cut", [1, 64, 200, 257], ids=lambda cut: f"chunk-of-{cut}")
def test_chunks_equal_the_whole(model: Model, pool: KvPool, task: list[int], expected: torch.Tensor, cut: int) -> None:
    pages = pool.allocate(10)
    model.prefill(task[:cut], 0, pool, pages, cut - 1)
    logits = model.prefill(task, cut, pool, pages, len(task) - 5)

    torch.testing.assert_close(logits.double(), expected[-5:], rtol=0, atol=TOLERANCE)


def test_decode_equals_the_dense_forward_in_a_mixed_batch(
    model: Model, pool: KvPool, task: list[int], expected: torch.Tensor
) -> None:
    # three rows of one task at different lengths, their pages interleaved; the first two cross a page boundary.
    lengths = [64, 319, len(task) - 4]
    rows = DecodeRows(EngineConfig(max_running_requests=4, context_length=CONTEXT), CONFIG.ngram)
    running = []
    for row, length in enumerate(lengths):
        state = SequenceState.of(Request(str(row), task[: length + 1]))
        state.pages = pool.allocate(10)
        model.prefill(task[:length], 0, pool, state.pages, length - 1)
        rows.enter(row, state.pages)
        running.append(state)

    for step in range(4):
        rows.stage(running, 3)
        logits = model.decode(rows.view(3, 10), pool)
        for row, length in enumerate(lengths):
            wanted = expected[length + step]
            torch.testing.assert_close(logits[row].double(), wanted, rtol=0, atol=TOLERANCE)
            if step < 3:
                running[row].tokens.append(task[length + step + 1])


def test_padding_rows_change_nothing(model: Model, pool: KvPool, task: list[int]) -> None:
    rows = DecodeRows(EngineConfig(max_running_requests=4, context_length=CONTEXT), CONFIG.ngram)
    state = SequenceState.of(Request("0", task[:301]))
    state.pages = pool.allocate(5)
    model.prefill(task[:300], 0, pool, state.pages, 299)
    rows.enter(0, state.pages)

    rows.stage([state], 1)
    alone = model.decode(rows.view(1, 5), pool)
    rows.stage([state], 4)
    padded = model.decode(rows.view(4, 16), pool)

    assert padded.isfinite().all()
    torch.testing.assert_close(padded[:1], alone, rtol=0, atol=1e-4)
