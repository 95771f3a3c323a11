"""What the example of a cause leaves behind: files, as `dtk diagnose` finds them in a folder."""

import json
import re
from collections.abc import Mapping
from typing import Any

from diagnostics.contract.causes import Example
from tests.trace_scenarios import RANKS, SCENARIOS, Scenario
from tests.trace_timeline import draw
from tests.unit.diagnostics.causes.hang.examples import Entry, dumps

_HARDWARE = {"interfaces": ["lo", "eth0"], "infiniband": ["mlx5_0"], "nvlink": True}
_CALL = re.compile(r"(?P<op>\w+) \[(?P<size>\d+)\](?P<pending> pending)?(?: x(?P<times>\d+))?")


def leftovers(cause: str, example: Example) -> Mapping[str, str]:
    """Return relative path -> content of the files of a job with this example; a fault leaves none until it is run."""
    text = example.text
    if example.kind == "log":
        return {"train.log": text}
    if example.kind == "variables":
        return environment(dict(line.split("=", 1) for line in text.split()))
    if example.kind == "calls":
        return {name: str(content) for name, content in dumps(dict(map(_calls, text.splitlines()))).items()}
    if example.kind == "timeline":
        scenario = scenario_of(cause)
        assert text == timeline(scenario), f"\n{timeline(scenario)}"
        return scenario.build().files()
    if example.kind == "files":
        names, contents = (
            re.findall(r"^--- (.+)$", text, re.MULTILINE),
            re.split(r"^--- .+\n", text, flags=re.MULTILINE),
        )
        assert contents[0] == ""
        return dict(zip(names, contents[1:], strict=True))
    return {}


def environment(variables: Mapping[str, str], nodes: int = 2) -> dict[str, str]:
    """Return the records of a run with these variables."""
    manifest: dict[str, Any] = {
        "schema_version": 1,
        "run_id": "example",
        "environment": dict(variables),
        "hardware": _HARDWARE,
        "topology": {"world_size": 2 * nodes, "nproc": 2, "nodes": nodes},
    }
    return {"manifest.json": json.dumps(manifest), "config.yaml": "launcher:\n  backend: nccl\n"}


def scenario_of(cause: str) -> Scenario:
    """Return the simulated job of a cause of slow steps; of several the one that all ranks share."""
    return max((item for item in SCENARIOS if item.cause == cause), key=lambda scenario: len(scenario.ranks))


def timeline(scenario: Scenario) -> str:
    """Return a step of the simulated job: of one rank that stands for all, or of the culprit and of a victim."""
    return draw(scenario.build(), scenario.ranks[:1] if scenario.ranks == RANKS else (*scenario.ranks, 0))


def _calls(line: str) -> tuple[int, list[Entry]]:
    """Read `rank 0: all_reduce [1024] x3, all_gather [64] pending`; each call is of a line of its own."""
    head, _, calls = line.partition(": ")
    entries = []
    for number, text in enumerate(calls.split(", "), 11):
        match = _CALL.fullmatch(text)
        assert match, text
        entry = Entry(match["op"], int(match["size"]), number, done=not match["pending"])
        entries += [entry] * int(match["times"] or 1)
    return int(head.removeprefix("rank ")), entries
