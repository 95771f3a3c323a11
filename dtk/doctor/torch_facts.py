"""`python -m dtk.doctor.torch_facts`: prints facts about torch and its devices as JSON. Runs in a separate process."""

from typing import Any

from dtk.rank.child import run_child, send_record


def facts() -> dict[str, Any]:
    """Return versions, back-ends and CUDA devices as reported by torch; a key in `_error` says why a part failed."""
    import torch
    import torch.distributed as dist

    distributed, numpy_error = dist.is_available(), None
    try:
        torch.zeros(1).numpy()
    except Exception as error:
        numpy_error = f"{type(error).__name__}: {error}".splitlines()[0]
    return {
        "version": torch.__version__,
        "file": torch.__file__,
        "cuda_build": torch.version.cuda,
        "hip_build": getattr(torch.version, "hip", None),
        "distributed": distributed,
        "gloo": distributed and dist.is_gloo_available(),
        "nccl": distributed and dist.is_nccl_available(),
        "numpy_error": numpy_error,
        **_cuda(torch),
    }


def _cuda(torch: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"cuda_available": False, "cuda_error": None, "devices": [], "architectures": []}
    if torch.version.cuda is None:
        return facts
    try:
        facts["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception as error:
        facts["nccl_error"] = str(error).splitlines()[0]
    try:
        facts["architectures"] = torch.cuda.get_arch_list()
        torch.cuda.init()
        for i in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(i)
            facts["devices"].append({"name": about.name, "capability": [about.major, about.minor]})
        facts["cuda_available"] = bool(facts["devices"])
    except Exception as error:  # A run would encounter the same error, whatever its type.
        facts["cuda_error"] = (str(error) or type(error).__name__).splitlines()[0]
    return facts


if __name__ == "__main__":
    run_child(lambda: send_record(**facts()))
