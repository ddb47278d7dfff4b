"""The benchmark as one function: what the command lines of this portion and of the gate share."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from pdwatch.kernels.bench.bars import bars
from pdwatch.kernels.bench.cases import BATCHES, CONTEXTS, MAXIMUM_CONTEXT, Family, cases
from pdwatch.kernels.bench.document import Document, read_document
from pdwatch.kernels.bench.errors import BenchArguments, BenchUnavailable
from pdwatch.kernels.bench.measure import measure, opener
from pdwatch.kernels.bench.plot import svg
from pdwatch.kernels.bench.table import progress, text
from pdwatch.kernels.bench.timing import measure_roof, microseconds

EXIT_HELD, EXIT_MISSED, EXIT_NOT_MEASURED, EXIT_COULD_NOT_RUN = 0, 1, 2, 3
_PACKAGES = ("torch", "triton", "tokenspeed-flashmla", "sgl-deep-gemm")


def bench(
    families: Sequence[str] = (),
    *,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    source: Path | None = None,
    json_file: Path | None = None,
    plot: Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
    seed: int = 0,
) -> int:
    """Measures, or reads `source`, and prints a table or JSON; the exit code.

    0 every bar is held, 1 one is missed, 2 one lacks a peer (see `bars.py`). `json_file` is rewritten after each case,
    so that a run that is stopped leaves what it has measured. Raises BenchArguments and BenchUnavailable.
    """
    document = read_document(source) if source is not None else None
    if document is None:
        document = _measured(_families(families), _batches(batches), _contexts(contexts), json_file, quiet, seed)
    elif json_file is not None:
        document.write(json_file)
    if plot is not None:
        plot.write_text(svg(document), encoding="utf-8")
    found = bars(document)
    if as_json:
        print(json.dumps(asdict(document) | {"bars": [asdict(bar) | {"held": bar.held} for bar in found]}, indent=1))
    else:
        print(text(document, found))
    if any(bar.held is False for bar in found):
        return EXIT_MISSED
    return EXIT_HELD if all(bar.held for bar in found) else EXIT_NOT_MEASURED


def numbers(words: str) -> tuple[int, ...]:
    """Whole numbers with commas between them; `K` and `M` are powers of 1,024. Raises BenchArguments."""
    factors = {"K": 1 << 10, "M": 1 << 20}
    try:
        return tuple(
            int(word[:-1]) * factors[word[-1]] if word[-1:] in factors else int(word)
            for word in words.upper().split(",")
        )
    except ValueError as error:
        raise BenchArguments(f"`{words}` is no list of numbers: write it like 1,16,64 or 2K,128K,1M") from error


def _measured(
    families: Sequence[Family],
    batches: Sequence[int],
    contexts: Sequence[int],
    json_file: Path | None,
    quiet: bool,
    seed: int,
) -> Document:
    _need_a_gpu()
    import torch

    torch.manual_seed(seed)
    document = Document(
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"), facts=_facts(), roof=measure_roof()
    )
    for row in measure(cases(families, batches, contexts), microseconds, opener("cuda")):
        document.rows.append(row)
        # inputs of a case are gone by now; what the allocator keeps of them may not fit the next ones
        torch.cuda.empty_cache()
        if json_file is not None:
            document.write(json_file)
        if not quiet:
            print(progress(row), file=sys.stderr, flush=True)
    return document


def _need_a_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise BenchUnavailable(
            "the benchmark measures on a CUDA GPU, and PyTorch sees none here: run it on a machine with one, or show "
            "an earlier result with --from FILE"
        )
    try:
        import triton  # noqa: F401  # says what is missing before anything is made
    except ImportError as error:
        raise BenchUnavailable(
            f"the kernels need Triton, which cannot be imported here: {error}; install it"
        ) from error


def _facts() -> dict[str, str]:
    import torch

    facts = {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    for package in _PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = "not installed"
    return facts


def _families(names: Sequence[str]) -> list[Family]:
    known = [family.value for family in Family]
    for name in names:
        if name not in known:
            raise BenchArguments(f"`{name}` is not measured: use one of {', '.join(known)}")
    return [family for family in Family if not names or family.value in names]


def _batches(batches: Sequence[int]) -> Sequence[int]:
    for batch in batches:
        if not 1 <= batch <= 4096:
            raise BenchArguments(f"batch {batch} is not measured: use 1 to 4096")
    return batches


def _contexts(contexts: Sequence[int]) -> Sequence[int]:
    for context in contexts:
        if not 256 <= context <= MAXIMUM_CONTEXT or context % 256:
            raise BenchArguments(f"context {context} is not measured: use multiples of 256 up to {MAXIMUM_CONTEXT}")
    return contexts
