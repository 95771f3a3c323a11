"""Collectives between real ranks, and what is made of ranks that die, hang or compute wrong results."""

import pytest

from dtk.doctor import collectives
from dtk.doctor.model import ChildOutput
from dtk.launch.children import local_ranks


def done(*names, right=True):
    return [{"begin": "meeting"}, {"met": 2}, *({"done": name, "right": right, "ms": 0.5} for name in names)]


@pytest.mark.timeout(120)
def test_every_kind_of_collective_between_two_real_ranks():
    said = collectives.try_ranks("gloo", 60, local_ranks(2, 1))
    result = collectives.judge(said, "gloo")
    assert result.status == "ok", result
    assert set(result.measures["slowest_ms"]) == {
        "barrier", "broadcast", "all_reduce", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather",
        "scatter", "send_recv",
    }  # fmt: skip


@pytest.mark.timeout(60)
def test_a_rank_that_never_answers_is_named(tmp_path, monkeypatch):
    """Rank 1 sleeps before its first line; rank 0 is real and waits for it."""
    (tmp_path / "sitecustomize.py").write_text("import os, time\nif os.environ.get('RANK') == '1': time.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = collectives.try_ranks("gloo", 5, local_ranks(2, 1))
    result = collectives.judge(said, "gloo")
    assert result.status == "failure"
    assert result.summary.startswith("rank 1 of 2 on gloo: never joined: no answer in 5 s (rank 0 waited in ")
    assert result.remedies[0].command == "TORCH_CPP_LOG_LEVEL=INFO dtk doctor --only collectives_gloo -v"


@pytest.mark.timeout(60)
@pytest.mark.extended
def test_a_gloo_interface_that_is_not_there(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth99")
    result = collectives.judge(collectives.try_ranks("gloo", 30, local_ranks(2, 1)), "gloo")
    assert result.status == "failure"
    assert "eth99" in result.summary
    assert result.remedies[0].command == "unset GLOO_SOCKET_IFNAME"


def test_a_rank_that_dies_is_blamed_before_those_that_wait():
    waits = ChildOutput([*done("barrier"), {"begin": "all_reduce"}], "no answer in 60 s", late=True)
    dies = ChildOutput([*done("barrier"), {"begin": "all_reduce"}], "killed by signal 9")
    result = collectives.judge([waits, waits, dies], "gloo", hosts=("a", "b", "c"))
    assert result.summary == "rank 2 (c) of 3 on gloo: killed by signal 9 (ranks 0 (a), 1 (b) waited in all_reduce)"


def test_a_wrong_sum_is_a_failure():
    result = collectives.judge([ChildOutput(done("barrier")), ChildOutput(done("barrier", right=False))], "nccl")
    assert (result.status, result.summary) == ("failure", "barrier on nccl gives a wrong result on 1 rank (rank 1)")
    assert "NCCL_DEBUG=INFO" in result.remedies[0].command


def test_collectives_that_cannot_be_tried(scope):
    scope._torch = type("Facts", (), {"facts": {"gloo": True, "nccl": False}, "reason": ""})()
    assert collectives.collectives_nccl(scope).summary == "this torch has no NCCL"
    scope._torch.facts["nccl"] = True
    assert collectives.collectives_nccl(scope).summary == "torch sees no CUDA device"
