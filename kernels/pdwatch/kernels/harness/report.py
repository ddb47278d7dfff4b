"""A report as files: JUnit XML, HTML that opens offline, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from pdwatch.kernels.harness.outcome import CheckResult, Outcome, Report

_XML_ALLOWED = str.maketrans(dict.fromkeys([*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0xFFFE, 0xFFFF], "\ufffd"))
_STYLE = """
:root { color-scheme: light dark; --page: #f7f7f5; --card: #fff; --ink: #1d2127; --soft: #5f6670; --rule: #e4e4e0;
  --pass: #1b7a4b; --fail: #b42318; --not-run: #946200; }
@media (prefers-color-scheme: dark) { :root { --page: #131519; --card: #1a1d22; --ink: #e4e7eb; --soft: #a3a9b3;
  --rule: #2b2f37; --pass: #5bc48c; --fail: #ff8b80; --not-run: #e2b24a; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  overflow-wrap: anywhere; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 24px 64px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 17px; margin: 34px 0 6px; }
p { margin: 4px 0; color: var(--soft); }
table { border-collapse: collapse; width: 100%; background: var(--card); border: 1px solid var(--rule);
  font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 6px 10px; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; font-size: 12.5px; }
td:first-child, td.state { white-space: nowrap; }
.PASS, .pass { color: var(--pass); } .FAIL, .fail { color: var(--fail); font-weight: 600; }
.INCONCLUSIVE, .not-run { color: var(--not-run); } .does-not-apply { color: var(--soft); }
"""


def write_reports(
    report: Report, junit: Path | None = None, html: Path | None = None, json_file: Path | None = None
) -> None:
    """Writes the files that are asked for; their folders are made."""
    writers: tuple[tuple[Path | None, Callable[[Report], bytes]], ...] = (
        (junit, junit_xml),
        (html, html_page),
        (json_file, lambda made: (json.dumps(made.document(), indent=2) + "\n").encode()),
    )
    for path, make in writers:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(make(report))


def junit_xml(report: Report) -> bytes:
    """One test case for each kernel and check. What could not be run is an error: skips get overlooked."""
    counts = {
        "tests": str(len(report.results)),
        "failures": str(report.count(Outcome.FAIL)),
        "errors": str(report.count(Outcome.NOT_RUN)),
        "skipped": str(report.count(Outcome.NOT_APPLICABLE)),
        "time": f"{report.seconds:.3f}",
    }
    root = ElementTree.Element("testsuites", {"name": "pdwatch kernels", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "pdwatch kernels check", **counts})
    for result in report.results:
        name = {"classname": f"pdwatch.kernels.{clean(result.kernel)}", "name": result.check}
        case = ElementTree.SubElement(suite, "testcase", {**name, "time": f"{result.seconds:.3f}"})
        tag = {Outcome.FAIL: "failure", Outcome.NOT_RUN: "error", Outcome.NOT_APPLICABLE: "skipped"}.get(result.outcome)
        if tag is not None:
            attributes = {"message": clean(result.detail)}
            if tag != "skipped":
                attributes["type"] = result.check
            ElementTree.SubElement(case, tag, attributes)
    ElementTree.SubElement(suite, "system-out").text = clean(f"{report.verdict}: {report.headline}")
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def html_page(report: Report) -> bytes:
    """One file without scripts and without references to anywhere; every text is escaped by the serialiser."""
    root = ElementTree.Element("html", {"lang": "en"})
    head = ElementTree.SubElement(root, "head")
    ElementTree.SubElement(head, "meta", {"charset": "utf-8"})
    _text(head, "title", f"{report.verdict}: kernels")
    _text(head, "style", _STYLE)
    main = ElementTree.SubElement(ElementTree.SubElement(root, "body"), "main")
    _text(main, "h1", report.verdict, report.verdict)
    _text(main, "p", report.headline)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    _text(main, "p", f"Seeds from {report.first_seed}; {report.seconds:.1f} s; {versions}.")
    for kernel, results in report.kernels():
        _text(main, "h2", kernel)
        table = ElementTree.SubElement(main, "table")
        heading = ElementTree.SubElement(table, "tr")
        for column in ("check", "result", "what was found", "guards against", "seconds"):
            _text(heading, "th", column)
        # what went wrong stands first
        for result in sorted(results, key=lambda entry: _ORDER[entry.outcome]):
            _row(table, result)
    body: bytes = ElementTree.tostring(root, encoding="utf-8", method="html")
    return b"<!doctype html>\n" + body + b"\n"


_ORDER = {Outcome.FAIL: 0, Outcome.NOT_RUN: 1, Outcome.PASS: 2, Outcome.NOT_APPLICABLE: 3}


def _row(table: ElementTree.Element, result: CheckResult) -> None:
    row = ElementTree.SubElement(table, "tr")
    _text(row, "td", result.check)
    _text(row, "td", result.outcome.value, f"state {result.outcome.value.replace(' ', '-')}")
    _text(row, "td", result.detail)
    _text(row, "td", result.guards)
    _text(row, "td", f"{result.seconds:.2f}")


def _text(parent: ElementTree.Element, tag: str, text: str, style: str = "") -> None:
    element = ElementTree.SubElement(parent, tag, {"class": style} if style else {})
    element.text = clean(text)


def clean(text: str) -> str:
    """Text that XML 1.0 can hold; what it cannot becomes U+FFFD."""
    whole = text.encode("utf-8", errors="surrogatepass").decode("utf-8", errors="replace")
    return whole.translate(_XML_ALLOWED)
