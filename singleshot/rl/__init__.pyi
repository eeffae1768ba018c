from singleshot.offline_rl import BC as BC
from singleshot.offline_rl import BCQ as BCQ
from singleshot.offline_rl import IQL as IQL
from singleshot.offline_rl import TD3BC as TD3BC
from singleshot.offline_rl import Dataset as Dataset
from singleshot.offline_rl import load as load

NAMES: tuple[str, ...]
__all__ = ("BC", "BCQ", "IQL", "TD3BC", "Dataset", "load")
