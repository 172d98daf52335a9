"""What a walk cost against a shortest path over what had been seen: the measure behind the report's table of walks.

A walk is a run_skill call with a goal cell: args x and y, or "goal" in its result. Its oracle is a breadth-first search
over the cells of that map seen so far in the run, the walk's own included. What a symbol lets through, and where a
ledge leads, is learned from all presses of the run, never from map data.

Not covered: of a walk with more than 40 presses the log holds the last 40 lines only. A person who stood in the way and
has left is no obstacle to the oracle any more, and one who has come into the way is one only from the next view on.
"""
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from env import Step
from harness import Edit
from models import Call

CELL = r"\((-?\d+), (-?\d+)\)"
MOVE = re.compile(rf"(\w+) '(.)' {CELL}(?: -> (?:(.+?) )?{CELL}| blocked)")
VIEW = re.compile(r"^ASCII Map:\n(.*?)\n\(top-left cell is x=(\d+), y=(\d+)", re.M | re.S)
BREAK = re.compile(r": (a battle begins|text|cursor on)")
WALKED = "P"                         # symbol of a cell that was stood on and never seen without the player
Cell = tuple[int, int]


@dataclass(frozen=True)
class Move:
    place: str
    name: str                        # the button or direction
    symbol: str                      # what lay ahead
    start: Cell
    end: Cell | None                 # None: blocked
    to: str                          # the map that it ended on

    def size(self) -> int:
        """Cells moved on the same map; 0 when it led to another one."""
        if not self.end or self.to != self.place:
            return 0
        return abs(self.end[0] - self.start[0]) + abs(self.end[1] - self.start[1])


def spot(place: str) -> tuple[str, Cell]:
    name, x, y = re.fullmatch(r"(.*) \((-?\w+), (-?\w+)\)", place).groups()
    return name, (int(x), int(y)) if (x + y).replace("-", "").isdigit() else (0, 0)


def moves(step: Step) -> Iterator[tuple[str, list[Move]]]:
    """For each result: the map on which it began ("" when that can't be told) and its moves."""
    place, here = spot(step.place)
    for result in step.results:
        began, found = place, []
        for name, symbol, x, y, to, *end in (m.groups() for line in result.get("trace", []) if (m := MOVE.match(line))):
            start, new = (int(x), int(y)), (int(end[0]), int(end[1])) if end[0] else None
            if start != here:        # carried off in between (a lost battle, a script, lines cut): to which map?
                place = ""
            if not place:
                break
            found.append(Move(place, name, symbol, start, new, to or place))
            place, here = to or place, new or start
        yield began, found


class Atlas:
    """What had been seen and walked up to a moment; what symbols let through, from the whole run."""

    def __init__(self, steps: list[Step]):
        self.cells, self.walked, self.stuck = defaultdict(dict), defaultdict(set), set()
        self.ways, self.jumps, tally = {}, defaultdict(set), Counter()
        for m in (m for step in steps for _, found in moves(step) for m in found):
            tally[m.symbol] += (m.size() == 1) - (m.end is None)
            if m.size() == 1:
                self.ways[m.name] = (m.end[0] - m.start[0], m.end[1] - m.start[1])
            elif m.size() == 2:
                self.jumps[m.symbol].add(m.name)
        # subtle: a walking person steps away now and then; a symbol that blocks more often than not is not walkable
        self.open = {s for s, n in tally.items() if n > 0 and s not in self.jumps} | {WALKED}

    def look(self, step: Step) -> None:
        place, here = spot(step.place)
        if view := VIEW.search(step.obs or ""):
            for y, row in enumerate(view[1].split("\n"), int(view[3])):
                seen = {(x, y): s for x, s in enumerate(row, int(view[2])) if s != " " and (x, y) != here}
                self.cells[place].update(seen)
            self.cells[place].setdefault(here, WALKED)

    def walk(self, move: Move) -> None:
        self.cells[move.place].setdefault(move.start, WALKED)
        if move.end is None:
            self.stuck.add((move.place, move.start, move.name))
        elif size := move.size():
            self.walked[move.place, move.start].add(move.end)
            cells = self.cells[move.place]
            cells[move.end] = move.symbol if size == 1 else cells.get(move.end, WALKED)

    def near(self, place: str, cell: Cell) -> Iterator[Cell]:
        yield from self.walked[place, cell]
        for name, (dx, dy) in self.ways.items():
            one, two = (cell[0] + dx, cell[1] + dy), (cell[0] + 2 * dx, cell[1] + 2 * dy)
            to = two if name in self.jumps.get(self.cells[place].get(one), ()) else one
            if self.cells[place].get(to) in self.open and (place, cell, name) not in self.stuck:
                yield to

    def shortest(self, place: str, start: Cell, goal: Cell) -> int | None:
        far, queue = {start: 0}, deque([start])
        while queue and goal not in far:
            cell = queue.popleft()
            for to in self.near(place, cell):
                if to not in far:
                    far[to] = far[cell] + 1
                    queue.append(to)
        return far.get(goal)


def goal_of(call: Call, result: dict) -> Cell | None:
    args, said = call.args.get("args") or {}, result.get("result")
    goal = said.get("goal") if isinstance(said, dict) else None
    try:
        return (int(goal[0]), int(goal[1])) if goal else (int(args["x"]), int(args["y"]))
    except (KeyError, ValueError, TypeError, IndexError):
        return None


def judge(atlas: Atlas, place: str, here: Cell, found: list[Move], goal: Cell, result: dict) -> tuple[str, int]:
    """(arrived, failed or left out; the shortest path of one that arrived)."""
    said = result["result"] if isinstance(result.get("result"), dict) else {}
    trace = result.get("trace", [])
    start = tuple(said.get("from") or (found[0].start if found else here))
    at = tuple(said.get("at") or (found[-1].end or found[-1].start if found else here))
    left = any(m and m[5] for m in map(MOVE.match, trace))
    if left or any(map(BREAK.search, trace)) or said.get("in", "overworld") != "overworld":
        return "left out", 0
    if at != goal:
        return "failed", 0
    best = atlas.shortest(place, start, goal)
    return ("left out", 0) if best is None else ("arrived", best)


def code_version(edits: list[Edit], id: str, version: int) -> int:
    """H's version at which the code of a skill last changed, as of `version`."""
    changed = [e.version for e in edits if e.part == "skills" and e.id == id and "code" in (e.after or {})]
    return max((v for v in changed if v <= version), default=changed[0] if changed else 0)


def measure(steps: list[Step], edits: list[Edit]) -> dict[tuple[str, int], Counter]:
    """(skill, version of its code) -> walks, arrived, failed, left out, presses, shortest, wasted."""
    atlas, out = Atlas(steps), defaultdict(Counter)
    for step in steps:
        atlas.look(step)
        for call, result, (place, found) in zip(step.reply.calls, step.results, moves(step)):
            for move in found:
                atlas.walk(move)
            skill = call.name == "run_skill" and isinstance(call.args, dict) and "presses" in result
            goal = goal_of(call, result) if skill else None
            if goal is None:
                continue
            how, best = judge(atlas, place, spot(step.place)[1], found, goal, result)
            spent = {"arrived": "presses", "failed": "wasted"}.get(how, "other")
            id = str(call.args.get("skill_id"))
            count = {"walks": 1, how: 1, "shortest": best, spent: result["presses"]}
            out[id, code_version(edits, id, step.version)].update(count)
    return out
