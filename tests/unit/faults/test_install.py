"""Every fault that is code is entered under the name of its YAML file, and no other takes the place of the loop."""

from pathlib import Path

from dtk.faults.base import FAULTS
from dtk.train.loop import Loop
from tests.unit.faults.conftest import Faulty

CONF = Path(__file__).parents[3] / "conf" / "fault"


def test_faults_are_those_of_the_configuration() -> None:
    names = {path.stem for path in CONF.glob("*.yaml")} - {"none"}
    assert set(FAULTS) <= names
    for name in FAULTS:
        source = Path(__import__(FAULTS[name].__module__, fromlist=["_"]).__file__ or "").read_text()
        assert source.count(f"# fault: {name}\n") == 1, "the offending line is marked"


def test_a_fault_of_settings_leaves_the_loop_as_it_is(faulty: Faulty) -> None:
    loop = faulty("none")
    assert type(loop) is Loop and loop.run()
