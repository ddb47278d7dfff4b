"""Load generation: seeded tool-call tasks sent by Locust users, and a transcript of every request.

`python -m pdwatch.loadgen.drive` sends; this face makes tasks, reads journals and measures. Importing it imports
neither gevent nor Locust.
"""

from __future__ import annotations

from .assembly import Assembled, StreamEvent, assemble, assemble_chunks
from .calls import AssembledCall
from .defects import DEFECTS, ProtocolDefect
from .errors import JournalCorrupt, LoadgenError, PlanError, TargetUnreachable
from .frames import FrameWriter, read_frames
from .journal import JOURNAL_NAME, JournalWriter, read_transcripts
from .metrics import METRICS, Metric, RequestMetrics, measure, percentile
from .plan import Dialect, Phase, Plan, load_plan
from .task import ExpectedCall, Task
from .transcript import Label, Outcome, Transcript
from .workload import Family, PromptBand, WorkloadConfig, make_task, prompt_bytes

__all__ = [
    "DEFECTS",
    "JOURNAL_NAME",
    "METRICS",
    "Assembled",
    "AssembledCall",
    "Dialect",
    "ExpectedCall",
    "Family",
    "FrameWriter",
    "JournalCorrupt",
    "JournalWriter",
    "Label",
    "LoadgenError",
    "Metric",
    "Outcome",
    "Phase",
    "Plan",
    "PlanError",
    "PromptBand",
    "ProtocolDefect",
    "RequestMetrics",
    "StreamEvent",
    "TargetUnreachable",
    "Task",
    "Transcript",
    "WorkloadConfig",
    "assemble",
    "assemble_chunks",
    "load_plan",
    "make_task",
    "measure",
    "percentile",
    "prompt_bytes",
    "read_frames",
    "read_transcripts",
]
