"""What the elastic agent is given: a store on loopback, the ranks' log files, their environment."""

import os

from diagnostics.contract.artifacts import RunPaths
from dtk.launch.local import LoopbackRendezvous, RankLogs, rank_environment


def test_the_rendezvous_is_a_store_of_this_process_for_one_node():
    rendezvous = LoopbackRendezvous(0, "run-7")
    info = rendezvous.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert (info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) == (
        "127.0.0.1",
        rendezvous.store.port,
    )
    info.store.set("key", "value")
    assert rendezvous.store.get("run-7/key") == b"value", "restarts of one run share it"


def test_each_rank_of_an_attempt_has_its_own_files(tmp_path):
    logs = RankLogs(RunPaths(tmp_path), attempt=3)
    assert logs.root_log_dir == str(tmp_path / "logs")
    files = logs.reify({local: {"RANK": str(4 + local)} for local in (0, 1)})
    folder = tmp_path / "logs" / "attempt_3" / "rank_00005"
    assert files.stdouts[1] == str(folder / "stdout.log") and files.stderrs[1] == str(folder / "stderr.log")
    assert files.error_files[1] == str(folder / "elastic_error.json") and folder.is_dir()
    assert files.tee_stdouts == {0: "", 1: ""}, "nothing reaches the terminal by itself"


def test_the_users_own_variables_win_and_all_is_as_before_afterwards(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("SAME", "1")
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    before = dict(os.environ)
    with rank_environment({"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring", "SAME": "1"}) as overruled:
        assert (os.environ["NCCL_DEBUG"], os.environ["NCCL_ALGO"]) == ("INFO", "Ring")
        assert overruled == {"NCCL_DEBUG": "INFO"}
    assert dict(os.environ) == before
