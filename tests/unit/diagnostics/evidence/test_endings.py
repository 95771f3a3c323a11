"""The one classification of how a rank ended, over the texts of torch, numpy, Hugging Face, HTTP clients and the OS."""
# ruff: noqa: E501  # texts as they are printed, one case a line

import signal

import pytest

from diagnostics.evidence import endings
from diagnostics.evidence.endings import (
    UNNAMED,
    Ending,
    ends_a_rank,
    exception_of_line,
    first_is_unknown,
    is_victim,
    kind_of_exception,
    kind_of_exit_code,
    kind_of_signal,
    of_error,
    of_fact,
    of_srun,
)
from diagnostics.evidence.model import Frame, LogFact, RankError
from diagnostics.evidence.readers.log import read_text

USER = (Frame("/job/train.py", 31, "step"),)
TORCH = (Frame("/env/lib/python3.11/site-packages/torch/nn/functional.py", 2380, "linear"), *USER)
C10D = (Frame("/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2991, "all_reduce"), *USER)
STORE = (Frame("/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py", 189, "_create_c10d_store"), *USER)
LOADER = (Frame("/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1251, "_try_get_data"), *USER)
HTTP = (Frame("/env/lib/python3.11/site-packages/requests/adapters.py", 700, "send"), *USER)
DCP = (Frame("/env/lib/python3.11/site-packages/torch/distributed/checkpoint/filesystem.py", 210, "_write_item"), *USER)
MP = (Frame("/usr/lib/python3.11/multiprocessing/connection.py", 388, "_recv"), *USER)
BACKWARD = (Frame("/env/lib/python3.11/site-packages/torch/autograd/graph.py", 824, "_engine_run_backward"), *USER)

OWN = [
    ("RuntimeError", "oneCCL: coll_param.cpp:455 validate: EXCEPTION: average operation is not supported", USER),
    # torch: shapes, types, devices
    ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (32x784 and 512x10)", TORCH),
    ("RuntimeError", "shape mismatch: value tensor of shape [3] cannot be broadcast to indexing result of shape [4]", USER),
    ("IndexError", "shape mismatch: indexing tensors could not be broadcast together with shapes [2], [3]", USER),
    ("RuntimeError", "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1", USER),
    ("RuntimeError", "Error(s) in loading state_dict for GPT:\n\tsize mismatch for head.weight: copying a param with shape torch.Size([100, 8]) from checkpoint, the shape in current model is torch.Size([120, 8]).", TORCH),
    ("RuntimeError", "Error(s) in loading state_dict for GPT:\n\tMissing key(s) in state_dict: \"head.bias\".", TORCH),
    ("RuntimeError", "expected scalar type Half but found Float", TORCH),
    ("RuntimeError", "dtype mismatch: expected Float but got BFloat16", TORCH),
    ("RuntimeError", "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same", TORCH),
    ("RuntimeError", "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!", TORCH),
    ("RuntimeError", "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported", TORCH),
    ("AcceleratorError", "CUDA error: an illegal memory access was encountered", USER),
    ("RuntimeError", "CUDA error: no kernel image is available for execution on the device", USER),
    ("RuntimeError", "CUDA error: invalid device ordinal", USER),
    ("RuntimeError", "CUDA error: peer access is not supported between these two devices", USER),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", TORCH),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", TORCH),
    ("RuntimeError", "Trying to backward through the graph a second time", BACKWARD),
    ("RuntimeError", "element 0 of tensors does not require grad and does not have a grad_fn", BACKWARD),
    ("RuntimeError", "one of the variables needed for gradient computation has been modified by an inplace operation", BACKWARD),
    ("RuntimeError", "Function 'MulBackward0' returned nan values in its 0th output.", BACKWARD),
    ("RuntimeError", "Expected to mark a variable ready only once. This error is caused by one of the following reasons", BACKWARD),
    ("RuntimeError", "probability tensor contains either `inf`, `nan` or element < 0", USER),
    ("RuntimeError", "PytorchStreamReader failed reading zip archive: failed finding central directory", USER),
    ("RuntimeError", "unexpected EOF, expected 4096 more bytes. The file might be corrupted.", USER),
    ("RuntimeError", "Attempting to deserialize object on CUDA device 4 but torch.cuda.device_count() is 2.", USER),
    ("RuntimeError", "The compiler aborted: connect the debugger to the peer process", USER),
    ("OutOfResources", "out of resource: shared memory, Required: 147456, Hardware limit: 101376.", USER),
    # torch: the data loader
    ("RuntimeError", "DataLoader timed out after 60 seconds", LOADER),
    ("RuntimeError", "DataLoader worker (pid 31184) is killed by signal: Killed. ", LOADER),
    ("RuntimeError", "DataLoader worker (pid(s) 311) exited unexpectedly", LOADER),
    ("RuntimeError", "DataLoader worker (pid 4) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", LOADER),
    ("RuntimeError", "Pin memory thread exited unexpectedly", LOADER),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer", MP),
    ("EOFError", "", MP),
    ("BrokenPipeError", "[Errno 32] Broken pipe", MP),
    ("TimeoutError", "", USER),
    # torch.distributed: the arguments, devices and ports of this very rank
    ("ValueError", "Default process group has not been initialized, please make sure to call init_process_group.", C10D),
    ("RuntimeError", "No backend type associated with device type cpu", C10D),
    ("RuntimeError", "Tensors must be contiguous", C10D),
    ("RuntimeError", "[enforce fail at /x/third_party/gloo/gloo/alltoallv.cc:138] inLengthPerRank[myRank] == outLengthPerRank[myRank].", C10D),
    ("DistBackendError", "NCCL error in: ../ProcessGroupNCCL.cpp:1691, invalid usage, NCCL version 2.20.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 100000", C10D),
    ("OSError", "[Errno 98] Address already in use", USER),
    ("RuntimeError", "ProcessGroupGloo::allgather: invalid tensor size at index 0 (expected (6), got (4))", C10D),
    ("RuntimeError", "[enforce fail at ../gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth7", STORE),
    ("RuntimeError", "[1]: params[0] in this process with sizes [7, 8] appears not to match sizes of the same param in process 0.", C10D),
    ("RuntimeError", "DDP expects same model across all ranks, but Rank 1 has 51 params, while rank 0 has inconsistent 52 params.", C10D),
    ("OSError", "[Errno 110] Connection timed out", DCP),
    ("OSError", "[Errno 28] No space left on device", DCP),
    ("CheckpointException", "CheckpointException ranks:dict_keys([0])", DCP),
    # numpy, Python, the operating system
    ("ValueError", "operands could not be broadcast together with shapes (3,) (4,)", USER),
    ("ValueError", "setting an array element with a sequence. The requested array has an inhomogeneous shape", USER),
    ("TypeError", "unsupported operand type(s) for +: 'int' and 'str'", USER),
    ("KeyError", "'input_ids'", USER),
    ("AssertionError", "", USER),
    ("ZeroDivisionError", "division by zero", USER),
    ("FileNotFoundError", "[Errno 2] No such file or directory: '/data/train.bin'", USER),
    ("PermissionError", "[Errno 13] Permission denied: '/data'", USER),
    ("OSError", "[Errno 24] Too many open files", USER),
    ("OSError", "[Errno 5] Input/output error", USER),
    ("OSError", "[Errno 116] Stale file handle", USER),
    ("BrokenPipeError", "[Errno 32] Broken pipe", USER),
    ("TimeoutError", "[Errno 110] Connection timed out", USER),
    ("UnicodeDecodeError", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte", USER),
    ("ModuleNotFoundError", "No module named 'flash_attn'", USER),
    ("ImportError", "libcudart.so.12: cannot open shared object file: No such file or directory", USER),
    ("RecursionError", "maximum recursion depth exceeded", USER),
    ("StopIteration", "", USER),
    ("JSONDecodeError", "Expecting value: line 1 column 1 (char 0)", USER),
    # Hugging Face, HTTP, trackers
    ("ConnectionError", "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /gpt2 (Caused by NameResolutionError('Failed to resolve'))", HTTP),
    ("ConnectionError", "('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))", HTTP),
    ("ConnectionError", "Couldn't reach 'c4' on the Hub (ConnectTimeout)", USER),
    ("ConnectionError", "(ProtocolError('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer')), '(Request ID: 1)')", HTTP),
    ("ReadTimeout", "HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)", HTTP),
    ("ConnectTimeout", "HTTPSConnectionPool(host='s3.amazonaws.com', port=443): Connection to s3 timed out.", HTTP),
    ("HTTPError", "504 Server Error: Gateway Time-out for url: https://huggingface.co/api/models/gpt2", HTTP),
    ("SSLError", "EOF occurred in violation of protocol (_ssl.c:2406)", HTTP),
    ("ConnectionRefusedError", "[Errno 111] Connection refused", HTTP),
    ("RuntimeError", "Failed to connect to the dataset server: connection refused", USER),
    ("RuntimeError", "the request to the feature store timed out", USER),
    ("LocalEntryNotFoundError", "An error happened while trying to locate the file on the Hub; check your connection.", USER),
    ("OSError", "We couldn't connect to 'https://huggingface.co' to load this file", USER),
    ("CommError", "Run initialization has timed out after 90.0 sec.", USER),
    ("ValueError", "Tokenizer class GPT3Tokenizer does not exist or is not currently imported.", USER),
    ("SafetensorError", "Error while deserializing header: HeaderTooLarge", USER),
    ("RuntimeError", "gloo is required for this example; NCCL is not", USER),
    ("CalledProcessError", "Command '['ninja', '-v']' returned non-zero exit status 1.", USER),
]  # fmt: skip

OUT_OF_MEMORY = [
    ("MemoryError", ""),
    ("_ArrayMemoryError", "Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000) and data type float64"),
    ("MemoryError", "Unable to allocate 512. MiB for an array with shape (8192, 8192) and data type float64"),
    ("ArrowMemoryError", "malloc of size 1073741824 failed"),
    ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB"),
    ("torch.cuda.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 7.79 GiB total capacity)"),
    ("RuntimeError", "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 7.79 GiB total capacity)"),
    ("RuntimeError", "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 400000000000 bytes. Error code 12 (Cannot allocate memory)"),
    ("RuntimeError", "[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    ("RuntimeError", "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    ("RuntimeError", "HIP out of memory. Tried to allocate 2.00 GiB."),
    ("RuntimeError", "MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 1.00 GB, max allowed: 18.13 GB)."),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ("RuntimeError", "std::bad_alloc"),
    ("OSError", "[Errno 12] Cannot allocate memory"),
    ("RuntimeError", "unable to mmap 4294967296 bytes from file </ckpt/model.safetensors>: Cannot allocate memory (12)"),
    ("DistBackendError", "NCCL error in: ../ProcessGroupNCCL.cpp:1970, unhandled cuda error, NCCL version 2.20.5\nLast error:\nCuda failure 'out of memory'"),
    ("DistBackendError", "NCCL error in: ../NCCLUtils.cpp:94, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"),
]  # fmt: skip

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [192.168.7.7]:57000"
LOST_PEER = [
    ("RuntimeError", "DDP expects same model across all ranks, but Rank 1 has 51 params, while rank 0 has inconsistent 0 params.", "lost_peer"),
    ("RuntimeError", "DDP expects same model across all ranks, but Rank 1 has 51 params, while rank 0 has inconsistent 1065353216 params.", "lost_peer"),
    ("RuntimeError", "DDP expects same model across all ranks, but Rank 1 has 51 params, while rank 0 has inconsistent -8 params.", "lost_peer"),
    ("RuntimeError", "oneCCL: allgatherv_ring.hpp:83 run: EXCEPTION: atl_comm->wait(ep_idx, req) fails with status: 1", "lost_peer"),
    ("RuntimeError", GLOO, "lost_peer"),
    ("RuntimeError", "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3911", "lost_peer"),
    ("RuntimeError", "[enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] Read error [10.0.0.2]:4411: Connection reset by peer", "lost_peer"),
    ("RuntimeError", "Read error [10.0.0.2]:4411: Connection reset by peer", "lost_peer"),
    ("RuntimeError", "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete", "timed_out"),
    ("RuntimeError", "Timed out waiting 30000ms for send operation to complete", "timed_out"),
    ("RuntimeError", "[gloo/transport/tcp/pair.cc:144] Application timeout caused pair closure", "timed_out"),
    ("RuntimeError", "[gloo/rendezvous/store.cc:33] Wait timeout for key(s): rank_1", "timed_out"),
    ("RuntimeError", "NCCL communicator was aborted on rank 1.  Original reason for failure was: NCCL error: remote process exited or there was a network error", "lost_peer"),
    ("DistBackendError", "NCCL communicator was aborted on rank 3. ", "lost_peer"),
    ("DistBackendError", "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600032 milliseconds before timing out.", "timed_out"),
    ("DistBackendError", "NCCL error in: ../ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.20.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", "lost_peer"),
    ("DistBackendError", "NCCL error in: ../ProcessGroupNCCL.cpp:1333, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\nsocketStartConnect: Connect to 10.0.0.1<44321> failed : Connection refused", "lost_peer"),
    ("RuntimeError", "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by store->get('0'), but store->get('0') got error: Connection reset by peer", "lost_peer"),
    ("RuntimeError", "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.", "timed_out"),
    ("DistStoreError", "Timed out after 1801 seconds waiting for clients. 1/3 clients joined.", "timed_out"),
    ("DistStoreError", "wait timeout after 300000ms, keys: /default_pg/0//cuda//0", "timed_out"),
    ("DistNetworkError", "The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).", "timed_out"),
    ("DistNetworkError", "The client socket has failed to connect to any network address of (node0, 29500). Connection refused", "lost_peer"),
    ("DistNetworkError", "failed to recv, got 0 bytes", "lost_peer"),
    ("RuntimeError", "Stop_waiting response is expected", "lost_peer"),
    ("DistNetworkError", "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?", "lost_peer"),
    ("RuntimeError", "[/pytorch/torch/csrc/distributed/c10d/TCPStore.cpp:122] recvVector failed: Connection reset by peer", "lost_peer"),
    ("TimeoutError", "The client socket has timed out after 300s while trying to connect to (10.0.0.1, 29500).", "timed_out"),
    ("RuntimeError", "Connection reset by peer", "lost_peer"),
    ("DistNetworkError", "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", "lost_peer"),
    ("RuntimeError", "Address already in use", "lost_peer"),
    ("RuntimeError", "Broken pipe", "lost_peer"),
    ("RuntimeError", "Socket Timeout", "timed_out"),
    ("RuntimeError", "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms", "timed_out"),
    ("RuntimeError", "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.", "lost_peer"),
    ("HorovodInternalError", "Horovod has been shut down. This was caused by an exception on one of the ranks", "lost_peer"),
]  # fmt: skip


def test_the_tables_are_as_long_as_they_are_meant_to_be() -> None:
    assert len({text[:2] for text in OWN}) >= 60
    assert len(LOST_PEER) >= 15


@pytest.mark.parametrize(("type_", "message", "frames"), OWN)
def test_an_exception_of_its_own_with_and_without_frames(type_: str, message: str, frames: tuple[Frame, ...]) -> None:
    assert kind_of_exception(type_, message, frames) == "raised"
    assert kind_of_exception(type_, message) == "raised"
    assert kind_of_exception(f"package.module.{type_}", message, frames) == "raised"


@pytest.mark.parametrize(("type_", "message"), OUT_OF_MEMORY)
@pytest.mark.parametrize("frames", [(), USER, TORCH, C10D, LOADER])
def test_memory_that_ran_out(type_: str, message: str, frames: tuple[Frame, ...]) -> None:
    assert kind_of_exception(type_, message, frames) == "oom"


@pytest.mark.parametrize(("type_", "message", "kind"), LOST_PEER)
@pytest.mark.parametrize("frames", [(), USER, C10D, BACKWARD])
def test_what_gloo_nccl_and_the_store_write_about_a_peer(
    type_: str, message: str, kind: str, frames: tuple[Frame, ...]
) -> None:
    """Also in the user's own line: `work.wait()` is C++ and has no frame."""
    assert kind_of_exception(type_, message, frames) == kind
    assert is_victim(kind_of_exception(type_, message, frames))


@pytest.mark.parametrize("type_", ["ConnectionResetError", "OSError", "RuntimeError", "DistBackendError"])
def test_the_innermost_frame_decides_what_an_ordinary_text_means(type_: str) -> None:
    text = "[Errno 104] Connection reset by peer"
    assert kind_of_exception(type_, text, C10D) == "lost_peer"
    assert kind_of_exception(type_, text, STORE) == "lost_peer"
    if type_ != "DistBackendError":  # This class exists nowhere else.
        assert {kind_of_exception(type_, text, frames) for frames in (HTTP, MP, DCP, USER)} == {"raised"}


def test_a_mismatch_that_the_library_notices_is_neither_ones_own_nor_a_lost_peer() -> None:
    gloo = "[enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8192 vs 4096"
    torch = "Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=31"
    for text in (gloo, torch):
        assert kind_of_exception("RuntimeError", text, C10D) == "mismatch"
        assert kind_of_exception("RuntimeError", text) == "mismatch"


def test_what_clearing_up_ran_into_says_nothing() -> None:
    assert kind_of_exception("ValueError", f"bad batch (then RuntimeError: {GLOO})", USER) == "raised"
    assert kind_of_exception("RuntimeError", f"bad batch (then RuntimeError: {GLOO})", USER) == "raised"
    assert kind_of_exception("KeyError", "'x' (then OutOfMemoryError: CUDA out of memory)", USER) == "raised"


@pytest.mark.parametrize(
    ("type_", "message", "kind"),
    [
        ("KeyboardInterrupt", "", "stopped"),
        ("lightning.pytorch.utilities.exceptions.SIGTERMException", "", "stopped"),
        ("RuntimeError", "DataLoader worker (pid 55) is killed by signal: Terminated. ", "stopped"),
        ("RuntimeError", "DataLoader worker (pid(s) 55, 56) is killed by signal: Interrupt. ", "stopped"),
        ("SystemExit", "143", "stopped"),
        ("InterruptedError", "received signal 15", "stopped"),
        ("RuntimeError", "Received SIGTERM, exiting", "stopped"),
        ("Preempted", "caught termination signal SIGTERM while training", "stopped"),
        ("RuntimeError", "DataLoader worker (pid 55) is killed by signal: Killed. ", "raised"),
        ("RuntimeError", "DataLoader worker (pid 55) is killed by signal: Segmentation fault. ", "raised"),
        ("SystemExit", "1", "raised"),
        ("SystemExit", "1430", "raised"),
        ("ValueError", "got signal 2 samples long, expected 15", "raised"),
        ("RuntimeError", "evaluation server of rank 3 received SIGTERM", "raised"),
        ("ValueError", "SIGTERM_GRACE must be set", "raised"),
        ("RuntimeError", "received signal 11", "raised"),
    ],
)
def test_signals_of_launchers_and_users_are_no_errors_of_the_rank(type_: str, message: str, kind: str) -> None:
    assert kind_of_exception(type_, message, USER) == kind


def test_ddp_and_interrupts() -> None:
    text = "Expected to have finished reduction in the prior iteration before starting a new one."
    assert kind_of_exception("RuntimeError", text, TORCH) == "unreduced"
    assert kind_of_exception("KeyboardInterrupt", "", USER) == "stopped"
    assert kind_of_exception("FatalError", "`Termination signal` is detected by the operating system.") == "stopped"
    assert kind_of_exception("FatalError", "`Segmentation fault` is detected by the operating system.") == "raised"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("SIGKILL", "killed"), ("SIGSEGV", "killed"), ("SIGBUS", "killed"), ("SIGABRT", "aborted"), ("SIGTERM", "stopped"),
     ("SIGINT", "stopped"), ("SIGHUP", "stopped")],
)  # fmt: skip
def test_signals(name: str, kind: str) -> None:
    assert kind_of_signal(name) == kind
    assert kind_of_exit_code(-signal.Signals[name]) == kind
    assert endings.signal_name(signal.Signals[name]) == name
    assert endings.is_fault(name) is (name in ("SIGSEGV", "SIGBUS"))


def test_exit_codes() -> None:
    assert [kind_of_exit_code(code) for code in (0, 1, 2, 137)] == ["exited", "failed", "exited", "exited"]
    assert endings.signal_name(250) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ValueError: bad batch (train.py:12)", "raised"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "oom"),
        ("MemoryError: ", "oom"),
        (f"RuntimeError: {GLOO}", "lost_peer"),
    ],
)
def test_one_line_of_text(text: str, kind: str) -> None:
    assert kind_of_exception(*exception_of_line(text)) == kind


def test_the_exception_of_a_line() -> None:
    assert exception_of_line(" pkg.BadError: no (a.py:3)\n") == ("BadError", "no (a.py:3)")
    assert exception_of_line("KeyboardInterrupt\n") == ("KeyboardInterrupt", "")
    assert exception_of_line("Warning: x") == ("", "Warning: x")


def error(**fields: object) -> RankError:
    return RankError(**{"rank": 2, "file": "e.json", "line": 0, "type": "", "message": "", **fields})  # type: ignore[arg-type]


def test_records_that_say_how_a_rank_ended() -> None:
    assert ends_a_rank(error(type="KeyError"))
    assert ends_a_rank(error(exit_code=0))
    assert ends_a_rank(error(signal="SIGKILL"))
    assert ends_a_rank(error(vanished=True))
    assert not ends_a_rank(error(message="ranks 0 and 1 called different collectives"))
    assert not ends_a_rank(error(exit_code=75))  # the watch's own
    assert ends_a_rank(error(exit_code=75, type="ValueError"))


def test_an_ending_holds_what_its_record_says() -> None:
    ending = of_error(
        error(type="RuntimeError", message=GLOO, frames=C10D, time_s=5.0, step=3, region="backward", exit_code=1), 2
    )
    assert (ending.rank, ending.kind, ending.frames, ending.time_s, ending.step) == (2, "lost_peer", C10D, 5.0, 3)
    assert (ending.region, ending.exit_code, ending.type) == ("backward", 1, "RuntimeError")
    assert ending.connection_closed and ending.victim and not ending.by_itself and not ending.exited_early
    shown = ending.evidence
    assert (shown.kind, shown.file, str(shown.detail)) == ("error", "e.json", f"rank 2: {ending.summary}")
    assert of_error(error(type="KeyError"), UNNAMED).evidence.detail == "KeyError"
    timeout = of_error(error(type="DistStoreError", message="Timed out after 9 seconds waiting for clients."), 2)
    assert (timeout.kind, timeout.connection_closed) == ("timed_out", False)


def test_endings_without_an_exception() -> None:
    killed, bare, in_order, vanished = (
        of_error(error(exit_code=-9), 2),
        of_error(error(exit_code=3), 2),
        of_error(error(exit_code=0), 2),
        of_error(error(message="gone without a word"), 2),
    )
    assert (killed.kind, killed.signal, killed.summary) == ("killed", "SIGKILL", "SIGKILL")
    assert (bare.kind, bare.only_exit_code, bare.in_order) == ("exited", True, False)
    assert (in_order.kind, in_order.only_exit_code, in_order.in_order) == ("exited", False, True)
    assert (vanished.kind, vanished.signal) == ("killed", None)


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        ("NCCL error in: ../ProcessGroupNCCL.cpp:492, invalid usage, NCCL version 2.4.8", "invalid_usage"),
        ("NCCL error in: a.cpp:9, invalid usage, NCCL version 2.20\nncclInvalidUsage: x\nLast error:\nDuplicate GPU", ""),
        ("Cannot use it: invalid\nusage, or invalid usage", ""),
        ("DataLoader worker (pid 4) is killed by signal: Killed. ", "data_loader_sigkill"),
        ("DataLoader worker (pid(s) 4) exited unexpectedly", "data_loader_worker"),
        ("[enforce fail at /x/gloo/gloo/alltoallv.cc:138] inLengthPerRank[0] == outLengthPerRank[0].", "split_sizes"),
        ("[1]: params[0] in this process with sizes [7] appears not to match sizes of the same param in process 0.", "model_differs"),
        ("NCCL error in: x, unhandled cuda error\nLast error:\nCuda failure 'out of memory'", "nccl_memory"),
        ("bad batch", ""),
    ],
)  # fmt: skip
def test_details(message: str, detail: str) -> None:
    assert of_error(error(type="RuntimeError", message=message), 2).detail == detail


def test_the_line_about_memory_is_shown() -> None:
    message = (
        "NCCL error in: ../ProcessGroupNCCL.cpp:1970, unhandled cuda error\nLast error:\nCuda failure 'out of memory'"
    )
    assert of_error(error(type="DistBackendError", message=message), 2).summary == (
        "DistBackendError: Cuda failure 'out of memory'"
    )
    gloo = "[enforce fail at /x/gloo/gloo/alltoallv.cc:138] a == b. "
    assert of_error(error(type="RuntimeError", message=gloo), 2).summary == (
        "RuntimeError: gloo/alltoallv.cc:138: a == b does not hold"
    )


def test_facts_of_memory_are_endings_and_others_are_not() -> None:
    oom = of_fact(LogFact("cuda_oom", 1, "a.log", 4, "CUDA out of memory.", time_s=2.0), 1)
    assert oom is not None and (oom.kind, oom.time_s, oom.evidence.line) == ("oom", 2.0, 4)
    lines = read_text("a.cc:4 NCCL WARN Cuda failure 'out of memory'", "a", 1).facts
    nccl = of_fact(next(fact for fact in lines if fact.kind == "cuda_error"), 1)
    assert nccl is not None and nccl.detail == "nccl_memory"
    assert of_fact(LogFact("cuda_error", 1, "a", 4, "CUDA error: x", {"error": "x"}), 1) is None
    assert of_fact(LogFact("gloo_closed", 1, "a", 4, "x"), 1) is None


@pytest.mark.parametrize(
    ("why", "kind", "detail"),
    [
        ("Out Of Memory", "oom", "cgroup"),
        ("Killed", "killed", ""),
        ("Segmentation fault (core dumped)", "killed", ""),
        ("Aborted (core dumped)", "aborted", ""),
        ("Terminated", "stopped", ""),
        ("Exited with exit code 1", "failed", ""),
        ("Exited with exit code 3", "exited", ""),
    ],
)
def test_tasks_of_srun(why: str, kind: str, detail: str) -> None:
    fact = LogFact("srun_task", None, "job.out", 3, f"srun: error: n1: tasks 2-3: {why}", {"ranks": [2, 3], "why": why})
    endings = of_srun(fact)
    assert [(ending.rank, ending.kind, ending.detail) for ending in endings] == [(2, kind, detail), (3, kind, detail)]
    assert of_srun(LogFact("srun_task", None, "f", 1, "x", {"ranks": [1], "why": "Something else"})) == []


def test_the_first_to_fail_is_unknown_when_all_known_endings_are_of_victims() -> None:
    def ending(kind: endings.Kind) -> Ending:
        return Ending(rank=0, file="f", line=0, type="", kind=kind, text="x")

    assert first_is_unknown([ending("lost_peer"), ending("timed_out"), ending("stopped"), ending("mismatch")])
    assert first_is_unknown([ending("lost_peer"), ending("failed")])
    assert not first_is_unknown([ending("lost_peer"), ending("raised")])
    assert not first_is_unknown([ending("lost_peer"), ending("aborted")])
    assert not first_is_unknown([])


def test_every_kind_has_its_place_in_the_order() -> None:
    assert set(endings.ORDER) == set(endings.Kind.__args__)  # type: ignore[attr-defined]
    own = [endings.ORDER[kind] for kind in ("oom", "raised", "killed", "exited")]
    assert max(own) < min(endings.ORDER[kind] for kind in ("lost_peer", "timed_out", "mismatch", "stopped"))


@pytest.mark.parametrize(
    ("type_", "message", "device"),
    [
        ("RuntimeError", "CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda"),
        ("torch.cuda.OutOfMemoryError", "", "cuda"),
        ("OutOfMemoryError", "DefaultCPUAllocator: can't allocate memory", "cuda"),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory", "cpu"),
        ("MemoryError", "", ""),
        ("DistBackendError", "Cuda failure 'out of memory'", ""),
        ("RuntimeError", "shape mismatch", ""),
    ],
)
def test_which_of_torchs_allocators_found_no_memory(type_: str, message: str, device: str) -> None:
    assert endings.allocator_of(type_, message) == device


@pytest.mark.parametrize(
    ("line", "uncaught"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("RuntimeError: CUDA out of memory.", True),
        ("WARNING caught torch.OutOfMemoryError: CUDA out of memory", False),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", False),
    ],
)
def test_an_exception_that_nobody_caught_begins_its_line(line: str, uncaught: bool) -> None:
    assert endings.is_uncaught(line) is uncaught


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["Traceback (most recent call last):", "    raise ValueError(x)", "ValueError: 3", "gone"], "ValueError: 3"),
        (
            ["KeyError: 'a'", "During handling of it:", "torch.OutOfMemoryError: no memory"],
            "torch.OutOfMemoryError: no memory",
        ),
        (["KeyboardInterrupt"], "KeyboardInterrupt"),
        (["    ValueError('a source line')", "WARNING: RuntimeError was caught"], ""),
        ([], ""),
    ],
)
def test_the_last_line_of_a_traceback_is_neither_a_source_line_nor_a_warning(lines: list[str], expected: str) -> None:
    assert endings.last_exception_line(lines) == expected


NCCL = "NCCL error in: NCCLUtils.hpp:268, unhandled cuda error, NCCL version 2.21.5\nLast error:\nCuda failure "
HCCL = "InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: "


@pytest.mark.parametrize(
    ("type_", "message", "kind"),
    [
        (
            "RuntimeError",
            "CUDA error: device-side assert triggered\nwhat():  NCCL error in: x.hpp:136, unhandled cuda error",
            "raised",
        ),
        ("DistBackendError", f"{NCCL}719 'unspecified launch failure'", "raised"),
        ("DistBackendError", f"{NCCL}999 'unknown error'", "raised"),
        ("DistBackendError", f"{NCCL}1 'invalid argument'", "lost_peer"),
        ("RuntimeError", f"{HCCL}HcclAllGather, error code is 6", "lost_peer"),
        (
            "RuntimeError",
            f"{HCCL}HcclAllGather, error code is 6\nEI0006: Getting socket times out. Reason: Remote Rank",
            "timed_out",
        ),
        (
            "RuntimeError",
            "npuSynchronizeDevice: NPU error\nEI0002: The wait execution of the Notify register times out.",
            "timed_out",
        ),
        ("RuntimeError", f"{HCCL}Add, error code is 500002", "raised"),
    ],
)
def test_a_failure_of_ones_own_device_within_a_collective_is_told_from_a_peers(
    type_: str, message: str, kind: str
) -> None:
    assert kind_of_exception(type_, message) == kind


@pytest.mark.parametrize(
    "line",
    [
        "Indexing.cu:1422: indexSelectLargeIndex: block: [31,0,0], thread: [0,0,0] Assertion `srcIndex < size` failed.",
        "Indexing.cu:1422: indexSelectLargeIndex: block: [31,0,0], thread: [0,0,0] Assertion `srcIndex < size` ",
        "[rank5]: **RuntimeError: Expected to mark a variable ready only once**. This error is caused by one of",
    ],
)
def test_what_only_a_programs_own_mistake_writes_needs_no_traceback(line: str) -> None:
    (fact,) = (fact for fact in read_text(line, "job.log", None).facts if of_fact(fact, UNNAMED))
    ending = of_fact(fact, UNNAMED)
    assert ending is not None and ending.kind == "raised"


def test_the_reason_that_a_library_gives_below_the_place_in_torch() -> None:
    text = "HCCL error in: ProcessGroupHCCL.cpp:64\nEJ0001: 2031-05-21-11:57:54.167.645 No device. Reason: it is used.\nmore"
    ending = of_error(RankError(0, "log", 1, "RuntimeError", text), 0)
    assert ending.text == "RuntimeError: No device. Reason: it is used"
