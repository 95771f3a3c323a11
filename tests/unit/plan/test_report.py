"""A plan as text and as JSON: every figure of it is there, and what the user named stays text."""

import dataclasses
import re

from diagnostics.report import html, terminal
from dtk.plan.formatting import percent_text
from dtk.plan.model import PlanReport, as_json
from dtk.plan.report import document
from tests.unit.plan.samples import HOSTILE, check, on_device, plan, report


def text(**values: object) -> str:
    return in_terminal(report(**values))


def in_terminal(plan_report: PlanReport, columns: int | None = None, *, colour: bool = False) -> str:
    return terminal.render(document(plan_report), columns=columns, colour=colour)


def as_page(plan_report: PlanReport) -> str:
    return html.render(document(plan_report))


def test_the_answer_is_the_first_line() -> None:
    assert text().startswith("FITS rtx4090: 20 GiB of 24 GiB, 4 GiB (16.7%) to spare\n")
    large = on_device(plan(gib=30.0))
    assert text(plan=large).startswith("DOES NOT FIT rtx4090: needs 30 GiB of 24 GiB, 6 GiB (25.0%) too much\n")
    assert text(plan=plan()).startswith("20 GiB per rank; add hardware=NAME")


def test_precision_is_told_with_the_peak_behind_mfu() -> None:
    plan_on = on_device(plan())
    assert plan_on.time is not None
    time = dataclasses.replace(plan_on.time, matmul_dtype="bfloat16", peak_flops=989.4e12, exposed_s=0.2, compute_s=0.4)
    plan_report = report(plan=dataclasses.replace(plan_on, time=time))
    shown = in_terminal(plan_report)
    assert "compute bf16, 989 TFLOP/s peak per device; parameters and optimizer state in fp32\n" in shown
    assert "41.0% of 989 TFLOP/s (bf16)" in shown
    assert "989 TFLOP/s peak per device" in as_page(plan_report)
    assert as_json(plan_report)["precision"] == {"compute_dtype": "bfloat16", "peak_flops": 989.4e12}


def test_what_rounding_left_of_a_time_is_nothing() -> None:
    plan_on = on_device(plan())
    assert plan_on.time is not None
    time = dataclasses.replace(plan_on.time, communication_s=0.3, exposed_s=0.3 - 5e-17)
    assert "300 ms, 300 ms of it exposed\n" in text(plan=dataclasses.replace(plan_on, time=time))
    time = dataclasses.replace(plan_on.time, communication_s=0.3, exposed_s=2e-17)
    assert "300 ms, 0 s of it exposed, 300 ms hidden\n" in text(plan=dataclasses.replace(plan_on, time=time))
    assert percent_text(197.921) == "19,792%"


def test_reasons_stand_below_the_tables() -> None:
    shown = text()
    cells = next(line for line in shown.splitlines() if line.startswith("7  "))
    assert len(cells) < 90
    assert "invalid 7 ranks: 7 ranks do not divide\n" in shown
    assert "invalid single: it is one process\n" in shown


def test_what_is_invalid_for_the_same_reason_stands_on_one_line() -> None:
    comparison = report().comparison
    assert comparison is not None
    first = comparison.rows[0]
    again = dataclasses.replace(first, variant=dataclasses.replace(first.variant, checkpointing=True))
    shown = text(comparison=dataclasses.replace(comparison, rows=(*comparison.rows, again)))
    assert "invalid single, single + checkpointing: it is one process\n" in shown


def test_bars_are_as_long_as_the_categories_are_large() -> None:
    lines = {line.split("  ")[0]: line.count("#") for line in text().splitlines() if "#" in line}
    assert lines["activations"] == 40
    assert lines["optimizer states"] == round(40 * 2 / 12)
    assert next(iter(lines)) == "parameters"


def test_every_section_that_was_asked_for_is_there() -> None:
    shown = text()
    for phrase in (
        "all_gather      dp_shard",
        "inside a node",
        "across nodes",
        "peak    in backward (forward 12 GiB, optimizer 6 GiB)",
        "41.0%",
        "*  fsdp ",
        "use     strategy=fsdp",
        "why     fsdp is the simplest that fits.",
        "it is one process",
        "model.layers=60",
        "not even the smallest fits",
        "train.micro_batch_size=6",
        "7 ranks do not divide",
        "- 8 ranks were assumed.",
        "- dropout is 0",
        "- Simulated: buffers of kernels",
    ):
        assert phrase in shown, phrase
    bare = text(comparison=None, scaling=(), models=(), batch=None, check=None)
    assert "side by side" not in bare
    assert "Largest" not in bare


def test_engines_that_disagree_are_shown_with_both_figures() -> None:
    shown = text()
    assert "the engines disagree" in shown
    assert re.search(r"^peak +20 GiB +28 GiB$", shown, re.MULTILINE)
    assert "96 calls   97 calls" in shown
    agreed = text(check=check(20.5))
    assert "the engines agree: 20 GiB by formula, 20.5 GiB simulated (difference 2.4%)" in agreed


def test_a_narrow_terminal_loses_no_figure() -> None:
    narrow = in_terminal(report(), 50, colour=True)
    assert "\x1b[" in narrow
    assert "20 GiB" in narrow


def test_a_hostile_name_stays_text() -> None:
    named = dataclasses.replace(on_device(plan()), model=HOSTILE, hardware=HOSTILE)
    shown = text(plan=named)
    assert "\x1b" not in shown
    assert "[bold]" in shown
    markup = as_page(report(plan=named, job=(HOSTILE,)))
    assert "<script" not in markup
    assert "&lt;script&gt;alert(1)" in markup


def test_a_category_has_one_colour_on_the_whole_page() -> None:
    plan_report = report()
    by_name = {name: size for name, size in plan_report.plan.memory.at_peak_bytes.items() if name != "optimizer states"}
    fewer = dataclasses.replace(
        plan_report.plan, memory=dataclasses.replace(plan_report.plan.memory, at_peak_bytes=by_name)
    )
    legends = re.findall(r'<div class="legend">(<span><i class="k.*?)</div>', as_page(report(plan=fewer)))
    assert len(legends) == 2 and legends[0] == legends[1]
    assert "optimizer states" in legends[0]
