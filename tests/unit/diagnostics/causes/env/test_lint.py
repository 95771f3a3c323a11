import pytest

from diagnostics.analysis.environment import job as job_module
from diagnostics.causes import lint_texts
from diagnostics.contract.findings import text_of
from tests.unit.diagnostics.causes.env.evidence import CAUSES, decide, dtk_run, fact, job

FAILURES = (
    "env.version_mismatch",
    "env.shm_too_small",
    "env.duplicate_gpu",
    "env.debug_detail_crash",
    "env.duplicate_rank",
    "env.known_bug",
    "env.job_stopped",
    "env.container_limits",
    "env.cpu_starved",
    "env.p2p_broken",
)
LINTED = {cause.id for cause in CAUSES} - set(FAILURES)
RDMA = {"interfaces": ["lo", "eth0"], "infiniband": ["mlx5_0"]}


def statuses(evidence):
    return {value.status for cause, value in decide(evidence).items() if cause in LINTED}


def test_without_evidence_nothing_is_decided():
    assert statuses(job()) == {"undecided"}
    assert all(text_of(item).missing for item in decide(job()).values())


def test_a_clean_run_rules_everything_out():
    run = dtk_run({"TORCH_FR_BUFFER_SIZE": "2000", "NCCL_DEBUG": "WARN"}, hardware=RDMA)
    assert statuses(job({-1: {"NCCL_DEBUG": "WARN"}}, run=run)) == {"ruled_out"}


def test_the_shipped_typo_is_found_and_its_remedy_is_in_the_configuration():
    variables = {"NCCL_SOCKET_IFNAM": "eth0", "NCCL_IB_DISABLE": "true"}
    finding = decide(job(run=dtk_run(variables=variables, hardware=RDMA, backend="gloo")))
    typo = finding["env.unknown_variable"]
    assert (typo.status, typo.ranks, typo.confidence) == ("confirmed", (), 0.95)
    text = text_of(typo)
    assert text.summary.startswith("NCCL_SOCKET_IFNAM=eth0: nothing reads this variable")
    assert text.summary.endswith("did you mean NCCL_SOCKET_IFNAME?")
    assert text.remedies[0].kind == "override"
    assert text.remedies[0].change == "'~nccl.variables.NCCL_SOCKET_IFNAM' nccl.variables.NCCL_SOCKET_IFNAME=eth0"
    assert typo.evidence[0].file == "config.yaml"
    assert finding["env.silent_zero"].status == "confirmed"
    assert text_of(finding["env.silent_zero"]).remedies[0].change == "nccl.variables.NCCL_IB_DISABLE=1"
    assert finding["env.ib_disabled"].status == "ruled_out"


@pytest.mark.parametrize(
    ("variables", "cause", "change"),
    [
        (
            {"NCCL_SOCKET_IFNAM": "^lo"},
            "env.unknown_variable",
            "unset NCCL_SOCKET_IFNAM; export NCCL_SOCKET_IFNAME='^lo'",
        ),
        ({"NCCL_IB_DISABLE": "yes"}, "env.silent_zero", "export NCCL_IB_DISABLE=1"),
        ({"NCCL_AGG_CHANNEL_SIZE": "1"}, "env.deprecated_variable", "unset NCCL_AGG_CHANNEL_SIZE"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, "env.p2p_disabled", "unset NCCL_SHM_DISABLE"),
        ({"NCCL_MNNVL_ENABLE": "1", "NCCL_CUMEM_ENABLE": "0"}, "env.contradiction", "export NCCL_CUMEM_ENABLE=1"),
        ({"NCCL_PROTO": "LL128"}, "env.risky_setting", "unset NCCL_PROTO"),
        ({"NCCL_BUFFSIZE": "4M"}, "env.silent_zero", "NCCL_BUFFSIZE: write a plain number"),
        (
            {"GLOO_SOCKET_IFNAME": "=a"},
            "env.wrong_interface",
            "GLOO_SOCKET_IFNAME: GLOO_SOCKET_IFNAME=<name of the interface>",
        ),
    ],
)
def test_a_remedy_is_what_to_type(variables, cause, change):
    (remedy,) = text_of(decide(job({-1: variables}))[cause]).remedies
    assert (remedy.kind, remedy.change) == ("environment", change)


def test_the_users_environment_wins_over_the_configuration():
    run = dtk_run({"NCCL_BUFFSIZE": "4194304"}, variables={"NCCL_BUFFSIZE": "4M"}, hardware=RDMA)
    assert decide(job(run=run))["env.silent_zero"].status == "ruled_out"


def test_what_a_key_filled_in_is_judged_and_not_the_braces():
    variables = {"NCCL_SOCKET_IFNAME": "={interface}", "NCCL_IB_HCA": "={hca?}", "NCCL_DEBUG": "WARN"}
    run = dtk_run({"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_DEBUG": "WARN"}, variables=variables, hardware=RDMA, nodes=2)
    assert statuses(job(run=run)) == {"ruled_out"}
    wrong = dtk_run({"NCCL_SOCKET_IFNAME": "=ens3"}, variables=variables, hardware=RDMA, nodes=2)
    assert decide(job(run=wrong))["env.wrong_interface"].evidence[0].file == "manifest.json"


def test_what_a_log_echoes_is_judged_but_rules_no_name_out():
    echo = fact("nccl_env", "NCCL INFO NCCL_NET_GDR_LEVEL set by environment to 9", 0, name="NCCL_CROSS_NIC", value="7")
    finding = decide(job({0: {"NCCL_CROSS_NIC": "7"}}, [echo]))
    invalid = finding["env.invalid_value"]
    assert (invalid.status, invalid.ranks) == ("confirmed", (0,))
    assert (invalid.evidence[0].file, invalid.evidence[0].line) == ("node.log", 7)
    assert finding["env.unknown_variable"].status == "undecided"
    assert finding["env.silent_zero"].status == "ruled_out"


def test_an_echo_does_not_hide_the_text_that_nccl_misread():
    run = dtk_run({"NCCL_IB_DISABLE": "true"}, hardware=RDMA)
    echo = fact("nccl_env", "", None, name="NCCL_IB_DISABLE", value="0")
    finding = decide(job({-1: {"NCCL_IB_DISABLE": "0"}}, [echo], run=run))
    assert finding["env.silent_zero"].status == "confirmed"
    assert finding["env.contradiction"].status == "ruled_out"


def test_ranks_that_disagree_are_named_by_the_majority():
    environment = {rank: {"NCCL_ALGO": "Tree" if rank == 2 else "Ring"} for rank in range(4)}
    result = decide(job(environment))["env.contradiction"]
    assert (result.status, result.ranks) == ("confirmed", (2,))
    assert "'Tree' on rank 2" in text_of(result).summary


def test_two_ranks_that_disagree_are_a_tie():
    result = decide(job({0: {"NCCL_PROTO": "LL"}, 1: {"NCCL_PROTO": "Simple"}}))["env.contradiction"]
    assert result.ranks == (0, 1)


def test_variables_that_may_differ_do():
    environment = {rank: {"NCCL_SOCKET_IFNAME": f"eth{rank}", "NCCL_IB_HCA": f"=mlx5_{rank}"} for rank in range(2)}
    assert decide(job(environment))["env.contradiction"].status == "ruled_out"


def test_a_lint_on_one_rank_names_that_rank():
    environment = {0: {"NCCL_BUFFSIZE": "4194304"}, 1: {"NCCL_BUFFSIZE": "4M"}}
    result = decide(job(environment))["env.silent_zero"]
    assert result.ranks == (1,)
    assert "(on rank 1)" in text_of(result).summary


def test_many_ranks_with_one_environment_are_linted_once(monkeypatch):
    calls = []
    real = job_module.lint
    monkeypatch.setattr(job_module, "lint", lambda *arguments: calls.append(1) or real(*arguments))
    finding = decide(job({rank: {"NCCL_DEBUG": "TRACE"} for rank in range(1000)}))
    assert len(calls) <= 2
    assert len(finding["env.debug_left_on"].ranks) == 1000
    assert len(text_of(finding["env.debug_left_on"]).summary) < 400


def test_notes_are_never_root_causes():
    result = decide(job({-1: {"NCCL_DEBUG": "INFO", "PATH": "x"}}))["env.debug_left_on"]
    assert result.status == "confirmed" and result.confidence < 0.5


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_ranks_and_names_changes_nothing(order):
    names = {"NCCL_ALGO": "Ring", "NCCL_QUUX": "1", "NCCL_BUFFSIZE": "4M"}
    environment = {rank: dict(list(names.items())[::order]) for rank in range(3)[::order]}
    assert decide(job(environment)) == decide(job(dict.fromkeys(range(3), names)))


def test_damaged_records_are_survived():
    run = dtk_run()
    run.manifest.update(environment=3, hardware=[1], topology="two")
    run.config["nccl"] = ["x"]
    assert statuses(job(run=run)) <= {"ruled_out", "undecided"}


def test_the_linter_names_the_causes_that_it_decides():
    assert len(CAUSES) == 20
    assert {row["cause"] for row in lint_texts._ROWS.values()} == LINTED


def test_the_remedy_carries_the_value_that_one_rank_had():
    result = decide(job({2: {"NCCL_IB_DISABEL": "1"}}))["env.unknown_variable"]
    assert result.ranks == (2,)
    assert text_of(result).remedies[0].change == "unset NCCL_IB_DISABEL; export NCCL_IB_DISABLE=1"
