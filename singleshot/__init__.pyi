from singleshot import export as export
from singleshot import pruning as pruning
from singleshot import rl as rl
from singleshot import sparse as sparse
from singleshot import style as style
from singleshot.pruning.modules import apply as apply
from singleshot.pruning.modules import prune as prune
from singleshot.pruning.modules import report as report

SUBPACKAGES: tuple[str, ...]
__version__: str
