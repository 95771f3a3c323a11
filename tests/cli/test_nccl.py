"""`dtk nccl` as a user types it, the ranks' environment in real runs, and the table of docs/nccl.md."""

import json
import subprocess
import sys

import pytest

from dtk.commands.main import main
from dtk.nccl import render
from dtk.nccl.presets import read_presets
from dtk.nccl.text import markdown
from tests.cli.command import FAULTY, ROOT, environment, only_run, run


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """A user without variables or files of his own."""
    (tmp_path / "empty.conf").touch()
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "empty.conf"))
    monkeypatch.setattr(render, "SYSTEM", tmp_path / "absent.conf")
    for name in ("NCCL_DEBUG", "NCCL_IB_DISABLE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)


def answer(capsys, *typed):
    code = main(["nccl", *typed])
    return code, capsys.readouterr().out


def refusal(capsys, *typed):
    assert main(["nccl", *typed]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and error.startswith("dtk: ")
    return error


def test_the_table_of_the_guide_is_the_printed_one(capsys):
    text = (ROOT / "docs" / "nccl.md").read_text()
    table = text.split("checked by a test -->\n")[1].split("<!-- end of presets -->")[0]
    assert table == markdown(read_presets()) == answer(capsys, "list", "--markdown")[1]


def test_presets_are_listed_shown_and_compared(capsys):
    code, listed = answer(capsys)
    assert code == 0 and len(listed.splitlines()) == 25
    assert answer(capsys, "list") == (0, listed)
    code, shown = answer(capsys, "show", "infiniband")
    assert "NCCL_IB_TIMEOUT=22" in shown and "18 before 2.23" in shown
    assert json.loads(answer(capsys, "show", "oci", "--json")[1])["variables"][2]["name"] == "NCCL_IB_HCA"
    assert set(json.loads(answer(capsys, "list", "--json")[1])) == set(read_presets())
    code, changed = answer(capsys, "diff", "infiniband", "ib_sharp")
    assert changed.splitlines() == [
        "--- infiniband",
        "+++ ib_sharp",
        "+NCCL_COLLNET_ENABLE=1",
        "-NCCL_IB_TIMEOUT=22",
        "+SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING=1",
        " 3 the same",
    ]
    assert json.loads(answer(capsys, "diff", "auto", "low_memory", "--json")[1]) == {
        "changed": {"NCCL_BUFFSIZE": [None, "2097152"], "NCCL_MAX_CTAS": [None, "8"]}
    }


def test_a_preset_is_compared_with_a_file_and_with_this_environment(capsys, tmp_path, monkeypatch):
    (tmp_path / "nccl.conf").write_text("NCCL_IB_TIMEOUT=18\n")
    monkeypatch.setenv("NCCL_IB_TIMEOUT", "18")
    changed = answer(capsys, "diff", str(tmp_path / "nccl.conf"), "infiniband")[1]
    assert "-NCCL_IB_TIMEOUT=18\n+NCCL_IB_TIMEOUT=22\n" in changed
    assert "-NCCL_IB_TIMEOUT=18\n" not in answer(capsys, "diff", "env", str(tmp_path / "nccl.conf"))[1]


def test_lint_of_this_environment(capsys, monkeypatch):
    assert answer(capsys, "lint")[0] == 0
    monkeypatch.setenv("NCCL_IB_DISABLED", "1")
    code, text = answer(capsys, "lint")
    assert code == 1 and "did you mean NCCL_IB_DISABLE?" in text and "(environment)" in text
    output = json.loads(answer(capsys, "lint", "--json")[1])
    assert (output["exit_code"], output["items"][0]["severity"]) == (1, "error")


def test_lint_of_files_and_exit_codes(capsys, tmp_path, monkeypatch):
    script = tmp_path / "job.sbatch"
    script.write_text("#!/bin/bash\nexport NCCL_DEBUG=WARN\n")
    assert answer(capsys, "lint", str(script), "--elsewhere")[0] == 0
    script.write_text("#!/bin/bash\n\nexport NCCL_P2P_DISABLE=yes NCCL_IB_DISABLE=1\n")
    code, text = answer(capsys, "lint", str(script), "--nodes", "4", "--elsewhere")
    assert code == 1 and f"{script}:3" in text and "many guides set it" in text
    conf = tmp_path / "mine.conf"
    conf.write_text("NCCL_DEBUG=TRACE\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(conf))
    assert f"({conf}:1)" in answer(capsys, "lint")[1]
    assert "cannot read" in refusal(capsys, "lint", str(tmp_path / "absent"))
    assert "is not a version" in refusal(capsys, "lint", "--nccl-version", "new")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["show", "infiniban"], "did you mean infiniband"),
        (["export", "tcp_ethernet", "--format", "sh"], "needs nccl.interface"),
        (["export", "tcp_ethernet", "--format", "tex"], "invalid choice"),
        (["export", "auto", "interface=eth0", "--format", "sh"], "does not use interface"),
        (["export", "roce", "traffic_class=x", "--format", "sh"], "is not a number"),
        (["export", "roce", "traffic_class", "--format", "sh"], "is not KEY=VALUE"),
        (["export", "roce", "traffic_class=999", "--format", "sh"], "nccl.traffic_class=999 is out of range"),
        (["export", "roce", f"traffic_class={'9' * 5000}", "--format", "sh"], "is not a number"),
        (["export", "roce", "traffic_class=1", "address_range=hello", "--format", "sh"], "is not an address range"),
        (["export", "slurm", "ras_port=99999999", "--format", "sh"], "it must be 1 to 65535"),
        (["export", "tcp_ethernet", "interface=eth0\nX=1", "--format", "docker"], "is not KEY=VALUE"),
        (["recommend", "--nodes", "0"], "is not a whole number from 1 to"),
        (["frobnicate"], "invalid choice"),
        (["list", "--config-dir", "/absent"], "there is no such folder"),
    ],
)
def test_wrong_input_is_one_line(typed, message, capsys):
    assert message in refusal(capsys, *typed)


def test_presets_of_ones_own_are_listed_and_a_broken_one_does_not_hide_them(capsys, tmp_path):
    (tmp_path / "nccl").mkdir()
    mine = "# Mine.\n# Use: python -m dtk.run nccl=mine\nname: mine\nvariables: {NCCL_DEBUG: WARN}\n"
    (tmp_path / "nccl" / "mine.yaml").write_text(mine)
    code, listed = answer(capsys, "--config-dir", str(tmp_path))
    assert code == 0 and "\nmine " in listed
    assert answer(capsys, "list", "--config-dir", str(tmp_path)) == (0, listed)
    assert answer(capsys, "--config-dir", str(tmp_path), "list") == (0, listed)
    (tmp_path / "nccl" / "bad.yaml").write_text("variables: [\n")
    code, partly = answer(capsys, "--config-dir", str(tmp_path))
    (line,) = [item for item in partly.splitlines() if item.startswith("bad ")]
    assert code == 1 and "cannot be used: cannot read" in line and "\nmine " in partly
    code, text = answer(capsys, "--json", "--config-dir", str(tmp_path))
    assert code == 1 and "cannot read" in json.loads(text)["bad"]["problem"]
    assert "cannot read" in refusal(capsys, "show", "bad", "--config-dir", str(tmp_path))


def test_a_batch_script_tells_the_linter_its_nodes(capsys, tmp_path):
    script = tmp_path / "job.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=4\nexport NCCL_SOCKET_IFNAME=lo\n")
    assert "the job has 4 nodes" in answer(capsys, "lint", str(script), "--elsewhere")[1]
    assert "the job has 2 nodes" in answer(capsys, "lint", str(script), "--elsewhere", "--nodes", "2")[1]


def test_kubernetes_expands_nothing_of_a_key(capsys):
    text = answer(capsys, "export", "tcp_ethernet", "interface=$(NCCL_DEBUG)", "--format", "k8s")[1]
    assert 'value: "=$$(NCCL_DEBUG)"' in text


def test_keys_may_stand_anywhere_in_an_export(capsys):
    before = answer(capsys, "export", "tcp_ethernet", "nccl.interface=eth0", "--format", "docker")[1]
    after = answer(capsys, "export", "tcp_ethernet", "--format", "docker", "interface=eth0")[1]
    assert before == after and "NCCL_SOCKET_IFNAME==eth0" in after.splitlines()


def test_recommend_says_why(capsys):
    code, text = answer(capsys, "recommend")
    assert code == 0 and "because" in text
    output = json.loads(answer(capsys, "recommend", "--nodes", "2", "--json")[1])
    assert output["recommended"][0]["because"] and output["recommended"][0]["preset"] in read_presets()


def test_no_action_imports_torch_or_hydra():
    code = (
        "import sys; from dtk.commands.main import main; main(['nccl', 'lint']); main(['nccl', 'recommend']); "
        "main(['nccl', 'export', 'auto', '--format', 'k8s']); sys.exit(bool({'torch', 'hydra'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=False).returncode
        == 0
    )


SPOKEN = """
import os, torch.distributed as dist
from tests.cli.faulty import Faulty

class Spoken(Faulty):
    def __init__(self, folder):
        super().__init__("none", forward=1000)
        if "RANK" in os.environ:
            names = ("TORCH_FR_BUFFER_SIZE", "TORCH_DISTRIBUTED_DEBUG", "TORCH_FR_DUMP_TEMP_FILE")
            told = [os.environ.get(name, "") for name in names]
            open(f"{folder}/{os.environ['RANK']}", "w").write(" ".join([dist.get_debug_level().name, *told]))
"""
"""A model that writes down what its rank was given before there was a communicator."""


def spoken(tmp_path, launcher=(), **variables):
    """A step of that model under nccl=debug_hang: (its process, its run folder, what rank 0 was given)."""
    (tmp_path / "spoken.py").write_text(SPOKEN)
    process = run(
        tmp_path / "runs",
        *FAULTY,
        *("strategy=ddp", "launcher.nproc=1", "train.steps=1", "train.evaluate_every=-1", "nccl=debug_hang"),
        *("model._target_=spoken.Spoken", "allow_targets=[spoken.*]", f"model.arguments.folder={tmp_path}"),
        launcher=launcher,
        PYTHONPATH=f"{ROOT}:{tmp_path}",
        **variables,
    )
    assert process.returncode == 0, process.stderr + process.stdout
    return process, only_run(tmp_path / "runs"), (tmp_path / "0").read_text().split()


@pytest.mark.timeout(120)
def test_the_preset_reaches_the_ranks_and_the_users_own_variable_wins(tmp_path):
    process, folder, given = spoken(tmp_path, TORCH_FR_BUFFER_SIZE="77")
    assert given == ["INFO", "77", "INFO", f"{folder}/flight/watchdog_rank_"]
    assert "your TORCH_FR_BUFFER_SIZE=77 takes precedence (the preset has 2000)" in process.stdout
    about = json.loads((folder / "manifest.json").read_text())
    assert about["nccl"]["kept"] == [
        {"name": "TORCH_FR_BUFFER_SIZE", "value": "77", "preset": "2000", "source": "environment"}
    ]
    assert about["environment"]["TORCH_FR_BUFFER_SIZE"] == "77"
    assert about["nccl"]["variables"]["TORCH_FR_DUMP_TEMP_FILE"] == given[-1]
    assert "why:" not in (folder / "config.yaml").read_text(), "the reasons stay in conf/"


@pytest.mark.extended
@pytest.mark.timeout(200)
def test_under_torchrun_the_ranks_take_it_too(tmp_path):
    _, folder, given = spoken(tmp_path, ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"))
    texts = ["INFO", "2000", "INFO", f"{folder}/flight/watchdog_rank_"]
    assert given == (tmp_path / "1").read_text().split() == texts, "also what torch reads when it is imported"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["nccl=infiniband"], "nccl=infiniband is for NCCL, and these ranks communicate over gloo"),
        (["nccl=cpu_gloo", "nccl.interface=absent0"], "this machine has no interface absent0"),
    ],
)
def test_a_preset_that_does_not_fit_is_one_line_and_leaves_no_run(overrides, message, tmp_path, capsys):
    assert main(["run", f"runs_folder={tmp_path / 'runs'}", "experiment=smoke", *overrides]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dtk: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()
