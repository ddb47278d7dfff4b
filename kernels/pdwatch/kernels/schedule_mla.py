"""Schedule, workspace and argument checks of sparse MLA decode: all that is decided before a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pdwatch.kernels.errors import KernelArguments
from pdwatch.kernels.layout_mla import VALUE_DIM, KvScope, MlaLayout


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the tiles of a row and head block are spread over programs.

    units   programs, each of its own range of tiles; more than one leave states for the merge kernel
    chunk   tiles of a unit: 1, or a whole group
    halves  two programs a unit, each for half of the output columns
    """

    units: int
    chunk: int
    halves: bool

    @property
    def final(self) -> bool:
        """A program's state is the row's: it writes the output itself."""
        return self.units == 1


@dataclass(frozen=True, slots=True)
class SparseMlaWorkspace:
    """States on their way to the merge. Launches that share one must be ordered, as those of one stream are.

    partial  float32, 512 for each state of a row and head
    stats    float32, 2 for each
    """

    partial: Tensor
    stats: Tensor


def tile_count(counts: Sequence[int], tile: int) -> int:
    """Tiles of `tile` KV rows of a query whose scopes hold `counts` indices."""
    return sum(-(-count // tile) for count in counts)


def group_tiles(layout: MlaLayout, tile: int) -> int:
    """Tiles whose states are folded with each other before the groups' are: V4's 128 + 512 rows are one group."""
    return (640 if layout.is_v4 else 512) // tile


def plan(rows: int, head_blocks: int, tiles: int, group: int, processors: int, may_halve: bool) -> Schedule:
    """The schedule of `rows` rows of `tiles` tiles on `processors` multiprocessors. Changes speed only, no result.

    may_halve  the kernel can give half of the output columns to a program
    """
    blocks, groups = rows * head_blocks, max(-(-tiles // group), 1)
    if tiles > 1 and blocks * tiles <= processors:
        return Schedule(units=tiles, chunk=1, halves=may_halve and blocks * tiles * 2 <= processors)
    halves = may_halve and blocks * groups * 2 <= processors * 9 // 8
    return Schedule(units=groups, chunk=group, halves=halves)


def workspace_states(rows: int, heads: int, head_blocks: int, tiles: int, group: int, processors: int) -> int:
    """States that a launch of up to `rows` rows leaves for the merge at most."""
    # more rows need fewer states only where the schedule changes from tiles to groups.
    few = min(rows, processors // (tiles * head_blocks))
    plans = {count: plan(count, head_blocks, tiles, group, processors, False) for count in {rows, few} - {0}}
    return max(count * heads * by.units for count, by in plans.items())


def check_arguments(
    query: Tensor, scopes: Sequence[KvScope], sink: Tensor | None, out: Tensor | None, lse: Tensor | None
) -> None:
    """Raises KernelArguments, naming the value and the remedy, for what the kernels do not take."""
    if len(scopes) not in (1, 2):
        raise KernelArguments(f"{len(scopes)} scopes, pass one or two")
    layout = scopes[0].layout
    if scopes[-1].layout is not layout:
        raise KernelArguments(f"scopes in {layout.value} and {scopes[-1].layout.value}, pack both alike")
    if query.dim() != 4 or query.shape[-1] != layout.dim or query.dtype != torch.bfloat16:
        raise KernelArguments(
            f"query is {query.dtype} {tuple(query.shape)}, {layout.value} takes bfloat16 [batch, query_tokens, heads, "
            f"{layout.dim}]"
        )
    batch, tokens, heads, _ = query.shape
    if not query.numel():
        raise KernelArguments(f"query is empty: {tuple(query.shape)}, skip the launch")
    _check_rows("query", query, 16)
    for name, scope in zip(("first", "second"), scopes, strict=False):
        _check_scope(name, scope, query)
    if sink is not None:
        _check_tensor("sink", sink, (heads,), torch.float32, query.device)
    if out is not None:
        _check_tensor("out", out, (batch, tokens, heads, VALUE_DIM), torch.bfloat16, query.device, contiguous=False)
        _check_rows("out", out, 16)
    if lse is not None:
        _check_tensor("lse", lse, (batch, tokens, heads), torch.float32, query.device)


def check_workspace(workspace: SparseMlaWorkspace, states: int, device: torch.device) -> None:
    """Raises KernelArguments if `workspace` does not hold `states` states on `device`."""
    if workspace.partial.device != device or workspace.stats.device != device:
        raise KernelArguments(f"workspace is on {workspace.partial.device}, allocate it on {device}")
    if workspace.partial.numel() < states * VALUE_DIM or workspace.stats.numel() < states * 2:
        held = workspace.partial.numel() // VALUE_DIM
        raise KernelArguments(f"workspace holds {held} states, this launch needs {states}: allocate it for its sizes")


def _check_scope(name: str, scope: KvScope, query: Tensor) -> None:
    batch, tokens = query.shape[:2]
    pages, layout = scope.pages, scope.layout
    if scope.page_size < 1:
        raise KernelArguments(f"page size {scope.page_size} of the {name} scope, pass the tokens of a page")
    if layout.is_fp8:
        need = layout.page_bytes(scope.page_size)
        if pages.dtype != torch.uint8 or pages.dim() != 2 or pages.shape[1] < need or pages.stride(1) != 1:
            raise KernelArguments(
                f"pages of the {name} scope are {pages.dtype} {tuple(pages.shape)}, {layout.value} with page size "
                f"{scope.page_size} takes uint8 [pages, {need}], stride(1) 1"
            )
    elif pages.dtype != torch.bfloat16 or pages.shape[1:] != (scope.page_size, layout.dim):
        raise KernelArguments(
            f"pages of the {name} scope are {pages.dtype} {tuple(pages.shape)}, {layout.value} takes bfloat16 [pages, "
            f"{scope.page_size}, {layout.dim}]"
        )
    elif pages.stride(2) != 1 or pages.stride(1) != layout.dim:
        raise KernelArguments(
            f"pages of the {name} scope have strides {pages.stride()}, a page's rows must be adjacent"
        )
    stride = pages.stride(0) * pages.element_size()
    if stride % 16 or pages.data_ptr() % 16:
        raise KernelArguments(
            f"pages of the {name} scope start at multiples of {stride} bytes from {pages.data_ptr():#x}, both must be "
            "multiples of 16: pad the pages"
        )
    if pages.device != query.device:
        raise KernelArguments(f"pages of the {name} scope are on {pages.device}, query is on {query.device}")
    indices = scope.indices
    if indices.dim() != 3 or indices.shape[:2] != (batch, tokens) or indices.shape[2] < 1:
        raise KernelArguments(
            f"indices of the {name} scope are {tuple(indices.shape)}, pass [{batch}, {tokens}, count], count at least 1"
        )
    if indices.dtype != torch.int32 or indices.stride(2) != 1 or indices.device != query.device:
        raise KernelArguments(
            f"indices of the {name} scope are {indices.dtype} on {indices.device} with strides {indices.stride()}, "
            f"pass int32 on {query.device}, stride(2) 1"
        )
    if scope.lengths is not None:
        _check_tensor(f"lengths of the {name} scope", scope.lengths, (batch,), torch.int32, query.device)


def _check_tensor(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, contiguous: bool = True
) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device != device:
        raise KernelArguments(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, pass {dtype} {shape} on {device}"
        )
    if contiguous and not tensor.is_contiguous():
        raise KernelArguments(f"{name} has strides {tensor.stride()}, make it contiguous")


def _check_rows(name: str, tensor: Tensor, alignment: int) -> None:
    """The last dimension is adjacent and starts at multiples of `alignment` bytes."""
    size = tensor.element_size()
    starts = (tensor.data_ptr(), *(stride * size for stride in tensor.stride()[:-1]))
    if tensor.stride(-1) != 1 or any(start % alignment for start in starts):
        raise KernelArguments(
            f"{name} starts at {tensor.data_ptr():#x} with strides {tensor.stride()}, its rows must be adjacent and "
            f"{alignment}-byte aligned"
        )
