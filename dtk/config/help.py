"""The text of `dtk run --help`: groups, options and examples, read from conf/. Knows neither Hydra nor YAML."""

from pathlib import Path

from dtk.config.folders import conf_folder, groups

_EXAMPLES = (
    ("python -m dtk.run strategy=fsdp model=gpt2", "the main job"),
    ("python -m dtk.run experiment=smoke strategy=ddp", "seconds on a laptop"),
    ("python -m dtk.run -m strategy=ddp,zero1,zero2,fsdp experiment=bench", "one run after another"),
    ("python -m dtk.run -m strategy=ddp,fsdp experiment=bench repeats=3", "in turns, three times, and compared"),
    ("python -m dtk.run data=text data.path=my_texts train.steps=200", "your own text"),
    ("python -m dtk.run resume=runs/<id> train.steps=500", "go on with a run"),
    ("python -m dtk.run launcher=slurm launcher.nodes=2 --dry-run", "print the job for a cluster"),
    ("python -m dtk.run --cfg strategy=ddp", "print the configuration, run nothing"),
)


def description(path: Path) -> str:
    """Return the first comment line of a YAML file without its `#`; empty if the file starts with anything else."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.startswith("# @"):  # Hydra's own header
                return line.removeprefix("#").strip() if line.startswith("#") else ""
    return ""


def help_text() -> str:
    """Return the help text: the groups with their options, chosen by GROUP=OPTION, and then examples."""
    lines = ["choices (GROUP=OPTION):"]
    for group, options in groups([conf_folder()]).items():
        lines.append(f"  {group}")
        width = max(len(option) for option in options)
        lines += [f"    {option:<{width}}  {description(path)}" for option, path in options.items()]
    lines += [
        "",
        "any key of the configuration is set by its dotted name, for example train.steps=100;",
        "--cfg prints them all.",
        "",
        "examples:",
    ]
    width = max(len(command) for command, _ in _EXAMPLES)
    lines += [f"  {command:<{width}}  # {what}" for command, what in _EXAMPLES]
    return "\n".join(lines) + "\n"
