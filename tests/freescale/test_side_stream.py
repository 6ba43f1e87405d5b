"""The batch ahead on a device stream of its own: what is ordered after what, on streams that only take notes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from freescale.comm.transport import Handle
from freescale.overlap.contribution import Contribution, Sums
from freescale.overlap.side_stream import SideStream, tensors_in
from freescale.overlap.stages import Stages


class NotedStream:
    """Writes down what it is told; `current` is the stream that work goes to."""

    notes: ClassVar[list[str]]
    current: ClassVar[NotedStream]

    def __init__(self, name: str = "side") -> None:
        self.name, self.device = name, torch.device("cpu")

    def wait_stream(self, other: NotedStream) -> None:
        self.notes.append(f"{self.name} after {other.name}")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    NotedStream.notes, NotedStream.current = [], NotedStream("compute")

    @contextmanager
    def entered(stream: NotedStream) -> Any:
        before, NotedStream.current = NotedStream.current, stream
        try:
            yield
        finally:
            NotedStream.current = before

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: NotedStream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: NotedStream.current)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    noted = lambda tensor, stream: NotedStream.notes.append(f"{tuple(tensor.shape)} used on {stream.name}")  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "record_stream", noted)
    return NotedStream.notes


@dataclass
class Prepared:
    rows: list[torch.Tensor]
    counts: list[int]


def test_a_chain_runs_beside_the_compute_and_its_result_is_handed_over(notes: list[str]) -> None:
    def work(what: str) -> None:
        notes.append(f"{what} on {NotedStream.current.name}")

    def chain() -> Any:
        work("counts")
        yield Handle("all_to_all", "ids", 0, 0, "test", torch.empty(0), lambda: work("wait"))
        work("rows")
        return Prepared([torch.empty(3, 2)], [3])

    stages = Stages(chain(), SideStream(torch.device("cuda")))
    work("forward")
    stages.advance()  # not done yet
    work("backward")
    stages.finish()
    work("update")
    assert notes == [
        "side after compute",
        "counts on side",
        "forward on compute",
        "backward on compute",
        "wait on side",
        "rows on side",
        "compute after side",
        "(3, 2) used on compute",
        "update on compute",
    ]


def test_a_chain_can_wait_for_what_was_computed_since_it_began(notes: list[str]) -> None:
    side = SideStream(torch.device("cuda"))
    side.begin()
    with side.entered():
        side.catch_up()
    assert notes == ["side after compute", "side after compute"]


def test_what_the_chain_was_given_is_not_given_away_while_it_is_used(notes: list[str]) -> None:
    coming = Handle("all_to_all", "bulk", 0, 0, "test", torch.empty(0), lambda: None)
    part = Contribution([torch.tensor([4, 7])], [[2]], lambda: [coming.wait()])
    SideStream(torch.device("cuda")).take([Sums([part.where([torch.tensor([7])])]), None])
    # The row that is left, the mark of each that came, the distinct rows, and where the one goes.
    assert notes == ["(1,) used on side", "(2,) used on side", "(1,) used on side", "(1,) used on side"]


def test_tensors_are_found_at_any_depth() -> None:
    one, other = torch.empty(1), torch.empty(2)
    found = list(tensors_in({"a": [one, 3, None], "b": (Prepared([other], []), "text")}))
    assert [tensor.numel() for tensor in found] == [1, 2]
