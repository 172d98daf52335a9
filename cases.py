"""Cases: situations out of the run, each with what is to come of it; the guard plays them again with another H.

A case is made in hindsight. A step reaches something that the environment can tell (a place, a cell, a milestone, an item,
the end of a text or of a battle); the run is let go back a few steps to where this did not hold yet, and that it is reached
from there is the goal. It was solved by the run when SPAN steps were enough. A case that calls one skill needs no model.

Source: the anchors of Harness Continual Learning (arXiv 2608.19013), raw input and success criterion; there they are
questions, here they are states of an environment that has no reset.
"""
import base64
import itertools
import random
from dataclasses import asdict, dataclass

from env import Step
from harness import Memory
from models import digest

SPAN, SOLVED = 10, 0.8               # steps that a case may take; share of solved cases among a task's anchors


@dataclass(frozen=True)
class Case:
    """A situation and what is to come of it. Two cases with the same id are the same for a player."""

    state: bytes                     # Env.save()
    key: str                         # Observation.key there
    goal: list                       # [kind, value], see `reached`
    presses: int                     # its budget of button presses, beside SPAN steps
    solved: bool = True              # did the run itself do it within SPAN steps?
    where: list | None = None        # [place, x, y] at which the run reached it
    call: dict | None = None         # {"skill_id", "args"}: only this call is made

    @property
    def id(self) -> str:
        return digest(self.key, self.goal, self.call)

    def to_json(self) -> dict:
        return asdict(self) | {"state": base64.b85encode(self.state).decode()}

    @staticmethod
    def from_json(row: dict) -> "Case":
        return Case(**row | {"state": base64.b85decode(row["state"])})


def brief(state: dict) -> dict:
    """The part of an observation's state that goals speak of."""
    at = state.get("player_position", {})
    return {"place": state.get("location", ""), "x": at.get("x"), "y": at.get("y"),
            "text": state.get("context") in ("dialogue", "menu"), "battle": bool(state.get("battle")),
            "items": {i["name"]: i["quantity"] for i in state.get("bag", [])},
            "dark": bool(state.get("map", {}).get("dark")), "milestones": list(state["progress"]["reached"])}


def reached(goal: list, now: dict) -> bool:
    """Does the goal hold in this brief state?"""
    kind, value = goal
    return {"milestone": lambda: value in now["milestones"], "item": lambda: now["items"].get(value[0], 0) >= value[1],
            "place": lambda: now["place"] == value, "cell": lambda: [now["place"], now["x"], now["y"]] == value,
            "text": lambda: not now["text"] and not now["battle"],
            "battle": lambda: not now["battle"] and now["place"] == value}[kind]()      # after a loss one wakes up elsewhere


def goals(old: dict, new: dict) -> list[list]:
    """What one step of the run came to, the most telling first."""
    out = [["milestone", m] for m in new["milestones"] if m not in old["milestones"]]
    out += [["item", [name, n]] for name, n in new["items"].items() if n > old["items"].get(name, 0)]
    if old["battle"] and not new["battle"] and old["place"] == new["place"]:
        out.append(["battle", new["place"]])
    elif old["text"] and not new["text"] and not new["battle"]:
        out.append(["text", new["place"]])
    elif not old["battle"] and not new["battle"] and old["place"] != new["place"]:
        out.append(["place", new["place"]])
    elif (old["x"], old["y"]) != (new["x"], new["y"]):
        out.append(["cell", [new["place"], new["x"], new["y"]]])
    return out


def objective(case: Case) -> Memory:
    """The goal in the agent's words: an entry of its memory, in the form that objectives have there."""
    kind, value = case.goal
    spot = "{} ({}, {})".format(*(value if kind == "cell" else case.where)) if kind == "cell" or case.where else ""
    what = {"place": f"{value}: go there", "cell": f"{spot}: go there", "item": f"{spot}: get {value[0]}",
            "milestone": f"{spot or 'here'}: {value}", "text": "read the text to its end", "battle": "win the battle"}[kind]
    return Memory(what, path="objectives", importance=5, confidence=5)       # so that it stands first in the overview


@dataclass(frozen=True)
class Snap:
    """The run just before a step: where a case may start."""

    state: bytes
    key: str
    now: dict
    presses: int


def hindsight(snaps: list[Snap], step: Step, now: dict, rng: random.Random) -> list[Case]:
    """Cases that end with this step: one that starts within SPAN steps, and one from further back, that took too long."""
    out = []
    for goal in goals(snaps[-1].now, now):
        busy = goal[0] if goal[0] in ("text", "battle") else ""
        fits = lambda s, goal=goal, busy=busy: not reached(goal, s.now) and (s.now[busy] if busy else True)
        starts = list(enumerate(itertools.takewhile(fits, reversed(snaps))))
        free = lambda s, busy=busy: busy or not s.now["text"] and not s.now["battle"]         # other goals are for walkers
        for near in (True, False):
            if some := [s for i, s in starts if (i < SPAN) == near and free(s)]:
                s, where = rng.choice(some), [now[k] for k in ("place", "x", "y")]
                out.append(Case(s.state, s.key, goal, 20 + 2 * (step.presses - s.presses), near, where))
    call, last = step.reply.calls[0] if step.reply.calls else None, snaps[-1]
    if call and call.name == "run_skill" and "presses" in step.results[0]:            # it was carried out
        args, said = call.args.get("args", {}), step.results[0].get("result")
        failed = not step.results[0]["success"] or isinstance(said, dict) and said.get("success") is False
        # Of a call that failed only this much is known of what it was for: x and y are where it should have led.
        aim = [["cell", [last.now["place"], args["x"], args["y"]]]] if all(isinstance(args.get(k), int) for k in "xy") else []
        for goal in (aim if failed else goals(last.now, now))[:1]:
            if not reached(goal, last.now):
                what = {"skill_id": call.args["skill_id"], "args": args}
                out.append(Case(last.state, last.key, goal, 20 + 2 * (step.presses - last.presses), not failed, call=what))
    return out


def sample(pool: list[Case], size: int, rng: random.Random) -> list[Case]:
    """A task's anchors: solved and failed ones at the ratio SOLVED, a shortage of either filled from the other."""
    pool = rng.sample(pool, len(pool))
    good, bad, n = [c for c in pool if c.solved], [c for c in pool if not c.solved], min(size, len(pool))
    want = round(SOLVED * n)
    return (good[:want] + bad[:n - want] + good[want:] + bad[n - want:])[:n]
