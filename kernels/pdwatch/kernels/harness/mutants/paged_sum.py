"""The paged reduction put under the harness, and the launchers' bugs that need a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pdwatch.kernels.harness.families.mla_huge import spread
from pdwatch.kernels.harness.kernel import (
    ALL_PROMISES,
    Buffers,
    Case,
    Expected,
    Family,
    Inputs,
    KernelUnderTest,
    Kind,
    Outputs,
    Tolerance,
)
from pdwatch.kernels.harness.mutants.paged_sum_kernels import merge_kernel, paged_sum_kernel

PAGE, DIM, SPLITS = 16, 64, 8
_SUM = Tolerance("fp32 sums of at most a thousand values near 1", of_magnitude=2.0**-18)


@dataclass(frozen=True, kw_only=True)
class PagedSum:
    """The launcher; the flags are bugs. Those of the kernel are told at `paged_sum_kernel`."""

    narrow: bool = False
    whole_width: bool = False
    unmasked: bool = False
    atomic: bool = False
    # splits by batch, as to fill the device
    splits_by_batch: bool = False
    # the grid has as many splits as the longest row has pages, as the host sees it
    splits_by_host: bool = False
    # scratch is allocated in every run although buffers were given
    allocates: bool = False
    # one scratch for all callers
    shares: bool = False
    # the host waits for the lengths
    synchronises: bool = False
    # the lengths take the way over the host
    copies: bool = False

    def buffers(self, inputs: Inputs) -> Buffers:
        rows = len(inputs["lengths"])
        made = inputs["pages"].new_empty
        return Buffers({"out": made((rows, DIM))}, made((rows, SPLITS * 4, DIM)))

    def run(self, inputs: Inputs, buffers: Buffers | None) -> Outputs:
        given = buffers if buffers is not None else self.buffers(inputs)
        lengths, table, pages = inputs["lengths"], inputs["block_table"], inputs["pages"]
        rows, out = len(lengths), given.outputs["out"]
        splits = self._splits(lengths)
        if self.synchronises and bool((lengths < 0).any()):
            raise ValueError("a length is negative")
        if self.copies:
            lengths = lengths.cpu().to(pages.device)
        partial = self._partial(given.workspace, rows)
        if self.atomic:
            out.zero_()
        paged_sum_kernel[(rows, splits)](
            pages, table, lengths, out, partial, pages.stride(0), table.stride(0), splits, table.shape[1],
            PAGE=PAGE, DIM=DIM, NARROW=self.narrow, WHOLE_WIDTH=self.whole_width, UNMASKED=self.unmasked,
            ATOMIC=self.atomic,
        )  # fmt: skip
        if not self.atomic:
            merge_kernel[(rows,)](partial, out, splits, DIM=DIM)
        return given.outputs

    def _splits(self, lengths: Tensor) -> int:
        if self.splits_by_host:
            return max(1, min(SPLITS, -(-int(lengths.max()) // PAGE)))
        if self.splits_by_batch:
            return SPLITS * 2 if len(lengths) < 3 else SPLITS
        return SPLITS * 4 if self.atomic else SPLITS

    def _partial(self, workspace: Tensor, rows: int) -> Tensor:
        if self.allocates:
            return torch.empty_like(workspace)
        if self.shares:
            return _shared(workspace)
        return workspace


_SHARED: dict[torch.device, Tensor] = {}


def _shared(workspace: Tensor) -> Tensor:
    if workspace.device not in _SHARED or _SHARED[workspace.device].numel() < workspace.numel():
        _SHARED[workspace.device] = workspace.new_empty(1 << 20)
    return _SHARED[workspace.device]


def paged_sum_under_test(kernel: PagedSum, name: str = "mutants.paged_sum") -> KernelUnderTest:
    return KernelUnderTest(
        name=name,
        family=Family.CUSTOM,
        run=kernel.run,
        reference=_reference,
        cases=_cases,
        tolerances={"out": _SUM},
        batched={"block_table": 0, "lengths": 0},
        buffers=kernel.buffers,
        variants=_variants,
        replays=_replays,
        huge=_huge,
        timing=_timing,
        promises=ALL_PROMISES,
    )


def _reference(inputs: Inputs) -> dict[str, Expected]:
    rows, sizes = [], []
    for length, table in zip(inputs["lengths"].tolist(), inputs["block_table"], strict=True):
        values = inputs["pages"][table[: -(-length // PAGE)].long()].flatten(0, 1)[:length].to(torch.float64)
        rows.append(values.sum(dim=0))
        sizes.append(values.abs().sum(dim=0))
    return {"out": Expected(torch.stack(rows), torch.stack(sizes))}


def _cases(seed: int, device: torch.device) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)
    yield _case("mixed lengths", Kind.RANDOM, generator, device, [1000, 700, 333, 17])
    odd = int(torch.randint(1, 500, (1,), generator=generator))
    yield _case("odd lengths", Kind.ODD, generator, device, [odd, 15, 16, 17, 129])
    yield _case("empty rows", Kind.ADVERSARIAL, generator, device, [0, 40, 0])


def _replays(seed: int, device: torch.device) -> list[list[Case]]:
    generator = torch.Generator().manual_seed(seed + 77)
    edges = (1, 0, 1, 15, 16, 17, 127, 128, 129, 500, 31, 2)
    return [
        [
            _case(
                f"length {edge}, {rows} rows",
                Kind.RANDOM,
                generator,
                device,
                [max(edge - row, 0) for row in range(rows)],
                32,
            )
            for edge in edges
        ]
        for rows in (4, 2)
    ]


def _huge(seed: int, device: torch.device) -> Case | None:
    generator = torch.Generator().manual_seed(seed + 5)
    case = _case("pages past 2^31", Kind.ADVERSARIAL, generator, device, [40, 64])
    apart = spread(case.inputs["pages"], device)
    return None if apart is None else Case(case.name, case.kind, {**case.inputs, "pages": apart})


def _timing(length: int, maximum: int, device: torch.device) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    case = _case("timing", Kind.RANDOM, generator, device, [length] * 4, maximum // PAGE, pages=4096)
    return dict(case.inputs)


def _variants(case: Case, generator: torch.Generator) -> Iterator[tuple[str, dict[str, Any]]]:
    pages, table = case.inputs["pages"], case.inputs["block_table"]
    order = torch.randperm(len(pages), generator=generator).to(pages.device)
    shuffled = torch.empty_like(pages)
    shuffled[order] = pages
    yield "pages permuted", {**case.inputs, "pages": shuffled, "block_table": order[table.long()].to(torch.int32)}


def _case(
    name: str,
    kind: Kind,
    generator: torch.Generator,
    device: torch.device,
    lengths: Sequence[int],
    width: int | None = None,
    pages: int | None = None,
) -> Case:
    width = width if width is not None else -(-max(lengths) // PAGE) + 1
    count = pages if pages is not None else len(lengths) * width + 1
    table = torch.randint(0, count - 1, (len(lengths), width), generator=generator, dtype=torch.int32)
    used = torch.zeros(count, PAGE, dtype=torch.bool)
    for row, length in enumerate(lengths):
        # a page is one row's, so that its tail is nobody's
        if pages is None:
            table[row] = torch.arange(row * width, (row + 1) * width)
        for place in range(-(-length // PAGE)):
            used[int(table[row, place]), : length - place * PAGE] = True
    bounds = torch.tensor(lengths, dtype=torch.int32)
    inputs = {
        "pages": torch.randn(count, PAGE, DIM, generator=generator).to(device),
        "block_table": table.to(device),
        "lengths": bounds.to(device),
    }
    unread = {
        "pages": (~used)[..., None].expand(count, PAGE, DIM).to(device),
        "block_table": (torch.arange(width) * PAGE >= bounds[:, None]).to(device),
    }
    return Case(name, kind, inputs, unread, {"block_table": count - 1})
