"""The error for mistakes that users can correct, and a test for out-of-memory errors."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from singleshot.secrets import without_secrets

OUT_OF_MEMORY = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "DefaultCPUAllocator: ")
"""Parts of the messages of PyTorch's out-of-memory errors that are plain RuntimeErrors."""


class UserError(ValueError):
    """Something the user gave is wrong; the message names the file or key, the value and the fix.

    The command line prints it as one line and exits with status 1, without a traceback. Secrets in addresses
    are left out.
    """

    def __init__(self, message: str):
        super().__init__(without_secrets(message))


def shown(value: Any) -> str:
    """The beginning of a value's `repr`, without line breaks, for an error's message."""
    words = " ".join(repr(value).split())
    return words if len(words) <= 60 else f"{words[:59]}…"


def must_be(wanted: str, right: bool, **argument: Any) -> None:
    """Check an argument, which is given by its name.

    Raises:
        UserError: it is not `right`, but should be what `wanted` says.
    """
    if not right:
        ((name, value),) = argument.items()
        raise UserError(f"{name} is {shown(value)}; give {wanted}")


def in_a_line(error: BaseException) -> str:
    """An error's type and message without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


@contextlib.contextmanager
def explained(
    what: str, fix: str, kinds: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Iterator[None]:
    """Turn an error in the context into a UserError: `what (the error); fix`.

    Files may say anything, so no list of what reading them raises (KeyError, RecursionError, …) is complete.
    """
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        raise UserError(f"{what} ({in_a_line(error)}); {fix}") from error


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """The advice for a wrong name: the most similar one that is known, or `otherwise` if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise


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
