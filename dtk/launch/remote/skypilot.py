"""The task file of a SkyPilot job, whose script contains the frozen run. Starts no machine."""

import re
from typing import Any

from dtk.config.schema import SkypilotLauncher
from dtk.console.script_text import as_yaml, check_form, check_line, shell
from dtk.errors import Errors
from dtk.launch.remote.submission import RANK, Submission

_errors = Errors(__file__)
PORT = 29500  # torchrun's default, unless `launcher.master_port` is set.
_MEMORY = re.compile(r"\d+(?:\.\d+)?[+x]?")
_END = "DTK_END_OF_FILE"


def render(job: Submission) -> str:
    """Render the task file; DtkError if the machines are specified too little, or could not share a run folder."""
    launcher: SkypilotLauncher = job.launcher
    rules = {
        "no_accelerator": launcher.gpus_per_node and not launcher.accelerator,
        "no_gpus": launcher.accelerator and not launcher.gpus_per_node,
        "no_cloud": launcher.region and not launcher.cloud,
        "no_bucket": launcher.bucket is None and (launcher.use_spot or launcher.nodes > 1),
        "bucket_path": not launcher.bucket_path.startswith("/"),
    }
    typed = f"launcher.nodes={launcher.nodes}" if launcher.nodes > 1 else "launcher.use_spot=true"
    _errors.refuse(rules, l=launcher, typed=typed)
    mounts = {launcher.bucket_path: {"source": launcher.bucket, "mode": "MOUNT_CACHED"}} if launcher.bucket else None
    setup = "".join(f"{check_line(line, 'launcher.setup')}\n" for line in launcher.setup)
    cpus, memory = (launcher.cpus_per_rank or 0) * job.placement.nproc, launcher.memory_per_node
    requested = {
        "accelerators": f"{launcher.accelerator}:{launcher.gpus_per_node}" if launcher.gpus_per_node else None,
        "cpus": f"{cpus}+" if cpus else None,
        "memory": memory and check_form(memory, _MEMORY, "launcher.memory_per_node", "an amount of memory", "200+"),
        "infra": "/".join(filter(None, (launcher.cloud, launcher.region))) or None,
        "image_id": launcher.image,
        "disk_size": launcher.disk_gb,
    }
    resources = {**{key: value for key, value in requested.items() if value is not None}, "use_spot": launcher.use_spot}
    task: dict[str, Any] = {"name": name_of(job), "num_nodes": launcher.nodes, "resources": resources}
    task |= {"workdir": launcher.workdir, "file_mounts": mounts, "envs": job.variables()}
    task |= {"setup": setup, "run": run_script(job)}
    return f"# {job.title()}\n{as_yaml({key: value for key, value in task.items() if value})}"


def name_of(job: Submission) -> str:
    """Return a name that SkyPilot accepts, derived from the run's id."""
    return "dtk-" + "".join(letter if letter.isalnum() or letter == "-" else "-" for letter in job.paths.root.name)


def run_script(job: Submission) -> str:
    """Return the script of every node: it writes the frozen run to disk and starts torchrun."""
    launcher: SkypilotLauncher = job.launcher
    frozen = f"dtk-frozen-{job.paths.root.name}"
    lines = ["set -eu", f'frozen="$HOME"/{shell(frozen)}', 'mkdir -p "$frozen"']
    for name, text in sorted(job.files.items()):
        end = _END
        while end in text:
            end += "_"
        lines += [f"cat > \"$frozen\"/{shell(name)} <<'{end}'", text.removesuffix("\n"), end]
    port = launcher.master_port or PORT
    lines += [
        f"torchrun --nnodes={launcher.nodes} --nproc-per-node={job.placement.nproc} \\",
        '  --node-rank="$SKYPILOT_NODE_RANK" --master-addr="$(head -n 1 <<< "$SKYPILOT_NODE_IPS")" \\',
        f"  --master-port={port} --max-restarts={launcher.max_restarts} \\",
        f'  -m {RANK} {shell(job.paths.root)} --frozen="$frozen"',
    ]
    return "\n".join(lines) + "\n"
