"""The hazard tools on a GPU: they find what is planted and nothing else."""

from __future__ import annotations

import pytest
import torch

from pdwatch.kernels.harness.hazards import delay_fuzz, keep_alive, shared_pool, unordered_accesses
from pdwatch.kernels.harness.kernel import Outputs
from pdwatch.kernels.harness.mutants.two_streams import Order, TwoStreamLayer
from pdwatch.kernels.harness.recording import Work

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

RIGHT = (Order.JOINED, Order.RECORDED, Order.ONE_STREAM)
WRONG = (Order.DROPPED_EARLY, Order.RESULT_DROPPED, Order.FORKED_EARLY, Order.JOINED_LATE, Order.SCRATCH_SHARED)


def layer(order: Order) -> Work:
    run = TwoStreamLayer(order)
    x = torch.randn(64, 4096, device="cuda")
    return lambda: {"y": run(x)}


@pytest.mark.parametrize("order", RIGHT)
def test_right_orders_are_clean(order: Order) -> None:
    work = layer(order)
    assert unordered_accesses(work) == []
    assert delay_fuzz(work) is None
    assert keep_alive(work) is None


@pytest.mark.parametrize("order", WRONG)
def test_wrong_orders_are_found(order: Order) -> None:
    work = layer(order)
    assert unordered_accesses(work)
    assert delay_fuzz(work) is not None


def slow_product(factor: float) -> Work:
    x = torch.randn(1 << 20, device="cuda")
    out = torch.empty_like(x)

    def work() -> Outputs:
        transient = x * factor
        torch.cuda._sleep(1_000_000)
        torch.mul(transient, 2.0, out=out)
        return {"y": out}

    return work


def test_graphs_of_one_pool_must_not_overlap() -> None:
    first, second = slow_product(1.0), slow_product(3.0)
    assert shared_pool(first, second) is None
    assert shared_pool(first, second, together=True) is not None


def test_results_in_the_pool_do_not_survive_the_next_graph() -> None:
    x = torch.randn(1 << 20, device="cuda")
    first, second = (lambda: {"y": x * 2.0}), (lambda: {"y": x * 3.0})
    assert shared_pool(first, second) is None
    assert shared_pool(first, second, results_dropped=True) is not None
