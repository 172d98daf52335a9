"""The offline model: both roles, by rules. It shows the mechanism and proves nothing about models.

It reads only the messages it is sent, as any model would, and has no state of its own: the same messages and seed give the
same reply. What it does with H follows from what H says: with a walking skill in the overview it calls it, without one it
presses; what memory lists it does not look up again; with a dialogue sub-agent it hands texts over.

As the Refiner it knows no game. It learns from the window which symbols let a step through, and in which direction, and
writes them as the table of a walking skill; it writes the texts that came up to memory. What it can't do: menus, battles.
"""
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from models import Call, Message, ModelError, Reply, Usage

WAYS = {(0, -1): ("UP", "north"), (0, 1): ("DOWN", "south"), (-1, 0): ("LEFT", "west"), (1, 0): ("RIGHT", "east")}
DIRECTION = {name: way for way, names in WAYS.items() for name in names}
TOUCH = ("sign", "person", "ball", "boulder")            # things to face and interact with; other marked things are walked onto
PLAIN = ("you", "floor", "wall", "tall grass", "water", "counter", "small tree")
MOVE = re.compile(r"(\w+) '(.)' \((\d+), (\d+)\) (?:-> (?:(\w+) )?\((\d+), (\d+)\)|(blocked))")
TALK = re.compile(r"\w+ at '(.)' \((-?\d+), (-?\d+)\): text: (.*)")
RULES = {                                                # what the refiner adds to the policy for a signature
    "blocked_moves": "When a move was blocked, do not press the same direction again; look at the symbol in front of you.",
    "navigation_loop": "Do not walk back to where you have been; prefer cells of the map that are new.",
    "repeated_dialogue": "When a text repeats, leave: press B, then walk away.",
    "unexplored_exits": "Take doors that you have not taken yet.",
    "tool_errors": "Read the error of a failed call before the next one.",
    "repeated_failing_call": "Never send a call again that has failed twice with the same arguments.",
    "stall": "When nothing changes, do something of another kind.",
}
WALKER = '''# Walk to args x, y by the shortest way over the cells that let a step through. Learned from the trajectory.
OPEN = {table}
MOVES = {moves}
goal = (int(args['x']), int(args['y']))
def look():
    data = tools['get_map_data']()
    pos = tools['get_game_state']()['player_position']
    return data['grid'], (int(pos['x']), int(pos['y']))
def path(grid, start):
    queue, came = [start], {{start: None}}
    for cell in queue:
        if cell == goal:
            break
        for name, (dx, dy) in MOVES.items():
            x, y = cell[0] + dx, cell[1] + dy
            if 0 <= y < len(grid) and 0 <= x < len(grid[y]) and (x, y) not in came and name in OPEN.get(grid[y][x], []):
                came[(x, y)] = (cell, name)
                queue.append((x, y))
    way, cell = [], goal
    while came.get(cell):
        cell, name = came[cell]
        way.append(name)
    return way[::-1]
grid, start = look()
here, blocked, where = start, 0, tools['get_game_state']()['location']
while here != goal and blocked < 3:
    way = path(grid, here)
    if not way:
        break
    {act}
    grid, now = look()
    if tools['get_game_state']()['location'] != where or tools['get_game_state']()['context'] != 'overworld':
        break
    blocked = blocked + 1 if now == here else 0
    here = now
result = {{'success': here == goal or tools['get_game_state']()['location'] != where, 'from': list(start), 'at': list(here), 'goal': list(goal)}}
'''


@dataclass
class View:
    """What the last observation says, and what the context still holds of the way here."""

    state: str = ""
    place: str = ""
    pos: tuple[int, int] = (0, 0)
    facing: str = ""
    grid: dict[tuple[int, int], str] = field(default_factory=dict)
    legend: dict[str, str] = field(default_factory=dict)
    visits: Counter = field(default_factory=Counter)      # (place, x, y) -> how often
    blocked: set = field(default_factory=set)             # (place, x, y, direction)
    walls: set = field(default_factory=set)               # symbols that blocked and never let a step through
    done: set = field(default_factory=set)                # (place, x, y) of things used in this context
    known: set = field(default_factory=set)               # (place, x, y) of things that memory lists: looked at last
    leads: dict = field(default_factory=dict)             # (place, x, y) of a door -> the place behind it
    failed: Counter = field(default_factory=Counter)      # (place, x, y) -> how often a skill did not get there


def content(message: Message) -> str:
    body = message.get("content") or ""
    return body if isinstance(body, str) else "\n".join(p.get("text", "") for p in body)


def read_observation(text: str, view: View) -> None:
    found = lambda pattern, default="": (re.search(pattern, text, re.M) or [0, default])[1]
    view.state, view.place = found(r"^Game State: (\w+)"), found(r"^Location: (.+)$", "room")
    if at := re.search(r"^Position: x=(\d+), y=(\d+)(?:, facing (\w+))?", text, re.M):
        view.pos, view.facing = (int(at[1]), int(at[2])), at[3] or ""
    if drawn := re.search(r"^ASCII Map:\n(.*?)\n\(top-left cell is x=(\d+), y=(\d+); ([^\n]*)\)$", text, re.M | re.S):
        left, top = int(drawn[2]), int(drawn[3])
        view.grid = {(left + x, top + y): c for y, row in enumerate(drawn[1].split("\n")) for x, c in enumerate(row)}
        items = [item for item in re.split(r"[,;] ", drawn[4]) if item[1:2] == " "]
        view.legend = {item[0]: item[2:].split(":")[0] for item in items}


def read_context(messages: list[Message]) -> View:
    """Fold the conversation: each observation is a visit, each line of feedback tells what a step met."""
    view, open_symbols, shut = View(), set(), set()
    for m in messages:
        text = content(m)
        if m["role"] == "user" and "Game State:" in text:
            for place, x, y, door in re.findall(r"^- (?:\S*/)?\w+: (.+?) \((\d+), (\d+)\): (?:leads to (\w+))?", text, re.M):
                view.known.add((place, int(x), int(y)))                                                  # memory titles
                if door:
                    view.leads[(place, int(x), int(y))] = door
            read_observation(text, view)
            view.visits[(view.place, *view.pos)] += 1
        elif m["role"] == "tool":
            for name, symbol, x, y, place, to_x, _, stuck in MOVE.findall(text):
                view.visits[(view.place, int(x), int(y))] += 1
                (shut if stuck else open_symbols).add(symbol)
                if stuck:
                    view.blocked.add((view.place, int(x), int(y), name))
                if place and name in DIRECTION:
                    dx, dy = DIRECTION[name]
                    view.done.add((view.place, int(x) + dx, int(y) + dy))
                    view.leads[(view.place, int(x) + dx, int(y) + dy)] = place
            for _, x, y, _ in TALK.findall(text):
                view.done.add((view.place, int(x), int(y)))
            if goal := re.search(r'"success": false, "from": .*?"goal": \[(\d+), (\d+)\]', text):
                view.failed[(view.place, int(goal[1]), int(goal[2]))] += 1
    view.walls = shut - open_symbols
    return view


class Scripted:
    def __init__(self, seed: int = 0):
        self.seed = seed

    def __call__(self, messages: list[Message], tools: list[dict]) -> Reply:
        first = content(messages[0])
        if part := re.match(r"You refine the harness.*?you edit the (\w+)", first, re.S):
            # A real model would go on from the error; this one has only the one answer.
            return Reply(json.dumps(refine(part[1], first)), usage=Usage(dollars=0.0))
        if first.startswith("You read the trajectory"):
            return Reply("\n".join(re.findall(r"text: ([^\"]+)", first)[-5:]) or "no text came up in these steps", usage=Usage(dollars=0.0))
        if not tools or not first.startswith(("You play a game", "You are the sub-agent")):
            raise ModelError(f"the scripted model has no rule for this prompt: {first[:80]!r}; use --model with a real one")
        text, name, args = self.act(messages, {t["function"]["name"]: t["function"]["parameters"] for t in tools}, first)
        return Reply(text, [Call(f"c{len(messages):08d}", name, args)], Usage(dollars=0.0))

    # -- the agent

    def act(self, messages: list[Message], tools: dict[str, dict], system: str) -> tuple[str, str, dict]:
        """One decision: (why, tool, arguments)."""
        view, overview = read_context(messages), content(next(m for m in reversed(messages) if "Game State:" in content(m)))
        press = Presser(tools)
        if "return_control" in tools and view.state != "dialogue":
            return "the text is closed", "return_control", {"reasoning": f"done at {view.place} {view.pos}"}
        if view.state == "dialogue":
            helper = re.search(r"^- (?:\S*/)?(\w+): dialogue", overview, re.M)
            if helper and "execute_custom_subagent" in tools:
                return "a text: the dialogue helper reads it", "execute_custom_subagent", {"subagent_id": helper[1], "task": "read the text to its end", "reasoning": "text on screen"}
            return "read on", *press(["A"], "read the text")
        if not view.grid:
            return "I have no rule for this screen; I press B", *press(["B"], "no rule for this screen")
        return self.walk(view, overview, tools, press)

    def walk(self, view: View, overview: str, tools: dict[str, dict], press: "Presser") -> tuple[str, str, dict]:
        rng = random.Random(f"{self.seed} {sum(view.visits.values())} {view.place} {view.pos}")
        x, y = view.pos
        far = lambda c: abs(c[0] - x) + abs(c[1] - y)
        kind = lambda c: view.legend.get(view.grid[c], "wall")
        things = sorted((c for c in view.grid if kind(c) not in PLAIN and not kind(c).startswith("ledge") and (view.place, *c) not in view.done), key=lambda c: ((view.place, *c) in view.known, far(c), c))
        target = things[0] if things else self.exit(view, far)
        if target and kind(target) in TOUCH and far(target) == 1:
            turn = press.name((target[0] - x, target[1] - y))
            return f"use the {kind(target)} at {target}", *press([turn, "A"], f"face it and interact with {view.grid[target]}")
        skill = re.search(r"^- (?:\S*/)?(\w+): walk", overview, re.M)
        if skill and "run_skill" in tools:
            goals = [target] if target and kind(target) not in TOUCH else \
                [(target[0] + dx, target[1] + dy) for dx, dy in WAYS if view.legend.get(view.grid.get((target[0] + dx, target[1] + dy), "#")) == "floor"] if target else []
            fresh = sorted((c for c in view.grid if kind(c) == "floor" and far(c) > 2), key=lambda c: (view.visits[(view.place, *c)], -far(c), rng.random()))
            for goal in sorted(goals, key=far) + fresh[:8]:
                if view.failed[(view.place, *goal)] < 1:
                    return f"walk to {goal}", "run_skill", {"skill_id": skill[1], "args": {"x": goal[0], "y": goal[1]}, "reasoning": f"towards {target or 'new ground'}"}
        return self.wander(view, target, rng, press)

    def exit(self, view: View, far: Callable[[tuple[int, int]], int]) -> tuple[int, int] | None:
        """A door that leads on: to a place not seen in this context, or, once this place is worn out, to any other."""
        seen = Counter()
        for (place, *_), n in view.visits.items():
            seen[place] += n
        doors = [(seen[view.leads[(view.place, *c)]], far(c), c) for c in view.grid if (view.place, *c) in view.leads]
        return min(doors)[2] if doors and (min(doors)[0] == 0 or seen[view.place] > 40) else None

    def wander(self, view: View, target: tuple[int, int] | None, rng: random.Random, press: "Presser") -> tuple[str, str, dict]:
        """No walking skill: one direction, away from cells seen often and, if there is one, towards the target."""
        x, y = view.pos

        def cost(way: tuple[int, int]) -> tuple:
            cell, name = (x + way[0], y + way[1]), press.name(way)
            shut = (view.place, x, y, name) in view.blocked or view.grid.get(cell, "#") in view.walls
            near = abs(target[0] - cell[0]) + abs(target[1] - cell[1]) if target else 0
            return shut, 3 * view.visits[(view.place, *cell)] + near + 2 * rng.random()

        way = min(WAYS, key=cost)
        ahead, count = (x + 2 * way[0], y + 2 * way[1]), 1
        while count < 3 and view.legend.get(view.grid.get(ahead, "#")) == "floor" and (target is None or ahead[0] != target[0] and ahead[1] != target[1]):
            ahead, count = (ahead[0] + way[0], ahead[1] + way[1]), count + 1
        return f"press {press.name(way)}", *press([press.name(way)] * count, f"towards {target or 'new ground'}")


class Presser:
    """How this game is acted in: a list of buttons (press_buttons) or one direction a call (toy's move)."""

    def __init__(self, tools: dict[str, dict]):
        self.tool, self.argument, self.many, self.names = "", "", False, []
        for tool, rules in tools.items():
            for argument, rule in rules["properties"].items():
                names = rule.get("enum") or rule.get("items", {}).get("enum") or []
                if not self.tool and any(n in DIRECTION for n in names):
                    self.tool, self.argument, self.many, self.names = tool, argument, "items" in rule, names

    def name(self, way: tuple[int, int]) -> str:
        return next((n for n in WAYS[way] if n in self.names), WAYS[way][0])

    def __call__(self, names: list[str], why: str) -> tuple[str, dict]:
        names = [n for n in names if n in self.names] or self.names[:1]
        return self.tool, {self.argument: names if self.many else names[0], "reasoning": why}


# -- the Refiner

def section(question: str, heading: str) -> str:
    return (re.search(rf"^# {heading}.*?\n(.*?)(?=^# |\Z)", question, re.M | re.S) or ["", ""])[1].strip()


def refine(part: str, question: str) -> dict:
    """One pass's answer, from its question alone."""
    window, current, found = section(question, "The last steps"), section(question, "What you edit"), section(question, "Failure signatures")
    current = current.rsplit("\n\nAnswer with one JSON object", 1)[0]
    names = re.findall(r"^- (\w+) \(", found, re.M)
    if part == "policy":
        new = [RULES[n] for n in dict.fromkeys(names) if n in RULES and RULES[n] not in current]
        return {"analysis": ", ".join(names) or "no failure", "prompt": "\n".join([current, *(f"- {rule}" for rule in new)]) if new else None}
    makers = {"sub": refine_subagents, "skills": refine_skills, "memory": refine_memory}
    return makers[part](window, current)


def refine_subagents(window: str, current: str) -> dict:
    pages = len(re.findall(r'"\w+: text', window))
    if pages < 2 or "name: dialogue" in current:
        return {"analysis": "no work to hand over"}
    return {"analysis": f"{pages} pages of text were read one call a page", "create": [{
        "name": "dialogue", "description": "reads an open text to its end", "available_tools": ["press_buttons"], "max_turns": 10,
        "system_instructions": "Press A until the text is closed.", "return_condition": "Game State is overworld", "why": "texts take several presses"}]}


def refine_skills(window: str, current: str) -> dict:
    """Learn from (symbol, direction, did it move) and write it as the table of the walking skill."""
    table = json.loads((re.search(r"^OPEN = (\{.*\})$", current, re.M) or ["", "{}"])[1])
    known = json.dumps(table, sort_keys=True, ensure_ascii=False)
    for name, symbol, *_, stuck in MOVE.findall(window):
        if name in DIRECTION and not stuck and symbol.strip():
            table[symbol] = sorted({*table.get(symbol, []), name})
    for symbol, ways in table.items():
        if len(ways) >= 2:                               # two ways are taken for all four; one may be a ledge
            table[symbol] = sorted(n for n in DIRECTION if n.isupper() == ways[0].isupper())
    learned = json.dumps(table, sort_keys=True, ensure_ascii=False)
    if not table or learned == known:
        return {"analysis": "nothing new about walking"}
    names = sorted({n for ways in table.values() for n in ways})
    act = "tools['press_buttons'](buttons=[way[0]], reasoning='walk')" if names[0].isupper() else "tools['move'](direction=way[0])"
    code = WALKER.format(table=learned, moves=json.dumps({n: DIRECTION[n] for n in names}), act=act)
    why = "cells that let a step through: " + " ".join(sorted(table))
    if have := re.search(r"^### (\w+) .*\nname: walk_to$", current, re.M):
        return {"analysis": why, "update": [{"id": have[1], "code": code, "why": why}]}
    return {"analysis": why, "create": [{"name": "walk_to", "description": "walks to the cell args x, y on the current map", "code": code, "path": "movement", "why": why}]}


def refine_memory(window: str, current: str) -> dict:
    """What was read, and where: one entry a sign or person; and which door leads where."""
    entries = {}
    for place, line in re.findall(r"^\[\d+\] \S+ at (.+?) \([^)]*\): (.*)$", window, re.M):
        for symbol, x, y, text in TALK.findall(line):
            entries[f"{place} ({x}, {y})"] = (f"'{symbol}' says: {text[:300].split(chr(34))[0]}", place, f"{x}, {y}")
        for name, symbol, x, y, to, to_x, to_y, _ in MOVE.findall(line):
            if to and name in DIRECTION:
                dx, dy = DIRECTION[name]
                entries[f"{place} ({int(x) + dx}, {int(y) + dy})"] = (f"leads to {to} ({to_x}, {to_y})", place, f"{int(x) + dx}, {int(y) + dy}")
    new = [{"title": f"{title}: {text[:60]}", "content": text, "location": place, "coordinates": at, "path": "places", "source": "evolved",
            "why": "came up in the window"} for title, (text, place, at) in entries.items() if f"title: {title}" not in current]
    return {"analysis": f"{len(new)} new facts", "create": new[:5]}
