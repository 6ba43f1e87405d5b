"""The lanes of a run: separate groups for data, IDs, rows and dense gradients, over the reference transport and, for
arms with the SM-free layer, over the best path that leaves the compute alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from freescale.bench.arms import Arm
from freescale.comm.emulated_link import Link, emulate
from freescale.comm.process_group import open_lanes
from freescale.comm.select import select, survey
from freescale.comm.transport import Transport
from freescale.overlap.schedule import EXCHANGE_LANES

NAMES = ("data", *EXCHANGE_LANES)


@dataclass(frozen=True)
class Lanes:
    """Open lanes, by the names in `NAMES`.

    Attributes:
        reference: over torch's process groups.
        sm_free: over what `comm.select` chose; None when no arm needs it.
        chosen: in one line, what that is and why; empty when no arm needs it.
        dense: the group in which DDP reduces gradients. Reductions stay with it in every arm.
    """

    reference: Mapping[str, Transport]
    sm_free: Mapping[str, Transport] | None
    chosen: str
    dense: dist.ProcessGroup

    def of(self, arm: Arm) -> Mapping[str, Transport]:
        if not arm.smfree:
            return self.reference
        assert self.sm_free is not None, "lanes were opened without this arm"
        return self.sm_free

    def close(self) -> None:
        """Give back what the lanes hold; every rank calls it after its last exchange."""
        for lane in (self.sm_free or {}).values():
            lane.close()


def open_for(arms: Sequence[Arm], device: torch.device, link: Link | None = None) -> Lanes:
    """Lanes for these arms; collective.

    Args:
        link: emulate this link in front of every lane but DDP's.

    Raises:
        FreeScaleError: the SM-free layer has no path here (says what is missing), or a link cannot be emulated.
    """
    dense = dist.new_group(group_desc="dense")
    reference: Mapping[str, Transport] = open_lanes(NAMES)
    sm_free: Mapping[str, Transport] | None = None
    chosen = ""
    if any(arm.smfree for arm in arms):
        path = select(device, survey(device))
        sm_free, chosen = path.open(NAMES), path.line
    if link is not None:
        reference = emulate(reference, link)
        sm_free = dict(emulate(sm_free, link)) if sm_free is not None else None
    return Lanes(reference, sm_free, chosen, dense)
