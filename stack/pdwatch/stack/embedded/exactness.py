"""Share of held-out tasks that the engine answers exactly, greedy, one request at a time.

    python -m pdwatch.stack.embedded.exactness [--weights FILE] [--tasks 512]

The serving engine itself decodes on the CPU with its sparse path on; a task counts when every token of its answer is
right. Prints one JSON object: for each length bucket the tasks, the exact ones and the share.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
from pathlib import Path
from typing import Final

from .config import EngineConfig
from .curriculum import sample
from .dataset import BUCKETS, HELD_OUT_SEED
from .engine import Engine
from .request import Output, Request, SamplingParameters

DEFAULT_WEIGHTS: Final = Path(__file__).parent / "weights" / "tiny_toolcaller.safetensors"
# held-out data sets begin at HELD_OUT_SEED; these tasks are others again.
SEED: Final = 2 * HELD_OUT_SEED


def answers_exactly(engine: Engine, prompt: list[int], answer: list[int]) -> bool:
    """Whether greedy decoding of `prompt` gives `answer`, its end token included."""
    engine.submit(Request("task", prompt, SamplingParameters(max_new_tokens=len(answer) + 1)))
    received: list[int] = []
    while engine.has_work:
        for output in engine.step():
            assert isinstance(output, Output)
            received += output.new_token_ids
    return received == answer


def exact_tasks(weights: Path, bucket: int, seed: int, count: int) -> int:
    """Of `count` tasks of a bucket, those answered exactly."""
    engine = Engine(EngineConfig(role="unified", num_pages=128, max_running_requests=1), weights)
    source = random.Random(seed)
    exact = done = 0
    while done < count:
        prompt, answer = sample(source, bucket)
        # the same lengths as in training: what a smaller bucket holds is left to it.
        if bucket // 4 < len(prompt) + len(answer) <= bucket:
            exact += answers_exactly(engine, prompt, answer)
            done += 1
    return exact


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", type=Path, default=DEFAULT_WEIGHTS)
    parser.add_argument("--tasks", type=int, default=512, help="tasks a bucket")
    options = parser.parse_args()
    processes = os.cpu_count() or 1
    share = -(-options.tasks // processes)
    table = {}
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for bucket in BUCKETS:
            jobs = [(options.weights, bucket, SEED + bucket * 1000 + number, share) for number in range(processes)]
            exact = sum(pool.starmap(exact_tasks, jobs))
            tasks = share * processes
            table[str(bucket)] = {"tasks": tasks, "exact": exact, "share": round(exact / tasks, 4)}
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
