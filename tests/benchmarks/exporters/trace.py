"""What profiling a large trace costs: a made trace of `--events` events, about 300 bytes each, read and attributed.

python tests/benchmarks/exporters/trace.py --events 1000000
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from pathlib import Path

from pdwatch.exporters.profile import profile_trace, read_rules

NAMES = (
    "fused_moe_kernel",
    "void sm90::decode::sparse_fp8::flash_fwd_splitkv_mla_fp8_sparse_kernel<64>",
    "void deep_gemm::sm90_fp8_paged_mqa_logits<64u, 128u, 64u, true>",
    "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT",
    "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>",
)
KERNELS_PER_STEP = 600


def write(path: Path, events: int) -> None:
    """Half of the events are kernels on two streams, the rest the processor's."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        at = 1e9
        for number in range(events // 2):
            at += draw.uniform(1.0, 3.0)
            step = number // KERNELS_PER_STEP
            shown = {
                "device": 0,
                "stream": 7 + number % 2,
                "correlation": step,
                "grid": [4, 4, 1],
                "block": [384, 1, 1],
            }
            kernel = {"ph": "X", "cat": "kernel", "name": NAMES[number % 5], "pid": 0, "tid": 7, "ts": at, "dur": 2.0}
            call = {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "pid": 1, "tid": 1, "ts": at, "dur": 1.0}
            file.write(json.dumps(kernel | {"args": shown}) + ",\n")
            file.write(
                json.dumps(call | {"args": {"External id": number, "Record function id": 0, "x": "y" * 100}}) + ",\n"
            )
            if number % KERNELS_PER_STEP == 0:
                span = {"ph": "X", "cat": "gpu_user_annotation", "name": "step[DECODE bs=8]", "ts": at, "dur": 1.0}
                file.write(json.dumps(span | {"pid": 0, "args": {"External id": step}}) + ",\n")
        file.write("{}]}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        write(path, arguments.events)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        begun = time.perf_counter()
        (profile,) = profile_trace(path, read_rules(), target="made", unix_seconds=0.0)
        report = {
            "trace_mib": round(path.stat().st_size / 2**20),
            "seconds": round(time.perf_counter() - begun, 1),
            "most_resident_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "resident_before_mib": round(before),
            "steps": profile.steps.count if profile.steps else None,
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
