"""Bearer tokens: shown once on creation, stored as a hash. A token has scopes, one per namespace.

    team-a         full access to namespace team-a       *         full access to all namespaces and base models
    team-a:read    read access                           *:read    read access to everything

Tokens have 256 random bits, so an unsalted sha256 is sufficient.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from pairwright.errors import ConfigError
from pairwright.service.api_errors import Refusal
from pairwright.service.rows.database import Database
from pairwright.service.rows.names import check_name, new_id, now
from pairwright.service.rows.schema import tokens

# Makes a leaked token recognizable to people and secret scanners.
PREFIX = "pw_"
# Built once, since every request runs them.
_COUNT = sa.select(sa.func.count()).select_from(tokens)
_BY_HASH = sa.select(tokens).where(tokens.c.hash == sa.bindparam("digest"))


@dataclass(frozen=True)
class Caller:
    """The authenticated caller and its scopes."""

    name: str
    scopes: frozenset[str]

    def may(self, namespace: str, *, write: bool) -> bool:
        # Writing includes reading.
        allowed = {"*", namespace}
        if not write:
            allowed |= {"*:read", f"{namespace}:read"}
        return not allowed.isdisjoint(self.scopes)

    def check(self, namespace: str, *, write: bool) -> None:
        """Raise a 403 refusal unless the caller has read (or write) access to a namespace."""
        if not self.may(namespace, write=write):
            verb = "change" if write else "read"
            message = f"the token {self.name!r} may not {verb} namespace {namespace!r}: ask for a token with that scope"
            raise Refusal(403, "forbidden_namespace", message)

    @property
    def namespaces(self) -> list[str] | None:
        """The namespaces that the caller may read; None for all of them."""
        if not {"*", "*:read"}.isdisjoint(self.scopes):
            return None
        return sorted({scope.partition(":")[0] for scope in self.scopes})


# The caller if the service has no tokens, on loopback only.
EVERYBODY = Caller("anonymous", frozenset({"*"}))


def create_token(database: Database, name: str, scopes: Sequence[str]) -> str:
    """Create a token and return its text, which is not stored."""
    for scope in scopes:
        namespace, colon, mode = scope.partition(":")
        if namespace != "*":
            check_name(namespace, "--scope")
        if colon and mode != "read":
            raise ConfigError(f"--scope: got {scope!r}, expected NAMESPACE, NAMESPACE:read, * or *:read")
    if not scopes:
        raise ConfigError("--scope: expected at least one, such as --scope team-a or --scope '*'")
    check_name(name, "--name")
    token = PREFIX + secrets.token_urlsafe(32)
    with database.writing() as connection:
        if connection.scalar(sa.select(tokens.c.id).where(tokens.c.name == name)) is not None:
            raise ConfigError(f"--name: there is already a token {name!r}: revoke it, or choose another name")
        row = {
            "id": new_id("token"),
            "name": name,
            "hash": _hash(token),
            "scopes": sorted(set(scopes)),
            "created_at": now(),
        }
        connection.execute(sa.insert(tokens).values(row))
    return token


def list_tokens(database: Database) -> list[dict[str, Any]]:
    with database.reading() as connection:
        shown = sa.select(tokens.c.name, tokens.c.scopes, tokens.c.created_at).order_by(tokens.c.name)
        return [row._asdict() for row in connection.execute(shown)]


def revoke_token(database: Database, name: str) -> None:
    with database.writing() as connection:
        if not connection.execute(sa.delete(tokens).where(tokens.c.name == name)).rowcount:
            raise ConfigError(f"no token {name!r}; see: pairwright serve token list")


def count_tokens(database: Database) -> int:
    with database.reading() as connection:
        return connection.scalar(_COUNT) or 0


def caller_of(database: Database, token: str) -> Caller | None:
    with database.reading() as connection:
        # Looked up by hash: it is indexed, and timing reveals nothing about a token.
        row = connection.execute(_BY_HASH, {"digest": _hash(token)}).mappings().first()
    return None if row is None else Caller(row["name"], frozenset(row["scopes"]))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
