"""Each kind of fact from the text that torch, gloo, NCCL and the launchers print."""
# ruff: noqa: E501  # lines as they are printed

from pathlib import Path
from typing import Any

import pytest

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.logs.patterns import size_bytes
from diagnostics.evidence.model import LogFact
from diagnostics.evidence.reader import Contents
from diagnostics.evidence.readers.log import read

MIB, GIB = 1 << 20, 1 << 30
CASES: dict[str, tuple[str, str, int | None, dict[str, Any]]] = {
    "watchdog 2.0": (
        "[E ProcessGroupNCCL.cpp:828] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, "
        "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802710 milliseconds before timing out.",
        "watchdog_timeout", 3, {"seq": 15, "op": "ALLREDUCE", "timeout_ms": 1800000, "ran_ms": 1802710}),
    "watchdog whose arguments were left out": (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, OpType=ALLREDUCE, ...) ran for 600031ms "
        "before timing out.", "watchdog_timeout", 3, {"seq": 15, "op": "ALLREDUCE", "timeout_ms": None, "ran_ms": 600031}),
    "segment without NCCL's head": (
        "(Runner pid=868697) Error while creating shared memory segment /dev/shm/nccl-UmqSM9 (size 7340384)",
        "nccl_shm", None, {"path": "/dev/shm/nccl-UmqSM9", "needed_bytes": 7340384}),
    "watchdog 2.4": (
        "[rank5]:[E1121 10:00:00.123456789 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, OpType=_ALLGATHER_BASE, NumelIn=8, NumelOut=64, Timeout(ms)=600000) ran for "
        "600029 milliseconds before timing out.",
        "watchdog_timeout", 5, {"seq": 7, "op": "_ALLGATHER_BASE", "numel_in": 8, "numel_out": 64, "group_rank": 1}),
    "status 2.6": (
        "[rank1]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either an "
        "error or timeout) detected by watchdog at work: 7, last enqueued NCCL work: 9, last completed NCCL work: 6.",
        "watchdog_status", 1, {"desc": "default_pg", "work": 7, "last_enqueued": 9, "last_completed": 6}),
    "status 2.4": (
        "[rank1]:[E ProcessGroupNCCL.cpp:1] [PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog "
        "at work: 7, last enqueued NCCL work: 9, last completed NCCL work: 6.",
        "watchdog_status", 1, {"group": "1", "pg_rank": 0, "last_enqueued": 9}),
    "status 2.12": (
        "[rank0]:[E ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected by watchdog at work "
        "sequence id: 4 PG status: last enqueued work: 5, last completed work: 3",
        "watchdog_status", 0, {"last_enqueued": 5, "last_completed": 3}),
    "monitor": (
        "[rank2]:[F ProcessGroupNCCL.cpp:1] [PG 0 Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without "
        "making progress in monitoring enqueued collectives.", "monitor_stuck", 2, {"stuck_s": 480}),
    "desync": ("     - [0] Timeout at collective: ALLREDUCE, #3", "desync_timeout", 0, {"op": "ALLREDUCE", "seq": 3}),
    "desync rank": ("[1] finished collective #2, but didn't join collective #3 (count from 1)", "desync_rank", 1,
                    {"last_seq": 2, "missing_seq": 3}),
    "desync row": ("             [0, 1, 2] started ALLREDUCE", "desync_state", None,
                   {"ranks": [0, 1, 2], "state": "started", "op": "ALLREDUCE"}),
    "desync failed": (
        "[E ProcessGroupNCCL.cpp:828] [Rank 1] Timeout rank [1] last trace item must be kEventStart. thisSeq = 31, col = "
        "SEND", "watchdog_timeout", 1, {"op": "SEND"}),
    "dist error": (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, "
        "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.1", "dist_backend_error", None,
        {"version": "2.18.1"}),
    "version": ("gpu1:77:90 [3] NCCL INFO NCCL version 2.29.2+cuda12.8", "nccl_version", None,
                {"version": "2.29.2", "cuda": "12.8"}),
    "result": ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
               "nccl_result", None, {"result": "ncclSystemError"}),
    "env": ("gpu1:77:90 [3] NCCL INFO NCCL_IB_DISABLE set by environment to 1.", "nccl_env", None,
            {"name": "NCCL_IB_DISABLE", "value": "1"}),
    "env hca": ("gpu1:77:90 [3] NCCL INFO NCCL_IB_HCA set to mlx5_0", "nccl_env", None, {"value": "mlx5_0"}),
    "printed": ("NCCL_DEBUG=INFO", "variable", None, {"name": "NCCL_DEBUG", "value": "INFO"}),
    "network": ("gpu1:77:90 [3] NCCL INFO Using network Socket", "nccl_net", None, {"net": "Socket"}),
    "bootstrap": ("gpu1:77:90 [3] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>", "nccl_bootstrap", None,
                  {"interface": "docker0"}),
    "transport": ("gpu1:77:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0(3)/GDRDMA", "nccl_transport",
                  None, {"transport": "NET", "net": "IB"}),
    "ib error": (
        "gpu1:77:90 [3] net_ib.cc:1300 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<40000> with status=12 "
        "opcode=0 len=0 vendor err 129 (Send)", "nccl_ib_error", None, {"status": 12, "vendor_error": 129}),
    "ib error 2.19": ("gpu1:77:90 [3] net_ib.cc:1300 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<40000> with "
                      "error 5", "nccl_ib_error", None, {"status": 5}),
    "closed": (
        "[2026-11-21 10:00:00] gpu1:77:90 [3] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote "
        "peer gpu2<51000>", "nccl_peer_closed", None, {"peer": "gpu2<51000>"}),
    "shm": ("gpu1:77:90 [3] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-a1b2c3 to 9637892 bytes, "
            "error: No space left on device (28)", "nccl_shm", None, {"needed_bytes": 9637892}),
    "duplicate": ("gpu1:77:90 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
                  "nccl_duplicate_gpu", None, {"first": 1, "second": 0}),
    "oom 1.x": (
        "[rank0]: RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 39.59 GiB total capacity; 35.00 GiB "
        "already allocated; 512.00 MiB free; 38.00 GiB reserved in total by PyTorch)", "cuda_oom", 0,
        {"requested_bytes": GIB * 3 // 2, "gpu": 0, "free_bytes": 512 * MIB, "allocated_bytes": 35 * GIB,
         "reserved_bytes": 38 * GIB}),
    "oom 2.1": ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacty of "
                "79.15 GiB of which 12.25 MiB is free.", "cuda_oom", None,
                {"requested_bytes": 20 * MIB, "gpu": 3, "free_bytes": 12 * MIB + MIB // 4}),
    "oom 2.2": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 80.00 GiB of "
        "which 1.00 GiB is free. Process 4711 has 10.00 GiB memory in use. Including non-PyTorch memory, this process has "
        "69.00 GiB memory in use. Of the allocated memory 40.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in "
        "private pools (e.g., CUDA Graphs), and 26.00 GiB is reserved by PyTorch but unallocated.", "cuda_oom", None,
        {"requested_bytes": 2 * GIB, "total_bytes": 80 * GIB, "listed_bytes": 10 * GIB, "in_use_bytes": 69 * GIB,
         "allocated_bytes": 40 * GIB, "private_pool_bytes": GIB, "unused_bytes": 26 * GIB}),
    "oom 2.12": ("CUDA out of memory. Allocation was preemptively rejected because it would exceed "
                 "per_process_memory_fraction limit. Requested size: 3.00 GiB", "cuda_oom", None,
                 {"requested_bytes": 3 * GIB}),
    "cpu oom": ("RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried "
                "to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)", "cpu_oom", None,
                {"requested_bytes": 4 * 10**12}),
    "watchdog 1.x": (
        "[E ProcessGroupNCCL.cpp:587] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, "
        "Timeout(ms)=1800000) ran for 1803000 milliseconds before timing out.",
        "watchdog_timeout", 3, {"seq": None, "op": "BROADCAST", "timeout_ms": 1800000, "ran_ms": 1803000}),
    "ib error 2.27": (
        "gpu1:77:90 [3] transport/net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<40000> with "
        "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send localGid fe80::1 "
        "remoteGidsfe80::2 hca mlx5_3", "nccl_ib_error", None,
        {"status": 12, "vendor_error": 129, "local_gid": "fe80::1", "remote_gid": "fe80::2", "device": "mlx5_3"}),
    "ib port": ("gpu1:77:90 [3] net_ib.cc:99 NCCL WARN NET/IB : mlx5_1:1 Got async event : port error", "nccl_ib_async",
                None, {"device": "mlx5_1", "port": 1}),
    "duplicate rank": ("gpu1:77:90 [0] bootstrap.cc:1 NCCL WARN Bootstrap Root : rank 3 of 4 ranks has already checked in",
                       "nccl_duplicate_rank", None, {"duplicate": 3}),
    "cgroup oom": (
        "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8000kB, file-rss:0kB",
        "kernel_oom", None, {"pid": 4711, "name": "python3", "rss_kib": 8000, "cgroup": "Memory cgroup"}),
    "kubernetes oom": ("      Reason:       OOMKilled", "kernel_oom", None, {}),
    "thc": ("THCudaCheck FAIL file=/pytorch/aten/src/THC/THCStorage.cpp line=27 error=4 : unspecified launch failure",
            "cuda_error", None, {"error": "unspecified launch failure"}),
    "link": ("mlx5_core 0000:3b:00.0 ibs3: Link down", "link_down", None, {"device": "ibs3"}),
    "slurm oom": ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.", "kernel_oom", None, {"kills": 1}),
    "xid": ("NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "xid", None,
            {"code": 79}),
    "gloo sizes": (
        "  what():  [enforce fail at /gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received data "
        "size doesn't match expected size.", "gloo_mismatch", None, {"received_bytes": 8, "expected_bytes": 4}),
    "gloo closed": ("[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:899. "
                    "GLHF! \U0001f3d6\ufe0f", "gloo_closed", 0, {"peer": "[127.0.0.1]:899"}),
    "gloo reset": ("[/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:7605: Connection reset by peer.", "gloo_reset",
                   None, {"peer": "[127.0.0.1]:7605"}),
    "gloo timeout": ("[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete",
                     "gloo_timeout", None, {"timeout_ms": 6000, "direction": "recv"}),
    "barrier": ("[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 6000 ms", "monitored_barrier", 0,
                {"ranks": [1, 3], "timeout_ms": 6000}),
    "barrier of others": (
        "[E ProcessGroupGloo.cpp:138] Rank 5 successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0. Please check rank 0 logs for faulty rank.", "reached_barrier", 5, {"root": 0}),
    "uneven load": ("2026-01-02 INFO Detected uneven workload distribution: Rank 1 left", "uneven_load", None, {}),
    "blocking wait": (
        "[rank4]:[E612 ProcessGroupNCCL.cpp:628] [Rank 4] Work WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=3, NumelOut=3, "
        "Timeout(ms)=600000) timed out in blocking wait (TORCH_NCCL_BLOCKING_WAIT=1).", "watchdog_timeout", 4,
        {"seq": 9, "op": "ALLREDUCE", "numel_in": 3, "timeout_ms": 600000, "group_rank": 4}),
    "watchdog cut": (
        "[E ProcessGroupNCCL.cpp:565] [Rank 2] Watchdog caught collective op`resume` is deprecated eration timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=3, NumelOut=3, Timeout(ms)=600000) ran for 600007 milliseconds before "
        "timing out.", "watchdog_timeout", 2, {"seq": 9, "numel_in": 3, "ran_ms": 600007}),
    "fingerprint": (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint("
        "SequenceNumber=2, OpType=ALLREDUCE, TensorShape=[4], TensorDtypes=Float), but Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=2, OpType=BROADCAST, TensorShape=[4], TensorDtypes=Float).",
        "collective_mismatch_text", None, {"rank_a": 0, "rank_b": 1}),
    "ddp unused": ("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
                   "ddp_unused", None, {}),
    "ddp names": ("Parameters which did not receive grad for rank 2: b.bias, b.weight", "ddp_unused_names", 2,
                  {"names": "b.bias, b.weight"}),
    "ddp indices": ("Parameter indices which did not receive grad for rank 1: 2 3", "ddp_unused_indices", 1,
                    {"indices": "2 3"}),
    "ddp twice": ("RuntimeError: Expected to mark a variable ready only once.", "ddp_marked_twice", None, {}),
    "ddp shapes": ("RuntimeError: [1]: params[0] in this process with sizes [5, 4] appears not to match sizes of the same "
                   "param in process 0.", "ddp_shape_mismatch", 1, {"index": 0, "sizes": "[5, 4]"}),
    "joined": ("torch.distributed.DistStoreError: Timed out after 5 seconds waiting for clients. 1/2 clients joined.",
               "rendezvous_timeout", None, {"joined": 1, "expected": 2, "timeout_s": 5}),
    "workers": ("torch.distributed.DistStoreError: Timed out after 6 seconds waiting for workers. 1/2 workers joined.",
                "rendezvous_timeout", None, {"joined": 1, "expected": 2, "timeout_s": 6}),
    "store": ("torch.distributed.DistNetworkError: The client socket has timed out after 4000ms while trying to connect to "
              "(node1, 29500).", "store_timeout", None, {"peer": "node1", "port": 29500}),
    "variable": ("ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
                 "expected, but not set", "missing_variable", None, {"name": "RANK"}),
    "interface": ("RuntimeError: [enforce] Unable to find address for: nope0", "interface_missing", None, {"name": "nope0"}),
    "port": ("The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, "
             "name: EADDRINUSE, message: address already in use", "port_in_use", None, {"port": 29500}),
    "torchrun": ("E1121 14:03:57 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -6) local_rank: 1 "
                 "(pid: 7349) of binary: /usr/bin/python3", "torchrun_failed", None, {"exit_code": -6, "local_rank": 1}),
    "torchrun's last word": (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "torchrun_failed", None, {}),
    "the size of the world or of a group": ("config: 'world_size': 16, tp: 2", "several_processes", None, {"nranks": 16}),
    "torchrun without the list's form": (
        "E1 torch/api.py:1002] failed (exitcode: -9) of a worker with local_rank: 3", "torchrun_failed", None,
        {"exit_code": -9, "local_rank": 3}),
    "ray's monitor": (
        "Memory on the node (IP: 10.0.0.1, ID: 7f) where the task (task ID: 9a, name=train, pid=4, memory used=9.10GB) was "
        "running was 60.90GB / 64.00GB (0.951), which exceeds the memory usage threshold of 0.95. Ray killed this worker",
        "kernel_oom", None, {}),
    "gloo mesh": ("[rank4]:[E421 02:05:38.7 ProcessGroupGloo.cpp:143] Gloo connectFullMesh failed with [pair.cc:144] no error",
                  "mesh_failed", 4, {"why": "no error"}),
    "store barrier": (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: "
        "store_based_barrier_key:2 (world_size=4, worker_count=9, timeout=0:05:00)",
        "store_barrier", 3, {"size": 4, "joined": 9}),
    "store barrier of torch 2": (
        "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank 1, for key: "
        "store_based_barrier_key:1 (world_size=8, num_workers_joined=5, timeout=0:30:00 error=Timeout waiting for key)",
        "store_barrier", 1, {"size": 8, "joined": 5}),
    "store not reached yet": (
        "[W506 10:11:12.3 TCPStore.cpp:347] [c10d] TCP client failed to connect/validate to host n0:29500 - retrying (try=2, "
        "timeout=600000ms, delay=1400ms): Connection refused", "store_retry", None, {"peer": "n0", "port": 29500}),
    "no interface, as an exception says": ("Bootstrap : no socket interface found", "interface_missing", None, {}),
    "no address of the store": (
        "trainer/0 [1]:[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of (05, 4032).",
        "store_timeout", None, {"peer": 5, "port": 4032}),
    "store that does not answer": (
        "[rank1]:[W5 socket.cpp:489] [c10d] waitForInput: socket SocketImpl(fd=79, addr=[localhost]:41170, "
        "remote=[localhost]:29500) timed out after 1800000ms", "timed_out", 1, {"timeout_ms": 1800000}),
    "store that is gone": (
        "[rank6]:[W7 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=76, addr=[a]:1, remote=[b]:2): Connection "
        "reset by peer", "lost_peer", 6,
        {"what": "recvValue failed on SocketImpl(fd=76, addr=[a]:1, remote=[b]:2): Connection reset by peer"}),
    "nccl id": ("[2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key "
                "'0', but store->get('0') got error: Socket Timeout", "nccl_id_timeout", None, {"waiter": 2, "root": 0}),
    "nccl id of torch 1": (
        "RuntimeError: [3] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value store by "
        "key '0', but store->get('0') got error: Timeout waiting for key: default_pg/0/0 after 1800000 ms",
        "nccl_id_timeout", None, {"waiter": 3, "root": 0}),
    "nccl of vllm": ("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                     "dist_backend_error", None, {"error": "unhandled cuda error"}),
    "a size in torch.nn's list": (
        "    size mismatch for head.weight: copying a param with shape torch.Size([8, 4]) from checkpoint, the shape in "
        "current model is torch.Size([16, 4]).", "checkpoint_key", None, {"key": "head.weight"}),
    "torchrun's settings": ("  max_nodes                 : 1", "one_node", None, {}),
    "deepspeed's settings": ("[INFO] [launch.py:158:main] nnodes=1, num_local_procs=8, node_rank=0", "one_node", None, {}),
    "a command": ("+ torchrun --nnodes 1 --nproc-per-node 8 train.py", "one_node", None, {}),
    "nccl 2.2": (
        "n1:18:11 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out",
        "nccl_connect",
        None,
        {"why": "Connection timed out"},
    ),
    "any warning of nccl 2.2": ("n1:18:11 [0] transport/p2p.cu:57 WARN failed to open x", "nccl_warn", None, {"warning": "failed to open x"}),
    "a test of nccl": ("n1: Test CUDA failure common.cu:9 'out of x'", "cuda_error", None, {"ends": "common.cu:9", "error": "out of x"}),
    "a macro of nccl": ("n1: Failed, NCCL error /w/x.cpp:86 'unhandled system error (run with NCCL_DEBUG=INFO)'", "dist_backend_error", None, {"error": "unhandled system error"}),
    "a macro": ("Failed: Cuda error /w/a.cuh:5 'misaligned'", "cuda_error", None, {"ends": "/w/a.cuh:5", "error": "misaligned"}),
    "memory of EFA": ("Libfabric error: (-12) Cannot allocate memory", "system_limit", None, {"locked": "Libfabric error: (-12)"}),
    "memory of a Mac": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 5.00 GB, other allocations: 9.00 GB, max allowed: 20.00 GB). "
        "Tried to allocate 2.00 MB on private pool.",
        "cuda_oom",
        None,
        {"requested_bytes": 2 << 20, "total_bytes": 20 << 30},
    ),
    "kubeflow's pod": (
        "1.7e+09\tDEBUG\tevents\tPod: jobs.net-worker-1 exited with code 3\t{}",
        "torchrun_failed",
        None,
        {"pod": "net-worker-1", "exit_code": 3},
    ),
    "kubeflow's event": (
        "Error pod net-worker-1 container pytorch exitCode: 3 terminated message: ",
        "torchrun_failed",
        None,
        {"pod": "net-worker-1", "exit_code": 3},
    ),
    "a pod that was killed": ("Pod: jobs.net-worker-1 exited with code 137", "job_stopped", None, {"why": 137}),
    "kubeflow's condition": (
        '"message": "TFJob jobs/net has failed because 1 Worker replica(s) failed."',
        "worker_died",
        None,
        {"detail": "TFJob jobs/net has failed because 1 Worker replica(s) failed"},
    ),
    "a job's condition": (
        "Warning  BackoffLimitExceeded  3m  job-controller  Job has reached the specified backoff limit",
        "worker_died",
        None,
        {"detail": "BackoffLimitExceeded"},
    ),
    "a shell's command": ("run.sh: line 7:  77 Terminated              torchrun t.py", "job_stopped", None, {"why": "Terminated"}),
    "a bar and a shell": ("Epoch 1:  29%|#  | 9/32 [3:28<8:28, 1.3s/it]Terminated ", "job_stopped", None, {"why": "Terminated"}),
    "zsh": ("zsh: terminated  python train.py", "job_stopped", None, {"why": "terminated"}),
    "nvidia-smi": ("Failed to initialize NVML: Driver/library version mismatch", "driver_mismatch", None, {}),
    "cuda 804": ("Error 804: forward compatibility was attempted on non supported HW", "driver_mismatch", None, {}),
    "peers": ("Failed: Cuda error all_reduce.cuh:307 'peer access is not supported between these two devices'", "p2p_refused", None, {}),
    "srun": ("srun: error: node3: tasks 8-10: Killed", "srun_task", None, {"ranks": [8, 9, 10], "why": "Killed"}),
}  # fmt: skip


def scan(path: Path, text: str, rank: int | None = None) -> Contents:
    path.write_text(text, encoding="utf-8")
    data = path.read_bytes()
    return read(path, path.name, rank, Limits(), data[:8192])


def only(facts: list[LogFact], kind: str) -> LogFact:
    (fact,) = (fact for fact in facts if fact.kind == kind)
    return fact


@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_found_and_decoded(tmp_path: Path, name: str) -> None:
    line, kind, rank, fields = CASES[name]
    contents = scan(tmp_path / "x.log", f"step 1 loss 2.0\n{line}\nstep 2 loss 1.9\n")
    fact = only(contents.facts, kind)
    assert fact.rank == rank
    assert {key: fact.fields.get(key) for key in fields} == fields
    assert fact.line == 2


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        *((line, ["several_nodes"]) for line in ("nnodes=16", "--nnodes=1:4", "max_nodes : 12", "num_machines: 2")),
        *((line, []) for line in ("nnodes: 1.5", "nnodes: 2.5", "nnodes=2 --standalone", "num_nodes: 0")),
    ],
)
def test_other_numbers_of_nodes(tmp_path: Path, line: str, kinds: list[str]) -> None:
    assert [fact.kind for fact in scan(tmp_path / "x.log", f"{line}\n").facts] == kinds


@pytest.mark.parametrize(
    "line",
    [
        "run.sh: line 40:  77 Terminated              nvidia-smi dmon > gpu.csv",
        "run.sh: line 41:  78 Terminated              python -m tensorboard.main --logdir runs",
        "srun: error: node3: task 1: Terminated",
        "job 7 Terminated by the user",
        "Pod: jobs.net-worker-1 exited with code 0",
        "docs: a ChildFailedError: means that a worker failed",
        "ready in the store (world_size=8, timeout=0:30:00)",
        "world_size=1 my_world_size=4 world_size=0.5",
        "peer access is supported between these devices",
    ],
)
def test_lines_of_other_processes(tmp_path: Path, line: str) -> None:
    kinds = {fact.kind for fact in scan(tmp_path / "x.log", f"{line}\n").facts}
    assert not kinds & {"job_stopped", "torchrun_failed", "p2p_refused", "several_processes"}


def test_healthy_lines_say_nothing(tmp_path: Path) -> None:
    text = (
        "step 1 loss 2.0 rank 3 lr 1e-3\nsaved checkpoint\nepoch timeout=1800 watchdog on\nNCCL is the backend\n" * 50
    )
    contents = scan(tmp_path / "x.log", text)
    assert not contents.errors
    assert {fact.kind for fact in contents.facts} == {"steps"}


@pytest.mark.parametrize(
    ("text", "size"),
    [("1.50 GiB", GIB * 3 // 2), ("20.00 MiB", 20 * MIB), ("512 bytes", 512), ("2 KiB", 2048), ("x", None)],
)
def test_sizes(text: str, size: int | None) -> None:
    assert size_bytes(text) == size


WAITS = (
    "[rank1]:[E1122 10:20:30.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 milliseconds\n"
)
STEP = "{'loss': 1.25, 'grad_norm': 0.7, 'learning_rate': 2e-05, 'epoch': 0.1}\n" * 12


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Saving model checkpoint to out/checkpoint-500\n", "Saving model checkpoint to out/checkpoint-500"),
        ("INFO - Saving latest checkpoint of 3 epochs\n", "Saving latest checkpoint of 3 epochs"),
        ("***** Running Evaluation *****\n  Num examples = 900\n", "Running Evaluation *****"),
        ("[2026-11-22 10:00:01 TP3] Load weight begin. avail mem=78.4 GB\n", "Load weight begin. avail mem=78.4 GB"),
        ("{'train_runtime': 119.8, 'train_loss': 1.2}\n", None),  # The end of the training, rather than work.
    ],
)
def test_the_last_work_before_a_wait_is_kept(tmp_path: Path, text: str, what: str | None) -> None:
    log_fact = only(scan(tmp_path / "x.log", STEP + text + WAITS).facts, "host_work")
    assert log_fact.fields.get("what") == what and bool(log_fact.fields.get("ended")) == (what is None)


def test_work_that_steps_came_after_is_over(tmp_path: Path) -> None:
    contents = scan(tmp_path / "x.log", "Saving model checkpoint to out\n" + STEP + WAITS)
    assert "host_work" not in {fact.kind for fact in contents.facts}
