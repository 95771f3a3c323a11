"""Formats presets, differences, lints and recommendations for terminals, pipes and the table in docs/nccl.md, and
exports a preset as shell, Slurm, Kubernetes or Docker file, in which variables that are already set take precedence.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from diagnostics.contract.formatting import clean, command, counted
from diagnostics.report import document as doc
from diagnostics.report.markdown import table
from dtk.console.options import wrapped
from dtk.console.output import rendered
from dtk.console.script_text import as_yaml, kubernetes_argument
from dtk.errors import DtkError
from dtk.nccl.lint import Linted
from dtk.nccl.presets import ABOUT_WHOLE, Advice, Preset
from dtk.nccl.render import ENVIRONMENT, RUN, fill

_WORDS = {"any": "NCCL or gloo", "nccl": "NCCL", "gloo": "gloo"}
_TONES: dict[str, doc.Tone] = {"error": "bad", "warning": "warn", "note": "soft"}
COLUMNS = 100  # Line width of comments in exported files.
_PLAIN = re.compile(r"[A-Za-z0-9_.,:/-]+")


def listing(presets: Mapping[str, Preset], problems: Mapping[str, DtkError]) -> str:
    """Return one line for each preset; unreadable presets come last."""
    rows = [(name, _WORDS[p.config.backend], str(len(p.settings)), p.summary) for name, p in presets.items()]
    rows += [(name, "-", "-", f"cannot be used: {problem}") for name, problem in problems.items()]
    return rendered(doc.Document("", "", (doc.table([("preset", "for", "sets", "what it is"), *rows]),)))


def shown(preset: Preset) -> str:
    """Return all details of one preset."""
    rows = [doc.Field("for", f"ranks over {_WORDS[preset.config.backend]}")]
    rows += [doc.Field(key, preset.about[key]) for key in ABOUT_WHOLE if preset.about.get(key)]
    rows.append(doc.Field("use", _usage(preset)))
    settings = []
    for setting in preset.settings:
        texts = {key: getattr(setting, key) for key in ("why", "versions", "source", "harms", "remove")}
        # Properties of the whole preset are listed above.
        fields = [doc.Field(key, text) for key, text in texts.items() if text and text != preset.about.get(key)]
        settings.append(doc.Section((doc.Span(f"{setting.name}={setting.value}"),), (doc.Fields(tuple(fields)),)))
    answer = doc.Span(f"nccl={preset.name}: {preset.summary}", "strong")
    return rendered(doc.Document(preset.name, answer, (doc.Fields(tuple(rows)), *settings)))


def _usage(preset: Preset) -> str:
    lines = preset.path.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[1].removeprefix("# Use:").strip() if len(lines) > 1 else f"python -m dtk.run nccl={preset.name}"


def differences(first: str, second: str, a: Mapping[str, str], b: Mapping[str, str]) -> str:
    """Return the variables that differ between two sides, marked as by `diff -u`."""
    names = sorted({*a, *b})
    changed = [name for name in names if a.get(name) != b.get(name)]
    lines = [f"--- {first}", f"+++ {second}"]
    for name in changed:
        lines += [f"-{name}={clean(a[name])}"] if name in a else []
        lines += [f"+{name}={clean(b[name])}"] if name in b else []
    lines.append(f" {len(names) - len(changed)} the same" if names else " neither sets anything")
    return "\n".join(lines) + "\n"


def linted(result: Linted) -> str:
    """Return the lints, most severe first, with their counts in the last line."""
    rows = []
    for item in result.items:
        what = f"{item.variable}={item.value}" if item.place and item.variable else item.variable or item.place
        where = f" ({item.place})" if item.variable and item.place else ""
        rows.append(doc.Field(item.severity, f"{what}{where}: {item.message}", _TONES[item.severity]))
        if not item.fix_in_message:
            rows.append(doc.Field("", item.fix))
    numbers = ((sum(item.severity == kind for item in result.items), kind) for kind in _TONES)
    totals = ", ".join(counted(*number) for number in numbers if number[0])
    version = f"NCCL {result.nccl_version}" if result.nccl_version else "NCCL version unknown"
    where = ", ".join(f"the {ENVIRONMENT}" if place == ENVIRONMENT else place for place in result.read)
    verdict = f"{totals or 'no problem'} in {counted(result.checked, 'variable')} of {where}"
    verdict = verdict if result.checked or totals else f"no NCCL variable is set in {where}"
    last = doc.Paragraph(f"{verdict} ({version}; {result.facts})")
    return rendered(doc.Document("", "", doc.present(doc.Fields(tuple(rows)) if rows else None, last)))


def recommended(advices: Sequence[Advice], besides: Sequence[str]) -> str:
    """Return a preset for each case, with the reasons."""
    blocks: list[doc.Block] = []
    for advice in advices:
        rows = [doc.Field("because", reason) for reason in advice.because]
        rows += [doc.Field("give", need) for need in advice.needs]
        rows.append(doc.Field("use", command("run", f"nccl={advice.preset}")))
        blocks += [doc.Paragraph(doc.Span(f"{advice.case}: nccl={advice.preset}", "strong")), doc.Fields(tuple(rows))]
    blocks.append(doc.Fields(tuple(doc.Field("also", note) for note in besides)))
    return rendered(doc.Document("", "", tuple(blocks)))


def markdown(presets: Mapping[str, Preset]) -> str:
    """Render the presets with every variable, as they appear in docs/nccl.md."""
    parts = []
    for preset in presets.values():
        parts.append(f"\n### {preset.name}\n{preset.summary} For ranks over {_WORDS[preset.config.backend]}.\n\n")
        parts.append(f"`{_usage(preset)}`\n\n")
        about = ((key, preset.about.get(key)) for key in ("versions", "harms", "remove", "advice"))
        parts += [f"- {key}: {text}\n" for key, text in about if text]
        settings, names = preset.settings, ("variable", "value", "why", "source", "versions", "harms", "remove")
        rows = [(f"`{s.name}`", f"`{s.value}`", s.why, s.source, s.versions, s.harms, s.remove) for s in settings]
        parts.append(f"\n{table([names, *([cell.replace('|', chr(92) + '|') for cell in row] for row in rows)])}\n")
    return "".join(parts)


def export(preset: Preset, form: str, config_values: Mapping[str, str], run: Path | None) -> str:
    """Render the preset in one form, with `run` in place of `{run}`; DtkError if a key that it needs is null."""
    variables: dict[str, str] = {}
    for setting in preset.settings:
        if f"{{{RUN}}}" in setting.value and run is None:
            why, fix = "outside of dtk run there is no run folder", "run=FOLDER, one that all ranks can write to"
            raise DtkError(f"{preset.name} writes files ({setting.name})", why, fix)
        value = fill(preset.config, setting.name, setting.value, run)
        if value is not None and not value.isprintable():
            raise DtkError(f"{setting.name} of {preset.name} has a line break or a control character")
        if value is not None:
            variables[setting.name] = value
    typed = " ".join(["dtk nccl export", preset.name, *(f"{k}={v}" for k, v in config_values.items())])
    heading = [f"nccl={preset.name}: {preset.summary}", f"Made by: {typed} --format {form}"]
    heading += wrapped(preset.about.get("advice", ""), COLUMNS)
    if form == "k8s":
        return _kubernetes(heading, variables)
    if form == "docker":
        use = "Use: docker run --env-file nccl.env --shm-size=1g --ulimit memlock=-1 IMAGE ..."
        lines = _comments([*heading, use, "A later -e NAME=VALUE on the command line takes precedence."])
        return "\n".join([*lines, *(f"{name}={value}" for name, value in variables.items())]) + "\n"
    start = ["#!/bin/sh", *_comments(["Source it before the job starts: . ./nccl.sh", *heading])]
    if form == "slurm":
        how = "For an sbatch script, before srun; srun hands the variables on."
        start = ["#!/bin/bash", *_comments([how, *heading]), "#SBATCH --export=ALL"]
    reasons = {setting.name: setting.why for setting in preset.settings}
    lines = [*start, ""]  # Then an export of each variable, which keeps a value set by the user.
    folders = sorted({str(Path(value).parent) for value in variables.values() if run is not None and str(run) in value})
    lines += [f"mkdir -p -- {' '.join(shlex.quote(folder) for folder in folders)}"] if folders else []
    for name, value in variables.items():
        lines += _comments(wrapped(f"{name}: {reasons[name]}", COLUMNS))
        # Quote even what only some shells expand (zsh expands `=eth0` to the path of a command).
        quoted = shlex.quote(value) if _PLAIN.fullmatch(value) or shlex.quote(value) != value else f"'{value}'"
        lines.append(f'[ -n "${{{name}+set}}" ] || export {name}={quoted}')
    return "\n".join(lines) + "\n"


def _kubernetes(heading: list[str], variables: dict[str, str]) -> str:
    """Render part of a pod template, to be merged by container name with kustomize or kubectl patch."""
    container = {
        "name": "pytorch",
        "env": [{"name": name, "value": kubernetes_argument(value)} for name, value in variables.items()],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    spec = {"spec": {"containers": [container], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}}
    notes = ["Merge it into the pod template (strategic merge); `pytorch` is the container of the training job."]
    return "\n".join(_comments([*heading, *notes])) + "\n" + as_yaml(spec)


def _comments(lines: list[str]) -> list[str]:
    return [f"# {line}" for line in lines]
