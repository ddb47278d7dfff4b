"""JUnit XML of a verdict: one test case per level and check. INCONCLUSIVE is an error: skips get overlooked."""

from __future__ import annotations

from xml.etree import ElementTree

from pdwatch.gate.verdict import Check, Result, Verdict

_XML_ALLOWED = str.maketrans(dict.fromkeys([*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0xFFFE, 0xFFFF], "\ufffd"))


def junit_xml(verdict: Verdict, run_id: str, duration_seconds: float) -> bytes:
    """The document, UTF-8. A run-wide check stands in the class `pdwatch.run`."""
    checks = [*verdict.checks, *(check for level in verdict.levels for check in level.checks)]
    counts = {
        "tests": str(max(len(checks), 1)),
        "failures": str(sum(check.result is Result.FAIL for check in checks)),
        "errors": str(sum(check.result is Result.INCONCLUSIVE for check in checks)),
        "skipped": "0",
        "time": f"{duration_seconds:.3f}",
    }
    root = ElementTree.Element("testsuites", {"name": "pdwatch", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(f"pdwatch gate {run_id}"), **counts})
    if not checks:
        ElementTree.SubElement(suite, "testcase", {"classname": "pdwatch.run", "name": "run", "time": "0"})
    for check in checks:
        _add_case(suite, check)
    output = ElementTree.SubElement(suite, "system-out")
    output.text = _clean(f"{verdict.result.value}: {verdict.headline}")
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _add_case(suite: ElementTree.Element, check: Check) -> None:
    classname = "pdwatch.run" if check.level is None else f"pdwatch.level_{check.level}"
    case = ElementTree.SubElement(suite, "testcase", {"classname": classname, "name": check.name, "time": "0"})
    tag = {Result.FAIL: "failure", Result.INCONCLUSIVE: "error"}.get(check.result)
    if tag is not None:
        attributes = {"type": check.signature or check.result.value.lower(), "message": _clean(check.text)}
        ElementTree.SubElement(case, tag, attributes).text = _clean(check.text)


def _clean(text: str) -> str:
    """Text that XML 1.0 can hold; what it cannot becomes U+FFFD."""
    whole = text.encode("utf-8", errors="surrogatepass").decode("utf-8", errors="replace")
    return whole.translate(_XML_ALLOWED)
