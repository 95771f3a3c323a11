"""What names of kernels, annotations and operations tell, where structure does not. Tables only."""

import re

COMMUNICATION = re.compile(
    r"^(?:nccl|rccl|ncclx|hccl|msccl|xccl)\w*(?:kernel|generic)|^ncclsymdevkernel|^rccl|hccl::|mscclpp|nvshmem|"
    r"multimem_\w*(?:reduce|gather|broadcast)|(?:one|two)_shot_all_?reduce|cross_device_reduce|ep::(?:internode|intranode"
    r"|internode_ll)::|deep_ep::|(?:^|[^a-z])(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv)\w*kernel"
)
"""Kernels that communicate, of NCCL, RCCL, HCCL, MSCCL++, NVSHMEM, DeepEP, vLLM and PyTorch's symmetric memory.

In lower case, as all that kernels are told by: a search that ignores case takes twice the time.
"""
FUSED = re.compile(r"allreduce_?fusion|all_?gather_?gemm|gemm_?reduce_?scatter|fused_\w*all_?reduce")
"""Communicate and compute in one kernel."""
COMPUTE = re.compile(
    r"at::native|at_cuda_detail|cutlass|cublas|cudnn|gemm|gemv|elementwise|triton_|flash|fmha|softmax|layer_?norm|"
    r"fbgemm|embedding|multi_tensor|catarray|thrust::|cub::|memcpy|memset|wgrad|dgrad|winograd|convolve"
)
"""Kernels that surely compute, also when they were launched beside a collective."""
STEP = re.compile(r"^ProfilerStep#(\d+)$")
FORWARD = re.compile(r"^(?:DistributedDataParallel\.forward|FSDP::root_pre_forward.*|forward|## forward ##)$")
"""One of each a micro-batch; never two of them are counted together."""
BACKWARD_MARK = re.compile(r"^(?:backward|## backward ##|FSDP::(?:root_)?post_backward.*)$")
AUTOGRAD = "autograd::engine::evaluate_function"
OPTIMIZER = re.compile(r"^Optimizer\.step|^optimizer$|^## optimizer ##$")
ISSUE = re.compile(r"^c10d::")
UNUSED_SEARCH = re.compile(r"search_unused_parameters")
COMPILED = re.compile(r"^triton_(?:poi|red|per|tem|mm|for)_|Torch-Compiled Region|CompiledFx|^CompiledFunction")
"""Kernels and annotations that `torch.compile` leaves in a trace."""
SYNC_OPS = re.compile(r"^aten::(?:item|_local_scalar_dense|nonzero|is_nonzero|equal|masked_select|unique\w*)$")
