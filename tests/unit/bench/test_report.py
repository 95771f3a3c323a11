"""The report in its forms: the same figures everywhere, what the user named stays text, points stand where they are."""

import json
import re

from diagnostics.report import html, jsonform, terminal
from dtk.bench.model import BenchReport, as_json
from dtk.bench.report import document
from tests.unit.bench.samples import HOSTILE, SIZES, compared, report


def text(result: object) -> str:
    return terminal.render(document(result), columns=None, colour=False)  # type: ignore[arg-type]


def as_page(bench_report: BenchReport) -> str:
    return html.render(document(bench_report))


def test_every_operation_and_size_is_in_the_table() -> None:
    shown = text(report())
    assert shown.startswith("5 operations over gloo, 2 ranks on cpu (x86_64), float32\n")
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
        assert len(re.findall(rf"^{name} +(1|16|256) KiB", shown, re.M)) == 3
        assert f"best    {name}: " in shown
    row = next(line for line in shown.splitlines() if re.match(r"all_reduce +256 KiB", line))
    # 262,144 bytes in 362 us; with two ranks the bus bandwidth of all_reduce is the algorithm bandwidth.
    assert row.split()[3:7] == ["65,536", "20", "362", "us"]
    assert row.count("0.724") == 2 and row.endswith("0")
    half = next(line for line in shown.splitlines() if re.match(r"all_gather +256 KiB", line))
    assert "0.724" in half and "0.362" in half


def test_json_is_the_same_and_says_what_it_means() -> None:
    output = json.loads(jsonform.text(as_json(report())))
    item = next(r for r in output["results"] if (r["operation"], r["size_bytes"]) == ("all_gather", 262144))
    assert item["busbw_gb_per_s"]["median"] == item["algbw_gb_per_s"]["median"] / 2
    assert item["algbw_gb_per_s"]["low"] < item["algbw_gb_per_s"]["median"] < item["algbw_gb_per_s"]["high"]
    assert output["in_place"] == {
        "all_reduce": True,
        "all_gather": False,
        "reduce_scatter": False,
        "all_to_all": False,
        "send_recv": False,
    }
    assert "nccl-tests" in output["definitions"]["source"] and output["dtype"] == "float32"


def test_two_presets_side_by_side() -> None:
    shown = text(compared())
    assert "b over a: faster at 1, slower at 0, indistinguishable from noise at 2 of 3 sizes\n" in shown
    assert re.search(r"256 KiB .* 2\.000 +1\.\d+ - 2\.\d+ +faster\n", shown)
    assert shown.count("indistinguishable from noise") == 3
    bench_report = compared()
    nothing = bench_report.gains[:2]
    quiet = text(
        type(bench_report)(
            **{**{f: getattr(bench_report, f) for f in bench_report.__dataclass_fields__}, "gains": nothing}
        )
    )
    assert "no gain distinguishable from noise: b over a, 2 sizes\n" in quiet


def test_wrong_and_early_ends_come_first() -> None:
    bench_report = report(failure="rank 1 was killed by SIGKILL")
    assert text(bench_report).splitlines()[1] == "ended early: rank 1 was killed by SIGKILL"
    assert "ENDED EARLY" in as_page(bench_report)
    spoiled = report(
        results=tuple(type(result)(**{**_fields(result), "wrong_elements": 3}) for result in bench_report.results)
    )
    assert "WRONG RESULTS" in text(spoiled) and "WRONG RESULTS" in as_page(spoiled)
    assert "RESULTS VERIFIED" in as_page(report())


def _fields(item: object) -> dict[str, object]:
    return {name: getattr(item, name) for name in item.__dataclass_fields__}  # type: ignore[attr-defined]


def test_what_the_user_named_stays_text() -> None:
    result = as_page(compared(HOSTILE))
    assert "<script" not in result and "&lt;script&gt;" in result
    assert "\x1b" not in result and "\x1b" not in text(compared(HOSTILE))


def test_the_page_draws_every_operation() -> None:
    text = as_page(report())
    assert text.count("<polyline") == 5 and text.count("<circle") == 5 * len(SIZES)
    assert as_page(compared()).count("<polyline") == 2
    assert set(re.findall(r"https?://[\w.]+", text)) == {"https://github.com"}, "the source, as text"
