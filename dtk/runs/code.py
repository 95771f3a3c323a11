"""Compares code, versions, data and ranks with the manifest of a run. Imports no torch."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import SCHEMA_VERSION, RunPaths
from diagnostics.contract.formatting import clean, command
from diagnostics.runs.records import as_mapping, mapping
from dtk.config.resume import read_stored
from dtk.config.schema import Config
from dtk.errors import DtkError
from dtk.record.manifest import git_state, versions
from dtk.runs.find import find_readable

_SHOWN = 10  # Number of characters shown of a commit.


def read_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of a run; DtkError if it is absent, damaged or of a newer dtk."""
    problems: list[str] = []
    manifest = mapping(str(RunPaths(run).manifest), problems)
    if not manifest:
        raise DtkError(f"{run} is damaged", clean("; ".join(problems)) or "it has no manifest.json")
    schema = manifest.get("schema_version", 0)
    if not isinstance(schema, int) or schema > SCHEMA_VERSION:
        why = f"manifest.json has schema {clean(schema)[:20]}"
        raise DtkError(f"{run} was written by a newer dtk", why, "upgrade dtk")
    return manifest


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of the code here with that of a run; a few words each."""

    differs: list[str]
    unknown: list[str]
    """Parts that cannot be compared."""

    def words(self, run: str) -> str:
        """Return the differences in one line; empty if there are none."""
        if not self.differs and not self.unknown:
            return ""
        verb = "differs from" if self.differs else "cannot be compared with"
        return f"the code {verb} that of {run}: {'; '.join([*self.differs, *self.unknown])}"


def compare_code(manifest: Mapping[str, Any], *runs_folders: Path) -> Comparison:
    """Compare git's state here and the installed versions with those of a run; `runs_folders` hold no code."""
    before, now = manifest.get("git"), git_state(Path.cwd(), *runs_folders)
    was, installed = as_mapping(manifest.get("versions")), versions()
    differs = [
        f"{name} was {clean(was[name] or 'absent')[:40]}, now {version or 'absent'}"
        for name, version in installed.items()
        if name in was and was[name] != version
    ]
    if not isinstance(before, Mapping):
        return Comparison(differs, ["it was started outside any git repository"])
    commit = clean(before.get("commit"))[:_SHOWN]
    if now is None:
        there = clean(manifest.get("cwd"))[:200]
        return Comparison(differs, [f"it ran at commit {commit} in {there}, and this is not a git repository"])
    unknown = []
    if before.get("commit") != now["commit"]:
        differs.insert(0, f"commit was {commit}, now {now['commit'][:_SHOWN]}")
    if not _is_complete(now) or not _is_complete(before):
        when = "" if _is_complete(before) else " then"
        unknown.append(f"git could not list the uncommitted changes{when}")
    elif before.get("diff_sha256") != now["diff_sha256"]:
        changes = {(False, True): "none then, some now", (True, False): "some then, none now"}
        differs.append(f"uncommitted changes: {changes.get((bool(before['dirty']), now['dirty']), 'different ones')}")
    return Comparison(differs, unknown)


def _is_complete(git: Mapping[str, Any]) -> bool:
    return git.get("dirty") is False or (git.get("dirty") is True and git.get("diff_sha256") is not None)


def ground_differences(manifest: Mapping[str, Any], data_sha256: Any, world_size: int) -> list[str]:
    """Return how the current data and ranks differ from those of the run."""
    differences = []
    before = as_mapping(manifest.get("data")).get("sha256")
    if before is not None and before != data_sha256:
        differences.append(f"the data has changed (hash {clean(before)[:_SHOWN]}, now {clean(data_sha256)[:_SHOWN]})")
    ranks = as_mapping(manifest.get("topology")).get("world_size")
    if isinstance(ranks, int) and ranks != world_size:
        differences.append(f"world_size was {ranks}, now {world_size}")
    return differences


def earlier_run(name: str, *, strict: bool) -> Path:
    """Return the folder of the run to run again, and say how its code differs; `strict` refuses what does.

    DtkError if the run does not exist, is damaged or of a newer dtk, or `strict` is set and the code differs.
    """
    path = Path(find_readable(name).path)
    manifest, folders = read_manifest(path), [path.absolute().parent]
    with suppress(DtkError):  # Reported where the configuration is needed.
        folders.append(Path(read_stored(RunPaths(path), f"--rerun {path}").config.runs_folder))
    differs = compare_code(manifest, *folders).words(clean(path.name))
    if differs and strict:
        raise DtkError(differs, fix=f"bring it back, or drop --strict: {command('rerun', path)}")
    if differs:
        _warn(f"{differs} (--strict refuses)")
    return path


def warn_of_other_inputs(run: Path, config: Config, data: dict[str, Any], world_size: int) -> None:
    """Warn if data or ranks differ from those of the run, unless different ones were requested."""
    before, manifest = read_stored(RunPaths(run), f"--rerun {run}").config, read_manifest(run)
    for section, record in (("data", "data"), ("launcher", "topology")):
        if getattr(before, section) != getattr(config, section):
            manifest[record] = None
    if differ := ground_differences(manifest, data.get("sha256"), world_size):
        _warn(f"not the same as {run.name}: {'; '.join(differ)}")


def _warn(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"dtk: warning: {clean(text)}", file=sys.stderr)
