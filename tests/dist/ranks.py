"""Runs a function on real gloo ranks, one process each, and brings back what they return."""

import dataclasses
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        ranks = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__)), function, folder],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_size)
        ]
        try:
            errors = [process.communicate(timeout=timeout_s)[1] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        for rank, (process, error) in enumerate(zip(ranks, errors)):
            assert process.returncode == 0, f"rank {rank} of {function}:\n{error[-4000:]}"
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world_size)]  # noqa: S301


def placed(context: Any, strategy: Any) -> Any:
    """The rank as it joins under a strategy: on its mesh."""
    return dataclasses.replace(context, mesh=strategy.mesh(context.world_size))


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
