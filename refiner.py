"""The Refiner (paper section 3.2): window -> failure signatures -> four passes -> delta; H <- H (+) delta.

It is the same model in another role. It reads the last steps of the trajectory and edits the prompt, the sub-agents, the
skills and the memory, one model call each, in that order; the next step already sees the new H. The schedule is 25 / 100.

Departures from the released reference: every call's arguments and results are in the window, each pass sees the whole of
what it edits with its use counts and last errors, and a pass is all or nothing: a reply that does not parse or validate is
asked for once more, with the error, and then changes nothing and is recorded as failed.
"""
import copy
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from env import Step
from harness import SCHEMAS, Edit, EditError, Harness, problems
from models import Reply, Usage, fill
from runlog import BadInput

PASSES = ("prompt", "subagents", "skills", "memory")
CHANGES = 5                          # changes of one kind that a pass may make
APOLOGY = re.compile(r"\s*(i'?m sorry|i am sorry|i apologi[sz]e|sorry,|as an ai\b|i can(?:no|')?t (?:help|assist|comply|do)|error:)", re.I)


@dataclass(frozen=True)
class Schedule:
    """Refine at `warmup`, then every `early` steps up to `until`, then at the multiples of `late`."""

    warmup: int = 25
    early: int = 25
    until: int = 200
    late: int = 100

    @staticmethod
    def parse(text: str) -> "Schedule":
        """"25,25,200,100" -> a schedule. Raises BadInput."""
        try:
            made = Schedule(*map(int, text.split(",")))
            if min(asdict(made).values()) < 1:
                raise ValueError
            return made
        except (ValueError, TypeError):
            raise BadInput(f"--schedule {text}: give four whole numbers above 0, as in 25,25,200,100") from None

    def due(self, before: int, now: int) -> bool:
        """A refinement falls due when its step is reached or crossed (sub-agents take many steps at once).

        >>> [t for t in range(1, 401) if Schedule().due(t - 1, t)]
        [25, 50, 75, 100, 125, 150, 175, 200, 300, 400]
        """
        return any(t >= self.warmup and t % (self.early if t <= self.until else self.late) == 0 for t in range(before + 1, now + 1))


# -- failure signatures: pure functions of the window

@dataclass(frozen=True)
class Signature:
    name: str
    severity: int                    # 1 worth knowing, 2 costs steps, 3 nothing works
    steps: list[int]                 # evidence
    text: str


def traces(window: list[Step]) -> Iterable[tuple[int, str]]:
    """(step, line of feedback) for each button press, inside skills and sub-agents too."""
    return ((s.t, line) for s in window for r in s.results for line in r.get("trace", []))


def failures(window: list[Step]) -> list[tuple[int, str, str]]:
    """(step, call, error) of every result that failed."""
    out = []
    for s in window:
        for call, result in zip(s.reply.calls, s.results):
            inner = [r for r in result.get("results", []) if isinstance(r, dict) and r.get("success") is False]
            if error := result.get("error") or (inner and inner[0].get("error")):
                out.append((s.t, f"{call.name} {json.dumps(call.args, sort_keys=True, ensure_ascii=False)[:200]}", str(error)[:300]))
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
    """Directions pressed in the overworld that did not move the player (the environment says so, never a guess)."""
    blocked = [(t, line) for t, line in traces(window) if line.endswith("blocked")]
    total = sum(1 for _, line in traces(window) if " -> " in line) + len(blocked)
    if len(blocked) < 4:
        return []
    worst = "; ".join(f"{line} ({len(steps)}x)" for line, steps in common(blocked, 1)[:3])
    return [Signature("blocked_moves", 2, sorted({t for t, _ in blocked}), f"{len(blocked)} of {total} moves were blocked: {worst}")]


def tool_errors(window: list[Step]) -> list[Signature]:
    errors = failures(window)
    return [Signature("tool_errors", 2, [t for t, _, _ in errors], f"{len(errors)} calls failed; the last: {errors[-1][1]}: {errors[-1][2]}")] if len(errors) >= 2 else []


def repeated_failing_call(window: list[Step]) -> list[Signature]:
    errors = failures(window)
    return [Signature("repeated_failing_call", 3, steps, f"the same call failed {len(steps)} times: {call}: {next(e for _, c, e in errors if c == call)}")
            for call, steps in common([(t, call) for t, call, _ in errors], 3)]


def stall(window: list[Step], least: int = 10) -> list[Signature]:
    """The world's key has not changed over the last `least` steps or more."""
    same = [s for i, s in enumerate(window) if all(x.key == window[-1].key for x in window[i:])]
    return [Signature("stall", 3, [s.t for s in same], f"nothing has changed in the last {len(same)} steps at {same[-1].place}")] if len(same) >= least else []


def repeated_dialogue(window: list[Step]) -> list[Signature]:
    texts = [(t, line.split(": text: ", 1)[1]) for t, line in traces(window) if ": text: " in line]
    return [Signature("repeated_dialogue", 2, steps, f"the same text came up {len(steps)} times: {text}") for text, steps in common(texts, 3)[:2]]


def unexplored_exits(window: list[Step]) -> list[Signature]:
    """Doors that were in view and lead to a place where no step of the window was taken."""
    doors = [(s.t, d) for s in window if s.obs for l in s.obs.splitlines() if l.startswith("Doors: ") for d in l[7:].split("; ")]
    been = {s.place.split(" (")[0] for s in window}
    new = [(door, steps) for door, steps in common(doors, 1) if door.split(" to ")[-1] not in been]
    return [Signature("unexplored_exits", 1, new[0][1][-5:], "seen but not taken: " + "; ".join(d for d, _ in new))] if new else []


def code_without_skill(window: list[Step]) -> list[Signature]:
    calls = [(s.t, c.name) for s in window for c in s.reply.calls]
    codes = [t for t, name in calls if name == "run_code"]
    return [Signature("code_without_skill", 1, codes, f"run_code {len(codes)} times and no skill run: make the code a skill")] \
        if len(codes) >= 3 and all(name != "run_skill" for _, name in calls) else []


DETECTORS = (repeated_failing_call, stall, tool_errors, blocked_moves, navigation_loop, repeated_dialogue, unexplored_exits, code_without_skill)


def signatures(window: list[Step]) -> list[Signature]:
    """All failure signatures of a window, most severe first."""
    return sorted((s for detect in DETECTORS if window for s in detect(window)), key=lambda s: -s.severity)


# -- the four passes

def answer_schema(part: str) -> dict:
    """The JSON that a pass must answer with."""
    if part == "prompt":
        return {"type": "object", "properties": {"analysis": {"type": "string"}, "prompt": {"type": ["string", "null"]}},
                "required": ["prompt"], "additionalProperties": False}
    many = lambda item: {"type": "array", "items": item, "maxItems": CHANGES}
    known = {"id": {"type": "string"}, "why": {"type": "string"}}
    fields = {"type": "object", "properties": {**SCHEMAS[part]["properties"], **known}, "additionalProperties": False}
    return {"type": "object", "additionalProperties": False, "properties": {
        "analysis": {"type": "string"}, "create": many(fields | {"required": SCHEMAS[part]["required"]}),
        "update": many(fields | {"required": ["id"]}), "delete": many({"type": "object", "properties": known, "required": ["id"], "additionalProperties": False})}}


def contents(harness: Harness, part: str) -> str:
    """What the pass edits, whole, with how it was used."""
    if part == "prompt":
        return harness.prompt
    entries = []
    for id, entry in getattr(harness, part).items():
        use = harness.uses.get(id)
        count = f"used {use.calls} times, {use.successes} with success, last at step {use.last_step}" if use else "never used"
        error = f"; last error: {use.last_error}" if use and use.last_error else ""
        entries.append(f"### {id} ({count}{error})\n" + "\n".join(f"{k}: {v}" for k, v in asdict(entry).items() if v not in ("", [])))
    return "\n\n".join(entries) or "(none yet)"


def question(harness: Harness, part: str, window: list[Step], found: list[Signature], observation: str, tools: Iterable[str]) -> str:
    facts = {"signatures": "\n".join(f"- {s.name} (severity {s.severity}, steps {', '.join(map(str, s.steps[-12:]))}): {s.text}" for s in found) or "- none",
             "window": "\n".join(s.line() for s in window), "observation": observation, "current": contents(harness, part),
             "schema": json.dumps(answer_schema(part))}
    if part != "prompt":
        facts["tools"] = ", ".join(tools)
    return fill(f"refine_{part}", **facts)


def parse(text: str, part: str) -> dict:
    """The JSON object in a reply. Raises EditError with what is wrong."""
    start = text.find("{")
    try:
        row = json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else None
    except ValueError as e:
        raise EditError(f"the reply is not valid JSON: {e}") from None
    if not isinstance(row, dict):
        raise EditError("the reply holds no JSON object")
    if wrong := problems(row, answer_schema(part)):
        raise EditError(wrong)
    return row


def delta(harness: Harness, part: str, row: dict, step: int, tools: Iterable[str]) -> list[Edit]:
    """A pass's answer -> checked edits; `harness` is not changed. Raises EditError: then none of them is made."""
    trial, edits = copy.deepcopy(harness), []
    make = lambda op, id, value, why: edits.append(trial.edit(op, part, id, value, by="refiner", step=step, why=why, known_tools=tools))
    why = row.get("analysis", "")
    if part == "prompt":
        new = re.sub(r"^\s*IMPROVED BASE PROMPT:\s*", "", row["prompt"] or "")
        if APOLOGY.match(new):
            raise EditError(f"the prompt reads like an apology or an error, not like a policy: {new[:80]!r}")
        if row["prompt"] is not None and new.strip() != harness.prompt.strip():
            make("update", "", new, why)
        return edits
    for op in ("create", "update", "delete"):
        for entry in row.get(op, []):
            fields = {k: v for k, v in entry.items() if k not in ("id", "why")}
            make(op, entry.get("id", ""), ({"source": "evolved"} if op == "create" else {}) | fields, entry.get("why") or why)
    return edits


def run_pass(harness: Harness, part: str, text: str, ask: Callable[[str, list, list], Reply], step: int, tools: Iterable[str]) -> tuple[list[Edit], dict]:
    """One model call, and one more with the error when its answer is not accepted. Returns the edits and the log's entry."""
    messages, errors, usage = [{"role": "user", "content": text}], [], Usage()
    for _ in range(2):
        reply = ask(f"refine_{part}", messages, [])
        usage += reply.usage
        try:
            edits = delta(harness, part, parse(reply.text, part), step, tools)
            return edits, {"part": part, "status": "edited" if edits else "unchanged", "edits": [e.version for e in edits], "errors": errors, "usage": asdict(usage)}
        except EditError as e:
            errors.append(str(e))
            messages = messages + [{"role": "assistant", "content": reply.text or "(empty)"},
                                   {"role": "user", "content": f"Not accepted, nothing has changed: {e}\nAnswer again with the whole JSON object."}]
    return [], {"part": part, "status": "failed", "edits": [], "errors": errors, "usage": asdict(usage)}


def refine(harness: Harness, window: list[Step], observation: str, ask: Callable[[str, list, list], Reply], *, step: int, cause: str,
           tools: Iterable[str], on_edit: Callable[[Edit], None] = lambda edit: None) -> dict:
    """Read the window, edit H in place, return the refinement's row for refinements.jsonl."""
    found, passes = signatures(window), []
    for part in PASSES:
        edits, entry = run_pass(harness, part, question(harness, part, window, found, observation, tools), ask, step, tools)
        for edit in edits:
            harness.apply(edit)
            on_edit(edit)
        passes.append(entry)
    return {"step": step, "cause": cause, "window": [window[0].t, window[-1].t] if window else [], "signatures": [asdict(s) for s in found],
            "passes": passes, "version": harness.version}


def main(argv: list[str] | None = None) -> int:
    """`python refiner.py TREE LOG...`: the same four passes over a coding agent's workspace and the logs of its sessions."""
    from tools import evolve
    return evolve.main(argv)


if __name__ == "__main__":
    sys.exit(main())
