"""A PostgreSQL server of the tests' own: on a unix socket in a private directory, gone with the test session.

PostgreSQL refuses to run as root; as root, the server gets the uid of `postgres`, or else `nobody`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from support.wait import until

MISSING = "PostgreSQL's server is not installed; on Debian: apt-get install postgresql"
#: Room for two stores with full pools.
CONNECTIONS = 100


class PostgreSQLServer:
    """`locked` is a role with a password; `postgres` needs none. Of a `replicated` one standbys can be made."""

    def __init__(self, *, replicated: bool = False, primary: PostgreSQLServer | None = None) -> None:
        self._replicated = replicated or primary is not None
        self.directory = Path(tempfile.mkdtemp(prefix="pr-pg-", dir="/tmp"))  # a socket's path has 107 bytes
        self._as_owner: list[str] = []
        if os.getuid() == 0:
            owner = _owner()
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
            self._as_owner = ["--reuid", str(owner.pw_uid), "--regid", str(owner.pw_gid), "--clear-groups"]
        self._data = self.directory / "data"
        self._log = self.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        if primary is not None:
            self._copy(primary)
            return
        made = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        self._run(program("initdb"), "-D", str(self._data), *made).wait(60)
        if not (self._data / "PG_VERSION").exists():
            pytest.fail(f"initdb failed:\n{self._log.read_text()}")
        rules = self._data / "pg_hba.conf"
        rules.write_text("local all locked scram-sha-256\n" + rules.read_text())
        self.start()
        self.execute("CREATE ROLE locked LOGIN PASSWORD 'open-sesame'")

    def url(self, database: str, user: str = "postgres") -> str:
        return f"postgresql://{user}@/{database}?host={self.directory}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(host=str(self.directory), user="postgres", dbname=database, autocommit=True)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with self.connect(database) as connection:
            cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def make_database(self, name: str) -> str:
        """Make an empty database, whatever was there, and return its URL."""
        with self.connect() as connection:
            drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            for statement in (drop, sql.SQL("CREATE DATABASE {} TEMPLATE template0 STRATEGY file_copy")):
                connection.execute(statement.format(sql.Identifier(name)))
        return self.url(name)

    def backends(self, database: str) -> list[int]:
        """Return the pids of the server's processes that serve a database's clients."""
        found = self.execute(f"SELECT pid FROM pg_stat_activity WHERE datname = '{database}'")
        return [pid for (pid,) in found]

    def start(self) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": self.directory,
            "max_connections": CONNECTIONS,
            "shared_buffers": "16MB",
            "fsync": "off",  # no test cuts the power; what is committed outlives the server's processes all the same
            "restart_after_crash": "on",
            "autovacuum": "off",
            "max_wal_senders": 4 if self._replicated else 0,
            "wal_level": "replica" if self._replicated else "minimal",
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = self._run(program("postgres"), "-D", str(self._data), *given)
        until(self._answers, seconds=60, every=0.05, what=f"the server's start ({self._log})")

    def stop(self, *, immediately: bool = False) -> None:
        """End the server; `immediately` is a crash, from which the next start recovers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if immediately else signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def standby(self) -> PostgreSQLServer:
        """Return a server of its own that follows this one, a moment behind."""
        return PostgreSQLServer(primary=self)

    def caught_up_with(self, primary: PostgreSQLServer) -> bool:
        ((there,),) = primary.execute("SELECT pg_current_wal_lsn()")
        ((here,),) = self.execute(f"SELECT pg_last_wal_replay_lsn() >= '{there}'")
        return bool(here)

    def promote(self) -> None:
        """Let a standby be the primary, whatever it has not received."""
        self.execute("SELECT pg_promote()")

    def _copy(self, primary: PostgreSQLServer) -> None:
        copied = ["-D", str(self._data), "-h", str(primary.directory), "-U", "postgres", "-R", "--checkpoint=fast"]
        if self._run(program("pg_basebackup"), *copied, "--no-sync").wait(60) != 0:
            pytest.fail(f"pg_basebackup failed:\n{self._log.read_text()}")
        self.start()

    def remove(self) -> None:
        self.stop(immediately=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            self.connect().close()
            return True
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"the server ended:\n{self._log.read_text()}")
        return False

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program under the server's uid; it ends with us, however we end."""
        with self._log.open("ab") as log:
            argv = ["setpriv", *self._as_owner, "--pdeathsig", "QUIT", "--", *command]
            return subprocess.Popen(argv, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs; fail with the way out where there is none."""
    if found := shutil.which(name):
        return found
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    if not installed:
        pytest.fail(MISSING)
    return str(installed[-1])


def _owner() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


@contextlib.contextmanager
def running_server() -> Iterator[PostgreSQLServer]:
    server = PostgreSQLServer()
    try:
        yield server
    finally:
        server.remove()
