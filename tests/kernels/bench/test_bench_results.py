"""Bars, table, plot and file of a result."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from pdwatch.kernels.bench.bars import bars
from pdwatch.kernels.bench.document import Document, read_document
from pdwatch.kernels.bench.errors import BenchArguments
from pdwatch.kernels.bench.plot import svg
from pdwatch.kernels.bench.table import text


def test_bars_compare_with_the_peer_of_the_same_run(document: Document) -> None:
    found = {(bar.words, bar.point): bar for bar in bars(document)}
    over_flash = found["sparse MLA, V4 fp8: speed over FlashMLA's", "B=1"]
    # FlashMLA took 9 us where ours took 10
    assert (over_flash.reached, over_flash.held) == (0.9, False)
    assert found["sparse MLA, V4 fp8: speed over FlashMLA's at B=64", "B=64"].least == 1.5
    assert found["sparse MLA, V3.2 fp8: speed over FlashMLA's", "B=64"].held is True
    assert found["sparse MLA, V4 fp8: speed over a per-head kernel's", "B=1"].held is None
    assert found["indexer logits: speed over DeepGEMM's", "L=128K B=64"].held is True
    assert found["logits + top-k: speed over eager PyTorch's", "L=2K B=64"].reached == 25.0
    assert found["indexer: speed with maximum 1M over that with maximum 4K", "indexer_logits L=2K B=1"].reached == 1.0


def test_shares_are_of_the_measured_roof(document: Document) -> None:
    found = {(bar.words, bar.point): bar.reached for bar in bars(document)}
    # V4 at B = 64: 64 * 507,648 B at 4 TB/s are 8.12 us; 64 * 83.9 MFLOP at 800 TFLOP/s are 6.71 us
    assert found["sparse MLA, V4 fp8: share of the roof", "B=64"] == pytest.approx(0.812, abs=0.001)
    # 32,768 keys: 64 * 4,338,... B at 4.4 TB/s, the better of read and copy
    least = 64 * (32768 * 132 + 4 * 512 + 64 * 132 + 4 * 512)
    share = found["logits + top-k: share of the read bandwidth", "L=128K B=64"]
    assert share == pytest.approx(least / 4.4e12 / 10e-6)
    assert ("sparse MLA, V4 fp8: share of the roof", "B=1") not in found


def test_a_slower_kernel_at_the_larger_maximum_misses(document: Document) -> None:
    for row in document.rows:
        if row.family == "indexer_logits" and row.maximum_context == 4096:
            row.microseconds["pdwatch"] = 9.0
    flat = [bar for bar in bars(document) if "maximum 4K" in bar.words]
    # 10 us are more than 5 % above 9 us
    assert {bar.point: bar.held for bar in flat if "logits" in bar.point} == {
        "indexer_logits L=2K B=1": False,
        "indexer_logits L=2K B=64": False,
    }


def test_the_table_shows_times_shares_and_what_is_absent(document: Document) -> None:
    lines = text(document, bars(document)).splitlines()
    assert "device: a GPU" in lines
    assert "roof: copy 4.00 TB/s, read 4.40 TB/s, bf16 800 TFLOP/s" in lines
    table = lines[lines.index("sparse_mla, v4 fp8") :]
    assert table[1].split() == ["point", "pdwatch", "of", "roof", "TB/s", "FlashMLA", "ratio"]
    assert table[3].split() == ["B=64", "10.0", "81%", "3.25", "9.0", "0.90"]
    assert "largest difference to DeepGEMM in indexer_logits: 1.0e-03" in lines
    mla = sum(row.family == "sparse_mla" for row in document.rows)
    expected = f"not measured in {mla} of {len(document.rows)} cases: per-head Triton is missing <here>"
    assert expected in lines
    assert any(line.startswith("sparse MLA, V4 fp8: speed over FlashMLA's ") and "MISSED" in line for line in lines)


def test_the_plot_is_a_picture_of_every_series(document: Document) -> None:
    document.rows[0].microseconds["<script>"] = 3.0
    root = ElementTree.fromstring(svg(document))
    space = {"s": "http://www.w3.org/2000/svg"}
    titles = {text.text for text in root.iterfind(".//s:g/s:text[@font-weight]", space)}
    assert {"sparse_mla, v4 fp8", "indexer_logits, fp8 64 heads, B=64"} <= titles
    assert not root.iterfind(".//s:script", space) or not list(root.iterfind(".//s:script", space))
    assert any("<script>" in (text.text or "") for text in root.iterfind("s:text", space))
    for line in root.iterfind(".//s:polyline", space):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 52 <= x <= 388 and 30 <= y <= 240


def test_a_result_can_be_read_again(document: Document, tmp_path: Path) -> None:
    document.write(tmp_path / "bench.json")
    assert read_document(tmp_path / "bench.json") == document
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"roof": 1, "rows": []}'], ids=["empty", "list", "no-roof", "roof"]
)
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(BenchArguments, match=r"other.json` is no result of the benchmark"):
        read_document(path)
    with pytest.raises(BenchArguments, match="cannot read"):
        read_document(tmp_path / "absent.json")
