"""The device an engine computes on: whether it is there, what it needs, which kernels run on it, what it can hold."""

from __future__ import annotations

import os

import torch

from pdwatch.kernels import KernelsUnavailable, KernelTable, UnknownKernels, kernel_table
from pdwatch.stack.embedded.errors import ConfigurationError


def prepare_device(name: str) -> None:
    """Makes `cpu`, `cuda` or `cuda:N` ready for this process. Raises ConfigurationError when it is not there."""
    check_device(name)
    if torch.device(name).type == "cpu":
        torch.set_num_threads(1)
        # numbers of the smallest exponents cost a CPU a hundred times more than zero.
        torch.set_flush_denormal(True)


def check_device(name: str) -> None:
    """Raises ConfigurationError when `cpu`, `cuda` or `cuda:N` is not there."""
    device = torch.device(name)
    if device.type == "cpu":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise ConfigurationError(f"device is {name}, PyTorch sees {count} CUDA devices here: use cpu or another one")


def kernels_on(device: str, name: str) -> KernelTable:
    """The kernels called `name`, to run on `device`. Raises ConfigurationError when they cannot."""
    try:
        table = kernel_table(name)
    except (UnknownKernels, KernelsUnavailable) as error:
        raise ConfigurationError(str(error)) from error
    if torch.device(device).type not in table.devices:
        raise ConfigurationError(
            f"kernels `{name}` run on {' and '.join(table.devices)}, device is {device}: change one of them"
        )
    return table


def memory_bytes(name: str) -> int:
    """The most bytes a pool on the device could take: a GPU's free memory, or all of this machine's."""
    device = torch.device(name)
    if device.type == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return torch.cuda.mem_get_info(device)[0]
