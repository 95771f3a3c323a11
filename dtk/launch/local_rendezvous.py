"""The rendezvous of a run on one machine: a store in the parent that listens on loopback. No pickles, no election.

torch's `c10d` rendezvous keeps its state as a pickle in a store that listens on every interface, so whoever reaches
the port executes code in the launcher. One node has nothing to agree on: it is always rank 0 of 1.
"""

from torch._C._distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from dtk.parallel import loopback

BACKEND = "dtk-loopback"


class LoopbackRendezvous(RendezvousHandler):
    """One node; its ranks use the same store as the agent over all restarts."""

    def __init__(self, port: int, run_id: str) -> None:
        self.store = loopback.serve_store(port)
        self.run_id = run_id

    def get_backend(self) -> str:
        """Return the name under which it is registered."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether the ranks connect to the agent's store instead of opening one on rank 0."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the store and this node's place: there is nobody to wait for."""
        address = RendezvousStoreInfo(loopback.ADDRESS, self.store.port)
        return RendezvousInfo(PrefixStore(self.run_id, self.store), 0, 1, address)

    def is_closed(self) -> bool:
        """Return False: it ends with the launcher."""
        return False

    def set_closed(self) -> None:
        """Do nothing: no other node can join."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no other node can join."""
        return 0

    def get_run_id(self) -> str:
        """Return the id of this launch."""
        return self.run_id

    def shutdown(self) -> bool:
        """Return True: the store ends with this object."""
        return True


def register() -> str:
    """Make the backend known to torch's elastic agent and return its name."""
    if BACKEND not in rendezvous_handler_registry._registry:
        rendezvous_handler_registry.register(BACKEND, _handler)
    return BACKEND


def _handler(parameters: RendezvousParameters) -> RendezvousHandler:
    return LoopbackRendezvous(int(parameters.endpoint.rpartition(":")[2]), parameters.run_id)
