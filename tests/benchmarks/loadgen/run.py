"""What the load generator costs and how true its figures are, beside its peers, against a server that knows the truth.

    python tests/benchmarks/loadgen/run.py --repetitions 5
    python tests/benchmarks/loadgen/run.py --streams 2000 --requests 8000 --processes 2 --contenders ours

`ours` is `pdwatch load` as a user types it, with `--processes` where several are asked for; `driver` is the load
generator under it alone. Each contender makes a small run (one request a stream) and the large one, in turn, as often
as told; medians are shown with the extremes. CPU is user and system time of all of a contender's processes, start and
end included; the marginal cost leaves those out: the difference of the two runs over that of their tokens. Errors are
of single requests, against the times at which the server sent. "Last byte to summary" ends when the driver tells it,
with `ours` when the command has ended. Memory is what all processes hold at most (PSS).
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pdwatch.loadgen.percentiles import percentile
from pdwatch.loadgen.row import ROWS_NAME, read_rows

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Scene:
    """One run's size."""

    streams: int
    requests: int
    tokens: int
    processes: int


@dataclass(frozen=True)
class Outcome:
    """What one run cost and told: by request id, TTFT and TPOT in seconds."""

    cpu_seconds: float
    most_bytes: int
    figures: dict[str, tuple[float, float | None]]
    is_valid: str
    summarised_seconds: float | None


Contender = Callable[[str, Scene, Path], Outcome]


def ours(url: str, scene: Scene, folder: Path) -> Outcome:
    """`pdwatch load`, from the typing of the command to its table."""
    out = folder / "out"
    command = [sys.executable, "-m", "pdwatch.gate.cli", "load", url, "--model", "truth", "--dialect", "openai"]
    command += ["--levels", str(scene.streams), "--requests", str(scene.requests), "--warmup", "0"]
    command += ["--max-tokens", str(scene.tokens), "--processes", str(scene.processes), "--out", str(out)]
    # 2 is an INVALID level, which the figures tell.
    used = _run(command, accepts=(0, 2))
    document = json.loads((out / "load.json").read_text())
    reasons = [reason for level in document["levels"] for reason in level["validity"]["reasons"]]
    return Outcome(used.cpu_seconds, used.most_bytes, _figures(out), "; ".join(reasons) or "yes", used.ended_seconds)


def driver(url: str, scene: Scene, folder: Path) -> Outcome:
    """The load generator alone."""
    plan = {
        "seed": 1,
        "dialect": "openai",
        "targets": {"truth": url},
        "model": "truth",
        "cancel_rate": 0,
        "source": {"kind": "text", "max_tokens": scene.tokens},
        "phases": [
            {"index": 0, "arm": "truth", "level": scene.streams, "warmup_seconds": 0, "requests": scene.requests}
        ],
    }
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    out = folder / "out"
    module = "pdwatch.loadgen.drive" if scene.processes == 1 else "pdwatch.loadgen.scale.lead"
    command = [sys.executable, "-m", module, "--plan", str(path), "--out", str(out)]
    if scene.processes > 1:
        command += ["--processes", str(scene.processes)]
    used = _run(command)
    ends = [(seconds, event) for seconds, event in used.lines if event["event"] == "phase_end"]
    reasons = [reason for _, event in ends for reason in event["validity"]["reasons"]]
    summarised_seconds = max(seconds for seconds, _ in ends)
    return Outcome(used.cpu_seconds, used.most_bytes, _figures(out), "; ".join(reasons) or "yes", summarised_seconds)


def _figures(out: Path) -> dict[str, tuple[float, float | None]]:
    return {
        row.request_id: (row.time_to_first_token_seconds, row.time_per_output_token_seconds)
        for row in read_rows(out / ROWS_NAME)
        if row.time_to_first_token_seconds is not None
    }


def locust(url: str, scene: Scene, folder: Path) -> Outcome:
    """Plain Locust; see locust_peer.py."""
    out = folder / "peer.csv"
    arguments = [url, str(scene.streams), str(scene.requests), str(scene.tokens), str(out)]
    used = _run([sys.executable, str(HERE / "locust_peer.py"), *arguments])
    with out.open(newline="") as file:
        figures = {name: (float(ttft), float(tpot) if tpot else None) for name, ttft, tpot in csv.reader(file)}
    return Outcome(used.cpu_seconds, used.most_bytes, figures, "does not say", None)


def sglang(url: str, scene: Scene, folder: Path) -> Outcome:
    """SGLang's client in Rust. Its request ids are its own: it gives CPU and memory only."""
    command = [sys.executable, "-m", "sglang.benchmark.serving", "--rust-client", "--backend", "sglang-oai-chat"]
    command += ["--base-url", url, "--model", "truth", "--dataset-name", "random-ids", "--disable-tqdm"]
    command += ["--num-prompts", str(scene.requests), "--max-concurrency", str(scene.streams)]
    command += ["--random-input-len", "200", "--random-output-len", str(scene.tokens), "--random-range-ratio", "1.0"]
    command += ["--tokenize-prompt", "--vocab-size", "32000", "--output-file", str(folder / "sglang.jsonl")]
    used = _run(command)
    return Outcome(used.cpu_seconds, used.most_bytes, {}, "does not say", None)


CONTENDERS: dict[str, Contender] = {"ours": ours, "driver": driver, "locust": locust, "sglang": sglang}


@dataclass(frozen=True)
class Used:
    """What a process and its children took, when it ended, and each JSON line it wrote with its time."""

    cpu_seconds: float
    most_bytes: int
    ended_seconds: float
    lines: list[tuple[float, dict[str, Any]]]


def _run(command: list[str], accepts: tuple[int, ...] = (0,)) -> Used:
    """Run a process to its end."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lines: list[tuple[float, dict[str, Any]]] = []
    errors = bytearray()

    def read(stdout: IO[bytes]) -> None:
        for line in stdout:
            if line.startswith(b"{"):
                lines.append((time.monotonic(), json.loads(line)))

    assert process.stdout is not None and process.stderr is not None
    threads = [
        threading.Thread(target=read, args=(process.stdout,)),
        threading.Thread(target=lambda stderr: errors.extend(stderr.read()), args=(process.stderr,)),
    ]
    for thread in threads:
        thread.start()
    most_bytes = 0
    while True:
        most_bytes = max(most_bytes, _tree_bytes(process.pid))
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(0.1)
    ended_seconds = time.monotonic()
    process.returncode = os.waitstatus_to_exitcode(status)
    for thread in threads:
        thread.join()
    if process.returncode not in accepts:
        raise SystemExit(errors.decode())
    return Used(usage.ru_utime + usage.ru_stime, most_bytes, ended_seconds, lines)


def _tree_bytes(pid: int) -> int:
    """Memory of a process and its children, what they share counted once."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return total + sum(_tree_bytes(int(child)) for child in children)


@contextmanager
def truth_server(binary: Path, truth: Path, options: argparse.Namespace) -> Iterator[str]:
    """The server under way; its base URL."""
    numbers = [options.first_ms * 1000, options.gap_ms * 1000, options.tokens_per_chunk, options.chunks_per_write]
    command = [str(binary), str(truth), *(str(int(number)) for number in numbers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.send_signal(signal.SIGTERM)


def measured(contender: Contender, binary: Path, scene: Scene, options: argparse.Namespace) -> dict[str, Any]:
    """One run against a server of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with truth_server(binary, folder / "truth.csv", options) as url:
            outcome = contender(url, scene, folder)
        with (folder / "truth.csv").open(newline="") as file:
            truth = {row["id"]: row for row in csv.DictReader(file)}
    ttft_errors, tpot_errors = [], []
    for request_id, (ttft, tpot) in outcome.figures.items():
        row = truth[request_id]
        requested, first, last = (int(row[key]) / 1e9 for key in ("requested_ns", "first_ns", "last_ns"))
        ttft_errors.append(abs(ttft - (first - requested)) * 1000)
        if tpot is not None and last > first:
            tpot_errors.append(abs(tpot * (int(row["tokens"]) - 1) / (last - first) - 1) * 100)
    last_seconds = max(int(row["last_ns"]) for row in truth.values()) / 1e9
    return {
        "tokens": sum(int(row["tokens"]) for row in truth.values()),
        "cpu_seconds": outcome.cpu_seconds,
        "most_mib": outcome.most_bytes / 2**20,
        "requests": len(outcome.figures) or len(truth),
        "ttft_p50": percentile(ttft_errors, 50),
        "ttft_p99": percentile(ttft_errors, 99),
        "tpot_p99": percentile(tpot_errors, 99),
        "valid": outcome.is_valid,
        "summary_seconds": None if outcome.summarised_seconds is None else outcome.summarised_seconds - last_seconds,
    }


def shown(values: list[float | None], pattern: str) -> str:
    """Median and extremes."""
    there = [value for value in values if value is not None]
    if not there:
        return "–"
    low, middle, high = (format(value, pattern) for value in (min(there), statistics.median(there), max(there)))
    return f"{middle} [{low}–{high}]"


def report(name: str, small: list[dict[str, Any]], large: list[dict[str, Any]]) -> None:
    """Print a contender's figures."""
    total = [run["cpu_seconds"] / run["tokens"] * 1e6 for run in large]
    pairs = zip(small, large, strict=True)
    marginal = [
        (big["cpu_seconds"] - little["cpu_seconds"]) / (big["tokens"] - little["tokens"]) * 1e6
        for little, big in pairs
        if big["tokens"] > little["tokens"]
    ]
    verdicts = sorted({run["valid"] for run in large})
    print(f"{name}: {len(large)} runs of {large[0]['requests']} requests, {large[0]['tokens']} tokens")
    print(f"  CPU per token, in all    µs  {shown(list(total), '.2f')}")
    print(f"  CPU per token, marginal  µs  {shown(list(marginal), '.2f')}")
    print(f"  TTFT error p50           ms  {shown([run['ttft_p50'] for run in large], '.3f')}")
    print(f"  TTFT error p99           ms  {shown([run['ttft_p99'] for run in large], '.3f')}")
    print(f"  TPOT error p99            %  {shown([run['tpot_p99'] for run in large], '.4f')}")
    print(f"  memory at most          MiB  {shown([run['most_mib'] for run in large], '.0f')}")
    print(f"  last byte to summary      s  {shown([run['summary_seconds'] for run in large], '.2f')}")
    print(f"  valid                        {' | '.join(verdicts)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Benchmark the load generator beside its peers.")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--requests", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--first-ms", type=float, default=50)
    parser.add_argument("--gap-ms", type=float, default=20)
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--chunks-per-write", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="drivers of ours that share the load")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--contenders", default="ours,driver,locust,sglang")
    options = parser.parse_args()
    compiler = shutil.which("cc")
    if compiler is None:
        print("benchmark: no C compiler; install cc", file=sys.stderr)
        return 3
    names = options.contenders.split(",")
    if "sglang" in names and importlib.util.find_spec("sglang") is None:
        print("sglang: not installed, left out")
        names.remove("sglang")
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "truth_server"
        subprocess.run([compiler, "-O2", "-o", str(binary), str(HERE / "truth_server.c")], check=True)
        large = Scene(options.streams, options.requests, options.tokens, options.processes)
        small = Scene(options.streams, options.streams, options.tokens, options.processes)
        runs: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {name: ([], []) for name in names}
        for _ in range(options.repetitions):
            # in turn, so that a slow minute of the machine is everybody's.
            for name in names:
                for scene, into in zip((small, large), runs[name], strict=True):
                    into.append(measured(CONTENDERS[name], binary, scene, options))
        for name in names:
            report(name, *runs[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
