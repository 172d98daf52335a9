"""The numpy student: its offers, its numbers (gradients against finite differences), its file, and that no torch is about."""
import subprocess
import sys

import numpy as np
import pytest

from ch import MAIN, Agent
from conftest import ROOT
from env import open_env
from harness import Harness
from models import Call, ModelError, open_model
from models.student import Student, learn, offers
from models.theta import Row, Theta, grpo, row, sft


def prompt(game="toy"):
    """The first prompt of a game: (messages, tools)."""
    seen = []

    def ask(role, messages, tools):
        seen.append((messages, tools))
        raise EOFError

    agent = Agent(open_env(game), Harness(prompt="go"), ask)
    with pytest.raises(EOFError):
        agent.turn(MAIN, "You play a game", agent.all_tools)
    return seen[0]


def some_rows(n=6, seed=0):
    rng = np.random.default_rng(seed)
    return [row({f"s{i % 3}", "x"}, [{f"c{j}", f"d{j % 2}"} for j in range(5)], [int(rng.integers(5))], [1.0]) for i in range(n)]


def test_a_state_offers_its_calls_each_also_malformed():
    state, calls = offers(*prompt())
    assert "state overworld" in state
    whole = [(tool, args) for _, tool, args, words in calls if "malformed" not in words]
    assert {"direction": "east", "reasoning": "one press"} in [args for tool, args in whole if tool == "move"]
    assert len(calls) == 2 * len(whole)
    assert not any(args == other for (_, _, args, _), (_, _, other, _) in zip(calls, calls[len(whole):]))


def test_the_same_messages_and_seed_give_the_same_reply():
    messages, tools = prompt()
    assert Student("", 3)(messages, tools) == Student("", 3)(messages, tools) == open_model("student", 3)(messages, tools)
    assert len({str(Student("", seed)(messages, tools).calls[0].args) for seed in range(20)}) > 1
    with pytest.raises(ModelError, match="only plays"):
        Student()(messages, [])


def test_theta_0_is_the_base_and_training_changes_only_the_adapter():
    theta, other = Theta(0), Theta(5)
    r = some_rows(1)[0]
    assert np.array_equal(theta.probs(r), other.probs(r)) and np.array_equal(theta.W0, other.W0)      # B is zero, the base is one
    before = theta.probs(r)[r.gold[0]]
    base = theta.W0.copy()
    history = theta.fit([r], steps=40)
    assert theta.probs(r)[r.gold[0]] > before and history[-1] < history[0] and np.array_equal(theta.W0, base)


@pytest.mark.parametrize("loss", [sft, grpo])
def test_the_gradient_is_that_of_the_loss(loss):
    """The end of the path: which call carries loss, and how much, against finite differences of the logits."""
    rng, softmax = np.random.default_rng(1), lambda z: np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    z = rng.standard_normal(6)
    what = Row(np.array([0]), np.zeros((6, 1)), [2], [0.7]) if loss is sft else \
        Row(np.array([0]), np.zeros((6, 1)), [1, 4, 4, 0], [1.2, -0.9, -0.9, 0.6], softmax(z + 0.05 * rng.standard_normal(6)))
    _, gradient = loss(softmax(z), what)
    for i in range(6):
        step = np.eye(6)[i] * 1e-5
        slope = (loss(softmax(z + step), what)[0] - loss(softmax(z - step), what)[0]) / 2e-5
        assert gradient[i] == pytest.approx(slope, abs=1e-5)


def test_a_weight_of_nothing_teaches_nothing_and_half_a_weight_half_as_much():
    p = np.array([0.2, 0.5, 0.3])
    one, half, none = (sft(p, Row(np.array([0]), np.zeros((3, 1)), [1], [w])) for w in (1.0, 0.5, 0.0))
    assert np.allclose(half[1], one[1] / 2) and half[0] == one[0] / 2 and not none[1].any()


def test_grpo_prefers_the_better_candidate_and_stays_near_where_it_began():
    theta, r = Theta(), some_rows(1)[0]
    r.gold, r.weight, r.old = [0, 1, 2, 3], [1.5, -0.5, -0.5, -0.5], theta.probs(r)
    theta.fit([r], grpo, lr=0.002, batch=8, steps=60)
    p = theta.probs(r)
    assert p[0] > r.old[0] and p[0] / r.old[0] < 2 and float(p @ np.log(p / r.old)) < 0.5      # the clip and the KL term hold it


def test_an_adapter_is_the_same_bytes_again_and_fits_its_base_only(tmp_path):
    theta = Theta()
    theta.fit(some_rows(), steps=3, seed=1)
    again = Theta()
    again.fit(some_rows(), steps=3, seed=1)
    assert theta.dumps() == again.dumps()
    path = tmp_path / "theta.npz"
    path.write_bytes(theta.dumps())
    loaded = Theta.load(str(path))
    assert np.array_equal(loaded.probs(some_rows()[0]), theta.probs(some_rows()[0]))
    base, theta.W0 = theta.W0, theta.W0 + 1
    path.write_bytes(theta.dumps())
    with pytest.raises(ModelError, match="another base"):
        Theta.load(str(path))
    theta.W0 = base
    theta.B[0, 0] = np.nan
    path.write_bytes(theta.dumps())
    with pytest.raises(ModelError, match="not finite"):
        Theta.load(str(path))
    path.write_bytes(path.read_bytes()[:900])
    for bad in (path, tmp_path / "none.npz"):
        with pytest.raises(ModelError, match="can't be read"):
            Theta.load(str(bad))


def test_what_the_student_can_say_becomes_a_row_and_nothing_else():
    messages, tools = prompt()
    right = learn(messages, tools, [Call("c", "move", {"direction": "east", "reasoning": "other words"})], [1.0])
    calls = offers(messages, tools)[1]
    assert calls[right.gold[0]][1:3] == ("move", {"direction": "east", "reasoning": "one press"})
    assert learn(messages, tools, [Call("c", "move", {"direction": "up", "reasoning": ""})], [1.0]) is None
    assert learn(messages, tools, [Call("c", "move", "{cut")], [1.0]) is None


def test_the_loop_needs_no_torch():
    code = "import sys, run, sft, models.student; sys.exit(bool({'torch', 'transformers', 'tools.lora'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
