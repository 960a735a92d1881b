"""API keys in the database, for servers on several machines."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Text

revision = "3"
down_revision = "2"


def upgrade() -> None:
    op.create_table(
        "adaptree_keys",
        Column("id", Text, primary_key=True),
        *(Column(name, Text, nullable=False) for name in ("hash", "tenant", "scopes", "note", "created")),
        Column("rate", Double, nullable=False),
        Column("quota", BigInteger, nullable=False),
    )
    op.execute("UPDATE adaptree_jobs_schema SET schema = 3")  # an adaptree of before Alembic reads this number
