"""The engine: one synchronous object that turns requests into outputs, a step at a time."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pdwatch.stack.embedded import faults
from pdwatch.stack.embedded.admission import check_request
from pdwatch.stack.embedded.checkpoint import load_checkpoint
from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.device import kernels_on, prepare_device
from pdwatch.stack.embedded.errors import RequestRejected, TransferError
from pdwatch.stack.embedded.graphs import DecodeGraphs
from pdwatch.stack.embedded.model import Model
from pdwatch.stack.embedded.pool import KvPool, KvSource
from pdwatch.stack.embedded.prefix import PrefixCache
from pdwatch.stack.embedded.request import FinishReason, Output, PrefillDone, Request, TokenLogprob
from pdwatch.stack.embedded.reservation import Reservations
from pdwatch.stack.embedded.rows import DecodeRows
from pdwatch.stack.embedded.sampler import Sampler
from pdwatch.stack.embedded.scheduler import Scheduler
from pdwatch.stack.embedded.sequence import SequenceState
from pdwatch.stack.embedded.statistics import EngineStatistics, Load

_ABORTED = FinishReason("abort", message="the request was aborted")
_NOT_FINITE = FinishReason("abort", message="the logits of this request are not finite")


class Engine:
    """Serves one role.

    unified   submit -> Output…
    prefill   submit (with a room) -> PrefillDone; transfer_done gives the pages back
    decode    reserve -> receivable -> write_page… -> install -> Output…

    Any role that computes prompts also scores them (`max_new_tokens=0`, `logprob_start`). Not thread-safe. Raises
    CheckpointError or ConfigurationError when it cannot be built.
    """

    def __init__(self, config: EngineConfig, weights: Path) -> None:
        self.config = config
        self.model_config, parameters = load_checkpoint(weights)
        kernels = kernels_on(config.device, config.kernels)
        self.fault = faults.load(config.fault, config.fault_seed)
        self.statistics = EngineStatistics()
        prepare_device(config.device)
        with torch.inference_mode():
            self._pool = KvPool(self.model_config, config.num_pages, config.page_size, config.device)
            self._model = Model(self.model_config, parameters, kernels, config.context_length, config.device)
            self._rows = DecodeRows(config, self.model_config.ngram)
            self.graphs = DecodeGraphs(config, self._model, self._rows, self._pool) if config.capture else None
        # SGLang's decode workers also start with an empty prefix cache that is off.
        self._cache = PrefixCache(config.page_size, config.prefix_cache and config.role != "decode")
        self._scheduler = Scheduler(config, self._pool, self._cache)
        self._reservations = Reservations(self._pool, self._scheduler, self.fault, config.max_running_requests)
        self._sampler = Sampler(config.seed)
        self._known: set[str] = set()
        self._inflight: dict[str, tuple[SequenceState, KvSource]] = {}
        self._outputs: list[Output | PrefillDone] = []
        self._started = 0
        self._prefilled_last = False

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in a transfer."""
        return self._pool.page_bytes

    @property
    def has_work(self) -> bool:
        """True while a call of `step` can make progress."""
        scheduler = self._scheduler
        return bool(self._outputs or scheduler.running or scheduler.waiting or scheduler.retracted)

    @property
    def load(self) -> Load:
        """Requests and memory at this moment."""
        scheduler, reservations = self._scheduler, self._reservations
        cached = self._cache.evictable
        used = self._pool.capacity - self._pool.free_pages - cached
        return Load(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            used_tokens=used * self.config.page_size,
            cached_tokens=cached * self.config.page_size,
            total_tokens=self.config.max_total_tokens,
            prefix_hit_tokens=self._cache.hit_tokens,
            prefix_query_tokens=self._cache.query_tokens,
            bootstrap_queue=len(scheduler.waiting) if self.config.role == "prefill" else 0,
            inflight_queue=len(self._inflight),
            prealloc_queue=len(reservations.queued),
            transfer_queue=len(reservations.open),
            retracted_queue=len(scheduler.retracted),
            retracted_total=self.statistics.retracted,
        )

    def holds(self, rid: str) -> bool:
        """True while the request is here, or an output of it has not left: its id must not be used again yet."""
        return rid in self._known or any(output.rid == rid for output in self._outputs)

    def submit(self, request: Request) -> None:
        """Queues a request. Raises ContextTooLong or RequestRejected."""
        if self.config.role == "decode":
            raise RequestRejected(f"request {request.rid} has no KV: a decode engine takes it through reserve")
        if self.config.role == "prefill" and request.room is None and request.sampling.max_new_tokens > 0:
            raise RequestRejected(f"request {request.rid} has no room: send it through the router, or to both workers")
        self._admit(request)
        self._scheduler.waiting.append(SequenceState.of(request))

    def reserve(self, request: Request) -> None:
        """Queues a request of a decode engine for pages. Raises ContextTooLong or RequestRejected."""
        if self.config.role != "decode":
            raise RequestRejected(f"request {request.rid} cannot be reserved: this engine's role is {self.config.role}")
        if request.sampling.max_new_tokens < 1:
            raise RequestRejected(f"request {request.rid} generates nothing: max_new_tokens must be at least 1")
        self._admit(request)
        self._reservations.queued.append(SequenceState.of(request))
        self._reservations.admit()

    def receivable(self, rid: str) -> bool:
        """True when the request's pages are reserved and `write_page` may be called."""
        reservation = self._reservations.open.get(rid)
        return reservation is not None and not reservation.aborted

    @torch.inference_mode()
    def write_page(self, rid: str, page_index: int, data: bytes) -> None:
        """Stores one page of a transfer. Raises TransferError."""
        self._reservations.write_page(rid, page_index, data)

    @torch.inference_mode()
    def install(
        self,
        rid: str,
        first_token: int,
        first_logprob: TokenLogprob | None,
        prompt_tokens: int,
        cached_tokens: int,
    ) -> None:
        """Starts to decode a request whose pages have all arrived. Raises TransferError."""
        if not 0 <= first_token < self.model_config.vocab:
            raise TransferError(f"first token {first_token} of request {rid} is not in the vocabulary")
        sequence = self._reservations.complete(rid, prompt_tokens)
        sequence.cached_tokens = cached_tokens
        room = sequence.request.room
        if room is not None:
            first_token = self.fault.first_token(room, first_token, len(self._scheduler.running) + 1)
        logprobs = [first_logprob] if first_logprob is not None else None
        self._begin(sequence, first_token, logprobs)

    @torch.inference_mode()
    def abort(self, rid: str) -> bool:
        """Ends a request wherever it is; an Output with finish type "abort" follows. False when it is not here.

        Pages a transfer may still touch are kept until `transfer_done` (prefill) or `transfer_ended` (decode).
        """
        if rid not in self._known:
            return False
        scheduler = self._scheduler
        if rid in self._inflight:
            # nothing more to say: PrefillDone was its last output.
            return True
        if rid in self._reservations.open and not self.receivable(rid):
            return False
        sequence = self._reservations.abort(rid, len(scheduler.running)) or scheduler.withdraw(rid)
        if sequence is None:
            sequence = self._leave(next(row for row, running in enumerate(scheduler.running) if running.rid == rid))
            scheduler.release(sequence)
        if rid not in self._reservations.open:
            self._known.discard(rid)
        self.statistics.aborted += 1
        self._outputs.append(sequence.output([], None, _ABORTED, len(scheduler.running)))
        self._reservations.admit()
        return True

    def transfer_done(self, rid: str) -> None:
        """The pages of a PrefillDone were sent, or will never be. Raises TransferError."""
        if rid not in self._inflight:
            raise TransferError(f"request {rid} has no transfer in flight")
        sequence, source = self._inflight.pop(rid)
        source.close()
        self._known.discard(rid)
        self._scheduler.release(sequence)

    def transfer_ended(self, rid: str) -> None:
        """No more bytes will come for an aborted reservation. Raises TransferError."""
        self._reservations.transfer_ended(rid)
        self._known.discard(rid)
        self._reservations.admit()

    def flush_cache(self) -> bool:
        """Empties the prefix cache; False, and nothing done, while any request is here."""
        if self._known:
            return False
        self._pool.release(self._cache.evict(len(self._cache)))
        return True

    @torch.inference_mode()
    def step(self) -> list[Output | PrefillDone]:
        """Computes one prompt (or a chunk of one) or one decode step, and returns what came of it.

        Prompts and decode steps alternate while both wait, so that neither starves.
        """
        scheduler = self._scheduler
        while resumed := scheduler.next_resumed():
            self._enter(resumed)
        prompt = None if self._prefilled_last and scheduler.running else scheduler.next_prefill()
        self._prefilled_last = prompt is not None
        if prompt is not None:
            self._prefill(prompt)
        elif scheduler.running:
            self._decode()
        self._reservations.admit()
        outputs, self._outputs = self._outputs, []
        return outputs

    def _admit(self, request: Request) -> None:
        if self.holds(request.rid):
            raise RequestRejected(f"request id {request.rid} is in use: ids must be unique")
        check_request(request, self.model_config, self.config)
        self._known.add(request.rid)

    def _prefill(self, sequence: SequenceState) -> None:
        begin = time.perf_counter()
        start, prompt = sequence.computed, sequence.request.prompt_ids
        end = min(len(prompt), start + self.config.max_prefill_tokens)
        last = end == len(prompt)
        scored_from = sequence.scored_from
        # the logits at a position score the token after it, so positions from `scored_from` on are wanted.
        logits_from = end - 1 if scored_from is None else min(max(scored_from, start), end - 1)
        logits = self._model.prefill(prompt[:end], start, self._pool, sequence.pages, logits_from)
        if scored_from is not None and end > scored_from:
            self._sampler.score_prompt(logits, sequence, max(scored_from, start))
        sequence.computed = end
        if last:
            self._scheduler.waiting.popleft()
            self._scheduler.share(sequence)
            self._finish_prefill(sequence, logits[-1:])
        # what the cache gave counts once, with the first chunk.
        cached = start if start == sequence.cached_tokens else 0
        self.statistics.prefilled(end - start, cached, time.perf_counter() - begin)

    def _finish_prefill(self, sequence: SequenceState, logits: Tensor) -> None:
        request = sequence.request
        batch = len(self._scheduler.running)
        if not sequence.generates or not logits.isfinite().all():
            self._drop(sequence, _NOT_FINITE if sequence.generates else FinishReason("length"), batch)
            return
        token = self._sampler.choose(logits, [sequence])[0]
        logprobs = self._sampler.logprobs(logits, [token], request) if request.return_logprob else None
        if self.config.role == "unified":
            self._begin(sequence, token, logprobs)
            return
        assert request.room is not None
        source = KvSource(self._pool, sequence.pages)
        self._inflight[sequence.rid] = (sequence, source)
        self._outputs.append(
            PrefillDone(
                rid=sequence.rid,
                room=request.room,
                first_token=token,
                first_logprob=logprobs[0] if logprobs else None,
                prompt_logprobs=sequence.prompt_logprobs,
                tokens=sequence.prompt_length,
                cached_tokens=sequence.cached_tokens,
                kv=source,
            )
        )

    def _begin(self, sequence: SequenceState, token: int, logprobs: list[TokenLogprob] | None) -> None:
        """The first token of a request is known: it enters the decode batch, or is done already."""
        sequence.tokens.append(token)
        self._started += 1
        sequence.started = self._started
        finish = sequence.finish()
        if finish is None:
            self._enter(sequence)
        self._emit(sequence, token, logprobs, finish, len(self._scheduler.running))

    def _emit(
        self,
        sequence: SequenceState,
        token: int,
        logprobs: list[TokenLogprob] | None,
        finish: FinishReason | None,
        batch: int,
    ) -> None:
        """Puts one new token out; a finished request gives its memory back."""
        self._outputs.append(sequence.output([token], logprobs, finish, batch))
        if finish is not None:
            self._scheduler.release(sequence)
            self._known.discard(sequence.rid)
            self.statistics.finished += 1

    def _enter(self, sequence: SequenceState) -> None:
        self._rows.enter(len(self._scheduler.running), sequence.pages)
        self._scheduler.running.append(sequence)

    def _leave(self, row: int) -> SequenceState:
        """Takes a request out of the batch; the last one moves into its row."""
        running = self._scheduler.running
        sequence, last = running[row], running.pop()
        if sequence is not last:
            running[row] = last
            self._rows.move(len(running), row)
        return sequence

    def _grow(self) -> None:
        """Gives every row the page of its newest token; under pressure the youngest requests are retracted."""
        scheduler = self._scheduler
        row = 0
        while row < len(scheduler.running):
            sequence = scheduler.running[row]
            if scheduler.needs_page(sequence):
                page = scheduler.take_pages(1)
                if page is None:
                    scheduler.save(self._leave(scheduler.victim()))
                    self.statistics.retracted += 1
                    # rows have moved; those that have grown already are passed over.
                    row = 0
                    continue
                sequence.pages += page
                self.fault.page_appended(
                    len(scheduler.running), partial(self._enter_page, sequence, len(sequence.pages) - 1)
                )
            row += 1

    def _enter_page(self, sequence: SequenceState, index: int) -> None:
        """Enters page `index` of a request into the device's page table, if the request still runs."""
        if sequence in self._scheduler.running:
            self._rows.append_page(self._scheduler.running.index(sequence), index, sequence.pages[index])

    def _decode(self) -> None:
        self._grow()
        running = list(self._scheduler.running)
        batch = len(running)
        if not batch:
            return
        begin = time.perf_counter()
        self.fault.step_starts([sequence.pages for sequence in running])
        logits, mode = self._forward(running)
        logits = self.fault.logits(logits)
        tokens = self.fault.sampled(self._sampler.choose(logits, running))
        self.fault.step_ended(batch, time.perf_counter() - begin)
        seconds = time.perf_counter() - begin
        finite = logits.isfinite().all(dim=-1).tolist()
        # from the last row down, because a row that leaves is filled from the end.
        for row in reversed(range(batch)):
            self._take(row, running[row], tokens[row], logits[row : row + 1], finite[row], batch)
        self.statistics.decoded(mode, batch, sum(finite), seconds)

    def _take(self, row: int, sequence: SequenceState, token: int, logits: Tensor, finite: bool, batch: int) -> None:
        """Books one row's result of a decode step."""
        if not finite:
            self._leave(row)
            self._drop(sequence, _NOT_FINITE, batch)
            return
        request = sequence.request
        logprobs = self._sampler.logprobs(logits, [token], request) if request.return_logprob else None
        sequence.tokens.append(token)
        finish = sequence.finish()
        if finish is not None:
            self._leave(row)
        self._emit(sequence, token, logprobs, finish, batch)

    def _drop(self, sequence: SequenceState, finish: FinishReason, batch: int) -> None:
        """Ends a request without a token."""
        self._scheduler.release(sequence)
        self._known.discard(sequence.rid)
        self.statistics.finished += 1
        self._outputs.append(sequence.output([], [] if sequence.request.return_logprob else None, finish, batch))

    def _forward(self, running: list[SequenceState]) -> tuple[Tensor, str]:
        """Logits of the batch and the mode they were computed in."""
        padded = self.graphs.bucket(len(running)) if self.graphs else None
        self._rows.stage(running, padded or len(running))
        if self.graphs is not None and padded is not None:
            return self.graphs.replay(len(running)), "decode_cuda_graph"
        inputs = self._rows.view(len(running), self._width(running))
        table = self.fault.index_table(inputs.index_table, [sequence.rid for sequence in running])
        return self._model.decode(inputs.with_index_table(table), self._pool), "decode_none"

    def _width(self, running: list[SequenceState]) -> int:
        """Page-table entries an eager step looks at: on a GPU all, so that it computes what a graph computes."""
        if self._model.device.type == "cuda":
            return self.config.pages_per_request
        return max(len(sequence.pages) for sequence in running)
