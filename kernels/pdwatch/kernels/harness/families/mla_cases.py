"""Cases of sparse MLA decode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pdwatch.kernels.harness.families.mla_bytes import dim_of, random_pages, unread_of_pages
from pdwatch.kernels.harness.kernel import Case, Kind

# lengths of a scope at which tiles, pages and top-k end
EDGES = (0, 1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96)
# page sizes beside the powers of two
_ODD_PAGES = (5, 61)
_QUERY_SCALE = 2.0


def mla_cases(layout: str, heads: tuple[int, ...], seed: int, device: torch.device) -> Iterator[Case]:
    """Cases of one seed: the named shapes are fixed, the odd ones drawn."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    def case(name: str, kind: Kind, batch: int, tokens: int, head_count: int, scopes: Sequence[_Scope]) -> Case:
        return _case(name, kind, layout, batch, tokens, head_count, scopes, generator, device)

    usual, few = heads[0], heads[-1]
    window, indexed = _Scope("window", 16, 6, 24), _Scope("indexed", 64, 4, 72)
    yield case("two scopes", Kind.RANDOM, 3, 1, usual, (window, indexed))
    yield case("two query tokens", Kind.RANDOM, 2, 2, usual, (window, indexed))
    odd = _ODD_PAGES[number(0, len(_ODD_PAGES) - 1)]
    narrow = _Scope("window", odd, 9, 2 * number(4, 16) + 1)
    wide = _Scope("indexed", 2, 40, EDGES[number(6, len(EDGES) - 2)] + 2)
    yield case("odd pages", Kind.ODD, 2 * number(1, 2) + 1, 1, few, (narrow, wide))
    yield case("one scope", Kind.ODD, 2, 1, few, (_Scope("window", 64, 3, 130, lengths=False),))
    yield case("four query tokens", Kind.ODD, 1, 4, few, (window, wide))
    if device.type == "cuda":
        # as deployed: schedules that depend on the number of keys come out as they will be served
        if layout.endswith("v4"):
            served = [_Scope("window", 256, 3, 128), _Scope("indexed", 64, 12, 512)]
        else:
            served = [_Scope("window", 64, 40, 2048)]
        yield case("as deployed", Kind.RANDOM, 3, 1, usual, served)
        yield case("many keys", Kind.RANDOM, 2, 1, usual, (window, _Scope("indexed", 64, 40, 1900)))
    yield _scaled(case("huge scores", Kind.ADVERSARIAL, 2, 1, few, (window, indexed)), 100.0)
    yield _with_empty_rows(case("empty rows", Kind.ADVERSARIAL, 4, 1, few, (window, indexed)))
    yield _with_duplicates(case("duplicates", Kind.ADVERSARIAL, 2, 1, few, (window, indexed)))
    yield _with_infinite_sinks(case("infinite sinks", Kind.ADVERSARIAL, 2, 1, few, (window, indexed)))
    yield _without_sink(case("no sink", Kind.ADVERSARIAL, 2, 1, few, (window, indexed)))


def one_scope_only(case: Case) -> Case:
    """The case with the window alone, its lengths written into the indices as -1: what V3.2 serves."""
    inputs = {name: value for name, value in case.inputs.items() if not name.startswith("indexed_")}
    indices, lengths = inputs["window_indices"], inputs["window_lengths"]
    if lengths is not None:
        beyond = torch.arange(indices.shape[-1], device=indices.device) >= lengths[:, None, None]
        inputs |= {"window_indices": indices.masked_fill(beyond, -1), "window_lengths": None}
    return _masked(Case(case.name, case.kind, inputs))


def mla_replays(layout: str, heads: tuple[int, ...], seed: int, device: torch.device) -> list[list[Case]]:
    """Two buckets of different batch. The dummy of each has length 1; then lengths up and down the edges."""
    generator = torch.Generator().manual_seed(seed + 77)
    scopes = (_Scope("window", 16, 6, 24), _Scope("indexed", 64, 4, 96))
    groups = []
    for batch in (4, 2):
        group = []
        for step, edge in enumerate((1, *EDGES, *EDGES[::-3])):
            case = _case(
                f"length {edge}, batch {batch}", Kind.RANDOM, layout, batch, 1, heads[0], scopes, generator, device
            )
            # the last row is padding once in a while; the others straddle the edge
            lengths = torch.tensor([max(edge - row, 0) if step % 2 else edge + row for row in range(batch)])
            if step % 3 == 2:
                lengths[-1] = 0
            for scope in scopes:
                values = lengths.clamp(max=scope.count).to(torch.int32).to(device)
                case.inputs[f"{scope.name}_lengths"].copy_(values)
            group.append(_masked(case))
        groups.append(group)
    return groups


def mla_timing(layout: str, heads: int, length: int, maximum: int, device: torch.device) -> dict[str, Any]:
    """`length` entries that count in a table of `maximum`."""
    generator = torch.Generator().manual_seed(0)
    inputs = _inputs(layout, 4, 1, heads, (_Scope("window", 64, 64, maximum),), generator, device)
    inputs["window_lengths"].fill_(length)
    return inputs


class _Scope:
    """A scope: pages of `page_size` rows, the last of which nobody uses, and `count` indices a query token."""

    def __init__(self, name: str, page_size: int, pages: int, count: int, lengths: bool = True) -> None:
        self.name = name
        self.page_size = page_size
        self.pages = pages
        self.count = count
        self.lengths = lengths

    def inputs(self, layout: str, batch: int, tokens: int, generator: torch.Generator) -> dict[str, Any]:
        slots = (self.pages - 1) * self.page_size
        indices = torch.randint(0, slots, (batch, tokens, self.count), generator=generator, dtype=torch.int32)
        # one in six is absent, anywhere
        indices[torch.rand(indices.shape, generator=generator) < 1 / 6] = -1
        lengths = torch.randint(self.count // 2, self.count + 1, (batch,), generator=generator, dtype=torch.int32)
        return {
            f"{self.name}_pages": random_pages(layout, self.pages, self.page_size, generator),
            f"{self.name}_page_size": self.page_size,
            f"{self.name}_indices": indices,
            f"{self.name}_lengths": lengths if self.lengths else None,
        }


def _inputs(
    layout: str,
    batch: int,
    tokens: int,
    heads: int,
    scopes: Sequence[_Scope],
    generator: torch.Generator,
    device: torch.device,
) -> dict[str, Any]:
    dim = dim_of(layout)
    query = torch.randn(batch, tokens, heads, dim, generator=generator) * _QUERY_SCALE
    inputs: dict[str, Any] = {
        "query": query.to(torch.bfloat16),
        "sink": torch.randn(heads, generator=generator),
        "scale": dim**-0.5,
        "layout": layout,
    }
    for scope in scopes:
        inputs |= scope.inputs(layout, batch, tokens, generator)
    return {name: _to(value, device) for name, value in inputs.items()}


def _case(
    name: str,
    kind: Kind,
    layout: str,
    batch: int,
    tokens: int,
    heads: int,
    scopes: Sequence[_Scope],
    generator: torch.Generator,
    device: torch.device,
) -> Case:
    return _masked(Case(name, kind, _inputs(layout, batch, tokens, heads, scopes, generator, device)))


def _masked(case: Case, **changed: Any) -> Case:
    """The case with other inputs, and with what must not be read worked out anew."""
    inputs = {**case.inputs, **changed}
    unread: dict[str, Tensor] = {}
    decoys: dict[str, int] = {}
    query = inputs["query"]
    keys = torch.zeros(query.shape[:2], dtype=torch.int64, device=query.device)
    for scope in ("window", "indexed"):
        if f"{scope}_pages" not in inputs:
            continue
        pages, page_size = inputs[f"{scope}_pages"], inputs[f"{scope}_page_size"]
        indices, lengths = inputs[f"{scope}_indices"], inputs[f"{scope}_lengths"]
        beyond = torch.zeros_like(indices, dtype=torch.bool)
        if lengths is not None:
            beyond = (torch.arange(indices.shape[-1], device=indices.device) >= lengths[:, None, None]).expand_as(
                indices
            )
        present = (indices >= 0) & ~beyond
        used = torch.zeros(pages.shape[0] * page_size, dtype=torch.bool, device=pages.device)
        used[indices[present].long()] = True
        unread[f"{scope}_pages"] = unread_of_pages(inputs["layout"], pages, page_size, used.view(-1, page_size))
        unread[f"{scope}_indices"] = beyond
        # the last page is nobody's: whoever goes there finds NaN
        decoys[f"{scope}_indices"] = (pages.shape[0] - 1) * page_size
        if lengths is not None:
            # what stands beside the lengths looks like a length
            decoys[f"{scope}_lengths"] = indices.shape[-1]
        keys += present.sum(dim=-1)
    unread["query"] = (keys == 0)[:, :, None, None].expand_as(query)
    return Case(case.name, case.kind, inputs, unread, decoys)


def _scaled(case: Case, factor: float) -> Case:
    return _masked(case, query=case.inputs["query"] * factor)


def _with_empty_rows(case: Case) -> Case:
    """Row 0 has no lengths, row 1 only -1, row 2 a single key at the very end, row 3 the window only."""
    changed = {
        name: case.inputs[name].clone()
        for name in ("window_lengths", "indexed_lengths", "window_indices", "indexed_indices")
    }
    changed["window_lengths"][0] = 0
    changed["indexed_lengths"][0] = 0
    for name in ("window", "indexed"):
        changed[f"{name}_indices"][1:3] = -1
        changed[f"{name}_lengths"][1:3] = changed[f"{name}_indices"].shape[-1]
    changed["indexed_indices"][2, :, -1] = 5
    changed["indexed_lengths"][3] = 0
    return _masked(case, **changed)


def _with_duplicates(case: Case) -> Case:
    indices = case.inputs["indexed_indices"].clone()
    indices[0] = 7
    indices[1] = indices[1, :, :1].clamp(min=0)
    return _masked(case, indexed_indices=indices)


def _with_infinite_sinks(case: Case) -> Case:
    sink = case.inputs["sink"].clone()
    sink[0], sink[1] = float("inf"), float("-inf")
    return _masked(case, sink=sink)


def _without_sink(case: Case) -> Case:
    return _masked(case, sink=None)


def _to(value: Any, device: torch.device) -> Any:
    """A tensor on the device, strides as they were."""
    if not isinstance(value, Tensor) or device.type == "cpu":
        return value
    moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return moved.copy_(value)
