"""The page-table entry of a newly appended page keeps its old value."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pdwatch.stack.embedded.faults.base import Fault


class StalePageTable(Fault):
    """The update is late by some steps, like a copy that nothing orders before the step.

    Until then the row reads whatever page an earlier tenant of the row had there. For good, the model would lose its
    latest tokens altogether and write gibberish; late, it goes on and has copied something wrong.
    """

    name = "stale_page_table"
    where = "decode worker, row buffers: page-table entry of an appended page"
    signature = "wrong_value"
    description = "a new page enters the device's page table some steps late, so attention reads an old page instead"

    rate = 0.9
    late_steps = 4

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._late: list[tuple[int, Callable[[], None]]] = []

    def page_appended(self, batch: int, update: Callable[[], None]) -> None:
        if batch > 1 and self.random.random() < self.rate:
            self._late.append((self.late_steps, update))
        else:
            update()

    def step_starts(self, tables: Sequence[Sequence[int]]) -> None:
        late, self._late = self._late, []
        for steps, update in late:
            if steps and len(tables) > 1:
                self._late.append((steps - 1, update))
            else:
                update()
