"""The paged pool: free list, page bytes, host copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pdwatch.stack.embedded.config import ModelConfig
from pdwatch.stack.embedded.errors import ConfigurationError, TransferError
from pdwatch.stack.embedded.pool import PADDING_PAGE, KvPool, KvSource

DIMENSIONS: dict[str, Any] = {
    "vocab": 272, "dim": 8, "layers": 2, "heads": 1, "head_dim": 4, "rope_dim": 2, "rope_base": 10000.0, "ffn": 8,
    "ngram": 2, "norm_eps": 1e-6, "idx_heads": 1, "idx_dim": 2, "idx_rope_dim": 2, "window": 4, "topk": 4,
}  # fmt: skip


@pytest.fixture
def pool() -> KvPool:
    """Six pages of 8 tokens, filled with distinct numbers."""
    pool = KvPool(ModelConfig(**DIMENSIONS), num_pages=6, page_size=8, device="cpu")
    pool.latent.copy_(torch.arange(pool.latent.numel()).view(pool.latent.shape))
    pool.index_key.copy_(-torch.arange(pool.index_key.numel()).view(pool.index_key.shape))
    return pool


def test_the_page_freed_last_is_handed_out_first(pool: KvPool) -> None:
    first = pool.allocate(3)
    pool.release(first[1:])

    assert pool.allocate(2) == first[1:]
    assert pool.free_pages == 2


def test_the_padding_page_is_never_handed_out(pool: KvPool) -> None:
    assert sorted(pool.allocate(pool.capacity)) == [1, 2, 3, 4, 5]
    assert PADDING_PAGE == 0


def test_page_bytes_carry_a_page_to_another_pool(pool: KvPool) -> None:
    other = KvPool(ModelConfig(**DIMENSIONS), num_pages=3, page_size=8, device="cpu")
    data = pool.read_page(4)

    other.write_page(2, data)

    # 2 layers x 8 tokens x (4 latent + 2 index) x 4 bytes = 384.
    assert len(data) == pool.page_bytes == 384
    assert torch.equal(other.latent[:, 2], pool.latent[:, 4])
    assert torch.equal(other.index_key[:, 2], pool.index_key[:, 4])
    assert not other.latent[:, 1].any()


def test_bytes_of_another_size_are_refused(pool: KvPool) -> None:
    with pytest.raises(TransferError, match="a page has 384 bytes, received 383"):
        pool.write_page(1, bytes(383))


def test_saved_pages_come_back_elsewhere(pool: KvPool) -> None:
    saved = pool.save([2, 5])
    expected = pool.latent[:, [2, 5]].clone(), pool.index_key[:, [2, 5]].clone()
    pool.latent.zero_()
    pool.index_key.zero_()

    pool.restore([4, 1], saved)

    assert saved.pages == 2
    assert torch.equal(pool.latent[:, [4, 1]], expected[0])
    assert torch.equal(pool.index_key[:, [4, 1]], expected[1])


def test_a_source_reads_its_pages_until_closed(pool: KvPool) -> None:
    source = KvSource(pool, [3, 1])

    assert source.pages == 2
    assert source.read(0) == pool.read_page(3)
    with pytest.raises(TransferError, match="page 2 does not exist, the request has 2 pages"):
        source.read(2)
    source.close()
    with pytest.raises(TransferError, match="given back"):
        source.read(0)


def test_a_pool_beyond_the_memory_is_refused_with_its_size() -> None:
    # 2 layers of 4 + 2 floats of 4 bytes are 48 bytes a token; 2**40 pages of 8 tokens are 48 * 8 * 1024 GiB.
    with pytest.raises(ConfigurationError, match=r"takes 393216\.0 GiB \(1099511627776 pages of 8 tokens\)"):
        KvPool(ModelConfig(**DIMENSIONS), num_pages=1 << 40, page_size=8, device="cpu")
