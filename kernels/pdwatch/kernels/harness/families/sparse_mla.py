"""Sparse MLA decode over packed pages: inputs, reference and limits.

Inputs by name:

    query                              bf16 [batch, query_tokens, heads, dim]
    sink                               fp32 [heads], or None
    scale, layout                      constants
    window_pages, window_page_size     the scope of the sliding window, as `layout` packs it
    window_indices                     int32 [batch, query_tokens, count], page * page_size + offset, -1 = none
    window_lengths                     int32 [batch]: the leftmost entries that count
    indexed_pages, …                   the same for the indexed scope; absent when there is one scope only

Results: `out` [batch, query_tokens, heads, 512] and `lse` [batch, query_tokens, heads], natural logarithm, without the
sink; a row without keys has out 0 and lse -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from pdwatch.kernels.harness.families.mla_bytes import restrided, rows_of_pages
from pdwatch.kernels.harness.families.mla_cases import mla_cases, mla_replays, mla_timing
from pdwatch.kernels.harness.families.mla_huge import mla_huge
from pdwatch.kernels.harness.kernel import (
    ALL_PROMISES,
    Buffers,
    Case,
    Expected,
    Family,
    Inputs,
    KernelUnderTest,
    Outputs,
    Promise,
    Run,
    Tolerance,
)

VALUE_DIM = 512
SCOPES = ("window", "indexed")
BATCHED = {name: 0 for name in ("query", "window_indices", "window_lengths", "indexed_indices", "indexed_lengths")}
OUT = Tolerance(
    "P is rounded to bf16 for the tensor cores: an independent relative error of 2^-9 for each key, so 2^-7 is seven "
    "standard deviations of the sum; the result is rounded once more",
    ulps=1.0,
    of_magnitude=2.0**-7,
)
LSE = Tolerance(
    "scores are accumulated in fp32 over at most 576 products, in the order of the tensor core",
    of_magnitude=2.0**-18,
)


def sparse_mla_kernel(
    name: str,
    layout: str,
    run: Run,
    *,
    heads: tuple[int, ...] = (16, 8),
    buffers: Callable[[Inputs], Buffers] | None = None,
    second_reference: Callable[[Inputs], Outputs] | None = None,
    invalid: Callable[[Inputs], Iterable[tuple[str, Inputs]]] | None = None,
    promises: frozenset[Promise] = ALL_PROMISES - {Promise.WORK_BY_LENGTH},
    devices: tuple[str, ...] = ("cpu", "cuda"),
    operators_only: bool = False,
) -> KernelUnderTest:
    """A sparse MLA decode kernel of one layout. `heads` are the head counts it takes, the usual one first."""
    return KernelUnderTest(
        name=name,
        family=Family.SPARSE_MLA,
        run=run,
        reference=mla_reference,
        cases=lambda seed, device: mla_cases(layout, heads, seed, device),
        tolerances={"out": OUT, "lse": LSE},
        batched=BATCHED,
        buffers=buffers,
        second_reference=second_reference,
        variants=mla_variants,
        replays=lambda seed, device: mla_replays(layout, heads, seed, device),
        huge=lambda seed, device: mla_huge(layout, heads[0], seed, device),
        timing=lambda length, maximum, device: mla_timing(layout, heads[0], length, maximum, device),
        invalid=invalid,
        promises=promises,
        devices=devices,
        operators_only=operators_only,
    )


def mla_reference(inputs: Inputs) -> dict[str, Expected]:
    """Row by row in float64, from the bytes of the pages.

    The magnitude of `out` is the root of the sum of squares of its terms, which is how independent roundings add up (a
    row that is attended to twice is rounded alike twice: one term); scores that are themselves rounded (fp32 scales of
    `fp8_v32` are multiplied into bf16 keys) add their part, and so do weights below 2^-40, which may be flushed.
    """
    query = inputs["query"].to(torch.float64)
    batch, tokens, heads, _ = query.shape
    out = query.new_zeros(batch, tokens, heads, VALUE_DIM)
    lse = query.new_full((batch, tokens, heads), float("-inf"))
    out_magnitude, lse_magnitude = torch.zeros_like(out), torch.ones_like(lse)
    sink = inputs["sink"]
    key_error = 1.0 if inputs["layout"] == "fp8_v32" else 0.0
    for row in range(batch):
        for token in range(tokens):
            attended = [_attended(inputs, scope, row, token) for scope in scopes_of(inputs)]
            keys = torch.cat([rows for _, rows in attended])
            if not len(keys):
                continue
            scores = query[row, token] @ keys.T * inputs["scale"]
            sizes = (query[row, token].abs() @ keys.abs().T * abs(inputs["scale"])).amax(dim=-1)
            roots = (query[row, token].square() @ keys.square().T).sqrt().amax(dim=-1) * abs(inputs["scale"])
            total = scores.logsumexp(dim=-1)
            share = torch.ones_like(total) if sink is None else torch.sigmoid(total - sink.to(torch.float64))
            weights = scores.softmax(dim=-1) * share[:, None]
            values = keys[:, :VALUE_DIM]
            out[row, token], lse[row, token] = weights @ values, total
            merged = _merged(weights, [slots for slots, _ in attended])
            independent = (merged.square() @ values.square()).sqrt() * (1 + key_error * roots[:, None])
            absolute = weights @ values.abs()
            flushed = 2.0**-33 * absolute.amax(dim=-1, keepdim=True)
            out_magnitude[row, token] = independent + absolute * (2.0**-12 * sizes[:, None]) + flushed
            lse_magnitude[row, token] = 1 + sizes + 2.0**10 * key_error * roots
    return {"out": Expected(out, out_magnitude), "lse": Expected(lse, lse_magnitude)}


def scopes_of(inputs: Inputs) -> tuple[str, ...]:
    return tuple(scope for scope in SCOPES if f"{scope}_pages" in inputs)


def mla_variants(case: Case, generator: torch.Generator) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same rows elsewhere: pages permuted, pages further apart, other pages in front."""
    moved, apart, behind = dict(case.inputs), dict(case.inputs), dict(case.inputs)
    for scope in scopes_of(case.inputs):
        pages, indices = case.inputs[f"{scope}_pages"], case.inputs[f"{scope}_indices"]
        page_size, count = case.inputs[f"{scope}_page_size"], pages.shape[0]
        order = torch.randperm(count, generator=generator).to(pages.device)
        shuffled = torch.empty_strided(pages.shape, pages.stride(), dtype=pages.dtype, device=pages.device)
        shuffled[order] = pages
        moved[f"{scope}_pages"] = shuffled
        page = order[indices.clamp(min=0).div(page_size, rounding_mode="floor").long()].to(torch.int32)
        moved[f"{scope}_indices"] = torch.where(indices < 0, indices, page * page_size + indices % page_size)
        apart[f"{scope}_pages"] = restrided(pages, 1152 if pages.dtype == torch.uint8 else 64 * pages.shape[-1])
        front = 3
        behind[f"{scope}_pages"] = torch.cat([pages[:front], pages])
        behind[f"{scope}_indices"] = torch.where(indices < 0, indices, indices + min(front, count) * page_size).to(
            torch.int32
        )
    yield "pages permuted", moved
    yield "pages further apart", apart
    yield "other pages in front", behind


def _merged(weights: Tensor, slots: list[Tensor]) -> Tensor:
    """Weights [heads, keys] with those of one slot summed up at its first key, zeros at the others."""
    named = torch.cat([slot * 2 + number for number, slot in enumerate(slots)])
    first = (named[:, None] == named).int().argmax(dim=1)
    return torch.zeros_like(weights).index_add_(1, first, weights)


def _attended(inputs: Inputs, scope: str, row: int, token: int) -> tuple[Tensor, Tensor]:
    """Slots [keys] and rows [keys, dim], float64, that one query token attends to in one scope."""
    indices = inputs[f"{scope}_indices"][row, token]
    lengths = inputs[f"{scope}_lengths"]
    if lengths is not None:
        indices = indices[: int(lengths[row])]
    slots = indices[indices >= 0].long()
    page_size = inputs[f"{scope}_page_size"]
    needed, place = slots.div(page_size, rounding_mode="floor").unique(return_inverse=True)
    rows = rows_of_pages(inputs["layout"], inputs[f"{scope}_pages"][needed], page_size)
    return slots, rows[place, slots % page_size]
