"""Runs checks on kernels."""

from __future__ import annotations

import platform
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from itertools import islice

import torch

from pdwatch.kernels.harness.checks import CHECKS, Check, CheckFailed, Subject
from pdwatch.kernels.harness.checks.base import CannotRun, DoesNotApply
from pdwatch.kernels.harness.kernel import KernelUnderTest
from pdwatch.kernels.harness.outcome import CheckResult, Outcome, Report
from pdwatch.kernels.harness.registry import Catalogue

Progress = Callable[[CheckResult], None]
# frames of a kernel's own exception that are told
_FRAMES = 2
# PyTorch says these when the context is gone: every later call fails as well
_LOST = ("illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address")


class UnknownName(ValueError):
    """No kernel, or no check, has this name."""


def run_checks(
    catalogue: Catalogue,
    device: str | None = None,
    first_seed: int = 0,
    seeds: int = 1,
    only: Sequence[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Every check (or those named in `only`) of every kernel of the catalogue. `device`: a GPU if there is one.

    Raises UnknownName for a check that does not exist, and for a device that this machine lacks.
    """
    started = time.perf_counter()
    chosen_device = pick_device(device)
    checks = pick_checks(only)
    results: list[CheckResult] = []
    lost = ""
    for entry in catalogue.entries:
        if entry.kernel is None:
            result = CheckResult(entry.name, "load", "", Outcome.NOT_RUN, entry.problem, 0.0, 0)
            results.append(result)
            _tell(progress, result)
            continue
        for check in checks:
            result = run_check(check, entry.kernel, chosen_device, range(first_seed, first_seed + seeds), lost)
            if result.outcome is Outcome.FAIL and chosen_device.type == "cuda" and _context_is_lost(result.detail):
                lost = f"the CUDA context was lost in `{check.name}` of `{entry.name}`: run this kernel by itself"
            results.append(result)
            _tell(progress, result)
    seconds = time.perf_counter() - started
    return Report(tuple(results), _device_words(chosen_device), first_seed, seeds, seconds, versions())


def run_check(
    check: Check, kernel: KernelUnderTest, device: torch.device, seeds: Iterable[int], lost: str = ""
) -> CheckResult:
    """One check of one kernel; stops at the first seed that fails."""
    started = time.perf_counter()
    count = 0

    def result(outcome: Outcome, detail: str = "", failed: tuple[int, ...] = ()) -> CheckResult:
        seconds = time.perf_counter() - started
        return CheckResult(kernel.name, check.name, check.guards, outcome, detail, seconds, count, failed)

    if reason := check.applies(kernel):
        return result(Outcome.NOT_APPLICABLE, reason)
    if lost:
        return result(Outcome.NOT_RUN, lost)
    if device.type not in kernel.devices:
        return result(Outcome.NOT_RUN, f"needs {' or '.join(kernel.devices).upper()}")
    if reason := check.needs(kernel, device):
        return result(Outcome.NOT_RUN, reason)
    for seed in islice(seeds, check.most_seeds):
        count += 1
        try:
            check.body(Subject(kernel, device, seed))
        except DoesNotApply as error:
            return result(Outcome.NOT_APPLICABLE, str(error))
        except CannotRun as error:
            return result(Outcome.NOT_RUN, str(error))
        except CheckFailed as error:
            return result(Outcome.FAIL, f"seed {seed}: {error}", (seed,))
        except Exception as error:
            return result(Outcome.FAIL, f"seed {seed}: {_raised(error)}", (seed,))
    return result(Outcome.PASS)


def pick_device(name: str | None) -> torch.device:
    """The device of this name; a GPU if there is one and none is named. Raises UnknownName."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise UnknownName(f"device `{name}` does not exist, use cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UnknownName("there is no CUDA GPU here: use --device cpu, and run the rest where one is")
    return torch.device(name)


def pick_checks(names: Sequence[str]) -> list[Check]:
    """The checks of these names, or all. Raises UnknownName."""
    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known:
            raise UnknownName(f"check `{name}` does not exist, use one of: {', '.join(known)}")
    return [check for check in CHECKS if not names or check.name in names]


def versions() -> dict[str, str]:
    """What the results depend on."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("triton", "tokenspeed-flashmla", "sgl-deep-gemm"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _device_words(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"the CPU ({platform.machine()})"


def _raised(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = " < ".join(f"{frame.name} (line {frame.lineno})" for frame in reversed(frames))
    return f"{type(error).__name__}: {error} in {places}"


def _context_is_lost(detail: str) -> bool:
    return any(words in detail for words in _LOST)


def _tell(progress: Progress | None, result: CheckResult) -> None:
    if progress is not None:
        progress(result)
