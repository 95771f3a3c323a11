"""From what was asked to a report: settings that were filled in, doubts about defaults left as they are, the check."""

from typing import Any

import pytest

from dtk.errors import DtkError
from dtk.plan.make import Request, make
from dtk.plan.model import PlanReport

TINY = ("model=gpt2_tiny", "data=synthetic", "launcher.device=cpu")


def report_of(*overrides: str, **choices: Any) -> PlanReport:
    return make(Request(overrides=(*TINY, *overrides), engine=choices.pop("engine", "closed_form"), **choices))


def test_ranks_and_batch_that_were_filled_in_are_said() -> None:
    notes = report_of("strategy=ddp").notes
    assert notes == ("2 ranks, as dtk run would start on one machine; launcher.world_size=N plans for another number.",)
    (note,) = report_of("strategy=ddp", "launcher.world_size=64").notes
    assert note == "train.global_batch_size=64 was filled in; the run needs it as well."


def test_the_hardware_is_no_part_of_the_experiment_but_of_the_command() -> None:
    report = report_of("strategy=ddp", "hardware=a100_40", "launcher.world_size=8", "launcher.device=auto")
    assert report.plan.hardware is not None and report.local_size == 8
    assert report.job[-1] == "hardware=a100_40"
    assert report.plan.time is not None


def test_the_last_hardware_counts() -> None:
    both = report_of("hardware=a100_40", "hardware=h100_sxm", "launcher.device=auto", "launcher.world_size=8")
    assert (
        both.plan.hardware
        == report_of("hardware=h100_sxm", "launcher.device=auto", "launcher.world_size=8").plan.hardware
    )


@pytest.mark.parametrize(
    ("overrides", "doubt"),
    [
        (["precision=fp32", "data.sequence_length=128"], "precision=fp32: "),
        (["precision=bf16", "data.sequence_length=16"], "data.sequence_length=16 is below "),
        (["precision=bf16", "data.sequence_length=126", "parallel.tp=3", "model.heads=3", "model.width=96"], ""),
    ],
)
def test_settings_that_the_run_will_probably_not_have_are_doubted(overrides: list[str], doubt: str) -> None:
    job = ("launcher.device=auto", "hardware=h100_sxm", "launcher.world_size=24", "strategy=ddp")
    if not doubt:
        overrides = [*overrides, "model.vocab_size=510", "data.vocab_size=510"]
    doubts = report_of(*job, *overrides).doubts
    if doubt:
        assert len(doubts) == 1 and doubts[0].startswith(doubt)
    else:
        assert [text.split(":")[0] for text in doubts] == ["parallel.tp=3 crosses nodes of 8 ranks"]


def test_what_is_not_known_where_it_runs_is_not_doubted() -> None:
    assert report_of("strategy=ddp", "precision=fp32", "data.sequence_length=16").doubts == ()


@pytest.mark.parametrize("option", ["max_batch", "max_model", "search"])
def test_what_fits_needs_a_device(option: str) -> None:
    with pytest.raises(DtkError, match=f"--{option.replace('_', '-')} needs a device to fit in"):
        report_of("strategy=ddp", **{option: True})


def test_sections_are_there_when_they_are_asked_for() -> None:
    report = report_of("strategy=fsdp", world_size="2,4", memory_table=True)
    assert [point.world_size for point in report.scaling] == [2, 4]
    assert report.trainings and report.comparison is None and report.check is None
    assert report_of("strategy=single", html=True).scaling == (), "one process does not scale"


@pytest.mark.filterwarnings("ignore")
def test_a_check_that_is_not_possible_is_a_note_unless_it_was_asked_for() -> None:
    of_devices = ("strategy=dp", "hardware=a100_40", "launcher.device=auto")
    report = report_of(*of_devices, engine="auto")
    assert report.check is None
    assert any(note.startswith("The simulated check was not possible: strategy=dp") for note in report.notes)
    with pytest.raises(DtkError, match="the job cannot be simulated"):
        report_of(*of_devices, engine="both")
