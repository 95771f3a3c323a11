import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from diagnostics.contract.artifacts import RunPaths
from dtk.config import schema
from dtk.parallel.regions import observe
from dtk.record import guard, wrappers
from dtk.record.collectives import CollectiveLog
from dtk.record.ring import Ring
from dtk.strategies.ddp import DDPConfig

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def fresh_process_state():
    """Reports and observers are one per process: each test begins without."""
    guard._reported.clear()
    yield
    observe(())
    guard._reported.clear()


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path / "run")


@pytest.fixture
def make_config():
    def make(level="light", tracker=None, **record):
        return schema.Config(
            model=schema.GPTConfig(name="gpt2_tiny"),
            data=schema.StdlibData(),
            strategy=DDPConfig(),
            precision=schema.PrecisionConfig(),
            optimizer=schema.AdamWConfig(),
            schedule=schema.CosineSchedule(),
            train=schema.TrainConfig(),
            checkpoint=schema.CheckpointConfig(),
            record=schema.RecordConfig(level=level, **record),
            tracker=tracker or schema.NoTracker(),
            launcher=schema.LauncherConfig(),
            nccl=schema.NCCLConfig(),
        )

    return make


@pytest.fixture
def log(tmp_path):
    """Recording in this process, with a group of one rank."""
    ring = Ring(tmp_path / "rank_00000.ring", 0, 1, 0)
    ring.start()
    log = CollectiveLog(ring)
    wrappers.install(log)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield log
    dist.destroy_process_group()
    wrappers.remove()


@pytest.fixture
def stalling_server():
    """Accepts connections and never answers; yields its URL and the number of connections so far."""
    server = socket.create_server(("127.0.0.1", 0))
    accepted = []

    def accept():
        while True:
            try:
                accepted.append(server.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}", accepted
    server.close()
    for connection in accepted:
        connection.close()


@pytest.fixture
def child():
    """Starts a Python script in a process of its own; whatever is left at the end of the test is killed."""
    started = []

    def start(script, *arguments, **environment):
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
        process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
