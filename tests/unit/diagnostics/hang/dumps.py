"""Flight dumps of jobs that are played through: each rank has a program of calls, and blocks as a real one would."""

import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from diagnostics.causes.registry import Registry, built_in
from diagnostics.contract.findings import Finding, Remedy, text_of
from diagnostics.diagnose import decide
from diagnostics.evidence import safe_pickle
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, rank_in_name
from diagnostics.evidence.readers.flight import FlightFile
from diagnostics.tree.arbitrate import arbitrate, settled
from diagnostics.tree.load import built_in as built_in_trees

START_NS = 1_790_000_000_000_000_000
TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
AUTOGRAD = TORCH.replace("distributed/distributed_c10d.py", "autograd/graph.py")


@dataclass
class Op:
    """One call of a rank's program."""

    name: str = "all_reduce"
    size: int = 8
    line: int = 10
    group: str = "0"
    dtype: str = "Float"
    function: str = "train"
    peer: int | None = None
    """Of send and recv, a global rank."""
    caller: int = 90
    """Line of `main` from which `function` is called."""
    takes_s: float = 0.0
    """Before the call, on the host."""
    wait: bool = True
    """False: the host continues, as with NCCL."""
    backward: bool = False
    """Whether autograd makes the call, in the user's line that calls `backward`."""


@dataclass
class Job:
    """Programs of all ranks and the groups they use."""

    programs: dict[int, list[Op]]
    groups: dict[str, list[int]] = field(default_factory=dict)
    backend: str = "nccl"
    ring: dict[int, int] = field(default_factory=dict)
    """Rank -> entries kept."""
    frozen: tuple[int, ...] = ()
    """Ranks whose device completes nothing after the first call."""
    nobody_completes: int | None = None
    """Position of the default group that completes on no rank."""
    stacks: bool = True
    timed: bool = False
    """Whether the recorder knows which calls a device has begun (TORCH_NCCL_ENABLE_TIMING=1)."""
    descriptions: dict[str, str] = field(default_factory=dict)

    def members(self, group: str) -> list[int]:
        return self.groups.get(group) or sorted(self.programs)

    def _own(self, rank: int) -> list[str]:
        """The groups of a rank in order of creation, which is how it numbers them."""
        return ["0", *(name for name in sorted(self.groups, key=int) if name != "0" and rank in self.groups[name])]

    def _describe(self, group: str) -> str:
        return "default_pg" if group == "0" else self.descriptions.get(group, "undefined")

    def play(self) -> dict[int, dict[str, Any]]:
        """Run until nobody can move; the dump of each rank."""
        at = dict.fromkeys(self.programs, 0)
        issued: dict[tuple[str, int], set[int]] = {}
        entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in self.programs}
        counts: dict[tuple[int, str], int] = {}
        clock = dict.fromkeys(self.programs, 0.0)
        blocked: dict[int, dict[str, Any]] = {}
        moved = True
        while moved:
            moved = False
            for rank in sorted(self.programs):
                entry = blocked.get(rank)
                if entry is not None:
                    if not self._complete(entry, rank, issued, entries, clock):
                        continue
                    del blocked[rank]
                    moved = True
                if at[rank] < len(self.programs[rank]):
                    op = self.programs[rank][at[rank]]
                    at[rank] += 1
                    clock[rank] += op.takes_s + 0.01
                    entry = self._issue(rank, op, counts, clock[rank])
                    entries[rank].append(entry)
                    issued.setdefault((op.group, entry["_seq"]), set()).add(rank)
                    moved = True
                    if op.wait:
                        blocked[rank] = entry
        for rank in self.programs:
            for entry in entries[rank]:
                self._complete(entry, rank, issued, entries, clock)
            pending = [entry for entry in entries[rank] if not entry["retired"]]
            if self.timed and rank not in self.frozen and pending:
                pending[0]["state"] = "started"  # A device runs its calls in order.
        return {rank: self._dump(rank, entries[rank]) for rank in self.programs}

    def _issue(self, rank: int, op: Op, counts: dict[tuple[int, str], int], now_s: float) -> dict[str, Any]:
        p2p = op.peer is not None
        key = (rank, f"{op.group} p2p" if p2p else op.group)
        counts[key] = counts.get(key, 0) + 1
        name = f"{self.backend}:{op.name}"
        members = self.members(op.group)
        if p2p:
            arrow = "->" if op.name == "send" else "<-"
            name += f" {members.index(rank)}{arrow}{members.index(op.peer or 0)}"
        frames = [
            {"name": op.name, "filename": TORCH, "line": 3245},
            *([{"name": "_engine_run_backward", "filename": AUTOGRAD, "line": 824}] if op.backward else []),
            {"name": op.function, "filename": "/job/train.py", "line": op.line},
            {"name": "main", "filename": "/job/train.py", "line": op.caller},
        ]
        sizes = [] if op.name == "barrier" else [[op.size]]
        return {
            "_seq": counts[key] if not p2p else -1,
            "_op": op,
            "frames": frames if self.stacks else [],
            "pg_id": self._own(rank).index(op.group),
            "process_group": (op.group, self._describe(op.group)),
            "collective_seq_id": 0 if p2p else counts[key],
            "p2p_seq_id": counts[key] if p2p else 0,
            "op_id": counts[key],
            "profiling_name": name,
            "time_created_ns": START_NS + int(now_s * 1e9),
            "input_sizes": sizes,
            "input_dtypes": [op.dtype] if sizes else [],
            "output_sizes": sizes,
            "output_dtypes": [op.dtype] if sizes else [],
            "state": "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": False,
            "timeout_ms": 600_000,
            "is_p2p": p2p,
        }

    def _complete(
        self,
        entry: dict[str, Any],
        rank: int,
        issued: dict[tuple[str, int], set[int]],
        entries: dict[int, list[dict[str, Any]]],
        clock: dict[int, float],
    ) -> bool:
        if entry["retired"]:
            return True
        op = entry["_op"]
        if op.peer is not None:
            text = "recv" if op.name == "send" else "send"
            mine = [item for item in entries[rank] if (item["_op"].name, item["_op"].peer) == (op.name, op.peer)]
            halves = [item for item in entries[op.peer] if (item["_op"].name, item["_op"].peer) == (text, rank)]
            done = len(halves) > next(place for place, item in enumerate(mine) if item is entry)
        else:
            members = self.members(op.group)
            seq = entry["_seq"]
            done = issued[op.group, seq] >= set(members) and not (op.group == "0" and seq == self.nobody_completes)
            met = [
                item
                for member in members
                for item in entries[member]
                if item["_op"].group == op.group and item["_seq"] == seq
            ]
            same = {(item["profiling_name"], str(item["input_sizes"]), str(item["input_dtypes"])) for item in met}
            done = done and len(same) == 1 and not (rank in self.frozen and entry is not entries[rank][0])
            if done:
                clock[rank] = max(clock[rank], *((item["time_created_ns"] - START_NS) / 1e9 for item in met))
        if done:
            entry.update(retired=True, state="completed" if self.backend == "nccl" else "scheduled")
        return done

    def _dump(self, rank: int, entries: list[dict[str, Any]]) -> dict[str, Any]:
        status: dict[str, dict[str, int]] = {}
        for number, entry in enumerate(entries):
            entry["record_id"] = number
            item = status.setdefault(
                str(entry["pg_id"]),
                {"last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1},
            )
            seq = max(entry["collective_seq_id"], entry["p2p_seq_id"])
            item["last_enqueued_collective"] = max(item["last_enqueued_collective"], seq)
            if entry["retired"]:
                item["last_completed_collective"] = max(item["last_completed_collective"], seq)
        kept = entries[-self.ring[rank] :] if rank in self.ring else entries
        mine = [name for name, members in {**self.groups, "0": self.members("0")}.items() if rank in members]
        if self.backend == "nccl":
            config = {
                name: {
                    "name": name,
                    "desc": self._describe(name),
                    "ranks": str(self.members(name)),
                }
                for name in mine
            }
        else:
            ranks = str(self.members("0")) if mine == ["0"] else "[]"
            config = {"": {"name": "", "desc": "", "ranks": ranks}}
        plain = [{key: value for key, value in entry.items() if not key.startswith("_")} for entry in kept]
        version = {"comm_lib_version": "2.27.3" if self.backend == "nccl" else ""}
        return {"version": "2.10", "pg_config": config, **version, "pg_status": status, "entries": plain}


def as_json(dump: dict[str, Any]) -> bytes:
    """torch's JSON form: no frames, lists, strings for counters, zeros for unknown times, no key for no entries."""
    value = {**dump, "nccl_comm_state": {}}
    value["pg_status"] = {
        key: {name: str(count) for name, count in pg_status.items()} for key, pg_status in dump["pg_status"].items()
    }
    value["entries"] = [
        {
            **{key: item for key, item in entry.items() if key != "frames"},
            "time_discovered_started_ns": 0,
            "process_group": list(entry["process_group"]),
        }
        for entry in dump["entries"]
    ]
    if not value["entries"]:
        del value["entries"]
    return json.dumps(value).encode()


def write(folder: Path, job: Job, without: tuple[int, ...] = (), name: str = "tr_{}", form: str = "pickle") -> None:
    """The dumps of a job, except those of some ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in job.play().items():
        if rank not in without:
            data = pickle.dumps(dump, protocol=2) if form == "pickle" else as_json(dump)
            (folder / name.format(rank)).write_bytes(data)


def set_clock(folder: Path, ranks: tuple[int, ...], seconds: float) -> None:
    """Moves all times that these ranks tell, as a clock that is ahead does, or another job that ran later."""
    for rank in ranks:
        path = folder / f"tr_{rank}"
        dump = safe_pickle.loads(path.read_bytes(), Limits())
        for entry in dump["entries"]:
            entry["time_created_ns"] += int(seconds * 1e9)
        path.write_bytes(pickle.dumps(dump))


def evidence(folder: Path, **more: Any) -> Evidence:
    """Every file in the folder as a dump, in the order in which the folder lists them."""
    limits = Limits()
    files = [FlightFile(path, path.name, rank_in_name(path), limits) for path in folder.iterdir()]
    return Evidence(folder, limits, files={"flight": files}, **more)


class Shown(Finding, frozen=True):
    """A finding together with its text."""

    @property
    def summary(self) -> str:
        return text_of(self).summary

    @property
    def measured(self) -> str:
        return text_of(self).measured

    @property
    def missing(self) -> str:
        return text_of(self).missing

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        return text_of(self).remedies


def decided(evidence: Evidence) -> tuple[list[Shown], dict[str, Any]]:
    """The findings of all causes of hangs, and the measures. Every text is made once."""
    causes = tuple(cause for cause in built_in() if cause.id.startswith("hang."))
    measures: dict[str, Any]
    findings, measures = decide(Registry(causes), evidence, lambda _: None)
    assert not [problem for problem in evidence.problems if problem.kind == "cause"], evidence.problems
    shown = [Shown(**structs.asdict(finding)) for finding in settled(built_in_trees(), findings)]
    assert all(finding.summary for finding in shown)
    return shown, measures


def detect(evidence: Evidence) -> list[Shown]:
    return decided(evidence)[0]


def confirmed(evidence: Evidence) -> list[tuple[str, tuple[int, ...]]]:
    """Cause without `hang.` and ranks of the confirmed findings that no other one explains."""
    return [(finding.cause.removeprefix("hang."), finding.ranks) for finding in unexplained(evidence)]


def unexplained(evidence: Evidence) -> list[Shown]:
    """The confirmed findings that are no consequence of another one, by the relations of the causes."""
    shown = detect(evidence)
    consequences = arbitrate(built_in_trees(), shown).explained
    return [item for n, item in enumerate(shown) if item.status == "confirmed" and n not in consequences]


def diagnose(folder: Path, job: Job, **options: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Write and diagnose."""
    write(folder, job, **options)
    return confirmed(evidence(folder, world_size=len(job.programs)))
