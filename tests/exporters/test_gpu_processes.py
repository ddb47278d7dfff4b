from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.exporters.gpu import UnitsOfProcesses
from pdwatch.exporters.gpu.nvml import Process
from pdwatch.exporters.gpu.processes import UnitUse, unit_of

CONTAINER = "3f" * 32
CGROUPS = {
    "service": ("0::/system.slice/sglang-decode@0.service", "sglang-decode@0.service"),
    "below_a_service": ("0::/system.slice/sglang.service/workers/3", "sglang.service"),
    "user": ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/sglang.service", "sglang.service"),
    "session": ("0::/user.slice/user-1000.slice/session-4.scope", "session-4.scope"),
    "docker": (f"0::/system.slice/docker-{CONTAINER}.scope", f"docker-{CONTAINER}.scope"),
    "kubernetes": (
        f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{CONTAINER}.scope",
        f"cri-containerd-{CONTAINER}.scope",
    ),
    "escaped": (r"0::/system.slice/sglang\x2ddecode.service", r"sglang\x2ddecode.service"),
    "version_1": ("12:memory:/x.service\n1:name=systemd:/system.slice/sglang.service\n", "sglang.service"),
    "hybrid": ("1:name=systemd:/a.service\n0::/system.slice/b.service\n", "b.service"),
    "root": ("0::/", None),
    "virtual_machine": ("0::/process_api/cdf6f23aee9f2e2d9d620f91a961fae2", None),
    "slice_only": ("0::/system.slice", None),
    "empty": ("", None),
    "colons": ("0::/system.slice/a:b.service", "a:b.service"),
    "spaces": ("0::/system.slice/a b.service", None),
    "longest": (f"0::/{'a' * 300}.service", None),
}


@pytest.mark.parametrize(("text", "unit"), CGROUPS.values(), ids=CGROUPS)
def test_complaint_24_the_unit_of_a_cgroup(text: str, unit: str | None) -> None:
    assert unit_of(text) == unit


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    unit = unit_of(text)
    assert unit is None or unit.isprintable()


def test_groups_by_unit(tmp_path: Path) -> None:
    for pid, unit in {1: "a.service", 2: "a.service", 3: "b.service"}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"0::/system.slice/{unit}\n")
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "cgroup").write_bytes(b"0::/\xff\xfe.service\n")
    processes = [Process(1, 10), Process(2, None), Process(3, 5), Process(4, 1), Process(5, 2)]
    assert UnitsOfProcesses(("a*",), tmp_path).group(processes) == [
        UnitUse("a.service", 2, None),
        UnitUse("other", 2, 6),
        UnitUse("unknown", 1, 2),
    ]
    assert UnitsOfProcesses((), tmp_path).group([]) == []
