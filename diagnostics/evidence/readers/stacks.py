"""Files of nothing but stacks: faulthandler's dumps and py-spy's."""

from pathlib import Path

from diagnostics.evidence.limits import Limits, whole
from diagnostics.evidence.model import Stacks
from diagnostics.evidence.reader import Contents, Reader
from diagnostics.evidence.stacks.dumps import FAULT_THREAD, SPY_PROCESS, SPY_THREAD, WHEN, Assembler


def recognise(head: bytes) -> bool:
    """Whether a file that begins so is a dump of stacks and nothing else."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines() if line.strip()][:4]
    if not lines:
        return False
    if SPY_PROCESS.match(lines[0]):
        return any(line.startswith("Python v") or SPY_THREAD.match(line) for line in lines[1:])
    return any(pattern.match(lines[0]) for pattern in (WHEN, FAULT_THREAD, SPY_THREAD))


def read(path: Path, file: str, rank: int | None, limits: Limits) -> list[Stacks]:
    """All dumps in a file of stacks; with several, later ones are later moments.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, damaged, or holds no stack.
    """
    assembler = Assembler()
    for line in whole(path, limits).decode("utf-8", "replace").splitlines():
        assembler.feed(line)
    assembler.close()
    if not assembler.done:
        raise ValueError("no stack in it")
    return [Stacks(rank if local is None or rank is not None else local, file, threads, time_s)
            for threads, time_s, local in assembler.done]  # fmt: skip


READER = Reader(
    kind="stacks",
    title="stack dumps",
    recognise=recognise,
    open=lambda source: Contents(source.file, stacks=read(source.path, source.file, source.owner.rank, source.limits)),
    order=1,  # Text, of which only the first lines are known.
    per_rank="stacks",
)
