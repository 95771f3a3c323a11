"""The page as text: one file, no request, everything from evidence escaped. In a browser: tests/browser."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from diagnostics.contract.findings import EvidenceItem
from diagnostics.report import html
from diagnostics.report.diagnosis import document
from tests.unit.diagnostics.report.samples import HOSTILE, as_page as render, finding, full, report, stacked

VOID = {"meta", "input", "br", "hr"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "wbr":  # Where a path may break.
            return
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(text: str) -> Page:
    page = Page()
    page.feed(text)
    assert page.open == []
    return page


def test_one_file_without_any_request() -> None:
    page = parse(render(full()))
    assert {tag for tag, _ in page.tags} & {"link", "img", "iframe", "object", "embed", "base", "form"} == set()
    for _, attributes in page.tags:
        assert not set(attributes) & {"src", "srcset", "style"} and not any(
            name.startswith("on") for name in attributes
        )
        assert (attributes.get("href") or "#").startswith("#")


def test_the_policy_allows_only_what_is_in_the_page() -> None:
    text = render(full())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy and policy[1].startswith("default-src 'none';") and "unsafe" not in policy[1]
    for tag in ("style", "script"):
        content = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert content
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]


def test_evidence_stays_text() -> None:
    clean, hostile = parse(render(full("train.py"))), parse(render(full(HOSTILE)))
    assert [tag for tag, _ in clean.tags] == [tag for tag, _ in hostile.tags]
    assert "alert(1)" in "".join(hostile.text)
    assert "\x1b" not in "".join(hostile.text) and "\u202e" not in "".join(hostile.text)


def test_what_the_page_holds() -> None:
    text = "".join(parse(render(full())).text)
    for phrase in (
        "HUNG",
        "Ranks issued different collective calls at the same position",
        "all_reduce [1048576] float32",
        "/home/me/project/train.py:88 in log_metrics",
        "flight/rank_00001.pickle",
        "Last collectives of group default_pg",
        "exposed communication",
        "activations",
        "a rank raised an exception (ranks 0, 2-3)",
        "record it: record=full",
    ):
        assert phrase in text, phrase


def test_measures_of_another_shape_are_left_out() -> None:
    uneven = {
        "hang": {"timeline": {"positions": "x", "ranks": [1]}},
        "memory": {"ranks": {"0": None, "x": {}, "1": {"peak_bytes": "many", "curve": [[1], "a", [0, float("nan")]]}}},
        "overlap": {"ranks": {"0": {"compute_ms": float("inf")}, "1": 5}},
    }
    parse(render(report(finding("hang.network"), measures=uneven)))
    for measures in ({"hang": 1}, {"memory": []}, {"overlap": {"ranks": 7}}, {"memory": {"ranks": {0: {}}}}):
        parse(render(report(measures=measures)))


def test_the_page_of_a_large_job_stays_small() -> None:
    ranks = {
        str(rank): {"peak_bytes": 1e9, "curve": [[t, t * 1e6] for t in range(3000)], "categories": {"a": 1e9}}
        for rank in range(500)
    }
    culprits = finding("memory.leak", ranks=(499,), victims=tuple(range(499)))
    text = render(report(culprits, measures={"memory": {"ranks": ranks}}, world_size=500))
    assert len(text) < 1_500_000 and "rank 499" in text


def test_memory_over_time_is_drawn_for_each_rank_the_highest_first():
    page = parse(render(report(finding("memory.activations"), measures=stacked())))
    text = "".join(page.text)
    assert (
        text.index("rank 2: peak of tensors 6.38 GiB")
        < text.index("rank 1: peak of tensors 6.12 GiB")
        < text.index("rank 0: peak of tensors 5.88")
    )
    for phrase in (
        "Peak of tensors: 6.38 GiB at 1.9 s, in step 7, /home/me/project/train.py, at /home/me/project/train.py:88 in",
        "activations (82%), parameters (16%), not attributed (2%)",
        "A request of 3 GiB failed at 9.5 s. The device has 8 GiB.",
        "Parameters are computed from the size of the model",
        "1.9 s (peak)",
        "step 6",
    ):
        assert phrase in text, phrase
    assert [attributes["class"] for tag, attributes in page.tags if tag == "polygon"][:4] == [
        "band k0",
        "band k4",
        "band k3",
        "band k7 faint",
    ]
    assert [("open" in attributes) for tag, attributes in page.tags if tag == "details"].count(True) >= 1


def test_names_in_memory_over_time_stay_text():
    original, hostile = (parse(render(report(measures=stacked(name)))) for name in ("train.py", HOSTILE))
    assert [tag for tag, _ in original.tags] == [tag for tag, _ in hostile.tags]
    assert "alert(1)" in "".join(hostile.text)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 5}, {"rows": [[0, 1], "x", None]}, {"rows": [[0.0, 1, 1, 1, 1]]}, {"kinds": []}, {"kinds": None},
        {"peak": []}, {"peak": {"time": float("nan"), "bytes": 1}}, {"peak": {"time": 10**400, "bytes": 10**400}},
        {"steps": [[1], 5, [0, "x"]]}, {"failed": 3}, {"failed": {"time": "x"}}, {"notes": 7}, {"capacity_bytes": -1},
        {"unit": 5}, {"computed": "x"}, {"rows": [[n, -5, 10**30, 0, 0] for n in range(9)]},
        {"rows": [[3.0, 1, 1, 1, 1]] * 5}, {"steps": [[-1e300, 3]]}, {"failed": {"time": -1e300, "bytes": 1e300}},
    ],
)  # fmt: skip
def test_memory_over_time_of_another_shape_is_no_error(change):
    measures = stacked(ranks=1)
    measures["memory"]["ranks"]["0"]["over_time"] |= change
    parse(render(report(measures=measures)))


@pytest.mark.parametrize(("world", "legend"), [(2, True), (9, True), (12, False)])
def test_each_rank_has_its_colour_in_the_memory_curve(world, legend):
    ranks = {
        str(rank): {
            "peak_bytes": 3e9,
            "curve": [[t, (t + rank) * 1e8] for t in range(9)],
            "categories": {"logits": 2e9},
        }
        for rank in range(world)
    }
    text = render(report(finding("memory.leak", ranks=(1,)), measures={"memory": {"ranks": ranks}}, world_size=world))
    curves = re.findall(r'<polyline[^>]*class="curve (k\d)( strong)?"', text)
    assert len(curves) == world
    assert len({colour for colour, _ in curves}) == (world if legend else 1)
    assert [bool(culprits) for _, culprits in curves] == [False] * (world - 1) + [True], "drawn last, on top"
    assert text.count("<circle") == world
    assert "rank 0: peak 2.79 GiB: logits 1.86 GiB" in text
    assert ("</svg>rank 1*: peak 2.79 GiB" in text) == legend


def test_evidence_leads_to_its_file_from_where_the_page_lies() -> None:
    item = EvidenceItem("trace", "traces/rank 0#.json", "seen", 3)
    result = report(finding("hang.collective_mismatch", ranks=(1,), evidence=(item,)))
    assert "<a href" not in render(result).partition('id="cause-0"')[2]
    page = html.render(document(result, files=".."))
    assert '<a href="../traces/rank%200%23.json"><code>traces/<wbr>rank 0#.json:3</code></a>' in page
