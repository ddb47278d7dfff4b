"""Reports and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pdwatch.kernels.harness.__main__ import main
from pdwatch.kernels.harness.outcome import CheckResult, Outcome, Report
from pdwatch.kernels.harness.report import html_page, junit_xml, write_reports

HOSTILE = "<script>alert(1)</script> & \x1b[31m\x00\ud800"


def report_of(*outcomes: Outcome, detail: str = "") -> Report:
    results = tuple(
        CheckResult("kernel", f"check{number}", "B1", outcome, detail, 0.5, 1)
        for number, outcome in enumerate(outcomes)
    )
    return Report(results, "the CPU", 0, 1, 1.25, {"torch": "2"})


@pytest.mark.parametrize(
    ("outcomes", "code", "verdict"),
    [
        ((Outcome.PASS, Outcome.NOT_APPLICABLE), 0, "PASS"),
        ((Outcome.PASS, Outcome.FAIL, Outcome.NOT_RUN), 1, "FAIL"),
        ((Outcome.PASS, Outcome.NOT_RUN), 2, "INCONCLUSIVE"),
        ((Outcome.NOT_APPLICABLE,), 2, "INCONCLUSIVE"),
        ((), 2, "INCONCLUSIVE"),
    ],
)
def test_the_worst_outcome_decides(outcomes: tuple[Outcome, ...], code: int, verdict: str) -> None:
    report = report_of(*outcomes)
    assert (report.exit_code, report.verdict) == (code, verdict)


def test_junit_counts_what_was_not_run_as_an_error() -> None:
    made = report_of(Outcome.PASS, Outcome.FAIL, Outcome.NOT_RUN, Outcome.NOT_APPLICABLE, detail=HOSTILE)
    root = ElementTree.fromstring(junit_xml(made))
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == ("4", "1", "1", "1")
    tags = [[child.tag for child in case] for case in root.iter("testcase")]
    assert tags == [[], ["failure"], ["error"], ["skipped"]]
    failure = root.find(".//failure")
    assert failure is not None
    assert "<script>" in (failure.get("message") or "")


def test_html_is_one_file_that_runs_and_fetches_nothing() -> None:
    page = html_page(report_of(Outcome.FAIL, detail=HOSTILE)).decode("utf-8")
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    for outside in ("http://", "https://", "src=", "href=", "@import", "url("):
        assert outside not in page


def test_files_are_written_where_asked(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "folder"
    write_reports(report_of(Outcome.PASS), folder / "j.xml", folder / "r.html", folder / "r.json")
    assert json.loads((folder / "r.json").read_text())["verdict"] == "PASS"
    assert (folder / "j.xml").stat().st_size
    assert (folder / "r.html").stat().st_size


def test_the_command_says_what_it_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["check", "eager.*", "--device", "cpu", "--check", "numerics", "--check", "poison"]
    assert main([*arguments, "--junit", str(tmp_path / "junit.xml")]) == 0
    shown = capsys.readouterr()
    assert "PASS: 3 kernels on the CPU" in shown.out
    assert "pass  eager.select_topk poison" in shown.err
    assert main([*arguments[:4], "--check", "stream_order", "--quiet"]) == 2
    assert "stream_order: needs CUDA" in capsys.readouterr().out


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "eager.select_topk", "--device", "cpu", "--check", "ties", "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["counts"] == {"pass": 1}
    assert document["results"][0]["check"] == "ties"


def test_the_command_refuses_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "nobody"]) == 3
    assert capsys.readouterr().err.startswith("error: kernel `nobody` is not registered")


def test_the_command_lists_kernels_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--checks"]) == 0
    shown = capsys.readouterr().out
    assert "eager.sparse_mla_decode" in shown
    assert "layout_invariance" in shown
    assert main(["list", "--json"]) == 0
    assert {entry["name"] for entry in json.loads(capsys.readouterr().out)} >= {"eager.select_topk"}
