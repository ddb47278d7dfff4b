"""Finds the faults: every module of this folder may define subclasses of Fault."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache

from pdwatch.stack.embedded import faults
from pdwatch.stack.embedded.errors import ConfigurationError
from pdwatch.stack.embedded.faults.base import Fault


@dataclass(frozen=True, slots=True)
class FaultInfo:
    """One line of `pdwatch faults`."""

    name: str
    where: str
    signature: str
    description: str


@cache
def _registry() -> dict[str, type[Fault]]:
    modules = [
        importlib.import_module(f"{faults.__name__}.{info.name}") for info in pkgutil.iter_modules(faults.__path__)
    ]
    found = [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Fault) and value.__module__ == module.__name__
    ]
    return {fault.name: fault for fault in sorted(found, key=lambda fault: fault.name) if fault is not Fault}


def catalogue() -> list[FaultInfo]:
    """All faults, by name."""
    return [FaultInfo(f.name, f.where, f.signature, f.description) for f in _registry().values()]


def load(name: str | None, seed: int = 0) -> Fault:
    """The fault called `name`, or the one that does nothing for None. Raises ConfigurationError."""
    if name is None:
        return Fault(seed)
    if name not in _registry():
        raise ConfigurationError(f"fault `{name}` does not exist, use one of: {', '.join(_registry())}")
    return _registry()[name](seed)
