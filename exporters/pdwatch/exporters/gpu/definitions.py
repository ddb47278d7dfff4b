"""The metrics of the GPU exporter, and out of which reading each comes.

`uuid` and `index` are on every series of a GPU; everything else that names it is in `gpu_info`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..definitions import Kind, MetricDefinition

GPU: Final = ("uuid", "index")
MIB: Final = float(1 << 20)


@dataclass(frozen=True, slots=True)
class Source:
    """A sample of `definition` from one number: its name in the collected readings, what one is worth, more labels."""

    definition: MetricDefinition
    reading: str
    factor: float = 1.0
    labels: tuple[str, ...] = ()


UP: Final = MetricDefinition(
    "gpu_up",
    "gauge",
    "1 when the GPU answers; 0 when it is lost, needs a reset, or was there before and is not any more.",
    GPU,
)
INFO: Final = MetricDefinition(
    "gpu_info",
    "info",
    "What names the GPU; join on uuid. Served for a lost GPU too, so that it can be found.",
    (*GPU, "name", "pci_bus_id", "serial", "vbios_version", "driver_version"),
)
THROTTLED: Final = MetricDefinition(
    "gpu_throttled",
    "gauge",
    "1 while the clocks are held down for this reason. gpu_idle is no throttling; software_power_cap is normal near "
    "the power limit. A sample of one moment: gpu_throttled_seconds_total misses nothing.",
    (*GPU, "reason"),
)
XID_ERRORS: Final = MetricDefinition(
    "gpu_xid_errors_total",
    "counter",
    "Critical XID events since the exporter started, by number; a number appears with its first event. Alert on "
    "gpu_xid_last_timestamp_seconds: increase() does not see the first.",
    (*GPU, "xid"),
)
XID_LAST: Final = MetricDefinition(
    "gpu_xid_last_timestamp_seconds",
    "gauge",
    "Unix time of the last XID event of this number.",
    (*GPU, "xid"),
)
ACTIVITY_WINDOW: Final = MetricDefinition(
    "gpu_activity_window_seconds",
    "gauge",
    "The time over which the gpu_*_active_ratio of this scrape are means: since the scrape before, if not too short.",
    GPU,
)
PROCESS_MEMORY: Final = MetricDefinition(
    "gpu_process_memory_bytes",
    "gauge",
    "GPU memory of compute processes by systemd unit (opt-in). Units not asked for are summed as `other`, processes of "
    "another pid namespace as `unknown`. Managed memory is not counted by NVML.",
    (*GPU, "unit"),
)
PROCESSES: Final = MetricDefinition(
    "gpu_processes", "gauge", "Compute processes by systemd unit (opt-in).", (*GPU, "unit")
)
INSTANCE: Final = (*GPU, "gpu_instance")
INSTANCE_INFO: Final = MetricDefinition(
    "gpu_instance_info",
    "info",
    "A MIG device of the GPU.",
    (*INSTANCE, "compute_instance", "instance_uuid", "name"),
)
INSTANCE_MEMORY_TOTAL: Final = MetricDefinition(
    "gpu_instance_memory_total_bytes", "gauge", "Memory of a MIG GPU instance.", INSTANCE
)
INSTANCE_MEMORY_USED: Final = MetricDefinition(
    "gpu_instance_memory_used_bytes", "gauge", "Memory of a MIG GPU instance in use.", INSTANCE
)
_INSTANCE_ACTIVITY: Final = {
    "sm": MetricDefinition(
        "gpu_instance_sm_active_ratio", "gauge", "gpu_sm_active_ratio of a MIG GPU instance, of its own SMs.", INSTANCE
    ),
    "dram": MetricDefinition(
        "gpu_instance_dram_active_ratio", "gauge", "gpu_dram_active_ratio of a MIG GPU instance.", INSTANCE
    ),
    "tensor": MetricDefinition(
        "gpu_instance_tensor_active_ratio", "gauge", "gpu_tensor_active_ratio of a MIG GPU instance.", INSTANCE
    ),
}


def _gauge(name: str, text: str, *more: str) -> MetricDefinition:
    return _definition(name, "gauge", text, more)


def _counter(name: str, text: str, *more: str) -> MetricDefinition:
    return _definition(name, "counter", text, more)


def _definition(name: str, kind: Kind, text: str, more: tuple[str, ...]) -> MetricDefinition:
    return MetricDefinition(name, kind, text, (*GPU, *more))


_TEMPERATURE = _gauge("gpu_temperature_celsius", "Temperature by sensor: gpu, memory.", "sensor")
_CLOCK = _gauge("gpu_clock_hertz", "Clock now, by domain: sm, memory.", "clock")
_CLOCK_MAX = _gauge("gpu_clock_max_hertz", "Highest clock, by domain: sm, memory.", "clock")
_THROTTLED_SECONDS = _counter(
    "gpu_throttled_seconds_total",
    "Time for which the clocks were held down, by reason, counted by the driver.",
    "reason",
)
_ECC = _counter(
    "gpu_ecc_errors_total",
    "ECC errors of all memories. scope volatile counts since the driver was loaded, aggregate over the GPU's life.",
    "type",
    "scope",
)
_SRAM = _counter(
    "gpu_sram_ecc_errors_total",
    "ECC errors of the SRAMs alone; type: corrected, parity or secded (both uncorrected).",
    "type",
    "scope",
)
_REMAPPED = _gauge(
    "gpu_remapped_rows", "DRAM rows remapped over the GPU's life; type: correctable, uncorrectable.", "type"
)
_NVLINK_ERRORS = _counter("gpu_nvlink_errors_total", "NVLink errors over all links, by type.", "type")
_PIPE = _gauge(
    "gpu_pipe_active_ratio",
    "Share of the time in which an SM's pipe worked, mean over all SMs, by pipe: fp64, fp32, fp16, integer.",
    "pipe",
)

FROM_READINGS: Final = (
    Source(
        _gauge("gpu_power_watts", "Power drawn at this moment by the whole board."),
        "power_instant",
        1e-3,
    ),
    Source(
        _gauge("gpu_power_average_watts", "Power drawn, as the driver averages it (one second on recent GPUs)."),
        "power_average",
        1e-3,
    ),
    Source(_gauge("gpu_power_limit_watts", "The limit that is enforced now."), "power_limit", 1e-3),
    Source(
        _counter("gpu_energy_joules_total", "Energy since the driver was loaded; its rate is the true mean power."),
        "energy",
        1e-3,
    ),
    Source(_TEMPERATURE, "temperature", labels=("gpu",)),
    Source(_TEMPERATURE, "memory_temperature", labels=("memory",)),
    Source(
        _gauge(
            "gpu_utilization_ratio",
            "Share of the time in which any kernel ran, however small: 1 does not mean busy. Look at "
            "gpu_sm_active_ratio and gpu_dram_active_ratio.",
        ),
        "utilization.gpu",
        1e-2,
    ),
    Source(
        _gauge(
            "gpu_memory_utilization_ratio",
            "Share of the time in which memory was read or written at all: no measure of bandwidth.",
        ),
        "utilization.memory",
        1e-2,
    ),
    Source(_gauge("gpu_memory_total_bytes", "Memory of the GPU, what is reserved included."), "memory.total"),
    Source(_gauge("gpu_memory_used_bytes", "Memory in use by processes, without what is reserved."), "memory.used"),
    Source(_gauge("gpu_memory_reserved_bytes", "Memory that the driver and firmware keep."), "memory.reserved"),
    Source(_CLOCK, "clock_sm", 1e6, ("sm",)),
    Source(_CLOCK, "clock_memory", 1e6, ("memory",)),
    Source(_CLOCK_MAX, "clock_sm_max", 1e6, ("sm",)),
    Source(_CLOCK_MAX, "clock_memory_max", 1e6, ("memory",)),
    Source(_gauge("gpu_performance_state", "P-state: 0 is the fastest, 15 the slowest."), "performance_state"),
    Source(_THROTTLED_SECONDS, "throttled_power", 1e-9, ("power",)),
    Source(_THROTTLED_SECONDS, "throttled_thermal", 1e-9, ("thermal",)),
    Source(_THROTTLED_SECONDS, "throttled_sync_boost", 1e-9, ("sync_boost",)),
    Source(_THROTTLED_SECONDS, "throttled_board_limit", 1e-9, ("board_limit",)),
    Source(_THROTTLED_SECONDS, "throttled_low_utilization", 1e-9, ("low_utilization",)),
    Source(_THROTTLED_SECONDS, "throttled_reliability", 1e-9, ("reliability",)),
    Source(_THROTTLED_SECONDS, "throttled_software_thermal", 1e-9, ("software_thermal",)),
    Source(_THROTTLED_SECONDS, "throttled_hardware_thermal", 1e-9, ("hardware_thermal",)),
    Source(_THROTTLED_SECONDS, "throttled_power_brake", 1e-9, ("power_brake",)),
    Source(_counter("gpu_pcie_replays_total", "PCIe packets sent again after an error."), "pcie_replays"),
    Source(
        _gauge("gpu_pcie_link_generation", "PCIe generation now; it falls when the GPU is idle."), "pcie_generation"
    ),
    Source(_gauge("gpu_pcie_link_lanes", "PCIe lanes in use now."), "pcie_width"),
    Source(_gauge("gpu_nvlink_links", "NVLinks that the GPU has."), "nvlink_count"),
    Source(_counter("gpu_nvlink_rx_bytes_total", "Payload received over all NVLinks."), "nvlink_rx", 1024.0),
    Source(_counter("gpu_nvlink_tx_bytes_total", "Payload sent over all NVLinks."), "nvlink_tx", 1024.0),
    Source(_NVLINK_ERRORS, "nvlink_replay_errors", labels=("replay",)),
    Source(_NVLINK_ERRORS, "nvlink_recovery_errors", labels=("recovery",)),
    Source(_NVLINK_ERRORS, "nvlink_crc_errors", labels=("crc",)),
    Source(_NVLINK_ERRORS, "nvlink_ecc_errors", labels=("ecc",)),
    *(
        Source(_ECC, f"ecc_{kind}_{scope}", labels=(kind, scope))
        for scope in ("volatile", "aggregate")
        for kind in ("corrected", "uncorrected")
    ),
    *(
        Source(_SRAM, f"sram_ecc.{kind}_{scope}", labels=(kind, scope))
        for scope in ("volatile", "aggregate")
        for kind in ("corrected", "parity", "secded")
    ),
    Source(
        _gauge("gpu_sram_ecc_threshold_exceeded", "1 when SRAM errors are so many that the GPU should be replaced."),
        "sram_ecc.threshold_exceeded",
    ),
    Source(_REMAPPED, "remapped_rows.correctable", labels=("correctable",)),
    Source(_REMAPPED, "remapped_rows.uncorrectable", labels=("uncorrectable",)),
    Source(
        _gauge("gpu_row_remap_pending", "1 when rows are remapped with the next reset only."), "remapped_rows.pending"
    ),
    Source(
        _gauge("gpu_row_remap_failure", "1 when a row could not be remapped: the GPU should be replaced."),
        "remapped_rows.failure",
    ),
    Source(
        _gauge(
            "gpu_recovery_action",
            "What the driver asks for: 0 nothing, 1 reset the GPU, 2 reboot the node, 3 drain peer-to-peer, 4 drain "
            "and reset, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system.",
        ),
        "recovery_action",
    ),
    Source(_gauge("gpu_mig_enabled", "1 when the GPU is split into MIG instances."), "mig_mode"),
)

FROM_WRAPPING: Final = (
    Source(
        _counter(
            "gpu_pcie_rx_bytes_total",
            "Bytes the GPU received over PCIe. The hardware counts 32 bits; what passed between two scrapes is told "
            "with the help of GPM.",
        ),
        "pcie_rx",
    ),
    Source(_counter("gpu_pcie_tx_bytes_total", "Bytes the GPU sent over PCIe, likewise."), "pcie_tx"),
)

FROM_ACTIVITY: Final = (
    Source(
        _gauge("gpu_sm_active_ratio", "Share of the time in which an SM had work, mean over all SMs (GPM)."),
        "sm",
        1e-2,
    ),
    Source(
        _gauge("gpu_sm_occupancy_ratio", "Warps resident on the SMs against the most there can be (GPM)."),
        "sm_occupancy",
        1e-2,
    ),
    Source(
        _gauge("gpu_tensor_active_ratio", "Share of the time in which an SM's tensor pipe worked (GPM)."),
        "tensor",
        1e-2,
    ),
    Source(
        _gauge("gpu_dram_active_ratio", "Memory traffic against the highest possible: the bandwidth used (GPM)."),
        "dram",
        1e-2,
    ),
    Source(
        _gauge("gpu_graphics_active_ratio", "Share of the time in which any kernel ran, as utilization, by GPM."),
        "graphics",
        1e-2,
    ),
    *(Source(_PIPE, pipe, 1e-2, (pipe,)) for pipe in ("fp64", "fp32", "fp16", "integer")),
    Source(_gauge("gpu_pcie_rx_bytes_per_second", "PCIe traffic to the GPU (GPM)."), "pcie_rx_rate", MIB),
    Source(_gauge("gpu_pcie_tx_bytes_per_second", "PCIe traffic from the GPU (GPM)."), "pcie_tx_rate", MIB),
    Source(_gauge("gpu_nvlink_rx_bytes_per_second", "NVLink traffic to the GPU (GPM)."), "nvlink_rx_rate", MIB),
    Source(_gauge("gpu_nvlink_tx_bytes_per_second", "NVLink traffic from the GPU (GPM)."), "nvlink_tx_rate", MIB),
)
FROM_INSTANCE_ACTIVITY: Final = tuple(
    Source(definition, reading, 1e-2) for reading, definition in _INSTANCE_ACTIVITY.items()
)

DEFINITIONS: Final = tuple(
    dict.fromkeys(
        (
            UP,
            INFO,
            *(source.definition for source in FROM_READINGS),
            THROTTLED,
            *(source.definition for source in FROM_WRAPPING),
            *(source.definition for source in FROM_ACTIVITY),
            ACTIVITY_WINDOW,
            XID_ERRORS,
            XID_LAST,
            PROCESS_MEMORY,
            PROCESSES,
            INSTANCE_INFO,
            INSTANCE_MEMORY_TOTAL,
            INSTANCE_MEMORY_USED,
            *_INSTANCE_ACTIVITY.values(),
        )
    )
)
