"""Files that hold stacks only: faulthandler's dumps and py-spy's (text, or `py-spy dump --json`)."""

import re
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from diagnostics.evidence.limits import Limits, whole
from diagnostics.evidence.model import Frame, Stacks, Thread
from diagnostics.evidence.reader import Contents, Reader
from diagnostics.evidence.stacks import dumps
from diagnostics.evidence.stacks.dumps import FAULT_THREAD, SPY_PROCESS, SPY_THREAD, WHEN, Assembler

_RANK = re.compile(r"^=== Rank (\d{1,7}): \S+ ===$", re.MULTILINE)
_UNANSWERED = "PARTIAL DATA: "
"""Prefix that torch's debug server (torch/distributed/debug/_debug_handlers.py) writes if ranks did not answer."""


class _SpyFrame(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(max_length=4096)]
    filename: Annotated[str, msgspec.Meta(max_length=4096)]
    line: int


class _SpyThread(msgspec.Struct):
    frames: list[_SpyFrame]
    pid: int | None = None
    thread_name: str | None = None


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is a dump of stacks and nothing else."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines() if line.strip()][:4]
    if not lines:
        return False
    if lines[0].startswith("["):
        return b'"owns_gil"' in head and b'"frames"' in head
    if _RANK.fullmatch(lines[0]) or lines[0].startswith(_UNANSWERED):
        return re.search(rb"^(?:Current thread |Thread |Stack |Process \d+: )", head, re.M) is not None
    if SPY_PROCESS.match(lines[0]):
        return any(line.startswith("Python v") or SPY_THREAD.match(line) for line in lines[1:])
    return any(pattern.match(lines[0]) for pattern in (WHEN, FAULT_THREAD, SPY_THREAD))


def read(path: Path, file: str, rank: int | None, limits: Limits) -> list[Stacks]:
    """Read all dumps in a file in the order of their times; raises OSError or ValueError, like `Reader.open`."""
    data = whole(path, limits)
    if data.lstrip().startswith(b"["):
        spied = msgspec.json.decode(data, type=list[_SpyThread])[: dumps.MAX_THREADS]
        if not spied:
            raise ValueError("no stack in it")
        own = [thread for thread in spied if thread.pid == spied[0].pid]  # Not those of its children (--subprocesses).
        frames = [tuple(Frame(f.filename, f.line, f.name) for f in each.frames[: dumps.MAX_FRAMES]) for each in own]
        named = [Thread(thread.thread_name or "", path) for thread, path in zip(own, frames, strict=True)]
        return [Stacks(rank, file, dumps.with_main(named), None, spied[0].pid)]
    stacks: list[Stacks] = []
    parts = _RANK.split(data.decode("utf-8", "replace"))  # The text before any rank, then ranks and texts.
    for stated, text in zip([rank, *map(int, parts[1::2])], parts[::2], strict=True):
        assembler = Assembler()
        for line in text.splitlines():
            assembler.feed(line)
        assembler.close()
        stacks += [replace(dump, rank=dump.rank if stated is None else stated, file=file) for dump in assembler.done]
    if not stacks:
        raise ValueError("no stack in it")
    return stacks if rank is None or len(parts) > 1 else [dump for dump in stacks if dump.pid == stacks[0].pid]


READER = Reader(
    kind="stacks",
    title="stack dumps",
    recognise=recognise,
    open=lambda source: Contents(source.file, stacks=read(source.path, source.file, source.owner.rank, source.limits)),
    order=1,  # Text, of which only the first lines are known.
    per_rank="stacks",
)
