"""The source that a plan names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config import BfclSource, MooncakeSource, OpenaiRequestsSource, ShareGptSource, TextSource
from .work import Source

if TYPE_CHECKING:
    from ..plan import Plan


def open_source(plan: Plan) -> Source:
    """Open the plan's source: its files are read and checked once, here.

    Raises PlanError, one line with the remedy, for a file that cannot be used and for an extension that the plan's
    dialect does not know.
    """
    # each kind imports what it alone needs: helper processes start with what they use.
    match plan.source:
        case TextSource() as config:
            from .text import Text

            return Text(plan, config)
        case OpenaiRequestsSource() as config:
            from .openai_requests import OpenaiRequests

            return OpenaiRequests(plan, config)
        case ShareGptSource() as config:
            from .sharegpt import ShareGpt

            return ShareGpt(plan, config)
        case BfclSource() as config:
            from .bfcl import Bfcl

            return Bfcl(plan, config)
        case MooncakeSource() as config:
            from .mooncake import Mooncake

            return Mooncake(plan, config)
        case config:
            from .tool_calls import ToolCalls

            return ToolCalls(plan, config)
