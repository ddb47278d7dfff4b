"""The leader of several drivers as a process: `python -m pdwatch.loadgen.scale.lead`; see `leading`."""

from __future__ import annotations

import sys


def main() -> int:
    """Lead one run; the exit status."""
    arguments = sys.argv[1:]
    # locust's web UI reads the command line for options of its own.
    del sys.argv[1:]
    import gevent.monkey

    # before anything else is loaded, as gevent wants it.
    gevent.monkey.patch_all()
    from .leading import lead

    return lead(arguments)


if __name__ == "__main__":
    sys.exit(main())
