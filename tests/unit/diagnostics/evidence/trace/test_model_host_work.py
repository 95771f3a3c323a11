"""What a host does and what a copy moves, by the names of events."""

import pytest

from diagnostics.evidence.trace.model import HostCopy, host_copy, host_work


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data"),
        ("load_batch", "data"),
        ("DATA_LOAD", "data"),
        ("Python GC", "garbage_collection"),
        ("<built-in function collect>", "garbage_collection"),
        ("entire_frame_compile (dynamo_timed)", "recompilation"),
        ("torch/_dynamo/convert_frame.py(500): _compile", "recompilation"),
        ("cuModuleLoadData", "kernel_loading"),
        ("cudaMalloc", "allocator"),
        ("hipFree", "allocator"),
        ("cuMemCreate", "allocator"),
        ("save_checkpoint", "checkpoint"),
        ("torch/serialization.py(800): save", "checkpoint"),
        ("queue.py(171): get", "input"),
        ("<built-in method recv of socket>", "input"),
        ("<built-in function _cuda_emptyCache>", "allocator"),
        ("torch/cuda/memory.py(210): empty_cache", "allocator"),
        ("torch/distributed/checkpoint/state_dict_saver.py(150): save", "checkpoint"),
        ("torch/distributed/checkpoint/state_dict_saver.py(280): async_save", "checkpoint"),
        ("torch/utils/checkpoint.py(350): checkpoint", ""),
        ("transformers/modeling_utils.py(3000): save_pretrained", "checkpoint"),
        ("http/client.py(1388): getresponse", "network"),
        ("wandb/sdk/wandb_run.py(1720): log", "network"),
        ("mlflow/tracking/fluent.py(800): log_metrics", "network"),
        ("<method 'sendall' of '_socket.socket' objects>", "network"),
        ("<built-in method send of socket object at 0x7fba>", "network"),
        ("<built-in function getaddrinfo>", "network"),
        ("train.py(88): send_logs", ""),
        ("<built-in function sleep>", "sleep"),
        ("train.py(9): sleep", ""),
        ("<method 'acquire' of '_thread.lock' objects>", "lock"),
        ("<built-in method acquire of _thread.lock object at 0x7f11>", "lock"),
        ("threading.py(355): wait", "lock"),
        ("threading.py(1032): _bootstrap", ""),
        ("aten::add", ""),
        ("cudaMemcpyAsync", ""),
        ("train.py(10): get", ""),
        ("", ""),
    ],
)
def test_what_the_host_does(name, work):
    assert host_work(name) == work


@pytest.mark.parametrize(
    ("name", "copy"),
    [
        ("Memcpy HtoD (Pageable -> Device)", HostCopy(True, "pageable")),
        ("Memcpy HtoD (Pinned -> Device)", HostCopy(True, "pinned")),
        ("Memcpy DtoH (Device -> Pinned)", HostCopy(False, "pinned")),
        ("Memcpy DtoH", HostCopy(False, "")),
        ("CopyHostToDevice", HostCopy(True, "")),
        ("Memcpy DtoD (Device -> Device)", None),
        ("CopyDeviceToDevice", None),
        ("Memset (Device)", None),
        ("HtoDx", None),
    ],
)
def test_where_a_copy_goes(name, copy):
    assert host_copy(name) == copy
