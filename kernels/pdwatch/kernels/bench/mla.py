"""Sparse MLA decode: inputs of a case, and who can compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pdwatch.kernels.bench.cases import MlaCase
from pdwatch.kernels.bench.eager import eager_sparse_mla
from pdwatch.kernels.bench.errors import Unsuitable
from pdwatch.kernels.bench.problem import EAGER, OURS, rotation
from pdwatch.kernels.bench.timing import Call
from pdwatch.kernels.layout_mla import VALUE_DIM, KvScope, MlaLayout

FLASH_MLA = "FlashMLA"
PER_HEAD = "per-head Triton"
POOL_ROWS = 1 << 20
# eager PyTorch gathers and unpacks all rows at once
_MOST_EAGER_ROWS = 1 << 19


@dataclass(frozen=True, slots=True)
class MlaInputs:
    """Arguments of one call."""

    query: Tensor
    scopes: list[KvScope]
    sink: Tensor


class Pools:
    """Pools of random rows by layout and page size, made when first asked for."""

    def __init__(self, device: str, rows: int = POOL_ROWS) -> None:
        self.device = device
        self.rows = rows
        self._pools: dict[tuple[MlaLayout, int], Tensor] = {}

    def of(self, layout: MlaLayout, page_size: int) -> Tensor:
        key = (layout, page_size)
        if key not in self._pools:
            self._pools[key] = random_pool(layout, self.rows // page_size, page_size, self.device)
        return self._pools[key]


class MlaProblem:
    """A Problem (see `problem.py`): rows anywhere in pools that no L2 holds."""

    def __init__(self, case: MlaCase, pools: Pools, sets: int | None = None) -> None:
        self.case = case
        self.scale = VALUE_DIM**-0.5 if case.layout.is_v4 else 192**-0.5
        self._pools = pools
        self.sets = [self._inputs() for _ in range(sets or rotation(case.least_bytes))]

    @property
    def implementations(self) -> Mapping[str, Callable[[], list[Call]]]:
        return {OURS: self._ours, FLASH_MLA: self._flash_mla, PER_HEAD: self._per_head, EAGER: self._eager}

    def difference(self, ours: Tensor, theirs: Tensor) -> float:
        """Norm of the difference over the norm, both over everything."""
        return float((ours.float() - theirs.float()).norm() / theirs.float().norm())

    def _inputs(self) -> MlaInputs:
        case, device = self.case, self._pools.device
        query = torch.randn(case.batch, 1, case.heads, case.layout.dim, device=device).to(torch.bfloat16)
        scopes = []
        for count, size, length in zip(
            case.counts, case.page_sizes, case.lengths or (None,) * len(case.counts), strict=True
        ):
            slots = self._pools.rows // size * size
            indices = torch.randint(0, slots, (case.batch, 1, count), device=device, dtype=torch.int32)
            lengths = None if length is None else torch.full((case.batch,), length, device=device, dtype=torch.int32)
            scopes.append(KvScope(self._pools.of(case.layout, size), case.layout, size, indices, lengths))
        return MlaInputs(query, scopes, torch.randn(case.heads, device=device))

    def _ours(self) -> list[Call]:
        from pdwatch.kernels.triton_mla import sparse_mla, sparse_mla_workspace

        case, device = self.case, self._pools.device
        out = torch.empty(case.batch, 1, case.heads, VALUE_DIM, dtype=torch.bfloat16, device=device)
        lse = torch.empty(case.batch, 1, case.heads, dtype=torch.float32, device=device)
        workspace = sparse_mla_workspace(case.batch, 1, case.heads, case.counts, device)

        def call(inputs: MlaInputs) -> Tensor:
            query, scopes, sink = inputs.query, inputs.scopes, inputs.sink
            return sparse_mla(query, scopes, self.scale, sink, out=out, lse=lse, workspace=workspace)[0]

        return [partial(call, inputs) for inputs in self.sets]

    def _flash_mla(self) -> list[Call]:
        if not self.case.layout.is_fp8 or self.case.heads not in (64, 128):
            raise Unsuitable("takes fp8 rows and 64 or 128 heads")
        from flash_mla import get_mla_metadata

        # a schedule belongs to the lengths of its first call, so each set has its own
        return [partial(self._call_flash_mla, inputs, get_mla_metadata()[0]) for inputs in self.sets]

    def _call_flash_mla(self, inputs: MlaInputs, schedule: object) -> Tensor:
        from flash_mla import flash_mla_with_kvcache

        width = 584 if self.case.layout.is_v4 else 656
        caches = [
            scope.pages[:, : scope.page_size * width].view(torch.float8_e4m3fn).view(-1, scope.page_size, 1, width)
            for scope in inputs.scopes
        ]
        first, *others = inputs.scopes
        extra = {}
        for cache, scope in zip(caches[1:], others, strict=True):
            extra = {
                "extra_k_cache": cache,
                "extra_indices_in_kvcache": scope.indices,
                "extra_topk_length": scope.lengths,
            }
        out: Tensor = flash_mla_with_kvcache(
            q=inputs.query,
            k_cache=caches[0],
            block_table=None,
            cache_seqlens=None,
            head_dim_v=VALUE_DIM,
            tile_scheduler_metadata=schedule,
            softmax_scale=self.scale,
            is_fp8_kvcache=True,
            indices=first.indices,
            topk_length=first.lengths,
            attn_sink=inputs.sink,
            **extra,
        )[0]
        return out

    def _per_head(self) -> list[Call]:
        if self.case.layout is not MlaLayout.FP8_V4 or self.case.lengths is not None:
            raise Unsuitable("is written for fp8 rows of V4 without lengths")
        from pdwatch.kernels.bench.per_head import sparse_mla_per_head

        return [
            partial(sparse_mla_per_head, inputs.query, inputs.scopes, self.scale, inputs.sink) for inputs in self.sets
        ]

    def _eager(self) -> list[Call]:
        if self.case.batch * sum(self.case.counts) > _MOST_EAGER_ROWS:
            raise Unsuitable("would unpack too many rows at once")
        return [
            partial(eager_sparse_mla, inputs.query, inputs.scopes, self.scale, inputs.sink) for inputs in self.sets[:3]
        ]


def random_pool(layout: MlaLayout, pages: int, page_size: int, device: str) -> Tensor:
    """Pages of random finite rows whose scales are about 1/64, made without packing, which would take long."""
    if not layout.is_fp8:
        return torch.randn(pages, page_size, layout.dim, device=device, dtype=torch.float32).to(torch.bfloat16)
    pool = torch.randint(0, 256, (pages, layout.page_bytes(page_size)), dtype=torch.uint8, device=device)
    # 0x7f and 0xff are NaN
    pool.masked_fill_(pool & 127 == 127, 0)
    if layout is MlaLayout.FP8_V4:
        pool[:, : page_size * 576].view(pages, page_size, 576)[..., 448:].view(torch.bfloat16).normal_()
        pool[:, page_size * 576 :] = 121 + pool[:, page_size * 576 :] % 3
    else:
        tokens = pool.view(pages, page_size, 656)
        tokens[..., 512:528].view(torch.float32).uniform_(0.01, 0.03)
        tokens[..., 528:].view(torch.bfloat16).normal_()
    return pool
