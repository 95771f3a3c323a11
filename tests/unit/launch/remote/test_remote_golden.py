"""What is rendered, word for word. After a wanted change: DTK_WRITE_GOLDEN=1 pytest PATH_OF_THIS_FILE"""

import os
import re
from pathlib import Path

import pytest
import yaml

from dtk.launch.remote import kubernetes, skypilot, slurm
from dtk.launch.remote.submission import Submission
from tests.unit.launch.remote.jobs import JOBS, job

GOLDEN = Path(__file__).parents[3] / "golden"
RENDER = {"slurm": lambda value: slurm.render(value, "/home/user/work"), "skypilot": skypilot.render}


def rendered(name: str, submission: Submission) -> str:
    return RENDER.get(name, kubernetes.render)(submission)


def without_frozen(name: str, text: str) -> str:
    """The frozen configuration comes from conf/, which has tests of its own: here it would change with each key."""
    if name == "slurm":
        return re.sub(r"^export PYTHONPATH=\S+\n", "", text, flags=re.MULTILINE)
    if name == "skypilot":
        return re.sub(r"(<<'DTK_END_OF_FILE'\n).*?(\n  DTK_END_OF_FILE\n)", r"\1  ...\2", text, flags=re.DOTALL)
    first, second = yaml.safe_load_all(text)
    assert {"config.yaml", "overrides.yaml", "manifest.json", "origins.json"} <= set(first["data"])
    return re.sub(r"^data:\n(  .*\n|\n)+", "data: ...\n", text, flags=re.MULTILINE) if second else text


@pytest.mark.parametrize("name", JOBS)
def test_what_is_rendered(name: str) -> None:
    text = without_frozen(name, rendered(name, job(*JOBS[name])))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("DTK_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
