"""What names of kernels and annotations tell: each pattern takes a library's name and leaves one that is like it."""

import re

import pytest

from diagnostics.analysis.step_profile.classify import TEXT


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        (TEXT["communication"], "nccldevkernel_allreduce_sum_f32_ring_ll(args<4096ul>)", "gemm_kernel"),
        (TEXT["communication"], "void vllm::cross_device_reduce_1stage<float>", "reduce_kernel<512, 1>"),
        (TEXT["communication"], "deep_ep::internode::dispatch", "dispatch_tokens"),
        (TEXT["fused"], "flashinfer::allreduce_fusion_kernel", "allreduce_kernel"),
        (TEXT["fused"], "void gemm_reduce_scatter", "reduce_scatter"),
        (TEXT["compute"], "ampere_sgemm_128x64_tn", "nccldevkernel_sendrecv"),
        (TEXT["compute"], "void at::native::vectorized_elementwise_kernel", "my_kernel"),
        (TEXT["step"], "ProfilerStep#12", "ProfilerStep#"),
        (TEXT["forward"], "DistributedDataParallel.forward", "Linear.forward"),
        (TEXT["forward"], "FSDP::root_pre_forward (layers.0)", "FSDP::pre_forward (layers.0)"),
        (TEXT["backward_mark"], "FSDP::post_backward_reduce", "backward_hook"),
        (TEXT["optimizer"], "Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"),
        (TEXT["issue"], "c10d::allreduce_", "gloo:all_reduce"),
        (TEXT["compiled"], "triton_poi_fused_add_0", "triton_kernel"),
        (TEXT["sync_ops"], "aten::item", "aten::items"),
    ],
)  # fmt: skip
def test_a_name_is_taken_and_one_like_it_is_not(pattern: re.Pattern[str], taken: str, left: str) -> None:
    assert pattern.search(taken) and not pattern.search(left)
