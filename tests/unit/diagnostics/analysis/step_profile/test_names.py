"""What names of kernels and annotations tell: each pattern takes a library's name and leaves one that is like it."""

import re

import pytest

from diagnostics.analysis.step_profile import names


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        (names.TEXT["communication"], "nccldevkernel_allreduce_sum_f32_ring_ll(args<4096ul>)", "gemm_kernel"),
        (names.TEXT["communication"], "void vllm::cross_device_reduce_1stage<float>", "reduce_kernel<512, 1>"),
        (names.TEXT["communication"], "deep_ep::internode::dispatch", "dispatch_tokens"),
        (names.TEXT["fused"], "flashinfer::allreduce_fusion_kernel", "allreduce_kernel"),
        (names.TEXT["fused"], "void gemm_reduce_scatter", "reduce_scatter"),
        (names.TEXT["compute"], "ampere_sgemm_128x64_tn", "nccldevkernel_sendrecv"),
        (names.TEXT["compute"], "void at::native::vectorized_elementwise_kernel", "my_kernel"),
        (names.TEXT["step"], "ProfilerStep#12", "ProfilerStep#"),
        (names.TEXT["forward"], "DistributedDataParallel.forward", "Linear.forward"),
        (names.TEXT["forward"], "FSDP::root_pre_forward (layers.0)", "FSDP::pre_forward (layers.0)"),
        (names.TEXT["backward_mark"], "FSDP::post_backward_reduce", "backward_hook"),
        (names.TEXT["optimizer"], "Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"),
        (names.TEXT["issue"], "c10d::allreduce_", "gloo:all_reduce"),
        (names.TEXT["compiled"], "triton_poi_fused_add_0", "triton_kernel"),
        (names.TEXT["sync_ops"], "aten::item", "aten::items"),
    ],
)  # fmt: skip
def test_a_name_is_taken_and_one_like_it_is_not(pattern: re.Pattern[str], taken: str, left: str) -> None:
    assert pattern.search(taken) and not pattern.search(left)
