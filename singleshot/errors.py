"""The error for mistakes that users can correct, checks of arguments, and a test for out-of-memory errors."""

from numbers import Real
from typing import Any

from singleshot.secrets import without_secrets

OUT_OF_MEMORY = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: ",
)
"""Parts of the messages of PyTorch's out-of-memory errors that are plain RuntimeErrors."""


class UserError(ValueError):
    """Something the user gave is wrong; the message names the file or key, the value and the fix.

    The command line prints it as one line and exits with status 1, without a traceback. Secrets of addresses
    are left out.
    """

    def __init__(self, message: str):
        super().__init__(without_secrets(message))


def shown(value: Any) -> str:
    """The beginning of a value's `repr`, without line breaks, for an error's message."""
    words = " ".join(repr(value).split())
    return words if len(words) <= 60 else f"{words[:59]}…"


def whole(name: str, value: Any, least: int) -> int:
    """A whole number of at least `least`, also where it is given as a float: 1e4.

    Raises:
        UserError: the value of the argument `name` is anything else.
    """
    number = isinstance(value, Real) and not isinstance(value, bool) and float(value).is_integer()
    if not number or value < least:
        raise UserError(f"{name} is {shown(value)}; it has to be a whole number, {least} or more")
    return int(value)


def in_a_line(error: BaseException) -> str:
    """An error's type and message without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a GPU or this machine ran out of memory.

    The causes of the error count, too: the capture of a CUDA graph may raise another error as a consequence.
    """
    import torch

    if error is None:
        return False
    return (
        isinstance(error, torch.OutOfMemoryError | MemoryError)
        or any(words in str(error) for words in OUT_OF_MEMORY)
        or is_out_of_memory(error.__cause__ or error.__context__)
    )
