"""What names of kernels and annotations tell: each pattern takes a library's name and leaves one that is like it."""

import re

import pytest

from diagnostics.analysis.step_profile import names


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        (names.COMMUNICATION, "nccldevkernel_allreduce_sum_f32_ring_ll(args<4096ul>)", "gemm_kernel"),
        (names.COMMUNICATION, "void vllm::cross_device_reduce_1stage<float>", "reduce_kernel<512, 1>"),
        (names.COMMUNICATION, "deep_ep::internode::dispatch", "dispatch_tokens"),
        (names.FUSED, "flashinfer::allreduce_fusion_kernel", "allreduce_kernel"),
        (names.FUSED, "void gemm_reduce_scatter", "reduce_scatter"),
        (names.COMPUTE, "ampere_sgemm_128x64_tn", "nccldevkernel_sendrecv"),
        (names.COMPUTE, "void at::native::vectorized_elementwise_kernel", "my_kernel"),
        (names.STEP, "ProfilerStep#12", "ProfilerStep#"),
        (names.FORWARD, "DistributedDataParallel.forward", "Linear.forward"),
        (names.FORWARD, "FSDP::root_pre_forward (layers.0)", "FSDP::pre_forward (layers.0)"),
        (names.BACKWARD_MARK, "FSDP::post_backward_reduce", "backward_hook"),
        (names.OPTIMIZER, "Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"),
        (names.ISSUE, "c10d::allreduce_", "gloo:all_reduce"),
        (names.COMPILED, "triton_poi_fused_add_0", "triton_kernel"),
        (names.SYNC_OPS, "aten::item", "aten::items"),
    ],
)  # fmt: skip
def test_a_name_is_taken_and_one_like_it_is_not(pattern: re.Pattern[str], taken: str, left: str) -> None:
    assert pattern.search(taken) and not pattern.search(left)
