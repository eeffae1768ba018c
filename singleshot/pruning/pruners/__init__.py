"""The pruners, one per module: its name is the module's, and it is the module's `PRUNER`.

Modules are imported by name, so that a new pruner is not among the source files on which the masks of other
pruners depend.
"""

import functools
import importlib
import pkgutil

from singleshot.errors import UserError, did_you_mean
from singleshot.pruning.controls import CONTROLS
from singleshot.pruning.pruner import Pruner, ScoreFunction

FOR_AGENTS = ("finetuned", "gradual", "rigl", "set", "small")
"""What `prune` of an agent takes besides pruners: they change masks in training, or need no mask."""


@functools.cache
def pruner_names() -> tuple[str, ...]:
    """Names of all pruners, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def module_of(name: str) -> str:
    """Full name of the module of the pruner `name`, or of a control's pruner: of `snip` for `snip-shuffled`.

    Raises:
        UserError: there is no pruner or control of that name.
    """
    pruner, hyphen, control = name.partition("-")
    if name in FOR_AGENTS:
        raise UserError(f"{name!r} is for agents alone: singleshot.rl.BC(data).prune({name!r}, …)")
    if pruner not in pruner_names() or (hyphen and control not in CONTROLS):
        known = [*pruner_names(), *(f"{each}-{own}" for each in pruner_names() for own in CONTROLS)]
        advice = did_you_mean(name.lower(), [*known, *FOR_AGENTS], "")
        raise UserError(
            f"unknown pruner {name!r}{advice and f' ({advice})'}; known are {', '.join(pruner_names())}, and "
            f"each with {' or '.join(f'-{own}' for own in CONTROLS)} behind it as its control"
        )
    return f"{__name__}.{pruner}"


def find_pruner(method: str | ScoreFunction) -> Pruner:
    """The pruner of that name, the pruner to which a control of that name belongs, or one's own with a score.

    Raises:
        UserError: there is no pruner or control of that name.
    """
    if callable(method):
        return Pruner(method)
    found: Pruner = importlib.import_module(module_of(method)).PRUNER
    return found
