"""Exact top-k on a GPU: ties, NaN, infinities, lengths, determinism, capture, int64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from pdwatch.kernels.reference_indexer import topk_reference
from pdwatch.kernels.triton_indexer import indexer_workspace
from pdwatch.kernels.triton_topk import topk_positions

NAN, INFINITE = float("nan"), float("inf")


def values(kind: str, rows: int, width: int) -> torch.Tensor:
    torch.manual_seed(3)
    plain = torch.randn(rows, width, device="cuda")
    dice = torch.rand(rows, width, device="cuda")
    finite_or_not = torch.where(dice < 0.4, INFINITE, torch.where(dice < 0.9, plain, -INFINITE))
    return {
        "plain": plain,
        "dead": (plain - 1.5).relu(),
        "signed-zeros": torch.where(plain > 0, 0.0, -0.0),
        "few": plain.round(),
        "equal": torch.full_like(plain, -3.0),
        "sorted": plain.sort().values,
        "denormal": (plain * 4).round() * 1e-45,
        "huge": plain * 1e38,
        "spread": torch.exp(plain * 20),
        "special": torch.where(dice < 0.2, NAN, finite_or_not),
        "nan": torch.full_like(plain, NAN),
        "clustered": torch.where(torch.arange(width, device="cuda") // 700 == 3, plain + 9, plain),
    }[kind]


KINDS = (
    "plain", "dead", "signed-zeros", "few", "equal", "sorted", "denormal", "huge", "spread", "special", "nan",
    "clustered",
)  # fmt: skip
SIZES = ((700, 512), (5000, 512), (40001, 512), (40000, 1000), (140000, 2048), (262144, 512))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "count"), SIZES)
def test_equals_the_stable_sort(kind: str, width: int, count: int) -> None:
    logits = values(kind, 6, width)
    lengths = torch.tensor([width, width // 2 + 3, count, count + 1, 0, width - 1], dtype=torch.int32, device="cuda")
    lengths.clamp_(max=width)
    beyond = torch.arange(width, device="cuda") >= lengths[:, None]

    chosen = topk_positions(logits.masked_fill(beyond, INFINITE), lengths, count)

    assert torch.equal(chosen, topk_reference(logits, lengths, count))


def test_a_row_does_not_depend_on_its_batch_or_repeat() -> None:
    logits = values("few", 256, 9000)
    lengths = torch.randint(0, 9001, (256,), dtype=torch.int32, device="cuda")
    together = topk_positions(logits, lengths, 512)

    for row in range(0, 256, 17):
        assert torch.equal(topk_positions(logits[row : row + 1], lengths[row : row + 1], 512), together[row : row + 1])
    for _ in range(100):
        assert torch.equal(topk_positions(logits, lengths, 512), together)


def test_replays_with_other_lengths() -> None:
    logits = values("plain", 4, 70000)
    lengths = torch.ones(4, dtype=torch.int32, device="cuda")
    out = torch.empty(4, 512, dtype=torch.int32, device="cuda")
    workspace = indexer_workspace(4, 1, 70000, "cuda", logits=False)
    topk_positions(logits, lengths, 512, out=out, workspace=workspace)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        topk_positions(logits, lengths, 512, out=out, workspace=workspace)
    edges = [0, 1, 3, 4, 5, 63, 64, 65, 255, 256, 257, 511, 512, 513, 517, 8191, 8192, 8193, 65536, 65537, 70000, 2, 0]
    for step in range(len(edges)):
        lengths.copy_(torch.tensor([edges[(step + 6 * row) % len(edges)] for row in range(4)]))
        out.fill_(-77)
        workspace.maxima.fill_(0x7FFFFFFF)
        graph.replay()
        assert torch.equal(out, topk_reference(logits, lengths, 512)), lengths.tolist()


def test_rows_far_apart_need_64_bits() -> None:
    width = 2**30
    logits = torch.empty(3 * width, device="cuda").view(3, width)[:, :9000]
    logits.normal_()
    lengths = torch.tensor([9000, 8000, 513], dtype=torch.int32, device="cuda")

    assert torch.equal(topk_positions(logits, lengths, 512), topk_reference(logits, lengths, 512))
