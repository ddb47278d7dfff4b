"""Cases are reproducible, and what they call unread is all that may be poisoned."""

from __future__ import annotations

import pytest
import torch

from pdwatch.kernels.harness.families.indexer import indexer_kernel
from pdwatch.kernels.harness.families.mla_bytes import random_pages, rows_of_pages
from pdwatch.kernels.harness.families.sparse_mla import sparse_mla_kernel
from pdwatch.kernels.harness.kernel import KernelUnderTest, rows_of, take_rows
from pdwatch.kernels.harness.memory import NAN_BYTE, poisoned
from pdwatch.kernels.layout_indexer import IndexKeyLayout
from pdwatch.kernels.layout_mla import KvScope, MlaLayout, unpack_mla_rows
from pdwatch.kernels.reference_indexer import paged_indexer_logits_reference
from pdwatch.kernels.reference_mla import sparse_mla_reference

CPU = torch.device("cpu")
MLA = ["fp8_v4", "bf16_v4", "fp8_v32", "bf16_v32"]


def nothing(inputs, buffers):
    raise AssertionError("the kernel is not run here")


def kernels() -> list[KernelUnderTest]:
    return [
        *(sparse_mla_kernel(f"mla.{layout}", layout, nothing, heads=(4, 2)) for layout in MLA),
        *(indexer_kernel(f"indexer.{layout}", layout, nothing, heads=(4, 3)) for layout in ("fp8_132", "bf16")),
    ]


@pytest.mark.parametrize("layout", MLA)
def test_pages_are_read_as_the_layout_module_reads_them(layout: str) -> None:
    pages = random_pages(layout, 3, 5, torch.Generator().manual_seed(1))
    assert torch.equal(rows_of_pages(layout, pages, 5), unpack_mla_rows(pages, MlaLayout(layout), 5))


@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.name)
def test_the_reference_does_not_look_at_what_must_not_be_read(kernel: KernelUnderTest) -> None:
    for case in kernel.cases(3, CPU):
        clean, dirty = kernel.reference(case.inputs), kernel.reference(poisoned(case, NAN_BYTE, True))
        for name, entry in clean.items():
            assert torch.equal(entry.value, dirty[name].value), (case.name, name)


@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.name)
def test_cases_depend_on_the_seed_alone(kernel: KernelUnderTest) -> None:
    first, second, other = (list(kernel.cases(seed, CPU)) for seed in (3, 3, 4))
    assert [case.name for case in first] == [case.name for case in second]
    for one, same in zip(first, second, strict=True):
        for name, value in one.inputs.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value.view(torch.uint8), same.inputs[name].view(torch.uint8)), name
    assert not torch.equal(first[0].inputs["query"].float(), other[0].inputs["query"].float())


@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.name)
def test_replayed_cases_have_the_shapes_of_their_dummy(kernel: KernelUnderTest) -> None:
    assert kernel.replays is not None
    for group in kernel.replays(0, CPU):
        shapes = [
            {
                name: (value.shape, value.stride())
                for name, value in case.inputs.items()
                if isinstance(value, torch.Tensor)
            }
            for case in group
        ]
        assert all(shape == shapes[0] for shape in shapes)


@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.name)
def test_rows_are_taken_from_every_batched_input(kernel: KernelUnderTest) -> None:
    case = next(iter(kernel.cases(0, CPU)))
    taken = take_rows(kernel, case.inputs, [1, 0, 1])
    assert rows_of(kernel, taken) == 3
    whole, part = kernel.reference(case.inputs), kernel.reference(taken)
    for name, entry in part.items():
        assert torch.equal(entry.value, whole[name].value[[1, 0, 1]])


@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.name)
def test_equivalent_layouts_have_equal_references(kernel: KernelUnderTest) -> None:
    assert kernel.variants is not None
    case = next(iter(kernel.cases(0, CPU)))
    expected = kernel.reference(case.inputs)
    for words, inputs in kernel.variants(case, torch.Generator().manual_seed(0)):
        for name, entry in kernel.reference(inputs).items():
            value = expected[name].value
            cut = entry.value[tuple(slice(length) for length in value.shape)]
            assert torch.equal(cut, value), (words, name)


@pytest.mark.parametrize("layout", MLA)
def test_two_references_of_sparse_mla_agree(layout: str) -> None:
    kernel = sparse_mla_kernel("mla", layout, nothing, heads=(4, 2))
    for case in kernel.cases(1, CPU):
        scopes = [
            KvScope(
                case.inputs[f"{scope}_pages"],
                MlaLayout(layout),
                case.inputs[f"{scope}_page_size"],
                case.inputs[f"{scope}_indices"],
                case.inputs[f"{scope}_lengths"],
            )
            for scope in ("window", "indexed")
            if f"{scope}_pages" in case.inputs
        ]
        out, lse = sparse_mla_reference(case.inputs["query"], scopes, case.inputs["scale"], case.inputs["sink"])
        expected = kernel.reference(case.inputs)
        torch.testing.assert_close(out, expected["out"].value, rtol=1e-10, atol=1e-10, msg=case.name)
        torch.testing.assert_close(lse, expected["lse"].value, rtol=1e-10, atol=1e-10, msg=case.name)


@pytest.mark.parametrize("layout", ["fp8_132", "bf16"])
def test_two_references_of_the_indexer_agree(layout: str) -> None:
    kernel = indexer_kernel("indexer", layout, nothing, heads=(4, 3))
    names = ("query", "key_pages", "weights", "block_table", "lengths", "page_size")
    for case in kernel.cases(1, CPU):
        expected = kernel.reference(case.inputs)["logits"]
        other = paged_indexer_logits_reference(
            **{name: case.inputs[name] for name in names}, layout=IndexKeyLayout(layout)
        ).view(expected.value.shape)
        assert expected.defined is not None
        torch.testing.assert_close(
            other[expected.defined], expected.value[expected.defined], rtol=1e-9, atol=1e-6, msg=case.name
        )
