"""What kind of evidence a file is, by its first bytes; its name only tells what is surely none.

Every reader recognises its own. What is left over is text that may be a log, or nothing.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from diagnostics.evidence.logs.lines import has_utf16_mark
from diagnostics.evidence.readers import error as error_file
from diagnostics.evidence.readers import flight, nsys, ring, snapshot, start, timeline, watch
from diagnostics.evidence.stacks import dumps as stacks
from diagnostics.evidence.trace import model as trace

Kind = Literal[
    "flight",
    "ring",
    "trace",
    "nsys",
    "snapshot",
    "timeline",
    "telemetry",
    "error",
    "stacks",
    "start",
    "watch",
    "log",
    "pickle",
    "empty",
    "none",
]

LOOKED_FOR = (
    "flight-recorder dumps, profiler traces, Nsight sqlite exports, memory snapshots and timelines, logs, "
    "stack dumps, elastic error files, dtk run folders"
)

_READERS: tuple[tuple[Kind, Callable[[bytes], bool]], ...] = (
    ("ring", ring.recognise),
    ("nsys", nsys.recognise),
    ("trace", trace.recognise),  # before flight dumps: newer traces repeat their pg_config
    ("flight", flight.recognise),
    ("snapshot", snapshot.recognise),
    ("timeline", timeline.recognise),
    ("telemetry", timeline.recognise_telemetry),
    ("start", start.recognise),
    ("watch", watch.recognise),
    ("error", error_file.recognise),
    ("stacks", stacks.recognise),
)

_NEVER = {
    ".py", ".pyc", ".pyi", ".ipynb", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".js", ".ts", ".css",
    ".html", ".md", ".rst", ".tex", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".csv", ".tsv", ".parquet", ".arrow",
    ".npy", ".npz", ".bin", ".safetensors", ".ckpt", ".distcp", ".gguf", ".onnx", ".h5", ".tfrecord", ".bpe",
    ".model", ".whl", ".zip", ".tar", ".tgz", ".7z", ".xz", ".zst", ".bz2", ".png", ".jpg", ".jpeg", ".gif",
    ".webp", ".svg", ".pdf", ".mp4", ".wav", ".so", ".o", ".a", ".wandb", ".lock", ".idx",
}  # fmt: skip
"""Endings of source files, data, weights, archives and pictures: not even opened."""

NEVER_NAMES = re.compile(r"events\.out\.tfevents|^\.|^(?:merges|vocab)\.txt$|^requirements.*\.txt$|^LICENSE|^README")
_NO_LOG = {".json", ".jsonl", ".xml", ".sqlite", ".db", ".pickle", ".pkl", ".pt", ".pth", ".gz"}
_LOG_NAME = re.compile(r"\.(?:log|out|err|stdout|stderr|txt)\b|log|stdout|stderr|slurm|nohup|nccl|console|dmesg", re.I)
_CHECKPOINT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""torch.save before its zip format."""
_PICKLE = re.compile(rb"\x80[\x01-\x05]|\(?c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n|\([dl](?:p\d|[IVS])")
_CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")


def surely_none(path: Path) -> bool:
    """Whether the name alone says that it is no evidence."""
    return path.suffix.lower() in _NEVER or bool(NEVER_NAMES.search(path.name))


def kind_of(path: Path, head: bytes) -> Kind:
    """The kind of a file.

    Args:
        path: its ending decides whether unrecognised text can be a log.
        head: `limits.head` of it.
    """
    if not head:
        return "empty"
    if head.startswith((_CHECKPOINT, b"PK\x03\x04")):
        return "none"
    for kind, recognise in _READERS:
        if recognise(head):
            return kind
    if _PICKLE.match(head):
        return "pickle"
    return "log" if path.suffix.lower() not in _NO_LOG and is_text(head) else "none"


def is_text(head: bytes) -> bool:
    """Whether it reads as text: UTF-8 (UTF-16 by its mark) but for a cut at the end, hardly any control characters."""
    if has_utf16_mark(head):
        head = head[: len(head) & ~1].decode("utf-16", "replace").encode("utf-8", "replace")
    if len(_CONTROL.findall(head)) > len(head) // 100:
        return False
    return head.decode("utf-8", "replace").count("\ufffd") <= 1 + len(head) // 100


def named_like_a_log(path: Path) -> bool:
    """Whether a text of gigabytes is worth reading."""
    return bool(_LOG_NAME.search(path.name))
