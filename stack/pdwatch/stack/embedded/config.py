"""Configuration of the embedded model and engine, validated once where it enters."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

OverlapMode = Literal["off", "on", "racy"]
Role = Literal["prefill", "decode", "unified"]


class ModelConfig(BaseModel):
    """Dimensions of the model, under the names of the checkpoint's .json file.

    A layer is one shared K==V latent head of `head_dim` (its last `rope_dim` rotary) for `heads` query heads, an
    indexer of `idx_heads` heads that chooses `topk` positions older than the last `window`, and a SwiGLU of `ffn`.
    The input embedding is the sum over the last `ngram` tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab: int = Field(ge=1)
    dim: int = Field(ge=1)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    head_dim: int = Field(ge=2)
    rope_dim: int = Field(ge=2, multiple_of=2)
    rope_base: float = Field(gt=1)
    ffn: int = Field(ge=1)
    ngram: int = Field(ge=1)
    norm_eps: float = Field(gt=0)
    idx_heads: int = Field(ge=1)
    idx_dim: int = Field(ge=2)
    idx_rope_dim: int = Field(ge=2, multiple_of=2)
    window: int = Field(ge=1)
    topk: int = Field(ge=1)
    # the checkpoint family has a variant with experts, which this engine does not serve.
    experts: Literal[0] = 0
    experts_active: int = 0
    expert_ffn: int = 0

    @model_validator(mode="after")
    def _rotary_fits(self) -> ModelConfig:
        if self.rope_dim > self.head_dim:
            raise ValueError(f"rope_dim is {self.rope_dim}, but head_dim is only {self.head_dim}")
        if self.idx_rope_dim > self.idx_dim:
            raise ValueError(f"idx_rope_dim is {self.idx_rope_dim}, but idx_dim is only {self.idx_dim}")
        return self


class EngineConfig(BaseModel):
    """How one engine serves: its role, memory, batching, capture and (for tests of the gate) its fault."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Role = "unified"
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    page_size: int = Field(default=64, ge=1, description="tokens in a KV page")
    num_pages: int = Field(default=2048, ge=2, description="pages in the pool; page 0 is kept for padding rows")
    max_running_requests: int = Field(default=64, ge=1)
    context_length: int = Field(default=4096, ge=2)
    max_prefill_tokens: int = Field(default=4096, ge=1, description="prompt tokens computed in one step")
    prefix_cache: bool = True
    capture: bool = Field(default=False, description="CUDA graphs for the decode step; needs a CUDA device")
    capture_batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    multi_stream_overlap: OverlapMode = "off"
    side_stream_delay_cycles: int = Field(default=0, ge=0, description="holds the side stream back, to widen a race")
    kernels: str = Field(default="eager", description="name in pdwatch.kernels.kernel_table")
    seed: int = 0
    fault: str | None = None
    fault_seed: int = 0

    @property
    def max_total_tokens(self) -> int:
        """Tokens the pool can hold."""
        return (self.num_pages - 1) * self.page_size

    @property
    def pages_per_request(self) -> int:
        """Pages a request of the full context length takes."""
        return -(-self.context_length // self.page_size)

    @model_validator(mode="after")
    def _combination_works(self) -> EngineConfig:
        if self.capture and not self.device.startswith("cuda"):
            raise ValueError(f"capture needs a CUDA device, not {self.device}: set capture to false or device to cuda")
        if self.multi_stream_overlap != "off" and not self.capture:
            raise ValueError(
                f"multi_stream_overlap {self.multi_stream_overlap} only acts inside a capture: set capture to true"
            )
        if self.capture and self.fault is not None:
            raise ValueError(f"fault {self.fault} acts in the eager step: set capture to false")
        if self.capture and (not self.capture_batch_sizes or min(self.capture_batch_sizes) < 1):
            raise ValueError(f"capture_batch_sizes is {self.capture_batch_sizes}: name at least one size of 1 or more")
        return self
