"""Everything that is asked of a GPU at a scrape, by the names used in recordings and in field errors.

Numbers of fields and activities are NVML's (nvml.h), units as NVML gives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# a reading is one call; those in braces give several numbers
READINGS: Final = (
    "temperature",  # °C
    "power_usage",  # mW
    "power_limit",  # mW, enforced
    "memory",  # {total, used, reserved} bytes
    "utilization",  # {gpu, memory} percent
    "clock_sm",  # MHz
    "clock_memory",  # MHz
    "clock_sm_max",  # MHz
    "clock_memory_max",  # MHz
    "performance_state",  # 0 to 15
    "event_reasons",  # bit mask
    "remapped_rows",  # {correctable, uncorrectable, pending, failure}
    "sram_ecc",  # {corrected, parity, secded} volatile and aggregate, {threshold_exceeded}
    "pcie_generation",
    "pcie_width",  # lanes
    "mig_mode",  # 0 or 1
)

# those that cannot change while a driver runs; asking for them takes longer than for most that do
STATIC_READINGS: Final = frozenset({"clock_sm_max", "clock_memory_max"})

# the scope that means all NVLinks together
ALL_LINKS: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Field:
    """A field value of nvmlDeviceGetFieldValues."""

    name: str
    number: int
    scope: int = 0


FIELDS: Final = (
    Field("ecc_corrected_volatile", 3),
    Field("ecc_uncorrected_volatile", 4),
    Field("ecc_corrected_aggregate", 5),
    Field("ecc_uncorrected_aggregate", 6),
    Field("throttled_power", 74),  # ns
    Field("throttled_thermal", 75),  # ns
    Field("throttled_sync_boost", 76),  # ns
    Field("throttled_board_limit", 77),  # ns
    Field("throttled_low_utilization", 78),  # ns
    Field("throttled_reliability", 79),  # ns
    Field("throttled_software_thermal", 269),  # ns
    Field("throttled_hardware_thermal", 270),  # ns
    Field("throttled_power_brake", 271),  # ns
    Field("memory_temperature", 82),  # °C
    Field("energy", 83),  # mJ
    Field("nvlink_count", 91),
    Field("pcie_replays", 94),
    Field("nvlink_tx", 138, ALL_LINKS),  # KiB
    Field("nvlink_rx", 139, ALL_LINKS),  # KiB
    Field("nvlink_ecc_errors", 160),
    Field("nvlink_replay_errors", 161, ALL_LINKS),
    Field("nvlink_recovery_errors", 162, ALL_LINKS),
    Field("nvlink_crc_errors", 163, ALL_LINKS),
    Field("power_average", 185),  # mW
    Field("power_instant", 186),  # mW
    Field("pcie_tx", 197),  # bytes, of which an H200 counts 32 bits
    Field("pcie_rx", 198),
    Field("recovery_action", 230),
)

# GPM: means over the time between two samples, in percent unless said
ACTIVITIES: Final = {
    "graphics": 1,
    "sm": 2,
    "sm_occupancy": 3,
    "integer": 4,
    "tensor": 5,
    "dram": 10,
    "fp64": 11,
    "fp32": 12,
    "fp16": 13,
    "pcie_tx_rate": 20,  # MiB/s
    "pcie_rx_rate": 21,  # MiB/s
    "nvlink_rx_rate": 60,  # MiB/s
    "nvlink_tx_rate": 61,  # MiB/s
}

# bits of `event_reasons`; `gpu_idle` is no throttling and `software_power_cap` is normal near the limit
EVENT_REASONS: Final = {
    "gpu_idle": 0x1,
    "applications_clocks": 0x2,
    "software_power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "sync_boost": 0x10,
    "software_thermal": 0x20,
    "hardware_thermal": 0x40,
    "power_brake": 0x80,
    "display_clocks": 0x100,
}

# counters that start again at 2³²
WRAPPING: Final = ("pcie_rx", "pcie_tx")

# what never decreases while a driver runs: by these a replay goes on where its recording ends
COUNTERS: Final = frozenset(
    {
        "energy",
        "nvlink_tx",
        "nvlink_rx",
        "pcie_tx",
        "pcie_rx",
        "pcie_replays",
        *(field.name for field in FIELDS if field.name.startswith(("throttled_", "ecc_"))),
        *(field.name for field in FIELDS if field.name.endswith("_errors")),
    }
)
