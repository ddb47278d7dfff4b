"""Names that plans, records and reports share; importing them loads nothing else."""

from __future__ import annotations

from typing import Final

# the arms of a run.
CANDIDATE: Final = "candidate"
BASELINE: Final = "baseline"

# what the embedded deployment serves.
EMBEDDED_MODEL: Final = "tiny-toolcaller"
