"""Where the artifacts of MLflow's SQLite database lie: beside it, also after both were moved or copied.

MLflow stores absolute addresses and has no command that changes them.
"""

import contextlib
import sqlite3
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from singleshot.errors import UserError

SQLITE = "sqlite:///"
ARTIFACTS = Path("mlartifacts")
ADDRESSES = {
    "experiments": "artifact_location",
    "runs": "artifact_uri",
    "logged_models": "artifact_location",
    "model_versions": "storage_location",
}
"""Tables and columns of MLflow's database with addresses of artifacts."""
PATIENCE_S = 60
"""Another driver's transaction is over by then."""


def database_file(uri: str) -> Path | None:
    """The file of an SQLite address, which may end with options; None of another address."""
    return Path(uri.removeprefix(SQLITE).partition("?")[0]) if uri.startswith(SQLITE) else None


def artifacts_of(database: Path) -> str:
    """The address of the artifacts that belong to a database."""
    return (database.absolute().parent / ARTIFACTS).as_uri()


def follow_move(database: Path, experiment: str) -> None:
    """Let the database of a moved or copied checkout name the artifacts that lie beside it.

    Only addresses of experiments whose names begin with `experiment` and a slash are changed, and only if the
    artifacts came along.

    Raises:
        UserError: the file is no database, or another process keeps it locked.
    """
    if not database.is_file() or not (database.parent / ARTIFACTS).is_dir():
        return
    try:
        connection = sqlite3.connect(database, timeout=PATIENCE_S)
        with contextlib.closing(connection), connection:
            for there in _other_places(connection, database, experiment):
                _replace(connection, database, there)
    except sqlite3.Error as error:
        raise UserError(f"MLflow at {SQLITE}{database}: {error}; see `python -m pipelines doctor`") from error


def _other_places(connection: sqlite3.Connection, database: Path, experiment: str) -> set[str]:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone():
        return set()
    rows = connection.execute(
        "SELECT artifact_location FROM experiments WHERE name LIKE ? AND artifact_location LIKE ?",
        (f"{experiment}/%", f"file://%/{ARTIFACTS}"),
    )
    return {there for (there,) in rows} - {artifacts_of(database)}


def _replace(connection: sqlite3.Connection, database: Path, there: str) -> None:
    for table, column in ADDRESSES.items():
        connection.execute(
            f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column} || '/', 1, ?) = ?",
            (artifacts_of(database), len(there) + 1, len(there) + 1, f"{there}/"),
        )
    # The snippet in a network's description opens the database.
    earlier = Path(url2pathname(urlsplit(there).path)).parent / database.name
    connection.execute(
        "UPDATE registered_models SET description = replace(description, ?, ?)",
        (f"{SQLITE}{earlier}", f"{SQLITE}{database.absolute()}"),
    )
