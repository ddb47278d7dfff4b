"""Errors of the exporters. Each message is one line that names the value and the remedy.

ExportersError
├── ListenFailed         the address to serve on cannot be used
├── CollectionFailed     one collection gave no data; it is counted, shown in /health, and tried again at the next
│   ├── CollectionTimedOut   it did not end in time
│   └── NvmlUnavailable      NVML or the driver does not answer
├── RecordingInvalid     a recording of NVML cannot be replayed
├── RulesInvalid         the rules that group kernels are no rules
├── TraceInvalid         a file is no trace of torch.profiler, or holds nothing to measure
├── HistoryInvalid       a history of profiles cannot be read or written
└── CaptureFailed        a server gave no trace
    └── CaptureRefused       its load forbids one now
"""

from __future__ import annotations


class ExportersError(Exception):
    """An exporter could not do what it was asked."""


class ListenFailed(ExportersError):
    """The address to serve on cannot be used."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot serve on {address}: {reason}; choose another with --listen")
        self.address = address


class CollectionFailed(ExportersError):
    """One collection gave no data."""


class CollectionTimedOut(CollectionFailed):
    """One collection did not end in time; it may still be under way, and no other is begun before it ends."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the collection has not ended after {seconds:.3g} s; look for a process in state D")
        self.seconds = seconds


class NvmlUnavailable(CollectionFailed):
    """NVML or the driver does not answer."""


class RecordingInvalid(ExportersError):
    """A recording of NVML cannot be replayed."""


class RulesInvalid(ExportersError):
    """The rules that group kernels are no rules."""


class TraceInvalid(ExportersError):
    """A file is no trace of torch.profiler, or holds nothing to measure."""


class HistoryInvalid(ExportersError):
    """A history of profiles cannot be read or written."""


class CaptureFailed(ExportersError):
    """A server gave no trace."""


class CaptureRefused(CaptureFailed):
    """The load of a server forbids a profile now; `outcome` is the reason as a label value."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
