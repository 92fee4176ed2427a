"""Environment variables by which one contender of a run may compute otherwise than the others, and what each does."""

import re

THREADS = {
    "OMP_NUM_THREADS": "torch, and what else uses OpenMP",
    "OMP_THREAD_LIMIT": "torch, and what else uses OpenMP",
    "MKL_NUM_THREADS": "MKL, which may be torch's or NumPy's",
    "MKL_DOMAIN_NUM_THREADS": "MKL, which may be torch's or NumPy's",
    "OPENBLAS_NUM_THREADS": "OpenBLAS, which is mostly NumPy's",
    "GOTO_NUM_THREADS": "OpenBLAS, which is mostly NumPy's",
    "BLIS_NUM_THREADS": "BLIS, which may be NumPy's",
    "VECLIB_MAXIMUM_THREADS": "Accelerate, which may be NumPy's",
    "NUMEXPR_NUM_THREADS": "NumExpr",
    "NUMEXPR_MAX_THREADS": "NumExpr",
}
"""Who computes on so many threads."""

OF_CPU = {
    **dict.fromkeys(
        ("KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"),
        "binds OpenMP's threads to cores, which the clock deals out",
    ),
    **dict.fromkeys(("KMP_BLOCKTIME", "OMP_WAIT_POLICY"), "has OpenMP's idle threads spin for longer, or not at all"),
    **dict.fromkeys(("OMP_DYNAMIC", "MKL_DYNAMIC"), "lets a library choose its number of threads call by call"),
    **dict.fromkeys(("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"), "keeps MKL from some instructions"),
    **dict.fromkeys(("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES"), "has NumPy take another CPU's kernels"),
    "ATEN_CPU_CAPABILITY": "has torch take another CPU's kernels",
    **dict.fromkeys(("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"), "keeps torch's oneDNN from some instructions"),
    **dict.fromkeys(
        ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"), "lets torch's oneDNN multiply in fewer bits"
    ),
}

OF_GPU = {
    "CUDA_LAUNCH_BLOCKING": "has the host wait for each launch",
    **dict.fromkeys(("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"), "chooses TF32 for cuBLAS"),
    **dict.fromkeys(("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"), "sets the memory that cuBLAS splits K by"),
    **dict.fromkeys(
        ("TRITON_DEFAULT_FP_FUSION", "TRITON_F32_DEFAULT", "TRITON_OVERRIDE_ARCH", "TRITON_KERNEL_OVERRIDE"),
        "changes what Triton compiles",
    ),
    **dict.fromkeys(("TRITON_PTXAS_PATH", "DISABLE_PTXAS_OPT", "PTXAS_OPTIONS"), "changes what ptxas makes"),
    "DISABLE_LLVM_OPT": "changes what Triton compiles",
}


def told(machine: dict) -> list[str]:
    """A line for each variable that is set on a `machine`, as its run's metadata have it: first those that leave a
    library fewer threads than there are cores."""
    variables = machine.get("environment", {})
    if machine["source"] == "gpu":
        return _lines(variables, OF_GPU)
    cores = machine.get("cores", machine.get("threads", 1))
    lines = []
    for name, who in THREADS.items():
        counts = re.findall(r"\d+", variables.get(name, ""))
        if counts and min(map(int, counts)) < cores:
            lines.append(f"{name}={variables[name]}: fewer threads than the {cores} cores for {who}; unset it")
    return lines + _lines(variables, OF_CPU)


def _lines(variables: dict[str, str], meanings: dict[str, str]) -> list[str]:
    return [f"{name}={variables[name]} {words}" for name, words in meanings.items() if name in variables]
