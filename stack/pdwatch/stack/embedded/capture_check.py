"""Compares captured decode steps with eager ones on a CUDA device.

    python -m pdwatch.stack.embedded.capture_check --weights FILE.safetensors [--kernels triton]

Each mode answers the same tasks at each batch size. One JSON object goes to stdout: for every mode and batch the rows
whose tokens differ from the eager step's, the median step time, and the address oracle (layers whose transient's memory
was handed out again before the join). `racy` should be wrong, the other modes should not.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from pdwatch.stack.embedded.config import EngineConfig, OverlapMode
from pdwatch.stack.embedded.curriculum import sample
from pdwatch.stack.embedded.engine import Engine
from pdwatch.stack.embedded.request import Output, Request, SamplingParameters
from pdwatch.stack.embedded.tokens import EOS

PROMPT_BUCKET: Final = 1024
# prompts shorter than this are skipped: with top-k and window full, a wrong choice of positions shows.
SHORTEST_PROMPT: Final = 300


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run the decode step."""

    name: str
    capture: bool
    overlap: OverlapMode = "off"
    delay_cycles: int = 0
    kernels: str = "eager"


EAGER: Final = Mode("eager", capture=False)


def modes(delay_cycles: int, kernels: str) -> list[Mode]:
    """Captured modes, the two with a side stream also with that stream held back; other kernels also uncaptured."""
    plain = [] if kernels == EAGER.kernels else [Mode("uncaptured", capture=False, kernels=kernels)]
    return [
        *plain,
        Mode("capture", capture=True, kernels=kernels),
        Mode("overlap_on", capture=True, overlap="on", kernels=kernels),
        Mode("overlap_racy", capture=True, overlap="racy", kernels=kernels),
        Mode("overlap_on_delayed", capture=True, overlap="on", delay_cycles=delay_cycles, kernels=kernels),
        Mode("overlap_racy_delayed", capture=True, overlap="racy", delay_cycles=delay_cycles, kernels=kernels),
    ]


def prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts of real tasks, so that the right answer is far from a tie."""
    source = random.Random(seed)
    found: list[list[int]] = []
    while len(found) < count:
        prompt, _ = sample(source, PROMPT_BUCKET)
        if SHORTEST_PROMPT <= len(prompt) <= PROMPT_BUCKET:
            found.append(prompt)
    return found


def build(mode: Mode, weights: Path, batches: list[int], device: str, seed: int) -> Engine:
    """A unified engine in this mode."""
    config = EngineConfig(
        device=device,
        num_pages=1 + 32 * max(batches),
        max_running_requests=max(batches),
        context_length=2048,
        prefix_cache=False,
        capture=mode.capture,
        capture_batch_sizes=tuple(batches),
        multi_stream_overlap=mode.overlap,
        side_stream_delay_cycles=mode.delay_cycles,
        kernels=mode.kernels,
        seed=seed,
    )
    return Engine(config, weights)


def answer(engine: Engine, tasks: list[list[int]], new_tokens: int) -> tuple[list[list[int]], list[float]]:
    """Tokens of every task, decoded to one length, and the seconds of each step at which all of them ran."""
    sampling = SamplingParameters(max_new_tokens=new_tokens, ignore_eos=True)
    for number, prompt in enumerate(tasks):
        engine.submit(Request(str(number), prompt, sampling))
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(tasks))}
    seconds = []
    while engine.has_work:
        steps = sum(engine.statistics.steps.values()) - engine.statistics.steps["prefill_none"]
        for output in engine.step():
            assert isinstance(output, Output)
            if output.finish is not None and output.finish.type == "abort":
                tokens[output.rid].append(-1)
            tokens[output.rid] += output.new_token_ids
        decoded = sum(engine.statistics.steps.values()) - engine.statistics.steps["prefill_none"] > steps
        if decoded and engine.statistics.last_batch == len(tasks):
            seconds.append(engine.statistics.last_decode_step_seconds or 0.0)
    return [tokens[str(number)] for number in range(len(tasks))], seconds


def check_mode(
    mode: Mode, weights: Path, batches: list[int], device: str, new_tokens: int, seed: int
) -> dict[int, dict[str, Any]]:
    """Tokens, step times and the address oracle of one mode, by batch."""
    engine = build(mode, weights, batches, device, seed)
    results: dict[int, dict[str, Any]] = {}
    for batch in batches:
        tokens, seconds = answer(engine, prompts(batch, seed + batch), new_tokens)
        reused = engine.graphs.reused.get(batch, []) if engine.graphs else []
        results[batch] = {
            "tokens": tokens,
            "step_milliseconds": round(1e3 * statistics.median(seconds), 4) if seconds else None,
            "full_steps": len(seconds),
            "reused_layers": sum(reused),
            "steps": dict(engine.statistics.steps),
        }
    return results


def compare(expected: list[list[int]], got: list[list[int]]) -> dict[str, Any]:
    """Rows that differ within their answer, and where the first difference stands.

    What follows the answer's end is nothing the model was trained for, so a tie there says nothing.
    """
    firsts = [
        next(
            (place for place, (left, right) in enumerate(zip(_answer(one), other, strict=False)) if left != right), None
        )
        for one, other in zip(expected, got, strict=True)
    ]
    wrong = [first for first in firsts if first is not None]
    return {
        "rows": len(expected),
        "wrong_rows": len(wrong),
        "first_wrong_token": min(wrong) if wrong else None,
    }


def _answer(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def check(
    weights: Path,
    batches: list[int],
    device: str,
    new_tokens: int,
    delay_cycles: int,
    seed: int,
    kernels: str = EAGER.kernels,
) -> dict[str, Any]:
    """Runs every mode; a mode that fails is reported with its error and the others still run."""
    table: list[dict[str, Any]] = []
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "device": device,
        "kernels": kernels,
        "seed": seed,
        "results": table,
    }
    if device.startswith("cuda"):
        report["device_name"] = torch.cuda.get_device_name()
    eager = check_mode(EAGER, weights, batches, device, new_tokens, seed)
    again = check_mode(EAGER, weights, batches, device, new_tokens, seed)
    runs: list[tuple[Mode, dict[int, dict[str, Any]]]] = [(EAGER, again)]
    for mode in modes(delay_cycles, kernels) if device.startswith("cuda") else []:
        begin = time.perf_counter()
        try:
            runs.append((mode, check_mode(mode, weights, batches, device, new_tokens, seed)))
        except RuntimeError as error:
            report.setdefault("errors", {})[mode.name] = f"{type(error).__name__}: {error}"
        gc.collect()
        print(f"{mode.name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    for mode, results in runs:
        for batch in batches:
            result = results[batch]
            tokens = result.pop("tokens")
            table.append({"mode": mode.name, "batch": batch, **compare(eager[batch]["tokens"], tokens), **result})
    return report


def main() -> int:
    """Prints the report; 1 when a mode could not run."""
    parser = argparse.ArgumentParser(prog="capture_check", description="Compare captured decode steps with eager ones.")
    parser.add_argument("--weights", type=Path, required=True, help="checkpoint (.safetensors, its .json beside it)")
    parser.add_argument("--batches", default="1,2,4,8,16,32", help="batch sizes, comma-separated")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--delay-cycles", type=int, default=200_000, help="spin of the side stream in delayed modes")
    parser.add_argument(
        "--kernels", default=EAGER.kernels, help="of all modes but the eager one they are compared with"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    batches = sorted(int(batch) for batch in options.batches.split(","))
    report = check(
        options.weights,
        batches,
        options.device,
        options.new_tokens,
        options.delay_cycles,
        options.seed,
        options.kernels,
    )
    print(json.dumps(report, indent=1))
    return 1 if "errors" in report else 0


if __name__ == "__main__":
    sys.exit(main())
