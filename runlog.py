"""A run's files: append-only logs, the reply log that makes a kill harmless, the checkpoint, the lock.

runs/<name>/: settings.json, replies.jsonl (every model reply, before it is used), trajectory.jsonl (a row a step),
edits.jsonl (a row a change of H), refinements.jsonl, harness.json (H for people), checkpoint, frames/,
model.log (for people: retries, refusals, odd replies).

A checkpoint holds the environment's state and how long each log was. To go on, the logs are cut back to it and the loop
runs as ever, except that logged replies answer first: the rows are written again, the same, and nothing is paid twice.
"""
import argparse
import contextlib
import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from models import Model, ModelError, Reply, Usage, digest


class BadInput(Exception):
    """A user's mistake. Its message says what was wrong, where, and what to do; it is printed, and the exit status is 2."""


class Diverged(BadInput):
    """The log's next reply answers another prompt than the one that was built now."""


class LogEnd(Exception):
    """--replay has used every reply of the log."""


class BudgetEnd(Exception):
    """The next call could pass --dollars."""


def command(parser: argparse.ArgumentParser, argv: list[str] | None, body: Callable[[argparse.Namespace], int | None]) -> int:
    """A command line: parse and do. Bad input, in the flags or later, is one line and exit status 2."""
    def fail(message: object) -> int:
        print(f"{parser.prog}: {message}", file=sys.stderr)
        return 2

    parser.error, parser.formatter_class = lambda message: sys.exit(fail(message)), argparse.RawDescriptionHelpFormatter
    try:
        return body(parser.parse_intermixed_args(argv)) or 0
    except (BadInput, ModelError, OSError) as e:
        return fail(f"{e.filename}: {e.strerror}" if getattr(e, "filename", None) else e)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file so that a kill at any moment leaves the old or the new one, never half of either."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, path)


def append_row(path: Path, row: dict) -> None:
    """Append one JSON line and wait until it is on the disk. A line that a kill cut off is taken out first."""
    with open(path, "ab+") as out:
        size = out.tell()
        if size and os.pread(out.fileno(), 1, size - 1) != b"\n":
            out.truncate(path.read_bytes().rfind(b"\n") + 1)
        out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())


def write_rows(path: Path, rows: list[dict]) -> None:
    """A whole JSONL file at once."""
    write_atomic(path, b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))


def read_rows(path: Path, limit: int | None = None) -> list[dict]:
    """Rows of a JSONL log, of its first `limit` bytes. A last line that a kill cut off is dropped; raises BadInput
    for a damaged line in the middle, with its number."""
    data, rows = path.read_bytes()[:limit] if path.exists() else b"", []
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError:
            if line.endswith(b"\n"):
                raise BadInput(f"{path}, line {number} is damaged: it is not JSON; restore it, or remove that line") from None
    return rows


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process a run: a second one would write into the same logs."""
    try:
        import fcntl
    except ImportError:                      # Windows has no flock; there the user must take care
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BadInput(f"{folder} is in use by another process; wait for it, or stop it first") from None
    finally:
        os.close(handle)


class Recorder:
    """`ask(role, messages, tools)`: a reply is on the disk before it is used, and logged replies are never asked for again.

    That makes a kill at any moment harmless: the run goes on from its last checkpoint, re-executing what came after it
    with the logged replies, through the ordinary loop.
    """

    def __init__(self, path: Path, model: Callable[[str], Model] | None, skip: int = 0, budget: float = 0.0):
        """model: role -> the model that plays it; None: answer from the log and from nothing else. budget: dollars, 0: none."""
        self.path, self.model, self.count, self.budget = path, model, skip, budget
        self.pending = deque(read_rows(path)[skip:])
        self.edited = False                  # a person has edited H since the last reply: logged replies may no longer fit
        self.totals: dict[str, Usage] = {}
        self.waiting = self.stopped = False  # a model is thinking; Ctrl-C was pressed

    def stop(self, *_: object) -> None:
        """The handler of Ctrl-C: raised at once while a model is thinking or when it comes again, else at the next `ask`.

        Raised inside the emulator it would be lost: PyBoy's compiled code drops exceptions.
        """
        if self.waiting or self.stopped:
            raise KeyboardInterrupt
        self.stopped = True

    def ask(self, role: str, messages: list, tools: list) -> Reply:
        if self.stopped:
            raise KeyboardInterrupt
        sha = digest(messages, tools)
        if self.pending and self.pending[0]["sha"] != sha and self.edited and self.model:
            self.drop()
        if self.pending:
            row = self.pending.popleft()
            if row["sha"] != sha:
                which = f"reply {self.count + 1} of {self.path} ({row['role']})"
                raise Diverged(f"{which} answers another prompt than the one that is built now")
            reply = Reply.from_json(row["reply"])
        elif self.model is None:
            raise LogEnd
        else:
            start, model = time.monotonic(), self.model(role)
            most = getattr(model, "estimate", lambda messages, tools: None)(messages, tools)
            if self.budget and most and (self.total().dollars or 0) + most > self.budget:
                raise BudgetEnd
            self.waiting = True
            try:
                reply = model(messages, tools)
            finally:
                self.waiting = False
            seconds = round(time.monotonic() - start, 3)
            append_row(self.path, {"role": role, "sha": sha, "seconds": seconds, "reply": reply.to_json()})
        self.count += 1
        self.totals[role] = self.totals.get(role, Usage()) + reply.usage
        return reply

    def total(self) -> Usage:
        return sum(self.totals.values(), Usage())

    def bill(self, share: float | None) -> list[str]:
        """Tokens and dollars, a line a role, and the cached share; nothing for a model that uses none."""
        rows = {**self.totals, "all": self.total()}
        if not rows["all"].input:
            return []
        head = f"{'tokens':16s} {'input':>10s} {'cached':>10s} {'written':>8s} {'output':>8s} {'reasoning':>9s}"
        lines = [f"{head}  list price; cached at 25 %"]
        lines += [f"{role:16s} {u.input:10d} {u.cached:10d} {u.written:8d} {u.output:8d} {u.reasoning:9d}  {u.money(4)}; "
                  + ("unknown" if u.paper is None else f"${u.paper:.4f}") for role, u in rows.items()]
        told = "the server reports none" if share is None else f"{share:.0%}" + (" (goal: 70 % and more)" if share < 0.7 else "")
        return lines + [f"cached share of the agent's input after 3 turns: {told}"]

    def drop(self) -> None:
        """Logged replies that a person's edit has made void: take them out of the log, so that a replay is exact."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        write_atomic(self.path, b"".join(lines[:self.count]))
        self.pending.clear()


def append_line(path: Path, text: str) -> None:
    """A line for people, with the time. Not synced: nothing is rebuilt from it."""
    with open(path, "a", encoding="utf-8", errors="replace") as out:
        out.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def cached_share(usages: list[Usage]) -> float | None:
    """Cached input / input of an agent's turns, without the first three; None: too few turns, or a server that does not say."""
    total = sum(usages[3:], Usage())
    return total.cached / total.input if total.input and any(u.cached for u in usages) else None


def write_checkpoint(path: Path, head: dict, state: bytes) -> None:
    """One file, replaced as a whole: its hash, a JSON line, the environment's state."""
    body = json.dumps(head).encode() + b"\n" + state
    write_atomic(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def read_checkpoint(path: Path) -> tuple[dict, bytes]:
    """(head, state); ({}, b"") where there is none: then all of the log is re-executed. Raises BadInput."""
    if not path.exists():
        return {}, b""
    sha, _, body = path.read_bytes().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != sha:
        raise BadInput(f"{path} is damaged; delete it and --resume again: the run is rebuilt from its log, nothing is paid twice")
    head, _, state = body.partition(b"\n")
    return json.loads(head), state
