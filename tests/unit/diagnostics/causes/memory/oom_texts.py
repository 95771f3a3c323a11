"""Out-of-memory texts of torch 1.13 to 2.13, and jobs that left one."""

import json

FRAGMENTED = {
    "1.13": "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 39.59 GiB total capacity; 25.00 GiB already "
    "allocated; 1.10 GiB free; 36.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated"
    " memory try setting max_split_size_mb to avoid fragmentation.",
    "2.1": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 39.59 GiB of which 1.10"
    " GiB is free. Including non-PyTorch memory, this process has 38.40 GiB memory in use. Of the "
    "allocated memory 25.00 GiB is allocated by PyTorch, and 11.50 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid "
    "fragmentation.",
    "2.8": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.59 GiB of which "
    "1.10 GiB is free. Including non-PyTorch memory, this process has 38.40 GiB memory in use. Of the "
    "allocated memory 25.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., "
    "CUDA Graphs), and 11.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
}
TRUE_DEMAND = FRAGMENTED["2.8"].replace("25.00 GiB is", "36.20 GiB is").replace("11.50 GiB", "300.00 MiB")
OTHERS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.59 GiB of which "
    "1.10 GiB is free. Process 4711 has 20.00 GiB memory in use. Including non-PyTorch memory, this "
    "process has 18.40 GiB memory in use. Of the allocated memory 17.00 GiB is allocated by PyTorch, and "
    "300.00 MiB is reserved by PyTorch but unallocated."
)
NCCL = OTHERS.replace("Process 4711 has 20.00 GiB memory in use. ", "").replace("18.40 GiB", "38.40 GiB")
CPU = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
    "to allocate 1099511627776 bytes. Error code 12 (Cannot allocate memory)"
)


def job_of(folder, text: str, kind: str = "torch.OutOfMemoryError"):
    (folder / "rank3.log").write_text(
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/home/me/train.py", line 12, in <module>\n[rank3]:     loss = model(x)\n'
        f"[rank3]: {kind}: {text}\n"
    )
    return folder


def error_file(folder, text: str):
    record = {"message": {"message": f"OutOfMemoryError: {text}", "extraInfo": {"py_callstack": "", "timestamp": "1"}}}
    (folder / "error.json").write_text(json.dumps(record))
    return folder
