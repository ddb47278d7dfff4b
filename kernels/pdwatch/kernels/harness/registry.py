"""The kernels that are known: ours, the peers', and whatever other packages register.

A package registers kernels under the entry point group `pdwatch.kernels`; an entry is a KernelUnderTest, a sequence of
them, or a function without arguments that returns either. An entry that cannot be loaded is told by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

from pdwatch.kernels.harness.kernel import KernelUnderTest

GROUP = "pdwatch.kernels"


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel, or why it could not be loaded. `source` is where it comes from."""

    name: str
    source: str
    kernel: KernelUnderTest | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Entries by name."""

    entries: tuple[Entry, ...]

    def named(self, names: Sequence[str]) -> Catalogue:
        """The entries of these names; a name may end in `*`. Raises UnknownKernel."""
        chosen: dict[str, Entry] = {}
        for name in names:
            found = {
                entry.name: entry
                for entry in self.entries
                if entry.name == name or (name.endswith("*") and entry.name.startswith(name[:-1]))
            }
            if not found:
                known = ", ".join(entry.name for entry in self.entries)
                raise UnknownKernel(f"kernel `{name}` is not registered, use one of: {known}")
            chosen |= found
        return Catalogue(tuple(chosen.values())) if names else self


class UnknownKernel(ValueError):
    """No registered kernel has this name."""


def catalogue(entry_points: Iterable[metadata.EntryPoint] | None = None) -> Catalogue:
    """All kernels. Never raises for a kernel that cannot be loaded."""
    entries: dict[str, Entry] = {}
    for name, load in _builtin():
        for entry in _loaded(name, "pdwatch", load):
            entries.setdefault(entry.name, entry)
    found = metadata.entry_points(group=GROUP) if entry_points is None else entry_points
    for point in found:
        for entry in _loaded(point.name, point.value, partial(_load_point, point)):
            if entry.name in entries:
                clash = f"the name is taken by {entries[entry.name].source}: rename it"
                entry = Entry(f"{entry.name} ({point.value})", point.value, problem=clash)
            entries[entry.name] = entry
    return Catalogue(tuple(entries.values()))


def _builtin() -> list[tuple[str, Callable[[], Sequence[KernelUnderTest]]]]:
    """Loaders by the name that is told when they fail."""
    from pdwatch.kernels.harness import ours, peers

    return [
        ("eager", ours.eager_table),
        ("triton", ours.triton_table),
        *((f"sparse_mla.{layout}", lambda layout=layout: [ours.sparse_mla_of(layout)]) for layout in ours.MLA_LAYOUTS),
        *((f"indexer_logits.{layout}", lambda layout=layout: [ours.indexer_of(layout)]) for layout in ours.KEY_LAYOUTS),
        ("topk", lambda: [ours.topk()]),
        *(
            (f"indexer_topk.{layout}", lambda layout=layout: [ours.indexer_topk_of(layout)])
            for layout in ours.KEY_LAYOUTS
        ),
        ("flashmla", peers.flashmla),
        ("deepgemm", peers.deepgemm),
    ]


def _loaded(name: str, source: str, load: Callable[[], Sequence[KernelUnderTest]]) -> list[Entry]:
    # whatever the code of others raises, it must not take the other kernels down
    try:
        return [Entry(kernel.name, source, kernel) for kernel in load()]
    except ImportError as error:
        return [Entry(name, source, problem=f"cannot be imported here: {error}")]
    except Exception as error:
        return [Entry(name, source, problem=f"could not be loaded: {type(error).__name__}: {error}")]


def _load_point(point: metadata.EntryPoint) -> Sequence[KernelUnderTest]:
    return _resolved(point.load())


def _resolved(value: Any) -> Sequence[KernelUnderTest]:
    if callable(value) and not isinstance(value, KernelUnderTest):
        value = value()
    kernels = [value] if isinstance(value, KernelUnderTest) else list(value)
    for kernel in kernels:
        if not isinstance(kernel, KernelUnderTest):
            raise TypeError(f"{type(kernel).__name__} is no KernelUnderTest")
    return kernels
