"""Decides the causes that NCCL, gloo and torch name themselves when they fail: no guess, one text each.

Knows the facts of logs and the messages of exceptions; no variable but TORCH_DISTRIBUTED_DEBUG.
"""

import re
from collections.abc import Callable

from diagnostics.analysis.environment.recorded import gathered
from diagnostics.contract.findings import Detection, EvidenceItem, Finding, Remedy
from diagnostics.evidence.model import Evidence, LogFact, RankError

VERSION, SHM, GPU, DETAIL = (
    "env.version_mismatch",
    "env.shm_too_small",
    "env.duplicate_gpu",
    "env.debug_detail_crash",
)
_TEXTS = {
    VERSION: re.compile(r"Mismatched NCCL version detected ?:? ?(?P<detail>[^\n]*)"),
    SHM: re.compile(
        r"failed to extend (?P<path>/dev/shm/\S+) to (?P<bytes>\d+) bytes(?:, error: No space left on device)?"
        r"|posix_fallocate failed[^\n]*No space left on device"
        r"|(?P<worker>DataLoader worker .* is killed by signal: Bus error|Unexpected bus error encountered in worker)"
    ),
    GPU: re.compile(
        r"Duplicate GPU detected ?: rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<gpu>\w+)"
        r"|Multiple Ranks are using the same (?:GPU|Partition)"
    ),
}
_KINDS = {
    VERSION: ("nccl_version_mismatch",),
    SHM: ("nccl_shm", "worker_bus_error"),
    GPU: ("nccl_duplicate_gpu",),
}
_SIZE = "docker run --shm-size=8g (or --ipc=host); Kubernetes: emptyDir {medium: Memory} at /dev/shm"

Told = tuple[int | None, str, int, str]
"""(rank, file, line, the text)."""


class FailureDetector:
    """What the libraries say themselves."""

    name = "environment_failures"
    causes: tuple[str, ...] = (VERSION, SHM, GPU, DETAIL)

    def detect(self, evidence: Evidence) -> Detection:
        """Decide every cause of `causes`."""
        findings = []
        for cause, build in _BUILD.items():
            told = _told(cause, evidence)
            findings.append(build(told) if told else _silent(cause, evidence))
        findings.append(_detail_crash(evidence))
        return Detection(findings)


def _told(cause: str, evidence: Evidence) -> list[Told]:
    """The lines that say it, in logs and in exceptions."""
    regex = _TEXTS[cause]
    found: list[Told] = []
    for fact in evidence.facts:
        if fact.kind in (*_KINDS[cause], "nccl_warn", "dist_backend_error") and _says(cause, fact, regex):
            found.append((fact.rank, fact.file, fact.line, fact.text))
    for error in evidence.errors:
        match = regex.search(error.message)
        if match:
            found.append((error.rank, error.file, error.line, match.group()))
    return found


def _says(cause: str, fact: LogFact, regex: re.Pattern[str]) -> bool:
    if cause == SHM and fact.kind == "nccl_shm":
        return "No space left" in fact.text or "needed_bytes" in fact.fields
    return fact.kind in _KINDS[cause] or regex.search(fact.text) is not None


def _finding(cause: str, told: list[Told], summary: str, ranks: tuple[int, ...], remedy: Remedy) -> Finding:
    items = tuple(EvidenceItem("log", file, text[:200], line or None) for _, file, line, text in told[:8])
    count = f"{len(told)} line{'s' if len(told) > 1 else ''} in logs"
    return Finding(
        cause=cause,
        status="confirmed",
        summary=summary,
        confidence=0.97,
        ranks=ranks,
        evidence=items,
        remedies=(remedy,),
        measured=count,
    )


def _version(told: list[Told]) -> Finding:
    detail = _TEXTS[VERSION].search(told[0][3])
    text = detail["detail"].strip() if detail and detail["detail"] else ""
    summary = f"The ranks run different versions of NCCL{f' ({text[:120]})' if text else ''}; it refuses to start."
    remedy = Remedy("code", "install the same torch build (same image) on every node", "NCCL is compiled into torch")
    return _finding(VERSION, told, summary, _speakers(told), remedy)


def _shm(told: list[Told]) -> Finding:
    match = _TEXTS[SHM].search(told[0][3])
    size = f" ({int(match['bytes']) / 2**20:.1f} MiB were needed)" if match and match["bytes"] else ""
    user = "the data loader's workers" if match and match["worker"] else "NCCL"
    summary = f"/dev/shm is full or too small for {user}{size}: a container gives 64 MiB unless told otherwise."
    remedy = Remedy("environment", _SIZE, "ranks of a node exchange data through /dev/shm")
    return _finding(SHM, told, summary, _speakers(told), remedy)


def _gpu(told: list[Told]) -> Finding:
    match = _TEXTS[GPU].search(told[0][3])
    pairs = [found for found in (_TEXTS[GPU].search(text) for *_, text in told) if found and found["first"]]
    ranks = tuple(sorted({int(found[side]) for found in pairs for side in ("first", "second")})) or _speakers(told)
    device = f" (device {match['gpu']})" if match and match["gpu"] else ""
    listed = f"Ranks {', '.join(map(str, ranks))}" if len(ranks) > 1 else "Several ranks"
    summary = f"{listed} use one GPU{device}; NCCL needs one each."
    remedy = Remedy(
        "code", 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group', "one each"
    )
    return _finding(GPU, told, summary, ranks, remedy)


def _speakers(told: list[Told]) -> tuple[int, ...]:
    return tuple(sorted({rank for rank, *_ in told if rank is not None}))


_BUILD: dict[str, Callable[[list[Told]], Finding]] = {VERSION: _version, SHM: _shm, GPU: _gpu}


def _silent(cause: str, evidence: Evidence) -> Finding:
    """No text says it: with logs or exceptions at hand that is an answer, as the libraries always say it."""
    if evidence.facts or evidence.errors or evidence.run is not None:
        summary = "No log and no exception says so."
        return Finding(cause=cause, status="ruled_out", summary=summary, measured="0 lines in logs")
    summary = "Not decided: there is neither a log nor an error file."
    return Finding(cause=cause, status="undecided", summary=summary, missing="the ranks' stderr")


def _detail_crash(evidence: Evidence) -> Finding:
    """On CPU, torch 2.13: DDP's constructor segfaults under TORCH_DISTRIBUTED_DEBUG=DETAIL, whatever the model."""
    variables = gathered(evidence).variables.values()
    detail = any(one.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL" for one in variables)
    crashed = [error for error in evidence.errors if error.signal == "SIGSEGV" or error.exit_code == -11]
    if not detail or not crashed:
        why = "TORCH_DISTRIBUTED_DEBUG is not DETAIL" if not detail else "no rank died by SIGSEGV"
        if not detail and not any(variables):
            summary = "Not decided: there is no record of the environment variables."
            return Finding(cause=DETAIL, status="undecided", summary=summary, missing="TORCH_DISTRIBUTED_DEBUG as set")
        return Finding(cause=DETAIL, status="ruled_out", summary=f"{why[0].upper()}{why[1:]}.", measured=why)
    in_ddp = any(_inside_ddp(error) for error in crashed)
    seen = "inside DDP's constructor" if in_ddp else "with DETAIL set"
    summary = (
        f"{len(crashed)} ranks died by SIGSEGV {seen}: TORCH_DISTRIBUTED_DEBUG=DETAIL crashes DDP on gloo in "
        "torch 2.13, even with a correct model."
    )
    return Finding(
        cause=DETAIL,
        status="confirmed",
        summary=summary,
        confidence=0.9 if in_ddp else 0.6,
        ranks=tuple(sorted({error.rank for error in crashed if error.rank is not None})),
        evidence=tuple(EvidenceItem("error", e.file, "SIGSEGV", e.line or None) for e in crashed[:8]),
        remedies=(Remedy("environment", "TORCH_DISTRIBUTED_DEBUG=INFO", "INFO names unused parameters too"),),
        measured=f"{len(crashed)} ranks by SIGSEGV",
    )


def _inside_ddp(error: RankError) -> bool:
    return any(frame.function == "_ddp_init_helper" or "distributed.py" in frame.file for frame in error.frames)
