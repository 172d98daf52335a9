"""Model-written Python, run without the power to do harm: skills and run_code, in Pydantic Monty.

Monty is an interpreter of its own (in Rust, in a worker process): there is no file, no network, no process, no import of
what is installed here, whatever the code tries. Covered: endless loops, memory, recursion, calls without end.
Not covered: what the tools that we hand in do; ch.py counts presses and validates their arguments.

The skill API is that of the released reference: inline code that reads `args`, calls `tools['press_buttons'](buttons=...)`,
`tools['get_game_state']()`, `tools['get_map_data']()` and sets `result`. Clock and random state come from `seed` alone, so
that a replay runs the same.
"""
import datetime
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pydantic_monty as monty

SECONDS, MEMORY, DEPTH, CALLS, OUTPUT = 30.0, 64 << 20, 300, 2_000, 4_000    # limits of one run; OUTPUT in characters

# subtle: heapq is written in the sandbox's own Python: a host function would sort a copy of the caller's list.
# A sorted list is a heap.
HEAPQ = '''
class _Heapq:
    def heappush(self, heap, item):
        heap.append(item)
        heap.sort()
    def heappop(self, heap):
        heap.sort()
        return heap.pop(0)
    def heapify(self, heap):
        heap.sort()
_heapq = _Heapq()
'''


@dataclass(frozen=True)
class Outcome:
    """What a run came to. error is "" on success; line is the line of the code that failed, 0 if none is known."""

    result: Any = None               # JSON-able
    stdout: str = ""
    error: str = ""
    traceback: str = ""
    line: int = 0


def plain(value: Any) -> Any:
    """A value from the sandbox as plain JSON; what JSON has no form for becomes its repr."""
    try:
        return json.loads(json.dumps(value, default=repr, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return repr(value)[:OUTPUT]


def source(code: str) -> str:
    """Code as Monty takes it: heapq imports point at ours, and a skill saved as one line with literal \\n is unfolded."""
    if "\n" not in code and "\\n" in code:
        try:
            compile(code, "skill", "exec")
        except SyntaxError:
            code = code.replace("\\n", "\n").replace("\\t", "\t")
    ours = lambda names: "; ".join(f"{n.split()[-1]} = _heapq.{n.split()[0]}" for n in names.split(","))
    return re.sub(r"^([ \t]*)(?:import heapq(?: as (\w+))?|from heapq import (.+?))[ \t]*$",
                  lambda m: m[1] + (ours(m[3]) if m[3] else f"{m[2] or 'heapq'} = _heapq"), code, flags=re.M)


class ToolRefused(Exception):
    """Raised by a tool to tell the code no (a press limit, an action that may not act); the code may catch it."""


class Sandbox:
    """A pool of interpreter processes, started at the first use and ended by `close`."""

    def __init__(self) -> None:
        self.pool: monty.Monty | None = None

    def run(self, code: str, args: dict, tools: dict[str, Callable[..., Any]], seed: int = 0,
            seconds: float = SECONDS) -> Outcome:
        """Run `code` with `args` and `tools` in a fresh session. Never raises for what the code does.

        seconds: time in the interpreter, tools not counted. What a tool raises reaches the code as an exception of the
        same name, except what must stop the whole run (KeyboardInterrupt, a model's failure): that is raised here.
        """
        if self.pool is None:
            self.pool = monty.Monty().__enter__()
        printed: list[str] = []
        fatal: list[BaseException] = []

        def guarded(tool: Callable[..., Any]) -> Callable[..., Any]:
            def call(*a: Any, **k: Any) -> Any:
                if fatal:
                    raise RuntimeError("the run is over")
                try:
                    return tool(*a, **k)
                except ToolRefused:
                    raise
                except BaseException as e:
                    fatal.append(e)
                    raise RuntimeError(f"{type(e).__name__}: {e}") from None
            return call

        host = {name: guarded(tool) for name, tool in tools.items()}
        limits = {"max_feed_duration_secs": seconds, "max_memory": MEMORY, "max_recursion_depth": DEPTH, "max_suspensions": CALLS}
        policy = {"datetime": datetime.datetime(2026, 1, 1), "random_start": {"seed": seed}, "sleep": "zero"}
        prelude = HEAPQ + "result = None\ntools = {" + ", ".join(f"{n!r}: {n}" for n in host) + "}"
        with self.pool.checkout(script_name="skill", limits=limits, os_policy=policy) as session:
            try:
                session.feed_run(prelude, external_lookup=host)
                keep = lambda _, piece: printed.append(piece) if sum(map(len, printed)) < OUTPUT else None
                session.feed_run(source(code), inputs={"args": args}, external_lookup=host, print_callback=keep)
                outcome = Outcome(plain(session.feed_run("result")), "".join(printed)[:OUTPUT])
            except monty.MontyError as e:
                trace = e.display("traceback") if isinstance(e, (monty.MontyRuntimeError, monty.MontySyntaxError)) else str(e)
                error = str(e)[:500]
                if error.startswith("TimeoutError"):     # its message and place differ from run to run; a replay must not
                    error = trace = f"TimeoutError: more than {seconds:g} seconds of computing"
                    printed.clear()
                line = int((re.findall(r"line (\d+)", trace) or [0])[-1])
                outcome = Outcome(None, "".join(printed)[:OUTPUT], error, trace[-1500:], line)
        if fatal:
            raise fatal[0]
        return outcome

    def close(self) -> None:
        if self.pool is not None:
            self.pool.__exit__(None, None, None)
            self.pool = None
