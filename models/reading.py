"""What the offline model makes of the messages it is sent: the observation, its own turns, H's overview. See scripted.py.

Everything here is a fold over the conversation, with no memory besides it: the same messages give the same `View`.
"""
import json
import re
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from models import Message
from models.learner import DIRECTION, HIT, MOVE, TALK, WAYS

Cell = tuple[str, int, int]                              # (place, x, y)
SCREEN = (4, 4, 5, 4)                                    # cells left of, above, right of, below the player in which people show
TOUCH = ("person", "sign", "ball", "boulder")            # things to face and interact with; other marked things are walked onto
PLAIN = ("you", "floor", "wall", "tall grass", "water", "counter", "small tree", "not visible", "spinner")
SIDES = {"north": (0, -1), "south": (0, 1), "west": (-1, 0), "east": (1, 0)}
ORDER = re.compile(r"[Ff]irst\W+(?:[a-z]+\W+)*([A-Z]{3,}).*?then\W+(?:[a-z]+\W+)*([A-Z]{3,}).*?[Ll]ast\W+(?:[a-z]+\W+)*([A-Z]{3,})")
ENTRY = re.compile(r"^- (?:(\S*)/)?(\w+): (.+?)(?: \((-?\d+), (-?\d+)\))?: (.*)$", re.M)       # path, id and title: place, perhaps a cell, what


@dataclass
class View:
    """What the last observation says, and what the context still holds of the way here."""

    state: str = ""
    dark: bool = False
    place: str = ""
    pos: tuple[int, int] = (0, 0)
    facing: str = ""
    menu: tuple[str, str, list[str]] = ("", "", [])       # kind, the entry under the cursor, all entries
    text: str = ""                                        # the whole of the last observation
    legend: dict[str, str] = field(default_factory=dict)
    maps: dict[str, dict] = field(default_factory=lambda: defaultdict(dict))       # place -> {(x, y): symbol}, all windows seen
    seen: dict[str, set] = field(default_factory=lambda: defaultdict(set))         # place -> cells that were on the screen
    size: dict[str, tuple[int, int]] = field(default_factory=dict)
    edges: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # place -> "north (ROUTE)"
    visits: Counter = field(default_factory=Counter)      # Cell -> how often
    blocked: Counter = field(default_factory=Counter)     # (Cell, direction) -> how often
    used: dict[Cell, int] = field(default_factory=dict)   # things interacted with -> when, as a count of turns
    known: dict[Cell, int] = field(default_factory=dict)  # things that memory lists -> their order: later is further on
    heard: set[Cell] = field(default_factory=set)         # those of them that were inherited and not seen in this run yet
    leads: dict[Cell, str] = field(default_factory=dict)  # a door, or a cell beyond the map's edge -> the place behind it
    crossed: Counter = field(default_factory=Counter)     # two places -> how often the door between them was used
    failed: Counter = field(default_factory=Counter)      # Cell -> how often a walk did not get there
    tries: Counter = field(default_factory=Counter)       # Cell -> for how many turns it was the target
    uses: list[Cell] = field(default_factory=list)        # things interacted with, in order
    said: list[str] = field(default_factory=list)         # what each of them said
    texts: dict[Cell, str] = field(default_factory=dict)  # what a thing says, as far as memory's titles and the context tell
    shut: set[Cell] = field(default_factory=set)          # doors that could not be reached, as memory has it
    explored: set[str] = field(default_factory=set)
    objectives: list[tuple[str, str, tuple | None, str]] = field(default_factory=list)     # (memory id, place, cell, symbol)
    hits: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))      # move -> foe's type -> what its bar lost
    pages: list[str] = field(default_factory=list)        # of a text, after the first
    strength: float = 1.0                                 # share of the moves' PP that was left in the last battle
    bag: set[str] = field(default_factory=set)            # words that name what is in it
    gained: int = 0                                       # when the bag changed last, as a count of turns
    turns: int = 0
    arrived: int = 0                                      # when this place was entered, as a count of turns
    asked: int = 99                                       # turns since the Refiner was called
    bumps: int = 0                                        # steps of walks that were blocked since then
    unwritten: set = field(default_factory=set)           # found out in this context, not in memory yet

    def kind(self, cell: tuple[int, int], place: str = "") -> str:
        """What a cell of the map is, by the legend; "" where nothing was seen yet."""
        symbol = self.maps[place or self.place].get(cell)
        return "" if symbol is None else self.legend.get(symbol, "wall")

    def at(self, cell: tuple[int, int]) -> Cell:
        return (self.place, *cell)

    # -- the way

    def vain(self, cell: Cell) -> int:
        """How many walks to it or next to it failed; one to a door says nothing of who stands before it."""
        door = lambda spot: self.kind(spot, cell[0]) in ("door", "stairs") and spot != cell[1:]
        return sum(n for (at, *spot), n in self.failed.items() if at == cell[0] and abs(spot[0] - cell[1]) + abs(spot[1] - cell[2]) < 3
                   and not door(tuple(spot)))

    def distances(self) -> dict[tuple[int, int], int]:
        """Steps to each cell that can be reached over floor that was seen."""
        steps, queue = {self.pos: 0}, deque([self.pos])
        while queue:
            x, y = queue.popleft()
            for cell in ((x + dx, y + dy) for dx, dy in WAYS):
                if cell not in steps and self.kind(cell) in ("floor", "tall grass"):
                    steps[cell] = steps[(x, y)] + 1
                    queue.append(cell)
        return steps

    def moved(self, cell: tuple[int, int]) -> bool:
        """Is this a person who was spoken to a few cells away, where nobody stands now?"""
        return self.kind(cell) == "person" and any(place == self.place and abs(x - cell[0]) + abs(y - cell[1]) <= 6 and self.kind((x, y)) == "floor"
                              for place, x, y in (self.known.keys() | self.used.keys()) - self.leads.keys())

    def sides_untried(self) -> list[tuple[int, int]]:
        """Ways off the map's edge to places that are not known to be there."""
        gone = {place for (at, *_), place in self.leads.items() if at == self.place}
        return [SIDES[side.split()[0]] for side in self.edges[self.place] if side.split("(")[1].rstrip(")") not in gone]

    def edges_untried(self) -> list[tuple[int, int]]:
        """Cells beyond the map's edge, next to floor, on a side that goes on to a place not known to be behind it."""
        out = []
        width, height = self.size.get(self.place, (0, 0))
        for way in self.sides_untried():
            border = lambda c, way=way: not (0 <= c[0] + way[0] < width and 0 <= c[1] + way[1] < height)
            out += [(c[0] + way[0], c[1] + way[1]) for c in self.maps[self.place] if border(c) and self.kind(c) == "floor"]
        return out

    def route(self, good: set[str]) -> tuple[int, int] | None:
        """The door of this place that is first on the shortest way, by known doors, to one of the places in `good`."""
        ways = defaultdict(set)
        for (at, x, y), to in sorted(self.leads.items()):
            ways[at].add((to, (x, y)))
        first = [(to, door) for to, door in sorted(ways[self.place]) if self.failed[self.at(door)] < 2 and self.crossed[frozenset((to, self.place))] < 4]
        queue, seen = deque(first), {self.place}
        while queue:
            place, door = queue.popleft()
            if place in good:
                return door
            if place not in seen:
                seen.add(place)
                queue += [(to, door) for to, _ in sorted(ways[place])]
        return None


def content(message: Message) -> str:
    body = message.get("content") or ""
    return body if isinstance(body, str) else "\n".join(p.get("text", "") for p in body)


def look_around(view: View, x: int, y: int) -> None:
    """What is on the screen from this cell counts as seen; in the dark that is only what lies next to it."""
    left, up, right, down = (1, 1, 1, 1) if view.dark else SCREEN
    view.seen[view.place] |= {(i, j) for i in range(x - left, x + right + 1) for j in range(y - up, y + down + 1)}


def read_observation(text: str, view: View) -> None:
    found = lambda pattern, default="": (re.search(pattern, text, re.M) or [0, default])[1]
    view.text, view.state, view.place = text, found(r"^Game State: (\w+)"), found(r"^Location: (.+)$", "room")
    menu = re.search(r"^Menu: (.+?), cursor on (.+?) of (.+)$", text, re.M)
    view.menu = (menu[1], menu[2], menu[3].split(", ")) if menu else ("", "", [])
    if at := re.search(r"^Position: x=(\d+), y=(\d+)(?:, facing (\w+))?", text, re.M):
        view.pos, view.facing = (int(at[1]), int(at[2])), at[3] or ""
    if drawn := re.search(r"^ASCII Map:\n(.*?)\n\(top-left cell is x=(\d+), y=(\d+); ([^\n]*)\)$", text, re.M | re.S):
        left, top, world = int(drawn[2]), int(drawn[3]), view.maps[view.place]
        items = [item for item in re.split(r"[,;] ", drawn[4]) if item[1:2] == " "]
        view.legend |= {item[0]: item[2:].split(":")[0] for item in items}
        you = next((s for s, what in view.legend.items() if what == "you"), "P")
        for y, row in enumerate(drawn[1].split("\n")):
            for x, symbol in enumerate(row):
                cell = (left + x, top + y)
                on_screen = -SCREEN[0] <= cell[0] - view.pos[0] <= SCREEN[2] and -SCREEN[1] <= cell[1] - view.pos[1] <= SCREEN[3]
                if symbol not in (you, " ") and (on_screen or cell not in world):          # people show on the screen only
                    world[cell] = symbol
        x, y = view.pos
        view.dark = "It is dark" in text
        look_around(view, x, y)
        world.setdefault(view.pos, next((s for s, what in view.legend.items() if what == "floor"), "."))
        if size := re.search(r"map (\d+)x(\d+)", drawn[4]):
            view.size[view.place] = (int(size[1]), int(size[2]))
    if left := [*map(int, re.findall(r"PP (\d+)/", text))]:
        view.strength = sum(left) / sum(map(int, re.findall(r"PP \d+/(\d+)", text)))
    if (bag := set(re.findall(r"[A-Z]{3,}", found(r"^Bag: (.*)$")))) != view.bag:
        view.bag, view.gained = bag, view.turns if view.bag else 0
    view.edges[view.place] = re.findall(r"the (\w+ \(\w+\))", found(r"^The map goes on to: (.*)$"))


def read_overview(text: str, view: View) -> None:
    """Memory titles: things known, doors and where they lead, places explored, what is to do.

    What was inherited says where things are and what they say, not what was done: its milestones are to be reached again.
    """
    for path, id, place, x, y, what in sorted(ENTRY.findall(text), key=lambda m: ("(inherited)" in m[5], m[1])):
        cell, heard, goal = (place, int(x or 0), int(y or 0)), "(inherited)" in what, path.partition("/")[0]
        if goal == "objectives" or goal == "milestones" and heard:
            view.objectives.append((id, place, cell[1:] if x else None, (re.findall(r" by '(.)'", what) or [""])[0]))
        elif what.startswith("explored") and not heard:
            view.explored.add(place)
        elif not x or goal == "milestones" or heard and what.startswith("no way"):
            continue
        elif what.startswith("no way"):
            view.shut.add(cell)
        else:
            view.known[cell] = len(view.known)
            view.heard |= {cell} if heard else set()
            if door := re.match(r"leads to (\w+)", what):
                view.leads.setdefault(cell, door[1])
            elif said := re.match(r"'(.)' says: (.*)", what):
                view.maps[place].setdefault(cell[1:], said[1])     # the legend may tell what it is
                view.texts.setdefault(cell, said[2])


def read_results(text: str, view: View) -> None:
    """Feedback of button presses: steps, doors, people spoken to, walks that failed."""
    for name, symbol, x, y, place, to_x, to_y, stuck in MOVE.findall(text):
        here, way = view.at((int(x), int(y))), DIRECTION.get(name)
        view.visits[here] += 1
        look_around(view, int(x), int(y))
        if stuck:
            view.blocked[(here, name)] += 1
        elif place and way:
            view.leads[view.at((int(x) + way[0], int(y) + way[1]))] = place
            view.crossed[frozenset((place, view.place))] += 1
            beyond = way if symbol == " " else (0, 0)    # over the map's edge the way back lies beyond the edge, too
            view.leads.setdefault((place, int(to_x) - beyond[0], int(to_y) - beyond[1]), view.place)
    for _, x, y, said in TALK.findall(text):
        cell = view.at((int(x), int(y)))
        view.used[cell], view.texts[cell] = view.turns, said
        view.uses.append(cell)
        view.said.append(said)
        for known in [c for c in view.failed if c[0] == view.place]:                   # it may have opened a way
            del view.failed[known]
    for move in re.findall(r"A on ([A-Z][\w ]*?): text", text):
        view.hits[move] |= {foe: int(before) - int(after) for name, foe, before, after in HIT.findall(text) if name == move}
    for page in re.findall(r'"A: text: ([^"]*)|"final_reasoning": "it says: ([^"]*)"', text):
        view.pages.append("".join(page))
        if view.uses and len(view.texts[view.uses[-1]]) < 300:
            view.texts[view.uses[-1]] += " / " + "".join(page)
    if rows := re.search(r'"map": (\[[^\]]*\])', text):                            # what a walk in the dark saw on its way
        for y, row in enumerate(json.loads(rows[1])):
            view.maps[view.place] |= {(x, y): symbol for x, symbol in enumerate(row) if symbol != " "}
            view.seen[view.place] |= {(x, y) for x, symbol in enumerate(row) if symbol != " "}
    view.bumps += text.count("blocked") if '"goal"' in text else 0
    # A walk that a battle or something new broke off did not fail; one that never set out did.
    if walk := re.search(r'"success": false, "from": (.*?), "at": (.*?), "goal": \[(-?\d+), (-?\d+)\], "in": "overworld", "things": (\[\])?', text):
        if walk[5] or walk[1] == walk[2]:
            view.failed[view.at((int(walk[3]), int(walk[4])))] += 1


def read_context(messages: list[Message]) -> View:
    view, told = View(), set()
    for m in messages:
        text = content(m)
        if m["role"] == "user" and "Game State:" in text:
            observation, _, overview = text.partition("\n\nYour harness\n")
            read_overview(overview, view)
            before = view.place
            read_observation(observation, view)
            view.arrived = view.turns if view.place != before else view.arrived
            view.visits[view.at(view.pos)] += 1
            view.turns, view.asked = view.turns + 1, view.asked + 1
        elif m["role"] == "tool":
            read_results(text, view)
        elif m["role"] == "assistant":
            told |= set(re.findall(r"^(\w+) is explored", text))
            for call in m.get("tool_calls", []):
                if call["function"]["name"] == "evolve_harness":         # a better walk may get there
                    view.asked = view.bumps = 0
                    view.failed.clear()
                args = json.loads(call["function"]["arguments"])
                for y, row in enumerate((args.get("args") or {}).get("known", [])):          # its own notes on a dark place
                    view.maps[view.place] |= {(x, y): symbol for x, symbol in enumerate(row) if symbol != " "}
                    view.seen[view.place] |= {(x, y) for x, symbol in enumerate(row) if symbol != " "}
                if aim := re.search(r"towards \((-?\d+), (-?\d+)\)", call["function"]["arguments"]):
                    view.tries[view.at((int(aim[1]), int(aim[2])))] += 1
    view.unwritten = (view.leads.keys() | view.used.keys()) - view.known.keys() | view.used.keys() & view.heard | told - view.explored
    view.explored |= told
    view.shut -= view.leads.keys()
    return view
