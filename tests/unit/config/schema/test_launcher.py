"""The launchers: which keys each has beside those of all, and what is required."""

import dataclasses

import pytest

from dtk.config.compose import compose
from dtk.config.placement import is_remote
from dtk.config.schema.launcher import (
    KubernetesLauncher,
    LauncherConfig,
    LocalLauncher,
    SkypilotLauncher,
    SlurmLauncher,
)
from dtk.errors import DtkError

KINDS = {"local": LocalLauncher, "slurm": SlurmLauncher, "kubernetes": KubernetesLauncher, "skypilot": SkypilotLauncher}
REQUIRED = {"kubernetes": ["launcher.image=me/dtk:1"]}


@pytest.mark.parametrize("name", KINDS)
def test_a_choice_gives_its_section_with_the_keys_of_all(name: str) -> None:
    launcher = compose([f"launcher={name}", *REQUIRED.get(name, []), "launcher.nproc=4"]).config.launcher
    assert type(launcher) is KINDS[name] and (launcher.name, launcher.nproc) == (name, 4)
    assert is_remote(launcher) == (name != "local")
    every = {field.name for field in dataclasses.fields(LauncherConfig)}
    assert every <= {field.name for field in dataclasses.fields(launcher)}


def test_the_defaults_leave_the_choice_to_the_machine() -> None:
    launcher = compose([]).config.launcher
    assert (launcher.nproc, launcher.device, launcher.backend, launcher.threads) == ("auto",) * 4
    assert launcher.master_port == 0 and launcher.max_restarts == 0


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["launcher.oversubscribe=1.5"], "launcher.oversubscribe"),
        (["launcher=slurm", "launcher.oversubscribe=true"], "launcher.oversubscribe"),
        (["launcher=slurm", "launcher.image=x"], "launcher=kubernetes"),
        (["launcher.device=tpu"], "launcher.device"),
        (["launcher.nproc=some"], "launcher.nproc"),
        (["launcher=slurm", "launcher.signal_before_s=0"], "out of range"),
        (["launcher=kubernetes", "launcher.image=x", "launcher.kind=MPIJob"], "launcher.kind"),
    ],
)
def test_a_key_or_value_of_another_launcher_is_refused(overrides: list[str], text: str) -> None:
    from dtk.config.limits import check_numbers

    with pytest.raises(DtkError, match=text.replace(".", r"\.")):
        check_numbers({"launcher": dataclasses.asdict(compose(overrides).config.launcher)})
