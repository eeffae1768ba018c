import pytest
import torch

from singleshot.errors import is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_what_memory_s_end_looks_like(error):
    assert is_out_of_memory(error)
    later = RuntimeError("operation failed due to a previous error during capture")
    later.__context__ = error
    assert is_out_of_memory(later)


def test_other_errors_are_not_taken_for_it():
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_torch_says_what_is_looked_for():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
