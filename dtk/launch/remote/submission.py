"""A frozen run: the files from which ranks elsewhere run exactly what was composed here."""

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.secrets import masked
from dtk.config.compose import Composed
from dtk.config.placement import Placement
from dtk.config.schema import RemoteLauncher
from dtk.config.trust import refuse_secrets
from dtk.launch.prepare import rank_variables
from dtk.record.run_folder import configuration

KEPT = ("schema_version", "run_id", "created", "argv", "cwd", "host", "launcher", "config_sha256", "git", "topology")
"""Keys of the manifest that are known at submission. The first rank adds the hardware of the job."""
RANK = "dtk.launch.remote.rank"  # Module that each rank runs, with the run folder.
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True, slots=True)
class Submission:
    """One job for another machine."""

    composed: Composed
    paths: RunPaths
    """The run folder, as the ranks see it."""
    placement: Placement
    attempt: int
    files: dict[str, str]
    """Name -> content of the frozen files."""

    @property
    def launcher(self) -> Any:
        """The `launcher` section."""
        return self.composed.config.launcher

    def variables(self) -> dict[str, str]:
        """Return the variables that the configuration sets for the ranks; the user's values take precedence.

        DtkError if the preset requires a key that is not set.
        """
        return rank_variables(self.composed.config, self.paths, None, threads=self.placement.threads)

    def title(self) -> str:
        """Return the command that created the submission as one line of printable ASCII, for a comment."""
        return _UNPRINTABLE.sub("?", " ".join(["dtk run", *map(shlex.quote, masked(self.composed.overrides))]))


def freeze(
    composed: Composed,
    paths: RunPaths,
    placement: Placement,
    attempt: int,
    about: dict[str, Any],
    plan: dict[str, Any] | None = None,
) -> Submission:
    """Freeze the files that the ranks will read; DtkError if they would expose a secret of the configuration."""
    plain = composed.plain
    refuse_secrets(plain)
    launcher: RemoteLauncher = composed.config.launcher
    about_run = {key: about[key] for key in (*KEPT, "data", "earlier_argv", "rerun_of") if key in about}
    about_run["submitted"] = {"launcher": launcher.name, "argv": about.get("argv"), "created": about.get("created")}
    records = configuration(paths, plain, composed.overrides, composed.origins)
    files = {path.name: text for path, text in records.items()}
    files[paths.manifest.name] = json.dumps(masked(about_run), indent=2, default=str) + "\n"
    if plan is not None:
        files[paths.plan.name] = json.dumps(plan, indent=2, default=str) + "\n"
    return Submission(composed, paths, placement, attempt, files)
