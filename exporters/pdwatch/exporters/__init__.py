"""What SGLang's own metrics do not tell: GPUs and kernel profiles, as Prometheus exporters."""

from __future__ import annotations

from .definitions import Families, MetricDefinition, metric_table
from .errors import (
    CaptureFailed,
    CaptureRefused,
    CollectionFailed,
    CollectionTimedOut,
    ExportersError,
    HistoryInvalid,
    ListenFailed,
    NvmlUnavailable,
    RecordingInvalid,
    RulesInvalid,
    TraceInvalid,
)
from .exporter import SELF_DEFINITIONS, Exporter, Health, MetricSource
from .field_errors import FieldErrors
from .server import MetricsServer, parse_address, serve

__all__ = [
    "SELF_DEFINITIONS",
    "CaptureFailed",
    "CaptureRefused",
    "CollectionFailed",
    "CollectionTimedOut",
    "Exporter",
    "ExportersError",
    "Families",
    "FieldErrors",
    "Health",
    "HistoryInvalid",
    "ListenFailed",
    "MetricDefinition",
    "MetricSource",
    "MetricsServer",
    "NvmlUnavailable",
    "RecordingInvalid",
    "RulesInvalid",
    "TraceInvalid",
    "metric_table",
    "parse_address",
    "serve",
]
