"""Train the embedded model on one GPU, and check it by exact match.

    python -m pdwatch.stack.embedded.train --out DIR [--stages dense:280,index:12,sparse:170] [--init WEIGHTS]

Three stages, each for so many seconds: `dense` learns the tasks with plain causal attention; `index` freezes the model
and teaches the indexer where that attention looks beyond the window; `sparse` trains everything under the indexer's
choice. Writes NAME.safetensors (bf16) and NAME.json (configuration, stages, share of held-out tasks answered exactly).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from . import tokens as vocabulary
from .dataset import BUCKETS, HELD_OUT_ROWS, ROWS, Tasks, load_or_generate
from .muon import Muon
from .network import Mode, Network, Shape

LEARNING_RATE: Final = 3e-3
WEIGHT_DECAY: Final = 0.05
CLIP_NORM: Final = 1.0
PROMPT_WEIGHT: Final = 0.1


@dataclass(frozen=True, slots=True)
class Schedule:
    """One stage: how steps are drawn and how the learning rate moves over its share of time."""

    mode: Mode
    warmup_steps: int
    peak: float
    floor: float
    hold: float
    early: tuple[float, ...]
    late: tuple[float, ...]

    def rate(self, step: int, elapsed: float) -> float:
        """Factor on the learning rate: a linear warm-up, held, then falling to the floor; `elapsed` in 0 … 1."""
        fall = max(0.0, elapsed - self.hold) / (1 - self.hold)
        return min(1.0, (step + 1) / self.warmup_steps) * (self.peak + (self.floor - self.peak) * fall)

    def weights(self, elapsed: float) -> Tensor:
        """Share of each bucket; the dense stage begins with the short one."""
        return torch.tensor(self.early if elapsed < 0.3 else self.late)


SCHEDULES: Final[dict[str, Schedule]] = {
    "dense": Schedule("dense", 200, 1.0, 0.3, 0.5, (1.0, 0.0, 0.0), (0.25, 0.35, 0.4)),
    "index": Schedule("index", 50, 1.0, 0.01, 0.0, (0.4, 0.3, 0.3), (0.4, 0.3, 0.3)),
    "sparse": Schedule("sparse", 50, 0.3, 0.005, 0.0, (0.15, 0.4, 0.45), (0.1, 0.35, 0.55)),
}


class Trainer:
    """A network, its data and its random choices."""

    def __init__(self, network: Network, train: Mapping[int, Tasks], held_out: Mapping[int, Tasks], step_tokens: int):
        self.network, self.train, self.held_out = network, train, held_out
        self.step_tokens = step_tokens
        self.device = next(network.parameters()).device
        self._source = torch.Generator().manual_seed(0)

    def autocast(self) -> torch.autocast:
        """bf16 matrix work on a GPU, plain float32 elsewhere."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def run(self, stage: str, seconds: float) -> int:
        """Train one stage for `seconds`; returns its steps."""
        schedule = SCHEDULES[stage]
        matrices, others = self._trainable(stage)
        muon = Muon(matrices)
        adam = torch.optim.AdamW(others, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0, fused=self.device.type == "cuda")
        started, step, reported = time.monotonic(), 0, 0
        while (elapsed := (time.monotonic() - started) / seconds) < 1:
            loss = self._loss(schedule, self._batch(schedule, elapsed))
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            nn.utils.clip_grad_norm_([*matrices, *others], CLIP_NORM)
            rate = LEARNING_RATE * schedule.rate(step, elapsed)
            for group in adam.param_groups:
                group["lr"] = rate
            muon.step(rate, WEIGHT_DECAY)
            adam.step()
            adam.zero_grad(set_to_none=True)
            muon.clear()
            step += 1
            if int(elapsed * 10) > reported:
                reported = int(elapsed * 10)
                _talk(f"{stage} {elapsed:4.0%} step {step} loss {loss.item():.5f}")
        return step

    def exact(self, mode: Mode, rows: int = HELD_OUT_ROWS, tokens: int = 16_384) -> dict[str, float]:
        """Share of held-out tasks a bucket whose every answer token is the argmax: for a whole answer that is what
        greedy decoding gives."""
        shares = {}
        for bucket, tasks in self.held_out.items():
            right = []
            for first in range(0, min(rows, len(tasks.tokens)), tokens // bucket):
                part = slice(first, first + tokens // bucket)
                ids = tasks.tokens[part].long()
                with torch.compiler.set_stance("force_eager"), torch.no_grad(), self.autocast():
                    logits, _ = self.network(ids, vocabulary.PAD, mode)
                answer, _ = _masks(tasks.spans[part], bucket)
                right.append(((logits[:, :-1].argmax(-1) == ids[:, 1:]) | ~answer).all(1))
            shares[str(bucket)] = round(torch.cat(right).float().mean().item(), 4)
        return shares

    def _trainable(self, stage: str) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Matrices for Muon and the rest for AdamW; the indexer learns alone, then with the rest."""
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in self.network.named_parameters():
            indexer = ".idx_" in name
            parameter.requires_grad_(stage == "sparse" or indexer == (stage == "index"))
            if parameter.requires_grad:
                hidden = name.startswith("blocks.") and parameter.ndim == 2 and not indexer
                (matrices if hidden else others).append(parameter)
        return matrices, others

    def _batch(self, schedule: Schedule, elapsed: float) -> tuple[Tensor, Tensor]:
        bucket = BUCKETS[int(torch.multinomial(schedule.weights(elapsed), 1, generator=self._source))]
        # the explicit attention of the later stages holds every pair of positions: half the tokens fit.
        rows = max(1, self.step_tokens // bucket // (1 if schedule.mode == "dense" else 2))
        tasks = self.train[bucket]
        picked = torch.randint(len(tasks.tokens), (rows,), generator=self._source).to(self.device)
        return tasks.tokens[picked].long(), tasks.spans[picked]

    def _loss(self, schedule: Schedule, batch: tuple[Tensor, Tensor]) -> Tensor:
        ids, spans = batch
        with self.autocast():
            logits, figures = self.network(ids, vocabulary.PAD, schedule.mode)
        answer, prompt = _masks(spans, ids.shape[1])
        loss = torch.zeros((), device=self.device)
        if schedule.mode != "index":
            surprise = functional.cross_entropy(logits[:, :-1].float().transpose(1, 2), ids[:, 1:], reduction="none")
            loss = loss + _mean(surprise, answer) + PROMPT_WEIGHT * _mean(surprise, prompt)
        if figures is not None:
            distance = figures[:, 0, :, :-1].sum(0)
            loss = loss + _mean(distance, answer) + 0.2 * _mean(distance, prompt)
        return loss


def _masks(spans: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Which of the predicted positions 1 … length−1 belong to the answer, and which to the prompt."""
    position = torch.arange(1, length, device=spans.device)
    prompt = position < spans[:, :1]
    return (position < spans[:, 1:]) & ~prompt, prompt


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum()


def _talk(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _save(network: Network, out: Path, name: str, record: Mapping[str, Any]) -> None:
    weights = {key: value.bfloat16().contiguous().cpu() for key, value in network.state_dict().items()}
    save_file(weights, out / f"{name}.safetensors")
    (out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--data", type=Path, default=Path("/tmp"), help="folder where data sets are kept")
    parser.add_argument("--name", default="tiny_toolcaller")
    parser.add_argument("--stages", default="dense:280,index:12,sparse:170", help="stage:seconds, in order")
    parser.add_argument("--init", type=Path, help="weights to go on from")
    parser.add_argument("--tokens", type=int, default=98_304, help="tokens of a dense step")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the data sets, for a trial run")
    return parser.parse_args()


def main() -> None:
    """Generate the tasks, run the stages, store and check the weights."""
    options = _arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    train, held_out = (
        {
            bucket: load_or_generate(options.data, split, bucket, max(16, int(rows[bucket] * options.scale))).to(device)
            for bucket in BUCKETS
        }
        for split, rows in (("train", ROWS), ("held_out", dict.fromkeys(BUCKETS, HELD_OUT_ROWS)))
    )
    _talk("tasks are ready")
    network = Network(Shape()).to(device)
    if options.init is not None:
        network.load_state_dict({key: value.float() for key, value in load_file(options.init).items()})
    if device.type == "cuda":
        # the blocks share their code: a graph for each mode and bucket, trained and frozen.
        torch._dynamo.config.recompile_limit = 128
        for block in network.blocks:
            block.compile(dynamic=False)
    trainer = Trainer(network, train, held_out, options.tokens)
    record: dict[str, Any] = {
        "config": Shape().as_json(),
        "optimizer": {"learning_rate": LEARNING_RATE, "weight_decay": WEIGHT_DECAY, "tokens": options.tokens},
        "init": options.init.name if options.init else None,
        "stages": {},
        "special": {text.strip("<>"): token for token, text in vocabulary.SPECIAL_TEXT.items()},
    }
    for part in options.stages.split(","):
        stage, _, seconds = part.partition(":")
        # a short stage is not worth its compilation.
        with torch.compiler.set_stance("force_eager" if stage == "index" else "default"):
            steps = trainer.run(stage, float(seconds))
        record["stages"][stage] = {"steps": steps, "seconds": float(seconds)}
        _save(network, options.out, options.name, record)
        judged: Mode = "dense" if stage == "dense" else "sparse"
        _talk(f"{stage}: {steps} steps; exact on 256 a bucket: {trainer.exact(judged, 256)}")
    with torch.no_grad():
        # judge what was stored, not what was trained.
        for parameter in network.parameters():
            parameter.copy_(parameter.bfloat16())
    record["exact"] = {"sparse": trainer.exact("sparse"), "dense": trainer.exact("index")}
    _save(network, options.out, options.name, record)
    _talk(json.dumps(record["exact"]))


if __name__ == "__main__":
    main()
