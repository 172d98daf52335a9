"""Guarded evolution: an edit goes live only if H can still do what it could do before (Harness Continual Learning,
arXiv 2608.19013; Continual Harness itself lets every edit go live, and its appendix shows a run that collapsed that way).
Off by default: `python run.py --guard B`. A real model is called in every fork: a refinement then costs up to
(cases) x (candidates) x (steps a case) calls; its tokens are the role "guard".

propose    The Optimizer walks the parts of H in the order of the Refiner's passes, with at most K alternatives each; the
           best acceptable one is the base for the next part. It reads the window; it never sees a case.
evaluate   Live H and candidate play the same cases from the same states, with the same model and seed, in an environment
           of their own: the run is never reset, it is forked. Three checks: improvement on the validation cases V,
           delta = P(H~, V) - P(H, V) >= --delta; retention, D = anchors that H solved and H~ does not <= B; validity.
commit     The whole candidate is one version of H, or nothing is changed. Every decision is in refinements.jsonl.

Cases come out of the run, in hindsight: what a stretch of it came to is the goal, told to the agent as an objective in its
memory, and its context is empty: what is measured is H, not the history. A case that calls one skill needs no model.

Departures from HCL: a task is the stretch between two milestones; only the Refiner's edits are gated, not those that the
agent makes to its own harness; edits of a part that take back what an earlier part has gained are refused, too; a skill that
is rewritten is judged by replays of its calls alone, where there are any; the best is the larger delta, then fewer anchors
lost, then chance.
"""
import base64
import copy
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from cases import SPAN, Case, Snap, brief, hindsight, objective, reached, sample
from ch import Agent
from env import Env, Step
from harness import PARTS, Edit, Harness, changes, fold
from models import Reply, Usage, digest
from refiner import PASSES, question, run_pass, with_examples
from sandbox import Sandbox, source
from signatures import signatures

VALID, POOL = 6, 40                  # validation cases; cases of a task from which its anchors are drawn
ANCHORS, TOTAL = 3, 24               # anchors a task; anchors in all: with many tasks fewer of each are kept
REFUSED = 12                         # refused edits that the Optimizer is reminded of


# -- the three checks

def syntax(entry: Any, tools: set[str]) -> str:
    try:
        compile(source(getattr(entry, "code", "")), "skill", "exec")
        return ""
    except (SyntaxError, ValueError) as e:
        return f"its code does not compile: {e}"


def legal_tools(entry: Any, tools: set[str]) -> str:
    odd = set(re.findall(r"\btools\[\s*['\"](\w*)['\"]\s*\]", getattr(entry, "code", ""))) - tools
    return f"its code calls unknown tools: {', '.join(sorted(odd))}" if odd else ""


VALIDITY = (syntax, legal_tools)     # L; schema, caps and a sub-agent's tools are checked by Harness.edit, for every edit


def dangling(harness: Harness) -> set[str]:
    """Ids that the prompt or a sub-agent's instructions name and H does not have."""
    texts = [harness.prompt, *(sub.system_instructions + sub.directive for sub in harness.subagents.values())]
    named = {id for text in texts for id in re.findall(r"\b(?:skill|sa|mem)_\d{4}\b", text)}
    return {id for id in named if not any(id in getattr(harness, part) for part in PARTS)}


def invalid(old: Harness, new: Harness, edits: Iterable[Edit], tools: set[str]) -> str:
    """What an edit breaks of L, in words; "" when every check passes. tools: those that a skill may call."""
    for e in edits:
        entry = getattr(new, e.part).get(e.id) if e.part in PARTS else None
        for check in VALIDITY:
            if entry is not None and (wrong := check(entry, tools)):
                return f"{e.part} {e.id}: {wrong}"
    gone = sorted(dangling(new) - dangling(old))
    return f"a text names entries that H does not have: {', '.join(gone)}" if gone else ""


def verdict(wrong: str, changed: bool, delta: float, lost: int, need: float, bound: float) -> str:
    """Which check refuses a candidate, in words that say nothing about the anchors; "" when it may be committed."""
    if wrong:
        return f"validity: {wrong}"
    if not changed:
        return "no change: the agent does the same as before"
    if delta < need:
        return f"improvement: {delta:+.2f} on the situations at hand, {need:+.2f} is asked for"
    return f"retention: {lost} situations that H masters are lost, {bound:g} are allowed" if lost > bound else ""


@dataclass(frozen=True)
class Outcome:
    ok: bool
    trace: str                       # hash of what was done and what came of it


class Guard:
    def __init__(self, env: Callable[[], Env], ask: Callable[[str, list, list], Reply], *, bound: float, need: float = 0.0,
                 alternatives: int = 3, seed: int = 0, parts: Iterable[str] = PASSES):
        """env: opens the environment of the forks. bound: B. need: the least delta. parts: what may be edited."""
        self.open, self.ask, self.bound, self.need, self.alternatives = env, ask, bound, need, alternatives
        self.seed, self.parts, self.env, self.sandbox, self.vision = seed, list(parts), None, Sandbox(), False
        self.snaps: deque[Snap] = deque(maxlen=2 * SPAN)
        self.valid: deque[Case] = deque(maxlen=VALID)               # V
        self.pool: list[Case] = []                                  # of this task: its anchors are drawn from these
        self.anchors: dict[str, list[Case]] = {}                    # A, by task
        self.refused: deque[dict] = deque(maxlen=REFUSED)
        self.replies: dict[str, Reply] = {}                         # by prompt: what live H was told is not asked again
        self.memo, self.since = {}, 0                               # (case id, H) -> Outcome; replies before: another model's
        self.count: Counter = Counter()                             # cases evaluated; forks played, steps in them; replays

    # -- the run, watched

    def step(self, agent: Agent) -> Step:
        """One step of the run, and the cases that it makes."""
        obs = agent.env.observe()
        self.snaps.append(Snap(agent.env.save(), obs.key, brief(obs.state), obs.state["progress"]["presses"]))
        self.vision, step = agent.vision, agent.step()
        rng = random.Random(f"{self.seed} {step.t}")
        for case in hindsight(list(self.snaps), step, brief(agent.env.observe().state), rng):
            if case.id not in self.known():
                # What a skill could not do is what its next version is measured on.
                (self.valid if case.call and not case.solved or rng.random() < 0.5 else self.pool).append(case)
        if len(self.pool) > POOL:
            self.pool = rng.sample(self.pool, POOL)
        if step.milestones:
            self.end_task(", ".join(step.milestones))
        return step

    def known(self) -> set[str]:
        return {c.id for c in [*self.valid, *self.pool, *self.all_anchors()]}

    def all_anchors(self) -> list[Case]:
        return [c for cases in self.anchors.values() for c in cases]

    def end_task(self, task: str) -> None:
        """Draw the task's anchors. What the rest of the pool and the run before it have shown is let go."""
        if self.pool:
            self.anchors[task] = sample(self.pool, ANCHORS, random.Random(f"{self.seed} {task}"))
            keep = max(1, min(ANCHORS, TOTAL // len(self.anchors)))
            self.anchors = {name: cases[:keep] for name, cases in self.anchors.items()}
        self.pool = []
        self.snaps.clear()

    # -- forks

    def think(self, role: str, messages: list, tools: list) -> Reply:
        """The model inside a fork; its tokens count as the guard's."""
        sha = digest(messages, tools)
        if sha not in self.replies:
            self.replies[sha] = self.ask("guard", messages, tools)
        return self.replies[sha]

    def forget(self, replies: int) -> None:
        """Another model answers from here on, after so many replies of the run: what the last one did counts no more."""
        self.since, self.replies, self.memo = replies, {}, {}

    def play(self, harness: Harness, case: Case, ask: Callable[[str, list, list], Reply] | None = None) -> tuple[bool, Agent]:
        """Play a case with a copy of H, from its state, with an empty context. The run's environment is not touched."""
        if self.env is None:
            self.env = self.open()
        env, made = self.env, copy.deepcopy(harness)
        env.load(case.state)
        made.uses, made.version = {}, 0      # not part of H: the same H makes the same prompts
        agent = Agent(env, made, ask or self.think, seed=self.seed, vision=self.vision)
        agent.sandbox = self.sandbox
        self.count["replays" if case.call else "forks"] += 1
        now = lambda: env.observe().state
        end = now()["progress"]["presses"] + case.presses
        if case.call is not None:
            agent.run_skill(case.call, 0, 0)
        else:
            made.memory["task"] = objective(case)
            done = lambda: reached(case.goal, brief(now())) or now().get("over")
            while agent.t < SPAN and now()["progress"]["presses"] < end and not done():
                agent.step()
            self.count["steps"] += agent.t
        return reached(case.goal, brief(now())), agent

    def scores(self, harness: Harness, cases: Iterable[Case]) -> dict[str, Outcome]:
        """Case id -> what came of it under this H."""
        content, out = digest(harness.to_json() | {"version": 0}), {}
        for case in cases:
            self.count["cases"] += 1
            if (case.id, content) not in self.memo:
                ok, agent = self.play(harness, case)
                args = lambda c: {**c.args, "reasoning": ""} if isinstance(c.args, dict) else c.args
                did = [[s.key, [[c.name, args(c)] for c in s.reply.calls]] for s in agent.steps]
                end = agent.env.observe()
                self.memo[case.id, content] = Outcome(ok, digest(did, end.key, end.state["progress"]["presses"]))
            out[case.id] = self.memo[case.id, content]
        return out

    # -- propose, evaluate, commit

    def refine(self, harness: Harness, window: list[Step], observation: str, ask: Callable[[str, list, list], Reply], *,
               step: int, cause: str, tools: Iterable[str], api: str = "",
               dry_run: Callable[[str, dict], str] | None = None, retire: bool = False,
               review: Callable[[Harness, list[Edit]], list[Edit]] = lambda harness, edits: edits,
               on_edit: Callable[[Edit], None] = lambda edit: None) -> dict:
        """As refiner.refine, with the gate: H is changed by the whole candidate or not at all. Returns the row for the log.

        retire: not used; edits that no pass proposed are not made under a guard.
        """
        found, tools, trial = signatures(window), list(tools), with_examples(dry_run, window)
        live = base = self.scores(harness, [*self.valid, *self.all_anchors()])
        draft, edits, passes, decisions = copy.deepcopy(harness), [], [], []
        for part in self.parts:
            text = question(draft, part, window, found, observation, tools, api)
            propose = lambda more, part=part, draft=draft, text=text: run_pass(draft, part, text + more, ask, step, tools, trial)
            options, entry = self.alternatives_of(part, draft, propose, live, base)
            decisions += [row for row, *_ in options]
            fit = [o for o in options if not o[0]["refused"]]
            if fit:
                rank = lambda o: (o[0]["delta"], -o[0]["lost"])
                top = [o for o in fit if rank(o) == max(map(rank, fit))]
                row, made, draft, base = random.Random(f"{self.seed} {step} {part}").choice(top)
                row["taken"] = True
                edits += made
            status = "edited" if fit else "refused" if options else entry["status"]
            passes.append(entry | {"status": status, "edits": [harness.version + 1] * len(fit and made)})
        if edits and not (edits := review(harness, edits)):
            passes = [p | {"status": "refused", "edits": []} if p["edits"] else p for p in passes]
        commit(harness, edits, on_edit)
        return {"step": step, "cause": cause, "window": [window[0].t, window[-1].t] if window else [],
                "signatures": [asdict(s) for s in found], "passes": passes, "guard": decisions,
                "cases": [len(self.valid), len(self.all_anchors())], "version": harness.version}

    def alternatives_of(self, part: str, draft: Harness, propose: Callable[[str], tuple[list[Edit], dict]], live: dict,
                        base: dict) -> tuple[list[tuple], dict]:
        """Up to K alternatives of one part: [(decision, edits, H with them, its scores)], and the pass's entry for the log."""
        options, errors, usage, tried = [], [], Usage(), set()
        for _ in range(self.alternatives):
            made, entry = propose(self.reminder(part))
            usage, errors = usage + Usage(**entry["usage"]), errors + entry["errors"]
            what = [[e.op, e.id, e.after] for e in made]
            # What changed nothing may look otherwise in other situations: it is evaluated again.
            again = {r["what"] for r in self.refused if not r["why"].startswith("no change")}
            if made and digest(what) not in tried | again:
                tried.add(digest(what))
                options.append(self.judge(draft, made, live, base))
                if options[-1][0]["refused"]:
                    self.refused.append({"part": part, "what": digest(what), "why": options[-1][0]["refused"],
                                         "edits": str([[op, id, after] for op, id, after in what])[:600]})
        status = "refused" if made and not options else entry["status"]
        return options, entry | {"status": status, "errors": errors, "usage": asdict(usage)}

    def reminder(self, part: str) -> str:
        rows = [f"- {r['edits']}: {r['why']}" for r in self.refused if r["part"] == part]
        return "\n\n# Edits that were tried and refused: do not propose them again\n" + "\n".join(rows) if rows else ""

    def judge(self, draft: Harness, made: list[Edit], live: dict, base: dict) -> tuple[dict, list[Edit], Harness, dict]:
        """Evaluate `draft` with these edits against live H. base: the scores of `draft`, with what was taken before."""
        trial = copy.deepcopy(draft)
        for edit in made:
            trial.apply(edit)
        valid, anchors = list(self.valid), self.all_anchors()
        replays = [c for c in valid + anchors if c.call and c.call["skill_id"] in {e.id for e in made}]
        replays = replays if all(e.part == "skills" and e.op == "update" for e in made) else []
        wrong = invalid(draft, trial, made, {*self.env_tools(), "get_game_state", "get_map_data"})
        score = base if wrong else base | self.scores(trial, replays or valid + anchors)
        changed = any(score[id].trace != base[id].trace for id in score)
        delta, taken = (sum(s[c.id].ok - live[c.id].ok for c in valid) / max(len(valid), 1) for s in (score, base))
        lost = [c.id for c in anchors if live[c.id].ok and not score[c.id].ok]
        row = {"part": made[0].part, "edits": [f"{e.op} {e.id}".strip() for e in made], "by": "replays" if replays else "forks",
               "delta": round(delta, 4), "lost": len(lost), "anchors_lost": lost, "taken": False,
               "refused": verdict(wrong, changed, delta, len(lost), max(self.need, taken), self.bound)}
        return row, made, trial, score

    def env_tools(self) -> Iterable[str]:
        if self.env is None:
            self.env = self.open()
        return self.env.tools

    # -- files

    def to_json(self) -> dict:
        """What the next decisions depend on and the logs do not hold."""
        return {"snaps": [asdict(s) | {"state": base64.b85encode(s.state).decode()} for s in self.snaps],
                "since": self.since, "refused": list(self.refused), "valid": [c.to_json() for c in self.valid],
                "pool": [c.to_json() for c in self.pool],
                "anchors": {task: [c.to_json() for c in cases] for task, cases in self.anchors.items()}}

    def restore(self, row: dict, replies: list[dict]) -> None:
        """replies: the rows of replies.jsonl up to the checkpoint."""
        self.snaps.extend(Snap(**s | {"state": base64.b85decode(s["state"])}) for s in row["snaps"])
        self.refused.extend(row["refused"])
        self.valid.extend(map(Case.from_json, row["valid"]))
        self.pool = list(map(Case.from_json, row["pool"]))
        self.anchors = {task: list(map(Case.from_json, cases)) for task, cases in row["anchors"].items()}
        self.since = row["since"]
        self.replies = {r["sha"]: Reply.from_json(r["reply"]) for r in replies[self.since:] if r["role"] == "guard"}

    def close(self) -> None:
        self.sandbox.close()
        if hasattr(self.env, "close"):
            self.env.close()


def commit(harness: Harness, edits: list[Edit], on_edit: Callable[[Edit], None]) -> None:
    """All edits as one version of H."""
    version = harness.version + 1
    for edit in edits:
        edit = replace(edit, version=version)
        harness.apply(edit)
        on_edit(edit)


# -- the last known good

def rollback(harness: Harness, edits: list[Edit], steps: list[Step], refinements: list[dict], after: int,
             step: int) -> list[Edit]:
    """Back to the version that last reached a milestone, once `after` refinements since then all found the world stalled.

    Returns the edits by "guard" that lead there, not yet applied; none while there is progress, or nothing to go back to.
    """
    good = next((s for s in sorted(steps, key=lambda s: -s.t) if s.milestones), None)
    if good is None:
        return []
    since = max([good.t, *(e.step for e in edits if e.by == "guard")])
    late = [r for r in refinements if r["step"] > since][-after:]
    if len(late) < after or not all(r["cause"] == "stall" or any(s["name"] == "stall" for s in r["signatures"]) for r in late):
        return []
    why = f"{after} refinements since step {since} found the world stalled: back to version {good.version}, which reached "
    why += ", ".join(good.milestones)
    target = fold(e for e in edits if e.version <= good.version).to_json()
    return changes(target, harness, harness, by="guard", step=step, why=why)
