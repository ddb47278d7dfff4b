"""JUnit XML as CI systems read it."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

from pdwatch.correctness import Outcome, Signature
from pdwatch.gate.assess import RunFacts, assess
from pdwatch.gate.junit import junit_xml
from pdwatch.gate.policy import load_policy
from pdwatch.gate.rows import RequestRow
from pdwatch.gate.verdict import Verdict


def verdict_of(rows: list[RequestRow], cut_short: str | None = None) -> Verdict:
    facts = RunFacts((1, 4), False, True, {("candidate", 4): 4}, cut_short=cut_short)
    return assess(rows, facts, load_policy())


def test_one_case_per_level_and_check(row: Callable[..., RequestRow]) -> None:
    rows = [row(number, level=level, phase=level) for level in (1, 4) for number in range(10)]
    rows.append(row(99, phase=4, outcome=Outcome.CORRUPT, signature=Signature.LEAK))
    root = ElementTree.fromstring(junit_xml(verdict_of(rows, "stopped by SIGINT\x00\ud800"), "run\x1b", 12.5))
    suite = root[0]
    cases = {(case.get("classname"), case.get("name")): case for case in suite.iter("testcase")}
    # per level: scored, model errors, corruption, protocol, errors; level 4 also the running batch; of the run:
    # complete, reference
    assert len(cases) == 5 + 6 + 2
    assert suite.attrib["tests"] == "13"
    assert (suite.attrib["failures"], suite.attrib["errors"], suite.attrib["skipped"]) == ("1", "1", "0")
    failure = cases["pdwatch.level_4", "corruption"].find("failure")
    assert failure is not None
    assert failure.get("type") == "leak"
    assert "1 of 11 scored answers corrupt (leak ×1)" in (failure.get("message") or "")
    # what nobody could decide is an error: a skip would be overlooked
    error = cases["pdwatch.run", "complete"].find("error")
    assert error is not None
    assert "stopped by SIGINT\ufffd" in (error.text or "")
    assert not list(suite.iter("skipped"))
    assert (suite.findtext("system-out") or "").startswith("FAIL: leak from level 4")
