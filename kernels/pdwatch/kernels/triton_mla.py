"""Sparse MLA decode in Triton: the launcher.

How the tiles of a row are spread over programs depends on the batch; what is computed does not (`triton_mla_kernels`),
so a row's result is bitwise the same in any batch. Nothing is read back from the device, and nothing is allocated when
`out`, `lse` and `workspace` are given: a captured launch may be replayed with other indices and lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from pdwatch.kernels.layout_mla import VALUE_DIM, KvScope, MlaLayout
from pdwatch.kernels.schedule_mla import (
    Schedule,
    SparseMlaWorkspace,
    check_arguments,
    check_workspace,
    group_tiles,
    plan,
    tile_count,
    workspace_states,
)
from pdwatch.kernels.triton_mla_kernels import sparse_mla_kernel
from pdwatch.kernels.triton_mla_merge import merge_kernel

LOG2_E = 1.4426950408889634
# what the AOT tests compile with: pipeline stages of the portable kernel, registers of a thread of the Hopper one.
STAGES = 3
MULTIPLY_REGISTERS, GATHER_REGISTERS = 176, 80
INTERPRETED = bool(triton.knobs.runtime.interpret)


@dataclass(frozen=True, slots=True)
class Target:
    """What the launcher knows of a device. `capability` is (major, minor), (0, 0) for anything but an NVIDIA GPU."""

    capability: tuple[int, int]
    processors: int

    @property
    def dependent_launch(self) -> bool:
        """The merge kernel may start before the kernel that feeds it has ended."""
        return self.capability >= (9, 0)


@lru_cache(maxsize=64)
def target_of(device: torch.device) -> Target:
    """The target that tensors on `device` run on; one of 132 processors where kernels are interpreted."""
    if device.type != "cuda":
        return Target(capability=(0, 0), processors=132)
    properties = torch.cuda.get_device_properties(device)
    capability = (0, 0) if getattr(torch.version, "hip", None) else (properties.major, properties.minor)
    return Target(capability=capability, processors=properties.multi_processor_count)


@dataclass(frozen=True, slots=True)
class Variant:
    """Which kernel takes a launch, and the sizes that its results depend on. Never chosen by the batch."""

    hopper: bool
    block_heads: int
    tile: int


def variant_of(layout: MlaLayout, heads: int, target: Target) -> Variant:
    """The kernel for rows in `layout` and `heads` query heads on `target`."""
    # not V3.2, whose scales would round its keys to bfloat16 there.
    if target.capability == (9, 0) and layout is MlaLayout.FP8_V4:
        return Variant(hopper=True, block_heads=64, tile=128)
    # 32 heads spill registers while they decode, and take more shared memory than consumer Blackwell has.
    wide = heads > 16 and not layout.is_fp8 and target.capability < (10, 0)
    return Variant(hopper=False, block_heads=32 if wide else 16, tile=64)


def sparse_mla_workspace(
    batch: int, query_tokens: int, heads: int, counts: Sequence[int], device: torch.device | str
) -> SparseMlaWorkspace:
    """A workspace for every launch of at most `batch` requests whose scopes hold at most `counts` indices."""
    # "cuda" alone is the current device, which only a tensor tells by number.
    place = torch.empty(0, device=device).device
    target = target_of(place)
    rows, most = batch * query_tokens, 1
    for layout in MlaLayout:
        variant = variant_of(layout, heads, target)
        blocks, group = triton.cdiv(heads, variant.block_heads), group_tiles(layout, variant.tile)
        for tiles in range(1, tile_count(counts, variant.tile) + 1):
            most = max(most, workspace_states(rows, heads, blocks, tiles, group, target.processors))
    return SparseMlaWorkspace(
        partial=torch.empty(most * VALUE_DIM, dtype=torch.float32, device=place),
        stats=torch.empty(most * 2, dtype=torch.float32, device=place),
    )


def sparse_mla(
    query: Tensor,
    scopes: Sequence[KvScope],
    scale: float,
    sink: Tensor | None = None,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    workspace: SparseMlaWorkspace | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of `query` over the rows of one or two scopes, in one softmax: `sparse_mla_reference` says which.

    query      bfloat16 [batch, query_tokens, heads, 512 (V4) or 576 (V3.2)], rows adjacent
    scale      factor of the scores; the layout's usual one is the caller's to know
    sink       float32 [heads] or None
    out        bfloat16 [batch, query_tokens, heads, 512], any strides with adjacent rows
    lse        float32 [batch, query_tokens, heads]
    workspace  from `sparse_mla_workspace`, for at least these sizes

    Returns out and lse: natural logarithm, without the sink; a query without rows has out 0 and lse -inf. Raises
    KernelArguments. Reads no KV row that `indices` and `lengths` do not name.
    """
    check_arguments(query, scopes, sink, out, lse)
    batch, tokens, heads, _ = query.shape
    target, layout = target_of(query.device), scopes[0].layout
    variant = variant_of(layout, heads, target)
    blocks = triton.cdiv(heads, variant.block_heads)
    tiles = tile_count([scope.indices.shape[-1] for scope in scopes], variant.tile)
    group = group_tiles(layout, variant.tile)
    by = plan(batch * tokens, blocks, tiles, group, target.processors, variant.hopper)
    if out is None:
        out = torch.empty(batch, tokens, heads, VALUE_DIM, dtype=torch.bfloat16, device=query.device)
    if lse is None:
        lse = torch.empty(batch, tokens, heads, dtype=torch.float32, device=query.device)
    states = 0 if by.final else batch * tokens * heads * by.units
    if workspace is None:
        workspace = SparseMlaWorkspace(
            partial=torch.empty(max(states, 1) * VALUE_DIM, dtype=torch.float32, device=query.device),
            stats=torch.empty(max(states, 1) * 2, dtype=torch.float32, device=query.device),
        )
    check_workspace(workspace, states, query.device)
    launch(query, scopes, scale, sink, out, lse, workspace, by, target)
    return out, lse


def launch(
    query: Tensor,
    scopes: Sequence[KvScope],
    scale: float,
    sink: Tensor | None,
    out: Tensor,
    lse: Tensor,
    workspace: SparseMlaWorkspace,
    by: Schedule,
    target: Target,
) -> None:
    """Launches checked arguments by schedule `by`."""
    batch, tokens, heads, _ = query.shape
    layout, first, second = scopes[0].layout, scopes[0], scopes[-1]
    two, rows, variant = len(scopes) == 2, batch * tokens, variant_of(layout, heads, target)
    blocks = triton.cdiv(heads, variant.block_heads)
    lengths = [lse if scope.lengths is None else scope.lengths for scope in (first, second)]
    bias = lse if sink is None else sink
    arguments: list[Any] = [query, out, lse, bias, workspace.partial, workspace.stats]
    for scope, length in zip((first, second), lengths, strict=True):
        pages = scope.pages if layout.is_fp8 else scope.pages.view(torch.uint8)
        strides, count = scope.indices.stride()[:2], scope.indices.shape[2]
        arguments += [pages, scope.indices, length, pages.stride(0), *strides, count]
    arguments += [*query.stride()[:3], *out.stride()[:3], scale * LOG2_E, heads, tokens, blocks, by.units]
    flags: dict[str, Any] = {
        "V4": layout.is_v4,
        "PAGE_0": first.page_size,
        "PAGE_1": second.page_size,
        "TWO": two,
        "LENGTHS_0": first.lengths is not None,
        "LENGTHS_1": second.lengths is not None,
        "HAS_SINK": sink is not None,
        "FINAL": by.final,
        "HALVES": by.halves,
        "CHUNK": by.chunk,
    }
    grid = (by.units * (2 if by.halves else 1) * blocks * rows,)
    if variant.hopper:
        from pdwatch.kernels.triton_mla_hopper import hopper_mla_kernel

        registers = {"MULTIPLY_REGISTERS": MULTIPLY_REGISTERS, "GATHER_REGISTERS": GATHER_REGISTERS}
        del flags["V4"]
        hopper_mla_kernel[grid](*arguments, **flags, **registers, num_warps=4)
    else:
        del flags["HALVES"]
        sparse_mla_kernel[grid](
            *arguments,
            **flags,
            FP8=layout.is_fp8,
            BLOCK_H=variant.block_heads,
            TILE=variant.tile,
            STAGES=STAGES,
            UPCAST=INTERPRETED,
            num_warps=8,
        )
    if by.final:
        return
    dependent: dict[str, Any] = {"launch_pdl": True} if target.dependent_launch else {}
    merge_kernel[(2 * heads * rows,)](
        out, lse, bias, workspace.partial, workspace.stats, lengths[0], first.indices.shape[2], lengths[1],
        second.indices.shape[2], *out.stride()[:3], heads, tokens, by.units,
        TWO=two, LENGTHS_0=flags["LENGTHS_0"], LENGTHS_1=flags["LENGTHS_1"], HAS_SINK=flags["HAS_SINK"],
        CHUNK=by.chunk, GROUP=group_tiles(layout, variant.tile) // by.chunk, TILE=variant.tile,
        COLUMNS=256, DEPENDENT=bool(dependent), num_warps=2, **dependent,
    )  # fmt: skip
