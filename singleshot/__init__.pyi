from singleshot import export as export
from singleshot import pruning as pruning
from singleshot import rl as rl
from singleshot import sparse as sparse
from singleshot import style as style
from singleshot.errors import UserError as UserError
from singleshot.pruning.masked import apply as apply
from singleshot.pruning.modules import prune as prune
from singleshot.pruning.modules import report as report
from singleshot.sparse.accelerated import accelerate as accelerate
from singleshot.sparse.compaction import compact as compact
from singleshot.sparse.files import pack as pack
from singleshot.sparse.files import unpack as unpack

OFFERED: dict[str, str]
SUBPACKAGES: tuple[str, ...]
__version__: str
