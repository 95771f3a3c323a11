"""What NCCL reports about its variables (NCCL_DEBUG=INFO), read from its logs and kept in the manifest."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from diagnostics.analysis.environment.job import echoes_as, interfaces
from diagnostics.analysis.environment.values import level, number
from diagnostics.contract.artifacts import RunPaths, write_json
from diagnostics.contract.files import open_regular, read_json
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.job.run_folder import last_attempt
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.readers import log as logs

MOST_FILES = 32  # Number of logs to read: those of all ranks are similar.
MOST_BYTES = 4 << 20  # Bytes of one log: NCCL reports its settings at the start.
NOTHING = "no line of NCCL in the logs; NCCL_DEBUG=INFO writes them (nccl=debug_net)"
_LIMITS = Limits(stream_bytes=MOST_BYTES)


def keep_effect(paths: RunPaths) -> list[str]:
    """Add what NCCL reported to the manifest of an ended run; return lines to print for the user.

    Runs over gloo and damaged manifests are unchanged.
    """
    try:
        manifest = read_json(paths.manifest)
        section = manifest["nccl"]
        if section["backend"] != "nccl":
            return []
        expected = {**section["variables"], **{own["name"]: own["value"] for own in section["kept"]}}
        # The logs of the last attempt, after the files that NCCL itself has written since the run began.
        files = sorted((paths.root / "logs" / f"attempt_{last_attempt(paths.root)}").glob("rank_*/std*.log"))
        if debug_file := expected.get("NCCL_DEBUG_FILE"):
            pattern = Path(debug_file.replace("%h", "*").replace("%p", "*"))
            began_s = paths.overrides.stat().st_mtime
            written = [path for path in pattern.parent.glob(pattern.name) if path.stat().st_mtime >= began_s]
            files = [*sorted(written), *files]
        facts: list[LogFact] = []
        for path in [path for path in files if path.is_file()][:MOST_FILES]:
            with open_regular(path) as file:
                head = file.read(4096)
            facts += logs.read(path, path.name, None, _LIMITS, head).facts
        section["effect"] = effect(expected, facts)
        write_json(paths.manifest, manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return summary_lines(section["effect"])


def effect(expected: dict[str, str], facts: Iterable[LogFact]) -> dict[str, Any]:
    """Return what the log reports about variables, network and transports.

    Return JSON values; `variables` has the `state` of each name in `expected` that NCCL reads: `confirmed`, `read_as`
    another value, `refused`, or `not_told`.
    """
    by_kind = grouped((fact.kind, fact) for fact in facts)
    if not any(kind in by_kind for kind in ("nccl_env", "nccl_init", "nccl_net", "nccl_version", "nccl_bootstrap")):
        return {"reason": NOTHING}
    over_net = [fact for fact in by_kind["nccl_transport"] if fact.fields.get("transport") == "NET"]
    return {
        "version": _all(by_kind["nccl_version"], "version"),
        "network": _all(by_kind["nccl_net"], "net"),
        "bootstrap_interface": _all(by_kind["nccl_bootstrap"], "interface"),
        "socket_interfaces": _listed(by_kind["nccl_socket"], "interfaces"),
        "infiniband_devices": _listed(by_kind["nccl_ib"], "devices"),
        "transports": sorted({str(fact.fields.get("transport")) for fact in by_kind["nccl_transport"]}),
        # Whether the network accesses GPU memory directly; None without network traffic.
        "gpu_direct_rdma": any(fact.fields.get("gdr") for fact in over_net) if over_net else None,
        "nvls": _all(by_kind["nccl_nvls"], "available"),
        "variables": {
            name: _variable(name, text, by_kind) for name, text in expected.items() if name.startswith("NCCL_")
        },
    }


def summary_lines(effect: dict[str, Any]) -> list[str]:
    """Describe the effect in lines; empty if NCCL logged nothing."""
    if "reason" in effect:
        return []
    network = ", ".join(effect["network"]) or "no network named"
    over = effect["infiniband_devices"] or effect["socket_interfaces"] or effect["bootstrap_interface"]
    version = f" {', '.join(effect['version'])}" if effect["version"] else ""
    lines = [f"NCCL{version} took: {network}" + (f" over {', '.join(over[:8])}" if over else "")]
    for name, variable in effect["variables"].items():
        if variable["state"] == "read_as":
            lines.append(f"  {name}={variable['wanted']} was read as {', '.join(variable['got'])}")
        elif variable["state"] == "refused":
            lines.append(f"  {name}={variable['wanted']} was refused: NCCL took its default")
    return lines


def _variable(name: str, text: str, by_kind: dict[str, list[LogFact]]) -> dict[str, Any]:
    """Describe one variable: the requested value, and what NCCL printed about it."""
    got = _all((fact for fact in by_kind["nccl_env"] if fact.fields.get("name") == name), "value")
    read = number(text)
    # `true`, which NCCL parses as 0, differs from the number in the log.
    is_number = bool(read.digits) and not read.rest.strip() and not read.octal
    if any(fact.fields.get("name") == name for fact in by_kind["nccl_env_invalid"]):
        state = "refused"
    elif not got:
        state = "not_told"
    else:
        same = (echoes_as(text, value) and (is_number or value in (text, level(text))) for value in got)
        state = "confirmed" if all(same) else "read_as"
    return {"wanted": text, "got": got, "state": state}


def _all(facts: Iterable[LogFact], field: str) -> list[str]:
    return list(dict.fromkeys(str(fact.fields[field]) for fact in facts if fact.fields.get(field) is not None))


def _listed(facts: list[LogFact], field: str) -> list[str]:
    return list(dict.fromkeys(name for fact in facts for name in interfaces(str(fact.fields.get(field, "")))))
