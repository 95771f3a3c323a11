"""Trust in run folders: who owns a folder, and which of its settings need the user's consent.

A run folder may belong to another user. Nothing in it may name code to import, commands to run or libraries to load;
such settings, and folders that a run writes to, apply only if the user types them again.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.origins import at_key, flat
from diagnostics.contract.secrets import MASK, masked
from dtk.errors import Errors

_errors = Errors(__file__)
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_RANGE = re.compile(r"[0-9a-fA-F.:]+/\d{1,3}(?=,|$)")
"""An address range such as `10.1.0.0/16`: the only value with a slash that is not a path. Transports load libraries
from other paths (NCCL_NET_PLUGIN, FI_PROVIDER_PATH, UCX_MODULE_DIR, HSA_TOOLS_LIB) or write there."""
_FILE = re.compile(r"(?:FILE|PATH|DIR|FOLDER)$")
"""Variables whose value is a path even without a slash, relative to the user's working directory."""
_WRITES = re.compile(r"(?:DEBUG|DUMP)\w*_FILE$")
"""Variables that name a file to write: the one kind that may name a path in the run folder, as dtk's presets do.
A library there would be somebody else's code."""
_REACHED = re.compile(r"(?:IFNAME|IFACE|NET_DEVICES|COMM_ID|ADDR)$")
"""Variables that say where ranks listen or whom they call. Nothing there is authenticated."""
_KEPT_INSIDE = ("lo", "lo0", "127.0.0.1", "None")
"""Loopback, or what an optional key that is null leaves: the variable is not set."""
_KEY = re.compile(r"\{(?!run\})(\w+)\??\}")
COMMANDS = (
    "launcher.setup", "launcher.python", "launcher.extra", "launcher.srun_extra", "launcher.image",
    "launcher.workdir", "launcher.secrets",
)  # fmt: skip
"""Settings that become commands, or name what is executed."""
WRITTEN = ("strategy.offload_folder",)
"""Folders outside its own that a run writes to; for `runs_folder` see `dtk.config.resume.rerun`."""


def check_owner(folder: Path, option: str, *, trust: bool) -> None:
    """Reject a folder that others may have written to; DtkError if it is another user's, or others may write to it."""
    try:
        status = folder.stat()
    except OSError:
        return  # The reader of the folder reports it.
    if trust or not hasattr(os, "geteuid"):
        return
    rules = {"owner": status.st_uid != os.geteuid(), "writable": status.st_mode & _WRITABLE}
    who = "everybody" if status.st_mode & stat.S_IWOTH else "its group"
    _errors.refuse(rules, option=option, owner=partial(owner, folder), who=who)
    paths = RunPaths(folder)
    for path in (paths.config, paths.overrides, paths.origins):  # A umask of 002 makes files group-writable.
        with contextlib.suppress(OSError):  # The reader of the file reports it.
            status = path.stat()
            if (is_own := status.st_uid == os.geteuid()) and not status.st_mode & stat.S_IWOTH:
                continue
            what = "can be written by everybody" if is_own else f"belongs to {owner(path)}"
            raise _errors("file", option=option, name=path.name, what=what)


def check_entries(folder: Path, option: str, *, trust: bool) -> None:
    """Refuse to write into a folder in which something leads elsewhere, or is written elsewhere, too; DtkError if a
    link of it leads out of the folder, a pipe or device stands in it, or a file has another name.
    """
    root = folder.resolve()
    for above, folders, files in () if trust else os.walk(root):
        entries = [Path(above) / name for name in (*folders, *files)]
        folders[:] = [name for name in folders if name != "wandb"]  # W&B links to its caches in there.
        for path in entries:
            link = path.is_symlink()
            inside = path.exists() and path.resolve().is_relative_to(root)
            if inside if link else path.is_dir() or (path.is_file() and path.stat().st_nlink == 1):
                continue
            what = "a link out of the folder, or to nothing" if link else "not a regular file, or one with another name"
            raise _errors("entry", option=option, entry=path.relative_to(root), what=what)


def owner(folder: Path) -> str:
    """Return the name of the user who owns a folder, or the user id if it has no name."""
    try:
        return folder.owner()
    except KeyError:
        return f"user {folder.stat().st_uid}"


def refuse_stored_code(stored: Mapping[str, Any], plain: Mapping[str, Any], typed: Iterable[str], option: str) -> None:
    """Reject settings of a run folder that would execute something or write elsewhere, unless typed again; DtkError if
    such a setting came from the folder.
    """
    keys = set(typed)
    for key in (*COMMANDS, *WRITTEN):
        value = at_key(plain, key)
        if value and value == at_key(stored, key) and not keys & {key, key.split(".")[0]}:
            again = f"[{','.join(map(str, value))}]" if isinstance(value, list) else value
            row = "executed" if key in COMMANDS else "written"
            raise _errors(row, option=option, key=key, again=again, value=value)
    # All ranks are on this machine: no launcher started this process, or torchrun did on one node.
    local = os.environ.get("WORLD_SIZE") == os.environ.get("LOCAL_WORLD_SIZE") and "SLURM_PROCID" not in os.environ
    before, local = _variables(stored), local and at_key(plain, "launcher.name") == "local"
    for name, value in _variables(plain).items():
        inside = value.startswith("{run}/") and ".." not in value and _WRITES.search(name)
        key = f"nccl.variables.{name}"
        path = "/" in _RANGE.sub("", value) or (_FILE.search(name) and not value.startswith("{"))
        reached = local and _REACHED.search(name) and value.lstrip("=") not in _KEPT_INSIDE
        if (reached or (path and not inside)) and before.get(name) == value and not keys & {"nccl", key}:
            raise _errors("address" if reached else "path", option=option, key=key, again=f'"{value}"')


def _variables(plain: Mapping[str, Any]) -> dict[str, str]:
    """Return the NCCL variables with placeholders filled in, except for the topology file, which is only read."""
    given = {name: str(text) for name, text in (at_key(plain, "nccl.variables") or {}).items()}
    filled = {name: _KEY.sub(lambda key: str(at_key(plain, f"nccl.{key[1]}")), text) for name, text in given.items()}
    return filled | {name: text for name, text in given.items() if name == "NCCL_TOPO_FILE"}


def refuse_masked(plain: Mapping[str, Any]) -> None:
    """Reject a stored configuration whose secrets are masked; DtkError if a value must be typed again."""
    for key, value in flat(plain).items():
        if any(MASK in item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)):
            raise _errors("masked", key=key)


def refuse_secrets(plain: Mapping[str, Any]) -> None:
    """Reject a configuration with secrets for a job whose files others may read; DtkError names the key."""
    masked_values = flat(masked(dict(plain)))
    for key, value in flat(plain).items():
        if masked_values.get(key) != value:
            where = "use launcher.secrets on Kubernetes" if plain["launcher"]["name"] == "kubernetes" else "export it"
            raise _errors("secret", key=key, where=where)
