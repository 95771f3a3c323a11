"""`dtk watch` around a script of DTensors: functional collectives that not all ranks call are found and explained."""

import pytest

from tests.cli.test_watch_any import PROMPT_S, TORCHRUN, line_of, told_after_s, watch
from tests.patience import stretched

SCRIPT = """\
import os, sys, time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("gloo")
fault, rank = sys.argv[1], dist.get_rank()
mesh = init_device_mesh("cpu", (2,))
weight = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
values = distribute_tensor(torch.ones(8, 8), mesh, [Shard(1)])


def product():
    return (values @ weight).redistribute(placements=[Replicate()]).to_local()  # product


forward = torch.compile(product, backend="aot_eager") if fault == "compiled" else product
for step in range(3):
    forward()
os.write(1, b"planted at %.6f\\n" % time.time())
if rank == 0 and fault != "stuck":
    weight.full_tensor()  # extra
if rank == 1 and fault == "stuck":
    time.sleep(1e6)  # stuck
forward()
dist.barrier()
"""


def explained(folder, fault, *options):
    job = folder / "job.py"
    job.write_text(SCRIPT)
    code, error, took_s = told_after_s(watch(folder, *TORCHRUN, job, fault, options=options))
    assert code == 1, error
    return job, error, took_s


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", ["extra", pytest.param("compiled", marks=pytest.mark.extended)])
def test_one_that_only_one_rank_calls(fault, tmp_path):
    job, error, took_s = explained(tmp_path, fault)
    (reason,) = [line for line in error.splitlines() if line.startswith("dtk watch: ranks called")]
    assert f"rank 0 called all_gather_into_tensor [4, 8] float32 at job.py:{line_of(job, 'extra')}" in reason
    # Code that torch.compile made has no lines: there the first one of the function stands for all.
    other = line_of(job, "product") - (fault == "compiled")
    assert f"rank 1 called all_reduce [8, 8] float32 SUM at job.py:{other} in product" in reason
    assert "[hang.conditional_collective" in error
    assert f"{job}:{line_of(job, 'extra')}" in error and f"{job}:{other}" in error
    assert took_s <= stretched(PROMPT_S), error


@pytest.mark.extended
@pytest.mark.timeout(120)
def test_one_that_a_rank_never_reaches(tmp_path):
    job, error, _ = explained(tmp_path, "stuck", "--stall-timeout-s", "3")
    (reason,) = [line for line in error.splitlines() if line.startswith("dtk watch: no progress")]
    assert f"rank 1 is at job.py:{line_of(job, 'stuck')}" in reason
    assert f"rank 0 waits in all_reduce [8, 8] float32 SUM at job.py:{line_of(job, 'product')} in product" in reason
    assert "[hang.host_stall" in error and "blame   rank 1 " in error
