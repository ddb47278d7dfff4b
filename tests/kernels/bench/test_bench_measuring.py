"""Inputs, peers and the order of measuring, on a CPU with a clock of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor

from pdwatch.kernels.bench import command
from pdwatch.kernels.bench.__main__ import main
from pdwatch.kernels.bench.cases import Family, IndexerCase, MlaCase
from pdwatch.kernels.bench.document import Document
from pdwatch.kernels.bench.errors import BenchArguments, Unsuitable
from pdwatch.kernels.bench.indexer import IndexerProblem
from pdwatch.kernels.bench.measure import measure
from pdwatch.kernels.bench.mla import MlaProblem, Pools
from pdwatch.kernels.bench.timing import Call
from pdwatch.kernels.layout_indexer import IndexKeyLayout
from pdwatch.kernels.layout_mla import MlaLayout
from pdwatch.kernels.reference_indexer import paged_indexer_logits_reference, topk_reference
from pdwatch.kernels.reference_mla import sparse_mla_reference


@pytest.mark.parametrize("layout", MlaLayout)
@pytest.mark.parametrize("lengths", [None, (8, 20)], ids=["all", "lengths"])
def test_eager_sparse_mla_computes_the_reference(layout: MlaLayout, lengths: tuple[int, ...] | None) -> None:
    torch.manual_seed(0)
    case = MlaCase(name="x", batch=3, layout=layout, heads=4, counts=(16, 40), page_sizes=(16, 2), lengths=lengths)
    problem = MlaProblem(case, Pools("cpu", 256), sets=2)
    inputs = problem.sets[0]
    expected, _ = sparse_mla_reference(inputs.query, inputs.scopes, problem.scale, inputs.sink)
    result = problem.implementations["eager"]()[0]()
    assert isinstance(result, Tensor)
    # bfloat16 logits: an error of 2^-9 of logits of a few units
    assert problem.difference(result, expected) < 0.02


def test_eager_indexer_computes_the_reference() -> None:
    torch.manual_seed(0)
    case = IndexerCase(name="x", batch=2, context=4096, maximum_context=8192, family=Family.INDEXER_TOPK)
    problem = IndexerProblem(case, "cpu", sets=1)
    inputs = problem.sets[0]
    arguments = (inputs.query, inputs.key_pages, inputs.weights, inputs.block_table, inputs.lengths)
    logits = paged_indexer_logits_reference(*arguments, layout=IndexKeyLayout.FP8, page_size=64)
    expected = topk_reference(logits, inputs.lengths, 512)
    result = problem.implementations["eager"]()[0]()
    assert isinstance(result, Tensor)
    # half of 1,024 keys: bfloat16 swaps a few at the boundary
    assert problem.difference(expected, result) < 0.03
    # every second of 1,024 positions instead
    others = torch.arange(0, 1024, 2).expand(2, -1)
    assert problem.difference(expected, expected) == 0
    assert 0.4 < problem.difference(expected, others) < 0.6


def test_inputs_are_finite_and_differ() -> None:
    case = MlaCase(name="x", batch=1, layout=MlaLayout.FP8_V4, heads=4, counts=(64,), page_sizes=(2,))
    problem = MlaProblem(case, Pools("cpu", 256), sets=2)
    first, second = problem.sets
    assert not torch.equal(first.scopes[0].indices, second.scopes[0].indices)
    assert first.scopes[0].pages is second.scopes[0].pages
    out, _ = sparse_mla_reference(first.query, first.scopes, problem.scale, first.sink)
    assert out.isfinite().all()


class Stub:
    """A problem whose implementations are given."""

    def __init__(self, implementations: Mapping[str, Callable[[], list[Call]]]) -> None:
        self.implementations = implementations

    def difference(self, ours: Tensor, theirs: Tensor) -> float:
        return float((ours - theirs).abs().max())


CASE = MlaCase(name="x", batch=1, layout=MlaLayout.FP8_V4, heads=4, counts=(64,), page_sizes=(2,))


def returning(value: float) -> Callable[[], list[Call]]:
    return lambda: [lambda: torch.tensor([value])] * 3


def raising(error: Exception) -> Callable[[], list[Call]]:
    def make() -> list[Call]:
        raise error

    return make


def timer(calls: Sequence[Call]) -> float:
    return float(len(calls))


def test_a_peer_that_fails_is_noted_and_the_others_go_on() -> None:
    stub = Stub(
        {
            "pdwatch": returning(1.0),
            "a": returning(1.5),
            "b": raising(Unsuitable("takes 64 heads")),
            "c": raising(ImportError("No module named 'c'")),
            "d": raising(RuntimeError("bad\nthing")),
        }
    )
    (row,) = measure([CASE], timer, lambda case: stub)
    assert row.microseconds == {"pdwatch": 3.0, "a": 3.0}
    assert row.differences == {"a": 0.5}
    assert row.absent == {
        "b": "takes 64 heads",
        "c": "cannot be imported here: No module named 'c'",
        "d": "RuntimeError: bad thing",
    }


@pytest.mark.parametrize("error", [ImportError("no triton"), RuntimeError("illegal address")], ids=str)
def test_a_fault_of_our_kernel_is_raised(error: Exception) -> None:
    stub = Stub({"pdwatch": raising(error), "a": returning(1.0)})
    with pytest.raises(type(error), match=str(error)):
        list(measure([CASE], timer, lambda case: stub))


@pytest.mark.parametrize(
    ("words", "expected"), [("1,64", (1, 64)), ("2K,1m", (2048, 1 << 20))], ids=["plain", "factors"]
)
def test_lists_of_numbers(words: str, expected: tuple[int, ...]) -> None:
    assert command.numbers(words) == expected


@pytest.mark.parametrize("words", ["", "1,,2", "K", "two"])
def test_what_is_no_list_of_numbers(words: str) -> None:
    with pytest.raises(BenchArguments, match="is no list of numbers: write it like"):
        command.numbers(words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what happens without a GPU")
def test_without_a_gpu_the_remedy_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: the benchmark measures on a CUDA GPU") and "--from FILE" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["mla"], "`mla` is not measured: use one of sparse_mla, indexer_logits, indexer_topk"),
        (["--batches", "0"], "batch 0 is not measured: use 1 to 4096"),
        (["--contexts", "100"], "context 100 is not measured: use multiples of 256 up to 1048576"),
    ],
    ids=["family", "batch", "context"],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    assert told in capsys.readouterr().err


def test_an_earlier_result_is_shown_and_its_bars_decide(document: Document, tmp_path, capsys) -> None:
    path, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    document.write(path)
    # ours is slower than FlashMLA in the made-up times
    assert main(["--from", str(path), "--plot", str(plot)]) == 1
    assert "MISSED" in capsys.readouterr().out
    assert plot.read_text().startswith("<svg")
    for row in document.rows:
        row.microseconds.pop("FlashMLA", None)
    document.rows = [row for row in document.rows if row.case == "v3.2 fp8"]
    document.write(path)
    # nothing missed, but FlashMLA was not there
    assert main(["--from", str(path)]) == 2
