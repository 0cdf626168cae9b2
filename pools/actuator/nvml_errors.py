"""NVML's errors in our words: which will pass, which will not, and what an operator can do. Translated here alone."""

from __future__ import annotations

import pynvml

from core.ports import AdapterError, PermanentError, RetryableError

_PERMANENT = {
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission; clocks need root or CAP_SYS_ADMIN",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "this GPU or driver does not support it",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: "the driver refuses the value",
    pynvml.NVML_ERROR_NOT_FOUND: "no such GPU",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: "no such GPU",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU has fallen off the bus; restart the machine",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU needs a reset (nvidia-smi --gpu-reset)",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is missing; install NVIDIA's driver",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the driver is too old for it",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "NVIDIA's driver is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "library and driver differ in version; restart the machine",
    pynvml.NVML_ERROR_CORRUPTED_INFOROM: "the GPU's infoROM is damaged",
    pynvml.NVML_ERROR_FREQ_NOT_SUPPORTED: "the GPU does not offer this clock",
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: "the driver is too old for it",
    pynvml.NVML_ERROR_DEPRECATED: "the driver does not support it any more",
}
# After these nothing that was opened before can be trusted.
STALE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)
# What a GPU says to a question that is not for it: no fault, there is just no answer.
UNSUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)


def translated(error: pynvml.NVMLError, what: str) -> AdapterError:
    """Translates the `error` of doing `what`, for example `lock the clock of GPU-1`. Unknown errors are retryable."""
    if (words := _PERMANENT.get(error.value)) is not None:
        return PermanentError(f"cannot {what}: {words}")
    return RetryableError(f"cannot {what}: {error}")
