"""The first decode token of a room is another room's."""

from __future__ import annotations

from collections import deque

from pdwatch.stack.embedded.faults.base import Fault


class FirstTokenOtherRoom(Fault):
    """The metadata buffer of a recently installed room is read.

    Tool calls all begin with the same token and plain answers with a byte of text, so the mix-up shows when the two
    rooms differ in kind; the buffer taken is the latest that differs, if there is one.
    """

    name = "first_token_other_room"
    where = "decode worker, install of a transferred request: metadata buffer of the room"
    signature = "first_token"
    description = "the first output token is the one the prefill worker sampled for another request"

    rate = 0.3
    remembered_rooms = 16

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._recent: deque[int] = deque(maxlen=self.remembered_rooms)

    def first_token(self, room: int, token: int, batch: int) -> int:
        others = list(self._recent)
        self._recent.append(token)
        if batch < 2 or self.random.random() >= self.rate:
            return token
        return next((other for other in reversed(others) if other != token), token)
