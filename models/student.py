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
from functools import lru_cache

from models import Call, Message, ModelError, Reply, Usage, digest
from models.reading import PLAIN, content
from models.scripted import Turn
from models.theta import Row, Theta, row

TEXTS = ("blocked", ": text", "text closed", "not carried out", '"success": false', "milestones", '"things": [[')
Offer = tuple[str, str, dict, set[str]]                  # why, tool, arguments, g's words


def bucket(n: int) -> int:
    return sum(n >= limit for limit in (1, 2, 4, 8, 16))


def look(turn: Turn, messages: list[Message]) -> set[str]:
    """f's words: what the state is, what H offers, what was called last and what came of it."""
    view, last = turn.view, next((content(m) for m in reversed(messages) if m["role"] == "tool"), "")
    none = {"name": "", "arguments": ""}
    called = next((m["tool_calls"][0]["function"] for m in reversed(messages) if m.get("tool_calls")), none)
    worth = (len(view.unwritten) >= 2 or view.bumps >= 3) and view.asked >= 12
    pressed = re.findall('"([A-Z]+)"', called["arguments"])[:1]
    return {f"state {view.state}", f"menu {view.menu[0]}", f"menu {view.menu[:2]}", f"place {view.place}", f"dark {view.dark}",
            f"last {called['name']}", f"last {pressed}", f"agent {'return_control' in turn.tools}", f"worth noting {worth}",
            f"explored {view.place in view.explored}", f"pages {bucket(len(view.pages))}",
            *(f"saw {t}" for t in TEXTS if t in last),
            *(f"H has {name}" for name in ("walk", "fight", "dialogue") if turn.entry(name))}


def things(turn: Turn) -> list[tuple[set[str], tuple[int, int]]]:
    """What can be gone to: marked cells, ways off the map, floor from which more would be seen; each with its words."""
    view, (x, y) = turn.view, turn.view.pos
    far, tried = lambda c: abs(c[0] - x) + abs(c[1] - y), lambda c: bucket(view.tries[view.at(c)])
    steps, onward, out, new = view.distances(), turn.onward(), [], 0
    marked = [c for c in view.maps[view.place] if view.kind(c) not in PLAIN and not view.kind(c).startswith("ledge")]
    for cell in sorted(marked, key=lambda c: (far(c), c))[:24]:
        at, kind = view.at(cell), view.kind(cell)
        fresh = at not in view.leads.keys() | view.used.keys() | view.known.keys() and not view.moved(cell)
        lead, age = view.leads.get(at), "new" if fresh else "old"
        behind = "nowhere known" if lead is None else "explored" if lead in view.explored else "more"
        out.append(({
            age, f"{kind} {age}", f"far {bucket(far(cell))} {fresh}", f"tried {tried(cell)}", f"reach {cell in steps}",
            f"vain {min(view.vain(at), 3)}", f"lately {at in view.uses[-3:]}", f"shut {at in view.shut}", f"leads to {behind}",
            f"crossed {bucket(view.crossed[frozenset((lead or '', view.place))])}", f"onward {cell == onward}",
            f"new, number {new}" if fresh else f"old, tried {tried(cell)}"}, cell))
        new += fresh
    edges = sorted(view.edges_untried(), key=lambda c: (far(c), c))[:2]
    out += [({"edge", f"edge far {bucket(far(c))}", f"edge tried {tried(c)}"}, c) for c in edges]
    return out + [({"frontier", f"frontier {i} {min(new, 2)}", f"frontier tried {tried(c)}"}, c)
                  for i, (_, c) in enumerate(turn.frontier()[:6])]


def offers(messages: list[Message], tools: list[dict]) -> tuple[set[str], list[Offer]]:
    """(f's words, what can be called). The same messages give the same offers."""
    return list_offers(json.dumps([messages, tools]))


@lru_cache(512)                      # what was played is learned from soon after
def list_offers(prompt: str) -> tuple[set[str], list[Offer]]:
    messages, tools = json.loads(prompt)
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    turn, out = Turn(0, messages, schemas), {}
    view, press, (kind, cursor, options), steps = turn.view, turn.press, turn.view.menu, turn.view.distances()
    view.distances = lambda: steps           # asked for once a thing
    walks = view.state == "overworld" and "return_control" not in schemas

    def add(words: set[str], why: str, tool: str, args: dict) -> None:
        key = digest(tool, blank(args))
        *first, known = out.get(key, (why, tool, args, {tool}))
        out[key] = (*first, known | words)

    if press.tool:
        for name in press.names:
            add({f"press {name}"}, f"press {name}", *press([name], "one press"))
        if view.state == "battle":
            add({"press A twice"}, "read on", *press(["A", "A"], "a text in the battle"))
        for words, cell in things(turn) if walks else ():
            add(words, *turn.approach(cell))
        at = options.index(cursor) if cursor in options else 0
        for i, option in enumerate(options):
            way = ["DOWN"] * (i - at) + ["UP"] * (at - i)
            if kind == "battle menu":                    # two columns
                way = ["UP"] * (at // 2) + ["LEFT"] * (at % 2) + ["DOWN"] * (i // 2) + ["RIGHT"] * (i % 2)
            add({f"option {i}", f"{kind} {i}"}, f"choose {option}", *press([*way, "A"], f"choose {option}"))
    said = f"it says: {' / '.join(view.pages)[:300]}" if view.pages else f"done at {view.place} {view.pos}"
    for word, why, tool, args in (
            ("fight", "fight", "run_skill", {"skill_id": turn.entry("fight"), "args": {}, "reasoning": "in a battle"}),
            ("helper", "a text: the dialogue helper reads it", "execute_custom_subagent", {
                "subagent_id": turn.entry("dialogue"), "task": "read the text to its end", "reasoning": "text on screen"}),
            ("evolve", "this is worth remembering", "evolve_harness", {
                "num_steps": 40, "reasoning": f"{len(view.unwritten)} new facts, {view.bumps} bumps"}),
            ("return", "the text is closed", "return_control", {"reasoning": said})):
        if tool in schemas and "" not in args.values():  # "": H has no such entry
            add({word}, why, tool, args)
    explored = view.state == "overworld" and view.place not in view.explored and view.maps[view.place] and not turn.frontier()
    whole = [(f"{view.place} is explored" if explored else why, *rest) for why, *rest in out.values()]
    need = {tool: rules.get("required", [])[-1:] for tool, rules in schemas.items()}
    broken = [(why, tool, {k: v for k, v in args.items() if k not in need[tool]}, words | {"malformed"})
              for why, tool, args, words in whole if need[tool]]
    return look(turn, messages), whole + broken


def blank(args: dict | str) -> dict | str:
    """Arguments without the wording of the reason: two calls are the same when these are equal."""
    return {**args, "reasoning": ""} if isinstance(args, dict) and "reasoning" in args else args


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
    known = [(tool, blank(args)) for _, tool, args, _ in calls]
    said = [(a.name, blank(a.args)) for a in answers]
    return row(state, [words for *_, words in calls], map(known.index, said), weights) if all(s in known for s in said) else None
