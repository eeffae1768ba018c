"""The resolver `${conf_digest:}`: a digest of the files that `params.yaml` was composed from.

Hydra imports this file when DVC composes params.yaml (`hydra.plugins_path` in .dvc/config). No other resolver
is left: `${oc.env:…}` would copy a secret of the environment to params.yaml, which is committed.
"""

import hashlib
from pathlib import Path

from omegaconf import OmegaConf

CONF = Path(__file__).parents[1]


def conf_digest() -> str:
    """SHA-256 of the names and contents of the YAML files in `conf/`, except those in `conf/cluster/`."""
    digest = hashlib.sha256()
    for path in sorted({*CONF.rglob("*.yaml")} - {*CONF.glob("cluster/*")}):
        digest.update(path.relative_to(CONF).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


for name in (
    *("oc.create", "oc.decode", "oc.deprecated", "oc.dict.keys", "oc.dict.values", "oc.env", "oc.select"),
    *("hydra", "now", "python_version"),
):
    OmegaConf.clear_resolver(name)
OmegaConf.register_new_resolver("conf_digest", conf_digest, replace=True)
