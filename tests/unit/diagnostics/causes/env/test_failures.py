import pytest

from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.model import RankError
from tests.unit.diagnostics.causes.env.evidence import decide, fact, job

VERSION, SHM, GPU, _, _ = FAILURES = (
    "env.version_mismatch",
    "env.shm_too_small",
    "env.duplicate_gpu",
    "env.debug_detail_crash",
    "env.duplicate_rank",
)


def error(rank, message="", signal=None, frames=()):
    return RankError(rank, "error.json", 0, "DistBackendError", message, frames, signal)


def test_without_logs_nothing_is_decided():
    assert {decide(job())[cause].status for cause in FAILURES} == {"undecided"}


def test_logs_that_say_nothing_of_it_rule_it_out():
    quiet = fact("nccl_net", "Using network Socket", 0, net="Socket")
    finding = decide(job({-1: {"NCCL_DEBUG": "INFO"}}, [quiet]))
    assert {finding[cause].status for cause in FAILURES} == {"ruled_out"}


def test_shm_too_small():
    text = "Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes, error: No space left on device (28)"
    result = decide(job(facts=[fact("nccl_shm", text, 3, path="/dev/shm/nccl-AbCdEf", needed_bytes=9637892)]))[SHM]
    assert (result.status, result.ranks) == ("confirmed", (3,))
    assert "9.19 MiB" in text_of(result).summary
    assert "--shm-size" in text_of(result).remedies[0].change


def test_shm_of_nccl_as_torch_repeats_its_last_error(tmp_path):
    last = "Last error:\nError while creating shared memory segment /dev/shm/nccl-pZafXL (size 7340384)\n"
    (tmp_path / "train.log").write_text(f"step 1 loss 2.0\nncclSystemError: System call failed.\n{last}")
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.confidence) == (SHM, 0.85) and " MiB in /dev/shm" in text_of(root).summary


@pytest.mark.parametrize(
    ("said", "after"),
    [
        ("include/shm.h:27 NCCL WARN Call to shm_open failed : Permission denied", ""),
        ("misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'", ""),
        ("misc/shmutils.cc:71 NCCL INFO x", ", error: No such file or directory (2)"),
    ],
)
def test_a_segment_that_nccl_could_not_create_for_another_reason(tmp_path, said, after):
    failed = (
        f"n8:1:2 [0] shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-0 (size 4460544){after}\n"
    )
    (tmp_path / "train.log").write_text(f"n8:1:2 [0] {said}\n{failed}")
    assert not diagnose(tmp_path).root_causes


def test_shm_of_the_data_loader():
    message = "DataLoader worker (pid 41) is killed by signal: Bus error. It is possible that dataloader's workers..."
    assert "data loader" in text_of(decide(job(errors=[error(0, message)]))[SHM]).summary


def test_memory_that_the_system_could_not_provide_is_less_sure_than_a_full_dev_shm(tmp_path):
    line = "[c7:527 :0:540] Caught signal 7 (Bus error: nonexistent physical address)\n"
    (tmp_path / "train.log").write_text("step 3 loss 2.0\n" + line)
    (first,) = diagnose(tmp_path).root_causes
    assert (first.cause, first.confidence) == (SHM, 0.7)
    (tmp_path / "train.log").write_text("step 3 loss 2.0\n[c7:527 :0:540] Caught signal 11 (Segmentation fault)\n")
    assert not any(root.cause == SHM for root in diagnose(tmp_path).root_causes)


@pytest.mark.parametrize("end", ["n8:1:2 [0] NCCL INFO init.cc:1582 -> 1\n", "Illegal instruction (core dumped)\n"])
def test_a_driver_that_is_too_old_for_its_cuda(tmp_path, end):
    text = "init.cc:1582 NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'\n"
    (tmp_path / "train.log").write_text(text + end)
    first = diagnose(tmp_path).root_causes[0]
    assert first.cause == VERSION and "newer driver" in text_of(first).remedies[0].change


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("[rank1]: torch.AcceleratorError: HIP error: invalid device function", "rocminfo"),
        ("RuntimeError: CUDA error: invalid device function", "get_arch_list"),
        ("hipErrorNoBinaryForGpu: Unable to find code object for all current devices!", "get_arch_list"),
        ("RuntimeError: CUDA error: invalid device ordinal", ""),
        ("RuntimeError: HIP error: invalid device pointer", ""),
        ("RuntimeError: Error 802: system not yet initialized", "nvidia-fabricmanager"),
        ("n8: Test CUDA failure common.cu:941 'system not yet initialized'", "nvidia-fabricmanager"),
        ("[rank3]: Cuda failure 802 'system not yet initialized'", "nvidia-fabricmanager"),
        ("RuntimeError: the logging system not yet initialized", ""),
    ],
)
def test_a_device_without_kernels_and_a_fabric_that_is_not_set_up(tmp_path, line, fix):
    (tmp_path / "train.log").write_text(f"step 1 loss 2.0\n{line}\n")
    roots = [root for root in diagnose(tmp_path).root_causes if root.cause == VERSION]
    assert [fix in text_of(root).remedies[0].change for root in roots] == [True] * bool(fix)


def test_two_ranks_on_one_gpu():
    text = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"
    fields = {"first": 1, "second": 0, "gpu": "1b000"}
    result = decide(job(facts=[fact("nccl_duplicate_gpu", text, 1, **fields)]))[GPU]
    assert (result.status, result.ranks) == ("confirmed", (0, 1))
    assert text_of(result).summary == "Ranks 0 and 1 use one GPU (device 1b000); NCCL needs one GPU for each rank."


def test_the_last_error_of_an_exception_counts_too():
    message = (
        "NCCL error in: x.cpp:1, invalid usage, NCCL version 2.21.5\nncclInvalidUsage: ...\nLast error:\n"
        "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 50000"
    )
    assert decide(job(errors=[error(0, message)]))[GPU].ranks == (0, 1)


def test_versions_that_do_not_match():
    text = "NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 rank 1 version 22005"
    result = decide(job(facts=[fact("nccl_version_mismatch", text, 0, detail=text[44:])]))[VERSION]
    assert result.status == "confirmed"
    assert "22005" in text_of(result).summary


@pytest.mark.parametrize("end", ["", "FAILED"])
@pytest.mark.parametrize(
    ("versions", "file", "named"),
    [
        (("2.21.5+cuda12.4", "2.19.3+cuda12.3"), "bootstrap.cc", True),
        (("2.21.5+cuda12.4", "2.21.5+cuda12.4"), "bootstrap.cc", False),
        (("2.21.5+cuda12.4", "2.21.5+cuda12.1"), "bootstrap.cc", False),
        (("2.21+cuda12.4", "2.21.5+cuda12.4"), "socket.cc", True),
        (("2.21.5+cuda12.4",), "bootstrap.cc", False),
        (("2.21.5+cuda12.4", "2.19.3+cuda12.3"), "net_ib.cc", False),  # Of a collective: sizes that differ.
    ],
)
def test_two_versions_of_nccl_and_a_message_of_another_length(tmp_path, versions, file, named, end):
    lines = [f"n{n}:1:2 [0] NCCL INFO NCCL version {version}" for n, version in enumerate(versions)]
    warning = f"n1:1:2 [0] {file}:77 NCCL WARN Message truncated : received 1024 bytes instead of 256"
    (tmp_path / "train.log").write_text("\n".join([*lines, warning, FAILED if end else ""]))
    shown = [each.finding for each in diagnose(tmp_path).findings if each.finding.cause == VERSION]
    assert [finding.confidence for finding in shown if finding.status == "confirmed"] == [0.75 if end else 0.45] * named


DUPLICATE = """\
Traceback (most recent call last):
  File "/job/train.py", line 31, in <module>
    dist.all_reduce(x)
torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, invalid usage, NCCL version 2.21.5
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000
"""  # noqa: E501
FAILED = "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:825, unhandled system error, NCCL version 2.7.8\n"
BUS = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
KILLED = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that ...\n"


def test_two_processes_of_one_rank(tmp_path):
    lines = "gpu1:77:90 [0] bootstrap.cc:1 NCCL WARN Bootstrap Root : rank {} of 4 ranks has already checked in\n"
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n" + lines.format(3) + lines.format(1) + FAILED)
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == ("env.duplicate_rank", (1, 3))
    assert text_of(root).summary == "Two processes joined as ranks 1 and 3."


@pytest.mark.parametrize("above", ["", "ncclInternalError: Internal check failed.\nLast error:\n"])
@pytest.mark.parametrize("bare", ["", "Bootstrap Root : "])
def test_its_words_count_wherever_they_stand(tmp_path, above, bare):
    raised = DUPLICATE.partition("ncclInvalidUsage")[0].replace("invalid usage", "internal error")
    text = f"{raised}{above}{bare}rank 3 of 4 ranks has already checked in\n"
    (tmp_path / "train.log").write_text("".join(f"[rank3]: {line}\n" for line in text.splitlines()))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == ("env.duplicate_rank", (3,))


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
@pytest.mark.parametrize(
    ("text", "cause", "ranks"),
    [(DUPLICATE, GPU, (0, 1)), (DUPLICATE.splitlines()[-1], GPU, (0, 1)), (BUS, SHM, ()), (KILLED, SHM, ())],
)
def test_words_in_a_log_without_the_head_of_a_warning(tmp_path, prefix, text, cause, ranks):
    lines = [prefix + line for line in text.splitlines()]
    (tmp_path / "train.log").write_text("step 1 loss 3.2\n" + "\n".join(lines) + "\n")
    report = diagnose(tmp_path)
    assert [root_cause.cause for root_cause in report.root_causes] == [cause]
    assert report.root_causes[0].ranks == (ranks or ((1,) if prefix else ()))
    assert len({(item.file, item.line) for item in report.root_causes[0].evidence}) == 1


@pytest.mark.parametrize(
    ("line", "causes"),
    [
        ("(raylet) *** SIGBUS received at time=1749 on cpu 16 ***", ["env.shm_too_small"]),
        ("(raylet, ip=10.0.0.7) *** SIGBUS received at time=1749 on cpu 16 ***", ["env.shm_too_small"]),
        ("(raylet) *** SIGSEGV received at time=1749 on cpu 16 ***", []),
        ("(WorkerDict pid=77) *** SIGBUS received at time=1749 on cpu 16 ***", ["hang.rank_killed"]),
    ],
)
def test_the_process_of_ray_that_holds_a_node_s_objects(tmp_path, line, causes):
    (tmp_path / "ray.log").write_text(line + "\n")
    assert [root.cause for root in diagnose(tmp_path).root_causes] == causes


@pytest.mark.parametrize("how", ["unable to allocate shared memory(shm) for", "unable to write to"])
def test_shm_of_tensors_that_processes_share(how):
    message = f"{how} file </torch_1031_2122143_117>: Resource temporarily unavailable (11)"
    assert "--shm-size" in text_of(decide(job(errors=[error(2, message)]))[SHM]).remedies[0].change


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("n4:71:90 [0] enqueue.cc:58 NCCL WARN Cuda failure 'named symbol not found'\n" + FAILED, "NVCC_GENCODE"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "NVCC_GENCODE"),
        (
            "THCudaCheck FAIL file=A.cu line=4 error=48 : no kernel image is available for execution on the device",
            "nvidia-smi",
        ),
        (
            "ImportError: /env/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowRegister",
            "other copies of libnccl.so",
        ),
    ],
)
def test_libraries_that_do_not_fit_each_other_or_the_gpu(tmp_path, line, words):
    (tmp_path / "train.log").write_text(f"step 1 loss 2.0\n{line}\n")
    first = diagnose(tmp_path).root_causes[0]
    assert first.cause == VERSION and words in text_of(first).remedies[0].change


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("[nvidia-smi] Failed to initialize NVML: Driver/library version mismatch", "modprobe nvidia"),
        ("pynvml.NVMLError: RM has detected an NVML/RM version mismatch.", "modprobe nvidia"),
        ("[ 9.1] NVRM: API mismatch: the client has the version 550.54.15, but", "modprobe nvidia"),
        ("CUDA: (803 vs. 0) : system has unsupported display driver / cuda driver combination", "cuda/compat"),
        ("RuntimeError: CUDA failure 804: forward compatibility was attempted on non supported HW", "cuda/compat"),
        ("CUDA driver version is insufficient for CUDA runtime version", "newer driver"),
        ("nvidia-container-cli: cuda>=12.4, please update your driver to a newer version", "newer driver"),
        ("Triton: the provided PTX was compiled with an unsupported toolchain.", "newer driver"),
    ],
)  # fmt: skip
def test_a_driver_that_does_not_fit(tmp_path, line, change):
    (tmp_path / "train.log").write_text(f"{line}\n")
    first = diagnose(tmp_path).root_causes[0]
    assert first.cause == VERSION and change in text_of(first).remedies[0].change


@pytest.mark.parametrize(
    "line", ["Failed to initialize NVML: Unknown Error", "driver version 550.54, library version 550.54"]
)
def test_other_words_about_drivers(tmp_path, line):
    (tmp_path / "train.log").write_text(f"{line}\n")
    assert not diagnose(tmp_path).root_causes


WARN = "n8:1:2 [0] {} NCCL WARN "
ON_ONE_GPU = WARN.format("init.cc:9") + "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000\n"
NO_ROOM = WARN.format("shm.cc:9") + "Error: failed to extend /dev/shm/nccl-Ab to 9637892 bytes, error: No space left\n"
NO_PEER = WARN.format("transport/p2p.cc:9") + "Cuda failure 'invalid argument'\n"
LOCKED = WARN.format("ibvwrap.cc:9") + "Call to ibv_reg_mr failed with error Cannot allocate memory\n"
OLD = "torch/cuda/__init__.py:129: UserWarning: The NVIDIA driver on your system is too old (found version 11040).\n"
WARNINGS = (ON_ONE_GPU, NO_ROOM, NO_PEER, LOCKED, OLD)
RAISED = (
    '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/job/t.py", line 9, in <module>\n[rank3]:     f(x)\n'
    "[rank3]: KeyError: 'labels'\n"
)
CLOSED = "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:4512\n"
HANGS = (
    "[rank0]:[E1120 10:11:12.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: Work"
    "NCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=99, NumelOut=99, Timeout(ms)=600000) ran for 600012 milliseconds\n"
)
CANCELLED = "slurmstepd: error: *** JOB 77 ON n8 CANCELLED AT 2026-07-01T12:00:00 DUE TO TIME LIMIT ***\n"


def confirmed_of_environment(report):
    return [
        root_cause.cause
        for root_cause in report.root_causes
        if root_cause.cause.startswith("env.") and root_cause.cause != "env.job_stopped"
    ]


@pytest.mark.parametrize("warning", WARNINGS)
@pytest.mark.parametrize("end", [FAILED, HANGS, CLOSED, "n8:1:2 [0] NCCL INFO init.cc:867 -> 5\n", FAILED + RAISED])
def test_a_warning_is_the_cause_where_communication_then_failed(tmp_path, warning, end):
    (tmp_path / "train.log").write_text(f"[rank0]: starting\n{warning}{end}")
    assert len(confirmed_of_environment(diagnose(tmp_path))) == 1


@pytest.mark.parametrize("warning", WARNINGS)
@pytest.mark.parametrize(
    ("before", "after", "is_suspected"),
    [
        ("", "", True),
        ("", "n8:1:2 [0] NCCL INFO Connected all rings\n", True),
        ("", RAISED, False),
        ("", RAISED + CLOSED, False),
        ("", CANCELLED, False),
        ("", "Training complete\n", False),
        (HANGS, "", False),
        ("", "".join(f"step {n} loss {3 - n / 100:.2f}\n" for n in range(20)) + FAILED, False),
    ],
)
def test_a_warning_alone_is_suspected_at_most(tmp_path, warning, before, after, is_suspected):
    (tmp_path / "train.log").write_text(f"[rank0]: starting\n{before}{warning}{after}")
    report = diagnose(tmp_path)
    assert not confirmed_of_environment(report)
    assert any(finding.finding.suspected for finding in report.findings) == is_suspected


DUPLICATE = WARN.format("bootstrap.cc:201") + "Bootstrap Root : rank 3 of 8 ranks has already checked in\n"


@pytest.mark.parametrize("warning", [*WARNINGS[:-1], DUPLICATE])
def test_a_warning_may_stand_below_the_error_that_it_explains(tmp_path, warning):
    """NCCL prints to stdout, and torch to stderr, which is not buffered."""
    (tmp_path / "train.log").write_text(f"[rank0]: starting\n{FAILED}{warning}")
    assert len(confirmed_of_environment(diagnose(tmp_path))) == 1


@pytest.mark.parametrize("warning", [NO_PEER, DUPLICATE])
@pytest.mark.parametrize(
    "before",
    [
        FAILED + "".join(f"step {n} loss {3 - n / 100:.2f}\n" for n in range(20)),
        FAILED + RAISED,
        RAISED + FAILED,
        "RuntimeError: NCCL error in: a.cpp:1, remote process exited or there was a network error\n",
    ],
)
def test_a_warning_below_something_else_is_not_the_cause(tmp_path, warning, before):
    (tmp_path / "train.log").write_text(f"[rank0]: starting\n{before}{warning}")
    assert not confirmed_of_environment(diagnose(tmp_path))


def test_thousands_of_warnings_are_decided_within_the_budget(tmp_path):
    """Whether a warning ended the job, and which cases it excludes, is not worked out again for each line."""
    warnings = "NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory"
    raised = "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled system error"
    trace = ["Traceback (most recent call last):", '  File "/a/train.py", line 3, in <module>', "    x()", raised]
    lines = [f"node{n // 80}:{n // 10}:{n // 10} [{n // 10 % 8}] {warnings} {n}" for n in range(5120)]
    lines += [f"[rank{rank}]: {text}" for rank in range(512) for text in trace]
    (tmp_path / "job.log").write_text("\n".join(lines))
    report = diagnose(tmp_path)
    assert [root.cause for root in report.root_causes] == ["env.container_limits"]
    assert not [problem for entry in report.coverage for problem in entry.problems]
