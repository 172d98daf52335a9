"""What the files of runs say, as plain-text tables: milestones, refinements, walks, skills, sub-agents, memory.

    python -m tools.report RUN...      a second or two a run; no key, no ROM, no cost: it only reads the run's files

A walk is a run_skill call with a goal cell: args x and y, or "goal" in its result. Its deficit is presses / shortest - 1,
over the walks that arrived on the same map; the presses of failed ones are "wasted" ("with failed" adds them to the
deficit); those that changed the map, or that a battle or a text broke off, are "left out". The shortest path is a
breadth-first search over the cells of that map seen so far in the run, the walk's own included; what a symbol lets
through, and where a ledge leads, is learned from all presses of the run, never from map data. Not covered: of a walk with
more than 40 presses the log holds the last 40 lines only; people who have come or gone since the last view.
Presses at a milestone are those after the step that reached it. An entry is inherited when the run started with it.
"""
import argparse
import re
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ch import succeeded
from env import Step
from harness import Edit, fold, read_edits
from models import Call
from runlog import BadInput, command, read_rows
from signatures import calls

CELL = r"\((-?\d+), (-?\d+)\)"
MOVE = re.compile(rf"(\w+) '(.)' {CELL}(?: -> (?:(.+?) )?{CELL}| blocked)")
VIEW = re.compile(r"^ASCII Map:\n(.*?)\n\(top-left cell is x=(\d+), y=(\d+)", re.M | re.S)
BREAK = re.compile(r": (a battle begins|text|cursor on)")
WALKED = "P"                         # symbol of a cell that was stood on and never seen without the player
Cell = tuple[int, int]


@dataclass(frozen=True)
class Log:
    """A run's files. Steps by turn: a sub-agent's turns are written before the step that called it."""

    steps: list[Step]
    edits: list[Edit]
    refinements: list[dict]


def read_log(folder: Path) -> Log:
    if missing := [n for n in ("settings.json", "trajectory.jsonl", "edits.jsonl") if not (folder / n).is_file()]:
        raise BadInput(f"{folder} is no run: it holds no {missing[0]}; give the folder of a run")
    try:
        steps = sorted(map(Step.from_json, read_rows(folder / "trajectory.jsonl")), key=lambda s: s.t)
        return Log(steps, read_edits(folder / "edits.jsonl"), read_rows(folder / "refinements.jsonl"))
    except (TypeError, KeyError, AttributeError) as e:
        raise BadInput(f"{folder} is no run of this version: a row of its logs does not fit ({e})") from None


def columns(cells: list[list[str]]) -> str:
    """Columns as wide as their widest value; the last one is left as it is."""
    wide = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join("  ".join([v.ljust(w) for v, w in zip(row, wide[:-1])] + [row[-1]]).rstrip() for row in cells)


def table(title: str, head: str, rows: Iterable[Iterable]) -> str:
    cells = [["", *map(str, row)] for row in (head.split("|"), *rows)]
    return f"{title}\n{columns(cells)}" if cells[1:] else f"{title}: none"


def milestones(log: Log) -> str:
    at: dict[str, Step] = {}
    # subtle: a sub-agent's turn and the step that called it both name a milestone; the later one, the turn, is exact
    for step in reversed(log.steps):
        at |= {m: step for m in step.milestones if m not in at}
    return table("Milestones", "step|presses|milestone", ([s.t, s.presses, m] for m, s in reversed(at.items())))


def refinements(log: Log) -> str:
    sign = {"create": "+", "update": "~", "delete": "-"}             # subtle: a guarded candidate is many edits of one version
    made = lambda p: " ".join(sign[e.op] + (e.id or e.part) for e in log.edits if e.version in p["edits"] and e.part == p["part"])
    did = lambda p: f"{p['status']}: {p['part']}" if p["status"] in ("failed", "refused") else made(p)
    rows = ([r["step"], r["cause"], ", ".join(dict.fromkeys(s["name"] for s in r["signatures"])) or "-",
             " ".join(filter(None, map(did, r["passes"]))) or "nothing"] for r in log.refinements)
    return table("Refinements (+ created, ~ updated, - deleted)", "step|cause|signatures|changed", rows)


# -- walks

class Move(NamedTuple):
    place: str
    name: str                        # the button or direction
    symbol: str                      # what lay ahead
    start: Cell
    end: Cell | None                 # None: blocked
    to: str                          # the map that it ended on

    def size(self) -> int:
        """Cells moved on the same map; 0 when it was blocked or led to another one."""
        return sum(abs(b - a) for a, b in zip(self.start, self.end)) if self.end and self.to == self.place else 0


def spot(place: str) -> tuple[str, Cell]:
    """(map, cell) of a step's place; where there is no map yet, its cell is no number."""
    found = re.fullmatch(rf"(.*) {CELL}", place)
    return (found[1], (int(found[2]), int(found[3]))) if found else (place.rpartition(" (")[0], (0, 0))


def moves(step: Step) -> Iterator[tuple[str, list[Move]]]:
    """For each result: the map on which it began ("" when that can't be told) and its moves."""
    place, here = spot(step.place)
    for result in step.results:
        began, found = place, []
        for name, symbol, x, y, to, *end in (m.groups() for line in result.get("trace", []) if (m := MOVE.match(line))):
            start, new = (int(x), int(y)), (int(end[0]), int(end[1])) if end[0] else None
            if not place or start != here:       # carried off in between (a lost battle, a script, lines cut): to which map?
                place = ""
                break
            found.append(Move(place, name, symbol, start, new, to or place))
            place, here = to or place, new or start
        yield began, found


class Atlas:
    """What had been seen and walked up to a moment; what symbols let through, from the whole run."""

    def __init__(self, steps: list[Step]):
        self.cells, self.walked, self.stuck = defaultdict(dict), defaultdict(set), set()
        self.ways, self.jumps, tally = {}, set(), Counter()
        for m in (m for step in steps for _, found in moves(step) for m in found):
            tally[m.symbol] += (m.size() == 1) - (m.end is None)
            if m.size() == 1:
                self.ways[m.name] = (m.end[0] - m.start[0], m.end[1] - m.start[1])
            elif m.size() == 2:
                self.jumps.add((m.symbol, m.name))
        # subtle: a walking person steps away now and then; a symbol that blocks more often than not is not walkable
        self.open = {s for s, n in tally.items() if n > 0} - {s for s, _ in self.jumps} | {WALKED}

    def look(self, step: Step) -> None:
        place, here = spot(step.place)
        if view := VIEW.search(step.obs or ""):
            seen = {(x, y): s for y, row in enumerate(view[1].split("\n"), int(view[3])) for x, s in enumerate(row, int(view[2]))}
            self.cells[place].update({cell: s for cell, s in seen.items() if s != " " and cell != here})
            self.cells[place].setdefault(here, WALKED)

    def walk(self, move: Move) -> None:
        cells = self.cells[move.place]
        cells.setdefault(move.start, WALKED)
        if move.end is None:
            self.stuck.add((move.place, move.start, move.name))
        elif size := move.size():
            self.walked[move.place, move.start].add(move.end)
            cells[move.end] = move.symbol if size == 1 else cells.get(move.end, WALKED)

    def near(self, place: str, cell: Cell) -> Iterator[Cell]:
        yield from self.walked[place, cell]
        cells = self.cells[place]
        for name, (dx, dy) in self.ways.items():
            one, two = (cell[0] + dx, cell[1] + dy), (cell[0] + 2 * dx, cell[1] + 2 * dy)
            to = two if (cells.get(one), name) in self.jumps else one
            if cells.get(to) in self.open and (place, cell, name) not in self.stuck:
                yield to

    def shortest(self, place: str, start: Cell, goal: Cell) -> int | None:
        far, queue = {start: 0}, deque([start])
        while queue and goal not in far:
            cell = queue.popleft()
            fresh = [to for to in self.near(place, cell) if to not in far]
            far |= dict.fromkeys(fresh, far[cell] + 1)
            queue += fresh
        return far.get(goal)


def goal_of(call: Call, result: dict) -> Cell | None:
    args, said = call.args.get("args") or {}, result.get("result")
    try:
        goal = isinstance(said, dict) and said.get("goal") or (args["x"], args["y"])
        return int(goal[0]), int(goal[1])
    except (KeyError, ValueError, TypeError, IndexError):
        return None


def judge(atlas: Atlas, place: str, here: Cell, found: list[Move], goal: Cell, result: dict) -> tuple[str, int]:
    """(arrived, failed or left out; the shortest path of one that arrived)."""
    said, trace = result["result"] if isinstance(result.get("result"), dict) else {}, result.get("trace", [])
    start = tuple(said.get("from") or (found[0].start if found else here))
    at = tuple(said.get("at") or (found[-1].end or found[-1].start if found else here))
    left = any(m and m[5] for m in map(MOVE.match, trace))
    if left or any(map(BREAK.search, trace)) or said.get("in", "overworld") != "overworld":
        return "left out", 0
    best = atlas.shortest(place, start, goal)
    return ("failed", 0) if at != goal else ("left out", 0) if best is None else ("arrived", best)


def measure(log: Log) -> dict[tuple[str, int], Counter]:
    """(skill, H's version at which its code last changed) -> walks, arrived, failed, left out, presses, shortest, wasted."""
    atlas, out, since = Atlas(log.steps), defaultdict(Counter), defaultdict(list)
    for e in log.edits:
        if e.part == "skills" and "code" in (e.after or {}):
            since[e.id].append(e.version)
    for step in log.steps:
        atlas.look(step)
        for call, result, (place, found) in zip(step.reply.calls, step.results, moves(step)):
            for move in found:
                atlas.walk(move)
            skill = call.name == "run_skill" and isinstance(call.args, dict) and "presses" in result
            if skill and (goal := goal_of(call, result)):
                how, best = judge(atlas, place, spot(step.place)[1], found, goal, result)
                spent = {"arrived": "presses", "failed": "wasted"}.get(how, "other")
                id = str(call.args.get("skill_id"))
                version = max((v for v in since[id] if v <= step.version), default=min(since[id], default=0))
                out[id, version].update({"walks": 1, how: 1, "shortest": best, spent: result["presses"]})
    return out


def walks(log: Log) -> str:
    since = {e.version: e.step for e in log.edits}
    deficit = lambda n, extra=0: f"{100 * ((n['presses'] + extra) / n['shortest'] - 1):.1f} %" if n["shortest"] else "-"
    rows = ([id, v, since.get(v, "-"), n["walks"], n["arrived"], n["presses"], n["shortest"], deficit(n), n["failed"],
             n["wasted"], deficit(n, n["wasted"]), n["left out"]] for (id, v), n in sorted(measure(log).items()))
    head = "skill|version|step|walks|arrived|presses|shortest|deficit|failed|wasted|with failed|left out"
    return table("Walks by version of the skill's code", head, rows)


# -- what became of the entries of H

def skills(log: Log) -> str:
    mine, ran = [e for e in log.edits if e.part == "skills"], list(calls(log.steps, "run_skill"))
    ran = [(c.args.get("skill_id"), succeeded(r)) for _, c, r in ran if isinstance(c.args, dict)]
    first = {e.id: e for e in reversed(mine) if e.op == "create"}
    called, good = Counter(id for id, _ in ran), Counter(id for id, ok in ran if ok)
    fixed = Counter(e.id for e in mine if e.op == "update" and "code" in e.after)
    gone = {e.id: e.step for e in mine if e.op == "delete"}
    rows = [[id, e.by, e.step, called[id], good[id], fixed[id], gone.get(id, "-"), e.after["name"]]
            for id, e in sorted(first.items())]
    some = lambda count: sum(id in count for id in first)
    funnel = (f"  {len(first)} created, {some(called)} called, {some(good)} succeeded, {some(fixed)} repaired, "
              f"{len(first) - some(called)} never called, {some(gone)} deleted")
    return table("Skills", "skill|by|step|calls|succeeded|repaired|deleted at|name", rows) + ("\n" + funnel if first else "")


def subagents(log: Log) -> str:
    out: dict[str, Counter] = defaultdict(Counter)
    for _, call, r in calls(log.steps, "execute_custom_subagent"):
        how = "failed" if not r.get("success") else "cap" if r["hit_safety_cap"] else "returned"
        id = str(isinstance(call.args, dict) and call.args.get("subagent_id") or "inline")
        out[id].update({"calls": 1, "turns": r.get("turns_taken", 0), how: 1})
    keys = ("calls", "turns", "returned", "cap", "failed")
    rows = ([id, *(n[k] for k in keys)] for id, n in sorted(out.items()))
    return table("Sub-agents", "sub-agent|" + "|".join(keys), rows)


def memory(log: Log) -> str:
    ops, kept = Counter(e.op for e in log.edits if e.part == "memory"), len(fold(log.edits).memory)
    found = [x for _, c, r in calls(log.steps, "process_memory") if isinstance(c.args, dict) and c.args.get("action") == "read"
             for x in r.get("results", [])]
    one, lists = sum("content" in x for x in found), sum(not {"content", "error"} & set(x) for x in found)
    return (f"Memory: {kept} entries ({ops['create']} created, {ops['update']} updated, {ops['delete']} deleted), "
            f"{one} read, the list read {lists} times")


def inherited(log: Log) -> str:
    ids = {e.id for e in log.edits if e.by == "import" and e.op == "create"}
    to = [c.args.get("skill_id") or c.args.get("subagent_id") for _, c, _ in calls(log.steps)
          if c.name in ("run_skill", "execute_custom_subagent") and isinstance(c.args, dict)]
    n = sum(id in ids for id in to)
    return f"Calls that go to inherited entries: {n} of {len(to)}" + (f" ({100 * n / len(to):.0f} %)" if to else "")


def report(folder: Path) -> str:
    log = read_log(folder)
    presses, version = max((s.presses for s in log.steps), default=0), log.edits[-1].version if log.edits else 0
    head = f"== {folder}: {len(log.steps)} steps, {presses} presses, H version {version}"
    parts = (milestones, refinements, walks, skills, subagents, memory, inherited)
    return "\n\n".join([head, *(part(log) for part in parts)])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="report.py", description=__doc__)
    parser.add_argument("run", nargs="+", type=Path, help="a run's folder")
    return command(parser, argv, lambda args: print("\n\n".join([report(folder) for folder in args.run])))


if __name__ == "__main__":
    sys.exit(main())
