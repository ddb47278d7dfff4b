"""A tape does to a function what a captured graph does."""

from __future__ import annotations

import torch

from pdwatch.kernels.harness.tape import Tape, replay_interleaved


def test_replay_computes_with_new_values_at_the_same_addresses() -> None:
    x = torch.tensor([1.0, 2.0])
    tape = Tape(lambda: {"y": (x * 2 + 1)[1:].clone()})
    address = tape.outputs["y"].data_ptr()
    x.copy_(torch.tensor([5.0, 7.0]))
    tape.replay()
    assert tape.outputs["y"].tolist() == [15.0]
    assert tape.outputs["y"].data_ptr() == address


def test_a_branch_of_the_host_is_frozen() -> None:
    x = torch.tensor([1.0])
    tape = Tape(lambda: {"y": x + 1 if float(x) < 3 else x * 100})
    x.fill_(10.0)
    tape.replay()
    assert tape.outputs["y"].tolist() == [11.0]
    assert len(tape.synchronising) == 1


def test_writes_in_place_and_into_given_memory_are_replayed() -> None:
    x, out = torch.zeros(3), torch.zeros(3)

    def work() -> dict[str, torch.Tensor]:
        out.zero_()
        out[:2].add_(x[:2])
        out[2:].copy_(x[2:] * 2)
        return {"out": out}

    tape = Tape(work)
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    tape.replay()
    assert tape.outputs["out"].tolist() == [1.0, 2.0, 6.0]


def test_what_makes_the_host_wait_is_told() -> None:
    x = torch.tensor([0.0, 1.0])
    for work in (
        lambda: {"y": x[x > 0]},
        lambda: {"y": x.nonzero()},
        lambda: {"y": x.unique()},
        lambda: {"y": x + torch.tensor([1.0, 2.0])},
    ):
        assert Tape(work).synchronising, work
    assert not Tape(lambda: {"y": torch.where(x > 0, x, 0.0).sort().values}).synchronising


def test_interleaved_tapes_share_what_they_share() -> None:
    shared = torch.zeros(1)

    def adds(amount: float) -> dict[str, torch.Tensor]:
        shared.fill_(amount)
        return {"y": shared + 0.0}

    tapes = [Tape(lambda: adds(1.0)), Tape(lambda: adds(2.0))]
    replay_interleaved(tapes)
    # both fill, then both read
    assert [tape.outputs["y"].item() for tape in tapes] == [2.0, 2.0]
