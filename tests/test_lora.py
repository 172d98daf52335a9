"""The trainer's caller against trainers that fail in every way, the hand-over against a server that lies; no torch.

The real trainer is tried where there is an environment for it: `make trainer`, or TRAINER_PYTHON=/path/to/bin/python.
"""
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT

from runlog import BadInput
from tools import lora
from tools.lora import TrainError, canary, gpu, publish, train
from tools.lora_demo import Walk, collect
from tools.lora_trainer import encode, select

# A trainer that does nothing but write what a trainer writes; `c` is its run.json. The fakes below spoil it.
FAKE = """
import json, os, signal, struct, subprocess, sys, time
c = json.load(open(sys.argv[1]))
def adapter(base=c["model"], b=(1.0, 2.0), steps=3, cut=0, dtype="F32"):
    head, data = {}, b""
    for name, x in (("q.lora_A.weight", (0.5, 0.5)), ("q.lora_B.weight", b)):
        head[name] = {"dtype": dtype, "shape": [2], "data_offsets": [len(data), len(data) + 8]}
        data += struct.pack("<2f", *x)
    head = json.dumps(head).encode()
    blob = struct.pack("<Q", len(head)) + head + data
    open(c["out"] + "/adapter_model.safetensors", "wb").write(blob[:len(blob) - cut])
    json.dump({"base_model_name_or_path": base}, open(c["out"] + "/adapter_config.json", "w"))
    json.dump({"id": c["id"], "steps": steps, "batch": c["batch"]}, open(c["out"] + "/DONE.json", "w"))
"""
HANG = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(c["out"] + "/../child", "w").write(str(child.pid))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(60)
"""
FAKES = {                            # name: (code, what becomes of it, words of the message or the micro-batch that was reached)
    "good": ("adapter()", "ok", 4),
    "out of memory, then good": ("sys.exit(5) if c['batch'] > 1 else adapter()", "ok", 1),
    "killed once, then good": ("os.kill(os.getpid(), 9) if c['batch'] == 4 else adapter()", "ok", 2),
    "always out of memory": ("print('cannot allocate'); sys.exit(5)", "oom", "cannot allocate"),
    "always killed": ("os.kill(os.getpid(), 9)", "killed", ""),
    "hang, a child of its own": (HANG, "hung", ""),
    "no torch": ("import no_such_torch", "error", "ModuleNotFoundError"),
    "no usable GPU": ("print('no kernel'); sys.exit(6)", "no gpu", "no kernel"),
    "NaN, and it says so": ("sys.exit(4)", "nan", ""),
    "NaN, and it does not": ("adapter(b=(1.0, float('nan')))", "bad adapter", "not finite"),
    "exit 0, nothing": ("pass", "bad adapter", "FileNotFoundError"),
    "cut off": ("adapter(cut=3)", "bad adapter", "smaller than requested"),
    "in half precision": ("adapter(dtype='F16')", "bad adapter", "not float32"),
    "another base": ("adapter(base='/other')", "bad adapter", "belongs to /other"),
    "B all zeros": ("adapter(b=(0.0, 0.0))", "bad adapter", "it is the base"),
    "no step": ("adapter(steps=0)", "bad adapter", "no optimiser step"),
    "nothing to train on": ("sys.exit(3)", None, ""),
}


@pytest.fixture
def shard(tmp_path, monkeypatch):
    monkeypatch.setattr(lora, "gpu", str)
    monkeypatch.setattr(lora, "GRACE", 0.3)
    (tmp_path / "shard.jsonl").write_text("{}\n")
    return tmp_path / "shard.jsonl"


def fake(folder, code):
    path = folder / "fake.py"
    path.write_text(FAKE + code)
    return path


@pytest.mark.parametrize("name", FAKES)
def test_what_the_caller_makes_of_a_trainer(name, shard, tmp_path, monkeypatch):
    code, ends, words = FAKES[name]
    monkeypatch.setattr(lora, "TRAINER", fake(tmp_path, code))
    out, go = tmp_path / "theta_1", lambda: train(shard, tmp_path / "theta_1", "base/x", sys.executable, patience=0.8)
    if ends == "ok":
        assert go()["batch"] == words and (out / "adapter_model.safetensors").exists()
    elif ends is None:
        assert go() is None
    else:
        with pytest.raises(TrainError) as e:
            go()
        assert e.value.kind == ends and str(words) in str(e.value) and "theta_1.log" in str(e.value)
    assert out.exists() == (ends == "ok") and not (tmp_path / "theta_1.part").exists()
    if name.startswith("hang"):
        with pytest.raises(ProcessLookupError):          # its own child went with it
            wait_gone(int((tmp_path / "child").read_text()))


def wait_gone(pid):
    for _ in range(100):
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":      # nobody reaps it here
            raise ProcessLookupError
        time.sleep(0.02)


def test_an_adapter_that_is_there_is_taken_or_refused(shard, tmp_path, monkeypatch):
    monkeypatch.setattr(lora, "TRAINER", fake(tmp_path, "adapter()"))
    go = lambda **more: train(shard, tmp_path / "theta_1", "base/x", sys.executable, **more)
    first = go()
    lora.TRAINER.write_text("a trainer that is not run again")
    assert go() == first
    with pytest.raises(TrainError, match="trained on something else"):
        go(lr=1e-3)
    with pytest.raises(BadInput, match="no such setting.*rank; there are r, alpha"):
        go(rank=8)


def test_ctrl_c_ends_the_whole_group(shard, tmp_path, monkeypatch):
    monkeypatch.setattr(lora, "TRAINER", fake(tmp_path, HANG))
    def interrupt(*_):
        raise KeyboardInterrupt
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.8)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(shard, tmp_path / "theta_1", "base/x", sys.executable)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        wait_gone(int((tmp_path / "child").read_text()))


def test_the_trainer_ends_with_its_parent():
    code = "import time; from tools.lora_trainer import watch_parent; watch_parent(); print('up', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout.readline() == b"up\n"
    child.stdin.close()
    assert child.wait(10) == 1
    child.stdout.close()


def test_the_gpu_that_the_trainer_gets(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '100, GPU-aa\\n900, GPU-bb\\n[N/A], GPU-cc\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu() == "GPU-bb"
    for visible, told in (("0", "0"), ("", ""), ("-1", "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpu() == told
    tool.write_text("#!/bin/sh\necho 'no driver'; exit 9\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpu() == ""


# -- the server

@pytest.fixture
def server():
    """vLLM's adapter endpoints, its answers as they were seen. `lies`: an adapter is "loaded", and the base answers."""
    class Handler(BaseHTTPRequestHandler):
        loaded, lies, noise, count, told, asked = {}, False, 0.0, 0, None, []

        def answer(self, status, body):
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self.answer(200, {"data": [{"id": "base"}, *({"id": n} for n in self.loaded)]})

        def do_POST(self):
            body, own = json.loads(self.rfile.read(int(self.headers["Content-Length"]))), type(self)
            if self.path.endswith("/load_lora_adapter"):
                name, path = body["lora_name"], Path(body["lora_path"])
                if name in self.loaded:
                    return self.answer(400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}})
                if not path.exists():
                    return self.answer(404, {"error": {"message": "No adapter found"}})
                if (path / "rank").exists():
                    return self.answer(500, "LoRA rank 256 is greater than max_lora_rank 16")
                own.loaded = {**self.loaded, name: path}
                return self.answer(200, f"Success: LoRA adapter '{name}' added successfully.")
            if body.get("model", "base") not in ("base", *self.loaded):
                return self.answer(404, {"error": {"message": "no such model"}})
            own.count, own.asked = own.count + 1, [*own.asked, body["messages"]]
            moved = (body["lora"][0]["scale"] if "lora" in body else body["model"] != "base") and not self.lies      # llama.cpp, vLLM
            self.answer(200, self.told or {"choices": [{"message": {"content": "go"}, "logprobs": {"content": [
                {"token": "go", "logprob": -1.0 + 0.5 * moved + self.noise * (own.count % 2)}]}}]})

        def log_message(self, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    Handler.url = f"http://127.0.0.1:{http.server_port}/v1"
    yield Handler
    http.shutdown()
    thread.join()
    http.server_close()


def test_an_adapter_is_loaded_once_and_refusals_say_what_to_do(server, tmp_path):
    publish(server.url, "theta_1", tmp_path)
    publish(server.url, "theta_1", tmp_path)                 # a resumed run
    with pytest.raises(TrainError, match="404.*--enable-lora"):
        publish(server.url, "theta_2", tmp_path / "none")
    (tmp_path / "rank").touch()
    with pytest.raises(TrainError, match="rank 256 is greater"):
        publish(server.url, "theta_2", tmp_path)
    assert list(server.loaded) == ["theta_1"]
    with pytest.raises(TrainError, match="ConnectionError; check --base-url"):
        publish("http://127.0.0.1:9/v1", "theta_1", tmp_path)


def test_the_canary(server, tmp_path):
    publish(server.url, "theta_1", tmp_path)
    ask = lambda: canary(server.url, {"model": "base"}, {"model": "theta_1"}, [[{"role": "user", "content": "hi"}]])
    assert ask() == pytest.approx(0.5)
    server.noise = 0.1
    assert ask() > 0.3                       # farther than the base is from itself
    server.lies = True
    with pytest.raises(TrainError, match="what it answers as the base"):
        ask()
    server.noise = 0.0
    with pytest.raises(TrainError, match="what it answers as the base"):
        ask()
    server.told = {"object": "error"}        # 200, and no answer
    with pytest.raises(TrainError, match="KeyError.*choices"):
        ask()


def test_the_command_line(shard, tmp_path, server, monkeypatch, capsys):
    """Shard -> adapter -> server -> canary; what is wrong is one line and status 2."""
    shard.write_text(json.dumps({"prompt": [{"role": "user", "content": "hi"}]}) + "\n")
    args = [str(shard), "--model", "base/x", "--out", str(tmp_path / "theta_1"), "--trainer-python", sys.executable]
    run = lambda *more: (lora.main([*args, "--base-url", server.url, *more]), capsys.readouterr())
    monkeypatch.setattr(lora, "TRAINER", fake(tmp_path, "adapter()"))
    assert run()[0] == 0 and "theta_1" in server.loaded
    server.lies = True
    status, told = run()
    assert status == 2 and told.err.startswith("tools.lora: ") and "as the base" in told.err and told.err.count("\n") == 1
    for bad in (["--set", '{"rank": 8}'], ["--set", '{"python": 8}'], ["--set", '{"mode": "x"}'], ["--trainer-python", "/no/such/python"], ["--model", "other"]):
        status, told = run(*bad, *(["--out", str(tmp_path / "theta_2")] if bad[0] != "--model" else []))
        assert status == 2 and told.err.count("\n") == 1, bad


def test_llama_cpp_starts_again_with_the_adapter(shard, tmp_path, server, monkeypatch):
    """--model local: no server is told; one is started with the adapter, asked with and without it, and closed. A long prompt
    might not fit there, so the shortest are asked."""
    shard.write_text("".join(json.dumps({"prompt": [{"role": "user", "content": "hi" * n}]}) + "\n" for n in (9, 1, 2, 3)))
    started, closed = [], []
    monkeypatch.setattr(lora, "TRAINER", fake(tmp_path, "adapter()"))
    monkeypatch.setattr(lora, "weights", lambda: Path("small.gguf"))
    monkeypatch.setattr(lora, "Local", lambda adapter: started.append(adapter) or SimpleNamespace(
        url=f"{server.url}/chat/completions", close=lambda: closed.append(adapter)))
    out = tmp_path / "theta_1"
    assert lora.advance(shard, out, "", sys.executable, "", "local") == "theta_1"
    assert {q[0]["content"] for q in server.asked} == {"hi", "hihi", "hihihi"}
    assert started == closed == [str(out)] and "local.jinja" in (out / "run.json").read_text() and not server.loaded
    server.lies = True
    with pytest.raises(TrainError, match="as the base"):
        lora.advance(shard, out, "", sys.executable, "", "local")
    assert closed == [str(out)] * 2


# -- what is trained on

class Words:
    """A tokenizer: a word is a token; a template of the usual shape."""

    def apply_chat_template(self, messages, tools=None, add_generation_prompt=False, **_):
        text = "".join(f"<{m['role']}> {m['content']} {json.dumps(m['tool_calls'][0]['function']['arguments']) if 'tool_calls' in m else ''} <end> " for m in messages)
        return f"{[t['function']['name'] for t in tools or []]} {text}" + ("<assistant> " if add_generation_prompt else "")

    def __call__(self, text, **_):
        return {"input_ids": [hash(w) for w in text.split()]}


def test_only_the_completion_carries_loss():
    for args in ({"direction": "north"}, '{"direction": "north"}'):
        row = {"prompt": [{"role": "user", "content": "where to?"}], "tools": [{"function": {"name": "move"}}], "weight": 0.5,
               "completion": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "move", "arguments": args}}]}]}
        made = encode(row, Words())
        assert made["text"].split()[-made["target"]:] == ['{"direction":', '"north"}', "<end>"]
        assert made["text"].startswith("['move'] <user> where to?") and made["n"] == len(made["text"].split())


def test_what_is_kept_and_what_it_weighs():
    row = lambda weight=1.0, n=10, target=2, **more: {"weight": weight, "n": n, "target": target, **more}
    units, dropped = select([row(1.0), row(0.25), row(0.0), row(n=99), row(target=0), row(images=["a.png"])], "soft", 50)
    assert [u[0]["weight"] for u in units] == [1.6, 0.4]
    assert dropped == {"zero_weight": 1, "too_long": 1, "no_target": 1, "flat_group": 0, "pictures": 1}
    states = [row(group="a", reward=r) for r in (1.0, 0.0, 0.0, 1.0)] + [row(group="b", reward=0.5) for _ in range(4)]
    units, dropped = select(states, "grpo", 50)
    assert len(units) == 1 and dropped["flat_group"] == 1
    assert [r["weight"] for r in units[0]] == pytest.approx([1, -1, -1, 1], abs=1e-3)


def test_the_demo_s_rows_lead_to_the_end():
    """Whoever does in each state what the rows say reaches both milestones, in fewer steps than the teacher, who wandered."""
    rows, walk = collect(), Walk()
    says = {r["prompt"][-1]["content"]: r["completion"][0]["tool_calls"][0]["function"]["arguments"] for r in rows}
    assert len(says) == len(rows) == 14 and rows[-1]["weight"] == 1 > min(r["weight"] for r in rows) > 0.7
    for _ in rows:
        walk.go(says[walk.prompt()[-1]["content"]]["direction"])
    assert len(walk.env.reached) == 2


# -- the real trainer

PYTHON = os.environ.get("TRAINER_PYTHON", str(ROOT / ".trainer" / "bin" / "python"))
TINY = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
set_seed(0)
vocab = {t: i for i, t in enumerate(["<pad>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
tok = Tokenizer(models.BPE(vocab=vocab, merges=[]))
tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<|im_end|>").save_pretrained(sys.argv[1])
LlamaForCausalLM(LlamaConfig(vocab_size=len(vocab), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                             num_key_value_heads=1, max_position_embeddings=2048, initializer_range=0.1)).save_pretrained(sys.argv[1])
"""


@pytest.mark.skipif(not Path(PYTHON).exists(), reason="`make trainer` makes the environment that the real trainer needs")
def test_the_real_trainer(tmp_path):
    subprocess.run([PYTHON, "-c", TINY, str(tmp_path / "tiny")], check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    tools = [{"type": "function", "function": {"name": "move", "parameters": {"type": "object"}}}]
    said = lambda d: [{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "move", "arguments": {"to": d}}}]}]
    rows = [{"id": str(i), "prompt": [{"role": "user", "content": f"at {i}"}], "completion": said("north" if i % 2 else "south"), "tools": tools,
             "images": [], "weight": w, "group": str(i // 4), "reward": float(i % 2)} for i, w in enumerate([1.0, 0.25] * 4 + [0.0])]
    shard = tmp_path / "shard.jsonl"
    shard.write_text("".join(json.dumps(r) + "\n" for r in rows))
    small = {"r": 8, "alpha": 16, "lr": 2e-2, "template": str(ROOT / "models" / "local.jinja")}
    done = train(shard, tmp_path / "theta_1", str(tmp_path / "tiny"), PYTHON, "sft", epochs=10, batch=3, **small)
    assert done["rows"] == 8 and done["dropped"]["zero_weight"] == 1 and done["steps"] == 10 and done["loss_last"] < 0.9 * done["loss_first"]
    grpo = train(shard, tmp_path / "theta_2", str(tmp_path / "tiny"), PYTHON, "grpo", **small | {"steps": 4, "lr": 1e-3, "init": str(tmp_path / "theta_1")})
    assert grpo["rows"] == 8 and grpo["dropped"]["flat_group"] == 1 and math.isfinite(grpo["loss_last"])
    assert grpo["loss_last"] < grpo["loss_first"]            # it begins at 0: ratio 1, and advantages that sum to 0
    with pytest.raises(TrainError) as e:
        train(shard, tmp_path / "theta_3", str(tmp_path / "tiny"), PYTHON, "sft", **small | {"lr": 1e30, "epochs": 3})
    assert e.value.kind == "nan"
