"""Guarded evolution: an edit goes live only if H can still do what it could do before (Harness Continual Learning,
arXiv 2608.19013; Continual Harness itself lets every edit go live, and its appendix shows a run that collapsed that way).
Off by default: `python run.py --guard B`. A real model is called in every fork: a refinement then costs up to
(cases) x (candidates) x (steps a case) calls; its tokens are the role "guard".

propose    The Refiner's four passes, with at most K alternatives each; the best acceptable one is the base for the next
           part of H. The Optimizer reads the window; it never sees a case.
evaluate   Live H and candidate play the same cases from the same states, with the same model and seed, in an environment
           of their own: the run is never reset, it is forked. Three checks: improvement on the validation cases V,
           delta = P(H~, V) - P(H, V) >= --delta; retention, D = anchors that H solved and H~ does not <= B; validity.
commit     The whole candidate is one version of H, or nothing is changed. Every decision is in refinements.jsonl.

A case's goal is told to the agent as an objective in its memory, and its context is empty: H is measured, not the history.

Departures from HCL: a task is the stretch between two milestones; only the Refiner's edits are gated, not those that the
agent makes to its own harness; edits of a part that take back what an earlier part has gained are refused, too; a skill
that is rewritten is judged by replays of its calls alone, where there are any; the best is the larger delta, then fewer
anchors lost, then chance.
"""
import copy
import random
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from cases import SPAN, Case, brief, hindsight, reached, sample
from ch import LOOK, Agent
from env import Env, Step
from harness import Edit, Harness, changes, fold
from models import Reply, Usage, digest
from refiner import PASSES, DryRun, refine, run_pass
from sandbox import Sandbox, source
from signatures import shown

VALID, POOL = 6, 40                  # validation cases; cases of a task from which its anchors are drawn
ANCHORS, TOTAL = 3, 24               # anchors a task; anchors in all
REFUSED = 12                         # refused edits that the Optimizer is reminded of
Ask = Callable[[str, list, list], Reply]
Scores = dict[str, tuple[bool, str]]         # case id -> was it solved? and a hash of what was done and what came of it
KEPT = ("snaps", "valid", "pool", "anchors")         # lists of cases in the checkpoint


# -- the three checks

def invalid(harness: Harness, edits: Iterable[Edit], tools: set[str]) -> str:
    """What the edits, applied to H, break of L, in words; "" when every check passes. tools: those that a skill may call.

    Schema, caps and a sub-agent's tools were checked by Harness.edit when the edits were made.
    """
    for id in [e.id for e in edits if e.part == "skills" and e.id in harness.skills]:
        code = harness.skills[id].code
        try:
            compile(source(code), "skill", "exec")
        except (SyntaxError, ValueError) as e:
            return f"skills {id}: its code does not compile: {e}"
        if odd := set(re.findall(r"\btools\[\s*['\"](\w*)['\"]\s*\]", code)) - tools:
            return f"skills {id}: its code calls unknown tools: {', '.join(sorted(odd))}"
    return ""


def verdict(wrong: str, changed: bool, delta: float, lost: int, need: float, bound: float) -> str:
    """Which check refuses a candidate, in words that say nothing about the anchors; "" when it may be committed."""
    if wrong:
        return f"validity: {wrong}"
    if not changed:
        return "no change: the agent does the same as before"
    if delta < need:
        return f"improvement: {delta:+.2f} on the situations at hand, {need:+.2f} is asked for"
    return f"retention: {lost} situations that H masters are lost, {bound:g} are allowed" if lost > bound else ""


class Guard:
    def __init__(self, env: Env, ask: Ask, *, bound: float, need: float = 0.0, alternatives: int = 3, seed: int = 0,
                 parts: Iterable[str] = PASSES):
        """env: the forks' own environment. bound: B. need: the least delta. parts: what of H is edited."""
        self.env, self.ask, self.bound, self.need, self.alternatives = env, ask, bound, need, alternatives
        self.seed, self.parts, self.sandbox, self.vision = seed, parts, Sandbox(), False
        self.snaps: deque[Case] = deque(maxlen=2 * SPAN)            # the last moments of the run
        self.valid: deque[Case] = deque(maxlen=VALID)               # V
        self.pool: list[Case] = []                                  # of this task: its anchors are drawn from these
        self.anchors: list[Case] = []                               # A
        self.refused: deque[dict] = deque(maxlen=REFUSED)           # decisions
        self.replies: dict[str, Reply] = {}                         # by prompt: what live H was told is not asked again
        self.memo, self.since = {}, 0                               # (case id, H) -> its score; replies before: another model's
        self.live, self.base, self.decisions = {}, {}, []           # of this refinement: scores of H, of the draft; rows
        self.count: Counter = Counter()                             # forks and replays played

    # -- the run, watched

    def step(self, agent: Agent) -> Step:
        """One step of the run, and the cases that it makes."""
        self.snaps.append(Case.of(agent.env))
        self.vision, step = agent.vision, agent.step()
        rng = random.Random(f"{self.seed} {step.t}")
        for case in hindsight(list(self.snaps), step, brief(agent.env.observe().state), rng):
            if case.id not in {c.id for c in [*self.valid, *self.pool, *self.anchors]}:
                # What a skill could not do is what its next version is measured on.
                (self.valid if case.call and not case.solved or rng.random() < 0.5 else self.pool).append(case)
        if len(self.pool) > POOL:
            self.pool = rng.sample(self.pool, POOL)
        if step.milestones:
            self.end_task(step.t)
        return step

    def end_task(self, t: int) -> None:
        """Draw the anchors of the task that ended at step t. The rest of its cases and the moments before are let go."""
        rng = random.Random(f"{self.seed} {t}")
        self.anchors = sample(self.anchors + sample(self.pool, ANCHORS, rng), TOTAL, rng)
        self.pool.clear()
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

    def play(self, harness: Harness, case: Case, ask: Ask | None = None, t: int = 0) -> tuple[bool, Agent]:
        """Play a case with a copy of H, from its state, with an empty context. The run's environment is not touched.

        ask: whose play this is, from step t on, if not the guard's own: then it counts as use of H.
        """
        env, made = self.env, copy.deepcopy(harness)
        case.load(env)
        made.uses, made.version = harness.uses if ask else {}, 0     # not part of H: the same H makes the same prompts
        agent = Agent(env, made, ask or self.think, seed=self.seed, vision=self.vision)
        agent.sandbox, agent.t = self.sandbox, t
        self.count["replays" if case.call else "forks"] += 1
        now = lambda: brief(env.observe().state)
        end = now()["presses"] + case.presses
        if case.call is not None:
            agent.run_skill(case.call, 0, 0)
        else:
            made.memory["task"] = case.objective()
            while agent.t < t + SPAN and now()["presses"] < end and not now()["over"] and not reached(case.goal, now()):
                agent.step()
        return reached(case.goal, now()), agent

    def scores(self, harness: Harness, cases: Iterable[Case]) -> Scores:
        """What comes of the cases under this H."""
        content, out = digest(harness.to_json() | {"version": 0}), {}
        for case in cases:
            if (case.id, content) not in self.memo:
                ok, agent = self.play(harness, case)
                did = [[s.key, *map(shown, s.reply.calls)] for s in agent.steps]
                end = self.env.observe()
                self.memo[case.id, content] = ok, digest(did, end.key, brief(end.state)["presses"])
            out[case.id] = self.memo[case.id, content]
        return out

    # -- propose, evaluate, commit

    def refine(self, harness: Harness, window: list[Step], observation: str, ask: Ask, *,
               review: Callable[[Harness, list[Edit]], list[Edit]] = lambda harness, edits: edits,
               on_edit: Callable[[Edit], None] = lambda edit: None, **more: Any) -> dict:
        """As refiner.refine, with the gate: H is changed by the whole candidate or not at all. Returns the row for the log.

        There is no upkeep: edits that no pass proposed are not made under a guard.
        """
        draft, edits, self.decisions = copy.deepcopy(harness), [], []
        self.live = self.base = self.scores(harness, [*self.valid, *self.anchors])
        row = refine(draft, window, observation, ask, **more | {"attempt": self.best, "parts": self.parts, "retire": None,
                     "on_edit": edits.append})
        edits = review(harness, edits) if edits else []
        commit(harness, edits, on_edit)
        for entry in row["passes"]:
            if entry["edits"]:
                entry |= {"edits": [harness.version] * len(entry["edits"])} if edits else {"edits": [], "status": "refused"}
        return row | {"guard": self.decisions, "cases": [len(self.valid), len(self.anchors)], "version": harness.version}

    def best(self, draft: Harness, part: str, text: str, ask: Ask, step: int, tools: Iterable[str],
             dry_run: DryRun | None) -> tuple[list[Edit], dict]:
        """As refiner.run_pass, for the best of up to K alternatives."""
        options, errors, usage, rng = [], [], Usage(), random.Random(f"{self.seed} {step} {part}")
        # What changed nothing may look otherwise in other situations: it is judged again.
        seen = [r["edits"] for r in self.refused if not r["refused"].startswith("no change")]
        for _ in range(self.alternatives):
            made, entry = run_pass(draft, part, text + self.reminder(part), ask, step, tools, dry_run)
            errors, usage = errors + entry["errors"], usage + Usage(**entry["usage"])
            what = [[e.op, e.id, e.after] for e in made]
            if made and what not in seen:
                seen.append(what)
                options.append(self.judge(draft, made, {"part": part, "edits": what, "taken": False}))
        entry |= {"errors": errors, "usage": asdict(usage)}
        if fit := [option for option in options if not option[0]["refused"]]:
            row, made, self.base = max(fit, key=lambda option: (option[0]["delta"], -option[0]["lost"], rng.random()))
            row["taken"] = True
            return made, entry | {"status": "edited"}
        return [], entry | ({"status": "refused"} if options or made else {})

    def reminder(self, part: str) -> str:
        rows = [f"- {str(r['edits'])[:600]}: {r['refused']}" for r in self.refused if r["part"] == part]
        return "\n\n# Edits that were tried and refused: do not propose them again\n" + "\n".join(rows) if rows else ""

    def judge(self, draft: Harness, made: list[Edit], row: dict) -> tuple[dict, list[Edit], Scores]:
        """Compare `draft` with these edits to live H. Returns the decision (`row` completed), the edits, and the scores."""
        trial, cases, live, base = copy.deepcopy(draft), [*self.valid, *self.anchors], self.live, self.base
        for edit in made:
            trial.apply(edit)
        replays = [c for c in cases if c.call and c.call["skill_id"] in {e.id for e in made}]
        replays = replays if all(e.part == "skills" and e.op == "update" for e in made) else []
        wrong = invalid(trial, made, {*self.env.tools, *LOOK})
        score = base if wrong else base | self.scores(trial, replays or cases)
        gain = lambda scores: sum(scores[c.id][0] - live[c.id][0] for c in self.valid) / max(len(self.valid), 1)
        lost = [c.id for c in self.anchors if live[c.id][0] and not score[c.id][0]]
        refused = verdict(wrong, score != base, gain(score), len(lost), max(self.need, gain(base)), self.bound)
        row |= {"by": "replays" if replays else "forks", "delta": round(gain(score), 4), "lost": len(lost), "anchors_lost": lost,
                "refused": refused}
        self.decisions.append(row)
        if refused:
            self.refused.append(row)
        return row, made, score

    # -- files

    def to_json(self) -> dict:
        """What the next decisions depend on and the logs do not hold."""
        cases = {name: [asdict(case) for case in getattr(self, name)] for name in KEPT}
        return {"cases": cases, "refused": list(self.refused), "since": self.since}

    def restore(self, row: dict, replies: list[dict]) -> None:
        """replies: the rows of replies.jsonl up to the checkpoint."""
        for name in KEPT:
            getattr(self, name).extend(Case(**case) for case in row["cases"][name])
        self.refused.extend(row["refused"])
        self.since = row["since"]
        self.replies = {r["sha"]: Reply.from_json(r["reply"]) for r in replies[self.since:] if r["role"] == "guard"}

    def close(self) -> None:
        self.sandbox.close()
        getattr(self.env, "close", lambda: None)()


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
    good = max((s for s in steps if s.milestones), key=lambda s: s.t, default=None)
    since = max([good.t if good else 0, *(e.step for e in edits if e.by == "guard")])
    late = [r["cause"] == "stall" or any(s["name"] == "stall" for s in r["signatures"]) for r in refinements if r["step"] > since]
    if good is None or len(late) < after or not all(late[-after:]):
        return []
    why = f"{after} refinements since step {since} found the world stalled: back to version {good.version}, which reached "
    why += ", ".join(good.milestones)
    target = fold(e for e in edits if e.version <= good.version).to_json()
    return changes(target, harness, harness, by="guard", step=step, why=why)


def main(argv: list[str] | None = None) -> int:
    """`python guard.py stream TASKS ...`: a stream of tasks under guards of each strictness."""
    from tools import stream                 # an entry point may look up
    return stream.main((sys.argv[1:] if argv is None else argv)[1:])


if __name__ == "__main__":
    sys.exit(main())
