"""Whole jobs of valid files with absurd values in them, mixed kinds, and files that contradict each other.

Where `readers` damages bytes, this edits what the bytes mean: a job (an example of a cause, a run folder, one file of
every kind) is decoded, some of its values are replaced, repeated, left out, or taken from elsewhere, and it is written
again in the same form. Run many: `python benchmarks/fuzz_records.py --inputs 100000`.
"""

import copy
import gzip
import json
import pickle
import random
import re
import struct
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from diagnostics.causes.registry import built_in
from diagnostics.contract.artifacts import SCHEMA_VERSION
from diagnostics.contract.errors import DiagnosticsError
from diagnostics.diagnose import Options, diagnose
from diagnostics.evidence import safe_pickle
from diagnostics.evidence.budget import OverBudgetError
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.ring.format import GROUP, GROUPS_AT, HEADER, MAGIC, RECORD, TABLE_HEAD, TEXT_HEAD
from diagnostics.report import html, jsonform, markdown, terminal
from diagnostics.report.diagnosis import document
from diagnostics.report.tree_formats import FORMATS
from diagnostics.report.wording import worded
from dtk.errors import DtkError
from tests.fuzz.seeds import seeds
from tests.unit.diagnostics.causes.examples import examples
from tests.unit.diagnostics.causes.leftovers import leftovers

LIMITS = Limits(whole_bytes=8 << 20, stream_bytes=32 << 20, seconds=20, memory_bytes=1 << 30)
MARK = "\x1b]0;owned\x07<script>owned</script>\u202e"
"""No form of the report may hold it as it is."""
ABSURD: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 1000, 65536, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1, -(2**63), 10**6, 10**9, 1e308, -1e308,
    1e-308, 0.5, float("nan"), float("inf"), float("-inf"), None, True, False, "", " ", "0", "-1", "1e9", "nan",
    "\u0663", "\u00b2", "x" * 5000, "[0, 1]", "[]", "[0, 999999]", "0-999999", MARK, "\ud800", "a\0b",
    "../../etc/passwd", "all_reduce", "SIGKILL", "finished", "running", "train.py:9", [], {}, [[]], [None], [0, 0],
    [1, "x"], {"a": 1}, {"0": {}}, [[4, 4]], [[[]]], [2**40] * 8, list(range(300)),
)  # fmt: skip
OPERATIONS = ("set", "set", "set", "drop", "repeat", "graft", "nudge", "add", "as_rank")
MOST_BYTES = 20_000
"""Of a job that is edited; larger examples are of traces, of which one small one stands for all."""
Edit = tuple[int, list[int], str, int]
"""Which file, the way down into it, what is done there, and with which value."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_RANK = re.compile(r"(rank[_-]?0*|tr_?|_)(\d)(?=\D*$)")


@dataclass(slots=True)
class File:
    """One file of a job, decoded."""

    form: str
    value: Any


Job = dict[str, File]


@cache
def jobs() -> tuple[Job, ...]:
    """Return the jobs that are edited, decoded."""
    result = [{name: _decoded(name, raw) for name, raw in files.items()} for files in _honest()]
    return tuple(result)


@cache
def _copied() -> tuple[bytes, ...]:
    """Return the jobs as bytes of pickle, from which a copy is made faster than by `copy.deepcopy`."""
    return tuple(map(pickle.dumps, jobs()))


def _honest() -> list[dict[str, bytes]]:
    texts = [leftovers(cause.id, cause.example) for cause in built_in() if cause.example]
    whole = [
        {name: content if isinstance(content, bytes) else content.encode() for name, content in files.items()}
        for files in (*(example.files() for _, example in sorted(examples().items())), *filter(None, texts))
    ]
    small = [files for files in whole if sum(map(len, files.values())) <= MOST_BYTES]
    with tempfile.TemporaryDirectory() as folder:
        kinds = seeds(Path(folder))
    return [*small, *({name: raw} for name, raw in kinds.items()), kinds, *_runs(small, kinds)]


def _runs(small: list[dict[str, bytes]], kinds: dict[str, bytes]) -> list[dict[str, bytes]]:
    """Return run folders of dtk: their own records around the evidence of other jobs."""
    version = {"schema_version": SCHEMA_VERSION}
    failure = {"rank": 1, "exit_code": -9, "reason": "killed by SIGKILL", "step": 3, "region": "forward", "log": "x"}
    status = {**version, "state": "failed", "attempt": 0, "exit_code": 1, "step": 3, "reason": "x", "failure": failure}
    manifest = {
        **version, "run_id": "run", "argv": ["train.steps=3"], "topology": {"world_size": 2, "nodes": 1},
        "environment": {"NCCL_DEBUG": "INFO"}, "versions": {"torch": "2.13.0"}, "git": {"commit": "x", "dirty": False},
        "hardware": {"devices": [{"name": "H100", "memory_bytes": 80 << 30}]},
    }  # fmt: skip
    config = {
        "model": {"name": "gpt2_tiny", "layers": 2, "width": 32, "heads": 2}, "strategy": {"name": "fsdp"},
        "train": {"steps": 3, "micro_batch_size": 1}, "fault": {"name": "none"}, "data": {"sequence_length": 32},
    }  # fmt: skip
    beat = {"rank": 0, "step": 3, "region": "forward", "time_s": 1795259551.0, "pid": 7, "attempt": 0}
    event = {"kind": "event", "name": "started", "attempt": 0, "rank": 0, "time_s": 1795259550.0}
    category = {"parameters": 1 << 20, "gradients": 1 << 20, "optimizer": 2 << 20, "activations": 1 << 20}
    plan = {
        **version,
        "memory": {"per_rank_bytes": 5 << 20, "categories": category},
        "world_size": 2,
        "step_time_s": 1.0,
    }
    step = {"step": 1, "loss": 2.5, "tokens_per_s": 100.0, "step_time_s": 0.5, "time_s": 1795259551.0, "attempt": 0}
    records: dict[str, Any] = {
        "status.json": status, "manifest.json": manifest, "heartbeat/rank_00000.json": beat, "plan.json": plan,
        "heartbeat/rank_00001.json": {**beat, "rank": 1}, "summary.json": {**version, "tokens_per_s": 100.0},
    }  # fmt: skip
    own = {name: json.dumps(value).encode() for name, value in records.items()}
    own["config.yaml"] = yaml.safe_dump(config).encode()
    own["events/rank_00000.jsonl"] = json.dumps(event).encode() + b"\n"
    own["metrics.jsonl"] = b"".join(json.dumps({**step, "step": n}).encode() + b"\n" for n in range(1, 9))
    logs = {f"logs/attempt_0/rank_0000{n}/{name}": raw for n, name, raw in (
        (0, "stderr.log", kinds["out.log"]), (1, "error.json", kinds["rank_2_error.json"]))}  # fmt: skip
    flight = {"flight/rank_00000.pickle": kinds["rank_0.pickle"], "stacks/rank_00000.txt": kinds["rank_9.txt"]}
    return [own, {**own, **logs}, {**own, **logs, **flight}, *({**files, **own} for files in small[::4])]


def _decoded(name: str, raw: bytes) -> File:
    if raw.startswith(MAGIC):
        return File("ring", _ring_fields(raw))
    if raw.startswith(b"SQLite"):
        return File("raw", raw)
    if raw.startswith(b"\x1f\x8b"):
        return File("json.gz", json.loads(gzip.decompress(raw)))
    decoders: tuple[tuple[str, Callable[[bytes], Any]], ...] = (
        ("json", json.loads),
        ("jsonl", lambda data: [json.loads(line) for line in data.splitlines()]),
        ("pickle", lambda data: safe_pickle.loads(data, LIMITS)),
    )
    for form, decode in decoders:
        try:
            return File(form, decode(raw))
        except (ValueError, RecursionError):
            continue
    if name.endswith((".yaml", ".yml")):
        return File("yaml", yaml.safe_load(raw))
    return File("text", raw.decode("utf-8", "replace").splitlines())


def encoded(file: File) -> bytes:
    """Return the bytes of a file."""
    if file.form in ("json", "json.gz"):
        raw = json.dumps(file.value, default=str).encode()
        return gzip.compress(raw, 1) if file.form == "json.gz" else raw
    if file.form == "jsonl":
        lines = file.value if isinstance(file.value, list) else [file.value]
        return b"".join(json.dumps(line, default=str).encode() + b"\n" for line in lines)
    if file.form == "pickle":
        return pickle.dumps(file.value, protocol=4)
    if file.form == "yaml":
        return json.dumps(file.value, default=str).encode()  # Which is YAML, and takes any text.
    if file.form == "ring":
        return _ring_bytes(file.value)
    if file.form == "raw":
        return file.value if isinstance(file.value, bytes) else b""
    lines = file.value if isinstance(file.value, list) else [file.value]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")


def _ring_fields(raw: bytes) -> dict[str, Any]:
    header = list(HEADER.unpack_from(raw))
    groups, slots, table_bytes = header[6:9]
    at = GROUPS_AT + groups * GROUP.size
    table, texts, here = raw[len(raw) - table_bytes :], [], TABLE_HEAD.size
    end = min(TABLE_HEAD.unpack_from(table)[0], len(table)) if table else 0
    while here + TEXT_HEAD.size <= end:
        size = TEXT_HEAD.unpack_from(table, here)[0]
        texts.append(table[here + 2 : here + 2 + size].decode("utf-8", "replace"))
        here += 2 + size
    return {
        "header": [*header[1:6], header[9]],
        "groups": [list(GROUP.unpack_from(raw, GROUPS_AT + n * GROUP.size)) for n in range(groups)],
        "records": [list(RECORD.unpack_from(raw, at + n * RECORD.size)) for n in range(slots)],
        "texts": texts,
    }


def _ring_bytes(value: Any) -> bytes:
    """Pack a ring; what no longer fits into its fields is a zero there, and what is missing as well."""
    fields = value if isinstance(value, dict) else {}
    rows = {name: [row for row in _list(fields.get(name)) if isinstance(row, list)] for name in ("groups", "records")}
    texts = [str(text).encode("utf-8", "replace")[:60_000] for text in _list(fields.get("texts"))]
    table = b"".join(TEXT_HEAD.pack(len(text)) + text for text in texts)
    table = TABLE_HEAD.pack(TABLE_HEAD.size + len(table)) + table
    *numbers, began = [*_list(fields.get("header")), *[0] * 6][:6]
    head = [MAGIC, *numbers, len(rows["groups"]), len(rows["records"]), len(table), began, b"host"]
    packed = _packed(HEADER, head).ljust(GROUPS_AT, b"\0")
    packed += b"".join(_packed(GROUP, row) for row in rows["groups"])
    return packed + b"".join(_packed(RECORD, row) for row in rows["records"]) + table


def _packed(form: struct.Struct, row: list[Any]) -> bytes:
    codes = [code for repeat, code in re.findall(r"(\d*)([a-zA-Z])", form.format) for _ in range(_times(repeat, code))]
    values = [*row, *[0] * len(codes)][: len(codes)]
    return form.pack(*(_fitting(code, value) for code, value in zip(codes, values, strict=True)))


def _times(repeat: str, code: str) -> int:
    return 1 if code == "s" else int(repeat or 1)


def _fitting(code: str, value: Any) -> Any:
    if code == "s":
        return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
    if code == "d":
        return value if isinstance(value, float) else float(value) if isinstance(value, int) else 0.0
    bits = {"B": 8, "I": 32, "i": 32, "Q": 64, "q": 64, "H": 16}[code]
    whole = int(value) if isinstance(value, int) else 0
    return whole % 2**bits - (2 ** (bits - 1) if code in "iq" and whole % 2**bits >= 2 ** (bits - 1) else 0) * 2


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def edited(number: int, edits: list[Edit]) -> Job:
    """Return a job with some of its values made absurd; any numbers give one."""
    job: Job = pickle.loads(_copied()[number % len(jobs())])  # noqa: S301 - made here
    for where, way, operation, value in edits:
        names = sorted(job)
        name = names[where % len(names)]
        other = jobs()[(where * 31 + value) % len(jobs())]
        if operation == "add":
            taken = sorted(other)[value % len(other)]
            job[taken] = copy.deepcopy(other[taken])
        elif operation == "as_rank":
            job[_RANK.sub(rf"\g<1>{value % 10}", name)] = copy.deepcopy(job[name])
        else:
            _edit(job[name], way, operation, value, other)
    return job


def _edit(file: File, way: list[int], operation: str, value: int, other: Job) -> None:
    above: Any = None
    key: Any = None
    here = file.value
    for step in way:
        if not isinstance(here, dict | list) or not here:
            break
        above, key = here, sorted(here, key=str)[step % len(here)] if isinstance(here, dict) else step % len(here)
        here = above[key]
    absurd = copy.deepcopy(ABSURD[value % len(ABSURD)])
    if isinstance(here, str) and operation in ("set", "nudge") and (numbers := list(_NUMBER.finditer(here))):
        chosen = numbers[(way or [0])[-1] % len(numbers)]
        put = str(absurd)[:300] if operation == "set" else str(int(float(chosen[0])) + value % 7 - 3)
        absurd, operation = here[: chosen.start()] + put + here[chosen.end() :], "set"
    elif operation == "nudge":
        absurd = here + value % 7 - 3 if isinstance(here, int | float) else absurd
    elif operation == "graft":
        source = other[sorted(other)[value % len(other)]].value
        for step in way:
            if isinstance(source, dict | list) and source:
                source = (
                    list(source.values())[step % len(source)]
                    if isinstance(source, dict)
                    else source[step % len(source)]
                )
        absurd = copy.deepcopy(source)
    if above is None:
        file.value = absurd if operation in ("set", "graft") else file.value
    elif operation == "drop":
        del above[key]
    elif operation == "repeat" and isinstance(above, list):
        above[key:key] = [copy.deepcopy(here) for _ in range(1 + value % 40)]
    else:
        above[key] = absurd


def drawn(seed: str) -> tuple[int, list[Edit]]:
    """Return the numbers of an input by its seed, for runs without hypothesis."""
    chosen = random.Random(seed)
    edits: list[Edit] = [
        (chosen.randrange(1000), [chosen.randrange(1000) for _ in range(chosen.randrange(8))],
         chosen.choice(OPERATIONS), chosen.randrange(1000))
        for _ in range(chosen.choice((1, 1, 2, 3, 5)))
    ]  # fmt: skip
    return chosen.randrange(len(jobs())), edits


def write(job: Job, folder: Path) -> None:
    """Lay the files of a job into a folder."""
    for name, file in job.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(file))


RENDERERS: tuple[Callable[[Any], str], ...] = (
    lambda report: terminal.render(document(report, brief=True), columns=100, colour=False),
    lambda report: json.dumps(json.loads(jsonform.text(jsonform.as_json(report)), parse_constant=lambda word: 1 / 0)),
    lambda report: markdown.render(document(report, brief=True)),
    lambda report: terminal.render(document(report, brief=True), columns=None, colour=True).replace("\x1b[", ""),
    lambda report: "".join(render(worded(report.tree)) for render in FORMATS.values()),
    lambda report: terminal.render(document(report), columns=100, colour=False),
    lambda report: html.render(document(report)),
)
"""Forms of the report. They take longer than the diagnosis, so most inputs have none of them."""


_PAGES = (2, 6)
"""Those that a browser shows."""


def explained(folder: Path, form: int) -> str:
    """Diagnose a folder and make one form of the report, none from `len(RENDERERS)` on.

    Returns:
        what escaped, or empty when all is well.
    """
    try:
        report = diagnose(folder, Options(limits=LIMITS))
        text = RENDERERS[form](report) if form < len(RENDERERS) else ""
    except OverBudgetError as problem:
        return f"over its budget: {problem}"
    except DiagnosticsError as problem:
        text, report = str(DtkError(problem.what, fix=problem.fix)), None
    except Exception as problem:
        place = traceback.extract_tb(problem.__traceback__)[-1]
        return f"{type(problem).__name__}: {problem} at {'/'.join(Path(place.filename).parts[-3:])}:{place.lineno}"[
            :300
        ]
    for problem in (problem for kind in report.coverage for problem in kind.problems) if report else ():
        if "please report this line" in problem or "more time or memory than" in problem:
            return f"a guard held: {problem}"
    leaks = "\x1b" in text or "\u202e" in text or (form in _PAGES and "<script>owned" in text)
    return f"form {form} holds the mark" if leaks else ""
