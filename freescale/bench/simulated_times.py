"""Times of a simulated program as the run directory has them: steps, bubbles and collectives of every rank.

The classes are the analyzer's own: its partition is called on each rank's intervals, which are what a profiler would
have recorded. Where the ranks' traces are written and analysed, the same numbers come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer.arrivals import COLLECTIVE_COLUMNS
from analyzer.bubbles import CLASSES
from analyzer.intervals import Union, merge
from analyzer.partition import Communication, Partition, partition
from freescale.simulate.engine import Times
from freescale.simulate.links import BY_HAND
from freescale.simulate.ops import PPM, Collective, Ns, Work
from freescale.simulate.program import StepProgram

_EMPTY = (np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class Recording:
    """What a profiler would see of some steps of one program.

    Attributes:
        steps: numbers of the steps, consecutive, as in the program.
        compute: operations that compute, int64[n]; `collectives`: int64[m].
        compute_start, compute_end: int64[n, ranks].
        call, arrival, last_arrival, end: int64[m, ranks]: when the rank called, arrived (see DESIGN: a kernel's start,
            or on a CPU the call), when the last of its group did, and when it was over.
        seen: which collective each row of communication belongs to, int64[k]; seen_start, seen_end: int64[k, ranks].
            One from arrival to end, or of those moved by hand the calls and the waits.
    """

    written: StepProgram
    times: Times
    gpu: bool
    steps: range
    compute: NDArray[np.int64]
    compute_start: Ns
    compute_end: Ns
    collectives: NDArray[np.int64]
    call: Ns
    arrival: Ns
    last_arrival: Ns
    end: Ns
    seen: NDArray[np.int64]
    seen_start: Ns
    seen_end: Ns

    @property
    def ranks(self) -> int:
        return self.written.program.ranks

    def windows(self, rank: int) -> tuple[Ns, Ns]:
        """(starts, ends) of the steps on a rank: from compute to compute on a GPU, the training thread's on a CPU."""
        starts = np.array([self.times.start[self.written.first[step]][rank] for step in self.steps])
        end = int(self.times.end[self.written.last[self.steps[-1]]][rank])
        if self.gpu:
            used = self.compute_end[:, rank] > self.compute_start[:, rank]
            step_of = np.array([self.written.program.ops[number].step for number in self.compute[used]])
            first = np.searchsorted(step_of, np.array(self.steps))
            starts = self.compute_start[used, rank][first]
            starts[0] = min(int(starts[0]), int(self.arrival[:, rank].min(initial=starts[0])))
            end = max(int(self.compute_end[used, rank].max()), int(self.end[:, rank].max(initial=0)))
        return starts, np.append(starts[1:], end)

    def computing(self, rank: int) -> Union:
        """(starts, ends) of what a profiler shows as compute on a rank, in program order: less the pauses."""
        ops = [self.written.program.ops[number] for number in self.compute]
        pause_ppm = [op.pause_ppm for op in ops if isinstance(op, Work)]
        return between_pauses(
            self.compute_start[:, rank],
            self.compute_end[:, rank],
            np.array(pause_ppm, np.int64),
            self.written.pause_ns,
        )

    def partition(self, rank: int) -> Partition:
        """Its last two are per row of communication."""
        communication = Communication(
            self.seen_start[:, rank], self.seen_end[:, rank], self.last_arrival[self.seen, rank]
        )
        return partition(self.windows(rank), merge(*self.computing(rank)), communication, _EMPTY)


def between_pauses(start: Ns, end: Ns, pause_ppm: Ns, pause_ns: int) -> Union:
    """Cut pieces of work, int64[n], into equal parts, each of which computes and then pauses for its share: as many as
    it takes for a pause to last about `pause_ns`, at least one."""
    length = np.maximum(end - start, 0)
    paused = length * pause_ppm // PPM
    parts = np.maximum((paused + pause_ns // 2) // pause_ns, 1)
    piece = np.repeat(np.arange(len(start)), parts)
    part = np.arange(len(piece)) - np.repeat(np.cumsum(parts) - parts, parts)
    begin = start[piece] + length[piece] * part // parts[piece]
    until = start[piece] + length[piece] * (part + 1) // parts[piece]
    return begin, until - paused[piece] * (part + 1) // parts[piece] + paused[piece] * part // parts[piece]


def record(written: StepProgram, times: Times, gpu: bool, steps: range) -> Recording:
    """What a profiler that records `steps` would see: everything launched in them."""
    ops = written.program.ops
    stream = "compute" if gpu else "host"
    compute = [
        number
        for number, op in enumerate(ops)
        if isinstance(op, Work) and op.step in steps and op.stream == stream and op.kind == "compute"
    ]
    collectives = [number for number, op in enumerate(ops) if isinstance(op, Collective) and op.step in steps]
    ranks = written.program.ranks
    compute_end = [times.end[number] - _issue_ns(ops[number]) * times.did[number] for number in compute]
    calls = [_issued(written, times, number, less_call=True) for number in collectives]
    arrival = [times.start[number] if gpu else call for number, call in zip(collectives, calls, strict=True)]
    last = [
        times.joined[number] if gpu else np.full(ranks, call.max())
        for number, call in zip(collectives, calls, strict=True)
    ]
    shape = (-1, ranks)
    seen, seen_start, seen_end = [], [], []
    for place, number in enumerate(collectives):
        spans = [(arrival[place], times.end[number])]
        if by_hand(written, number):
            issued = _issued(written, times, number)
            spans = [(arrival[place], issued), *waits(written, times, number, steps)]
        for begin, until in spans:
            seen.append(place)
            seen_start.append(begin)
            seen_end.append(until)
    return Recording(
        written,
        times,
        gpu,
        steps,
        np.array(compute, np.int64),
        np.array([times.start[number] for number in compute], np.int64).reshape(shape),
        np.array(compute_end, np.int64).reshape(shape),
        np.array(collectives, np.int64),
        np.array(calls, np.int64).reshape(shape),
        np.array(arrival, np.int64).reshape(shape),
        np.array(last, np.int64).reshape(shape),
        np.array([times.end[number] for number in collectives], np.int64).reshape(shape),
        np.array(seen, np.int64),
        np.array(seen_start, np.int64).reshape(shape),
        np.array(seen_end, np.int64).reshape(shape),
    )


def by_hand(written: StepProgram, collective: int) -> bool:
    """Does the training thread move the bytes itself?"""
    op = written.program.ops[collective]
    return isinstance(op, Collective) and any(load.port == BY_HAND for load in op.loads)


def waits(written: StepProgram, times: Times, collective: int, steps: range) -> Iterator[tuple[Ns, Ns]]:
    """(from, until), int64[ranks], of each wait of the training thread for a collective; empty where it has none."""
    before = -1
    for number, op in enumerate(written.program.ops):
        if not isinstance(op, Work) or op.stream != "host":
            continue
        if op.step in steps and (collective in op.after or collective in op.polls):
            begun = times.end[before] if before >= 0 else np.zeros_like(times.start[number])
            yield begun, np.where(times.did[number], np.maximum(times.start[number], begun), begun)
        before = number


def issuer(written: StepProgram, times: Times, collective: int, rank: int) -> int:
    """The operation by which a rank issued a collective."""
    op = written.program.ops[collective]
    assert isinstance(op, Collective)
    return next(number for number in op.issued_by if times.did[number][rank])


def tables(recording: Recording, first_number: int, shown: Sequence[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(bubbles of all ranks, collectives of the ranks `shown`), columns as in the run directory without `arm`.

    Steps are numbered from `first_number`.
    """
    frames, collectives = [], []
    identities = _identities(recording)
    for rank in range(recording.ranks):
        windows, part = recording.windows(rank), recording.partition(rank)
        columns = {
            "step": np.arange(len(recording.steps)) + first_number,
            "rank": np.full(len(recording.steps), rank, np.int32),
            "start_ns": windows[0],
            "window_ns": windows[1] - windows[0],
            **{name: getattr(part, name) for name in (*CLASSES, "overlapped_comm_ns")},
        }
        frames.append(pd.DataFrame(columns))
        if rank in shown:
            collectives.append(_collective_rows(recording, rank, part, first_number, identities))
    bubbles = pd.concat(frames, ignore_index=True).sort_values(["step", "rank"], ignore_index=True)
    return bubbles, pd.concat(collectives, ignore_index=True)[list(COLLECTIVE_COLUMNS)]


def group_name(op: Collective, rank: int) -> tuple[str, NDArray[np.int64]]:
    """(name, ranks) of the process group in which a rank takes part in a collective; the lane's own if all do."""
    if op.group is None:
        return op.lane, np.empty(0, np.int64)
    members = np.flatnonzero(op.group == op.group[rank])
    side_by_side = members[-1] - members[0] == members.size - 1
    return f"{op.lane}.{'node' if side_by_side else 'peers'}{members[0]}", members


def _identities(recording: Recording) -> list[tuple[Collective, int]]:
    """(collective, its number in its kind of group) in program order."""
    seen: dict[str, int] = {}
    found = []
    for number in recording.collectives.tolist():
        op = recording.written.program.ops[number]
        assert isinstance(op, Collective)
        kind = group_name(op, 0)[0]
        seen[kind] = seen.get(kind, -1) + 1
        found.append((op, seen[kind]))
    return found


def _collective_rows(
    recording: Recording, rank: int, part: Partition, first_number: int, identities: list[tuple[Collective, int]]
) -> pd.DataFrame:
    rows = []
    for place, (op, ordinal) in enumerate(identities):
        name, members = group_name(op, rank)
        arrivals = recording.arrival[place] if op.group is None else recording.arrival[place, members]
        last, end = int(recording.last_arrival[place, rank]), int(recording.end[place, rank])
        latest = int(arrivals.argmax())
        arrival = int(recording.arrival[place, rank])
        rows.append(
            {
                "step": first_number + op.step - recording.steps[0],
                "group": name,
                "op": op.label,
                "ordinal": ordinal,
                "matched": True,
                "rank": np.int32(rank),
                "bytes": int(np.broadcast_to(op.sent_bytes, recording.ranks)[rank]),
                "arrival_ns": arrival,
                "rank_end_ns": end,
                "wait_ns": max(min(last, end) - arrival, 0),
                "last_rank": np.int32(latest if op.group is None else members[latest]),
                "first_arrival_ns": int(arrivals.min()),
                "last_arrival_ns": last,
                "end_ns": end,
                "transfer_ns": max(end - last, 0),
                "straggler_ns": int(part.row_straggler_ns[recording.seen == place].sum()),
                "exposed_ns": int(part.row_exposed_ns[recording.seen == place].sum()),
            }
        )
    return pd.DataFrame(rows)


def step_ms(written: StepProgram, times: Times) -> NDArray[np.float64]:
    """float64[steps, ranks], by the training thread's clock."""
    begun = np.array([times.start[number] for number in written.first])
    ended = np.array([times.end[number] for number in written.last])
    return (ended - begun) / 1e6


def host_compute_ms(written: StepProgram, times: Times) -> NDArray[np.float64]:
    """float64[steps, ranks]: what a training thread on a CPU does outside waits."""
    total = np.zeros((len(written.first), written.program.ranks))
    for number, op in enumerate(written.program.ops):
        if isinstance(op, Work) and op.step >= 0 and op.kind != "wait":
            work = np.where(times.did[number], np.broadcast_to(op.work_ns, written.program.ranks), 0)
            total[op.step] += np.where(work > 0, times.end[number] - times.start[number], 0)
    return total / 1e6


def _issued(written: StepProgram, times: Times, collective: int, less_call: bool = False) -> Ns:
    """int64[ranks]: when each rank's issuing call was over, or when it began."""
    op = written.program.ops[collective]
    assert isinstance(op, Collective)
    at_ns = np.zeros(written.program.ranks, np.int64)
    for number in op.issued_by:
        call_ns = _issue_ns(written.program.ops[number]) if less_call else 0
        at_ns = np.where(times.did[number], times.end[number] - call_ns, at_ns)
    return at_ns


def _issue_ns(op: Work | Collective) -> Ns | int:
    return op.issue_ns if isinstance(op, Work) else 0
