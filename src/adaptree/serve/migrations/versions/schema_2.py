"""The first schema that was published: jobs, their events, uploaded files."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, Text

revision = "2"
down_revision = None

JOBS = "adaptree_jobs"


def upgrade() -> None:
    def text(name: str) -> Column[str]:
        return Column(name, Text, nullable=False, server_default="")

    def whole(name: str) -> Column[int]:
        return Column(name, BigInteger, nullable=False, server_default="0")

    op.create_table(
        JOBS,
        Column("number", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
        Column("id", Text, nullable=False, unique=True),
        *map(text, ("store", "tenant", "name", "state", "base", "settings", "file", "file_name", "more_files")),
        *map(text, ("token", "worker", "cancel", "progress", "error", "task", "metrics")),
        *map(whole, ("keep_data", "attempts", "deaths", "version", "events", "rows", "bytes")),
        *map(whole, ("most_running", "most_seconds")),
        *(Column(name, Double) for name in ("created", "started", "begun", "finished", "lease")),
        Column("seconds", Double, nullable=False, server_default="0"),
    )
    op.create_index(f"{JOBS}_by_state", JOBS, ["store", "state", "tenant", "number"])
    op.create_index(f"{JOBS}_by_tenant", JOBS, ["store", "tenant", "number"])
    op.create_table(
        f"{JOBS}_events",
        Column("job", Text, primary_key=True),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        *map(text, ("event", "data")),
        Column("time", Double, nullable=False),
    )
    op.create_table(
        f"{JOBS}_files",
        Column("id", Text, primary_key=True),
        *map(text, ("store", "tenant", "name", "sha256")),
        whole("bytes"),
        Column("created", Double, nullable=False),
        Column("expires", Double),
    )
    op.create_index(f"{JOBS}_files_by_tenant", f"{JOBS}_files", ["store", "tenant"])
    schema = op.create_table(f"{JOBS}_schema", Column("schema", Integer, primary_key=True, autoincrement=False))
    op.bulk_insert(schema, [{"schema": 2}])
