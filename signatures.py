"""Failure signatures (paper section 3.2): pure functions of a window of steps, each with its evidence and a severity.

A signature fires on what the environment and the tools reported, never on a guess: a press that did not move the player is a
blocked move only where the environment says so. The released reference finds failures in text that its trajectory does not
hold; here every call's arguments and results are there. A new signature is a generator of (steps, text) in DETECTORS.
"""
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from env import Step
from models import Call

Found = Iterator[tuple[list[int], str]]                  # the steps that are the evidence, and what they show


@dataclass(frozen=True)
class Signature:
    name: str
    severity: int                    # 1 worth knowing, 2 costs steps, 3 nothing works
    steps: list[int]                 # evidence
    text: str
    calls: tuple[str, ...] = ()      # what was called, and where, in these steps
    places: tuple[str, ...] = ()

    def line(self) -> str:
        steps, calls, places = ", ".join(map(str, self.steps[-12:])), ", ".join(self.calls), "; ".join(self.places[:4])
        return f"- {self.name} (severity {self.severity}, steps {steps}, {calls} at {places}): {self.text}"


def traces(window: list[Step]) -> Iterable[tuple[int, str]]:
    """(step, line of feedback) for each button press, inside skills and sub-agents too."""
    return ((s.t, line) for s in window for r in s.results for line in r.get("trace", []))


def calls(window: list[Step], name: str = "") -> Iterable[tuple[Step, Call, dict]]:
    """(step, call, result) of all calls, or of those of one tool."""
    return ((s, c, r) for s in window for c, r in zip(s.reply.calls, s.results) if name in ("", c.name))


def shown(call: Call) -> str:
    """A call without its reasoning: that may be new each time."""
    args = {k: v for k, v in call.args.items() if k != "reasoning"} if isinstance(call.args, dict) else call.args
    return f"{call.name} {json.dumps(args, sort_keys=True, ensure_ascii=False)[:200]}"


def failures(window: list[Step]) -> list[tuple[int, str, str]]:
    """(step, call, error) of every result that failed, or that holds an entry that failed."""
    inner = lambda r: (x.get("error") for x in r.get("results", []) if isinstance(x, dict) and x.get("success") is False)
    errors = ((s.t, shown(c), r.get("error") or next(inner(r), "")) for s, c, r in calls(window))
    return [(t, call, str(error)[:300]) for t, call, error in errors if error]


def common(pairs: Iterable[tuple[int, str]], least: int) -> list[tuple[str, list[int]]]:
    """What occurs at least `least` times, most frequent first, with its steps."""
    pairs = list(pairs)
    return [(what, [t for t, w in pairs if w == what]) for what, n in Counter(w for _, w in pairs).most_common(5) if n >= least]


def navigation_loop(window: list[Step]) -> Found:
    """The same places again and again while nothing was reached."""
    since = max((i + 1 for i, s in enumerate(window) if s.milestones), default=0)
    arrivals = [(b.t, b.place) for a, b in zip(window[since:], window[since + 1:]) if a.place != b.place]
    for place, steps in common(arrivals, 4)[:2]:
        yield steps, f"came back to {place} {len(steps)} times with no milestone in between"


def blocked_moves(window: list[Step]) -> Found:
    """Moves that the environment calls blocked; to turn towards a person or a thing that is then used is not one."""
    lines = list(traces(window))
    after = [line for _, line in lines[1:]] + [""]
    blocked = [(t, line) for (t, line), then in zip(lines, after) if line.endswith("blocked") and " at '" not in then]
    if len(blocked) >= 4:
        total = sum(" -> " in line or line.endswith("blocked") for _, line in lines)
        worst = "; ".join(f"{line} ({len(steps)}x)" for line, steps in common(blocked, 1)[:3])
        yield sorted({t for t, _ in blocked}), f"{len(blocked)} of {total} moves were blocked: {worst}"


def schema_mismatch(window: list[Step]) -> Found:
    """Calls of a tool that never got through because they do not fit its schema; each reads like an action and is none."""
    refused = [(s.t, c, r) for s, c, r in calls(window) if " was not carried out: " in str(r.get("error")) and "takes" in r]
    last = {c.name: (c, r) for _, c, r in refused}
    for name, steps in common([(t, c.name) for t, c, _ in refused], 2):
        call, result = last[name]
        wrong, takes = result["error"].partition(": ")[2], json.dumps(result["takes"])
        text = f"{shown(call)} does not fit what {name} takes, {takes[:400]}; the difference: {wrong[:200]}"
        yield steps, f"{len(steps)} calls did nothing: {text}"


def broken_skill(window: list[Step]) -> Found:
    """Skills that stopped with an error and have not run without one since."""
    ran = [(s.t, c, r) for s, c, r in calls(window, "run_skill") if r.get("skill_id")]
    for id, (call, result) in {r["skill_id"]: (c, r) for _, c, r in ran}.items():
        if result.get("traceback"):
            args = json.dumps(call.args.get("args", {}))[:200]
            yield ([t for t, _, r in ran if r["skill_id"] == id and r.get("traceback")],
                   f"{id} with args {args} failed at line {result['line']}: {result['error']}")


def tool_errors(window: list[Step]) -> Found:
    errors = failures(window)
    if len(errors) >= 2:
        yield [t for t, _, _ in errors], f"{len(errors)} calls failed; the last: {': '.join(errors[-1][1:])}"


def repeated_failing_call(window: list[Step]) -> Found:
    """The same arguments, the same error, and none of the kind (this tool, this skill) that went well since."""
    kind = lambda c: (c.name, c.args.get("skill_id") if isinstance(c.args, dict) else None)
    went = {kind(c): s.t for s, c, r in calls(window) if r.get("success")}
    ended = {shown(c): went.get(kind(c), -1) for _, c, _ in calls(window)}
    errors = [(t, call, error) for t, call, error in failures(window) if t > ended[call]]
    said = {call: error for _, call, error in errors}
    for call, steps in common([(t, call) for t, call, _ in errors], 3):
        yield steps, f"the same call failed {len(steps)} times: {call}: {said[call]}"


def stall(window: list[Step], least: int = 10) -> Found:
    """Over the last `least` steps or more the world has only gone round in circles: each of its keys came three times or more."""
    circles = lambda tail: 3 * len({s.key for s in tail}) <= len(tail) and not any(s.milestones for s in tail)
    tail = next(filter(circles, (window[i:] for i in range(len(window) - least + 1))), [])
    if tail:
        yield [s.t for s in tail], f"nothing new in the last {len(tail)} steps at {tail[-1].place}"


def repeated_dialogue(window: list[Step]) -> Found:
    """The same thing said the same when it was asked again and again; a battle's menus are nobody's words."""
    texts = [(t, line.partition(" at ")[2]) for t, line in traces(window) if " at '" in line and ": text: " in line]
    for text, steps in common(texts, 3)[:2]:
        yield steps, f"the same text came up {len(steps)} times: {text}"


def lost(window: list[Step]) -> list[int]:
    """Steps in which a battle was lost, as the environment tells."""
    return [t for t, line in traces(window) if "[the battle is lost]" in line]


def lost_battle(window: list[Step]) -> Found:
    if steps := lost(window):
        yield steps, f"battles lost: {len(steps)}"


def no_tool_call(window: list[Step]) -> Found:
    mute = [s.t for s in window if not s.reply.calls]
    if len(mute) >= 3:
        yield mute, f"{len(mute)} replies did nothing: they held no tool call"


def capped_subagent(window: list[Step]) -> Found:
    ran = calls(window, "execute_custom_subagent")
    for who, steps in common([(s.t, c.args.get("subagent_id", "inline")) for s, c, r in ran if r.get("hit_safety_cap")], 2):
        yield steps, f"{who} used up its turns {len(steps)} times and returned nothing"


def unexplored_exits(window: list[Step]) -> Found:
    """Doors that were in view and lead to a place where no step of the window was taken."""
    doors = [(s.t, d) for s in window if s.obs for l in s.obs.splitlines() if l.startswith("Doors: ") for d in l[7:].split("; ")]
    been = {s.place.split(" (")[0] for s in window}
    new = [(door, steps) for door, steps in common(doors, 1) if door.split(" to ")[-1] not in been]
    if new:
        yield new[0][1][-5:], "seen but not taken: " + "; ".join(door for door, _ in new)


def code_without_skill(window: list[Step]) -> Found:
    codes = [s.t for s, c, _ in calls(window) if c.name == "run_code"]
    if len(codes) >= 3 and not any(calls(window, "run_skill")):
        yield codes, f"run_code {len(codes)} times and no skill run: make the code a skill"


DETECTORS = {3: (repeated_failing_call, schema_mismatch, broken_skill, stall),                          # by severity
             2: (tool_errors, blocked_moves, navigation_loop, repeated_dialogue, lost_battle, no_tool_call, capped_subagent),
             1: (unexplored_exits, code_without_skill)}


def signatures(window: list[Step]) -> list[Signature]:
    """All failure signatures of a window, most severe first, each with the calls and places of its steps."""
    found = []
    for severity, detect in ((severity, detect) for severity, many in DETECTORS.items() for detect in many):
        for steps, text in detect(window):
            rows = [step for step in window if step.t in steps]
            names = tuple(dict.fromkeys(c.name for row in rows for c in row.reply.calls))
            places = tuple(dict.fromkeys(row.place for row in rows))
            found.append(Signature(detect.__name__, severity, steps, text, names, places))
    return found


def worked(window: list[Step]) -> str:
    """What was done in the steps up to each milestone: sequences to make skills of."""
    done = lambda i: (f"[{s.t}] {shown(c)}" for s, c, r in calls(window[max(i - 5, 0):i + 1]) if r.get("success"))
    out = [f"- {', '.join(s.milestones)}: " + "; ".join(done(i)) for i, s in enumerate(window) if s.milestones]
    return "\n".join(out[-5:]) or "- none"
