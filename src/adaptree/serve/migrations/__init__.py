"""Migrations of the databases that hold truth (jobs, API keys): Alembic brings a database of any schema to the newest.

`versions/` has a file for each schema from the first on, which is never changed again; the next one gets a number more.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from adaptree.errors import StoreError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection

VERSION_TABLE = "adaptree_schema_version"
FOLDER = Path(__file__).parent


def upgrade(db: Connection, numbered: int | None, shown: str) -> None:
    """Bring the tables to the newest schema, within the transaction of a connection that holds the database's lock.

    `numbered` is the schema that the tables themselves say, None if there are none: those of before Alembic have no
    other mark. Raise StoreError for one that this adaptree does not know.
    """
    try:
        from alembic.config import Config
        from alembic.runtime.environment import EnvironmentContext
        from alembic.script import ScriptDirectory
    except ImportError as error:
        raise UsageError("a database of jobs or keys needs Alembic.", hint="pip install 'adaptree[serve]'") from error

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    known = [int(each.revision) for each in script.walk_revisions()]
    if numbered is not None and numbered not in known:
        newer = numbered > max(known)
        raise StoreError(
            f"the jobs in {shown} are of schema {numbered}, and this adaptree knows {min(known)} to {max(known)}.",
            hint="Use a newer adaptree." if newer else "Use the adaptree that wrote them.",
        )
    with EnvironmentContext(config, script) as environment:
        environment.configure(connection=db, version_table=VERSION_TABLE)
        context = environment.get_context()
        if numbered is not None and context.get_current_revision() is None:
            context.stamp(script, str(numbered))
        environment.configure(
            connection=db, version_table=VERSION_TABLE, fn=lambda now, _: script._upgrade_revs("head", now)
        )
        environment.run_migrations()
