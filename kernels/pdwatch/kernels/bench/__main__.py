"""`python -m pdwatch.kernels.bench`: the benchmark where only this portion is installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pdwatch.kernels.bench.cases import BATCHES, CONTEXTS
from pdwatch.kernels.bench.command import EXIT_COULD_NOT_RUN, bench, numbers
from pdwatch.kernels.bench.errors import BenchArguments, BenchUnavailable


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns the exit code; see `command.bench`, and 3 where it could not run."""
    parser = argparse.ArgumentParser(prog="python -m pdwatch.kernels.bench", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="sparse_mla, indexer_logits, indexer_topk")
    parser.add_argument("--batches", help="for example 1,16,64")
    parser.add_argument("--contexts", help="for example 2K,128K,1M")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="show an earlier result")
    parser.add_argument("--json-file", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write an SVG plot")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args(arguments)
    try:
        return bench(
            given.families,
            batches=numbers(given.batches) if given.batches else BATCHES,
            contexts=numbers(given.contexts) if given.contexts else CONTEXTS,
            source=given.source,
            json_file=given.json_file,
            plot=given.plot,
            as_json=given.json,
            quiet=given.quiet,
        )
    except (BenchArguments, BenchUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_COULD_NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
