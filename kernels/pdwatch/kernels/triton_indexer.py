"""Paged indexer logits in Triton: work proportional to the keys that exist, whatever the configured maximum."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from pdwatch.kernels.errors import KernelArguments
from pdwatch.kernels.layout_indexer import INDEX_DIM, IndexKeyLayout, page_bytes
from pdwatch.kernels.triton_indexer_kernels import GROUP, indexer_logits_kernel

HEADS = (32, 64)
MAX_QUERY_TOKENS = 4
# what the device-side schedule can number
MAX_ROWS = 2**13
MAX_KEYS = 2**24 - 1
MAX_TILES = 2**26
INTERPRETED = not isinstance(indexer_logits_kernel, triton.JITFunction)
# programs of a persistent grid where there is no GPU: few, so that each gets several rows and splits rows.
INTERPRETED_PROGRAMS = 5


@dataclass(frozen=True, slots=True)
class LogitsTiles:
    """Constants of one compilation. They depend on the layout, the query tokens and the GPU, never on the batch."""

    block: int
    warps: int
    stages: int
    programs_per_sm: int
    registers: int | None = None


def logits_tiles(layout: IndexKeyLayout, padded_tokens: int, heads: int, capability: tuple[int, int]) -> LogitsTiles:
    """Tiles that fit the GPU without spills; only one token with fp8 keys on sm_90 was chosen by measurement.

    padded_tokens  query tokens, rounded up to a power of two
    """
    hopper = capability[0] == 9
    slots = padded_tokens * heads
    if slots > 128:
        return LogitsTiles(block=64, warps=8, stages=3, programs_per_sm=1)
    if not hopper:
        return LogitsTiles(block=64, warps=4, stages=3, programs_per_sm=2)
    if layout is IndexKeyLayout.BF16 or padded_tokens > 1:
        return LogitsTiles(block=64, warps=4, stages=5, programs_per_sm=2)
    return LogitsTiles(block=128, warps=4, stages=5, programs_per_sm=3, registers=168)


@dataclass(frozen=True, slots=True)
class IndexerWorkspace:
    """What the indexer keeps between its kernels; allocate it once with `indexer_workspace`.

    logits  float32 [rows, max_keys]
    maxima  int32 [rows, max_keys / 16]: of each group of 16 logits the largest, as an integer that orders alike
    """

    logits: Tensor
    maxima: Tensor


def indexer_workspace(
    batch: int, query_tokens: int, max_keys: int, device: torch.device | str, *, logits: bool = True
) -> IndexerWorkspace:
    """A workspace for up to `batch` rows of `query_tokens` queries over `max_keys` keys (uninitialised).

    Without `logits` it has only what `topk_positions` needs.
    """
    rows = batch * query_tokens
    # rows start at multiples of 64 bytes, so that groups are read whole.
    keys = triton.cdiv(max_keys, 16 * GROUP) * 16 * GROUP
    return IndexerWorkspace(
        logits=torch.empty(rows if logits else 0, keys, dtype=torch.float32, device=device),
        maxima=torch.empty(rows, keys // GROUP, dtype=torch.int32, device=device),
    )


def paged_indexer_logits(
    query: Tensor,
    key_pages: Tensor,
    weights: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    *,
    layout: IndexKeyLayout,
    page_size: int,
    out: Tensor | None = None,
    workspace: IndexerWorkspace | None = None,
) -> Tensor:
    """Scores of each row's keys: logits[s] = k_scale[s] * sum_h weights[h] * relu(query[h] . key[s]).

    query        [batch, query_tokens, heads, 128]  e4m3 (fp8 keys) or bfloat16; 32 or 64 heads, at most 4 query tokens
    key_pages    fp8: uint8 [pages, >= page bytes]; bf16: bfloat16 [pages, page_size, 128]; pages may be any multiple of
                 16 bytes apart
    weights      float32 [batch, query_tokens, heads], the query's scale folded in; may be negative
    block_table  int32 [batch, width], page ids; entries past a row's length are never read
    lengths      int32 [batch] or [batch, query_tokens]: keys scored for each query token
    out          float32 [batch * query_tokens, >= width * page_size], made if absent
    workspace    with it, `out` defaults to `workspace.logits`, and `workspace.maxima` is filled for the top-k

    Returns `out`, cut to width * page_size. Positions at or past a length are not written. Neither synchronises nor
    allocates when `out` or `workspace` is given; lengths, table and contents may change between replays of a capture.
    A logit depends on nothing but its own query, weights and key, bitwise. Raises KernelArguments.
    """
    batch, query_tokens, heads = _check_inputs(query, key_pages, weights, block_table, lengths, layout, page_size)
    rows, max_keys = batch * query_tokens, block_table.shape[1] * page_size
    if out is None:
        out = workspace.logits if workspace is not None else query.new_empty((rows, max_keys), dtype=torch.float32)
    _check_rows("out", out, torch.float32, rows, max_keys, query.device)
    logits = out[:rows, :max_keys]
    if workspace is not None:
        _check_rows("workspace.maxima", workspace.maxima, torch.int32, rows, triton.cdiv(max_keys, GROUP), query.device)
    if rows == 0 or max_keys == 0:
        return logits
    check_schedule(batch, max_keys)

    padded_tokens = triton.next_power_of_2(query_tokens)
    tiles = logits_tiles(layout, padded_tokens, heads, capability_of(query.device))
    segments = batch * triton.cdiv(max_keys, tiles.block)
    maxima = workspace.maxima if workspace is not None else logits
    with device_scope(query.device):
        indexer_logits_kernel[(min(segments, persistent_programs(query.device, tiles.programs_per_sm)),)](
            query, key_pages, weights, block_table, lengths, logits, maxima,
            batch,
            query.stride(0), query.stride(1),
            key_pages.stride(0),
            weights.stride(0), weights.stride(1),
            block_table.stride(0),
            lengths.stride(0), lengths.stride(1) if lengths.ndim == 2 else 0,
            logits.stride(0), maxima.stride(0),
            TOKENS=query_tokens, PADDED_TOKENS=padded_tokens, HEADS=heads, DIM=INDEX_DIM,
            PAGE=page_size, BLOCK=tiles.block, ROWS=triton.next_power_of_2(batch), GROUP=GROUP,
            FP8=layout is IndexKeyLayout.FP8, MAXIMA=workspace is not None,
            UPCAST=INTERPRETED and layout is IndexKeyLayout.BF16, STAGES=tiles.stages,
            num_warps=tiles.warps, maxnreg=tiles.registers, **overlap(query.device),
        )  # fmt: skip
    return logits


def capability_of(device: torch.device) -> tuple[int, int]:
    """Compute capability of a CUDA device; of Hopper under the interpreter."""
    return (9, 0) if INTERPRETED else _capability(device.index)


def overlap(device: torch.device) -> dict[str, bool]:
    """Launch options of a kernel that waits by itself for the one before it (programmatic dependent launch).

    Such a kernel is launched while its predecessor ends, which hides most of the launch. Any kernel may come before
    and after it: without the attribute, or on an older GPU, its wait returns at once.
    """
    possible = not INTERPRETED and torch.version.cuda is not None and capability_of(device)[0] >= 9
    return {"OVERLAPPED": True, "launch_pdl": True} if possible else {"OVERLAPPED": False}


def persistent_programs(device: torch.device, per_sm: int) -> int:
    """Programs of a grid that fills the device `per_sm` times."""
    return INTERPRETED_PROGRAMS if INTERPRETED else _multiprocessors(device.index) * per_sm


def device_scope(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Makes `device` the current one, where Triton launches; does nothing for the interpreter's CPU tensors."""
    return contextlib.nullcontext() if INTERPRETED else torch.cuda.device(device.index)


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Raise KernelArguments unless the kernel can reach `tensor`."""
    if tensor.device != device:
        raise KernelArguments(f"{name} is on {tensor.device} but the query or logits on {device}, move one of them")
    if not INTERPRETED and device.type != "cuda":
        raise KernelArguments(f"{name} is on {device}; Triton needs a GPU, or TRITON_INTERPRET=1 before the import")


@functools.cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


@functools.cache
def _multiprocessors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def check_schedule(rows: int, max_keys: int) -> None:
    """Raise KernelArguments if the schedule has no room for so many rows or keys."""
    if rows > MAX_ROWS or max_keys > MAX_KEYS or rows * triton.cdiv(max_keys, 64) > MAX_TILES:
        raise KernelArguments(
            f"{rows} rows of up to {max_keys} keys, give at most {MAX_ROWS} rows of {MAX_KEYS} keys, "
            f"{64 * MAX_TILES} in all"
        )


def check_lengths(lengths: Tensor, batch: int, query_tokens: int) -> None:
    """Raise KernelArguments unless `lengths` is int32 [batch] or [batch, query_tokens]."""
    if lengths.dtype != torch.int32:
        raise KernelArguments(f"lengths are {lengths.dtype}, convert them to torch.int32")
    if lengths.shape not in ((batch,), (batch, query_tokens)):
        raise KernelArguments(f"lengths are {list(lengths.shape)}, give [{batch}] or [{batch}, {query_tokens}]")


def check_table(block_table: Tensor, batch: int) -> None:
    """Raise KernelArguments unless `block_table` is int32 [batch, width] with adjacent entries."""
    if block_table.dtype != torch.int32:
        raise KernelArguments(f"block_table is {block_table.dtype}, convert it to torch.int32")
    if block_table.ndim != 2 or block_table.shape[0] != batch or block_table.stride(1) != 1:
        raise KernelArguments(
            f"block_table is {list(block_table.shape)} with strides {block_table.stride()}, "
            f"give [{batch}, width] with adjacent entries"
        )


def _check_rows(name: str, tensor: Tensor, dtype: torch.dtype, rows: int, width: int, device: torch.device) -> None:
    if tensor.dtype != dtype:
        raise KernelArguments(f"{name} is {tensor.dtype}, give {dtype}")
    if tensor.ndim != 2 or tensor.shape[0] < rows or tensor.shape[1] < width or (width > 1 and tensor.stride(1) != 1):
        raise KernelArguments(
            f"{name} is {list(tensor.shape)} with strides {tensor.stride()}, "
            f"give at least [{rows}, {width}] with adjacent elements"
        )
    check_device(name, tensor, device)


def _check_inputs(
    query: Tensor,
    key_pages: Tensor,
    weights: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    layout: IndexKeyLayout,
    page_size: int,
) -> tuple[int, int, int]:
    if query.ndim != 4 or query.shape[2] not in HEADS or query.shape[3] != INDEX_DIM:
        raise KernelArguments(f"query is {list(query.shape)}, give [batch, query_tokens, 32 or 64, {INDEX_DIM}]")
    batch, query_tokens, heads, _ = query.shape
    if not 1 <= query_tokens <= MAX_QUERY_TOKENS:
        raise KernelArguments(f"{query_tokens} query tokens, give 1 to {MAX_QUERY_TOKENS}")
    if query.dtype != layout.query_dtype:
        raise KernelArguments(f"query is {query.dtype}, keys in layout {layout.value} need {layout.query_dtype}")
    if query.stride()[2:] != (INDEX_DIM, 1) or query.stride(0) % 16 or query.stride(1) % 16:
        raise KernelArguments(f"query has strides {query.stride()}, make its heads contiguous and 16-byte aligned")
    if page_size < 1 or page_size & (page_size - 1):
        raise KernelArguments(f"page_size is {page_size}, give a power of two")
    _check_pages(key_pages, layout, page_size)
    if weights.dtype != torch.float32 or weights.shape != query.shape[:3] or weights.stride(2) != 1:
        raise KernelArguments(
            f"weights are {weights.dtype} {list(weights.shape)}, give float32 {list(query.shape[:3])}, heads adjacent"
        )
    check_table(block_table, batch)
    check_lengths(lengths, batch, query_tokens)
    for name, tensor in (
        ("query", query), ("key_pages", key_pages), ("weights", weights), ("block_table", block_table),
        ("lengths", lengths),
    ):  # fmt: skip
        check_device(name, tensor, query.device)
    return batch, query_tokens, heads


def _check_pages(key_pages: Tensor, layout: IndexKeyLayout, page_size: int) -> None:
    fp8 = layout is IndexKeyLayout.FP8
    dtype = torch.uint8 if fp8 else torch.bfloat16
    least = page_bytes(layout, page_size)
    if key_pages.dtype != dtype:
        raise KernelArguments(f"key_pages are {key_pages.dtype}, layout {layout.value} needs {dtype}")
    right_shape = (
        key_pages.ndim == 2 and key_pages.shape[1] >= least and key_pages.stride(1) == 1
        if fp8
        else key_pages.shape[1:] == (page_size, INDEX_DIM) and key_pages.stride()[1:] == (INDEX_DIM, 1)
    )
    if not right_shape:
        wanted = f"[pages, at least {least}]" if fp8 else f"[pages, {page_size}, {INDEX_DIM}]"
        raise KernelArguments(
            f"key_pages are {list(key_pages.shape)} with strides {key_pages.stride()}, give {wanted}, a page contiguous"
        )
    if key_pages.stride(0) * key_pages.element_size() % 16 or key_pages.data_ptr() % 16:
        raise KernelArguments(
            f"pages start {key_pages.stride(0) * key_pages.element_size()} bytes apart at address "
            f"{key_pages.data_ptr()}, make both multiples of 16"
        )
