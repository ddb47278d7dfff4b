"""What a kernel launcher raises."""

from __future__ import annotations


class KernelArguments(ValueError):
    """An argument has a shape, stride, dtype or device that a kernel does not take. Names the value and the remedy."""
