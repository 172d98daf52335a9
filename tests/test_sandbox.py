"""Model-written code: what it can do, and what it can't."""
import pytest

from sandbox import Sandbox, ToolRefused


@pytest.fixture(scope="module")
def box():
    made = Sandbox()
    yield made
    made.close()


def run(box, code, args=None, seconds=1.0, **tools):
    return box.run(code, args or {}, tools, seed=1, seconds=seconds)


def test_skill_api(box):
    out = run(box, "def go(n):\n    return tools['press'](buttons=['A'] * n)\nprint('x')\nresult = go(args['n'])", {"n": 2},
              press=lambda buttons: {"pressed": buttons})
    assert out.result == {"pressed": ["A", "A"]} and out.stdout == "x\n" and out.error == ""


@pytest.mark.parametrize("code, error", [
    ("open('/etc/passwd')", "PermissionError"),
    ("import subprocess", "ModuleNotFoundError"),
    ("import socket", "ModuleNotFoundError"),
    ("import os\nos.environ", "RuntimeError"),
    ("().__class__.__bases__[0].__subclasses__()", "AttributeError"),
    ("tools['look'].__globals__", "AttributeError"),
    ("eval('open(\"/etc/passwd\")')", "PermissionError"),
    ("while True: pass", "TimeoutError: more than 0.5 seconds"),
    ("try:\n    while True: pass\nexcept Exception: pass", "TimeoutError"),
    ("x = 'a' * 10 ** 9", "MemoryError"),
    ("x = []\nwhile True: x.append('a' * 10000)", "MemoryError"),
    ("def f(): f()\nf()", "RecursionError"),
    ("while True: tools['look']()", "RuntimeError: suspension limit"),
    ("result = (", "parsing"),
])
def test_harm_is_an_error(box, code, error):
    out = run(box, code, seconds=0.5 if "Timeout" in error else 20, look=lambda: 1)     # a busy machine is no excuse
    assert error in out.error and out.result is None


def test_errors_carry_line_and_traceback(box):
    out = run(box, "def f(x):\n    return 1 / x\n\nresult = f(0)")
    assert out.line == 2 and "in f" in out.traceback and out.error == "ZeroDivisionError: division by zero"


def test_a_refusal_can_be_caught_but_an_interrupt_stops_everything(box):
    def refuse():
        raise ToolRefused("no more presses")

    def interrupt():
        raise KeyboardInterrupt

    assert run(box, "try:\n    tools['t']()\nexcept Exception as e:\n    result = str(e)", t=refuse).result == "no more presses"
    with pytest.raises(KeyboardInterrupt):
        run(box, "try:\n    tools['t']()\nexcept Exception:\n    pass", t=interrupt)


def test_same_seed_same_result(box):
    code = "import random, time, datetime\nresult = [random.random(), time.time(), datetime.datetime.now().isoformat()]"
    assert run(box, code).result == run(box, code).result
    assert run(box, code).result != box.run(code, {}, {}, seed=2).result


@pytest.mark.parametrize("code, result", [
    ("import heapq\nh = []\nfor x in [5, 1, 4, 2, 3]: heapq.heappush(h, x)\nresult = [heapq.heappop(h) for _ in range(5)]", [1, 2, 3, 4, 5]),
    ("from heapq import heappush as put, heappop\nh = []\nput(h, (2, 'b')); put(h, (1, 'a'))\nresult = heappop(h)[1]", "a"),
    ("def f():\n    import heapq as q\n    h = [3, 1]\n    q.heapify(h)\n    return q.heappop(h)\nresult = f()", 1),
    ("x = 2\\nresult = x + 1", 3),                                         # saved as one line with literal \n
    ("result = {(1, 2): float('inf')}", "{(1, 2): inf}"),                  # no JSON: its repr
    ("result = [1, (2, 3), None]", [1, [2, 3], None]),
])
def test_evolved_skills_as_found_in_the_wild(box, code, result):
    assert run(box, code).result == result


def test_code_can_not_leave_anything_behind(box):
    run(box, "leak = 1")
    assert "NameError" in run(box, "result = leak").error
