"""A cause that is a setting is placed at the line that made it."""

from pathlib import Path

import pytest

from diagnostics.contract.findings import Finding, Remedy, Text, Where, text_of
from diagnostics.contract.origins import Origins, Setting, dumps
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, RunEvidence
from diagnostics.tree.settings import mark_injected, place

FILE = Setting("file", "conf/strategy/fsdp.yaml:4", "true")
KEYS = {
    "strategy.reshard_after_forward": [FILE, Setting("file", "conf/fault/no_reshard.yaml:15", "false")],
    "strategy.bucket_cap_mb": [FILE, Setting("typed", "strategy.bucket_cap_mb=1000")],
    "nccl.variables.NCCL_SOCKET_IFNAM": [Setting("file", "conf/fault/nccl_typo.yaml:16", "eth0")],
    "train.micro_batch_size": [Setting("file", "conf/fault/sync_every_micro_batch.yaml:17", "1")],
    "nccl.buffer": [Setting("default", "")],
}


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    (tmp_path / "origins.json").write_text(dumps(Origins(KEYS, {}, dict.fromkeys(KEYS, 1))))
    run = RunEvidence(tmp_path, None, {}, {}, {}, {}, {}, {})
    return Evidence(tmp_path, Limits(), run=run)


def finding(change, status="confirmed", kind="override", where=()):
    return Finding(
        cause="memory.no_reshard",
        status=status,
        facts=Text("...", remedies=(Remedy(kind, change, "..."),)),
        where=where,
    )


def test_the_file_that_set_it_last(evidence):
    (item,) = place(evidence, [finding("strategy.reshard_after_forward=true")])
    assert item.where == (
        Where(None, "conf/fault/no_reshard.yaml", 15, "", "sets strategy.reshard_after_forward to false"),
    )


def test_a_key_that_is_to_go(evidence):
    (item,) = place(evidence, [finding("'~nccl.variables.NCCL_SOCKET_IFNAM' nccl.variables.NCCL_SOCKET_IFNAME=eth0")])
    assert (item.where[0].file, item.where[0].line) == ("conf/fault/nccl_typo.yaml", 16)


def test_what_no_override_fixes_is_fixed_without_the_planted_fault(evidence):
    evidence.run.config = {"fault": {"name": "leak"}}
    code, override = finding("delete it", kind="code"), finding("train.steps=3")
    marked = mark_injected(evidence, [code, override, finding("delete it", "ruled_out", "code")])
    assert [[remedy.change for remedy in text_of(item).remedies] for item in marked] == [
        ["fault=none", "delete it"],
        ["train.steps=3"],
        ["delete it"],
    ]
    evidence.run.config = {"fault": {"name": "none"}}
    assert mark_injected(evidence, [code]) == [code]


@pytest.mark.parametrize(
    "item",
    [
        finding("strategy.bucket_cap_mb=25"),  # typed: it stands in no file
        finding("train.micro_batch_size=4"),  # helps, but is no cause
        finding("nccl.buffer=4"),  # a default
        finding("train.steps=3"),  # unknown
        finding("fault=none"),
        finding("it's no override"),
        finding("strategy.reshard_after_forward=true", status="undecided"),
        finding("strategy.reshard_after_forward=true", kind="code"),
        finding("strategy.reshard_after_forward=true", where=(Where(0, "train.py", 3),)),
    ],
)
def test_others_stay_as_they_are(evidence, item):
    assert place(evidence, [item]) == [item]


@pytest.mark.parametrize("content", [None, "", "{", "[" * 10_000, '{"schema_version": 1, "choices": {}, "keys": 3}'])
def test_without_readable_origins_it_stands_without_a_place(evidence, content):
    file = evidence.run.root / "origins.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    item = finding("strategy.reshard_after_forward=true")
    assert place(evidence, [item]) == [item]
