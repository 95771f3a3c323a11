"""Translation of dtk's configuration and a user's ds_config.json into DeepSpeed's, and the traits of its strategies.

Needs neither torch nor DeepSpeed, since plans, checks and the manifest do not.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any, NamedTuple, Self

from diagnostics.contract.files import read_json, table_beside
from diagnostics.contract.mesh import Mesh
from diagnostics.contract.origins import flat
from dtk.engines.deepspeed.stage3 import gathered, persistent
from dtk.errors import Errors, refused
from dtk.parallel.number_formats import PrecisionConfig
from dtk.sharding.declared import ITEM_BYTES, Collective, ModelShapes, reduced_item_bytes
from dtk.sharding.registry import alternatives
from dtk.sharding.traits import StrategyConfig, Traits

_errors = Errors(__file__)
AUTO = "auto"  # Value of a key in the file that the caller fills in.


class Setting(NamedTuple):
    """A DeepSpeed key that dtk sets: the dtk setting that it comes from, and the value; None omits the key."""

    typed: str
    value: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepSpeedConfig(StrategyConfig):
    """Base class of the strategies that the library DeepSpeed runs."""

    traits = Traits(
        collectives=("all_reduce", "all_gather"),
        library="deepspeed",
        flattened=True,
        in_backward_conflict="DeepSpeed updates the parameters in a step of its own",
        compared=False,
    )
    use_when = "you want to compare or diagnose an existing DeepSpeed job"
    stage = 0
    autocasts = False
    """The parameters themselves have the compute dtype."""

    config: str | None = None

    @property
    def by_torch(self) -> str:
        """Return the strategies to suggest instead: without a library, and with at least the same states sharded."""
        own, kept = self.traits, {False, not self.traits.shards_parameters}  # Values of `keeps_gathered`.
        return alternatives(lambda t: not t.library and {*t.sharded} >= {*own.sharded} and t.keeps_gathered in kept)

    def pages(self, device: str) -> bool:
        """Return False: DeepSpeed itself moves offloaded states."""
        return False

    def in_memory(self) -> Self:
        """Reject a simulation with a DtkError."""
        raise _errors("simulated", s=self)

    def check_job(self, job: Any, world_size: int) -> None:
        """Reject with a DtkError what DeepSpeed cannot do or does differently, and a file that contradicts the job."""
        rules = {
            "files": self.offload_to == "nvme" and self.stage < 3,
            "scaled": job.precision.initial_loss_scale is not None,
            "compiled": job.train.compile,
            "preflight": job.preflight == "on",
        }
        in_files = alternatives(lambda traits: traits.library == self.traits.library and traits.shards_parameters)
        _errors.refuse(rules, s=self, job=job, in_files=in_files)
        self.settings(job, world_size)

    def settings(self, job: Any, world_size: int) -> tuple[dict[str, Any], list[str]]:
        """Return DeepSpeed's configuration, and a line for each part of the user's file that dtk replaces; DtkError if
        the file cannot be read, has an unknown key or section, or contradicts the configuration.
        """
        dtk_settings, table = dict(self._ours(job, world_size)), table_beside(__file__)
        file = self._file()
        self.tuned(file)
        ds_config: dict[str, Any] = {}
        notes: list[str] = []
        for path, value in file.items():
            first = path.partition(".")[0]
            if value == {} and any(key.startswith(f"{path}.") for key in (*dtk_settings, *table["kept"])):
                continue  # A known section without this key.
            if first in table["replaced"]:
                notes.append(f"{first} is replaced by {table['replaced'][first]}")
            elif path in dtk_settings:
                setting = dtk_settings[path]
                if value == AUTO:
                    notes.append(f"{path}=auto becomes {_text(setting.value)}")
                elif not _same(value, setting.value):
                    own = _text(setting.value)
                    raise _errors("contradicts", s=self, path=path, value=_text(value), typed=setting.typed, own=own)
            elif path in table["refused"] and (value is True or value not in (AUTO, False, 1)):
                by_torch = alternatives(lambda t: not t.library and t.shards_parameters and not t.keeps_gathered)
                why, instead = table["refused"]["why"], f"{by_torch} {table['refused'][path]}"
                raise _errors("refused", s=self, path=path, value=_text(value), why=why, instead=instead)
            elif value is not None and any(key.startswith(f"{path}.") for key in (*dtk_settings, *table["kept"])):
                name = path.rpartition(".")[2]
                raise _errors("not_a_section", s=self, path=path, value=_text(value), name=name)
            elif value == {} or path not in table["kept"]:
                raise _errors("unknown", s=self, path=path, kind="section" if value == {} else "key")
            elif value in table["never"].get(path, ()):
                _put(ds_config, path, inf)
            elif value != AUTO and not _of_kind(value, default := table["kept"][path]):
                raise _errors("value", s=self, path=path, value=_text(value), default=_text(default))
            elif value != AUTO:
                _put(ds_config, path, value)
        for path, setting in dtk_settings.items():
            if setting.value is not None and not path.startswith("optimizer."):  # dtk builds this section itself.
                _put(ds_config, path, setting.value)
        return ds_config, [*dict.fromkeys(notes)]

    def _file(self) -> Mapping[str, Any]:
        """Return the values of the user's file by dotted path; empty without a file."""
        if self.config is None:
            return {}
        with refused(f"strategy.config={self.config} cannot be read", "name a JSON file", ValueError):
            content = read_json(self.config, follow=True)
        if not isinstance(content, dict):
            raise _errors("no_object", s=self)
        return flat(content)

    def _ours(self, job: Any, world_size: int) -> Iterator[tuple[str, Setting]]:
        """Yield the keys that dtk sets, by dotted path in DeepSpeed's configuration."""
        train, precision, plan, optimizer = job.train, job.precision, job.batch_plan(world_size), job.optimizer
        batch = f"train.global_batch_size={train.global_batch_size}"
        micro = f"train.micro_batch_size={plan.micro_batch_size}"
        yield "train_batch_size", Setting(batch, train.global_batch_size)
        yield "train_micro_batch_size_per_gpu", Setting(micro, plan.micro_batch_size)
        yield "gradient_accumulation_steps", Setting(f"{batch} {micro} on {world_size} ranks", plan.accumulation_steps)
        yield "gradient_clipping", Setting(f"train.clip_norm={_text(train.clip_norm)}", float(train.clip_norm or 0))
        for key, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
            yield f"{key}.enabled", Setting(f"precision={precision.name}", precision.compute_dtype == dtype)
        reduced = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[precision.reduce_dtype]
        yield "communication_data_type", Setting(f"precision.reduce_dtype={precision.reduce_dtype}", reduced)
        chosen = f"strategy={self.name}"
        yield "zero_optimization.stage", Setting(chosen, self.stage)
        yield "zero_allow_untested_optimizer", Setting(chosen, True)
        yield "zero_force_ds_cpu_optimizer", Setting(chosen, False)
        offload = f"strategy.offload={self.offload} strategy.offload_to={self.offload_to}"
        for part, moved in (("optimizer", self.offload != "none"), ("param", self.offload == "parameters")):
            place = {"host": "cpu", "nvme": "nvme"}[self.offload_to] if moved else "none"
            folder = self.offload_folder if moved else None
            yield f"zero_optimization.offload_{part}.device", Setting(offload, place)
            yield f"zero_optimization.offload_{part}.nvme_path", Setting(f"strategy.offload_folder={folder}", folder)
        yield "optimizer.type", Setting(f"optimizer={optimizer.name}", optimizer.name)
        for key in ("lr", "betas", "eps", "weight_decay", "momentum", "nesterov"):
            if hasattr(optimizer, key):
                value = getattr(optimizer, key)
                yield f"optimizer.params.{key}", Setting(f"optimizer.{key}={_text(value)}", value)

    def tuned(self, file: Mapping[str, Any] | None = None) -> dict[str, int]:
        """Return the element counts in `zero_optimization` that dtk needs: the file's values, else the defaults.

        `file` has the values by dotted path; None reads it. DtkError if that fails, or a value is not a valid count.
        """
        file = self._file() if file is None else file
        numbers, table = {}, table_beside(__file__)
        for key in table["tuned"]:
            default = table["kept"][f"zero_optimization.{key}"]
            short = f"zero_optimization.{key.removeprefix('stage3_')}"  # DeepSpeed takes both names.
            value = file.get(f"zero_optimization.{key}", file.get(short, AUTO))
            value = default if value == AUTO else value
            if not _of_kind(value, default):
                raise _errors("elements", s=self, key=key, value=_text(value))
            numbers[key] = int(value)
        return numbers

    def bucket_elements(self, parameters: int) -> int:
        """Return the elements of the buffer in which gradients travel: never more than the model has parameters."""
        return min(self.tuned()["reduce_bucket_size"], parameters)

    @property
    def doubles_bucket(self) -> bool:
        """Whether one bucket is filled while another travels; stage 3 has one only."""
        return self.stage < 3 and self._file().get("zero_optimization.overlap_comm") is True

    def buckets(self, sizes: Sequence[int]) -> list[list[int]]:
        """Fill buckets with gradients in the order of backward; one that is larger than a bucket has its own.

        `sizes` are the elements of each parameter, in the order of the model.
        """
        most, filled = self.tuned()["reduce_bucket_size"], list[list[int]]()
        for size in reversed(sizes):
            if not filled or sum(filled[-1]) + size > most:
                filled.append([])
            filled[-1].append(size)
        return filled

    def declare(
        self, shapes: ModelShapes, mesh: Mesh, precision: PrecisionConfig, accumulation_steps: int
    ) -> list[Collective]:
        """Declare the collectives of DeepSpeed 0.19: bytes as measured, the number of calls estimated from buckets.

        Stages 1 and 2 reduce by all_reduce, of which a rank keeps its part. Stage 3 gathers large parameters in each
        micro-batch, once or again for backward, and those that stay gathered once after the update.
        """
        if mesh.dp_size == 1:
            return []
        item, reduced, ranks = ITEM_BYTES[precision.compute_dtype], reduced_item_bytes(precision), mesh.dp_size
        sizes = [prod(shape) for shape in shapes.parameters]
        tuned = self.tuned()
        buckets = len(self.buckets(sizes))
        if self.stage == 3:
            padded = [-(-size // ranks) * ranks for size in sizes]
            stay = [size for size, stays in zip(padded, persistent(shapes.parameters, tuned), strict=True) if stays]
            steps, turns = accumulation_steps, gathered(shapes.parameters, tuned)
            gathers = [call for turn in turns for call in (turn.fetched, turn.prefetched) if call]
            come = sum(padded[p] for call in gathers for p in call)
            return [
                Collective("all_gather", "dp", len(stay) + steps * len(gathers), item * (sum(stay) + steps * come)),
                Collective("reduce_scatter", "dp", steps * buckets, steps * reduced * sum(padded)),
                # Whether the norm is finite, and its square; in float64 unless the optimizer states are on the host.
                Collective("all_reduce", "dp", 2, 16 if self.offload == "none" else 8),
            ]
        rounds = accumulation_steps if self.stage == 2 else 1
        groups = [sum(prod(s) for s in shapes.parameters if (len(s) > 1) == matrices) for matrices in (True, False)]
        aligned = [-(-group // (2 * ranks)) * 2 * ranks for group in groups if group]
        flags, flag_bytes = (2, 8) if item == 4 else (3, 9)
        calls = rounds * buckets + flags, rounds * reduced * sum(sizes) + flag_bytes
        updated = Collective("all_gather", "dp", len(aligned), item * sum(aligned))
        return [Collective("all_reduce", "dp", *calls), updated]

    def declare_clip(self, mesh: Mesh) -> tuple[Collective, ...]:
        """Return nothing: DeepSpeed always computes the norm in its step, so `declare` includes it."""
        return ()


def _put(into: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for name in sections:
        into = into.setdefault(name, {})
    into[last] = value


def _same(theirs: Any, own: Any) -> bool:
    """Whether two values mean the same; DeepSpeed's Adam is AdamW, and a string may hold a number."""
    if isinstance(theirs, str) and isinstance(own, str):
        return theirs.lower() in (own.lower(), {"adamw": "adam"}.get(own))
    if isinstance(theirs, list) and isinstance(own, list | tuple):
        return len(theirs) == len(own) and all(map(_same, theirs, own))
    return bool(theirs == own) or (own is None and theirs in (None, ""))


def _of_kind(value: Any, default: Any) -> bool:
    """Whether a value may stand in the place of a default; numbers are not negative, and whole if the default is."""
    if isinstance(default, bool) or not isinstance(default, int | float):
        return type(value) is type(default)
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**63
    return number and (isinstance(default, float) or value == int(value))


def _text(value: Any) -> str:
    """Format a value as the file and an override do: null, true, [0.9,0.95]."""
    return json.dumps(value, separators=(",", ":"))
