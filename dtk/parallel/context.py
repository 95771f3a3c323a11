"""This rank's device, process groups and mesh. Independent of models and strategies."""

import datetime
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.rendezvous import rendezvous

from diagnostics.contract.mesh import Mesh
from dtk.parallel import loopback


@dataclass(frozen=True, slots=True)
class Context:
    """What a rank knows about the job. `join` builds it once; everything that communicates receives it."""

    rank: int
    local_rank: int
    world_size: int
    node_rank: int
    device: torch.device
    backend: str
    control: dist.ProcessGroup
    """A gloo group over all ranks for host values, so that exchanging them never synchronizes with the device."""
    mesh: Mesh
    """How the ranks are divided into mesh dimensions."""
    device_meshes: dict[tuple[Mesh, tuple[str, ...]], DeviceMesh] = field(default_factory=dict, compare=False)
    """Cache of `device_mesh`, with the process groups of each dimension."""

    def device_mesh(self, mesh: Mesh, dimensions: tuple[str, ...]) -> DeviceMesh:
        """Return the DeviceMesh over all ranks; made once, so that parts taken by several callers belong together."""
        key = mesh, dimensions
        if key not in self.device_meshes:
            places = [[mesh.index(name, rank) for name in dimensions] for rank in range(self.world_size)]
            ranks = torch.tensor(sorted(range(self.world_size), key=places.__getitem__), dtype=torch.int, device="cpu")
            sizes = [mesh.size(name) for name in dimensions]
            self.device_meshes[key] = DeviceMesh(self.device.type, ranks.view(sizes), mesh_dim_names=dimensions)
        return self.device_meshes[key]

    @property
    def dp_rank(self) -> int:
        """Index of this rank's part of the global batch."""
        return self.mesh.index("dp", self.rank)

    @property
    def dp_size(self) -> int:
        """Number of parts into which the global batch is divided."""
        return self.mesh.dp_size

    @property
    def tokens_rank(self) -> int:
        """Index of this rank's part of the batch's tokens: as `dp_rank`, but distinct for ranks along cp."""
        place, mesh = self.mesh.coordinate(self.rank), self.mesh
        return (place["dp"] * mesh.cp + place["cp"]) * mesh.tp + place["tp"]

    @property
    def leads(self) -> bool:
        """Whether this rank counts, among those that share the work on the same samples."""
        return self.mesh.leads(self.rank)

    @property
    def leads_tokens(self) -> bool:
        """Whether this rank counts, among those with the same tokens."""
        return self.mesh.leads(self.rank, of_tokens=True)


def meet(timeout_s: float) -> PrefixStore:
    """Connect to the store of this attempt at MASTER_ADDR:MASTER_PORT, as RANK of WORLD_SIZE.

    Its `underlying_store` outlives the elastic agent's restarts. torch.distributed.DistError if not all ranks connected
    within `timeout_s` seconds, or the port is taken.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    store: Store
    if os.environ["RANK"] == "0" and not agent and loopback.is_loopback(host):
        store = loopback.serve_store(port, timeout_s)
    else:
        store = next(rendezvous("env://", timeout=datetime.timedelta(seconds=timeout_s)))[0]
    # The elastic agent keeps one store over its restarts: without a prefix new ranks would find the previous addresses.
    return PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def join(store: Store, device: str, backend: str, timeout_s: float, mesh: Mesh | None = None) -> Context:
    """Join the process group of all ranks.

    A rank uses device local_rank modulo the number of devices; `backend` is that of the groups that carry gradients and
    parameters. Without a mesh all ranks are replicas, as where nothing is trained. RuntimeError unless all joined.
    """
    local_rank = int(os.environ["LOCAL_RANK"])
    place = torch.device("cpu")
    if device == "cuda":
        place = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(place)
    timeout = datetime.timedelta(seconds=timeout_s)
    # Under NCCL host tensors still use gloo, which asynchronous checkpoints need. Binding the device makes NCCL create
    # its communicator immediately and fail early.
    nccl = backend == "nccl"
    names, rank = "cpu:gloo,cuda:nccl" if nccl else backend, int(os.environ["RANK"])
    size = int(os.environ["WORLD_SIZE"])
    bound = place if nccl else None
    dist.init_process_group(names, store=store, rank=rank, world_size=size, timeout=timeout, device_id=bound)
    return Context(
        rank=dist.get_rank(),
        local_rank=local_rank,
        world_size=dist.get_world_size(),
        node_rank=int(os.environ.get("GROUP_RANK", "0")),
        device=place,
        backend=backend,
        control=dist.new_group(backend="gloo", timeout=timeout, group_desc="control"),
        mesh=mesh or Mesh(dp_replicate=dist.get_world_size()),
    )


def leave() -> None:
    """Destroy the process group if this rank is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()
