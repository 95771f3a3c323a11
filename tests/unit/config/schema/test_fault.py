"""The families of faults: each file of conf/fault/ is of one, and has the keys that mean something for it."""

from typing import get_args, get_type_hints

import pytest

import dtk.faults.install  # noqa: F401  (registers the faults that are code)
from dtk.config import schema
from dtk.config.compose import compose
from dtk.config.folders import conf_folder
from dtk.config.schema.fault import EveryRankFault, NodesFault, NoFault, RankFault, SettingFault, SlowRankFault
from dtk.errors import DtkError
from dtk.faults.base import FAULTS

FILES = sorted(path.stem for path in (conf_folder() / "fault").glob("*.yaml"))
FAMILIES = (NoFault, SettingFault, EveryRankFault, RankFault, SlowRankFault, NodesFault)
NAMES = {kind: set(get_args(get_type_hints(kind)["name"])) for kind in FAMILIES}


def test_every_file_has_one_family_and_every_name_a_file() -> None:
    assert sum(map(len, NAMES.values())) == len(set().union(*NAMES.values())), "a name is in two families"
    assert set().union(*NAMES.values()) == set(FILES)
    assert {name: kind for kind, names in NAMES.items() for name in names} == schema.KINDS["fault"][1]


def test_those_that_are_no_settings_are_code() -> None:
    code = set().union(*(names for kind, names in NAMES.items() if kind not in (NoFault, SettingFault)))
    assert code == FAULTS.keys()


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["fault=tiny_buckets", "fault.step=2"], "fault.step"),
        (["fault=leak", "fault.rank=0"], "fault.rank"),
        (["fault=exception", "fault.delay_s=1"], "fault.delay_s"),
        (["fault=straggler", "fault.times=1"], "fault.times"),
    ],
)
def test_a_key_without_meaning_for_a_fault_is_refused(overrides: list[str], text: str) -> None:
    with pytest.raises(DtkError, match=text.replace(".", r"\.")):
        compose(["model=gpt2_tiny", *overrides])


def test_a_late_rank_has_the_keys_of_one_rank_too() -> None:
    fault = compose(["model=gpt2_tiny", "fault=straggler", "fault.rank=0", "fault.delay_s=0.1"]).config.fault
    assert isinstance(fault, SlowRankFault) and (fault.rank, fault.delay_s) == (0, 0.1)
