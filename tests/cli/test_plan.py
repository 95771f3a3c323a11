"""`dtk plan` as one types it: the answer, every section, JSON and page, wrong input as one line, a real run's plan."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtk.commands.main import main
from dtk.plan.timing.hardware import load_hardware
from tests.cli.command import ROOT, environment, only_run, run
from tests.work import calls_in

TINY = ["model=gpt2_tiny", "data=synthetic", "data.sequence_length=64"]
QUICK = [*TINY, "--engine", "closed_form"]
Plan = Callable[..., tuple[int, str]]


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    """`dtk plan ARGUMENTS` in this process: exit code and what was printed; on stderr only that it takes a while."""

    def call(*arguments: str) -> tuple[int, str]:
        code = main(["plan", *arguments])
        text = capsys.readouterr()
        assert re.fullmatch(r"(dtk: [a-z ]+ \.\.\.\n)*", text.err)
        return code, text.out

    return call


def answer_of(plan: Plan, *arguments: str) -> dict[str, Any]:
    code, text = plan(*arguments, "--json")
    assert code in (0, 1)
    return json.loads(text)


WRONG = {
    "hardware=h100_sx": "did you mean hardware=h100_sxm",
    "hardware=/nope.yaml": "there is no such file",
    "hardware=/tmp/": "hardware=/tmp/: it is a folder, not a YAML file",
    "hardware=/dev/null": "hardware=/dev/null: it is a device or a pipe, not a YAML file",
    "hardware=": 'unknown hardware ""',
    "strategy=hsdp launcher.world_size=6 strategy.dp_replicate=4": "valid dp_replicate x dp_shard: 6 x 1, 3 x 2",
    "launcher.world_size=64 train.global_batch_size=100": "cannot be split over 64 ranks",
    "launcher.world_size=64 strategy=single": "launcher.world_size=1",
    "launcher.world_size=-1": "out of range",
    "launcher.wrldsize=8": "did you mean launcher.world_size",
    "strategy=fsd": "did you mean strategy=fsdp",
    "strategy=ddp,fsdp": "asks for several runs",
    "model=gpt2 model.heads=7": "cannot be split into model.heads=7",
    "nonsense": "KEY=VALUE",
    "--world-size 8,x": "--world-size 8,64,512,4096",
    "--world-size 3 strategy=hsdp launcher.nproc=2": "a mesh of",
    "--world-size 8 strategy=single": "does not scale",
    "--max-model": "hardware=NAME",
    "--max-batch": "hardware=NAME",
    "--max-model hardware=h200 model=custom model._target_=torch.nn.ReLU": "it is your own code",
    "--engine magic": "invalid choice",
    "--html": "expected one argument",
    "--html /nope/plan.html": "cannot write /nope/plan.html: there is no folder /nope",
    "--html /": "cannot write /: it is a folder",
    "--html /tmp": "cannot write /tmp: it is a folder - write --html /tmp/plan.html",
    "--html=": "--html names no file",
    "--nope": "unrecognized arguments: --nope",
    "--config-dir /nope": "no such folder",
    "--calibrate strategy=ddp": "strategy=ddp has no effect",
}


@pytest.mark.parametrize(("typed", "text"), WRONG.items(), ids=list(WRONG))
def test_wrong_input_is_one_line(typed: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = [] if "model=" in typed or "--calibrate" in typed else ["model=gpt2_tiny"]
    engine = [] if "--engine" in typed else ["--engine", "closed_form"]
    assert main(["plan", *own, *typed.split(), *engine]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("dtk: ")
    assert shown.err.count("\n") == 1
    assert text in shown.err


def test_help_teaches_without_torch() -> None:
    code = (
        "import sys\nfrom dtk.commands.main import main\ntry:\n main()\nfinally:\n print(*sys.modules, file=sys.stderr)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, "plan", "--help"], capture_output=True, text=True, env=environment(), check=True
    )
    assert {"torch", "hydra", "yaml", "numpy", "rich"}.isdisjoint(shown.stderr.split())
    for text in ("examples:", "--compare", "--calibrate", "hardware=h100_sxm", "exit code: 0 it fits", "docs/plan.md"):
        assert text in shown.stdout


HUGE = ["model=gpt2", "model.context_length=2048", "data.sequence_length=2048", "launcher.world_size=4096"]
HUGE += ["strategy=fsdp", "precision=bf16", "hardware=h100_sxm", "--engine", "closed_form"]


@pytest.mark.parametrize(("layers", "width", "heads"), [(96, 12288, 96), (128, 25600, 160)], ids=["175B", "1T"])
def test_the_closed_form_answers_without_torch(layers: int, width: int, heads: int) -> None:
    code = "import sys\nfrom dtk.commands.main import main\nmain()\nprint('torch' in sys.modules, file=sys.stderr)"
    sizes = [f"model.layers={layers}", f"model.width={width}", f"model.heads={heads}"]
    shown = subprocess.run(
        [sys.executable, "-c", code, "plan", *HUGE, *sizes],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    assert shown.stderr.split()[-1] == "False"
    assert "bf16, 989 TFLOP/s peak per device" in shown.stdout


@pytest.mark.extended
def test_solving_for_the_largest_is_quick_where_it_is_very_deep(plan: Plan) -> None:
    result, calls = calls_in(
        lambda: answer_of(plan, *QUICK, "strategy=fsdp", "hardware=h100_sxm", "--max-batch", "--max-model")
    )
    assert calls < 50_000_000
    assert int(result["max_model"][0]["overrides"][0].partition("=")[2]) > 50_000


def test_standard_output_that_is_full_is_one_line() -> None:
    for form in ([], ["--json"]):
        with Path("/dev/full").open("w") as full:
            typed = [
                sys.executable,
                "-m",
                "dtk.commands.main",
                "plan",
                *QUICK,
                "strategy=ddp",
                "launcher.world_size=2",
                *form,
            ]
            shown = subprocess.run(
                typed, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), check=False
            )
        lines = [line for line in shown.stderr.splitlines() if not line.endswith(" ...")]
        assert shown.returncode == 2
        assert [line.split(" - ")[0] for line in lines] == [
            "dtk: cannot write to standard output: No space left on device"
        ]


def test_standard_output_that_is_closed_is_one_line() -> None:
    typed = shlex.join([sys.executable, "-m", "dtk", "plan", *QUICK, "strategy=ddp"])
    shown = subprocess.run(["sh", "-c", f"exec {typed} >&-"], capture_output=True, text=True, env=environment())
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert shown.stderr.startswith("dtk: standard output is closed")


def test_the_text_is_there_although_the_page_could_not_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *QUICK, "strategy=ddp", "launcher.world_size=2", "--html", "/dev/full"]) == 2
    text = capsys.readouterr()
    assert "Memory of the fullest rank" in text.out
    assert "\npage" not in text.out
    assert "cannot write /dev/full: No space left on device" in text.err


def test_what_is_offloaded_must_fit_the_host_of_a_node(plan: Plan, tmp_path: Path) -> None:
    job = [*QUICK, "strategy=fsdp", "strategy.offload=parameters", "launcher.world_size=4"]
    fits = answer_of(plan, *job, "hardware=h100_sxm")["plan"]
    needed = fits["memory"]["host_bytes"] * 4
    assert (fits["fits"], fits["node_ranks"], needed > 0) == (True, 4, True)
    device = tmp_path / "small.yaml"
    text = (ROOT / "conf" / "hardware" / "h100_sxm.yaml").read_text()
    for size, code in ((needed, 0), (needed - 1, 1)):
        device.write_text(re.sub(r"(host_memory_bytes:\n  value: )\d+", rf"\g<1>{size}", text))
        result, shown = plan(*job, f"hardware={device}")
        assert result == code
        assert re.search(r"^host +.* per rank, .* of .* host memory per node$", shown, re.MULTILINE)
    assert shown.startswith("DOES NOT FIT the host of a node of h100_sxm: ")
    typed = [text for text in job if "offload" not in text]
    compared = answer_of(plan, *typed, f"hardware={device}", "--compare")["compare"]["rows"]
    assert {row["name"]: row["plan"]["fits"] for row in compared}["fsdp + offload"] is False


def test_without_a_device_memory_and_traffic_are_told_and_how_to_choose_one(plan: Plan) -> None:
    code, text = plan(*QUICK, "strategy=fsdp", "launcher.world_size=4")
    assert code == 0
    assert "add hardware=NAME" in text.splitlines()[0]
    assert "reduce_scatter  dp_shard" in text
    assert "Time of one step" not in text


def test_what_fits_and_what_does_not_are_told_by_the_exit_code(plan: Plan) -> None:
    fits = plan("strategy=fsdp", "model=gpt2_medium", "launcher.world_size=64", "hardware=h100_sxm", *QUICK[3:])
    assert fits[0] == 0
    assert fits[1].startswith("FITS h100_sxm: ")
    assert "tokens/s" in fits[1]
    large = plan("strategy=ddp", "model=gpt2_xl", "launcher.world_size=64", "hardware=rtx4090", *QUICK[3:])
    assert large[0] == 1
    assert large[1].startswith("DOES NOT FIT rtx4090: ")


def test_options_and_overrides_mix_in_any_order(plan: Plan) -> None:
    answer = answer_of(plan, "strategy=fsdp", "--engine", "closed_form", *TINY, "hardware=cpu", "launcher.world_size=4")
    other = answer_of(plan, "launcher.world_size=4", "hardware=cpu", *TINY, "--engine", "closed_form", "strategy=fsdp")
    assert answer["plan"] == other["plan"]
    assert answer["plan"]["hardware"] == "cpu"


def test_ranks_are_those_of_a_node_of_the_hardware(plan: Plan) -> None:
    answer = answer_of(plan, *QUICK, "strategy=ddp", "hardware=h100_sxm")
    assert answer["plan"]["world_size"] == answer["local_size"] == load_hardware("h100_sxm").devices_per_node
    assert any("8 ranks, as dtk run would start" in note for note in answer["notes"])


def test_json_is_all_there_is_on_standard_output(plan: Plan) -> None:
    answer = answer_of(plan, *QUICK, "strategy=zero1", "launcher.world_size=4", "hardware=a100_40")
    assert answer["schema"] == "dtk.plan.report/1"
    assert answer["plan"]["peak_bytes"] == sum(answer["plan"]["memory"]["at_peak_bytes"].values())
    assert answer["plan"]["fits"] is True
    assert answer["plan"]["time"]["step_s"] > 0
    assert {transfer["op"] for transfer in answer["plan"]["traffic"]} == {"all_reduce", "broadcast"}


def test_both_engines_check_each_other(plan: Plan) -> None:
    answer = answer_of(plan, *TINY, "strategy=ddp", "launcher.world_size=4")
    formula, simulated = answer["check"]["closed_form"], answer["check"]["simulated"]
    assert (formula["engine"], simulated["engine"]) == ("closed_form", "simulated")
    assert simulated["peak_bytes"] == pytest.approx(formula["peak_bytes"], rel=0.05)
    assert formula["traffic"] == simulated["traffic"]


def test_a_model_of_the_users_own_is_simulated(plan: Plan) -> None:
    own = ["model=custom", "model._target_=tests.cli.faulty.Faulty", "allow_targets=[tests.cli.faulty.*]"]
    own += ["model.arguments.fault=none"]
    sizes = ["model.vocab_size=256", "model.context_length=64", "data.sequence_length=32", "data=synthetic"]
    answer = answer_of(plan, *own, *sizes, "strategy=ddp", "launcher.world_size=4")
    assert answer["plan"]["engine"] == "simulated"
    assert answer["plan"]["peak_bytes"] > 0


def test_strategies_side_by_side_with_the_simplest_that_fits(plan: Plan, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    texts = ["model=gpt2_xl", "launcher.world_size=16", "hardware=rtx4090"]
    code, text = plan(*texts, "strategy=ddp", "--compare", "--engine", "closed_form", "--html", str(page))
    assert code == 1
    assert "Too large for" in text
    assert "is the simplest that fits" in text
    assert text.count("checkpointing + offload") >= 1
    chosen = next(line for line in text.splitlines() if line.startswith("simplest "))
    again = answer_of(plan, *texts, *chosen.split()[1:], "--engine", "closed_form")
    assert again["plan"]["fits"] is True
    assert chosen.split()[1].removeprefix("strategy=") in page.read_text()


def test_the_memory_table_divides_over_data_parallel_ranks(plan: Plan) -> None:
    job = [*QUICK, "strategy=ddp", "launcher.world_size=8", "parallel.pp=2", "--memory-table"]
    full, *mixed, pure = answer_of(plan, *job)["memory_table"]
    assert [row["per_parameter"] for row in (full, *mixed, pure)] == [16, 16, 16, 8]
    assert full["rank_bytes"][3] * 4 == full["rank_bytes"][0]
    assert "pure bf16         2" in plan(*job)[1]


def test_the_largest_that_fits_fits_and_one_more_does_not(plan: Plan) -> None:
    job = ["strategy=fsdp", "model=gpt2_large", "launcher.world_size=8", "hardware=rtx4090", "data.sequence_length=512"]
    answer = answer_of(plan, *job, "--max-batch", "--engine", "closed_form")
    micro = int(answer["max_batch"]["overrides"][0].partition("=")[2])
    for size, fits in ((micro, True), (micro + 1, False)):
        sized = [f"train.micro_batch_size={size}", f"train.global_batch_size={8 * size}"]
        assert answer_of(plan, *job, *sized, "--engine", "closed_form")["plan"]["fits"] is fits


def test_the_largest_model_keeps_its_proportions(plan: Plan, tmp_path: Path) -> None:
    """On a device of the user's own, described by a file."""
    device = tmp_path / "small.yaml"
    text = (ROOT / "conf" / "hardware" / "rtx4090.yaml").read_text()
    device.write_text(re.sub(r"(memory_bytes:\n  value: )\d+", rf"\g<1>{64 << 20}", text))
    job = ["model=llama_tiny", "data=synthetic", "launcher.world_size=2", "strategy=ddp", f"hardware={device}"]
    answer = answer_of(plan, *job, "--max-model", "--engine", "closed_form")
    for item in answer["max_model"]:
        typed = dict(text.split("=") for text in item["overrides"])
        again = answer_of(plan, *job, *item["overrides"], "--engine", "closed_form")["plan"]
        assert (again["fits"], again["parameters"]) == (True, item["plan"]["parameters"])
        if "model.kv_heads" in typed:
            assert int(typed["model.heads"]) == 2 * int(typed["model.kv_heads"])
    assert [entry["what"] for entry in answer["max_model"]] == ["deeper", "wider", "deeper and wider"]
    deepest = int(answer["max_model"][0]["overrides"][0].removeprefix("model.layers="))
    assert answer_of(plan, *job, f"model.layers={deepest + 1}", "--engine", "closed_form")["plan"]["fits"] is False


def test_over_numbers_of_ranks(plan: Plan) -> None:
    answer = answer_of(
        plan, *QUICK, "strategy=hsdp", "launcher.world_size=8", "hardware=h100_sxm", "--world-size", "512,8,7"
    )
    sizes = [point["world_size"] for point in answer["scaling"]]
    assert sizes == [7, 8, 512]
    assert answer["scaling"][0]["plan"] is None
    assert "does not fit 7 ranks" in answer["scaling"][0]["problem"]
    assert answer["job"][-1] == "hardware=h100_sxm"
    first, last = answer["scaling"][1]["plan"], answer["scaling"][2]["plan"]
    assert last["global_batch_size"] == 64 * first["global_batch_size"]
    assert last["peak_bytes"] < first["peak_bytes"]
    assert {transfer["link"] for transfer in last["traffic"]} >= {"inter_node"}


@pytest.mark.timeout(180)
def test_a_run_keeps_its_plan_and_a_diagnosis_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fault keeps what is gathered; the plan is of the job without it."""
    sizes = ["model.layers=8", "model.width=128", "model.heads=4", "data.sequence_length=16"]
    short = ["train.steps=4", "train.global_batch_size=2", "train.evaluate_every=-1", "record.profile_start=2"]
    done = run(tmp_path, "fault=no_reshard", *sizes, *short, "data.max_bytes=300000")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    folder = only_run(tmp_path)
    stored = json.loads((folder / "plan.json").read_text())
    assert stored["schema"] == "dtk.plan/1"
    job = ["experiment=smoke", "strategy=fsdp", *sizes, "train.global_batch_size=2", "launcher.nproc=2"]
    main(["plan", *job, "launcher.device=cpu", "--engine", "closed_form", "--json"])
    assert json.loads(capsys.readouterr().out)["plan"]["peak_bytes"] == stored["peak_bytes"]
    assert main(["diagnose", str(folder)]) == 1
    text = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("plan "))
    assert "planned" in text
    assert "gathered parameters of" in text
    assert "blocks alive at once" in text
    measured = json.loads((folder / "report" / "report.json").read_text())["measures"]["memory"]["plan"]
    assert measured["planned_bytes"] == stored["peak_bytes"]
    assert measured["was_bytes"] > 1.1 * measured["planned_bytes"]
