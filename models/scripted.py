"""The offline model, as the agent: rules, no state, no knowledge of any one game. learner.py is the same model as the Refiner.

It shows the mechanism and proves nothing about models. It reads only the messages it is sent, as any model would: the same
messages and seed give the same reply. What it remembers is what its context holds; what it does with H follows from what H
says. With a walking skill in the overview it calls it, without one it presses; what memory lists it does not look up again,
unless it was inherited from another run; objectives in memory, and inherited milestones, it works through in their order; a
fighting skill or a dialogue sub-agent it makes use of. With no H but buttons it goes by what its last turns tell and by chance.
"""
import json
import random
import re

import numpy as np

from models import Call, Message, ModelError, Reply, Usage
from models.learner import DIRECTION, WAYS, refine
from models.reading import ORDER, PLAIN, SCREEN, TOUCH, content, read_context


STRETCH = 8                                              # presses of a walk by hand in one turn


class Scripted:
    def __init__(self, seed: int = 0):
        self.seed = seed

    def __call__(self, messages: list[Message], tools: list[dict]) -> Reply:
        first = content(messages[0])
        if part := re.match(r"You refine the harness.*?you edit the (\w+)", first, re.S):
            return Reply(json.dumps(refine(part[1], first)), usage=Usage(dollars=0.0))
        if first.startswith("You read the trajectory"):
            return Reply("\n".join(re.findall(r"text: ([^\"]+)", first)[-5:]) or "no text came up in these steps", usage=Usage(dollars=0.0))
        if not tools or not first.startswith(("You play a game", "You are the sub-agent")):
            raise ModelError(f"the scripted model has no rule for this prompt: {first[:80]!r}; use --model with a real one")
        schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
        text, name, args = Turn(self.seed, messages, schemas).decide()
        return Reply(text, [Call(f"c{len(messages):08d}", name, args)], Usage(dollars=0.0))


class Turn:
    """One decision of the agent: (why, tool, arguments)."""

    def __init__(self, seed: int, messages: list[Message], tools: dict[str, dict]):
        self.seed, self.view, self.tools, self.press = seed, read_context(messages), tools, Presser(tools)
        self.overview = content(next(m for m in reversed(messages) if "Game State:" in content(m)))
        self.rng = random.Random(f"{seed} {self.view.turns} {self.view.place} {self.view.pos} {sum(self.view.visits.values())}")

    def entry(self, name: str) -> str:
        """Id of the skill or sub-agent whose name begins so; "" when H has none."""
        found = re.search(rf"^- (?:\S*/)?(\w+): {name}", self.overview, re.M)
        return found[1] if found else ""

    def decide(self) -> tuple[str, str, dict]:
        view = self.view
        busy = ("dialogue", "menu", "battle") if "run_skill" in self.tools else ("dialogue", "menu")         # a reader does not fight
        if "return_control" in self.tools and view.state not in busy:
            said = f"it says: {' / '.join(view.pages)[:300]}" if view.pages else f"done at {view.place} {view.pos}"
            return "the text is closed", "return_control", {"reasoning": said}
        if view.state == "battle":
            return self.fight()
        if view.state in ("dialogue", "menu"):
            return self.read()
        if not view.maps[view.place]:
            return "I have no rule for this screen; I press B", *self.press(["B"], "no rule for this screen")
        return self.explore()

    # -- text and battle

    def read(self) -> tuple[str, str, dict]:
        kind = self.view.menu[0]
        if kind and kind != "yes/no":
            return f"leave the {kind}", *self.press(["B"], "not needed now")
        if (helper := self.entry("dialogue")) and "execute_custom_subagent" in self.tools:
            return "a text: the dialogue helper reads it", "execute_custom_subagent", {
                "subagent_id": helper, "task": "read the text to its end", "reasoning": "text on screen"}
        return "read on", *self.press(["A"], "read the text")

    def fight(self) -> tuple[str, str, dict]:
        """A fighting skill where H has one; else the move that took most, as far as the context tells, or one not tried yet."""
        if (skill := self.entry("fight")) and "run_skill" in self.tools and self.view.menu[0]:
            return "fight", "run_skill", {"skill_id": skill, "args": {}, "reasoning": "in a battle"}
        kind, cursor, options = self.view.menu
        left = re.findall(r"(?:moves: |; )(.+?) PP (\d+)", self.view.text)
        if kind == "battle menu":                        # the first entry fights, the last runs
            want = options[0 if not left or any(int(pp) for _, pp in left) else -1]
        elif kind == "moves":
            foe = (re.search(r"^Enemy: .+? \(([\w/]+)\) level", self.view.text, re.M) or ["", ""])[1]
            took = lambda m: self.view.hits[m].get(foe, max(self.view.hits[m].values(), default=0)) if m in self.view.hits else 16
            want = max([name for name, pp in left if int(pp) and name in options] or options, key=lambda m: took(m) + 12 * self.rng.random())
        else:
            return "read on", *self.press(["A"] if skill else ["B"] * 4, "a text in the battle")
        steps = options.index(want) - options.index(cursor) if cursor in options else 0
        way = ["DOWN"] * steps if steps > 0 else ["UP"] * -steps
        if kind == "battle menu":                        # two columns
            at, to = options.index(cursor) if cursor in options else 0, options.index(want)
            way = ["UP"] * (at // 2) + ["LEFT"] * (at % 2) + ["DOWN"] * (to // 2) + ["RIGHT"] * (to % 2)
        return f"choose {want}", *self.press([*way, "A"], f"choose {want}")

    # -- the map

    def explore(self) -> tuple[str, str, dict]:
        """What to do next in the overworld: an objective, something new near by, a way on, or something known once more."""
        view = self.view
        if (len(view.unwritten) >= 2 or view.bumps >= 3 or view.failed.total() >= 2) and view.asked >= 12 and not view.objectives and "evolve_harness" in self.tools:      # before the context forgets it
            return "this is worth remembering", "evolve_harness", {
                "num_steps": 40, "reasoning": f"{len(view.unwritten)} new facts, {view.bumps} bumps"}
        if target := self.healer() or self.in_order():
            return self.approach(target)
        if view.objectives and (step := self.pursue(*view.objectives[0])):
            return step
        x, y = view.pos
        far = lambda c: abs(c[0] - x) + abs(c[1] - y)
        walks, tries = bool(self.entry("walk")), lambda c: view.tries[view.at(c)]
        new = [c for c in view.maps[view.place] if view.kind(c) not in PLAIN and not view.kind(c).startswith("ledge")]
        new = [c for c in new if not {view.at(c)} & (view.leads.keys() | view.used.keys() | view.known.keys() - view.heard) and not view.moved(c)]
        steps = view.distances() if view.shut else {}    # what was out of reach is new again once floor leads there
        new = [c for c in new if view.at(c) not in view.shut or any((c[0] + dx, c[1] + dy) in steps for dx, dy in WAYS)]
        again = random.Random(f"{view.turns // 10} {view.place}").random() < 0.2           # now and then a second look
        frontier = self.frontier() if view.place not in view.explored or again else []
        if not view.dark and view.arrived < 2 and view.turns >= 30 and not any(c[0] == view.place for c in view.used) and len(
                {to for c, to in view.leads.items() if c[0] == view.place}) > 1:
            frontier = []                                # nothing new for as long as it remembers, and there are ways on
        familiar = min(sum(c[0] == view.place for c in view.known), 10)                    # a place well known can wait
        ranked = [(far(c), c) for c in new] + [(far(c) + 6 * walks, c) for c in view.edges_untried()]
        ranked += [(cost + 2 * familiar, c) for cost, c in frontier]
        door = self.onward(later=True) if frontier and not view.objectives else None
        ranked += [(far(door) / 2 + 8, door)] if door and far(door) else []         # what was found last comes before the rest of a place
        # What was tried in vain is out of reach for now: with a walking skill at once, without one after a while.
        vain = lambda c: view.vain(view.at(c))
        back = lambda c: 4 * view.visits[view.at(c)] * (view.at(c) in view.leads)          # to and fro is no progress
        if view.dark and not walks and not any(far(c) < 3 and view.kind(c) in TOUCH for c in new):
            return self.follow_wall()
        # Without memory the nearest would be the same again and again: then chance decides, until something was used.
        chance = lambda what: random.Random(f"{self.seed} {view.place} {view.uses[-3:]} {what}")
        width, height = view.size.get(view.place, (1, 1))
        spots = [(chance(k).randrange(width), chance(-k).randrange(height)) for k in range(1, 20)]
        goal = next((s for s in spots if s not in view.seen[view.place]), view.pos)
        if not walks and view.arrived > 1 and not view.edges_untried() and (sides := view.sides_untried()) and chance("edge").random() < 0.7:
            return self.wander((width // 2 + sides[0][0] * (width // 2), height // 2 + sides[0][1] * (height // 2)))
        drawn = {c: 0.5 * (abs(c[0] - goal[0]) + abs(c[1] - goal[1])) for _, c in frontier} | {c: 20 * chance(c).random() for c in new}
        luck = lambda c: 0 if walks else drawn.get(c, 0)
        reach = [(cost + luck(c) + 2 * tries(c) * (far(c) > 1) + 8 * vain(c) + back(c), c) for cost, c in ranked
                 if tries(c) < 12 and vain(c) < (1 if walks else 9)]
        if reach and (min(reach)[0] < 60 or view.place not in view.explored):
            return self.approach(min(reach)[1])
        lost = [c for _, c in frontier if tries(c) < 6]
        if walks and lost:                               # the walking skill does not get there: on foot, then
            return self.wander(lost[0])
        if not frontier and view.place not in view.explored:
            return f"{view.place} is explored", *self.go_on()[1:]
        return self.go_on()

    def frontier(self) -> list[tuple[float, tuple[int, int]]]:
        """(cost, cell): the floor cell from which most of the map comes on the screen that has not been on it, for its distance."""
        view, (x, y) = self.view, self.view.pos
        world, (left, up, right, down) = view.maps[view.place], (1, 1, 1, 1) if view.dark else SCREEN
        seen = [max((c[k] for c in world), default=-1) + 1 for k in (0, 1)]      # where no text gives the map's size, as in toy
        width, height = view.size.get(view.place, seen)
        steps = view.distances()
        fresh = np.zeros((height + 1, width + 1), int)                   # 1: neither seen nor known to be a wall
        for i, j in {(i, j) for i in range(width) for j in range(height)} - view.seen[view.place]:
            fresh[j + 1, i + 1] = view.kind((i, j)) not in ("wall", "water")
        total, found = fresh.cumsum(0).cumsum(1), []
        for i, j in (c for c in world if view.kind(c) in ("floor", "tall grass") and c != view.pos):
            l, t, r, b = max(i - left, 0), max(j - up, 0), min(i + right + 1, width), min(j + down + 1, height)
            gain = total[b, r] - total[t, r] - total[b, l] + total[t, l]
            if gain >= (1 if view.dark else 2):
                cost = steps.get((i, j), 20 + abs(i - x) + abs(j - y)) + 10 - 0.25 * min(gain, 40)
                if cost < 32 or gain >= 12 or view.dark:                 # a sliver far away is not worth the walk
                    found.append((cost, (i, j)))
        return sorted(found)[:12]

    def keeper(self, place: str, x: int, y: int) -> tuple[int, int] | None:
        """Whoever or whatever is next to a door that could not be reached, if it was not asked lately: it may open the way."""
        view = self.view
        near = sorted((abs(i - x) + abs(j - y), (i, j)) for i, j in view.maps[place] if view.kind((i, j), place) in TOUCH)
        return near[0][1] if near and near[0][0] < 6 and (place, *near[0][1]) not in view.used and view.vain((place, *near[0][1])) < 2 else None

    def gatekeeper(self) -> tuple[int, int] | None:
        """On to the keeper of a door that could not be reached: something may have changed."""
        view = self.view
        for place, x, y in sorted(view.shut, key=lambda c: -view.known.get(c, 0)):
            if (keeper := self.keeper(place, x, y)) and (step := keeper if place == view.place else view.route({place})):
                return step
        return None

    def go_on(self) -> tuple[str, str, dict]:
        """Nothing new here: to a place that is not explored, else to a thing already known, any one."""
        view = self.view
        if step := self.gatekeeper():
            return self.approach(step)
        order = {**dict.fromkeys(sorted(view.used), 999), **view.known}
        recent = sorted(view.used, key=view.used.get)[-2:]
        done = lambda c: c[0] == view.place and view.used.get(c, 0) >= view.arrived > 1
        things = sorted((c for c in order if c not in view.leads and (c not in recent or view.used[c] < view.gained) and view.vain(c) < 2 and not done(c)
                         and not (c[0] == view.place and view.kind(c[1:]) in PLAIN)), key=lambda c: -order[c])
        found = self.found()
        if found and found.get(view.place, -1) == max(found.values()):                    # the way ends here: ask everybody once more
            asked = [c[1:] for c in things if c[0] == view.place and view.kind(c[1:]) == "person"]
            if asked:
                return self.approach(asked[0])
        for target in things:                            # who speaks of something that is in the bag by now
            if view.used.get(target, 0) < view.gained and any(w in view.texts.get(target, "").upper() for w in view.bag) and (
                    step := target[1:] if target[0] == view.place else view.route({target[0]})):
                return self.approach(step)
        # What was found last is where the way stopped: most likely there something has changed. It sticks to one choice.
        rng = random.Random(f"{self.seed} {recent} {len(view.known)}")
        door = self.onward()
        if door and (not things or rng.random() < 0.35):
            return self.approach(door)
        for _, target in sorted((i + 6 * rng.random(), c) for i, c in enumerate(things)):
            if target[0] == view.place:
                return self.approach(target[1:])
            if door := view.route({target[0]}):
                return self.approach(door)
        return self.leave() or self.wander(None)

    def healer(self) -> tuple[int, int] | None:
        """When the party is hurt or worn out: of the people here one who is not known yet, or speaks of healing."""
        view, (x, y) = self.view, self.view.pos
        party = re.search(r"^Party: .*", view.text, re.M)
        points = [int(n) for pair in re.findall(r"HP (\d+)/(\d+)", party[0] if party else "") for n in pair]
        if sum(points[::2]) >= 0.7 * sum(points[1::2]) and view.strength >= 0.4:
            return None
        if view.strength < 0.15:                         # no moves are left: back to whoever is known to heal
            healers = {c for c, said in view.texts.items() if re.search("heal|mend", said) and c not in view.used}
            here = sorted(c[1:] for c in healers if c[0] == view.place)
            if step := here[0] if here else view.route({c[0] for c in healers}):
                return step
        people = [c for c in view.maps[view.place] if view.kind(c) == "person" and view.at(c) not in view.used and not view.vain(view.at(c))
                  and re.search("heal|mend|^$", view.texts.get(view.at(c), ""))]
        return min(people, key=lambda c: abs(c[0] - x) + abs(c[1] - y), default=None)

    def in_order(self) -> tuple[int, int] | None:
        """A text somewhere says "first A, then B, last C", and things here are called so: the next one to use."""
        view = self.view
        order = next((m.groups() for t in view.texts.values() if (m := ORDER.search(t))), ())
        named = [next((c for c, t in view.texts.items() if c[0] == view.place and word in t and not ORDER.search(t)), None) for word in order]
        if not any(view.kind(c) == "boulder" for c in view.maps[view.place]):
            return None
        if not order or None in named:
            return self.by_trial()
        done = [c for c in view.uses if c in named]
        right = next(n for n in (2, 1, 0) if done[len(done) - n:] == named[:n])
        return named[right][1:]

    def by_trial(self) -> tuple[int, int] | None:
        """Things here click into place or reset, and nothing tells their order: one that has not failed after those that hold."""
        view, held, bad = self.view, [], set()
        for cell, said in zip(view.uses, view.said):
            if "reset" in said.lower():
                bad.add((*held, cell))
                held = []
            elif "click" in said.lower():
                held.append(cell)
        things = [view.at(c) for c in sorted(view.maps[view.place]) if view.kind(c) == "sign"]
        untold = lambda c: re.search("click|reset|^$", view.texts.get(c, ""), re.I)
        return next((c[1:] for c in things if (held or bad) and untold(c) and c not in held and (*held, c) not in bad), None)

    def found(self) -> dict[str, int]:
        """Places that a door leads to -> when they were found, as memory tells; 999: just now."""
        out: dict[str, int] = {}
        for cell, place in self.view.leads.items():
            out[place] = min(out.get(place, 999), self.view.known.get(cell, 999))
        return out

    def onward(self, later: bool = False) -> tuple[int, int] | None:
        """The door on the way to the place that was found last of those that are not explored; later: found after this one."""
        view, found = self.view, self.found()
        least = found.get(view.place, -1) if later else -1
        places = sorted((p for p in {*found} - view.explored - {view.place} if found[p] > least), key=lambda p: (-found[p], p))
        return next((door for door in (view.route({p}) for p in places) if door), None)

    def leave(self) -> tuple[str, str, dict] | None:
        """Through the nearest door that can be reached: from there the way may be open."""
        view, (x, y) = self.view, self.view.pos
        doors = sorted((abs(c[1] - x) + abs(c[2] - y), c[1:]) for c, to in view.leads.items()
                       if c[0] == view.place and view.failed[c] < 1 and view.crossed[frozenset((to, view.place))] < 4)
        return self.approach(doors[0][1], leaving=True) if doors else None

    def pursue(self, id: str, place: str, spot: tuple[int, int] | None, symbol: str) -> tuple[str, str, dict] | None:
        """The first objective: go there, interact or step on it, then note what it said. None: look around here first."""
        view, cell = self.view, (place, *(spot or ()))
        used = [c for c in view.uses if c[:len(cell)] == cell and view.used[c] >= view.turns - 6]
        if used and (said := " ".join(view.texts[used[-1]].replace("▼", "").split())):
            title = f"{place} {used[-1][1:]}: '{view.maps[place].get(used[-1][1:], '.')}' says: {said}"
            return f"objective {id} is done", "process_memory", {
                "action": "update", "entries": [{"id": id, "title": title[:200], "path": "places", "source": "orchestrator"}], "reasoning": "done"}
        if spot and view.visits[cell] and view.kind(spot, place) not in TOUCH:
            if view.legend.get(symbol) in TOUCH:         # inherited from a game in which it was here
                return f"there is no {symbol} here", "process_memory", {"action": "update", "entries": [
                    {"id": id, "title": f"{place}: look for {symbol}", "path": "objectives", "source": "orchestrator"}], "reasoning": "not here"}
            return f"objective {id} is done", "process_memory", {"action": "delete", "entries": [{"id": id}], "reasoning": "done"}
        target = spot if place == view.place else view.route({place})
        return self.approach(target, hidden=target == spot) if target and view.vain(view.at(target)) < 3 else None

    def approach(self, target: tuple[int, int], leaving: bool = False, hidden: bool = False) -> tuple[str, str, dict]:
        """Interact with the target when it is next to the player (or behind a counter), else move towards it.

        hidden: somebody may stand there whom only a nearer look will show."""
        view, (x, y) = self.view, self.view.pos
        width, height = view.size.get(view.place, (99, 99))
        outside = not (0 <= target[0] < width and 0 <= target[1] < height)
        hidden = hidden and max(abs(target[0] - x), abs(target[1] - y)) > 3
        stands = [target] if view.kind(target) not in TOUCH and not outside and not hidden else self.stands(target, outside)
        way = next(((dx, dy) for dx, dy in WAYS for n in (1, 2) if (x + n * dx, y + n * dy) == target and (x, y) in stands), None)
        if way and view.kind(target) in TOUCH:
            return f"use the {view.kind(target)} at {target}", *self.press([self.press.name(way), "A"], f"face {target} and interact")
        if way and (outside or target in stands):
            return f"step to {target}", *self.press([self.press.name(way)], f"step to {target}")
        if (x, y) == target:                             # on a door that was come through: off it and back
            ways = [w for w in WAYS if view.kind((x + w[0], y + w[1])) == "floor"] or list(WAYS)
            return "off the door and back", *self.press([self.press.name(ways[0]), self.press.name((-ways[0][0], -ways[0][1]))], "use the door")
        if (skill := self.entry("walk")) and "run_skill" in self.tools:
            goals = sorted((c for c in stands if view.failed[view.at(c)] < 1), key=lambda c: abs(c[0] - x) + abs(c[1] - y))
            if goals:
                args = {"x": goals[0][0], "y": goals[0][1]}
                if view.dark:                            # what was seen before, for a walk that sees only what is next to it
                    args["known"] = ["".join(view.maps[view.place].get((i, j), " ") for i in range(width)) for j in range(height)]
                return f"walk to {goals[0]} for the {view.kind(target) or 'unknown'} at {target}", "run_skill", {"skill_id": skill, "args": args, "reasoning": f"towards {target}"}
            if view.at(target) in view.leads and not leaving:
                keeper = self.keeper(*view.at(target))
                if way := self.approach(keeper) if keeper else self.leave():
                    return way
        return self.wander(target)

    def stands(self, target: tuple[int, int], outside: bool) -> list[tuple[int, int]]:
        """Cells from which the target can be used: next to it, or over a counter."""
        view, out = self.view, []
        width, height = view.size.get(view.place, (99, 99))
        for dx, dy in WAYS:
            beside, beyond = (target[0] - dx, target[1] - dy), (target[0] - 2 * dx, target[1] - 2 * dy)
            if view.kind(beside) == "counter" and not outside:
                out.append(beyond)
            elif view.kind(beside) in ("floor", "tall grass", "door", ""):
                out.append(beside)
        return [c for c in out if 0 <= c[0] < width and 0 <= c[1] < height]

    def wander(self, target: tuple[int, int] | None) -> tuple[str, str, dict]:
        """No walking skill: a few presses over floor that was seen; else one way, away from cells seen often, towards the target."""
        view, (x, y) = self.view, self.view.pos
        if target and (way := self.path(target)):
            return f"press {way[0]}", *self.press(way[:STRETCH], f"towards {target}")

        def cost(way: tuple[int, int]) -> float:
            cell, name = (x + way[0], y + way[1]), self.press.name(way)
            shut = view.blocked[(view.at((x, y)), name)] or view.kind(cell) in ("wall", "water", "counter", "person", "")
            near = abs(target[0] - cell[0]) + abs(target[1] - cell[1]) if target else 0
            return 99 * bool(shut) + 3 * view.visits[view.at(cell)] + near + 2 * self.rng.random()

        way = min(WAYS, key=cost)
        ahead, count = (x + 2 * way[0], y + 2 * way[1]), 1
        while count < 3 and view.kind(ahead) == "floor" and (target is None or ahead[0] != target[0] and ahead[1] != target[1]):
            ahead, count = (ahead[0] + way[0], ahead[1] + way[1]), count + 1
        return f"press {self.press.name(way)}", *self.press([self.press.name(way)] * count, f"towards {target or 'new ground'}")

    def follow_wall(self) -> tuple[str, str, dict]:
        """The right hand on the wall: with no memory at all it comes past every dead end of a maze, or through a door it does not remember."""
        view, (x, y) = self.view, self.view.pos
        ways = [(0, -1), (1, 0), (0, 1), (-1, 0)]
        front = ways.index(DIRECTION.get(view.facing.upper(), (0, -1)))
        for way in (ways[(front + turn) % 4] for turn in (1, 0, 3, 2)):
            cell = (x + way[0], y + way[1])
            kind, new = view.kind(cell), view.at(cell) not in view.leads
            shut = view.blocked[(view.at((x, y)), self.press.name(way))]
            if kind in ("floor", "tall grass") and not shut or kind in ("door", "stairs") and new:
                return f"press {self.press.name(way)}", *self.press([self.press.name(way)], "along the wall")
        return "press any way", *self.press([self.press.name(self.rng.choice(ways))], "no way on")

    def path(self, target: tuple[int, int]) -> list[str]:
        """Presses over seen floor to the target or next to it; [] where there is no such way."""
        view, steps, out = self.view, self.view.distances(), []
        ends = [c for c in [target, *((target[0] - dx, target[1] - dy) for dx, dy in WAYS)] if c in steps]
        cell = min(ends, key=steps.get) if ends else view.pos
        while cell != view.pos:
            way = next(w for w in WAYS if steps.get((cell[0] - w[0], cell[1] - w[1]), 999) == steps[cell] - 1)
            cell = (cell[0] - way[0], cell[1] - way[1])
            out.append(self.press.name(way))
        if len(ends) and target not in steps and not out and view.kind(target) not in TOUCH:
            return []
        return [] if out and view.blocked[(view.at(view.pos), out[-1])] else out[::-1]


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
