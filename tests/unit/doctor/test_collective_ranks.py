"""One rank of the doctor's trial of collectives, alone: it says what it is about to do before it does it."""

import json

import torch.distributed as dist

from dtk.doctor.collective_ranks import try_all
from dtk.parallel.verified import KINDS
from tests.dist.ranks import free_port


def test_every_kind_is_begun_done_and_right(monkeypatch, capsys):
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**place, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    try:
        try_all("gloo", 20.0)
    finally:
        dist.destroy_process_group()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"begin": "meeting"} and lines[1] == {"met": 1} and lines[-1] == {"begin": "leaving"}
    kinds = [kind for kind in KINDS if kind != "send_recv"]
    assert [line["begin"] for line in lines[2:-1:2]] == [line["done"] for line in lines[3:-1:2]] == kinds
    assert all(line["right"] and line["ms"] >= 0 for line in lines[3:-1:2])
