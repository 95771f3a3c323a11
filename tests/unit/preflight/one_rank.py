"""One recorded rank in this process: its calls go on a tape, and the process gets its groups back afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from dtk.preflight import exchange as exchanging
from dtk.preflight.calls import Entry
from dtk.preflight.exchange import Exchange, SimulatedRank
from dtk.preflight.group import RecordingGroup
from dtk.simulate.mirror import stand_in


@contextmanager
def recorded(rank: int = 1, world_size: int = 4, exchange: Exchange | None = None) -> Iterator[SimulatedRank]:
    """Join the default group as this rank; everything issued inside is on the rank's tape."""
    simulated = SimulatedRank(exchange or Exchange(rank), world_size, 1)
    before, exchanging.current = exchanging.current, simulated
    try:
        with stand_in(RecordingGroup):
            store = torch._C._distributed_c10d.HashStore()
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
            try:
                yield simulated
            finally:
                dist.destroy_process_group()
    finally:
        exchanging.current = before


def issued(simulated: SimulatedRank) -> list[Entry]:
    """The calls so far, in order."""
    program = simulated.tape.program()
    return [program.entries[event] for event in program.steps() if event >= 0]
