"""Compiles the Triton indexer ahead of time: it fits the GPU, uses tensor cores and keeps everything in registers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402  # after the skip
from triton.compiler import ASTSource  # noqa: E402  # after the skip

from pdwatch.kernels import triton_indexer_kernels, triton_table_indexer_kernels, triton_topk_kernels  # noqa: E402  # after the skip
from pdwatch.kernels.layout_indexer import IndexKeyLayout  # noqa: E402  # after the skip
from pdwatch.kernels.triton_indexer import INTERPRETED, logits_tiles  # noqa: E402  # after the skip
from pdwatch.kernels.triton_indexer_kernels import GROUP  # noqa: E402  # after the skip
from pdwatch.kernels.triton_topk import MAXIMA_BLOCK, topk_tiles  # noqa: E402  # after the skip

if INTERPRETED:
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

SHARED_LIMIT = {90: 232_448, 120: 101_376}
TARGETS = pytest.mark.parametrize("capability", [90, 120], ids=["sm_90", "sm_120"])
# instructions of the tensor cores: warp-group products on Hopper, products of one warp on sm_120.
TENSOR = {(90, "fp8"): "QGMMA", (90, "bf16"): "HGMMA", (120, "fp8"): "QMMA", (120, "bf16"): "HMMA"}
ALIGNED = ("query_batch_stride", "query_token_stride", "page_stride", "logits_stride", "maxima_stride", "chosen_stride")
POINTERS = {
    "weights": "*fp32", "table": "*i32", "lengths": "*i32", "logits": "*fp32", "maxima": "*i32", "chosen": "*i32",
    "scored": "*i32",
}  # fmt: skip


class Compiled:
    """What the compiler made of one kernel: registers of a thread, shared bytes, and its instructions by name."""

    def __init__(self, kernel, capability: int, constants: dict, options: dict, folder: Path, **types: str) -> None:
        names = kernel.arg_names
        types = POINTERS | types
        signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
        aligned = [i for i, name in enumerate(names) if signature[name].startswith("*") or name in ALIGNED]
        source = ASTSource(
            fn=kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
        )
        binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        cubin = folder / "kernel.cubin"
        cubin.write_bytes(binary.asm["cubin"])
        self.shared = binary.metadata.shared
        usage = re.search(r"REG:(\d+)", self._tool("cuobjdump", "-res-usage", cubin))
        assert usage is not None
        self.registers = int(usage.group(1))
        self.code = self._tool("nvdisasm", "-c", cubin)

    @staticmethod
    def _tool(name: str, *arguments: object) -> str:
        program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=True).stdout

    def count(self, instruction: str) -> int:
        return len(re.findall(rf"\b{instruction}\b", self.code))

    def assert_fits(self, capability: int, record, most_spills: int = 0) -> None:
        record("registers", self.registers)
        record("shared_bytes", self.shared)
        assert self.shared <= SHARED_LIMIT[capability]
        assert max(self.count("LDL"), self.count("STL")) <= most_spills, "registers spill to local memory"


@TARGETS
@pytest.mark.parametrize("layout", IndexKeyLayout)
@pytest.mark.parametrize(("tokens", "heads"), [(1, 64), (2, 64), (3, 64), (1, 32)])
def test_logits(
    capability: int, layout: IndexKeyLayout, tokens: int, heads: int, tmp_path: Path, record_property
) -> None:
    fp8 = layout is IndexKeyLayout.FP8
    padded = triton.next_power_of_2(tokens)
    tiles = logits_tiles(layout, padded, heads, (capability // 10, 0))
    constants = {
        "TOKENS": tokens, "PADDED_TOKENS": padded, "HEADS": heads, "DIM": 128, "PAGE": 64, "BLOCK": tiles.block,
        "ROWS": 64, "GROUP": GROUP, "FP8": fp8, "MAXIMA": True, "UPCAST": False, "OVERLAPPED": True,
        "STAGES": tiles.stages, "length_batch_stride": 1,
    }  # fmt: skip
    options = {"num_warps": tiles.warps, "maxnreg": tiles.registers, "launch_pdl": True}

    compiled = Compiled(
        triton_indexer_kernels.indexer_logits_kernel, capability, constants, options, tmp_path,
        query="*fp8e4nv" if fp8 else "*bf16", keys="*u8" if fp8 else "*bf16",
    )  # fmt: skip

    compiled.assert_fits(capability, record_property)
    assert compiled.count(TENSOR[capability, "fp8" if fp8 else "bf16"])
    # keys are copied past the registers, 16 bytes at a time and past the L1.
    assert re.search(r"LDGSTS\S*BYPASS\S*128", compiled.code)


@TARGETS
@pytest.mark.parametrize(("count", "max_keys"), [(512, 32768), (512, 262144), (1024, 262144), (2048, 262144)])
def test_topk(capability: int, count: int, max_keys: int, tmp_path: Path, record_property) -> None:
    tiles = topk_tiles(count, max_keys)
    constants = {
        "COUNT": count, "NODES": tiles.nodes, "FEW": tiles.few, "MANY": tiles.many, "TILE": tiles.tile, "GROUP": GROUP,
        "SLOTS": True, "PAGE": 64, "EXCLUDE": False, "WHOLE": True, "OVERLAPPED": True, "tokens": 1,
        "length_batch_stride": 1, "length_token_stride": 0,
    }  # fmt: skip
    options = {"num_warps": tiles.warps, "launch_pdl": True}

    compiled = Compiled(triton_topk_kernels.choose_positions_kernel, capability, constants, options, tmp_path)

    # 1024 threads leave 64 registers for each; on sm_120 the row's constants do not all fit beside 32 keys.
    compiled.assert_fits(capability, record_property, most_spills=16 if (capability, count) == (120, 2048) else 0)
    # a program may have 65536 registers.
    assert compiled.registers * tiles.warps * 32 <= 65536


@TARGETS
def test_group_maxima(capability: int, tmp_path: Path, record_property) -> None:
    constants = {"BLOCK": MAXIMA_BLOCK, "ROWS": 64, "GROUP": GROUP, "EXCLUDE": False, "WHOLE": True, "OVERLAPPED": True}
    options = {"num_warps": 4, "launch_pdl": True}

    compiled = Compiled(triton_topk_kernels.group_maxima_kernel, capability, constants, options, tmp_path)

    compiled.assert_fits(capability, record_property)
    assert re.search(r"LDG\S*128", compiled.code)


@TARGETS
def test_the_embedded_engines_scores(capability: int, tmp_path: Path, record_property) -> None:
    constants = {"HEADS": 4, "PADDED_HEADS": 16, "DIM": 32, "PADDED_DIM": 32, "BLOCK": 64, "PAGED": True}

    compiled = Compiled(
        triton_table_indexer_kernels.score_kernel, capability, constants, {"num_warps": 4}, tmp_path,
        query="*fp32", keys="*fp32",
    )  # fmt: skip

    compiled.assert_fits(capability, record_property)
