"""Load generation: requests sent by Locust users, a transcript of every one, and what was measured.

`python -m pdwatch.loadgen.drive` sends; this face says what to send, reads what was recorded, and measures. Importing
it imports neither gevent nor Locust.
"""

from __future__ import annotations

from .assembly import Assembled, StreamEvent, assemble, assemble_chunks
from .body import Body
from .calls import AssembledCall
from .capacity import Search
from .defects import DEFECTS, ProtocolDefect
from .errors import JournalCorrupt, LoadgenError, PlanError, TargetUnreachable
from .families import Family
from .frames import FrameWriter, read_frames
from .journal import JOURNAL_NAME, JournalWriter, read_transcripts
from .load import ClosedLoad, Load, OpenLoad, RampLoad, ReplayLoad, WavesLoad
from .metrics import METRICS, Metric, RequestMetrics, measure, percentile
from .plan import Dialect, Phase, Plan, load_plan
from .row import ROWS_NAME, RequestRow, read_rows
from .slo import Slo
from .sources import Source, SourceConfig, Work, open_source
from .steady import Window
from .strict import StrictReading
from .summary import Distribution, Goodput, PhaseSummary, summarise
from .task import ExpectedCall, Task
from .trace import TraceRequest, read_trace
from .transcript import Label, Outcome, Transcript
from .validity import ClientFacts, Validity, ValidityLimits, judge_validity
from .workload import PromptBand, WorkloadConfig, make_task, prompt_bytes

__all__ = [
    "DEFECTS",
    "JOURNAL_NAME",
    "METRICS",
    "ROWS_NAME",
    "Assembled",
    "AssembledCall",
    "Body",
    "ClientFacts",
    "ClosedLoad",
    "Dialect",
    "Distribution",
    "ExpectedCall",
    "Family",
    "FrameWriter",
    "Goodput",
    "JournalCorrupt",
    "JournalWriter",
    "Label",
    "Load",
    "LoadgenError",
    "Metric",
    "OpenLoad",
    "Outcome",
    "Phase",
    "PhaseSummary",
    "Plan",
    "PlanError",
    "PromptBand",
    "ProtocolDefect",
    "RampLoad",
    "ReplayLoad",
    "RequestMetrics",
    "RequestRow",
    "Search",
    "Slo",
    "Source",
    "SourceConfig",
    "StreamEvent",
    "StrictReading",
    "TargetUnreachable",
    "Task",
    "TraceRequest",
    "Transcript",
    "Validity",
    "ValidityLimits",
    "WavesLoad",
    "Window",
    "Work",
    "WorkloadConfig",
    "assemble",
    "assemble_chunks",
    "judge_validity",
    "load_plan",
    "make_task",
    "measure",
    "open_source",
    "percentile",
    "prompt_bytes",
    "read_frames",
    "read_rows",
    "read_trace",
    "read_transcripts",
    "summarise",
]
