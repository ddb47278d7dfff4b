"""What a scrape of the GPU exporter costs: wall time over HTTP, and CPU time and memory of the exporter's process.

python tests/benchmarks/exporters/scrape.py                          # eight replayed GPUs with all fields
python tests/benchmarks/exporters/scrape.py --real                   # this machine's
python tests/benchmarks/exporters/scrape.py --scrapes 12 --pause 5   # as Prometheus does it
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import json
import statistics
import subprocess
import sys
import time

# the exporter alone in a process, without the command line around it
SERVE = """
import sys
from pdwatch.exporters import Exporter, MetricsServer
from pdwatch.exporters.gpu import BoundNvml, GpuSource, ReplayNvml, UnitsOfProcesses, demo_recording, multiplied
nvml = BoundNvml() if sys.argv[1] == "real" else ReplayNvml(multiplied(demo_recording()))
exporter = Exporter("gpu", GpuSource(nvml, units=UnitsOfProcesses()))
with MetricsServer(exporter) as server:
    print(server.address[1], flush=True)
    sys.stdin.read()
exporter.close()
"""
IDLE_SECONDS = 5.0
# as Prometheus 2.42 asks
HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
    "X-Prometheus-Scrape-Timeout-Seconds": "10",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="read this machine's GPUs")
    parser.add_argument("--scrapes", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.6, help="seconds between scrapes; GPM needs half a second")
    arguments = parser.parse_args()
    command = [sys.executable, "-c", SERVE, "real" if arguments.real else "replay"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()), timeout=30)
        walls = [scrape(connection) for _ in range(2)]
        clock = processor_clock(process.pid)
        before, begun = time.clock_gettime(clock), time.monotonic()
        time.sleep(IDLE_SECONDS)
        idle = (time.clock_gettime(clock) - before) / (time.monotonic() - begun)
        before, begun = time.clock_gettime(clock), time.monotonic()
        for _ in range(arguments.scrapes):
            time.sleep(arguments.pause)
            walls.append(scrape(connection))
        cpu, lasted = time.clock_gettime(clock) - before, time.monotonic() - begun
        after = values(connection)
        connection.close()
        process.stdin.close()
    # the first two start NVML and the GPM windows
    steady = walls[2:]
    report = {
        "source": "NVML" if arguments.real else "8 replayed GPUs",
        "samples": int(after["samples"]),
        "first_wall_ms": round(walls[0] * 1e3, 2),
        "wall_ms_median": round(statistics.median(steady) * 1e3, 2),
        "wall_ms_p95": round(statistics.quantiles(steady, n=20, method="inclusive")[-1] * 1e3, 2),
        "cpu_ms_per_scrape": round((cpu - idle * lasted) / arguments.scrapes * 1e3, 2),
        "idle_cpu_ms_per_second": round(idle * 1e3, 2),
        "cpu_percent_of_a_core": round(cpu / lasted * 100, 3),
        "resident_mib": round(after["process_resident_memory_bytes"] / 2**20, 1),
    }
    print(json.dumps(report, indent=1))


def processor_clock(pid: int) -> int:
    """The clock of a process's CPU time; what /proc tells counts in hundredths of a second."""
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise OSError(error, "no clock of the process's CPU time")
    return clock.value


def scrape(connection: http.client.HTTPConnection) -> float:
    """Seconds that one scrape took."""
    begun = time.perf_counter()
    connection.request("GET", "/metrics", headers=HEADERS)
    connection.getresponse().read()
    return time.perf_counter() - begun


def values(connection: http.client.HTTPConnection) -> dict[str, float]:
    """The unlabelled samples of one scrape, and how many samples there are in all."""
    connection.request("GET", "/metrics")
    lines = [line for line in connection.getresponse().read().decode().splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines) if "{" not in name}
    return found | {"samples": len(lines)}


if __name__ == "__main__":
    main()
