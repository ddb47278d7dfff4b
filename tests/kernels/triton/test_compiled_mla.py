"""Compiles sparse MLA in Triton ahead of time: shared memory, tensor cores and registers of every configuration."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402

from pdwatch.kernels.layout_mla import MlaLayout  # noqa: E402
from pdwatch.kernels.schedule_mla import group_tiles  # noqa: E402
from pdwatch.kernels.triton_mla import GATHER_REGISTERS, INTERPRETED, MULTIPLY_REGISTERS, STAGES, Target, variant_of  # noqa: E402
from pdwatch.kernels.triton_mla_hopper import hopper_mla_kernel  # noqa: E402
from pdwatch.kernels.triton_mla_kernels import sparse_mla_kernel  # noqa: E402
from pdwatch.kernels.triton_mla_merge import merge_kernel  # noqa: E402

if INTERPRETED:
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

SHARED_LIMIT = {90: 232_448, 120: 101_376}
POINTERS = {
    "query": "*bf16", "out": "*bf16", "lse": "*fp32", "sink": "*fp32", "partial": "*fp32", "stats": "*fp32",
    "pages_0": "*u8", "pages_1": "*u8", "indices_0": "*i32", "indices_1": "*i32", "lengths_0": "*i32",
    "lengths_1": "*i32", "scale": "fp32",
}  # fmt: skip
COMMON = {"TWO": True, "LENGTHS_0": True, "LENGTHS_1": True, "HAS_SINK": True}


class Compiled:
    """What the compiler made of one kernel: shared bytes, registers, bytes of stack a thread, and the instructions."""

    def __init__(self, kernel, capability: int, constants: dict, warps: int, folder: Path, source=ASTSource) -> None:
        names = kernel.arg_names
        signature = {name: "constexpr" if name in constants else POINTERS.get(name, "i32") for name in names}
        aligned = [i for i, name in enumerate(names) if signature[name].startswith("*") or "stride" in name]
        built = source(
            fn=kernel,
            signature=signature,
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
        )
        binary = triton.compile(built, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
        cubin = folder / "kernel.cubin"
        cubin.write_bytes(binary.asm["cubin"])
        usage = self._tool("cuobjdump", "-res-usage", cubin)
        self.shared = binary.metadata.shared
        self.registers, self.stack = (int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "STACK"))
        self.code = self._tool("nvdisasm", "-c", cubin)

    def count(self, instruction: str) -> int:
        return len(re.findall(rf"\b{instruction}\b", self.code))

    @staticmethod
    def _tool(name: str, *arguments: object) -> str:
        program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("capability", [90, 120], ids=["sm_90", "sm_120"])
@pytest.mark.parametrize("layout", list(MlaLayout))
@pytest.mark.parametrize("heads", [16, 64])
def test_portable_kernel(capability: int, layout: MlaLayout, heads: int, tmp_path: Path, record_property) -> None:
    variant = variant_of(layout, heads, Target(capability=(capability // 10, capability % 10), processors=132))
    if variant.hopper:
        pytest.skip("the Hopper kernel takes these")
    constants = COMMON | {
        "FP8": layout.is_fp8, "V4": layout.is_v4, "PAGE_0": 256, "PAGE_1": 64, "FINAL": True, "CHUNK": 8,
        "BLOCK_H": variant.block_heads, "TILE": variant.tile, "STAGES": STAGES, "UPCAST": False,
    }  # fmt: skip
    compiled = Compiled(sparse_mla_kernel, capability, constants, 8, tmp_path)
    record_property("registers", compiled.registers)
    record_property("shared", compiled.shared)
    assert compiled.shared <= SHARED_LIMIT[capability]
    assert compiled.count("HMMA.16816.F32") or compiled.count("HMMA.16816.F32.BF16")
    assert compiled.count("LDL") == compiled.count("STL") == compiled.stack == 0


@pytest.mark.parametrize("schedule", ["tiles", "groups", "halves"])
def test_hopper_kernel(schedule: str, tmp_path: Path, record_property) -> None:
    constants = COMMON | {
        "PAGE_0": 256, "PAGE_1": 64, "FINAL": schedule != "tiles", "HALVES": schedule == "halves",
        "CHUNK": 1 if schedule == "tiles" else group_tiles(MlaLayout.FP8_V4, 128),
        "MULTIPLY_REGISTERS": MULTIPLY_REGISTERS, "GATHER_REGISTERS": GATHER_REGISTERS,
    }  # fmt: skip
    compiled = Compiled(hopper_mla_kernel, 90, constants, 4, tmp_path, GluonASTSource)
    record_property("registers", compiled.registers)
    record_property("shared", compiled.shared)
    assert compiled.shared <= SHARED_LIMIT[90]
    assert compiled.count("HGMMA.64x64x16.F32.BF16") >= 64
    # rows are read 16 bytes at a time: 9 loads a half tile, twice before and in the loop of each scope.
    assert compiled.count("LDG.E.128") >= 36
    # registers are all given away (2 * 128 * 176 + 256 * 80 = 65,536), so words are spilled, also within loops. With
    # groups a tile costs a multiplying thread 8 loads and 3 stores (addresses, and 3 of its 128 sums); with tiles 6 and
    # 1, and a gathering thread 3 and 3 for each half tile of the first scope; with halves none.
    assert compiled.stack <= 64
    assert compiled.count("LDL") + compiled.count("STL") <= {"tiles": 28, "groups": 72, "halves": 4}[schedule]


@pytest.mark.parametrize("capability", [90, 120], ids=["sm_90", "sm_120"])
@pytest.mark.parametrize("group", [1, 4, 5, 8, 10])
def test_merge_kernel(capability: int, group: int, tmp_path: Path) -> None:
    constants = COMMON | {"CHUNK": 1, "GROUP": group, "TILE": 64, "COLUMNS": 256, "DEPENDENT": True}
    compiled = Compiled(merge_kernel, capability, constants, 2, tmp_path)
    assert compiled.count("LDL") == compiled.count("STL") == compiled.stack == 0
