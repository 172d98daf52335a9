"""Cases: situations out of the run, each with what is to come of it; the guard plays them again with another H.

A case is made in hindsight. A step reaches something that the environment can tell (KINDS); the run is let go back a few
steps to where this did not hold yet, and that it is reached from there is the goal. It was solved by the run when SPAN
steps were enough. A case that calls one skill needs no model.

Source: the anchors of Harness Continual Learning (arXiv 2608.19013), raw input and success criterion; there they are
questions, here they are states of an environment that has no reset.
"""
import base64
import itertools
import random
from dataclasses import dataclass, replace

from ch import succeeded
from env import Env, Step
from harness import Memory
from models import digest

SPAN, SOLVED = 10, 0.8               # steps that a case may take; share of solved cases among a task's anchors
BUSY = ("text", "battle")            # these goals begin where such a thing is on, all others where none is
KINDS = {                            # kind of a goal -> does it hold? and its words for the agent; spot: where the run reached it
    "milestone": (lambda value, now: value in now["milestones"], "{spot}: {value}"),
    "item": (lambda value, now: now["items"].get(value[0], 0) >= value[1], "{spot}: get {value[0]}"),
    "place": (lambda value, now: now["place"] == value, "{value}: go there"),
    "cell": (lambda value, now: [now["place"], now["x"], now["y"]] == value, "{spot}: go there"),
    "text": (lambda value, now: not now["text"] and not now["battle"], "read the text to its end"),
    "battle": (lambda value, now: not now["battle"] and now["place"] == value, "win the battle")}     # a loser wakes elsewhere


@dataclass(frozen=True)
class Case:
    """A situation and what is to come of it; plain JSON. Two cases with the same id are the same for a player."""

    state: str                       # Env.save() in base85
    key: str                         # Observation.key there
    goal: list                       # [kind, value]; [] for a moment of the run, from which cases are made
    presses: int = 0                 # its budget of button presses, beside SPAN steps
    solved: bool = True              # did the run itself do it within SPAN steps?
    where: list | None = None        # [place, x, y] at which the run reached it
    call: dict | None = None         # {"skill_id", "args"}: only this call is made
    now: dict | None = None          # the brief state at its beginning

    @staticmethod
    def of(env: Env) -> "Case":
        """This moment."""
        seen = env.observe()
        return Case(base64.b85encode(env.save()).decode(), seen.key, [], now=brief(seen.state))

    @property
    def id(self) -> str:
        return digest(self.key, self.goal, self.call)

    def load(self, env: Env) -> None:
        env.load(base64.b85decode(self.state))

    def objective(self) -> Memory:
        """The goal in the agent's words: an entry of its memory, in the form that objectives have there."""
        kind, value = self.goal
        place = value if kind == "cell" else self.where
        words = KINDS[kind][1].format(value=value, spot="{} ({}, {})".format(*place) if place else "here")
        return Memory(words, path="objectives", importance=5, confidence=5)  # so that it stands first in the overview


def brief(state: dict) -> dict:
    """The part of an observation's state that goals speak of."""
    at, progress = state.get("player_position", {}), state["progress"]
    return {"place": state.get("location", ""), "x": at.get("x"), "y": at.get("y"),
            "text": state.get("context") in ("dialogue", "menu"), "battle": bool(state.get("battle")),
            "items": {i["name"]: i["quantity"] for i in state.get("bag", [])}, "dark": bool(state.get("map", {}).get("dark")),
            "milestones": list(progress["reached"]), "presses": progress["presses"], "over": bool(state.get("over"))}


def reached(goal: list, now: dict) -> bool:
    """Does the goal hold in this brief state?"""
    return KINDS[goal[0]][0](goal[1], now)


def goals(old: dict, new: dict) -> list[list]:
    """What one step of the run came to, the most telling first; of the last four kinds only one."""
    out = [["milestone", m] for m in new["milestones"] if m not in old["milestones"]]
    out += [["item", [name, n]] for name, n in new["items"].items() if n > old["items"].get(name, 0)]
    ended, moved = lambda what: old[what] and not new[what], old["place"] != new["place"]
    came = {"battle": ended("battle") and not moved, "text": ended("text") and not new["battle"],
            "place": moved and not old["battle"] and not new["battle"], "cell": (old["x"], old["y"]) != (new["x"], new["y"])}
    value = [new["place"], new["x"], new["y"]]
    return out + [[kind, value if kind == "cell" else new["place"]] for kind, so in came.items() if so][:1]


def hindsight(run: list[Case], step: Step, now: dict, rng: random.Random) -> list[Case]:
    """Cases that end with this step: one that starts within SPAN steps, and one from further back, that took too long.

    run: the moments before the last steps, this one's last. now: the brief state after it.
    """
    last, where, out = run[-1], [now[k] for k in ("place", "x", "y")], []
    budget = lambda at: 20 + 2 * (now["presses"] - at.now["presses"])
    make = lambda at, goal, **more: out.append(replace(at, goal=goal, presses=budget(at), **more))
    for goal in goals(last.now, now):
        before = lambda at, goal=goal: not reached(goal, at.now) and (goal[0] not in BUSY or at.now[goal[0]])
        starts = list(itertools.takewhile(before, reversed(run)))
        for solved, some in ((True, starts[:SPAN]), (False, starts[SPAN:])):
            if some := [at for at in some if goal[0] in BUSY or not any(at.now[k] for k in BUSY)]:
                make(rng.choice(some), goal, solved=solved, where=where)
    for call, result in zip(step.reply.calls[:1], step.results):
        if call.name != "run_skill" or "presses" not in result:               # it was not carried out
            break
        args, solved = call.args.get("args", {}), succeeded(result)
        # Of a call that failed only this much is known of what it was for: x and y are where it should have led.
        aim = [["cell", [last.now["place"], args["x"], args["y"]]]] if all(isinstance(args.get(k), int) for k in "xy") else []
        for goal in (goals(last.now, now) if solved else aim)[:1]:
            if not reached(goal, last.now):
                make(last, goal, solved=solved, call={"skill_id": call.args["skill_id"], "args": args})
    return out


def sample(pool: list[Case], size: int, rng: random.Random) -> list[Case]:
    """Solved and failed cases at the ratio SOLVED, a shortage of either filled from the other."""
    pool = rng.sample(pool, len(pool))
    good, bad, n = [c for c in pool if c.solved], [c for c in pool if not c.solved], min(size, len(pool))
    want = round(SOLVED * n)
    return (good[:want] + bad[:n - want] + good[want:] + bad[n - want:])[:n]
