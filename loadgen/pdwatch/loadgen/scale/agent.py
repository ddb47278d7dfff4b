"""A worker as a process: `python -m pdwatch.loadgen.scale.agent`; see `working`."""

from __future__ import annotations

import sys


def main() -> int:
    """Work for one run; the exit status."""
    import gevent.monkey

    # before anything else is loaded, as gevent wants it.
    gevent.monkey.patch_all()
    from .working import work

    return work(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
