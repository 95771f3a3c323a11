"""Small programs for the matcher: what each rank calls, written as one would say it."""

from array import array

from diagnostics.contract.findings import Group
from diagnostics.evidence.calls import Wire
from dtk.preflight.calls import End, Entry, Program, Record

Step = tuple[object, ...]
"""("call", group, op, amount), ("send" | "recv", group, peer by rank in the group), or ("wait", number of the call)."""


def entry(group: int, op: str, amount: int = 1, p2p: str = "", peer: int | None = None, line: int = 1) -> Entry:
    return Entry(
        group=group,
        op=op,
        wire=Wire(op, (amount,) if amount >= 0 else (), ("float32",), reduce_op="SUM"),
        user_op="",
        dtype="float32",
        sizes=f"[[{amount}]]",
        p2p=p2p,  # type: ignore[arg-type]
        peer=peer,
        tag=0,
        site=f"/job/train.py:{line}\ttrain",
        stack=f"/job/train.py:{line}\ttrain",
        region="",
        step=1,
    )


def record(rank: int, groups: list[Group], steps: list[Step], kind: str = "finished") -> Record:
    entries: dict[Entry, int] = {}
    events = array("i")
    for line, (what, *rest) in enumerate(steps, 10):
        if what == "wait":
            events.append(-1 - int(rest[0]))  # type: ignore[call-overload]
            continue
        if what == "call":
            group, op, amount = rest
            item = entry(int(group), str(op), int(amount), line=line)  # type: ignore[call-overload]
        else:
            group, peer = rest
            item = entry(int(group), str(what), p2p=str(what), peer=int(peer), line=line)  # type: ignore[call-overload]
        events.append(entries.setdefault(item, len(entries)))
    return Record(rank, Program(tuple(entries), events.tobytes()), tuple(groups), End(kind))  # type: ignore[arg-type]


def blocking(*calls: Step) -> list[Step]:
    """Each call waited for at once."""
    return [step for number, call in enumerate(calls) for step in (call, ("wait", number))]
