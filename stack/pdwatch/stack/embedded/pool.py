"""The paged pool: latent KV and index-K of all layers, and the free list of its pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from pdwatch.stack.embedded.config import ModelConfig
from pdwatch.stack.embedded.device import memory_bytes
from pdwatch.stack.embedded.errors import ConfigurationError, TransferError

# padding rows of a captured batch write here; no request ever owns it.
PADDING_PAGE: Final = 0
_ELEMENT_BYTES: Final = torch.float32.itemsize
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class SavedPages:
    """KV of a retracted request on the host: latent [layers, pages, page_size, head_dim] and index_key likewise."""

    latent: Tensor
    index_key: Tensor

    @property
    def pages(self) -> int:
        """Number of pages saved."""
        return self.latent.shape[1]


class KvPool:
    """Pages of `page_size` tokens.

    latent     [layers, pages, page_size, head_dim]  float32, K and V at once, rotated
    index_key  [layers, pages, page_size, idx_dim]   float32, rotated

    A slot is page * page_size + offset. The free list is LIFO: a page just given back is the next one handed out, so
    that memory stays warm and a use after free is hit early. Raises ConfigurationError when the device cannot hold it.
    """

    def __init__(self, config: ModelConfig, num_pages: int, page_size: int, device: str) -> None:
        token_bytes = config.layers * (config.head_dim + config.idx_dim) * _ELEMENT_BYTES
        needed, available = num_pages * page_size * token_bytes, memory_bytes(device)
        # asked for first: a CPU would grant zeros that it cannot back, and die later.
        if needed > available:
            raise ConfigurationError(
                f"the KV pool takes {needed / _GIB:.1f} GiB ({num_pages} pages of {page_size} tokens), "
                f"{device} has {available / _GIB:.1f} GiB: lower num_pages"
            )
        self.num_pages = num_pages
        self.page_size = page_size
        # zeros of this size stay unmapped until a page is written.
        self.latent = torch.zeros(config.layers, num_pages, page_size, config.head_dim, device=device)
        self.index_key = torch.zeros(config.layers, num_pages, page_size, config.idx_dim, device=device)
        self._free = list(range(num_pages - 1, PADDING_PAGE, -1))

    @property
    def free_pages(self) -> int:
        """Pages on the free list."""
        return len(self._free)

    @property
    def capacity(self) -> int:
        """Pages requests can own."""
        return self.num_pages - 1

    @property
    def page_bytes(self) -> int:
        """Bytes of one page on the wire: all layers' latent rows, then all layers' index-K rows."""
        return self.latent[:, 0].nbytes + self.index_key[:, 0].nbytes

    def allocate(self, count: int) -> list[int]:
        """Takes `count` pages; the caller has made sure that they are free."""
        assert count <= len(self._free), f"{count} pages asked for, {len(self._free)} free"
        return [self._free.pop() for _ in range(count)]

    def release(self, pages: list[int]) -> None:
        """Gives pages back."""
        self._free.extend(reversed(pages))

    def read_page(self, page: int) -> bytes:
        """The page as `page_bytes` little-endian float32 bytes."""
        rows = torch.cat([self.latent[:, page].flatten(), self.index_key[:, page].flatten()])
        return rows.cpu().numpy().tobytes()

    def write_page(self, page: int, data: bytes) -> None:
        """The inverse of `read_page`. Raises TransferError when `data` has another size."""
        if len(data) != self.page_bytes:
            raise TransferError(f"a page has {self.page_bytes} bytes, received {len(data)}: same model on both sides?")
        latent, index_key = self.latent[:, page], self.index_key[:, page]
        # a copy, because torch wants writable memory and bytes are not.
        rows = torch.frombuffer(bytearray(data), dtype=torch.float32)
        latent.copy_(rows[: latent.numel()].view(latent.shape))
        index_key.copy_(rows[latent.numel() :].view(index_key.shape))

    def save(self, pages: list[int]) -> SavedPages:
        """Copies pages to the host."""
        index = torch.tensor(pages, device=self.latent.device)
        return SavedPages(self.latent.index_select(1, index).cpu(), self.index_key.index_select(1, index).cpu())

    def restore(self, pages: list[int], saved: SavedPages) -> None:
        """Copies saved pages into `pages`, in order."""
        index = torch.tensor(pages, device=self.latent.device)
        self.latent.index_copy_(1, index, saved.latent.to(self.latent.device))
        self.index_key.index_copy_(1, index, saved.index_key.to(self.index_key.device))


class KvSource:
    """Read access to the pages of one prefilled request, until its transfer is done."""

    def __init__(self, pool: KvPool, pages: list[int]) -> None:
        self._pool = pool
        self._pages = tuple(pages)
        self._closed = False

    @property
    def pages(self) -> int:
        """Number of pages to send."""
        return len(self._pages)

    def read(self, page_index: int) -> bytes:
        """Page `page_index` as bytes. Raises TransferError when there is no such page or the pages were given back."""
        if self._closed:
            raise TransferError("the pages were given back: read them before Engine.transfer_done")
        if not 0 <= page_index < len(self._pages):
            raise TransferError(f"page {page_index} does not exist, the request has {len(self._pages)} pages")
        return self._pool.read_page(self._pages[page_index])

    def close(self) -> None:
        """Ends read access; the engine calls it before the pages are given back."""
        self._closed = True
