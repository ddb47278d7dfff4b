"""A stream ends in the middle, as if it were complete."""

from __future__ import annotations

import random

from pdwatch.stack.embedded.faults.base import Fault


class StreamTruncated(Fault):
    """Decided once for each request, so that it does not matter how many chunks the server asks about."""

    name = "stream_truncated"
    where = "decode worker, HTTP server: end of the event stream"
    signature = "truncated"
    description = "some streams end without finish_reason, usage and [DONE]"

    rate = 0.2

    def cut_stream(self, request_index: int, batch: int) -> bool:
        return batch > 1 and random.Random(f"{self.name}:{self.seed}:{request_index}").random() < self.rate
