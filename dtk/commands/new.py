"""`dtk new`: writes a small project with configuration, model, data, task, a test and a README. Never imports torch."""

import argparse
import shlex
from contextlib import chdir
from pathlib import Path

from diagnostics.contract.formatting import command
from dtk.errors import DtkError, refused

TEMPLATES = Path(__file__).parents[1] / "templates" / "project"
_NAMED = {"module.txt": "{module}.py", "tests/test_module.txt": "tests/test_{module}.py"}
"""Template -> file name in the project; other templates keep their names."""


def run(arguments: argparse.Namespace) -> int:
    """Create the project and print the next command; DtkError unless its folder is empty and can be a module."""
    folder: Path = arguments.folder
    module = folder.resolve().name.replace("-", "_").replace(".", "_")
    if not module.isidentifier() or not module.isascii():
        raise DtkError(f'"{folder.name}" is not a valid module name', fix="use letters, digits and _: my_experiment")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DtkError(f"{folder} exists", "existing files are never overwritten", "choose another folder")
    with refused(f"{folder} cannot be made"):
        for template in sorted(path for path in TEMPLATES.rglob("*") if path.is_file()):
            inside = template.relative_to(TEMPLATES).as_posix()
            path = folder / _NAMED.get(inside, inside).replace("{module}", module)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = template.read_text(encoding="utf-8")
            path.write_text(text.replace("{module}", module).replace("{name}", folder.resolve().name), encoding="utf-8")
            print(f"created {path}")
    with chdir(folder):  # The next commands are typed in that folder.
        then = command("run", "--config-dir", "conf", "experiment=first")
    print(f"next: cd {shlex.quote(str(folder))} && {then}")
    return 0
