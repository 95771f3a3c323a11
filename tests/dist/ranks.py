"""Runs a function on real gloo ranks, one process each, and brings back what they return."""

import dataclasses
import os
import pickle
import socket
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dtk.sharding.registry import CONFIG_TYPES
from dtk.sharding.traits import StrategyConfig
from tests.warm_python import run_modules

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def without_cases(*tables: Iterable[str]) -> dict[str, StrategyConfig]:
    """Strategies of the folder that no case names, as their files configure them; a case begins with the name."""
    named = {case.split()[0] for table in tables for case in table}
    own = ((name, kind, kind.traits) for name, kind in CONFIG_TYPES.items() if name not in named)
    return {n: kind(name=n) for n, kind, t in own if t.compared and not (t.one_process or t.library)}


def run_ranks(function: str, world_size: int, *arguments: Any, timeout_s: float = 200) -> list[Any]:
    """Call `module:name` on every rank as name(context, *arguments); returns the results by rank."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(world_size),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        (Path(folder) / "arguments").write_bytes(pickle.dumps(arguments))
        command = ["tests.dist.ranks", function, folder]
        ranks = [(command, {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(world_size)]
        ended = enumerate(run_modules(ranks, ROOT, timeout_s))
        failed = [f"rank {rank} of {function}:\n{item.stderr[-4000:]}" for rank, item in ended if item.returncode]
        assert not failed, "\n".join(failed)
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world_size)]  # noqa: S301


def placed(context: Any, section: Any) -> Any:
    """The rank as it joins under a strategy, or under a whole configuration: on its mesh."""
    return dataclasses.replace(context, mesh=section.mesh(context.world_size))


def main() -> None:
    import importlib

    from dtk.parallel.context import join, leave, meet

    module, name = sys.argv[1].split(":")
    folder = Path(sys.argv[2])
    arguments = pickle.loads((folder / "arguments").read_bytes())  # noqa: S301
    context = join(meet(60), "cpu", "gloo", 60)
    result = getattr(importlib.import_module(module), name)(context, *arguments)
    (folder / str(context.rank)).write_bytes(pickle.dumps(result))
    leave()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
