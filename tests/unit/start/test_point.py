"""A prepared job is started here, rendered for a cluster, or refused by its preflight."""

import pytest

from dtk.launch.prepare import compose_point, place_point
from dtk.start import point
from dtk.start.point import FAILED, preflight_point, run_point
from tests.unit.launch.conftest import SMALL


def prepared(*overrides: str):
    return place_point(compose_point([*SMALL, *overrides], None))


def test_a_dry_run_says_what_would_start_and_makes_no_folder(tmp_path, capsys):
    opened = []
    assert run_point(*prepared("launcher.nproc=2", f"runs_folder={tmp_path}"), opened.append, dry_run=True) == 0
    out = capsys.readouterr().out
    assert "2 on cpu over gloo" in out
    assert out.endswith("dry run: nothing was started and the run folder was not created\n")
    assert not opened and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("layers", "text"), [(3, "3 x OwnBlock (steps.0 to steps.2)"), (1, "none found")])
def test_a_dry_run_says_which_blocks_an_own_model_has(layers, text, tmp_path, capsys):
    own = [
        "model=custom",
        "model._target_=tests.dist.own_models.Own",
        "allow_targets=[tests.*]",
        "model.vocab_size=256",
    ]
    own += [f"+model.arguments.layers={layers}", "data.vocab_size=256", "launcher.nproc=2", f"runs_folder={tmp_path}"]
    words = [word for word in SMALL if not word.startswith("model")]
    assert run_point(*place_point(compose_point([*words, *own], None)), dry_run=True) == 0
    assert f"blocks: {text}" in capsys.readouterr().out


def test_a_job_for_a_cluster_is_handed_over(tmp_path, capsys):
    cluster = ["launcher=slurm", "launcher.nodes=2", "launcher.nproc=1", f"runs_folder={tmp_path}"]
    assert run_point(*prepared(*cluster), dry_run=True) == 0
    assert "#SBATCH --nodes=2" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_what_would_hang_is_told_and_not_launched(tmp_path, monkeypatch, capsys):
    world_sizes = []
    monkeypatch.setattr(
        point, "preflight_point", lambda *given: (world_sizes.append(given[1].world_size), "it would hang\n")[1]
    )
    assert run_point(*prepared("launcher.nproc=2", f"runs_folder={tmp_path}")) == FAILED
    assert capsys.readouterr().out == "it would hang\n" and world_sizes == [2] and not list(tmp_path.iterdir())


@pytest.mark.parametrize("ends", [True, False])
def test_a_preflight_is_made_when_it_is_wanted(ends, monkeypatch, capsys):
    from dataclasses import replace
    from types import SimpleNamespace

    from dtk.preflight import report, run

    requests = []
    prediction = SimpleNamespace(verdict=SimpleNamespace(ends=ends))
    monkeypatch.setattr(run, "preflight", lambda request, composed: (requests.append(request), prediction)[1])
    monkeypatch.setattr(report, "answer", lambda result: "all ranks end")
    monkeypatch.setattr(report, "document", lambda value, brief: value)
    monkeypatch.setattr("diagnostics.report.terminal.render", lambda document, columns, colour: "the report")
    off, placement = prepared("launcher.nproc=2")
    assert preflight_point(off.composed, placement) == "" and not requests
    on, _ = prepared("launcher.nproc=2", "preflight=on")
    text = preflight_point(on.composed, replace(placement, world_size=4))
    assert (text, capsys.readouterr().out) == (("", "preflight: all ranks end\n") if ends else ("the report", ""))
    assert (requests[0].world_size, requests[0].local_size) == (4, 2) and "preflight=on" in requests[0].overrides
