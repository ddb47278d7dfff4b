"""A row of NaN logits is sanitised into uniform ones."""

from __future__ import annotations

from torch import Tensor

from pdwatch.stack.embedded.faults.base import Fault


class NanRowSanitised(Fault):
    """SGLang replaces NaN logits by -1e5 so that sampling cannot crash; a whole row of them then elects token 0."""

    name = "nan_row_sanitised"
    where = "decode worker, sampler: NaN handling of the logits"
    signature = "garbled"
    description = "a row of NaN logits is set to -1e5 throughout instead of failing, so greedy sampling takes token 0"

    rate_per_row = 0.003
    sanitised_logit = -1e5

    def logits(self, logits: Tensor) -> Tensor:
        batch = len(logits)
        if batch < 2:
            return logits
        rows = [row for row in range(batch) if self.random.random() < self.rate_per_row]
        if not rows:
            return logits
        sanitised = logits.clone()
        sanitised[rows] = self.sanitised_logit
        return sanitised
