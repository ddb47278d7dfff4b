"""The kernels that the embedded engine calls, by way of a table: small dims, fp32 pools, positions instead of slots.

Argument names and results are those of `pdwatch.kernels`; `heads` and `dims` here are as small as the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pdwatch.kernels import KernelTable
from pdwatch.kernels.harness.families.mla_huge import untouched
from pdwatch.kernels.harness.families.topk import judge_by_rule, topk_cases, topk_replays
from pdwatch.kernels.harness.kernel import (
    Buffers,
    Case,
    Expected,
    Family,
    Inputs,
    KernelUnderTest,
    Kind,
    Outputs,
    Promise,
    Tolerance,
)

WINDOW = 6
EDGES = (0, 1, 3, 4, 5, 6, 7, 15, 16, 17, 31, 32, 33, 47, 48)
_SUMS = Tolerance("everything is fp32: sums of at most 64 terms", ulps=4.0, of_magnitude=2.0**-18)


def embedded_kernels(
    table: KernelTable, promises: frozenset[Promise], operators_only: bool = True
) -> list[KernelUnderTest]:
    """The decode kernels of a table, each under the table's name."""

    def attend(inputs: Inputs, buffers: Buffers | None) -> Outputs:
        out, lse = table.sparse_mla_decode(**inputs)
        return {"out": out, "lse": lse}

    def score(inputs: Inputs, buffers: Buffers | None) -> Outputs:
        return {"logits": table.indexer_logits(**inputs)}

    def choose(inputs: Inputs, buffers: Buffers | None) -> Outputs:
        return {"positions": table.select_topk(inputs["logits"], inputs["count"])}

    attention, indexer = _Maker(_attention_inputs, _attention_unread), _Maker(_indexer_inputs, _indexer_unread)
    promises = promises - {Promise.ALLOCATES_NOTHING, Promise.ANY_WORKSPACE, Promise.UNDEFINED_UNTOUCHED}
    return [
        KernelUnderTest(
            name=f"{table.name}.sparse_mla_decode",
            family=Family.SPARSE_MLA,
            run=attend,
            reference=attention_reference,
            cases=attention.cases,
            tolerances={"out": _SUMS, "lse": _SUMS},
            batched={"query": 0, "block_table": 0, "selected": 0, "lengths": 0},
            variants=_variants,
            replays=attention.replays,
            huge=attention.huge,
            promises=promises,
            operators_only=operators_only,
        ),
        KernelUnderTest(
            name=f"{table.name}.indexer_logits",
            family=Family.INDEXER_LOGITS,
            run=score,
            reference=scores_reference,
            cases=indexer.cases,
            tolerances={"logits": _SUMS},
            batched={"query": 0, "weights": 0, "block_table": 0, "lengths": 0},
            variants=_variants,
            replays=indexer.replays,
            huge=indexer.huge,
            promises=promises,
            operators_only=operators_only,
        ),
        KernelUnderTest(
            name=f"{table.name}.select_topk",
            family=Family.TOPK,
            run=choose,
            reference=choice_reference,
            cases=lambda seed, device: map(_without_lengths, topk_cases(16, False, seed, device)),
            judge=judge_by_rule,
            batched={"logits": 0, "lengths": 0},
            replays=lambda seed, device: [
                [_without_lengths(case) for case in group] for group in topk_replays(16, seed, device)
            ],
            promises=promises,
            operators_only=operators_only,
        ),
    ]


def attention_reference(inputs: Inputs) -> dict[str, Expected]:
    """`sparse_mla_decode` row by row in float64."""
    query, sink = inputs["query"].to(torch.float64), inputs["sink"].to(torch.float64)
    out, lse = torch.zeros_like(query), query.new_full(query.shape[:2], float("-inf"))
    out_magnitude, lse_magnitude = torch.zeros_like(query), torch.ones_like(lse)
    for row in range(len(query)):
        length = int(inputs["lengths"][row])
        selected = [place for place in inputs["selected"][row].tolist() if place >= 0]
        places = [*selected, *range(max(length - inputs["window"], 0), length)]
        if not places:
            continue
        keys = _rows(inputs["latent_pages"], inputs["block_table"][row], places)
        scores = query[row] @ keys.T * inputs["scale"]
        total = scores.logsumexp(dim=-1)
        weights = scores.softmax(dim=-1) * torch.sigmoid(total - sink)[:, None]
        out[row], lse[row] = weights @ keys, total
        sizes = (query[row].abs() @ keys.abs().T).amax(dim=-1) * abs(inputs["scale"])
        out_magnitude[row] = (weights @ keys.abs()) * (1 + sizes[:, None])
        lse_magnitude[row] = 1 + sizes
    return {"out": Expected(out, out_magnitude), "lse": Expected(lse, lse_magnitude)}


def scores_reference(inputs: Inputs) -> dict[str, Expected]:
    """`indexer_logits` row by row in float64."""
    query, weights = inputs["query"].to(torch.float64), inputs["weights"].to(torch.float64)
    batch, width = inputs["block_table"].shape
    positions = width * inputs["key_pages"].shape[1]
    logits = query.new_full((batch, positions), float("-inf"))
    magnitude = query.new_zeros(batch, positions)
    for row in range(batch):
        scored = max(int(inputs["lengths"][row]) - inputs["window"], 0)
        if scored:
            keys = _rows(inputs["key_pages"], inputs["block_table"][row], range(scored))
            logits[row, :scored] = weights[row] @ (query[row] @ keys.T).relu()
            magnitude[row, :scored] = weights[row].abs() @ (query[row].abs() @ keys.abs().T)
    return {"logits": Expected(logits, magnitude)}


def choice_reference(inputs: Inputs) -> dict[str, Expected]:
    """`select_topk` by sorting tuples; -inf is never chosen."""
    rows = []
    for logits in inputs["logits"].tolist():
        ranked = sorted((-logit, place) for place, logit in enumerate(logits) if logit != float("-inf"))
        chosen = sorted(place for _, place in ranked[: inputs["count"]])
        rows.append(chosen + [-1] * (inputs["count"] - len(chosen)))
    return {"positions": Expected(torch.tensor(rows, dtype=torch.int64, device=inputs["logits"].device))}


class _Maker:
    """Cases of the two paged kernels; `make` gives the inputs for lengths, `mask` what must not be read."""

    def __init__(self, make: Callable[..., dict[str, Any]], mask: Callable[[Case], Case]) -> None:
        self._make = make
        self._mask = mask

    def cases(self, seed: int, device: torch.device) -> Iterator[Case]:
        generator = torch.Generator().manual_seed(seed)
        odd = int(torch.randint(9, 40, (1,), generator=generator))
        yield self._case("mixed lengths", Kind.RANDOM, generator, device, [45, 33, 21], heads=4, dim=32, page=16)
        yield self._case("odd sizes", Kind.ODD, generator, device, [odd, 17, 9, odd + 1, 31], heads=3, dim=23, page=5)
        yield self._case("page edges", Kind.ODD, generator, device, [32, 33, 31, 16], heads=1, dim=8, page=16)
        yield self._case("short rows", Kind.ADVERSARIAL, generator, device, [1, 0, 6, 7], heads=2, dim=16, page=4)
        huge = self._case("huge scores", Kind.ADVERSARIAL, generator, device, [30, 12], heads=2, dim=16, page=4)
        yield self._mask(Case(huge.name, huge.kind, {**huge.inputs, "query": huge.inputs["query"] * 300}))
        dead = self._case("dead keys", Kind.TIES, generator, device, [30, 12], heads=2, dim=16, page=4)
        pool = "key_pages" if "key_pages" in dead.inputs else "latent_pages"
        changed = {"query": dead.inputs["query"].abs(), pool: -dead.inputs[pool].abs()}
        yield self._mask(Case(dead.name, dead.kind, {**dead.inputs, **changed}))

    def replays(self, seed: int, device: torch.device) -> list[list[Case]]:
        generator = torch.Generator().manual_seed(seed + 77)
        groups = []
        for batch in (4, 2):
            group = []
            for step, edge in enumerate((1, *EDGES, *EDGES[::-3])):
                lengths = [max(edge - row, 0) if step % 2 else min(edge + row, 48) for row in range(batch)]
                lengths[-1] = 0 if step % 3 == 2 else lengths[-1]
                name = f"length {edge}, batch {batch}"
                group.append(
                    self._case(name, Kind.RANDOM, generator, device, lengths, heads=4, dim=32, page=16, width=4)
                )
            groups.append(group)
        return groups

    def huge(self, seed: int, device: torch.device) -> Case | None:
        """A pool of more than 2^31 numbers, of which both ends are used."""
        generator = torch.Generator().manual_seed(seed + 5)
        case = self._case("2^31 numbers", Kind.ADVERSARIAL, generator, device, [60, 64], heads=4, dim=32, page=16)
        name = "key_pages" if "key_pages" in case.inputs else "latent_pages"
        small = case.inputs[name]
        pages = 2**31 // small[0].numel() + small.shape[0]
        memory = untouched(pages * small[0].numel() * 4, device)
        if memory is None:
            return None
        pool = memory.view(torch.float32).view(pages, *small.shape[1:])
        half = small.shape[0] // 2
        pool[:half], pool[pages - small.shape[0] + half :] = small[:half], small[half:]
        table = case.inputs["block_table"]
        moved = torch.where(table < half, table, table + (pages - small.shape[0]))
        return Case(case.name, case.kind, {**case.inputs, name: pool, "block_table": moved})

    def _case(
        self,
        name: str,
        kind: Kind,
        generator: torch.Generator,
        device: torch.device,
        lengths: Sequence[int],
        *,
        heads: int,
        dim: int,
        page: int,
        width: int | None = None,
    ) -> Case:
        needed = [-(-length // page) for length in lengths]
        # a group for replay has one shape: as many pages as its table could name
        pages = (sum(needed) if width is None else len(needed) * width) + 2
        width = width if width is not None else -(-max(lengths) // page) + 1
        order = torch.randperm(pages - 1, generator=generator).tolist()
        table = torch.randint(0, pages - 1, (len(lengths), width), generator=generator)
        for row, count in enumerate(needed):
            table[row, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int64)
        pool = torch.randn(pages, page, dim, generator=generator)
        inputs = self._make(generator, pool, table, torch.tensor(lengths), heads)
        return self._mask(
            Case(
                name,
                kind,
                {key: value.to(device) if isinstance(value, Tensor) else value for key, value in inputs.items()},
            )
        )


def _attention_inputs(
    generator: torch.Generator, pool: Tensor, table: Tensor, lengths: Tensor, heads: int
) -> dict[str, Any]:
    batch, count = len(lengths), 12
    selected = torch.full((batch, count), -1)
    for row, length in enumerate(lengths.tolist()):
        older = torch.randperm(max(length - WINDOW, 0), generator=generator)[: count - 2].sort().values
        # -1 stands between valid positions too
        places = torch.randperm(count, generator=generator)[: len(older)].sort().values
        selected[row, places] = older
    return {
        "query": torch.randn(batch, heads, pool.shape[-1], generator=generator),
        "latent_pages": pool,
        "block_table": table,
        "selected": selected,
        "lengths": lengths,
        "sink": torch.randn(heads, generator=generator),
        "window": WINDOW,
        "scale": 0.5,
    }


def _indexer_inputs(
    generator: torch.Generator, pool: Tensor, table: Tensor, lengths: Tensor, heads: int
) -> dict[str, Any]:
    return {
        "query": torch.randn(len(lengths), heads, pool.shape[-1], generator=generator),
        "key_pages": pool,
        "weights": torch.randn(len(lengths), heads, generator=generator),
        "block_table": table,
        "lengths": lengths,
        "window": WINDOW,
    }


def _attention_unread(case: Case) -> Case:
    inputs = case.inputs
    reads = [
        {
            *(place for place in inputs["selected"][row].tolist() if place >= 0),
            *range(max(length - inputs["window"], 0), length),
        }
        for row, length in enumerate(inputs["lengths"].tolist())
    ]
    return _unread(case, "latent_pages", reads)


def _indexer_unread(case: Case) -> Case:
    reads = [set(range(max(length - case.inputs["window"], 0))) for length in case.inputs["lengths"].tolist()]
    return _unread(case, "key_pages", reads)


def _unread(case: Case, pool: str, reads: Sequence[set[int]]) -> Case:
    """`reads` are the positions that each row reads."""
    pages, table = case.inputs[pool], case.inputs["block_table"]
    page_size = pages.shape[1]
    unread_pages = torch.ones(pages.shape, dtype=torch.bool, device=pages.device)
    unread_table = torch.ones(table.shape, dtype=torch.bool, device=table.device)
    for row, places in enumerate(reads):
        for place in places:
            unread_table[row, place // page_size] = False
            unread_pages[int(table[row, place // page_size]), place % page_size] = False
    unread = {pool: unread_pages, "block_table": unread_table}
    # the last page is nobody's
    return Case(case.name, case.kind, case.inputs, unread, {"block_table": pages.shape[0] - 1})


def _variants(case: Case, generator: torch.Generator) -> Iterator[tuple[str, dict[str, Any]]]:
    inputs = case.inputs
    name = "key_pages" if "key_pages" in inputs else "latent_pages"
    pages, table = inputs[name], inputs["block_table"]
    order = torch.randperm(pages.shape[0], generator=generator).to(pages.device)
    shuffled = torch.empty_like(pages)
    shuffled[order] = pages
    yield "pages permuted", {**inputs, name: shuffled, "block_table": order[table]}


def _rows(pages: Tensor, table: Tensor, places: Sequence[int]) -> Tensor:
    """The rows of a pool at these positions, float64."""
    size = pages.shape[1]
    return torch.stack([pages[int(table[place // size]), place % size] for place in places]).to(torch.float64)


def _without_lengths(case: Case) -> Case:
    """The case with -inf at and past each row's length."""
    logits, lengths = case.inputs["logits"], case.inputs["lengths"]
    beyond = torch.arange(logits.shape[1], device=logits.device) >= lengths[:, None]
    inputs = {"logits": logits.masked_fill(beyond, float("-inf")), "lengths": lengths, "count": case.inputs["count"]}
    return Case(case.name, case.kind, inputs)
