"""Shared by the tests: a model that answers from a list, and steps made by hand."""
import sys
from pathlib import Path

import pytest

from ch import Agent
from env import Step, open_env
from harness import Harness
from models import Call, Reply

ROOT = Path(__file__).parent.parent
PYTHON = sys.executable


class Canned:
    """A model that gives the replies of a list, one a call, and keeps what it was sent."""

    def __init__(self, *replies):
        self.replies, self.sent = list(replies), []

    def ask(self, role, messages, tools):
        self.sent.append((role, messages, tools))
        reply = self.replies.pop(0)
        return reply if isinstance(reply, Reply) else Reply(reply) if isinstance(reply, str) else call(*reply)


def call(name, args, id="c1", text=""):
    return Reply(text, [Call(id, name, args)])


def step(t, *results, key="k", place="Town (1, 1)", calls=None, milestones=(), obs=None, agent="orchestrator"):
    """A row of a trajectory; by default each result belongs to a press_buttons call."""
    made = calls or [Call(f"c{i}", "press_buttons", {"buttons": ["A"], "reasoning": ""}) for i in range(len(results))]
    return Step(t, agent, 1, obs, key, place, "sha", Reply("", made), list(results), t, list(milestones))


@pytest.fixture
def toy_agent():
    """An agent in the toy world: agent(canned model, harness)."""
    made = []

    def make(model, harness=None):
        harness = harness or Harness(prompt="go")
        agent = Agent(open_env("toy"), harness, model.ask)
        made.append(agent)
        return agent

    yield make
    for agent in made:
        agent.sandbox.close()
