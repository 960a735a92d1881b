"""API keys in PostgreSQL, where servers on several machines find the same ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from adaptree.serve.jobs.database import Database

if TYPE_CHECKING:
    from adaptree.serve.keys import ApiKey


class KeyTable:
    """The keys in a database; each call is one transaction."""

    def __init__(self, url: str) -> None:
        self._database = Database(None, url)
        self._table = self._database.tables["keys"]

    @property
    def shown(self) -> str:
        """Where the keys are, without a password."""
        return self._database.shown

    def read(self) -> list[ApiKey]:
        """Return all keys, the oldest first."""
        from sqlalchemy import select

        from adaptree.serve.keys import ApiKey

        table = self._table
        found = self._database.rows(select(table).order_by(table.c.created, table.c.id))
        return [ApiKey(**{**row._mapping, "scopes": tuple(row.scopes.split())}) for row in found]

    def add(self, key: ApiKey) -> None:
        values: dict[str, Any] = asdict(key) | {"scopes": " ".join(key.scopes)}
        self._database.write(lambda db, now: db.execute(self._table.insert().values(**values)))

    def remove(self, id: str) -> None:
        self._database.write(lambda db, now: db.execute(self._table.delete().where(self._table.c.id == id)))

    def close(self) -> None:
        self._database.dispose()
