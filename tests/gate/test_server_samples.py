"""From raw /metrics text to the numbers of verdict and report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from pdwatch.gate.batch import overlap
from pdwatch.gate.exposition import MAXIMUM_SERIES, Series, SeriesTable
from pdwatch.gate.journal import JournalWriter, read_journal
from pdwatch.gate.sampler import MAXIMUM_BODY_BYTES, SampledServer, Sampler, sample
from pdwatch.gate.server_samples import load_server_samples


@contextmanager
def served(handler: type[BaseHTTPRequestHandler], release: Callable[[], None] = lambda: None) -> Iterator[str]:
    """A server on loopback; `release` ends what its handlers still wait for."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        release()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def metrics_server(body: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            return None

    with served(Handler) as url:
        yield url


LINES = [
    pytest.param('a{x="1"} 2', [("a", {"x": "1"}, 2.0)], id="plain"),
    pytest.param("a 2 1700000000", [("a", {}, 2.0)], id="no-labels-with-time"),
    pytest.param('a{x="}",y="a,b\\"c\\\\"} 1', [("a", {"x": "}", "y": 'a,b"c\\'}, 1.0)], id="hard-labels"),
    pytest.param("sglang_num_running_reqs{} 3", [("sglang:num_running_reqs", {}, 3.0)], id="underscores"),
    pytest.param("a NaN\nb +Inf", [("b", {}, float("inf"))], id="not-a-number-is-absent"),
    pytest.param("# TYPE a gauge\n\na 1", [("a", {}, 1.0)], id="comments"),
    pytest.param('a{x=1} 2\n1a 2\na{x="1} 2\na\na two', [], id="broken"),
]


@pytest.mark.parametrize(("text", "expected"), LINES)
def test_lines_of_an_exposition(text: str, expected: list[tuple[str, dict[str, str], float]]) -> None:
    table = SeriesTable()
    read = [(table.series[index].name, dict(table.series[index].labels), value) for index, value in table.parse(text)]
    assert read == expected


def test_too_many_series_are_left_out_and_counted() -> None:
    table = SeriesTable()
    table.parse("\n".join(f'a{{x="{number}"}} 1' for number in range(MAXIMUM_SERIES + 5)))
    assert (len(table.series), table.skipped_lines) == (MAXIMUM_SERIES, 5)


def test_a_series_matches_by_name_and_labels() -> None:
    series = Series("a", (("mode", "decode"), ("rank", "0")))
    assert series.matches("a", {"mode": "decode"})
    assert not series.matches("a", {"mode": "prefill"})
    assert not series.matches("b", {})


def record(seconds: float, name: str, text: str) -> dict[str, object]:
    return {
        "seconds": seconds,
        "unix_seconds": seconds,
        "name": name,
        "arm": "candidate",
        "role": "decode",
        "text": text,
    }


def test_gauges_add_up_rates_restart_and_means_skip_empty_seconds(tmp_path: Path) -> None:
    path = tmp_path / "server.jsonl.zst"
    with JournalWriter(path) as journal:
        for second, (running, tokens, total, count) in enumerate(
            [(1, 100, 1.0, 10), (2, 160, 1.6, 20), (3, 20, 1.6, 20)]
        ):
            for worker in ("decode-0", "decode-1"):
                text = f"running {running}\ntokens {tokens}\nitl_sum {total}\nitl_count {count}\n"
                journal.append(record(100.0 + second, worker, text))
        failed = record(103.0, "decode-0", "")
        del failed["text"]
        journal.append(failed | {"failure": "HTTP 500"})
    samples = load_server_samples(path, 100.0)
    assert list(samples.gauge("candidate", "decode", "running").values) == [2, 4, 6]
    # 160 - 100 = 60 for each of two workers; then the counter restarted and stands at 20
    assert list(samples.rate("candidate", "decode", "tokens").values) == [120, 40]
    mean = samples.mean("candidate", "decode", "itl")
    # (1.6 - 1.0) / (20 - 10) = 0.06; the next second saw nothing and is absent
    assert (list(mean.seconds), list(mean.values)) == ([1.0], [pytest.approx(0.06)])
    assert (samples.scrapes, samples.failed_scrapes) == ({"decode-0": 3, "decode-1": 3}, {"decode-0": 1})
    assert len(samples.gauge("baseline", "decode", "running").values) == 0


def test_two_scrapes_in_one_second_count_once(tmp_path: Path) -> None:
    path = tmp_path / "server.jsonl.zst"
    with JournalWriter(path) as journal:
        for seconds, running in ((2.99, 1), (4.01, 1), (4.98, 3), (5.99, 1)):
            for worker in ("decode-0", "decode-1"):
                journal.append(record(100.0 + seconds, worker, f"running {running if worker == 'decode-0' else 2}\n"))
    samples = load_server_samples(path, 100.0)
    # seconds 2, 4 and 5; in 4 the later scrape counts: 3 + 2
    total, largest = (ask("candidate", "decode", "running") for ask in (samples.gauge, samples.largest))
    assert (list(total.seconds), list(total.values)) == ([2, 4, 5], [3, 5, 3])
    assert list(largest.values) == [2, 3, 2]


def test_a_torn_journal_gives_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "journal.zst"
    with JournalWriter(path) as journal:
        for number in range(3):
            journal.append({"number": number})
    content = path.read_bytes()
    lengths = []
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        lengths.append(len(list(read_journal(path))))
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-2], lengths[-1]) == (0, 2, 3)
    path.write_bytes(content + bytes(64))
    assert len(list(read_journal(path))) == 3
    assert list(read_journal(tmp_path / "absent")) == []


@pytest.mark.parametrize(
    ("body", "status", "kept"),
    [
        (b"a 1\n", 200, {"text": "a 1\n"}),
        (b"no", 503, {"failure": "HTTP 503"}),
        (b"a" * (MAXIMUM_BODY_BYTES + 1), 200, {"failure": f"more than {MAXIMUM_BODY_BYTES} bytes"}),
        (b"a \xff 1", 200, {"text": "a \ufffd 1"}),
    ],
    ids=["answer", "status", "too-long", "not-utf8"],
)
def test_a_scrape_keeps_the_text_or_the_failure(body: bytes, status: int, kept: dict[str, str]) -> None:
    with metrics_server(body, status) as url, httpx.Client(trust_env=False) as client:
        told = sample(client, SampledServer("decode-0", "candidate", "decode", url))
    assert {key: told[key] for key in kept} == kept
    assert ("text" in told) != ("failure" in told)


def test_a_server_that_is_gone_is_a_failure(free_port: int) -> None:
    with httpx.Client(trust_env=False) as client:
        told = sample(client, SampledServer("x", "candidate", "decode", f"http://127.0.0.1:{free_port}/metrics"))
    assert "ConnectError" in str(told["failure"])


def test_the_sampler_writes_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "server.jsonl.zst"
    with metrics_server(b"a 1\n") as url:
        server = SampledServer("decode-0", "candidate", "decode", url)
        with Sampler(path, [server], period_seconds=0.01):
            written = 0
            while written < 3:
                written = len(list(read_journal(path)))
    assert all(entry["text"] == "a 1\n" for entry in read_journal(path))


@pytest.mark.parametrize(
    ("spans", "expected"),
    [([], 0), ([(0, 1)], 1), ([(0, 1), (1, 2)], 1), ([(0, 3), (1, 2), (1.5, 4)], 3), ([(2, 2)], 0)],
    ids=["none", "one", "touching", "three", "no-length"],
)
def test_overlap_counts_spans_that_share_an_instant(spans: list[tuple[float, float]], expected: int) -> None:
    assert overlap(spans) == expected


@contextmanager
def dripping_server() -> Iterator[str]:
    """Sends a byte at a time, each well within any read timeout, and never ends."""
    pause = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while not pause.wait(0.01):
                    self.wfile.write(b"#")
            except OSError:
                return

        def log_message(self, *arguments: object) -> None:
            return None

    with served(Handler, pause.set) as url:
        yield url


def test_a_body_that_drips_is_given_up() -> None:
    with dripping_server() as url, httpx.Client(trust_env=False) as client:
        told = sample(client, SampledServer("x", "candidate", "decode", url), limit_seconds=0.05)
    assert told["failure"] == "over 0.05 s"


def test_a_server_that_hangs_costs_the_others_nothing(tmp_path: Path) -> None:
    path = tmp_path / "server.jsonl.zst"
    with dripping_server() as hanging, metrics_server(b"a 1\n") as url:
        servers = [
            SampledServer("hanging", "candidate", "decode", hanging),
            SampledServer("well", "candidate", "decode", url),
        ]
        with Sampler(path, servers, period_seconds=0.01):
            # the hanging one is given up after 0.5 s, the other one is asked again meanwhile
            while not any(record["name"] == "hanging" for record in read_journal(path)):
                threading.Event().wait(0.01)
    records = list(read_journal(path))
    first = next(index for index, record in enumerate(records) if record["name"] == "hanging")
    assert records[first]["failure"] == "over 0.5 s"
    assert first > 3


def test_a_thread_that_never_ends_does_not_hold_up_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released, entered = threading.Event(), threading.Event()

    def stuck(client: httpx.Client, server: SampledServer, limit_seconds: float) -> dict[str, object]:
        entered.set()
        released.wait()
        return {"late": True}

    monkeypatch.setattr("pdwatch.gate.sampler.sample", stuck)
    monkeypatch.setattr("pdwatch.gate.sampler.JOIN_SECONDS", 0.05)
    path = tmp_path / "server.jsonl.zst"
    sampler = Sampler(path, [SampledServer("stuck", "candidate", "decode", "http://127.0.0.1:1")])
    with sampler:
        entered.wait()
    released.set()
    for thread in threading.enumerate():
        if thread.name == "sampler stuck":
            thread.join()
    assert list(read_journal(path)) == []
