"""What the model was sent, rebuilt from a run's log.

Prompts are not stored: a prompt is a function of H at that version, the turns before it and the observation, and all of those
are rows. Here the agent runs again over its own log, with the logged replies and results, and each prompt's hash is compared.
Not covered: prompts that held a frame; frames are not logged.
"""
import contextlib
import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace

from ch import Agent
from env import Observation, Step
from harness import Edit, Harness, read_edits
from models import Call, Message, Reply, digest
from runlog import BadInput, read_rows
from settings import Settings, open_game, read_settings

Seen = list[tuple[Step, list[Message] | None, list[dict]]]     # decision, messages, tools


class Again(Agent):
    """The agent over its own log: the same turns with logged replies and results, so that every prompt is built once more."""

    def __init__(self, tools: dict, harness_tools: list[str], steps: list[Step], edits: list[Edit], since: int):
        self.rows, self.log, self.since, self.seen = {s.t: s for s in steps}, deque(edits), since, []
        self.left = {s.t: iter(s.results) for s in steps}
        super().__init__(SimpleNamespace(tools=tools, observe=self.observe), Harness(tools=harness_tools), self.answer)

    def observe(self) -> Observation:
        step = self.rows.get(self.t + 1)
        while step and self.log and self.log[0].version <= step.version:
            self.harness.apply(self.log.popleft())
        progress = {"presses": 0, "reached": {}}
        return Observation(step.obs or "" if step else "", None, {"progress": progress}, step.key if step else "")

    def answer(self, role: str, messages: list[Message], tools: list[dict]) -> Reply:
        if (step := self.rows.get(self.t + 1)) is None:
            raise EOFError
        if step.t > self.since:
            self.seen.append((step, messages if digest(messages, tools) == step.sha else None, tools))
        return step.reply

    def carry_out(self, call: Call, tools: dict, t: int, depth: int) -> dict:
        result = next(self.left[t])
        if "turns_taken" in result or call.name == "process_memory" and "results" in result and call.args["action"] == "read":
            super().carry_out(call, tools, t, depth)         # a sub-agent's turns; what is read is counted as used
        elif "skill_id" in result:
            self.skill_used(result["skill_id"], result, t)
        return result


def prompts(tools: dict, harness_tools: list[str], steps: list[Step], edits: list[Edit], since: int = 0) -> Seen:
    """The decisions after step `since` with what was sent; messages None: not what the student saw, by its hash."""
    agent = Again(tools, harness_tools, steps, edits, since)
    agent.observe()                          # the edits that made the first H
    with contextlib.suppress(EOFError):      # the log's end
        while True:
            agent.step()
    return agent.seen


def logged(run: Path) -> Seen:
    """A run's decisions, those that can be rebuilt. Raises BadInput."""
    settings = read_settings(Settings(run=str(run)), set())
    env = open_game(settings)
    getattr(env, "close", lambda: None)()
    steps = [Step.from_json(row) for row in read_rows(run / "trajectory.jsonl")]
    harness_tools = json.loads((run / "settings.json").read_text())["tools"]
    seen = [d for d in prompts(env.tools, harness_tools, steps, read_edits(run / "edits.jsonl")) if d[1] is not None]
    if not seen:
        raise BadInput(f"{run}: no decision could be rebuilt, its prompts held frames; play with --vision off")
    return seen
