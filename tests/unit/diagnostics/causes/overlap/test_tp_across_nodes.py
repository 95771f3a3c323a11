"""Tensor-parallel groups lie across nodes."""

import json

import pytest
import yaml

from diagnostics.causes.overlap import tp_across_nodes
from diagnostics.contract.findings import text_of
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.causes.overlap.layouts import across_nodes, decide


@pytest.mark.parametrize(
    ("node_ranks", "tp", "status"), [(2, 4, "confirmed"), (4, 4, "ruled_out"), (2, 2, "ruled_out")]
)
def test_tensor_parallelism_over_nodes(tmp_path, node_ranks, tp, status):
    mesh_fits = {**across_nodes(node_ranks)}
    if tp == 2:
        mesh_fits["config.yaml"] = yaml.safe_dump({"parallel": {"tp": 2}})
        about = json.loads(mesh_fits["manifest.json"])
        about["mesh"] |= {"tp": 2, "dp_shard": 2}
        mesh_fits["manifest.json"] = json.dumps(about)
    finding = decide(tp_across_nodes, mesh_fits, tmp_path)
    assert finding.status == status
    if status == "confirmed":
        assert text_of(finding).remedies[0].change == "parallel.tp=2"
        assert finding.cost.value == pytest.approx(24 * 0.2, rel=0.1)


def test_tensor_parallelism_over_nodes_by_placement(tmp_path):
    leftovers = {**across_nodes(2), "config.yaml": yaml.safe_dump({"parallel": {"tp": 2}})}
    about = json.loads(leftovers["manifest.json"])
    about["mesh"] |= {"tp": 2, "dp_shard": 2, "order": ["pp", "tp", "dp_replicate", "dp_shard", "cp"]}
    finding = decide(tp_across_nodes, {**leftovers, "manifest.json": json.dumps(about)}, tmp_path)
    assert finding.status == "confirmed"
    assert text_of(finding).remedies[0].change == "parallel.placement=tp"


def test_without_the_nodes_of_the_ranks_it_is_open(tmp_path):
    traces = {name: content for name, content in across_nodes().items() if name.startswith("traces")}
    finding = decide(tp_across_nodes, traces, tmp_path)
    assert finding.status == "undecided" and "manifest" in text_of(finding).missing


EXAMPLES = {"overlap.tp_across_nodes": Example(across_nodes, (0, 1, 2, 3))}
