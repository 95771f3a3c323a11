"""The rendezvous of a run on one machine: a store in the parent that listens on loopback. No pickles, no election.

torch's `c10d` rendezvous keeps its state as a pickle in a store that listens on every interface, so whoever reaches
the port executes code in the launcher. One node has nothing to agree on: it is always rank 0 of 1.
"""

from torch._C._distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from dtk.parallel import loopback

BACKEND = "dtk-loopback"


class LoopbackRendezvous(StaticTCPRendezvous):
    """One node; its ranks use the same store as the agent over all restarts."""

    def __init__(self, port: int, run_id: str) -> None:
        self.store = loopback.serve_store(port)
        super().__init__(loopback.ADDRESS, self.store.port, rank=0, world_size=1, run_id=run_id, timeout=0)

    def get_backend(self) -> str:
        """Return the name under which it is registered."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the store and this node's place: there is nobody to wait for."""
        address = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(PrefixStore(self.run_id, self.store), self.rank, self.world_size, address)


def register() -> str:
    """Make the backend known to torch's elastic agent and return its name."""
    if BACKEND not in rendezvous_handler_registry._registry:
        rendezvous_handler_registry.register(
            BACKEND, lambda given: LoopbackRendezvous(int(given.endpoint.rpartition(":")[2]), given.run_id)
        )
    return BACKEND
