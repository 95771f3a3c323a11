"""The example of the guide is what the renderer prints for such a finding."""

import re
from pathlib import Path

from diagnostics.contract.findings import EvidenceItem, Finding, Group, Remedy, Text, Where
from diagnostics.diagnose import conclude
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from diagnostics.report.model import Report
from diagnostics.tree.arbitrate import all_leaves
from diagnostics.tree.load import built_in
from tests.unit.diagnostics.report.samples import shown as render

ROOT = Path(__file__).resolve().parents[4]


def printed() -> str:
    """Return the example as it stands in the guide."""
    block = re.search(
        r"<!-- example: report -->\n```\n(.*?)```", (ROOT / "docs" / "diagnose.md").read_text(), re.DOTALL
    )
    assert block is not None
    return block[1]


def example() -> Report:
    """As `dtk diagnose` found it in what a script of four ranks left behind under `dtk watch`."""
    finding = Finding(
        cause="hang.conditional_collective",
        status="confirmed",
        confidence=0.85,
        facts=Text(
            "Only rank 1 calls broadcast [1] int64 root 1 (#26, train.py:9); ranks 0, 2 and 3 are in "
            "all_reduce [1] float32 SUM (train.py:11).",
            remedies=(
                Remedy(
                    "code",
                    "make /job/train.py:9 unconditional, so that all ranks or none call broadcast [1] int64 root 1",
                    "a collective that only some ranks reach leaves the others waiting",
                ),
            ),
        ),
        ranks=(1,),
        victims=(0, 2, 3),
        group=Group("0", (0, 1, 2, 3), "default_pg"),
        position=26,
        where=(
            Where(1, "/job/train.py", 9, "log_metrics", "broadcast [1] int64 root 1"),
            Where(0, "/job/train.py", 11, "log_metrics", "all_reduce [1] float32 SUM"),
        ),
        evidence=(
            EvidenceItem("flight", "flight/rank_00000.ring", "rank 0: #26 is all_reduce [1] float32 SUM"),
            EvidenceItem("flight", "flight/rank_00001.ring", "rank 1: #26 is broadcast [1] int64 root 1"),
        ),
    )
    trees = built_in()
    ruled_out, undecided = 18, 66
    others = sorted(set(all_leaves(trees)) - {finding.cause})
    hang, memory = ([cause for cause in others if cause.startswith(family)] for family in ("hang.", "memory."))
    out = [*hang, *memory][:ruled_out]
    unknown = [cause for cause in others if cause not in {*hang, *out}][:undecided]
    decided = [
        *(Finding(cause=cause, status="ruled_out", facts=Text("Not recorded.")) for cause in out),
        *(Finding(cause=cause, status="undecided", facts=Text("Not recorded.")) for cause in unknown),
    ]
    return conclude(Evidence(Path("job"), Limits(), world_size=4), trees, [finding, *decided], {}, "job")


def test_the_example_of_the_guide_is_what_is_printed() -> None:
    assert printed() == render(example(), columns=119, colour=False)


def test_the_answer_is_in_its_first_five_lines() -> None:
    five = render(example(), columns=119, colour=False).splitlines()[:5]
    assert [line.split()[0] for line in five] == ["HUNG:", "blame", "where", "fix", "what"]
