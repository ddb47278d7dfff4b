"""How many connections this machine lets a process have."""

from __future__ import annotations

import errno
import math
import resource
from typing import Final

from .errors import PlanError
from .plan import Plan
from .share import Share

# what a driver opens beside its users' connections: poller, alarms, clerk, journal, the interpreter's own.
_OWN: Final = 64

# what a connection fails with when it is this machine, and not the server, that has no room for it.
_OWN_LIMITS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})


def raise_limit() -> None:
    """Let this process and its children open as many files as the system allows them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_limit(plan: Plan, share: Share) -> None:
    """Raises PlanError with the remedy when the connections of a share of the plan are more than may be open."""
    users = max(share.count(phase.level) for phase in plan.phases)
    if plan.search is not None and plan.search.kind == "users":
        users = max(users, share.count(math.ceil(plan.search.most)))
    # a user keeps its connection to each target.
    needed = _OWN + users * len({plan.targets[phase.arm] for phase in plan.phases})
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and needed > allowed:
        raise PlanError(
            f"{users} users want {needed} open files, of which this process may have {allowed}; "
            f"raise the limit (ulimit -Hn {needed}), lower the level, or use more processes"
        )


def is_own_limit(error: OSError) -> bool:
    """Whether a connection failed for want of descriptors, ports or memory of this machine."""
    return error.errno in _OWN_LIMITS
