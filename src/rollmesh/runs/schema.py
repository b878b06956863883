"""The tables of a run's store, and the statements that fill them (layer 7).

| table | one row |
|---|---|
| `run` | one thing that the run is: a name and a JSON value; never changed |
| `starts` | one start: when, on what, how it ended |
| `episodes` | one finished episode of the plan |
| `retried` | one errored episode that was set aside to be run again |
| `failed_attempts` | one try at an episode that came to nothing |
| `head` | how many rows there are, and the last checksum |

Pure constants.
"""

from __future__ import annotations

from rollmesh.runs.rows import ATTEMPT_COLUMNS, EPISODE_COLUMNS

STORE_FILE = "run.sqlite"
SIDECARS = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database while it is in use, or after a crash."""
LOG_FILE = STORE_FILE + SIDECARS[0]
FORMAT, FIRST_FORMAT = 2, 1
"""The second one has a column for odd observations; the first is read, and brought up to it."""
ENV_FACT, WIDTH_FACT, DECISION_FACT = "env", "num_envs", "decision"
"""Facts of a start that results are read with: the env's own name, lanes, what a rule decided."""
MARKS_FACT, MOVED_FACT, ACCEPTED_FACT = "fingerprints", "moved", "accepted"
"""Facts of a start: hashes of model and env, those that playing changed, and what was accepted."""
EARLIER_FACT, MARKED_BY_FACT = "earlier", "fingerprinted_by"
"""The same: hashes that the same objects had before other runs changed them, and what made them."""
UNWATCHED_FACT = "unwatched"
"""Fact of the start that brought a store of the first format up: how many episodes it held, whose
odd observations nobody had counted."""
ENV_FACTS = (ENV_FACT, WIDTH_FACT)
"""Those that hold until the env is opened again: the next start begins with them."""
APPLICATION = 0x524D5348
"""Marks a SQLite file as one of ours (`file` and SQLite show it)."""

START_COLUMNS = ("started_at", "ended_at", "stopped", "elapsed_s", "facts", "telemetry")

# `seed` and `total_reward` have no declared type, so that SQLite changes nothing: a seed of more
# than 64 bits stays a text, -0.0 stays negative.
_EPISODE_TABLE = """(
    plan_index INTEGER PRIMARY KEY,
    sequence INTEGER NOT NULL,
    task TEXT NOT NULL,
    seed,
    episode_id TEXT NOT NULL,
    env_index INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    total_reward,
    success INTEGER,
    terminated INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    duration_s REAL NOT NULL,
    error TEXT,
    attempts INTEGER NOT NULL,
    causes TEXT,
    ended_at REAL NOT NULL,
    checksum BLOB NOT NULL,
    odd_observations TEXT
)"""

SCHEMA = f"""
CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE starts (
    start INTEGER PRIMARY KEY,
    started_at REAL NOT NULL,
    ended_at REAL,
    stopped TEXT,
    elapsed_s REAL,
    facts TEXT NOT NULL,
    telemetry TEXT,
    checksum BLOB NOT NULL
);
CREATE TABLE episodes {_EPISODE_TABLE};
CREATE TABLE retried {_EPISODE_TABLE.replace(" PRIMARY KEY", " NOT NULL")};
CREATE TABLE failed_attempts (
    number INTEGER PRIMARY KEY,
    plan_index INTEGER,
    attempt INTEGER NOT NULL,
    worker INTEGER,
    cause TEXT NOT NULL,
    signal INTEGER,
    exit_code INTEGER,
    stderr TEXT NOT NULL,
    failed_at REAL NOT NULL,
    checksum BLOB NOT NULL
);
CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    episodes INTEGER NOT NULL,
    starts INTEGER NOT NULL,
    failed_attempts INTEGER NOT NULL,
    checksum BLOB NOT NULL
);
INSERT INTO head VALUES (1, 0, 0, 0, zeroblob(8));
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
"""  # noqa: S608 - names of our own


def _insert(verb: str, table: str, columns: tuple[str, ...]) -> str:
    places = ", ".join("?" * len(columns))
    return f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({places})"


def _select(table: str, columns: tuple[str, ...], key: str) -> str:
    # Names are our own constants: nothing of a user is in a statement.
    return f"SELECT {', '.join(columns)} FROM {table} ORDER BY {key}"  # noqa: S608


ADD_FACT = "INSERT INTO run (name, value) VALUES (?, ?)"
ADD_EPISODE = _insert("INSERT", "episodes", (*EPISODE_COLUMNS, "checksum"))
MOST_AT_ONCE = 50
"""Episodes in one statement: SQLite took no more than 999 values in one before 3.32."""
ADD_ATTEMPT = _insert("INSERT", "failed_attempts", ("number", *ATTEMPT_COLUMNS, "checksum"))
PUT_START = _insert("REPLACE", "starts", ("start", *START_COLUMNS, "checksum"))
PUT_HEAD = "UPDATE head SET episodes = ?, starts = ?, failed_attempts = ?, checksum = ?"
SET_ASIDE = (
    "INSERT INTO retried SELECT * FROM episodes WHERE error IS NOT NULL",
    "DELETE FROM episodes WHERE error IS NOT NULL",
)

ALL_HEADS = "SELECT episodes, starts, failed_attempts, checksum FROM head"
ALL_FACTS = _select("run", ("name", "value"), "name")
ALL_EPISODES = _select("episodes", (*EPISODE_COLUMNS, "checksum"), "sequence")
ALL_RETRIED = _select("retried", (*EPISODE_COLUMNS, "checksum"), "sequence")
BRING_UP = (
    "ALTER TABLE episodes ADD COLUMN odd_observations TEXT",
    "ALTER TABLE retried ADD COLUMN odd_observations TEXT",
    f"PRAGMA user_version = {FORMAT}",
)
"""Makes a store of the first format one of this."""
FIRST_EPISODES, FIRST_RETRIED = (
    statement.replace("odd_observations", "NULL") for statement in (ALL_EPISODES, ALL_RETRIED)
)
"""The same of the first format."""
ALL_STARTS = _select("starts", ("start", *START_COLUMNS, "checksum"), "start")
ALL_ATTEMPTS = _select("failed_attempts", ("number", *ATTEMPT_COLUMNS, "checksum"), "number")

COUNT_EPISODES = """
SELECT count(*), count(error), count(success) FILTER (WHERE error IS NULL),
       coalesce(sum(success) FILTER (WHERE error IS NULL), 0), max(ended_at),
       avg(total_reward) FILTER (WHERE error IS NULL),
       count(*) FILTER (WHERE error IS NULL AND total_reward IS NULL)
FROM episodes
"""
LAST_START = "SELECT started_at, ended_at, stopped, facts FROM starts ORDER BY start DESC LIMIT 1"


def add_episodes(count: int) -> str:
    """Return the statement that adds so many episodes, whose values follow one another.

    A statement gives way to other threads of the process once, however many rows it adds, and
    getting its turn back from one that never waits takes milliseconds.
    """
    head, _, row = ADD_EPISODE.partition(" VALUES ")
    return f"{head} VALUES {', '.join([row] * count)}"
