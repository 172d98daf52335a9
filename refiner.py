"""The Refiner (paper section 3.2): window -> failure signatures -> four passes -> delta; H <- H (+) delta.

It is the same model in another role. It reads the last steps of the trajectory and edits the prompt, the sub-agents, the
skills and the memory, one model call each, in that order; the next step already sees the new H. The schedule is 25 / 100.

Departures from the released reference: every call's arguments and results are in the window, each pass sees the whole of
what it edits with its use counts and last errors, and a pass is all or nothing: a reply that does not parse or validate is
asked for once more, with the error, and then changes nothing and is recorded as failed. A changed skill goes live only
after a dry run. reuse.py adds what needs no model: confidence, near-duplicates, retirement.
"""
import copy
import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from env import Step
from harness import SCHEMAS, Edit, EditError, Harness, problems
from models import Reply, Usage, fill
from reuse import placed, upkeep
from runlog import BadInput
from signatures import Signature, calls, signatures, worked

DryRun = Callable[[str, str, dict | None], str]          # (id, code, example of args) -> what is wrong, "" if nothing
PASSES = ("prompt", "subagents", "skills", "memory")
CHANGES = 5                          # changes of one kind that a pass may make
APOLOGY = re.compile(r"\s*(i'?m sorry|i am sorry|i apologi[sz]e|sorry,|as an ai\b|error:|"
                     r"i can(?:no|')?t (?:help|assist|comply|do))", re.I)


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
        if not re.fullmatch(r"0*[1-9]\d*(,0*[1-9]\d*){3}", text):
            raise BadInput(f"--schedule {text}: give four whole numbers above 0, as in 25,25,200,100")
        return Schedule(*map(int, text.split(",")))

    def due(self, before: int, now: int) -> bool:
        """A refinement falls due when its step is reached or crossed (sub-agents take many steps at once).

        >>> [t for t in range(1, 401) if Schedule().due(t - 1, t)]
        [25, 50, 75, 100, 125, 150, 175, 200, 300, 400]
        """
        period = lambda t: self.early if t <= self.until else self.late
        return any(t >= self.warmup and t % period(t) == 0 for t in range(before + 1, now + 1))


# -- the four passes

def answer_schema(part: str) -> dict:
    """The JSON that a pass must answer with."""
    if part == "prompt":
        return {"type": "object", "properties": {"analysis": {"type": "string"}, "prompt": {"type": ["string", "null"]}},
                "required": ["prompt"], "additionalProperties": False}
    many = lambda item, need: {"type": "array", "items": {**item, "required": need}, "maxItems": CHANGES}
    known = {"id": {"type": "string"}, "why": {"type": "string"}}
    trial = {"example": {"type": "object", "description": "args for the dry run"}} if part == "skills" else {}
    own = {name: rule for name, rule in SCHEMAS[part]["properties"].items() if name != "protected"}
    fields = {"type": "object", "properties": {**own, **trial, **known}, "additionalProperties": False}
    return {"type": "object", "additionalProperties": False, "properties": {
        "analysis": {"type": "string"}, "create": many(fields, SCHEMAS[part]["required"]), "update": many(fields, ["id"]),
        "delete": many({"type": "object", "properties": known, "additionalProperties": False}, ["id"])}}


def contents(harness: Harness, part: str, window: list[Step] = ()) -> str:
    """What the pass edits, whole, with how it was used and, of a skill whose last run broke, with what a repair needs."""
    if part == "prompt":
        return harness.prompt
    entries, last = [], {r.get("skill_id"): (c, r) for _, c, r in calls(window, "run_skill")}
    for id, entry in getattr(harness, part).items():
        use = harness.uses.get(id)
        count = f"used {use.calls} times, {use.successes} with success, last at step {use.last_step}" if use else "never used"
        error = f"; last error: {use.last_error}" if use and use.last_error else ""
        lines = [f"### {id} ({count}{error})", *(f"{k}: {v}" for k, v in asdict(entry).items() if v not in ("", [], False))]
        call, result = last.get(id, (None, {}))
        if result.get("traceback"):
            args = json.dumps(call.args.get("args", {}), ensure_ascii=False)[:600]
            lines += [f"last run failed: args {args}, line {result['line']}", "  " + result["traceback"].replace("\n", "\n  ")]
        entries.append("\n".join(lines))
    return "\n\n".join(entries) or "(none yet)"


def question(harness: Harness, part: str, window: list[Step], found: list[Signature], observation: str, tools: Iterable[str],
             api: str = "") -> str:
    """The pass's prompt. api: the skill API, a line a function."""
    more = {"tools": ", ".join(tools)} if part != "prompt" else {}
    more |= {"api": api, "worked": worked(window)} if part == "skills" else {}
    return fill(f"refine_{part}", signatures="\n".join(s.line() for s in found) or "- none", observation=observation,
                window="\n".join(s.line() for s in window), current=contents(harness, part, window),
                schema=json.dumps(answer_schema(part)), **more)


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


def delta(harness: Harness, part: str, row: dict, step: int, tools: Iterable[str], dry_run: DryRun | None = None) -> list[Edit]:
    """A pass's answer -> checked edits; `harness` is not changed. Raises EditError: then none of them is made."""
    trial, edits = copy.deepcopy(harness), []
    how = {"by": "refiner", "step": step, "known_tools": tools}
    make = lambda op, id, value, why: edits.append(trial.edit(op, part, id, value, why=why, **how))
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
            fields = {k: v for k, v in entry.items() if k not in ("id", "why", "example")}
            fields = {"source": "evolved"} | fields if op == "create" else fields
            kind, id, fields = placed(trial, op, part, entry.get("id", ""), fields)
            old = getattr(trial, part).get(id)
            if kind == "update" and old and all(getattr(old, k) == v for k, v in fields.items()):
                continue                                 # H has just this
            new = fields.get("code", "") != getattr(old, "code", "") and fields.get("code")
            if dry_run and new and (wrong := dry_run(id, new, entry.get("example"))):
                stays = "the old code stays: " if old else ""
                raise EditError(f"skills {id or fields.get('name')}: {stays}its dry run ended with {wrong}")
            make(kind, id, fields, entry.get("why") or why)
    return edits


def run_pass(harness: Harness, part: str, text: str, ask: Callable[[str, list, list], Reply], step: int, tools: Iterable[str],
             dry_run: DryRun | None = None) -> tuple[list[Edit], dict]:
    """One model call, and one more with the error when its answer is not accepted. Returns the edits and the log's entry."""
    messages, errors, usage = [{"role": "user", "content": text}], [], Usage()
    entry = lambda status, edits: {"part": part, "status": status, "edits": [e.version for e in edits], "errors": errors,
                                   "usage": asdict(usage)}
    for _ in range(2):
        reply = ask(f"refine_{part}", messages, [])
        usage += reply.usage
        try:
            edits = delta(harness, part, parse(reply.text, part), step, tools, dry_run)
            return edits, entry("edited" if edits else "unchanged", edits)
        except EditError as e:
            errors.append(str(e))
            again = f"Not accepted, nothing has changed: {e}\nAnswer again with the whole JSON object."
            messages = messages + [{"role": "assistant", "content": reply.text or "(empty)"}, {"role": "user", "content": again}]
    return [], entry("failed", [])


def with_examples(dry_run: Callable[[str, dict], str] | None, window: list[Step]) -> DryRun | None:
    """A dry run that takes the arguments of the window's last call of the skill where the Refiner gives no example."""
    used = {c.args["skill_id"]: c.args.get("args", {}) for _, c, r in calls(window, "run_skill") if r.get("skill_id")}
    return dry_run and (lambda id, code, example: dry_run(code, example or used.get(id, {})))


def refine(harness: Harness, window: list[Step], observation: str, ask: Callable[[str, list, list], Reply], *, step: int,
           cause: str, tools: Iterable[str], api: str = "",
           dry_run: Callable[[str, dict], str] | None = None, retire: bool | None = True,
           parts: Iterable[str] = PASSES, attempt: Callable[..., tuple[list[Edit], dict]] = run_pass,
           review: Callable[[Harness, list[Edit]], list[Edit]] = lambda harness, edits: edits,
           on_edit: Callable[[Edit], None] = lambda edit: None) -> dict:
    """Read the window, edit H in place, return the refinement's row for refinements.jsonl.

    dry_run(code, args): what is wrong with a skill's code, "" if nothing. retire: None for no upkeep at all. attempt: what
    stands for `run_pass`. review: what a person makes of a pass's edits.
    """
    found, passes, trial = signatures(window), [], with_examples(dry_run, window)

    def take(edits: list[Edit]) -> list[int]:
        for edit in (edits := review(harness, edits) if edits else []):
            harness.apply(edit)
            on_edit(edit)
        return [edit.version for edit in edits]

    for part in parts:
        text = question(harness, part, window, found, observation, tools, api)
        edits, entry = attempt(harness, part, text, ask, step, tools, trial)
        kept = take(edits)
        passes.append(entry | {"edits": kept} | ({"status": "refused"} if edits and not kept else {}))
    return {"step": step, "cause": cause, "window": [window[0].t, window[-1].t] if window else [],
            "signatures": [asdict(s) for s in found], "passes": passes,
            "upkeep": take(upkeep(harness, window, step, retire)) if retire is not None else [], "version": harness.version}


def main(argv: list[str] | None = None) -> int:
    """`python refiner.py TREE LOG...`: the same four passes over a coding agent's workspace and the logs of its sessions."""
    from tools import evolve
    return evolve.main(argv)


if __name__ == "__main__":
    sys.exit(main())
