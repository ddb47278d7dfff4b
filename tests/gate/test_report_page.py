"""report.html: whole without a network, and safe whatever a server answered."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pdwatch.correctness import Outcome, Signature, differ
from pdwatch.gate.assess import RunFacts, assess
from pdwatch.gate.policy import GatePolicy
from pdwatch.gate.report.render import bands, render_report
from pdwatch.gate.report.scale import short, ticks_from_zero
from pdwatch.gate.report.visible import both_sides, first_difference, visible
from pdwatch.gate.rows import RequestRow
from pdwatch.gate.run_folder import RunFolder, WorkerRecord
from pdwatch.gate.server_samples import load_server_samples

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Collects tags and attributes, and checks that tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["style"], ["title"]):
            self.words += data


@pytest.fixture
def page_of(tmp_path: Path, policy: GatePolicy) -> Callable[[list[RequestRow]], str]:
    def render(rows: list[RequestRow], **changes: object) -> str:
        folder = RunFolder.create(tmp_path / "run", policy, ("pdwatch", "gate"), embedded=True)
        folder.update(**changes)
        verdict = assess(rows, RunFacts((1, 4), False, True, {("candidate", 4): 4}), policy)
        samples = load_server_samples(folder.server_samples, 0.0)
        return render_report(folder.record, verdict, rows, samples)

    return render


def test_hostile_answers_and_servers_cannot_act(
    page_of: Callable[..., str], row: Callable[..., RequestRow], hostile: str
) -> None:
    bad = row(
        1, phase=4, outcome=Outcome.CORRUPT, signature=Signature.WRONG_VALUE, received=f'f{{"code": "{hostile}"}}'
    )
    worker = WorkerRecord(
        name=hostile,
        arm="candidate",
        role="decode",
        url=f"javascript:{hostile}",
        metrics_url=None,
        server_info={"version": hostile, "model_path": hostile},
    )
    text = page_of([bad], model=hostile, fault=hostile, workers=(worker,))
    page = Page(text)
    assert "script" not in page.tags
    assert "<script" not in text
    assert not {name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href", "srcset")}
    # what was received can be read, its control characters as escapes
    assert "alert('x')" in page.words
    for character, shown in (("\x00", r"\x00"), ("\x1b", r"\x1b"), ("\u202e", r"\u202e"), ("\u200b", r"\u200b")):
        assert shown in page.words
        assert character not in text


def test_the_page_refers_to_nothing_outside(page_of: Callable[..., str], row: Callable[..., RequestRow]) -> None:
    text = page_of([row(number, level=level, phase=level) for level in (1, 4) for number in range(10)])
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text


def test_the_verdict_stands_at_the_top_in_words(page_of: Callable[..., str], row: Callable[..., RequestRow]) -> None:
    rows = [row(number, level=level, phase=level) for level in (1, 4) for number in range(10)]
    rows.append(row(50, phase=4, outcome=Outcome.CORRUPT, signature=Signature.LEAK, received='f{"code": "ZZZ999"}'))
    words = " ".join(Page(page_of(rows)).words.split())
    assert words.index("FAIL") < words.index("leak from level 4: 1 of 11 requests there. Level 1 clean.") < 600
    assert "1 of 11 scored answers corrupt" in words
    assert "Corruption in fewer than" in words


def test_ten_thousand_requests_stay_small(page_of: Callable[..., str], row: Callable[..., RequestRow]) -> None:
    rows = [
        row(number, phase=4, outcome=Outcome.CORRUPT, signature=Signature.WRONG_VALUE, received="x" * 4_000)
        for number in range(200)
    ]
    rows += [row(number, phase=4) for number in range(200, 10_000)]
    text = page_of(rows)
    assert len(text) < 1_000_000
    assert "200 requests" in Page(text).words
    assert "6 shown" in Page(text).words


def test_bands_are_the_measured_spans(row: Callable[..., RequestRow]) -> None:
    found = bands([row(0, phase=2, sent_seconds=5.0), row(1, phase=2, sent_seconds=9.0), row(2, phase=1)])
    assert [(band.start_seconds, band.end_seconds) for band in found] == [(0.4, 0.4), (5.0, 9.0)]


def marked(expected: str, received: str) -> tuple[str, str]:
    difference = differ(expected, received)
    assert difference is not None
    sides = both_sides(difference)
    left, right = ("".join(f"[{span.text}]" if span.changed else span.text for span in side) for side in sides)
    return left, right


@pytest.mark.parametrize(
    ("expected", "received", "left", "right", "told"),
    [
        ("ABC", "AXC", "A[B]C", "A[X]C", "byte 1: 42 became 58"),
        ("ABC", "AC", "A[B]C", "A[]C", "byte 1: 42 is missing"),
        ("AC", "ABC", "A[]C", "A[B]C", "byte 1: 42 was added"),
        # é is c3 a9, ê is c3 aa: one byte differs, the whole character is marked
        ("é1", "ê1", "[é]1", "[ê]1", "byte 1: a9 became aa"),
        ("A", "A\x00", "A[]", "A[\\x00]", "byte 1: 00 was added"),
    ],
    ids=["changed", "missing", "added", "inside-a-character", "control"],
)
def test_differing_bytes_are_marked(expected: str, received: str, left: str, right: str, told: str) -> None:
    assert marked(expected, received) == (left, right)
    difference = differ(expected, received)
    assert difference is not None
    assert first_difference(difference) == told


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\n\nb"),
        ("\t", "\\t"),
        ("\x7f", "\\x7f"),
        ("\ud800", "\\ud800"),
        ("\udcff", "\\xff"),
        ("\ufffd", "\ufffd"),
        ("\U000e0001", "\\U000e0001"),
        ("東京 é 😀", "東京 é 😀"),
    ],
    ids=["newline", "tab", "delete", "surrogate", "byte", "replacement", "tag", "plain"],
)
def test_what_a_browser_hides_is_shown(text: str, shown: str) -> None:
    assert "".join(span.text for span in visible(text)) == shown


def test_long_text_is_cut_and_says_so() -> None:
    assert visible("a" * 5_000, 100)[-1].text == "… 4900 more characters"


@pytest.mark.parametrize(
    ("largest", "ticks"),
    [(0, [0, 1]), (7, [0, 2, 4, 6, 8]), (100, [0, 25, 50, 75, 100]), (0.3, [0, 0.1, 0.2, 0.3])],
    ids=["nothing", "seven", "hundred", "small"],
)
def test_axes_have_round_ticks(largest: float, ticks: list[float]) -> None:
    assert ticks_from_zero(largest) == pytest.approx(ticks)
    assert short(25_000) == "25k"
