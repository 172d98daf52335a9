"""The student: theta as an agent, without a GPU. Its eyes and hands are the scripted model's; what to do is all that it learns.

    --model student                            theta_0: the untrained base, random and frozen
    --model student:RUN/theta_3/theta.npz      the base with an adapter that sft.py trained

`offers` lists the calls that a state offers: buttons, walks to what is known, what H holds; each also malformed, since a model
has to learn the format too. theta.py chooses. Departure from the paper, whose theta is an open language model: a few thousand
numbers, so that the whole loop runs in minutes. It shows the mechanism and proves nothing about language models.
"""
import json
import random
import re

from models import Call, Message, ModelError, Reply, Usage, digest
from models.reading import PLAIN, content
from models.scripted import Turn
from models.theta import Row, Theta, row

TEXTS = ("blocked", ": text", "text closed", "not carried out", '"success": false', "milestones", '"things": [[')
KEPT: dict[str, tuple] = {}


def bucket(n: int) -> int:
    return sum(n >= limit for limit in (1, 2, 4, 8, 16))


def look(turn: Turn, messages: list[Message]) -> set[str]:
    """f's words: what the state is, what H offers, what was called last and what came of it."""
    view, last = turn.view, next((content(m) for m in reversed(messages) if m["role"] == "tool"), "")
    none = {"name": "", "arguments": ""}
    call = next((m["tool_calls"][0]["function"] for m in reversed(messages) if m.get("tool_calls")), none)
    pressed = re.findall('"([A-Z]+)"', call["arguments"])
    worth = len(view.unwritten) >= 2 or view.bumps >= 3
    return {f"state {view.state}", f"menu {view.menu[0]}", f"menu {view.menu[:2]}", f"place {view.place}", f"dark {view.dark}",
            f"last {call['name']}", f"last {pressed[:1]}", f"agent {'return_control' in turn.tools}",
            f"worth noting {worth and view.asked >= 12}", f"explored {view.place in view.explored}",
            f"pages {bucket(len(view.pages))}", *(f"saw {t}" for t in TEXTS if t in last),
            *(f"H has {name}" for name in ("walk", "fight", "dialogue") if turn.entry(name))}


def things(turn: Turn) -> list[tuple[set[str], tuple[int, int]]]:
    """What can be gone to: marked cells, ways off the map, floor from which more would be seen; each with its words."""
    view, (x, y) = turn.view, turn.view.pos
    steps = view.distances()
    far, out, new = lambda c: abs(c[0] - x) + abs(c[1] - y), [], 0
    marked = [c for c in view.maps[view.place] if turn.view.kind(c) not in PLAIN and not view.kind(c).startswith("ledge")]
    onward = turn.onward()
    for cell in sorted(marked, key=lambda c: (far(c), c))[:24]:
        at = view.at(cell)
        fresh = not {at} & (view.leads.keys() | view.used.keys() | view.known.keys()) and not view.moved(cell)
        lead, age, tried = view.leads.get(at), "new" if fresh else "old", bucket(view.tries[at])
        behind = "nowhere known" if lead is None else "explored" if lead in view.explored else "more"
        crossed = view.crossed[frozenset((lead or "", view.place))]
        out.append(({
            age, f"{view.kind(cell)} {age}", f"far {bucket(far(cell))} {fresh}", f"tried {tried}", f"reach {cell in steps}",
            f"vain {min(view.vain(at), 3)}", f"lately {at in view.uses[-3:]}", f"crossed {bucket(crossed)}", f"shut {at in view.shut}",
            f"leads to {behind}", f"onward {cell == onward}", f"new, number {new}" if fresh else f"old, tried {tried}"}, cell))
        new += fresh
    tried = lambda c: bucket(view.tries[view.at(c)])
    edges = sorted(view.edges_untried(), key=lambda c: (far(c), c))[:2]
    out += [({"edge", f"edge far {bucket(far(c))}", f"edge tried {tried(c)}"}, c) for c in edges]
    return out + [({"frontier", f"frontier {i} {min(new, 2)}", f"frontier tried {tried(c)}"}, c)
                  for i, (_, c) in enumerate(turn.frontier()[:6])]


def offers(messages: list[Message], tools: list[dict]) -> tuple[set[str], list[tuple[str, str, dict, set[str]]]]:
    """(words of the state, [(why, tool, arguments, words of the call)]). The same messages give the same offers; those of the
    last states are kept, since what was played is learned from soon after."""
    key = digest(messages, tools)
    if key not in KEPT:
        KEPT[key] = list_offers(messages, tools)
        if len(KEPT) > 512:
            del KEPT[next(iter(KEPT))]
    return KEPT[key]


def list_offers(messages: list[Message], tools: list[dict]) -> tuple[set[str], list[tuple[str, str, dict, set[str]]]]:
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    turn, out = Turn(0, messages, schemas), {}
    view, kept = turn.view, turn.rng.getstate()
    steps = view.distances()
    view.distances = lambda: steps           # asked for once a thing

    def add(words: set[str], why: str, tool: str, args: dict) -> None:
        key = tool + json.dumps({k: v for k, v in args.items() if k != "reasoning"}, sort_keys=True)
        out[key] = (*out[key][:3], out[key][3] | words) if key in out else (why, tool, args, words | {tool})

    if turn.press.tool:
        for name in turn.press.names:
            add({f"press {name}"}, f"press {name}", *turn.press([name], "one press"))
        if view.state == "battle":
            add({"press A twice"}, "read on", *turn.press(["A", "A"], "a text in the battle"))
    if view.state == "overworld" and "return_control" not in schemas and turn.press.tool:
        for words, cell in things(turn):
            turn.rng.setstate(kept)
            add(words, *turn.approach(cell))
    kind, cursor, options = view.menu
    for i, option in enumerate(options if turn.press.tool else ()):
        at = options.index(cursor) if cursor in options else 0
        way = ["DOWN"] * (i - at) + ["UP"] * (at - i)
        if kind == "battle menu":                        # two columns
            way = ["UP"] * (at // 2) + ["LEFT"] * (at % 2) + ["DOWN"] * (i // 2) + ["RIGHT"] * (i % 2)
        add({f"option {i}", f"{kind} {i}"}, f"choose {option}", *turn.press([*way, "A"], f"choose {option}"))
    if "run_skill" in schemas and (skill := turn.entry("fight")):
        add({"fight"}, "fight", "run_skill", {"skill_id": skill, "args": {}, "reasoning": "in a battle"})
    if "execute_custom_subagent" in schemas and (helper := turn.entry("dialogue")):
        add({"helper"}, "a text: the dialogue helper reads it", "execute_custom_subagent",
            {"subagent_id": helper, "task": "read the text to its end", "reasoning": "text on screen"})
    if "evolve_harness" in schemas:
        why = f"{len(view.unwritten)} new facts, {view.bumps} bumps"
        add({"evolve"}, "this is worth remembering", "evolve_harness", {"num_steps": 40, "reasoning": why})
    if "return_control" in schemas:
        said = f"it says: {' / '.join(view.pages)[:300]}" if view.pages else f"done at {view.place} {view.pos}"
        add({"return"}, "the text is closed", "return_control", {"reasoning": said})
    explored = view.state == "overworld" and view.place not in view.explored and view.maps[view.place] and not turn.frontier()
    whole = [(f"{view.place} is explored" if explored else why, *rest) for why, *rest in out.values()]
    need = {tool: rules.get("required", [])[-1:] for tool, rules in schemas.items()}
    cut = lambda tool, args: {k: v for k, v in args.items() if k not in need[tool]}
    broken = [(why, tool, cut(tool, args), words | {"malformed"}) for why, tool, args, words in whole if need[tool]]
    return look(turn, messages), whole + broken


def same(args: dict | str, other: dict) -> bool:
    """Equal but for the words."""
    strip = lambda a: {k: v for k, v in a.items() if k != "reasoning"} if isinstance(a, dict) else a
    return strip(args) == strip(other)


class Student:
    """theta at temperature 1. The draw comes from the messages and the seed alone, so a resumed run goes on the same."""

    def __init__(self, path: str = "", seed: int = 0):
        self.theta, self.seed = Theta.load(path), seed

    def __call__(self, messages: list[Message], tools: list[dict]) -> Reply:
        if not tools:
            raise ModelError("the student only plays: --refiner-model, --teacher-model and --judge-model must be others")
        state, calls = offers(messages, tools)
        if not calls:
            raise ModelError("the student knows no call of these tools; use --model with a real one")
        p = self.theta.probs(row(state, [words for *_, words in calls]))
        why, tool, args, _ = random.Random(digest(self.seed, messages)).choices(calls, p)[0]
        return Reply(why, [Call(f"c{len(messages):08d}", tool, args)], Usage(dollars=0.0))


def learn(messages: list[Message], tools: list[dict], answers: list[Call], weights: list[float]) -> Row | None:
    """A state with the calls to be learned there; None when one of them is not among those that the student can make."""
    state, calls = offers(messages, tools)
    found = [next((i for i, (_, tool, args, _) in enumerate(calls) if tool == a.name and same(a.args, args)
                   and (isinstance(a.args, dict) and a.args.keys() == args.keys())), -1) for a in answers]
    return None if -1 in found else row(state, [words for *_, words in calls], found, weights)
