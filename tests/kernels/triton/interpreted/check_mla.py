"""Sparse MLA in Triton under the interpreter: run by test_interpreted_mla.py with TRITON_INTERPRET=1."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pdwatch.kernels import sparse_mla_decode, sparse_mla_prefill, triton_table_mla
from pdwatch.kernels.bench.per_head import sparse_mla_per_head
from pdwatch.kernels.errors import KernelArguments
from pdwatch.kernels.layout_mla import KvScope, MlaLayout, pack_mla_rows
from pdwatch.kernels.reference_mla import sparse_mla_reference
from pdwatch.kernels.schedule_mla import Schedule, SparseMlaWorkspace, tile_count
from pdwatch.kernels.triton_mla import Target, launch, sparse_mla, sparse_mla_workspace

# log(0) of an empty row is meant: its lse is -inf; and so are the queries of NaN.
pytestmark = pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value", "ignore:All-NaN slice")
SCALE = 0.06
# the interpreter truncates what is stored as bfloat16: up to 2^-7 of a value, 2^-8 on average.
TOLERANCE = 2.0**-7


def scope(layout: MlaLayout, batch: int, count: int, page_size: int, tokens: int = 1, ragged: bool = True) -> KvScope:
    pages = 2 * count // page_size + 2
    rows = torch.randn(pages, page_size, layout.dim) * torch.exp2(torch.randint(-3, 3, (pages, page_size, 1)).float())
    indices = torch.randint(-pages * page_size // 8, pages * page_size, (batch, tokens, count)).clamp(min=-1).int()
    lengths = torch.randint(0, count + 1, (batch,)).int() if ragged else None
    return KvScope(pack_mla_rows(rows, layout), layout, page_size, indices, lengths)


def assert_close(actual, expected) -> None:
    (out, lse), (wanted, wanted_lse) = actual, expected
    assert ((out.double() - wanted).norm(dim=-1) <= TOLERANCE * wanted.norm(dim=-1)).all()
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", list(MlaLayout))
def test_two_ragged_scopes_with_a_sink(layout: MlaLayout) -> None:
    torch.manual_seed(1)
    query = torch.randn(2, 1, 20, layout.dim).bfloat16()
    scopes = [scope(layout, 2, 20, 8), scope(layout, 2, 70, 5)]
    sink = torch.randn(20)
    sink[0], sink[1] = torch.inf, -torch.inf
    assert_close(sparse_mla(query, scopes, SCALE, sink), sparse_mla_reference(query, scopes, SCALE, sink))


@pytest.mark.parametrize("layout", list(MlaLayout))
@pytest.mark.parametrize("page_size", [1, 53])
def test_one_scope_and_several_query_tokens(layout: MlaLayout, page_size: int) -> None:
    torch.manual_seed(2)
    query = torch.randn(1, 3, 8, layout.dim).bfloat16()
    scopes = [scope(layout, 1, 30, page_size, tokens=3, ragged=False)]
    assert_close(sparse_mla(query, scopes, SCALE), sparse_mla_reference(query, scopes, SCALE))


def scheduled(query, scopes, sink, by: Schedule) -> tuple[torch.Tensor, torch.Tensor]:
    """Results of one schedule from buffers and a workspace full of NaN."""
    batch, tokens, heads, _ = query.shape
    out = torch.full((batch, tokens, heads, 512), torch.nan, dtype=torch.bfloat16)
    lse = torch.full((batch, tokens, heads), torch.nan)
    states = batch * tokens * heads * by.units
    workspace = SparseMlaWorkspace(torch.full((states * 512,), torch.nan), torch.full((states * 2,), torch.nan))
    launch(query, scopes, SCALE, sink, out, lse, workspace, by, Target(capability=(0, 0), processors=132))
    return out, lse


@pytest.mark.parametrize("layout", list(MlaLayout))
@pytest.mark.parametrize("by", [Schedule(1, 8, False), Schedule(3, 1, False)], ids=["whole", "tiles"])
def test_empty_rows(layout: MlaLayout, by: Schedule) -> None:
    torch.manual_seed(3)
    query = torch.randn(5, 1, 4, layout.dim).bfloat16()
    scopes = [scope(layout, 5, 70, 64), scope(layout, 5, 20, 4)]
    # no lengths; lengths, but no index; lengths below 0; only the last index of all; the first scope only.
    for some, lengths in zip(scopes, ([0, 70, -5, 70, 70], [0, 20, -1, 20, 0]), strict=True):
        assert some.lengths is not None
        some.lengths.copy_(torch.tensor(lengths))
        some.indices[[1, 3]] = -1
        # nobody's rows: NaN in every byte.
        used = some.indices[some.indices >= 0].unique() // some.page_size
        some.pages[~torch.isin(torch.arange(len(some.pages)), used)] = 255 if layout.is_fp8 else torch.nan
    scopes[1].pages[0] = pack_mla_rows(torch.randn(1, 4, layout.dim), layout)
    scopes[1].indices[3, 0, -1] = 2
    sink = torch.tensor([0.0, -torch.inf, torch.inf, 1.0])
    wanted = sparse_mla_reference(query, scopes, SCALE, sink)
    # what a query without rows holds is nobody's either.
    query[:3] = torch.nan
    out, lse = scheduled(query, scopes, sink, by)
    assert not out[:3].any() and (lse[:3] == -torch.inf).all()
    assert_close((out, lse), wanted)


@pytest.mark.parametrize("layout", [MlaLayout.FP8_V4, MlaLayout.FP8_V32])
def test_small_weights_count_where_large_ones_meet_zeros(layout: MlaLayout) -> None:
    rows = torch.zeros(1, 2, layout.dim)
    rows[0, 0, 0], rows[0, 1, 100] = 8.0, 1.0
    query = torch.zeros(1, 1, 1, layout.dim, dtype=torch.bfloat16)
    query[..., 0] = 2.5
    indices = torch.tensor([[[0, 1]]], dtype=torch.int32)
    out, _ = sparse_mla(query, [KvScope(pack_mla_rows(rows, layout), layout, 2, indices)], 1.0)
    # 2^-28.9: in float16 without its own unit it would be 0.
    torch.testing.assert_close(out[0, 0, 0, 100].item(), 2.061e-9, rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize("layout", [MlaLayout.FP8_V4, MlaLayout.BF16_V32])
def test_reads_no_other_row(layout: MlaLayout) -> None:
    torch.manual_seed(4)
    query = torch.randn(2, 1, 4, layout.dim).bfloat16()
    clean = scope(layout, 2, 40, 7)
    assert clean.lengths is not None
    used = torch.zeros(clean.pages.shape[0] * 7, dtype=torch.bool)
    used[clean.indices[(clean.indices >= 0) & (torch.arange(40) < clean.lengths[:, None, None])].long()] = True
    used = used.view(-1, 7)
    pool = torch.full_like(clean.pages, 0xFF if layout.is_fp8 else torch.nan)
    if layout is MlaLayout.FP8_V4:
        for start, size in ((0, 576), (7 * 576, 8)):
            part = slice(start, start + 7 * size)
            pool[:, part].view(-1, 7, size)[used] = clean.pages[:, part].view(-1, 7, size)[used]
    else:
        pool[used] = clean.pages[used]
    indices = clean.indices.clone()
    indices[torch.arange(40).expand_as(indices) >= clean.lengths[:, None, None]] = 2**31 - 1
    poisoned = replace(clean, pages=pool, indices=indices)
    assert_close(sparse_mla(query, [poisoned], SCALE), sparse_mla_reference(query, [clean], SCALE))


@pytest.mark.parametrize("group", [2, 3])
def test_schedules_agree_bitwise(group: int) -> None:
    torch.manual_seed(5)
    batch, heads = 2, 4
    query = torch.randn(batch, 1, heads, 576).bfloat16()
    scopes = [scope(MlaLayout.FP8_V32, batch, 200, 16), scope(MlaLayout.FP8_V32, batch, 300, 64)]
    tiles = tile_count([200, 300], 64)
    # groups are of eight tiles (V3.2): one group at most here, so its fold is one program's or the merge kernel's.
    assert tiles > 8
    results = [scheduled(query, scopes, None, by) for by in (Schedule(tiles, 1, False), Schedule(2, 8, False))]
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


def test_buffers_are_used_and_strides_followed() -> None:
    torch.manual_seed(6)
    query = torch.randn(2, 4, 2, 512).bfloat16().transpose(1, 2)
    scopes = [scope(MlaLayout.BF16_V4, 2, 130, 4, tokens=2)]
    out = torch.empty(2, 4, 2, 512, dtype=torch.bfloat16).transpose(1, 2)
    lse = torch.empty(2, 2, 4)
    workspace = sparse_mla_workspace(2, 2, 4, (130,), "cpu")
    result = sparse_mla(query, scopes, SCALE, out=out, lse=lse, workspace=workspace)
    assert result[0] is out and result[1] is lse
    assert_close(result, sparse_mla_reference(query, scopes, SCALE))


def valid() -> dict:
    torch.manual_seed(7)
    return {
        "query": torch.randn(2, 1, 4, 512).bfloat16(),
        "scopes": [scope(MlaLayout.FP8_V4, 2, 10, 8)],
        "scale": SCALE,
        "sink": torch.zeros(4),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a | {"scopes": []}, "0 scopes"),
        (lambda a: a | {"scopes": [*a["scopes"], scope(MlaLayout.BF16_V4, 2, 4, 2)]}, "pack both alike"),
        (lambda a: a | {"query": a["query"].float()}, r"query is torch.float32"),
        (lambda a: a | {"query": torch.randn(2, 1, 4, 576).bfloat16()}, "takes bfloat16 .*512"),
        (lambda a: a | {"query": a["query"][:0]}, "query is empty"),
        (lambda a: a | {"query": torch.randn(2, 1, 4, 513).bfloat16()[..., 1:]}, "16-byte aligned"),
        (lambda a: a | {"sink": torch.zeros(5)}, "sink is torch.float32 .5,"),
        (lambda a: a | {"out": torch.zeros(2, 1, 4, 512)}, "out is torch.float32"),
        (lambda a: a | {"lse": torch.zeros(2, 1, 5)}, "lse is"),
        (lambda a: a | {"scopes": [replace(a["scopes"][0], page_size=9)]}, "takes uint8"),
        (lambda a: a | {"scopes": [replace(a["scopes"][0], page_size=0)]}, "page size 0"),
        (lambda a: a | {"scopes": [replace(a["scopes"][0], indices=a["scopes"][0].indices.long())]}, "int32"),
        (lambda a: a | {"scopes": [replace(a["scopes"][0], indices=a["scopes"][0].indices[:1])]}, "pass .2, 1, count"),
        (
            lambda a: a | {"scopes": [replace(a["scopes"][0], lengths=torch.zeros(3).int())]},
            "lengths of the first scope",
        ),
        (
            lambda a: a | {"scopes": [replace(a["scopes"][0], pages=torch.zeros(4, 5192, dtype=torch.uint8)[:, 8:])]},
            "multiples of 16: pad the pages",
        ),
    ],
)
def test_wrong_arguments_are_named(change, message: str) -> None:
    with pytest.raises(KernelArguments, match=message):
        sparse_mla(**change(valid()))


def test_a_small_workspace_is_refused() -> None:
    arguments = valid() | {"scopes": [scope(MlaLayout.FP8_V4, 2, 200, 8)]}
    with pytest.raises(KernelArguments, match="workspace holds 4 states, this launch needs 32"):
        sparse_mla(**arguments, workspace=sparse_mla_workspace(1, 1, 4, (10,), "cpu"))


@pytest.mark.parametrize("dim", [6, 16, 24])
def test_table_decode_equals_eager(dim: int) -> None:
    torch.manual_seed(8)
    query, pages, sink = torch.randn(3, 5, dim), torch.randn(9, 4, dim), torch.randn(5)
    sink[2] = -torch.inf
    table = torch.randperm(9).view(3, 3)
    selected = torch.tensor([[0, -1, 2, -1], [1, 3, -1, 0], [-1, -1, -1, -1]])
    lengths = torch.tensor([9, 12, 0])
    arguments = (query, pages, table, selected, lengths, sink, 3, 0.3)
    for actual, wanted in zip(
        triton_table_mla.sparse_mla_decode(*arguments), sparse_mla_decode(*arguments), strict=True
    ):
        torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-6)


def test_table_prefill_equals_eager() -> None:
    torch.manual_seed(9)
    latent, query, sink = torch.randn(13, 6), torch.randn(13, 2, 6), torch.randn(2)
    selected = torch.full((13, 3), -1)
    selected[8:, 0], selected[9:, 2] = 1, 4
    arguments = (query, latent, selected, torch.arange(1, 14), sink, 3, 0.3)
    for actual, wanted in zip(
        triton_table_mla.sparse_mla_prefill(*arguments), sparse_mla_prefill(*arguments), strict=True
    ):
        torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-6)


def test_table_takes_float32_only() -> None:
    query = torch.zeros(1, 1, 6, dtype=torch.float64)
    with pytest.raises(KernelArguments, match=r"query is torch\.float64"):
        triton_table_mla.sparse_mla_prefill(query, query[0], torch.zeros(1, 1), torch.ones(1), torch.zeros(1), 1, 1.0)


def test_the_per_head_peer_follows_the_reference() -> None:
    torch.manual_seed(10)
    query, sink = torch.randn(2, 1, 3, 512).bfloat16(), torch.randn(3)
    scopes = [scope(MlaLayout.FP8_V4, 2, count, 8, ragged=False) for count in (20, 40)]
    wanted, _ = sparse_mla_reference(query, scopes, SCALE, sink)
    actual = sparse_mla_per_head(query, scopes, SCALE, sink)
    assert ((actual.double() - wanted).norm(dim=-1) <= TOLERANCE * wanted.norm(dim=-1)).all()
