"""The model client against a loopback server that answers in the shapes of real ones, and against garbage.

    python -m pytest tests/test_api.py        half a minute; no network outside this machine
    python tests/test_api.py                  the table of all cases, with what the client did
"""
import functools
import itertools
import json
import os
import random
import re
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
import models
import models.api
import run
from api_cases import CASES, LONG, PRESS, oai
from ch import NUDGE
from fake_server import DRIP, TOOL, said, serving
from models import ModelError, Usage
from models.api import Api
from models.scripted import Scripted
from models.vision import PROBE, saw
from models.wire import flat, leaked, priced, read_args, tokens

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def talk(turns: int = 6, image: bool = False) -> list[dict]:
    """A conversation of whole turns that ends in an observation."""
    messages = [{"role": "system", "content": "You play."}]
    for t in range(turns):
        messages += [{"role": "user", "content": f"observation {t} " + "x" * 300},
                     {"role": "assistant", "content": "", "tool_calls": [{"id": f"call{t}", "type": "function", "function": {"name": "press", "arguments": '{"button": "a"}'}}]},
                     {"role": "tool", "tool_call_id": f"call{t}", "name": "press", "content": "{}"}]
    return messages + [{"role": "user", "content": [{"type": "text", "text": "now"}, IMAGE] if image else "now"}]


class Talk:
    """One call to a client whose sleep is a list and whose clock is their sum."""

    def __init__(self, answers: list, name: str = "m", messages: list | None = None, **options: object):
        self.slept, self.log, self.reply, self.error = [], [], None, ""
        with serving(answers) as self.server:
            clock = lambda: sum(self.slept)
            self.api = Api(name, self.server.url, log=self.log.append, sleep=self.slept.append, clock=clock, **options)
            try:
                self.reply = self.api(messages or talk(), [TOOL])
            except ModelError as e:
                self.error = str(e)
        self.sent = self.server.requests

    def __str__(self) -> str:
        waits = f", waited {' + '.join(f'{s:.1f}' for s in self.slept)} s" if self.slept else ""
        end = f"stopped: {self.error.split(' answered ')[-1]}" if self.error else f"reply with {len(self.reply.calls)} calls" + (f", note: {self.reply.note}" if self.reply.note else "")
        return f"{len(self.sent)} requests{waits}; {end}"[:150]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789")


def case_messages(name: str) -> list[dict] | None:
    messages = talk(image="mmproj" in name or "multimodal" in name)
    if "history" in name or "500, the same" in name or "signature" in name or "pydantic" in name:
        own = {**messages[2], "endpoint": "OWN", "reasoning_content": "hm"}
        messages[2] = own
    return messages


@pytest.mark.parametrize("name, answers, requests, ends, also", CASES, ids=[c[0] for c in CASES])
def test_case(name, answers, requests, ends, also):
    t = run_case(name, answers)
    assert len(t.sent) == requests, str(t)
    assert (ends in t.error) if isinstance(ends, str) else t.reply is not None and len(t.reply.calls) == ends, t.error
    assert also is None or also(t), str(t)
    assert not t.server.wrong
    assert "planted" not in t.error + "".join(t.log)


def run_case(name: str, answers: list) -> Talk:
    messages = case_messages(name)
    with pytest.MonkeyPatch.context() as patch:         # the server's port is part of an endpoint's name
        init = Api.__init__
        def named(self, *args, **options):
            init(self, *args, **options)
            self.tag = "OWN"
        patch.setattr(Api, "__init__", named)
        return Talk(answers, messages=messages)


# -- replies

@pytest.mark.parametrize("raw, args", [
    ('{"button": "a"}', {"button": "a"}), ({"button": "a"}, {"button": "a"}), ("", {}), (None, {}), ('"{\\"button\\": \\"a\\"}"', {"button": "a"}),
    ("{'button': 'a'}", "{'button': 'a'}"), ('{"button": "a', '{"button": "a'), ('{"a": 1}{"b": 2}', '{"a": 1}{"b": 2}'), ("[1]", "[1]"), ("7", "7"),
    ('{"a": NaN}', '{"a": NaN}'), ('{"a": 1e999}', '{"a": 1e999}'), ("[" * 5000, "[" * 5000), ('{"a": "\\ud800"}', {"a": "?"})])
def test_arguments(raw, args):
    assert read_args("" if raw is None else raw) == args


def test_nested_text_is_unpacked_only_where_the_schema_says_so():
    t = Talk([said("", ("press", {"button": "a", "path": '["x"]'}))])
    assert t.reply.calls[0].args == {"button": "a", "path": ["x"]}


@pytest.mark.parametrize("text, found", [
    ('{"name": "press", "arguments": {"button": "a"}}', 1), ('<tool_call>\n{"name": "press", "arguments": {"button": "a"}}\n</tool_call>', 1),
    ('```json\n{"name": "press", "parameters": {"button": "b"}}\n```', 1), ('{"name": "press", "arguments": {"button": "a"}} {"name": "press", "arguments": "{\\"button\\": \\"b\\"}"}', 2),
    ("<function=press>\n<parameter=button>a</parameter>\n</function>", 1), ('I press. {"name": "press", "arguments": {"button": "a"}}', 0),
    ('{"name": "press", "arguments": {"button": "z"}}', 0), ('{"name": "other", "arguments": {}}', 0), ('press("a")', 0), ("[]", 0), ('{"name": ["press"]}', 0), ("", 0)])
def test_leaked_calls(text, found):
    assert len(leaked(text, {"press": TOOL["function"]["parameters"]})) == found


def test_ids_missing_repeated_and_foreign():
    call = {"type": "function", "function": {"name": "press", "arguments": "{}"}}
    t = Talk([said("", {**call, "id": "call0"}, {**call}, {**call, "id": ""}, {**call, "id": "new"}, {**call, "id": "new"})])
    ids = [c.id for c in t.reply.calls]
    assert len(set(ids)) == 5 and "call0" not in ids and "new" in ids and ids == [c["id"] for c in t.reply.message["tool_calls"]]


def test_fields_of_the_server_go_back_to_it_and_to_no_other():
    first = said("", {"id": "c1", "type": "function", "extra_content": {"google": {"thought_signature": "S"}}, "function": {"name": "press", "arguments": '{"button": "a"}'}},
                 reasoning_content="deep", refusal=None)
    with serving([first, PRESS]) as server:
        own, other = Api("m", server.url), Api("n", server.url)
        said_ = own(talk(), [TOOL]).as_message()
        messages = talk() + [said_, {"role": "tool", "tool_call_id": "c1", "name": "press", "content": "{}"}, {"role": "user", "content": "and now"}]
        own(messages, [TOOL])
        other(messages, [TOOL])
        same, foreign = server.requests[1]["messages"][-3], server.requests[2]["messages"][-3]
    assert same["reasoning_content"] == "deep" and same["tool_calls"][0] == first["choices"][0]["message"]["tool_calls"][0] and "refusal" not in same
    assert set(foreign) == {"role", "content", "tool_calls"} and set(foreign["tool_calls"][0]) == {"id", "type", "function"}
    assert not server.wrong


def test_thinking_is_kept_in_the_message_and_not_in_the_text():
    reply = Talk([said("<think>{\"no\": 1}</think>\nyes")]).reply
    assert reply.text == "yes" and reply.message["content"].startswith("<think>")


@pytest.mark.parametrize("usage, expected", [
    (None, Usage(unpriced=1)), ({"prompt_tokens": None, "completion_tokens": "x"}, Usage(unpriced=1)),
    ({"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 10}, "completion_tokens_details": {"reasoning_tokens": 5}, "cost": 0.25},
     Usage(100, 80, 10, 7, 5, 0.25)),
    ({"prompt_tokens": 21, "completion_tokens": 0, "total_tokens": 81}, Usage(21, 0, 0, 60, unpriced=1)),
    ({"input_tokens": 10, "output_tokens": 2, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 10}, Usage(100, 80, 10, 2, unpriced=1)),
    ({"prompt_tokens": 10, "prompt_tokens_details": None, "cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.5}}, Usage(10, dollars=0.5))])
def test_usage(usage, expected):
    assert tokens({"usage": usage}, {}, None) == expected


def test_prices():
    price = priced({"m": {"input": 4, "cached": 0.4, "written": 5, "output": 20}}, "m-2026-01-31")
    used = tokens({"usage": {"prompt_tokens": 1_000_000, "completion_tokens": 100_000, "prompt_tokens_details": {"cached_tokens": 500_000, "cache_write_tokens": 100_000}}}, {}, price)
    assert used.dollars == pytest.approx(0.4 * 4 + 0.5 * 0.4 + 0.1 * 5 + 0.1 * 20) and used.paper == pytest.approx(0.5 * 4 + 0.5 * 1 + 0.1 * 20)
    assert priced({}, "m") is None
    assert (Usage(dollars=1.0) + Usage(unpriced=1)).dollars == 1.0


@pytest.mark.parametrize("answer", [(503, {"error": "busy"}), DRIP])
def test_a_call_ends_at_its_deadline(answer):
    """Neither a server that is always busy nor one that keeps the line warm with blanks holds a call for longer."""
    slept, ticks = [], itertools.count()
    with serving([answer]) as server, pytest.raises(ModelError, match="busy|no whole answer"):
        Api("m", server.url, sleep=slept.append, clock=lambda: next(ticks))(talk(), [TOOL])
    assert next(ticks) < 2 * models.api.DEADLINE


def test_the_context_shrinks_once_and_stays_at_the_same_turn():
    limit = 3000
    answers = lambda body: PRESS if len(json.dumps(body["messages"])) < limit else LONG[1][1]
    with serving(answers) as server:
        api = Api("m", server.url)
        for turns in range(4, 12):
            api(talk(turns), [TOOL])
    first = [next(m["content"][:14] for m in b["messages"] if m["role"] == "user") for b in server.requests if len(json.dumps(b["messages"])) < limit]
    assert len(server.requests) - len(first) <= 2 and len(set(first)) <= 4


def test_weak_models_change_the_channel_after_three_replies_without_a_call():
    answers = lambda body: said('{"call": {"tool": "press", "arguments": {"button": "b"}}}' if "response_format" in body else "I press a.")
    with serving(answers) as server:
        api = Api("m", server.url)
        calls = [len(api(talk(), [TOOL]).calls) for _ in range(5)]
    assert calls == [0, 0, 0, 1, 1]
    roles = [m["role"] for m in server.requests[-1]["messages"]]
    assert all(a != b for a, b in zip(roles, roles[1:])) and "press" in server.requests[-1]["messages"][0]["content"]


def test_the_json_channel_keeps_pictures_and_the_turn_taking():
    seen = {"role": "user", "content": [{"type": "text", "text": "map"}, IMAGE]}
    out = flat([{"role": "system", "content": "s"}, seen, {"role": "user", "content": NUDGE}, *talk(1)[1:4], seen], [TOOL])
    assert [m["role"] for m in out] == ["system", "user", "assistant", "user"]
    assert out[1]["content"][:2] == seen["content"] and out[1]["content"][2]["text"] == NUDGE
    assert json.loads(out[2]["content"]) == {"call": {"tool": "press", "arguments": {"button": "a"}}}
    assert out[3]["content"][0]["text"] == "Result of press: {}" and out[3]["content"][2] == IMAGE


def test_keys_that_cannot_be_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted\nX: 1")
    with pytest.raises(ModelError) as e:
        Api("m", "http://127.0.0.1:1/v1")
    assert "planted" not in str(e.value)


# -- whole runs

@pytest.fixture
def quick(monkeypatch):
    """Clients that do not really sleep."""
    monkeypatch.setattr(models.api, "Api", functools.partial(Api, sleep=lambda s: None))


def scripted(body: dict) -> dict:
    """The offline model behind the wire."""
    if body["messages"] == PROBE:
        return said("Yellow, blue.")
    r = Scripted()(body["messages"], body.get("tools", []))
    size = len(json.dumps(body["messages"])) // 4
    return said(r.text, *((c.name, json.dumps(c.args)) for c in r.calls), finish="stop", reasoning_content="hm",
                usage={"prompt_tokens": size, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": size * 9 // 10}})


def test_a_whole_run_is_strictly_valid_append_only_and_replays(tmp_path, capsys, quick):
    folder = str(tmp_path / "r")
    with serving(scripted) as server:
        assert run.main(["--run", folder, "--model", "gpt-5-mini", "--base-url", server.url, "--json", "--steps", "20"]) == 0
        assert run.main(["--run", folder, "--resume", "--steps", "50", "--json"]) == 0
    end = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert end["stopped"] == "steps" and not server.wrong
    assert end["cached_share"] > 0.85 and end["dollars"] > 0 and end["dollars_cached_at_25"] > end["dollars"] and end["unpriced_calls"] == 0
    assert {"agent", "probe", "refine_prompt", "refine_skills", "refine_memory", "refine_subagents"} <= set(end["roles"])
    agent = [b["messages"] for b in server.requests if b["messages"][0]["role"] == "system"]
    assert "image_url" in json.dumps(agent[0][-1])
    assert all(m.get("reasoning_content") == "hm" for b in agent for m in b if m["role"] == "assistant")
    text = lambda m: m["content"] if isinstance(m["content"], str) else m["content"][0]["text"]
    same_prefix = [new[:len(old) - 1] == old[:-1] and text(old[-1]).startswith(text(new[len(old) - 1])) for old, new in zip(agent, agent[1:])
                   if isinstance(new[-1]["content"], list) and isinstance(old[-1]["content"], list) and old[0] == new[0]]
    assert len(same_prefix) > 20 and sum(not s for s in same_prefix) <= 2           # the history is cut once in a block
    assert run.main(["--run", folder, "--replay"]) == 0
    assert "every key, prompt hash and result is equal" in capsys.readouterr().out


def garbage(rng: random.Random) -> object:
    """A reply of random shape: half of them HTTP-valid chat completions with nonsense inside."""
    junk = lambda: rng.choice([None, "", "x", "{", 7, -1, 1.5, True, [], {}, [None], {"a": [1]}, "\ud800", "ü" * 50, "[" * 3000, "NaN", {"name": "move", "arguments": 3}])
    name = rng.choice(["move", "process_memory", "process_skill", "run_skill", "evolve_harness", "execute_custom_subagent", "no_such", "", None, 7])
    args = rng.choice(["", "{", "{}", '{"entries": [{"id": "a"}]}', '{"action": "add", "entries": 3, "reasoning": "x"}', '{"direction": "up"}', junk(), "\"{}\"", '{"code": 1}'])
    call = rng.choice([{"id": junk(), "function": {"name": name, "arguments": args}}, {"function": junk()}, junk(), {"id": "same", "function": {"name": name, "arguments": args}}])
    message = rng.choice([{"content": junk()}, {"content": junk(), "tool_calls": [call] * rng.randint(1, 12)}, {"tool_calls": junk(), "content": junk(), "extra": junk()}, junk(),
                          {"content": rng.choice(["I'm sorry", "done", '{"prompt": 3}', '{"create": [{}]}', "<tool_call>{}</tool_call>"]), "function_call": junk()}])
    whole = {"choices": [{"message": message, "finish_reason": rng.choice(["stop", "length", None, 3, "SAFETY", "tool_calls"])}], "usage": rng.choice([junk(), {"prompt_tokens": junk(), "cost": junk()}])}
    body = rng.choice([whole] * 12 + [junk(), {"choices": junk()}, {"error": junk()}, {"choices": [junk()]}])
    return body if rng.random() < 0.95 else (rng.choice([200, 500, 503, 429]), bytes(rng.randrange(256) for _ in range(40)))


def test_a_thousand_garbage_replies(tmp_path, capsys, quick):
    rng, ends = random.Random(0), []
    with serving(lambda body: garbage(rng)) as server:
        while len(server.requests) < 1000:
            folder = tmp_path / str(len(ends))
            status = run.main(["--run", str(folder), "--game", "toy", "--model", "m", "--base-url", server.url, "--json", "--steps", "60", "--schedule", "10,10,100,50"])
            out, err = capsys.readouterr()
            assert status in (0, 2) and "Traceback" not in err
            ends.append(json.loads(out)["stopped"] if out else err[:60])
            edits = [json.loads(line)["by"] for line in (folder / "edits.jsonl").read_text().splitlines()]
            assert set(edits) == {"import"}
            log = (folder / "model.log").read_text() if (folder / "model.log").exists() else ""
            assert all(len(line) < 3000 for line in log.splitlines())
    assert not server.wrong
    assert {"format errors", "steps"} & set(ends), ends
    print(len(server.requests), {e: ends.count(e) for e in sorted(set(ends))})


def test_the_key_is_in_no_file_and_no_line(tmp_path, capsys, quick, monkeypatch):
    names = ["OPENAI_API_KEY", "GEMINI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY"]
    for name in names:
        monkeypatch.setenv(name, f"sk-planted-{name}")
    echo = iter([(500, "Authorization: Bearer sk-planted-OPENAI_API_KEY"), said("your key is sk-planted-OPENAI_API_KEY", key="sk-planted-OPENAI_API_KEY"),
                 said("", ("move", '{"direction": "east", "reasoning": "sk-planted-OPENAI_API_KEY"}'))] + [(401, {"error": {"message": "bad key sk-planted-OPENAI_API_KEY"}})] * 9)
    with serving(lambda body: next(echo)) as server:
        assert run.main(["--run", str(tmp_path / "r"), "--game", "toy", "--model", "m", "--base-url", server.url]) == 2
    assert server.headers[0]["Authorization"] == "Bearer sk-planted-OPENAI_API_KEY"
    out, err = capsys.readouterr()
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) >= 6 and "[key]" in (tmp_path / "r" / "replies.jsonl").read_text()
    assert not [p for p in files if b"sk-planted" in p.read_bytes()] and "planted" not in out + err
    assert run.main(["--run", str(tmp_path / "s"), "--game", "toy", "--model", "m", "--base-url", "http://user:secret@127.0.0.1/v1"]) == 2
    assert not (tmp_path / "s").exists()


def test_dollars_stop_before_the_call_and_resume_goes_on(tmp_path, capsys, quick):
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"models": {"m": {"input": 10, "output": 10}}}))
    args = ["--run", str(tmp_path / "r"), "--game", "toy", "--base-url"]
    with serving(scripted) as server:
        assert run.main([*args, server.url, "--model", "m", "--prices", str(prices), "--dollars", "0.2", "--json"]) == 0
        first = json.loads(capsys.readouterr().out)
        assert first["stopped"] == "dollars" and 0 < first["dollars"] < 0.2 and first["steps"] > 2
        assert run.main(["--run", str(tmp_path / "r"), "--resume", "--dollars", "0", "--json"]) == 0
        second = json.loads(capsys.readouterr().out)
        paid = len(server.requests)
    assert second["stopped"] == "finished" and second["steps"] > first["steps"]
    assert paid == len((tmp_path / "r" / "replies.jsonl").read_text().splitlines())      # nothing was asked twice
    assert run.main(["--run", str(tmp_path / "r"), "--replay"]) == 0


def test_an_unknown_price_is_counted_and_never_blocks(tmp_path, capsys, quick):
    with serving(scripted) as server:
        assert run.main(["--run", str(tmp_path / "r"), "--game", "toy", "--model", "m", "--base-url", server.url, "--dollars", "0.000001", "--frozen"]) == 0
    out = capsys.readouterr().out
    assert "finished" in out and "dollars unknown" in out and re.search(r"^agent .*unknown", out, re.M)


def test_no_call_gets_one_correction_and_the_run_ends_at_the_cap(tmp_path, capsys, quick):
    with serving([said("I will explore.")]) as server:
        assert run.main(["--run", str(tmp_path / "r"), "--game", "toy", "--model", "m", "--base-url", server.url, "--json", "--actions", "tools"]) == 0
    assert json.loads(capsys.readouterr().out)["stopped"] == "format errors" and len(server.requests) == run.FORMAT_ERRORS
    assert [m["content"] for m in server.requests[1]["messages"]][-2:] == ["I will explore.", NUDGE] and not server.wrong


def test_text_only_models_get_the_map_alone():
    assert saw(Talk([said("Yellow and blue")], messages=PROBE).reply)
    assert not saw(Talk([oai(400, "smol is not a multimodal model"), said("I see no picture")], messages=PROBE).reply)


if __name__ == "__main__":
    os.environ["OPENAI_API_KEY"] = "sk-planted-0123456789"
    for name, answers, *_ in CASES:
        print(f"{name:42s} {run_case(name, answers)}")
