"""Paged indexer logits: inputs, reference and limits.

Inputs by name:

    query        e4m3 or bf16 [batch, query_tokens, heads, 128], as `layout` has it
    key_pages    `fp8_132`: uint8 [pages, page_size * 132], values and then fp32 scales; `bf16`: [pages, page_size, 128]
    weights      fp32 [batch, query_tokens, heads]
    block_table  int32 [batch, width]
    lengths      int32 [batch, query_tokens]: keys scored by each query token
    layout, page_size, maximum   constants; `maximum` is the number of logits in a row

Result: `logits` fp32 [batch, query_tokens, maximum], defined at positions < length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pdwatch.kernels.harness.compare import allowance
from pdwatch.kernels.harness.families.mla_bytes import restrided
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
    Promise,
    Run,
    Tolerance,
)

DIM = 128
# more bytes than the L2 cache of any GPU of today
_TIMED_PAGES = 16384
EDGES = (0, 1, 3, 4, 5, 63, 64, 65, 127, 128, 129, 191, 192)
BATCHED = {"query": 0, "weights": 0, "block_table": 0, "lengths": 0}
TOLERANCES = {
    "fp8_132": Tolerance(
        "Hopper's 8-bit tensor cores align the 32 products of an instruction to the largest and keep about 13 bits "
        "below it; the errors of the heads are independent",
        of_magnitude=2.0**-11,
    ),
    "bf16": Tolerance(
        "products of bf16 are exact in fp32, where 128 and then the heads are added", of_magnitude=2.0**-19
    ),
}


def indexer_kernel(
    name: str,
    layout: str,
    run: Run,
    *,
    heads: tuple[int, ...] = (64, 32),
    page_sizes: tuple[int, ...] = (64,),
    query_tokens: tuple[int, ...] = (1, 2),
    buffers: Callable[[Inputs], Buffers] | None = None,
    second_reference: Callable[[Inputs], Outputs] | None = None,
    invalid: Callable[[Inputs], Iterable[tuple[str, Inputs]]] | None = None,
    promises: frozenset[Promise] = ALL_PROMISES,
    devices: tuple[str, ...] = ("cpu", "cuda"),
    operators_only: bool = False,
) -> KernelUnderTest:
    """An indexer kernel of one layout. Of heads, page sizes and query tokens the usual one comes first."""
    maker = _Maker(layout, heads, page_sizes, query_tokens)
    return KernelUnderTest(
        name=name,
        family=Family.INDEXER_LOGITS,
        run=run,
        reference=indexer_reference,
        cases=maker.cases,
        tolerances={"logits": TOLERANCES[layout]},
        batched=BATCHED,
        buffers=buffers,
        second_reference=second_reference,
        variants=indexer_variants,
        replays=maker.replays,
        huge=maker.huge,
        timing=maker.timing,
        invalid=invalid,
        promises=promises,
        devices=devices,
        operators_only=operators_only,
    )


def indexer_choice_kernel(
    name: str,
    layout: str,
    run: Run,
    *,
    heads: tuple[int, ...] = (64, 32),
    page_sizes: tuple[int, ...] = (64,),
    query_tokens: tuple[int, ...] = (1, 2),
    count: int = 48,
    buffers: Callable[[Inputs], Buffers] | None = None,
    promises: frozenset[Promise] = ALL_PROMISES,
    devices: tuple[str, ...] = ("cpu", "cuda"),
    operators_only: bool = False,
) -> KernelUnderTest:
    """An indexer that returns the `count` best positions instead of the logits: int32 [batch, query_tokens, count]."""
    maker = _Maker(layout, heads, page_sizes, query_tokens, {"count": count})
    return KernelUnderTest(
        name=name,
        family=Family.TOPK,
        run=run,
        reference=_choice_reference,
        cases=maker.cases,
        judge=lambda inputs, outputs, expected: judge_choice(inputs, outputs, TOLERANCES[layout]),
        batched=BATCHED,
        buffers=buffers,
        variants=indexer_variants,
        replays=maker.replays,
        huge=maker.huge,
        timing=maker.timing,
        promises=promises,
        devices=devices,
        operators_only=operators_only,
    )


def judge_choice(inputs: Inputs, outputs: Outputs, tolerance: Tolerance) -> str | None:
    """Every position chosen scores at least the last of the reference's choice, less what rounding may change.

    No position twice, none outside the row, as many as there must be, ascending, then -1.
    """
    expected = indexer_reference(inputs)["logits"]
    assert expected.magnitude is not None
    slack = allowance(expected, tolerance, torch.float32) * 2
    count = inputs["count"]
    for row, token in product(*map(range, outputs["positions"].shape[:2])):
        length = int(inputs["lengths"][row, token])
        listed = outputs["positions"][row, token].tolist()
        chosen = [place for place in listed if place != -1]
        where = f"`positions`: row {row}, query token {token}"
        if listed != sorted(set(chosen)) + [-1] * (count - min(count, length)):
            return f"{where}: {min(count, length)} ascending positions, each once, and then -1 are right"
        if chosen and not 0 <= chosen[0] <= chosen[-1] < length:
            return f"{where} has {chosen[0]} to {chosen[-1]}, its length is {length}"
        scores = expected.value[row, token, :length]
        if length > count:
            last = scores.topk(count).values[-1]
            short = last - scores[chosen] > slack[row, token, chosen] + slack[row, token, :length].max()
            if bool(short.any()):
                return f"{where}: position {chosen[int(short.int().argmax())]} is not among the {count} best"
    return None


def _choice_reference(inputs: Inputs) -> dict[str, Expected]:
    """Positions by the reference's logits; of equal logits the lower one."""
    logits = indexer_reference(inputs)["logits"]
    assert logits.defined is not None
    order = logits.value.masked_fill(~logits.defined, float("-inf")).sort(dim=-1, descending=True, stable=True).indices
    positions = order[..., : inputs["count"]]
    last = logits.value.shape[-1]
    positions = positions.masked_fill(~logits.defined.gather(-1, positions), last).sort(dim=-1).values
    missing = inputs["count"] - positions.shape[-1]
    positions = torch.nn.functional.pad(positions.masked_fill(positions == last, -1), (0, missing), value=-1)
    return {"positions": Expected(positions)}


def keys_of_pages(layout: str, pages: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """Keys [pages, page_size, 128] and scales [pages, page_size], float64, from the bytes."""
    count = pages.shape[0]
    if layout == "bf16":
        return pages.to(torch.float64), torch.ones(count, page_size, dtype=torch.float64, device=pages.device)
    end = page_size * DIM
    codes = pages[:, :end].contiguous().view(torch.float8_e4m3fn).view(count, page_size, DIM)
    scales = pages[:, end : end + 4 * page_size].contiguous().view(torch.float32)
    return codes.to(torch.float32).to(torch.float64), scales.to(torch.float64)


def indexer_reference(inputs: Inputs) -> dict[str, Expected]:
    """Row by row in float64. The magnitude adds the heads' sums of absolute products as independent errors add up."""
    query = inputs["query"].to(torch.float32).to(torch.float64)
    weights = inputs["weights"].to(torch.float64)
    batch, tokens = query.shape[:2]
    shape = (batch, tokens, inputs["maximum"])
    logits, magnitude = query.new_zeros(shape), query.new_zeros(shape)
    defined = torch.zeros(shape, dtype=torch.bool, device=query.device)
    for row in range(batch):
        longest = int(inputs["lengths"][row].max())
        pages = inputs["block_table"][row, : -(-longest // inputs["page_size"])].long()
        keys, scales = keys_of_pages(inputs["layout"], inputs["key_pages"][pages], inputs["page_size"])
        keys, scales = keys.flatten(0, 1), scales.flatten()
        for token in range(tokens):
            length = int(inputs["lengths"][row, token])
            scores = (query[row, token] @ keys[:length].T).relu()
            sizes = query[row, token].abs() @ keys[:length].abs().T
            logits[row, token, :length] = scales[:length] * (weights[row, token] @ scores)
            root = (weights[row, token].square() @ sizes.square()).sqrt()
            magnitude[row, token, :length] = scales[:length].abs() * root
            defined[row, token, :length] = True
    return {"logits": Expected(logits, magnitude, defined)}


def indexer_variants(case: Case, generator: torch.Generator) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same keys elsewhere: pages permuted, further apart, a wider table with a larger maximum."""
    inputs = case.inputs
    pages, table = inputs["key_pages"], inputs["block_table"]
    order = torch.randperm(pages.shape[0], generator=generator).to(pages.device)
    shuffled = torch.empty_strided(pages.shape, pages.stride(), dtype=pages.dtype, device=pages.device)
    shuffled[order] = pages
    yield "pages permuted", {**inputs, "key_pages": shuffled, "block_table": order[table.long()].to(torch.int32)}
    apart = restrided(pages, 512 if pages.dtype == torch.uint8 else 8 * DIM)
    yield "pages further apart", {**inputs, "key_pages": apart}
    more = 5
    wider = torch.cat([table, table[:, :1].expand(-1, more)], dim=1)
    yield "a wider table", {**inputs, "block_table": wider, "maximum": wider.shape[1] * inputs["page_size"]}


class _Maker:
    """Makes the cases of one layout."""

    def __init__(
        self,
        layout: str,
        heads: Sequence[int],
        page_sizes: Sequence[int],
        query_tokens: Sequence[int],
        constants: Mapping[str, int] | None = None,
    ) -> None:
        self.constants = constants or {}
        self.layout = layout
        self.heads = heads
        self.page_sizes = page_sizes
        self.query_tokens = query_tokens

    def cases(self, seed: int, device: torch.device) -> Iterator[Case]:
        generator = torch.Generator().manual_seed(seed)
        usual, few = self.heads[0], self.heads[-1]
        page, other = self.page_sizes[0], self.page_sizes[-1]
        one, several = self.query_tokens[0], self.query_tokens[-1]
        edge = EDGES[int(torch.randint(1, len(EDGES), (1,), generator=generator))]
        yield self._case("mixed lengths", Kind.RANDOM, generator, device, [150, 97, 40], one, usual, page)
        yield self._case("several query tokens", Kind.RANDOM, generator, device, [130, 70], several, usual, page)
        yield self._case(f"edge {edge}", Kind.ODD, generator, device, [edge, edge + 1, edge - 1], one, few, page)
        yield self._case("odd page size", Kind.ODD, generator, device, [3 * other + 1, 1], one, few, other)
        dead = self._case("dead keys", Kind.TIES, generator, device, [64, 65], one, few, page)
        # no score is positive: every logit is exactly 0
        dead.inputs["query"].copy_(dead.inputs["query"].to(torch.float32).abs().to(dead.inputs["query"].dtype))
        yield _masked(_with_keys(dead, negative=True))
        yield self._case("empty rows", Kind.ADVERSARIAL, generator, device, [0, 70, 0, 1], one, few, page)
        huge = self._case("huge weights", Kind.ADVERSARIAL, generator, device, [66, 10], one, few, page)
        huge.inputs["weights"].mul_(1e6)
        yield huge
        same = self._case("one page for all", Kind.ADVERSARIAL, generator, device, [page * 2, page], one, few, page)
        same.inputs["block_table"].fill_(1)
        yield _masked(same)

    def replays(self, seed: int, device: torch.device) -> list[list[Case]]:
        """Two buckets of different batch; the dummy of each has length 1."""
        generator = torch.Generator().manual_seed(seed + 77)
        page, groups = self.page_sizes[0], []
        for batch in (4, 2):
            group = []
            for step, edge in enumerate((1, *EDGES, *EDGES[::-3])):
                lengths = [max(edge - row, 0) if step % 2 else min(edge + row, 3 * 64) for row in range(batch)]
                if step % 3 == 2:
                    lengths[-1] = 0
                group.append(
                    self._case(
                        f"length {edge}, batch {batch}",
                        Kind.RANDOM,
                        generator,
                        device,
                        lengths,
                        self.query_tokens[0],
                        self.heads[0],
                        page,
                        width=-(-3 * 64 // page),
                    )
                )
            groups.append(group)
        return groups

    def huge(self, seed: int, device: torch.device) -> Case | None:
        """Pages past 2^31 elements."""
        generator = torch.Generator().manual_seed(seed + 5)
        page = self.page_sizes[0]
        case = self._case(
            "pages past 2^31", Kind.ADVERSARIAL, generator, device, [3 * page, 2 * page], 1, self.heads[0], page
        )
        apart = spread(case.inputs["key_pages"], device)
        return None if apart is None else Case(case.name, case.kind, {**case.inputs, "key_pages": apart})

    def timing(self, length: int, maximum: int, device: torch.device) -> dict[str, Any]:
        """Four rows of `length` keys in a table for `maximum`; the pages are named again and again."""
        page, rows = self.page_sizes[0], 4
        generator = torch.Generator().manual_seed(0)
        width = _TIMED_PAGES // rows
        case = self._case("timing", Kind.RANDOM, generator, device, [0] * rows, 1, self.heads[0], page, width=width)
        table = torch.randint(0, _TIMED_PAGES, (rows, maximum // page), generator=generator, dtype=torch.int32)
        lengths = torch.full((rows, 1), length, dtype=torch.int32, device=device)
        return {**case.inputs, "block_table": table.to(device), "lengths": lengths, "maximum": maximum}

    def _case(
        self,
        name: str,
        kind: Kind,
        generator: torch.Generator,
        device: torch.device,
        lengths: Sequence[int],
        tokens: int,
        heads: int,
        page_size: int,
        width: int | None = None,
    ) -> Case:
        batch = len(lengths)
        # a column more than any row needs, and a page that nobody's
        needed = [-(-length // page_size) for length in lengths]
        # a group for replay has one shape: as many pages as its table could name
        pages = (sum(needed) if width is None else len(needed) * width) + 2
        width = width if width is not None else -(-max(lengths) // page_size) + 1
        order = torch.randperm(pages - 1, generator=generator).tolist()
        table = torch.randint(0, pages - 1, (batch, width), generator=generator, dtype=torch.int32)
        for row, count in enumerate(needed):
            table[row, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
        # verification of drafts: a later query token sees one key more
        steps = torch.arange(tokens) - (tokens - 1)
        inputs: dict[str, Any] = {
            "query": torch.randn(batch, tokens, heads, DIM, generator=generator),
            "key_pages": _random_pages(self.layout, pages, page_size, generator),
            "weights": torch.randn(batch, tokens, heads, generator=generator),
            "block_table": table,
            "lengths": (torch.tensor(lengths)[:, None] + steps).clamp(min=0).to(torch.int32),
        }
        inputs["query"] = inputs["query"].to(torch.float8_e4m3fn if self.layout == "fp8_132" else torch.bfloat16)
        inputs["key_pages"] = restrided(inputs["key_pages"], 256 if self.layout == "fp8_132" else DIM)
        inputs = {key: _to(value, device) for key, value in inputs.items()}
        constants = {"layout": self.layout, "page_size": page_size, "maximum": width * page_size}
        return _masked(Case(name, kind, {**inputs, **constants, **self.constants}))


def _random_pages(layout: str, pages: int, page_size: int, generator: torch.Generator) -> Tensor:
    keys = torch.randn(pages, page_size, DIM, generator=generator)
    if layout == "bf16":
        return keys.to(torch.bfloat16)
    codes = keys.to(torch.float8_e4m3fn).view(torch.uint8).view(pages, -1)
    scales = (torch.rand(pages, page_size, generator=generator) + 0.5).view(torch.uint8).view(pages, -1)
    return torch.cat([codes, scales], dim=1)


def _with_keys(case: Case, negative: bool) -> Case:
    """The case with keys whose every element is negative (the sign bit of its byte set) or not."""
    pages = case.inputs["key_pages"].clone()
    if case.inputs["layout"] == "bf16":
        pages = -pages.abs() if negative else pages.abs()
    else:
        end = case.inputs["page_size"] * DIM
        pages[:, :end] = pages[:, :end] | 0x80 if negative else pages[:, :end] & 0x7F
    return Case(case.name, case.kind, {**case.inputs, "key_pages": pages})


def _masked(case: Case) -> Case:
    """The case with what must not be read worked out."""
    inputs = case.inputs
    pages, table, lengths = inputs["key_pages"], inputs["block_table"], inputs["lengths"]
    page_size = inputs["page_size"]
    used = torch.zeros(pages.shape[0], page_size, dtype=torch.bool, device=pages.device)
    longest = lengths.amax(dim=1)
    for row in range(table.shape[0]):
        for place in range(-(-int(longest[row]) // page_size)):
            used[int(table[row, place]), : int(longest[row]) - place * page_size] = True
    if inputs["layout"] == "bf16":
        unread_pages = (~used)[..., None].expand(pages.shape)
    else:
        unread_pages = torch.cat([(~used).repeat_interleave(DIM, dim=1), (~used).repeat_interleave(4, dim=1)], dim=1)
    columns = torch.arange(table.shape[1], device=table.device) * page_size
    empty = lengths == 0
    unread = {
        "key_pages": unread_pages,
        "block_table": columns >= longest[:, None],
        "query": empty[:, :, None, None].expand(inputs["query"].shape),
        "weights": empty[:, :, None].expand(inputs["weights"].shape),
    }
    decoys = {"block_table": pages.shape[0] - 1, "lengths": int(inputs["maximum"])}
    return Case(case.name, case.kind, inputs, unread, decoys)


def _to(value: Tensor, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).copy_(value)
