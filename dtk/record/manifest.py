"""manifest.json: what ran where, written by the parent before any rank starts; unknown facts are null or absent."""

import dataclasses
import hashlib
import itertools
import os
import platform
import re
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from diagnostics.analysis.processes import usable_cores
from diagnostics.contract.artifacts import SCHEMA_VERSION
from diagnostics.contract.files import kernel_entries, kernel_text
from diagnostics.contract.secrets import is_secret, masked
from diagnostics.runs.find import made_by_dtk, process_start
from dtk.config.placement import Placement
from dtk.config.schema import Config
from dtk.config.strict import to_plain
from dtk.extras import installed
from dtk.record.nvml import all_devices, open_nvml
from dtk.record.run_folder import now
from dtk.sharding.registry import needs_less_memory

GIT_TIMEOUT_S = 5.0  # Chosen: timeout for all git commands; git answers in milliseconds, except on a busy machine.
NEW_FILES, NEW_BYTES = 1000, 16 << 20
"""Chosen: number and bytes of untracked files to hash at each launch; of further files only the names count."""
PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "wandb", "nvidia-ml-py", "nvtx", "safetensors", "triton")
PREFIXES = ("NCCL_", "TORCH_", "GLOO_", "CUDA_", "OMP_", "SLURM_", "PYTORCH_", "TORCHELASTIC_", "DTK_")
PAGES = ("dtk-report.html", "dtk-comparison.html", "dtk-bench-comm.html", "dtk-preflight.html")
"""Names of pages that dtk writes to the working folder."""
_MOST_CHILDREN = 1000  # Chosen: limit of inspected subfolders of a folder.
CPU_INFO = Path("/proc/cpuinfo")
INTERFACES, RDMA = Path("/sys/class/net"), Path("/sys/class/infiniband")
FILE_VARIABLES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE")


def manifest(
    config: Config, run_id: str, placement: Placement, launcher: str, nccl: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of manifest.json.

    `config` provides the strategy's traits, which a diagnosis needs, and the mesh; its hash is recorded for comparing
    runs. `nccl` has `preset`, `variables` set for the ranks, and `kept`, the user's that take precedence.
    """
    mesh, plain = config.mesh(placement.world_size), to_plain(config)
    nproc = getattr(config.fault, "ranks_per_node", placement.nproc)
    common = surroundings(run_id, placement.world_size, nproc, Path(config.runs_folder))
    digest = hashlib.sha256(repr(sorted(masked(plain).items())).encode()).hexdigest()
    traits = config.strategy.on(mesh).traits
    about: dict[str, Any] = {"launcher": launcher, "config_sha256": digest}
    about["strategy_traits"] = {**dataclasses.asdict(traits), "needs_less_memory": needs_less_memory(traits)}
    about |= {"tags": config.tags, "mesh": {**dataclasses.asdict(mesh), "order": mesh.order}}
    if mesh.pp > 1:
        about["stage_blocks"] = [len(blocks) for blocks in config.stage_blocks(config.model.layers)]
    about |= {"nccl": {"backend": placement.backend, **nccl, "effect": None}}
    about |= {"hardware": {**common["hardware"], "missing_files": missing_files(nccl["variables"])}}
    return {**common, **about, "environment": {**nccl["variables"], **common["environment"]}}


def surroundings(run_id: str, world_size: int, nproc: int, runs_folder: Path) -> dict[str, Any]:
    """Return what manifest.json says of any job: program, code, versions, machine, ranks."""
    # As far as the parent knows the hosts: Slurm names all of them, torchrun only this one.
    topology: dict[str, Any] = {"world_size": world_size, "nproc": nproc, "nodes": -(-world_size // max(1, nproc))}
    topology["hosts"] = os.environ.get("SLURM_JOB_NODELIST") or socket.gethostname()
    about = {"schema_version": SCHEMA_VERSION, "run_id": run_id, "argv": sys.argv, "cwd": str(Path.cwd())}
    about |= {"created": now()}
    about |= {"pid": os.getpid(), "pid_start": process_start(os.getpid()), "host": socket.gethostname()}
    about |= {"git": git_state(Path.cwd(), runs_folder), "versions": versions(), "environment": environment()}
    return {**about, "hardware": {**hardware(), **network()}, "topology": topology}


def git_state(folder: Path, *runs_folders: Path) -> dict[str, Any] | None:
    """Return the commit, whether files differ from it, and the hash of the difference; None without git or a commit.

    The difference consists of changes to tracked files and of untracked, not ignored files, except those that dtk
    itself writes: each run would be a code change for the next. Run folders: `runs_folders`, others by their content.
    """
    ends_s = time.monotonic() + GIT_TIMEOUT_S

    def git(*arguments: str) -> bytes | None:
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=folder,
                capture_output=True,
                timeout=max(0.05, ends_s - time.monotonic()),
                check=False,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    top = git("rev-parse", "--show-toplevel")
    dirty = difference = None
    if top is not None:
        root = os.fsdecode(top.removesuffix(b"\n"))
        left_out = [f":(top,exclude,glob)**/{name}" for name in PAGES]
        for runs_folder in runs_folders:
            with suppress(OSError, ValueError):  # The folder is outside the repository.
                inside = str(runs_folder.resolve().relative_to(Path(root).resolve()))
                left_out += [f":(top,exclude,literal){inside}"] if inside not in ("", ".") else []
        paths = ["--", ":/", *left_out]  # Everything in the repository except these folders and dtk's pages.
        changes = git("diff", "HEAD", *paths)
        # Git sees nothing above its folder.
        listed = git("-C", root, "ls-files", "--others", "--exclude-standard", "-z", *paths)
        tracked = git("-C", root, "ls-files", "-z") if listed else b""
        if changes is not None and listed is not None and tracked is not None:
            untracked, tracked_names = (filter(None, names.split(b"\0")) for names in (listed, tracked))
            new = without_runs(Path(root), untracked, tracked_names, folder)
            dirty = bool(changes or new)
            difference = _hash(changes, Path(root), sorted(new)) if dirty else None
    return {"commit": commit.decode().strip(), "dirty": dirty, "diff_sha256": difference}


def _hash(changes: bytes, root: Path, new: list[bytes]) -> str:
    """Return the SHA-256 of a diff and of new files: every name, and size and content of the first up to a limit."""
    digest = hashlib.sha256(changes)
    left_bytes = NEW_BYTES
    for i, name in enumerate(new):
        digest.update(b"\0" + name + b"\0")
        path = root / os.fsdecode(name)
        try:
            if i >= NEW_FILES or not stat.S_ISREG(path.lstat().st_mode):
                continue
            with path.open("rb") as file:
                content = file.read(left_bytes)
                digest.update(b"%d\0" % file.seek(0, os.SEEK_END) + content)
            left_bytes -= len(content)
        except OSError:
            continue
    return digest.hexdigest()


def versions() -> dict[str, str | None]:
    """Return the versions of Python and packages, without importing them; None = not installed."""
    return {"python": platform.python_version(), **{name: installed(name) for name in ("dtk-train", *PACKAGES)}}


def hardware() -> dict[str, Any]:
    """Describe this machine: platform, CPU, memory, and GPUs as NVML reports them."""
    try:
        memory_bytes: int | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory_bytes = None
    model = re.search(r"^model name\s*:\s*(.+)$", kernel_text(CPU_INFO), re.MULTILINE)
    cpu = model[1] if model else platform.processor() or platform.machine()
    about = {"platform": platform.platform(), "cpu": cpu, "cores": usable_cores()}
    return {**about, "memory_bytes": memory_bytes, **_gpus()}


def network() -> dict[str, list[str] | None]:
    """Return network interfaces and RDMA devices of this machine; None if unknown (not Linux)."""
    try:
        interfaces: list[str] | None = sorted(path.name for path in INTERFACES.iterdir())
    except OSError:
        return {"interfaces": None, "infiniband": None}
    # The folder exists once a driver is loaded.
    return {"interfaces": interfaces, "infiniband": [path.name for path in kernel_entries(RDMA)]}


def missing_files(variables: Mapping[str, str]) -> list[str]:
    """Return the NCCL variables of the ranks whose file does not exist on this machine."""
    every = {**variables, **os.environ}
    return [name for name in FILE_VARIABLES if every.get(name) and not Path(every[name]).exists()]


def _gpus() -> dict[str, Any]:
    """Return the GPUs of this machine and the driver, or why they are unknown."""
    nvml, reason = open_nvml()
    if nvml is None:
        return {"gpus": None, "gpu_reason": reason}
    driver = None
    with suppress(nvml.NVMLError):
        driver = nvml.nvmlSystemGetDriverVersion()
    try:
        gpus: list[dict[str, Any]] = []
        for device in all_devices(nvml):
            about = {"index": device.index, "name": device.name, "uuid": device.uuid}
            gpus.append({**about, "memory_bytes": device.sample(nvml).get("memory_total_bytes")})
        return {"gpus": gpus, "nvidia_driver": driver}
    except nvml.NVMLError as error:
        return {"gpus": None, "gpu_reason": f"NVML: {error}"}


def environment() -> dict[str, str]:
    """Return the variables that affect how a job runs, without any whose name suggests a secret."""
    variables = ((name, value) for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES))
    return {name: value for name, value in variables if not is_secret(name, value)}


def without_runs(root: Path, new: Iterable[bytes], tracked: Iterable[bytes], standing: Path) -> list[bytes]:
    """Return the files that are neither in a run folder nor in a folder that holds run folders.

    One with tracked files, or where the user stands, is code whatever it holds; the run folders in it are not.
    """
    code = {b"", *_above(os.fsencode(os.path.relpath(standing.resolve(), root.resolve())) + b"/")}
    for name in tracked:
        folder = name.rpartition(b"/")[0]
        while folder not in code:
            code.add(folder)
            folder = folder.rpartition(b"/")[0]
    is_own: dict[bytes, bool] = {}

    def own(folder: bytes) -> bool:
        if folder not in is_own:
            path = root / os.fsdecode(folder)
            is_own[folder] = _one_run(path) or (folder not in code and _holds_runs(path))
        return is_own[folder]

    return [name for name in new if not any(own(folder) for folder in _above(name))]


def _above(name: bytes) -> list[bytes]:
    parts = name.split(b"/")[:-1]
    return [b"/".join(parts[: n + 1]) for n in range(len(parts))]


def _one_run(path: Path) -> bool:
    return made_by_dtk(path) or ((path / "sweep.json").is_file() and (path / "points").is_dir())


def _holds_runs(path: Path) -> bool:
    with suppress(OSError), os.scandir(path) as entries:
        folders = [Path(entry.path) for entry in itertools.islice(entries, _MOST_CHILDREN) if entry.is_dir()]
        return any(map(_one_run, folders))
    return False
