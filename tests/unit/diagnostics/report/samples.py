"""Reports made by the real pipeline from hand-made findings, for the tests of every form of the report."""

from pathlib import Path
from typing import Any

from diagnostics.contract.findings import Cost, EvidenceItem, Finding, Group, Remedy, Text, Where
from diagnostics.diagnose import conclude
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact, Problem, RankError
from diagnostics.evidence.readers import watch
from diagnostics.report import html, markdown, terminal
from diagnostics.report.diagnosis import document
from diagnostics.report.model import Report
from diagnostics.tree.arbitrate import all_leaves
from diagnostics.tree.load import built_in


def shown(report: Report, *, columns: int | None, colour: bool, verbose: bool = False, page: str = "") -> str:
    """The report in a terminal."""
    return terminal.render(document(report, brief=not verbose, page=page), columns=columns, colour=colour)


def as_page(report: Report) -> str:
    return html.render(document(report))


def as_markdown(report: Report) -> str:
    return markdown.render(document(report))


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&|`[x](javascript:1)\x1b[31m\u202e\x00"
"""What a file or function name in evidence may look like."""


def finding(cause: str, **values: Any) -> Finding:
    """A confirmed finding; its words may be among the values."""
    words = {name: values.pop(name) for name in ("summary", "measured", "missing", "remedies") if name in values}
    facts = Text(**{"summary": f"about {cause}", **words})
    return Finding(**{"cause": cause, "status": "confirmed", "facts": facts, **values})


def report(*findings: Finding, measures: dict[str, Any] | None = None, **values: Any) -> Report:
    """A report on the findings; every other cause is ruled out."""
    ended = [LogFact(watch.ENDED_WELL, None, "watch.json", 0, "the command ended with exit code 0")]
    expected = {"world_size": 4} | ({} if findings or measures else {"facts": ended}) | values
    evidence = Evidence(root=Path("job"), limits=Limits(), **expected)
    trees = built_in()
    named = {finding.cause for finding in findings}
    others = [
        Finding(cause=cause, status="ruled_out", facts=Text("not seen", "0 of 41 positions differ"))
        for cause in all_leaves(trees)
        if cause not in named
    ]
    return conclude(evidence, trees, [*findings, *others], measures or {}, "runs/job")


def mismatch(name: str = "/home/me/project/train.py") -> Finding:
    """Rank 1 calls broadcast where the others call all_reduce."""
    where = (
        Where(1, name, 88, "log_metrics", "broadcast [1] int64"),
        *(Where(rank, name, 61, "train_step", "all_reduce [1048576] float32") for rank in (0, 2, 3)),
    )
    return finding(
        "hang.collective_mismatch",
        summary="At position 41 of the default group rank 1 issued broadcast [1] int64 from log_metrics, "
        "while ranks 0, 2 and 3 issued all_reduce [1048576] float32 from train_step; none of them can complete.",
        confidence=0.97,
        ranks=(1,),
        victims=(0, 2, 3),
        group=Group("0", (0, 1, 2, 3), "default_pg"),
        position=41,
        step=12,
        where=where,
        cost=Cost(305.2, "s blocked"),
        evidence=(
            EvidenceItem("flight", "flight/rank_00001.pickle", "position 41: broadcast, never completed"),
            EvidenceItem("log", f"logs/{name[:60]}", "Watchdog caught collective operation timeout", 812),
        ),
        remedies=(
            Remedy("code", f"{Path(name).name}:88: call broadcast on every rank, or on none", "all ranks must agree"),
            Remedy("override", "train.log_every=0", "logging is where the ranks part", "305 s"),
        ),
        measured="1 of 4 ranks differs at position 41",
    )


def stacked(name: str = "/home/me/project/train.py", ranks: int = 3) -> dict[str, Any]:
    """Measures of memory over time; the last rank has the highest peak, and a request of it failed."""
    kinds = ["parameters", "activations", "not attributed", "reserved, in no tensor"]

    def over_time(rank: int) -> dict[str, Any]:
        sizes = [(n % 20 + rank) * 2**28 for n in range(100)]
        at = sizes.index(max(sizes))
        parts = dict(zip(kinds, (2**30, sizes[at], 2**27), strict=False))
        return {
            "of": "tensors", "from": "snapshot", "file": name, "unit": "s", "kinds": kinds,
            "rows": [[n / 10, 2**30, size, 2**27, 2**29] for n, size in enumerate(sizes)],
            "peak": {"time": at / 10, "bytes": sum(parts.values()), "kinds": parts, "step": 7, "region": name,
                     "where": {"file": name, "line": 88, "function": name}},
            "steps": [[0.0, 6], [1.0, 7], [1.01, 8]],
            "computed": ["parameters"],
            "capacity_bytes": 8 * 2**30,
            "failed": {"time": 9.5, "bytes": 3 * 2**30} if rank == ranks - 1 else None,
            "peak_elsewhere_bytes": None,
            "notes": [f"about {name}"],
        }  # fmt: skip

    records: dict[str, Any] = {}
    for rank in range(ranks):
        text = over_time(rank)
        curve = [[row[0], sum(row[1:4])] for row in text["rows"]]
        records[str(rank)] = {"peak_bytes": text["peak"]["bytes"], "curve": curve, "over_time": text}
    return {"memory": {"kind_of": {"logits": "activations"}, "ranks": records}}


def full(name: str = "/home/me/project/train.py") -> Report:
    """A hang with everything that a report can hold."""
    cells = [
        {
            "position": position,
            "op": "broadcast" if (rank, position) == (1, 41) else "all_reduce",
            "signature": "[1] int64" if (rank, position) == (1, 41) else "[1048576] float32",
            "state": "completed" if position < 41 else "scheduled",
            "where": f"{name}:61 in step",
            "place": f"{Path(name).name}:61",
        }
        for rank in range(4)
        for position in range(34, 42)
    ]
    timeline = {
        "group": "default_pg",
        "positions": list(range(34, 42)),
        "ranks": {str(rank): cells[rank * 8 : rank * 8 + 8] for rank in range(4)},
    }
    memory = {
        str(rank): {
            "peak_bytes": 14.8 * 2**30,
            "curve": [[t / 10, (8 + rank / 4 + (t % 20) / 3) * 2**30] for t in range(200)],
            "categories": {"activations": 6 * 2**30, "parameters": 3 * 2**30, "gradients": 3 * 2**30, name: 2**30},
        }
        for rank in range(4)
    }
    overlap = {
        str(rank): {
            "compute_ms": 120.0 - 5 * rank,
            "communication_ms": 60.0 + 5 * rank,
            "overlapped_ms": 41.0,
            "exposed_ms": 19.0 + 5 * rank,
            "idle_ms": 12.0,
            "wall_ms": 151.0,
            "overlap_percent": 63.2,
        }
        for rank in range(4)
    }
    bucket = finding(
        "overlap.small_buckets",
        summary="412 buckets of 0.1 MiB are reduced in each step.",
        ranks=(0, 1, 2, 3),
        cost=Cost(41.0, "ms per step"),
        remedies=(Remedy("override", "strategy.bucket_cap_mb=25", "fewer, larger reductions", "41 ms of 180 ms"),),
        measured="exposed 41 ms of 180 ms",
    )
    closed = finding(
        "hang.rank_raised", ranks=(0, 2, 3), victims=(), summary="Connection closed by peer", group=Group("0", ())
    )
    facts = Text("No pg_status in the dumps.", missing="record=full")
    undecided = Finding(cause="hang.device_stall", status="undecided", facts=facts)
    return report(
        mismatch(name),
        bucket,
        closed,
        undecided,
        measures={"hang": {"timeline": timeline}, "memory": {"ranks": memory}, "overlap": {"ranks": overlap}},
        problems=[Problem("flight", name, "no dump: the pickle names a global (os.system) and was refused")],
        errors=[RankError(0, "logs/0", 3, "RuntimeError", "Connection closed by peer")],
    )
