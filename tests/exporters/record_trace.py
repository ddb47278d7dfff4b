"""Record a small trace of torch.profiler as test data: a captured decode step, or the same step without a GPU.

python tests/exporters/record_trace.py tests/data/traces/h200_captured.json.gz

The step has what a decode step has: products, attention, a top-k beside it on a second stream, copies, sampling. It is
replayed with a span around each step, as SGLang names them, and with a pause before every fourth one.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

BATCH = 8
STEPS = 12


def step(state: dict[str, torch.Tensor], side: torch.cuda.Stream | None) -> None:
    x = state["x"] @ state["w"]
    if side is not None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            state["scores"].copy_((state["x"] @ state["index"]).topk(64).values)
    q = x.view(BATCH, 8, 1, 128)
    x = functional.scaled_dot_product_attention(q, state["k"], state["v"]).reshape(BATCH, 1024)
    if side is not None:
        torch.cuda.current_stream().wait_stream(side)
    state["logits"].copy_(functional.silu(x) @ state["vocabulary"])


def main() -> None:
    out = Path(sys.argv[1])
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    torch.manual_seed(0)
    shapes = {
        "x": (BATCH, 1024),
        "w": (1024, 1024),
        "index": (1024, 4096),
        "scores": (BATCH, 64),
        "k": (BATCH, 8, 512, 128),
        "v": (BATCH, 8, 512, 128),
        "vocabulary": (1024, 8192),
        "logits": (BATCH, 8192),
    }
    state = {name: torch.randn(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
    graph = None
    if cuda:
        side = torch.cuda.Stream()
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            for _ in range(3):
                step(state, side)
        torch.cuda.current_stream().wait_stream(warm)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(state, side)
        torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        for number in range(STEPS):
            if number % 4 == 0:
                time.sleep(0.002)
            with record_function(f"step[DECODE bs={BATCH}]"):
                if graph is not None:
                    graph.replay()
                else:
                    step(state, None)
            token = torch.multinomial(torch.softmax(state["logits"].float(), -1), 1)
            token.cpu()
    with tempfile.TemporaryDirectory() as directory:
        plain = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        out.parent.mkdir(parents=True, exist_ok=True)
        # which machine it was, and where, is nobody's business
        trace = {
            key: value
            for key, value in json.loads(plain.read_bytes()).items()
            if key not in ("host_name", "trace_id", "traceName", "distributedInfo")
        }
        out.write_bytes(gzip.compress(json.dumps(trace, indent=1).encode(), mtime=0))


if __name__ == "__main__":
    main()
