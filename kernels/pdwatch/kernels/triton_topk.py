"""Exact top-k positions in Triton, alone or behind the indexer logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from pdwatch.kernels.errors import KernelArguments
from pdwatch.kernels.layout_indexer import IndexKeyLayout
from pdwatch.kernels.triton_indexer import (
    IndexerWorkspace,
    check_device,
    check_lengths,
    check_schedule,
    check_table,
    device_scope,
    indexer_workspace,
    overlap,
    paged_indexer_logits,
    persistent_programs,
)
from pdwatch.kernels.triton_indexer_kernels import GROUP
from pdwatch.kernels.triton_topk_kernels import choose_positions_kernel, group_maxima_kernel

MAX_COUNT = 2048
# the first step looks at up to 2**15 groups, counted in 16 bits.
MAX_KEYS = 2**15 * GROUP
MAXIMA_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class TopkTiles:
    """Constants of one compilation, from the count and the widest row; see `choose_positions_kernel`."""

    nodes: int
    few: int
    many: int
    tile: int
    warps: int


def topk_tiles(count: int, max_keys: int) -> TopkTiles:
    """Tiles for `count` of at most `max_keys` positions."""
    nodes = triton.next_power_of_2(count)
    many = triton.next_power_of_2(triton.cdiv(triton.cdiv(max_keys, GROUP), GROUP))
    return TopkTiles(
        nodes=nodes,
        few=min(256, many),
        many=many,
        tile=min(512, nodes),
        warps=32 if nodes > 1024 else 16 if max(nodes, many) > 64 else 4,
    )


def topk_positions(
    logits: Tensor,
    lengths: Tensor,
    count: int,
    *,
    out: Tensor | None = None,
    workspace: IndexerWorkspace | None = None,
    exclude_infinite: bool = False,
) -> Tensor:
    """The `count` best positions of each row, ascending, then -1.

    logits   float32 [rows, width], rows any stride apart; positions at or past a length are never read
    lengths  int32 [rows], or anything contiguous that flattens to it: candidates of each row
    count    1 to 2048
    out      int32 [rows, count], made if absent
    workspace  its maxima are overwritten; made if absent

    Order: higher logit first; of equal logits (+0.0 == -0.0) the lower position; NaN comes after every number, -inf
    included, so it is chosen only when fewer than `count` numbers exist. A row of at most `count` candidates gets
    0..length-1. `exclude_infinite` never chooses -inf and NaN. The choice is exact, so it depends on nothing but the
    row's own logits. Decided on the device throughout: no synchronisation. Raises KernelArguments.
    """
    if logits.ndim != 2 or logits.dtype != torch.float32 or (logits.shape[1] > 1 and logits.stride(1) != 1):
        raise KernelArguments(
            f"logits are {logits.dtype} {list(logits.shape)} with strides {logits.stride()}, "
            "give float32 [rows, width] with adjacent elements"
        )
    rows, width = logits.shape
    if lengths.numel() != rows or not lengths.is_contiguous():
        raise KernelArguments(f"lengths are {list(lengths.shape)}, give {rows} contiguous ones")
    lengths = lengths.view(rows)
    check_lengths(lengths, rows, 1)
    check_device("lengths", lengths, logits.device)
    out = _check_choice(out, rows, count, width, logits.device)
    if workspace is None:
        workspace = indexer_workspace(rows, 1, width, logits.device, logits=False)
    _check_maxima(workspace, rows, width, logits.device)
    if rows == 0:
        return out
    check_schedule(rows, width)
    segments = rows * triton.cdiv(width, MAXIMA_BLOCK)
    with device_scope(logits.device):
        group_maxima_kernel[(max(1, min(segments, persistent_programs(logits.device, 4))),)](
            logits, workspace.maxima, lengths, rows, logits.stride(0), workspace.maxima.stride(0),
            BLOCK=MAXIMA_BLOCK, ROWS=triton.next_power_of_2(rows), GROUP=GROUP, EXCLUDE=exclude_infinite,
            WHOLE=_groups_are_whole(logits), num_warps=4, **overlap(logits.device),
        )  # fmt: skip
    _choose(logits, workspace, lengths, count, out, 1, exclude_infinite=exclude_infinite)
    return out


def indexer_topk(
    query: Tensor,
    key_pages: Tensor,
    weights: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    count: int,
    *,
    layout: IndexKeyLayout,
    page_size: int,
    slots: bool = False,
    out: Tensor | None = None,
    workspace: IndexerWorkspace | None = None,
) -> Tensor:
    """`paged_indexer_logits` and `topk_positions` in two kernels, the first of which prepares the second.

    Arguments as theirs; `workspace` from `indexer_workspace` (made if absent) holds the logits. With `slots`, what
    comes out is block_table[row, position // page_size] * page_size + position % page_size, still in the order of the
    positions: what sparse attention takes as indices.

    Returns int32 [batch * query_tokens, count].
    """
    if query.ndim != 4:
        raise KernelArguments(f"query is {list(query.shape)}, give [batch, query_tokens, heads, dim]")
    check_table(block_table, query.shape[0])
    rows, max_keys = query.shape[0] * query.shape[1], block_table.shape[1] * page_size
    out = _check_choice(out, rows, count, max_keys, query.device)
    if workspace is None:
        workspace = indexer_workspace(query.shape[0], query.shape[1], max_keys, query.device)
    _check_maxima(workspace, rows, max_keys, query.device)
    logits = paged_indexer_logits(
        query, key_pages, weights, block_table, lengths, layout=layout, page_size=page_size, workspace=workspace
    )
    if rows:
        table = block_table if slots else None
        _choose(logits, workspace, lengths, count, out, query.shape[1], table=table, page_size=page_size)
    return out


def _choose(
    logits: Tensor,
    workspace: IndexerWorkspace,
    lengths: Tensor,
    count: int,
    out: Tensor,
    query_tokens: int,
    *,
    table: Tensor | None = None,
    page_size: int = 1,
    exclude_infinite: bool = False,
) -> None:
    rows, max_keys = logits.shape
    tiles = topk_tiles(count, max_keys)
    with device_scope(logits.device):
        choose_positions_kernel[(rows,)](
            logits, workspace.maxima, lengths, out, out if table is None else table,
            query_tokens,
            lengths.stride(0), lengths.stride(1) if lengths.ndim == 2 else 0,
            logits.stride(0), workspace.maxima.stride(0), out.stride(0), 0 if table is None else table.stride(0),
            COUNT=count, NODES=tiles.nodes, FEW=tiles.few, MANY=tiles.many, TILE=tiles.tile, GROUP=GROUP,
            SLOTS=table is not None, PAGE=page_size, EXCLUDE=exclude_infinite, WHOLE=_groups_are_whole(logits),
            num_warps=tiles.warps, **overlap(logits.device),
        )  # fmt: skip


def _groups_are_whole(logits: Tensor) -> bool:
    """Whether the last group of each row lies inside the buffer and all are aligned, whatever the lengths are."""
    rows, width = logits.shape
    end = logits.storage_offset() + (rows - 1) * logits.stride(0) + triton.cdiv(width, GROUP) * GROUP
    room = logits.untyped_storage().nbytes() // logits.element_size()
    return end <= room and logits.stride(0) % GROUP == 0 and logits.data_ptr() % 16 == 0


def _check_choice(out: Tensor | None, rows: int, count: int, width: int, device: torch.device) -> Tensor:
    if not 1 <= count <= MAX_COUNT:
        raise KernelArguments(f"count is {count}, give 1 to {MAX_COUNT}")
    if width > MAX_KEYS:
        raise KernelArguments(f"rows are up to {width} keys wide, give at most {MAX_KEYS}")
    if out is None:
        return torch.empty(rows, count, dtype=torch.int32, device=device)
    if out.dtype != torch.int32 or out.shape != (rows, count) or (count > 1 and out.stride(1) != 1):
        raise KernelArguments(
            f"out is {out.dtype} {list(out.shape)}, give int32 [{rows}, {count}] with adjacent elements"
        )
    check_device("out", out, device)
    return out


def _check_maxima(workspace: IndexerWorkspace, rows: int, width: int, device: torch.device) -> None:
    maxima = workspace.maxima
    if maxima.shape[0] < rows or maxima.shape[1] < triton.cdiv(width, GROUP) or maxima.shape[1] % GROUP:
        raise KernelArguments(
            f"workspace.maxima is {list(maxima.shape)}, make a workspace for {rows} rows of {width} keys"
        )
    check_device("workspace.maxima", maxima, device)
