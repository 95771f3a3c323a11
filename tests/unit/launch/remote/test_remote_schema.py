"""Rendered jobs against what their operators publish: the models of Kubeflow's packages, SkyPilot's own schema.

These packages are not among dtk's: install kubeflow-training, kubeflow-trainer-api or skypilot beside dtk to run them.
"""

import importlib
import re
import typing
from typing import Any

import pytest
import yaml

from dtk.launch.remote import kubernetes, skypilot
from tests.unit.launch.remote.jobs import JOBS, MESH, SKYPILOT, job

SMALL = ["launcher=kubernetes", "launcher.image=x"]
FULL = [JOBS["pytorchjob"], [*SMALL, *MESH, "launcher.gpus_per_node=16", "launcher.nodes=1"], SMALL]


def documents(overrides: list[str]) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(kubernetes.render(job(*overrides))))


def swagger_problems(value: Any, kind: str, modules: tuple[Any, ...], path: str) -> list[str]:
    """What an OpenAPI model of the older generator says of a value: unknown and missing keys, wrong types."""
    scalars = {"str": str, "int": int, "bool": bool}
    if kind in scalars:
        return [] if type(value) is scalars[kind] else [f"{path}: {value!r} is not {kind}"]
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        items = enumerate(value) if isinstance(value, list) else [(-1, None)]
        return [p for i, item in items for p in swagger_problems(item, match[1], modules, f"{path}[{i}]")]
    if match := re.fullmatch(r"dict\(str, (.+)\)", kind):
        items = value.items() if isinstance(value, dict) else [("?", None)]
        return [p for key, item in items for p in swagger_problems(item, match[1], modules, f"{path}.{key}")]
    model = next((getattr(module, kind) for module in modules if hasattr(module, kind)), None)
    if model is None or not isinstance(value, dict):
        return [f"{path}: no model {kind}" if model is None else f"{path}: {value!r} is not {kind}"]
    keys = {external: internal for internal, external in model.attribute_map.items()}
    problems = [f"{path}: unknown key {key}" for key in value if key not in keys]
    for key, item in value.items():
        if key in keys:
            problems += swagger_problems(item, model.openapi_types[keys[key]], modules, f"{path}.{key}")
    return problems


def pydantic_unknown(value: Any, hint: Any, path: str) -> list[str]:
    """Keys that a pydantic model would let pass unread."""
    if typing.get_origin(hint) is dict and isinstance(value, dict):
        inner = typing.get_args(hint)[1]
        return [p for key, item in value.items() for p in pydantic_unknown(item, inner, f"{path}.{key}")]
    for inner in typing.get_args(hint):
        if typing.get_origin(hint) is list and isinstance(value, list):
            return [p for i, item in enumerate(value) for p in pydantic_unknown(item, inner, f"{path}[{i}]")]
        if problems := pydantic_unknown(value, inner, path):
            return problems
    fields = getattr(hint, "model_fields", None)
    if fields is None or not isinstance(value, dict):
        return []
    by_alias = {field.alias or name: field.annotation for name, field in fields.items()}
    problems = [f"{path}: unknown key {key}" for key in value if key not in by_alias]
    return problems + [
        p for key in value if key in by_alias for p in pydantic_unknown(value[key], by_alias[key], f"{path}.{key}")
    ]


@pytest.mark.parametrize("overrides", FULL, ids=["full", "one_node", "small"])
def test_pytorch_job_and_config_map(overrides):
    training = pytest.importorskip("kubeflow.training.models", reason="kubeflow-training is not installed")
    core = importlib.import_module("kubernetes.client.models")
    config_map, work = documents(overrides)
    assert swagger_problems(config_map, "V1ConfigMap", (core,), "ConfigMap") == []
    assert swagger_problems(work, "KubeflowOrgV1PyTorchJob", (training, core), "PyTorchJob") == []
    work["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["nodes"] = 1
    assert swagger_problems(work, "KubeflowOrgV1PyTorchJob", (training, core), "PyTorchJob") != []


@pytest.mark.parametrize("overrides", FULL, ids=["full", "one_node", "small"])
def test_train_job(overrides):
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed")
    _, work = documents([*overrides, "launcher.kind=TrainJob"])
    models.TrainerV1alpha1TrainJob.from_dict(work)
    assert pydantic_unknown(work, models.TrainerV1alpha1TrainJob, "TrainJob") == []
    work["spec"]["trainer"]["nodes"] = 1
    assert pydantic_unknown(work, models.TrainerV1alpha1TrainJob, "TrainJob") == [
        "TrainJob.spec.trainer: unknown key nodes"
    ]


@pytest.mark.parametrize("overrides", [SKYPILOT, ["launcher=skypilot"]], ids=["full", "small"])
def test_sky_task(overrides):
    schemas = pytest.importorskip("sky.utils.schemas", reason="skypilot is not installed")
    jsonschema = pytest.importorskip("jsonschema")
    task = yaml.safe_load(skypilot.render(job(*overrides)))
    validators = [(schemas.get_task_schema(), task), (schemas.get_resources_schema(), task["resources"])]
    validators += [(schemas.get_storage_schema(), mount) for mount in task.get("file_mounts", {}).values()]
    for schema, value in validators:
        validator = jsonschema.Draft202012Validator
        problems = list(validator({**schema, "$schema": validator.META_SCHEMA["$id"]}).iter_errors(value))
        assert not problems, problems
    assert list(jsonschema.Draft202012Validator(schemas.get_task_schema()).iter_errors({**task, "nodes": 2}))
