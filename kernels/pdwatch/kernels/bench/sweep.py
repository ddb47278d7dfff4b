"""Times the schedules of sparse MLA and the tiles of the indexer on one GPU: how the launchers' constants are chosen.

    python -m pdwatch.kernels.bench.sweep schedules|tiles [--batches 1,16,64] [--contexts 2K,128K,1M]

Schedules of one case must give the same bits; the one that the launcher would choose has a star.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from functools import partial

import torch
import triton
from torch import Tensor

from pdwatch.kernels import triton_indexer
from pdwatch.kernels.bench.cases import V4_FP8, V32_FP8, Family, IndexerCase, MlaCase, cases
from pdwatch.kernels.bench.command import numbers
from pdwatch.kernels.bench.indexer import IndexerProblem
from pdwatch.kernels.bench.mla import MlaInputs, MlaProblem, Pools
from pdwatch.kernels.bench.problem import OURS
from pdwatch.kernels.bench.timing import Call, microseconds
from pdwatch.kernels.layout_mla import VALUE_DIM
from pdwatch.kernels.schedule_mla import Schedule, SparseMlaWorkspace, group_tiles, plan, tile_count
from pdwatch.kernels.triton_indexer import LogitsTiles
from pdwatch.kernels.triton_mla import Target, launch, target_of, variant_of

# more programs than this are slower in any case
_MOST_UNITS = 150
_SHARED_BYTES = 225_000


def schedules(case: MlaCase, target: Target) -> dict[str, Schedule]:
    """Every schedule of a case by name."""
    variant = variant_of(case.layout, case.heads, target)
    tiles, group = tile_count(case.counts, variant.tile), group_tiles(case.layout, variant.tile)
    groups, blocks = triton.cdiv(tiles, group), triton.cdiv(case.heads, variant.block_heads)
    chosen = plan(case.batch, blocks, tiles, group, target.processors, variant.hopper)
    named = {"tiles": Schedule(tiles, 1, False), "groups": Schedule(groups, group, False)}
    if variant.hopper:
        named |= {"tile halves": Schedule(tiles, 1, True), "halves": Schedule(groups, group, True)}
    return {name + "*" * (by == chosen): by for name, by in named.items()}


def sweep_schedules(batches: Sequence[int]) -> Iterator[str]:
    """A line for each case: every schedule's time, and whether all gave the same bits."""
    target = target_of(torch.device("cuda", torch.cuda.current_device()))
    pools = Pools("cuda")
    for case in cases([Family.SPARSE_MLA], batches, ()):
        if not isinstance(case, MlaCase) or case.name not in (V4_FP8, V32_FP8):
            continue
        problem = MlaProblem(case, pools)
        times, results = [], []
        for name, by in schedules(case, target).items():
            if by.chunk == 1 and case.batch * by.units > _MOST_UNITS:
                continue
            calls = [_scheduled(problem, inputs, by, target) for inputs in problem.sets]
            result = calls[0]()
            assert isinstance(result, Tensor)
            results.append(result)
            times.append(f"{name} {microseconds(calls):.1f}")
        same = all(torch.equal(result, results[0]) for result in results)
        yield f"{case.name} B={case.batch}: {', '.join(times)}; {'same bits' if same else 'DIFFERENT BITS'}"


def sweep_tiles(batches: Sequence[int], contexts: Sequence[int]) -> Iterator[str]:
    """A line for each case: the time of every tile shape that fits, the fastest first."""
    variants = [
        LogitsTiles(block, warps, stages, programs, registers)
        for block, warps, registers in ((64, 4, None), (128, 4, None), (128, 4, 168), (256, 8, None), (256, 8, 128))
        for stages in (3, 5, 7)
        for programs in (1, 2, 3, 4)
        if _SHARED_BYTES / 4 < block * 132 * (stages + 1) // 2 * programs < _SHARED_BYTES
    ]
    chosen = triton_indexer.logits_tiles
    try:
        for case in cases([Family.INDEXER_LOGITS], batches, contexts):
            assert isinstance(case, IndexerCase)
            problem = IndexerProblem(case, "cuda")
            times = {}
            for variant in variants:
                triton_indexer.logits_tiles = partial(_always, variant)
                times[astuple(variant)] = microseconds(problem.implementations[OURS]())
            fastest = sorted(times.items(), key=lambda item: item[1])
            shown = ", ".join(f"{variant} {time:.2f}" for variant, time in fastest[:6])
            yield f"{case.name} L={case.context} B={case.batch}: {shown}"
    finally:
        triton_indexer.logits_tiles = chosen


def _always(tiles: LogitsTiles, *_: object) -> LogitsTiles:
    return tiles


def _scheduled(problem: MlaProblem, inputs: MlaInputs, by: Schedule, target: Target) -> Call:
    case, device = problem.case, inputs.query.device
    out = torch.empty(case.batch, 1, case.heads, VALUE_DIM, dtype=torch.bfloat16, device=device)
    lse = torch.empty(case.batch, 1, case.heads, dtype=torch.float32, device=device)
    states = max(case.batch * case.heads * by.units, 1)
    workspace = SparseMlaWorkspace(
        torch.empty(states * VALUE_DIM, device=device), torch.empty(states * 2, device=device)
    )

    def call() -> Tensor:
        launch(inputs.query, inputs.scopes, problem.scale, inputs.sink, out, lse, workspace, by, target)
        return out

    return call


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("schedules", "tiles"))
    parser.add_argument("--batches", default="1,4,16,64,128,256")
    parser.add_argument("--contexts", default="2K,128K,1M")
    given = parser.parse_args()
    torch.manual_seed(0)
    batches, contexts = numbers(given.batches), numbers(given.contexts)
    lines = sweep_schedules(batches) if given.what == "schedules" else sweep_tiles(batches, contexts)
    for line in lines:
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
