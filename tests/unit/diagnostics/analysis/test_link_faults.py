"""Links between ports: completions that failed, ports that went down, and what all lines have in common."""

from pathlib import Path

import pytest

from diagnostics.analysis.stall.explain import explain
from diagnostics.causes.network.link_fault import RETRY_EXCEEDED, LinkFaults, link_faults
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact
from tests.unit.diagnostics.analysis.calls import fact


def faults(*facts: LogFact) -> LinkFaults:
    return link_faults(explain(Evidence(Path(), Limits(), facts=list(facts))))


def completion(status: int = 12, host: str = "a", peer: str = "10.0.0.2", **more: str) -> LogFact:
    return fact("nccl_ib_error", 0, status=status, process=f"{host}:17", peer=f"{peer}<41>", **more)


@pytest.mark.parametrize("status", [5, 12, 13, 4, None])
def test_only_some_statuses_speak_of_the_way_between_two_ports(status: int) -> None:
    found = faults(completion(status))
    assert len(found.completions) == (status in RETRY_EXCEEDED)
    assert found.without == "followed"


def test_ports_and_links() -> None:
    failed, soft = fact("nccl_ib_async", 0, failed=True, device="mlx5_0"), fact("nccl_ib_async", 0, device="mlx5_0")
    found = faults(failed, soft, fact("link_down", device="eth0"), fact("nccl_net", 0), fact("nccl_result", 0))
    assert (len(found.ports), len(found.down), len(found.completions)) == (1, 1, 0)
    alone = faults(failed, soft, fact("link_down", device="eth0"))
    assert (len(alone.ports), alone.without) == (0, "event")


def test_pairs_of_hosts_the_most_frequent_first() -> None:
    found = faults(completion(), completion(host="b", peer="10.0.0.9"), completion(host="b", peer="10.0.0.9"))
    assert found.pairs == (("b", "10.0.0.9"), ("a", "10.0.0.2"))


@pytest.mark.parametrize(
    ("facts", "common"),
    [
        ([completion(device="mlx5_0")], ""),
        ([completion(device="mlx5_0"), completion(device="mlx5_0", host="b")], "mlx5_0"),
        ([completion(host="a"), completion(host="b")], "10.0.0.2"),
        ([completion(peer="10.0.0.2"), completion(peer="10.0.0.3")], "a"),
        ([completion(host="a", peer="10.0.0.2"), completion(host="b", peer="10.0.0.3")], ""),
        ([completion(local_gid="fe80::1", peer="x"), completion(local_gid="fe80::1", peer="y", host="b")], "fe80::1"),
    ],
)
def test_what_all_lines_share(facts: list[LogFact], common: str) -> None:
    assert faults(*facts).common == common
