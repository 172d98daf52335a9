"""Failure signatures (paper section 3.2): pure functions of a window of steps, each with its evidence and a severity.

A signature fires on what the environment and the tools reported, never on a guess: a press that did not move the player is a
blocked move only where the environment says so. The released reference finds failures in text that its trajectory does not
hold; here every call's arguments and results are there. A new signature is a function in DETECTORS.
"""
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from env import Step
from models import Call


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
    """(step, call, error) of every result that failed."""
    out = []
    for s, call, result in calls(window):
        inner = [r for r in result.get("results", []) if isinstance(r, dict) and r.get("success") is False]
        if error := result.get("error") or (inner and inner[0].get("error")):
            out.append((s.t, shown(call), str(error)[:300]))
    return out


def common(pairs: Iterable[tuple[int, str]], least: int) -> list[tuple[str, list[int]]]:
    """What occurs at least `least` times, most frequent first, with its steps."""
    pairs = list(pairs)
    return [(what, [t for t, w in pairs if w == what]) for what, n in Counter(w for _, w in pairs).most_common(5) if n >= least]


def navigation_loop(window: list[Step]) -> list[Signature]:
    """The same places again and again while nothing was reached."""
    since = max((i + 1 for i, s in enumerate(window) if s.milestones), default=0)
    arrivals = [(b.t, b.place) for a, b in zip(window[since:], window[since + 1:]) if a.place != b.place]
    return [Signature("navigation_loop", 2, steps, f"came back to {place} {len(steps)} times with no milestone in between")
            for place, steps in common(arrivals, 4)[:2]]


def blocked_moves(window: list[Step]) -> list[Signature]:
    """Directions pressed in the overworld that did not move the player (the environment says so, never a guess).

    To turn towards a person or a thing that is then used is not one.
    """
    lines = list(traces(window))
    after = [line for _, line in lines[1:]] + [""]
    blocked = [(t, line) for (t, line), then in zip(lines, after) if line.endswith("blocked") and " at '" not in then]
    total = sum(1 for _, line in lines if " -> " in line or line.endswith("blocked"))
    if len(blocked) < 4:
        return []
    worst = "; ".join(f"{line} ({len(steps)}x)" for line, steps in common(blocked, 1)[:3])
    steps = sorted({t for t, _ in blocked})
    return [Signature("blocked_moves", 2, steps, f"{len(blocked)} of {total} moves were blocked: {worst}")]


def schema_mismatch(window: list[Step]) -> list[Signature]:
    """Calls of a tool that never got through because they do not fit its schema; each reads like an action and is none."""
    refused = [(s.t, c, r) for s, c, r in calls(window) if " was not carried out: " in str(r.get("error")) and "takes" in r]
    out = []
    for name, steps in common([(t, c.name) for t, c, _ in refused], 2):
        call, result = next((c, r) for _, c, r in reversed(refused) if c.name == name)
        wrong, takes = result["error"].partition(": ")[2], json.dumps(result["takes"])
        text = f"{shown(call)} does not fit what {name} takes, {takes[:400]}; the difference: {wrong[:200]}"
        out.append(Signature("schema_mismatch", 3, steps, f"{len(steps)} calls did nothing: {text}"))
    return out


def broken_skills(window: list[Step]) -> list[Signature]:
    """Skills that stopped with an error and have not run without one since."""
    last = {c.args["skill_id"]: (c, r) for _, c, r in calls(window, "run_skill") if r.get("skill_id")}
    out = []
    for id, (call, result) in last.items():
        if result.get("traceback"):
            steps = [s.t for s, c, r in calls(window, "run_skill") if r.get("skill_id") == id and r.get("traceback")]
            args = json.dumps(call.args.get("args", {}))[:200]
            text = f"{id} with args {args} failed at line {result['line']}: {result['error']}"
            out.append(Signature("broken_skill", 3, steps, text))
    return out


def tool_errors(window: list[Step]) -> list[Signature]:
    errors = failures(window)
    if len(errors) < 2:
        return []
    text = f"{len(errors)} calls failed; the last: {': '.join(errors[-1][1:])}"
    return [Signature("tool_errors", 2, [t for t, _, _ in errors], text)]


def repeated_failing_call(window: list[Step]) -> list[Signature]:
    """The same arguments, the same error, and none of the kind (this tool, this skill) that went well since."""
    kind = lambda c: (c.name, c.args.get("skill_id") if isinstance(c.args, dict) else None)
    went = {kind(c): s.t for s, c, r in calls(window) if r.get("success")}
    ended = {shown(c): went.get(kind(c), -1) for _, c, _ in calls(window)}
    errors = [(t, call, error) for t, call, error in failures(window) if t > ended[call]]
    said = {call: error for _, call, error in errors}
    return [Signature("repeated_failing_call", 3, steps, f"the same call failed {len(steps)} times: {call}: {said[call]}")
            for call, steps in common([(t, call) for t, call, _ in errors], 3)]


def stall(window: list[Step], least: int = 10) -> list[Signature]:
    """Over the last `least` steps or more the world has only gone round in circles: each of its keys came three times or more."""
    for start in range(len(window) - least + 1):
        tail = window[start:]
        if 3 * len({s.key for s in tail}) <= len(tail) and not any(s.milestones for s in tail):
            return [Signature("stall", 3, [s.t for s in tail], f"nothing new in the last {len(tail)} steps at {tail[-1].place}")]
    return []


def repeated_dialogue(window: list[Step]) -> list[Signature]:
    """The same thing said the same when it was asked again and again; a battle's menus are nobody's words."""
    texts = [(t, line.partition(" at ")[2]) for t, line in traces(window) if " at '" in line and ": text: " in line]
    return [Signature("repeated_dialogue", 2, steps, f"the same text came up {len(steps)} times: {text}")
            for text, steps in common(texts, 3)[:2]]


def lost(window: list[Step]) -> list[int]:
    """Steps in which a battle was lost, as the environment tells."""
    return [t for t, line in traces(window) if "[the battle is lost]" in line]


def lost_battles(window: list[Step]) -> list[Signature]:
    steps = lost(window)
    return [Signature("lost_battle", 2, steps, f"battles lost: {len(steps)}")] if steps else []


def no_call(window: list[Step]) -> list[Signature]:
    mute = [s.t for s in window if not s.reply.calls]
    text = f"{len(mute)} replies did nothing: they held no tool call"
    return [Signature("no_tool_call", 2, mute, text)] if len(mute) >= 3 else []


def capped_subagents(window: list[Step]) -> list[Signature]:
    ran = calls(window, "execute_custom_subagent")
    capped = [(s.t, c.args.get("subagent_id", "inline")) for s, c, r in ran if r.get("hit_safety_cap")]
    return [Signature("capped_subagent", 2, steps, f"{who} used up its turns {len(steps)} times and returned nothing")
            for who, steps in common(capped, 2)]


def unexplored_exits(window: list[Step]) -> list[Signature]:
    """Doors that were in view and lead to a place where no step of the window was taken."""
    doors = [(s.t, d) for s in window if s.obs for l in s.obs.splitlines() if l.startswith("Doors: ") for d in l[7:].split("; ")]
    been = {s.place.split(" (")[0] for s in window}
    new = [(door, steps) for door, steps in common(doors, 1) if door.split(" to ")[-1] not in been]
    text = "seen but not taken: " + "; ".join(door for door, _ in new)
    return [Signature("unexplored_exits", 1, new[0][1][-5:], text)] if new else []


def code_without_skill(window: list[Step]) -> list[Signature]:
    calls = [(s.t, c.name) for s in window for c in s.reply.calls]
    codes = [t for t, name in calls if name == "run_code"]
    return [Signature("code_without_skill", 1, codes, f"run_code {len(codes)} times and no skill run: make the code a skill")] \
        if len(codes) >= 3 and all(name != "run_skill" for _, name in calls) else []


DETECTORS = (repeated_failing_call, schema_mismatch, broken_skills, stall, tool_errors, blocked_moves, navigation_loop,
             repeated_dialogue, lost_battles, no_call, capped_subagents, unexplored_exits, code_without_skill)


def signatures(window: list[Step]) -> list[Signature]:
    """All failure signatures of a window, most severe first, each with the calls and places of its steps."""
    found = sorted((s for detect in DETECTORS if window for s in detect(window)), key=lambda s: -s.severity)
    rows = lambda s: [step for step in window if step.t in s.steps]
    return [replace(s, calls=tuple(dict.fromkeys(c.name for row in rows(s) for c in row.reply.calls)),
                    places=tuple(dict.fromkeys(row.place for row in rows(s)))) for s in found]


def worked(window: list[Step]) -> str:
    """What was done in the steps up to each milestone: sequences to make skills of."""
    out = []
    for i, s in enumerate(window):
        if s.milestones:
            before = [f"[{x.t}] {shown(c)}" for x, c, r in calls(window[max(i - 5, 0):i + 1]) if r.get("success")]
            out.append(f"- {', '.join(s.milestones)}: " + "; ".join(before))
    return "\n".join(out[-5:]) or "- none"
