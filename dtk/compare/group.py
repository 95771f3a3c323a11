"""Groups runs: which are repeats, the label of each variant, and which form a series over world sizes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from diagnostics.contract import origins
from diagnostics.contract.files import table_beside
from diagnostics.contract.grouping import grouped
from diagnostics.runs.records import as_mapping
from dtk.compare.model import NOT_COMPARED, Figure, RunRecord, Scaled, Variant, medians
from dtk.sharding.registry import NATIVE

_TABLE = table_beside(__file__)
_IGNORED, _IGNORED_KEYS, _LAUNCHER = _TABLE["ignored"], _TABLE["ignored_keys"], _TABLE["launcher"]
_SHORT, _SPOKEN, _FOLLOWS = _TABLE["short"], _TABLE["spoken"], _TABLE["follows"]
Kind = Literal["strong", "weak"]
_VALUE_CHARACTERS = 40  # Chosen: a label stays within a column.


def variants(runs: Sequence[RunRecord]) -> list[Variant]:
    """Group runs that differ only by chance, in the given order."""
    groups = grouped(((_settings(run), run.world_size, machine(run)), run) for run in runs)
    members = list(groups.values())
    return [
        Variant(label, group, sorted((r for r in group if compares(r)), key=lambda run: run.started))
        for label, group in zip(_labels([group[0] for group in members]), members, strict=True)
    ]


def compares(run: RunRecord) -> bool:
    """Return whether a run has comparable figures: its state allows it, and steps follow the warm-up."""
    return run.state not in NOT_COMPARED and any(w.first >= w.began_step + run.warmup_steps for w in run.windows)


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted key -> plain value, except for keys that affect neither the training nor its speed."""
    return {
        name: tuple(map(str, value)) if isinstance(value, list) else value
        for name, value in origins.flat(config).items()
        if name not in _IGNORED_KEYS and (name.split(".")[0] not in _IGNORED or name in _LAUNCHER) and value != {}
    }


def machine(run: RunRecord) -> tuple[str, ...]:
    """Return what the run used: devices, number of nodes, version of torch, and commit."""
    hardware, git = as_mapping(run.manifest.get("hardware")), as_mapping(run.manifest.get("git"))
    gpus = hardware.get("gpus")
    names = Counter(str(as_mapping(gpu).get("name")) for gpu in gpus) if isinstance(gpus, list) else {}
    # Only the run's own ranks count: a run on CPU of a machine with GPUs is none on GPUs.
    devices = " + ".join(sorted(names)) if names else str(hardware.get("cpu"))
    nodes = as_mapping(run.manifest.get("topology")).get("nodes")
    torch = as_mapping(run.manifest.get("versions")).get("torch")
    # Not what differs from the commit: the run folders themselves may lie among the files that git does not know.
    return devices, f"{nodes} nodes", f"torch {torch}", str(git.get("commit") or "")[:9]


def _labels(runs: Sequence[RunRecord]) -> list[str]:
    values = [flat(run.config) for run in runs]
    keys = []
    for key in dict.fromkeys(key for config in values for key in config):
        # Keys of a group count only among those that chose the same option of it.
        choices: dict[Any, set[str]] = {}
        for config in values:
            choice = config.get(f"{key.split('.')[0]}.name") if not key.endswith(".name") else None
            choices.setdefault(choice, set()).add(repr(config.get(key)))
        keys += [key] if any(len(texts) > 1 for texts in choices.values()) else []
    labels = [_label(config, keys) for config in values]
    if len({run.world_size for run in runs}) > 1:
        labels = [f"{label} w{run.world_size}" for label, run in zip(labels, runs, strict=True)]
    for part in range(4):
        parts = [machine(run)[part] for run in runs]
        if len(set(labels)) < len(labels) and len(set(parts)) > 1:
            labels = [f"{label} {text or 'no commit'}" for label, text in zip(labels, parts, strict=True)]
    counts: Counter[str] = Counter()
    for n, label in enumerate(labels):
        counts[label] += 1
        labels[n] = f"{label} ({counts[label]})" if counts[label] > 1 else label
    return labels


def _label(values: Mapping[str, Any], keys: Sequence[str]) -> str:
    parts = [str(values.get("strategy.name", "run"))]
    for key in keys:
        # engine=native is what nobody types, and wrong beside a strategy that another library runs.
        if key == "strategy.name" or key not in values or (key, values[key]) == ("engine", NATIVE):
            continue
        section = next((prefix for prefix in _SHORT if key.startswith(prefix)), "")
        name = _SPOKEN.get(key) or (key.removesuffix(".name") if key.endswith(".name") else key.removeprefix(section))
        value = values[key]
        text = str(value).lower() if isinstance(value, bool) else str(value)  # As it is typed.
        parts.append(f"{name}={text[:_VALUE_CHARACTERS]}")
    return " ".join(parts)


def scaling(variants: Sequence[Variant], figures: Sequence[Figure]) -> list[Scaled]:
    """Return efficiency of every series with at least two numbers of ranks, in order of ranks."""
    speeds = medians(figures, "tokens_per_s")
    points: list[Scaled] = []
    kinds: tuple[tuple[Kind, Callable[[Variant], Any]], ...] = (
        ("strong", lambda variant: variant.any.batch[0]),
        ("weak", _per_rank),
    )
    for kind, batch in kinds:
        measured = (variant for variant in variants if variant.label in speeds)
        series = grouped(((_settings(variant.any, _FOLLOWS), batch(variant)), variant) for variant in measured)
        for members in series.values():
            if len({member.any.world_size for member in members}) == len(members) > 1:
                members.sort(key=lambda member: member.any.world_size)
                words = [member.label.split(" ") for member in members]
                name = " ".join(word for word in words[0] if all(word in label for label in words))
                per_rank = [speeds[member.label] / member.any.world_size for member in members]
                for member, speed in zip(members, per_rank, strict=True):
                    size, tokens_per_s = member.any.world_size, speeds[member.label]
                    points.append(Scaled(name, kind, size, tokens_per_s, speed / per_rank[0]))
    return points


def grows_with_ranks(variants: Sequence[Variant]) -> bool:
    """Return whether the variants are one series whose global batch grows with the ranks: weak scaling."""
    sizes, batches = {v.any.world_size for v in variants}, {v.any.batch[0] for v in variants}
    series = {(_settings(variant.any, _FOLLOWS), _per_rank(variant)) for variant in variants}
    return len(series) == 1 and len(sizes) == len(batches) == len(variants) > 1


def _settings(run: RunRecord, but: Sequence[str] = ()) -> tuple[Any, ...]:
    return tuple(sorted((key, repr(value)) for key, value in flat(run.config).items() if key not in but))


def _per_rank(variant: Variant) -> float:
    samples = variant.any.batch[0]
    return samples / variant.any.world_size if isinstance(samples, int | float) else 0.0
