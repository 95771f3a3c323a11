"""Checks every pair of GPUs: peer access reported by the driver, and an actual copy. Imports no torch."""

import json
import statistics
from collections.abc import Iterator
from itertools import combinations

from diagnostics.contract.files import table_beside
from diagnostics.contract.formatting import first_of
from dtk.doctor.gpus import NO_GPU, find
from dtk.doctor.model import ChildOutput, Finding, Result, Scope, finding, judged, not_applicable, run_child

READ, WRITE, NVLINK = 0, 1, 2  # Kinds of nvmlDeviceGetP2PStatus.
OK = 0  # NVML_P2P_STATUS_OK, nvml.h.
STATUS: dict[int, str] = table_beside(__file__)
SLOW_SHARE = 0.5  # Chosen: of the median; equal links differ by some percent, a degraded one by half or more.
LISTED = 28  # Maximum number of pairs listed individually: those of 8 GPUs.


def p2p(scope: Scope) -> Result:
    """Check peer access between every pair of devices."""
    gpus, _, reason = find(scope)
    if len(gpus) < 2:
        return not_applicable(f"{NO_GPU} ({reason})" if reason else "one GPU has no peer")
    pairs: dict[tuple[int, int], tuple[int | None, bool]] = {}
    try:
        for a, b in combinations(gpus, 2):
            # The worse status of reading and writing, and whether NVLink connects the pair.
            both = (a.read("GetP2PStatus", b.handle, kind) for kind in (READ, WRITE))
            worse = max((status for status in both if status is not None), default=None)
            pairs[a.index, b.index] = worse, a.read("GetP2PStatus", b.handle, NVLINK) == OK
    except gpus[0].nvml.NVMLError as error:
        return judged([finding("p2p_no_answer", error=error)])
    if all(read is None for read, _ in pairs.values()):
        return not_applicable("this driver does not report it")
    linked = sum(nvlink for _, nvlink in pairs.values())
    fine = f"{len(pairs)} pairs with peer access" + (f", {linked} by NVLink" if linked else ", by PCIe")
    lines = []
    for (i, j), (read, nvlink) in list(pairs.items())[:LISTED]:
        way = "unknown" if read is None else "NVLink" if nvlink else "PCIe"
        lines.append(f"GPU {i}-{j}  {f'no peer access: {STATUS.get(read, read)}' if read else way}")
    measures = {"pairs": [{"gpus": list(pair), "read": r, "nvlink": n} for pair, (r, n) in pairs.items()]}
    return judged(_judge_pairs(pairs), fine, details=lines, measures=measures)


def _judge_pairs(pairs: dict[tuple[int, int], tuple[int | None, bool]]) -> Iterator[Finding]:
    """Yield findings on pairs without peer access: an error over NVLink, elsewhere slower and possibly a hang."""
    for status in sorted({read for read, _ in pairs.values() if read}):
        without = [f"{a}-{b}" for (a, b), (read, _) in pairs.items() if read == status]
        linked = any(nvlink for read, nvlink in pairs.values() if read == status)
        names = first_of(without)
        text = f"no peer access for {len(without)} of {len(pairs)} pairs ({names}): {STATUS.get(status, status)}"
        yield finding("p2p_broken" if linked else "p2p_absent", text=text)
    if len({nvlink for _, nvlink in pairs.values()}) > 1:
        apart = [f"{a}-{b}" for (a, b), (_, nvlink) in pairs.items() if not nvlink]
        yield finding("pairs_without_nvlink", pairs=first_of(apart))


def copies(scope: Scope) -> Result:
    """Copy data between all pairs of devices, and check that each copy completes, is correct and is not slow."""
    torch = scope.torch()
    count = len(torch.facts.get("devices", []))
    if count < 2:
        reason = torch.reason or torch.facts.get("cuda_error")
        return not_applicable(reason or ("one GPU has no peer" if count else "torch sees no CUDA device"))
    devices = [f"cuda:{i}" for i in range(count)]
    return judge_copies(run_child(["-m", "dtk.doctor.copying", *devices], scope.timeout_s))


def judge_copies(output: ChildOutput) -> Result:
    """Judge the results of the copies."""
    done = [record for record in output.records if "gb_per_s" in record]
    findings = []
    for record in done:
        if record.get("wrong"):
            wrong = json.dumps(record["wrong"])
            findings.append(finding("copy_wrong", source=record["from"], target=record["to"], wrong=wrong))
    if output.problem:
        begun = [record for record in output.records if "begin" in record]
        where = f" in the copy from {begun[-1]['begin']} to {begun[-1]['to']}" if begun else ""
        findings.append(finding("copy_failed", problem=output.problem, where=where))
    speeds = {(record["from"], record["to"]): record["gb_per_s"] for record in done}
    middle = statistics.median(speeds.values()) if speeds else 0.0
    for (source, target), speed in speeds.items():
        if speed < SLOW_SHARE * middle:
            findings.append(finding("copy_slow", source=source, target=target, speed=speed, middle=middle))
    fine = f"{len(speeds)} copies are right, {middle:.1f} GB/s (median)"
    lines = [f"{source} to {target}  {speed:.1f} GB/s" for (source, target), speed in speeds.items()][: 2 * LISTED]
    return judged(findings, fine, details=lines, measures={"copies": done})
