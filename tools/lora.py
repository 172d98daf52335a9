"""theta as a LoRA on a language model: find a GPU, run the trainer safely, hand the adapter to the server, check that it is used.

    python -m tools.lora SHARD --model BASE --out runs/x/theta_1 --trainer-python VENV/bin/python
                                                       with --base-url http://localhost:8000/v1 a vLLM server loads it

Nothing here imports torch: the trainer (tools/lora_trainer.py) is a process in an environment of its own, which may run out
of memory, hang or be killed. An adapter appears under its name only when it is whole, finite and of the right base.
The defaults, COMMON and MODES, are the paper's settings (section 4 and appendix).
"""
import argparse
import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import requests

from models import digest
from models.local import TEMPLATE, Local, weights
from models.wire import addressed
from runlog import BadInput, command, read_rows

TRAINER = Path(__file__).with_name("lora_trainer.py")
COMMON = {"r": 256, "alpha": 256, "max_length": 8192, "warmup": 0.03, "batch": 4, "steps": 0, "epochs": 1, "seed": 0,
          "init": "", "targets": "", "template": "", "beta2": 0.999, "beta": 0.04, "clip": 0.2}
MODES = {"sft": {"lr": 2e-5, "per_step": 8}, "soft": {"lr": 5e-6, "per_step": 8, "epochs": 3},
         "grpo": {"lr": 1e-6, "per_step": 8, "steps": 590}}      # per_step: rows a step; in grpo states, of G = 4 rows each
STATUS = {0: "ok", 3: "empty", 4: "nan", 5: "oom", 6: "no gpu", -9: "killed", 137: "killed", -15: "cancelled", 143: "cancelled"}
SCALES = [{"lora": [{"id": 0, "scale": scale}]} for scale in (0.0, 1.0)]      # llama.cpp's requests for the base, for theta
TICK, GRACE = 0.2, 10                # seconds: between two looks at the trainer, between TERM and KILL


class TrainError(BadInput):
    """theta stays what it was. `kind`: a word of STATUS, hung, error, bad adapter, exists, server, not applied."""

    def __init__(self, kind: str, text: str):
        super().__init__(f"no new theta ({kind}): {text}")
        self.kind = kind


def gpu() -> str:
    """The trainer's CUDA_VISIBLE_DEVICES: as the user has set it, else the uuid of the driver's freest GPU; "": there is none."""
    command = ["nvidia-smi", "--query-gpu=memory.free,uuid", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):        # no driver; a wedged one hangs
        return ""
    found = [(int(free or 0), uuid) for free, uuid in re.findall(r"(?m)^(\d*).*, (\S+)", text)]          # "[N/A]": shared memory
    return os.environ.get("CUDA_VISIBLE_DEVICES", max(found, default=(0, ""))[1]).replace("-1", "")


def flaw(folder: Path, model: str) -> str:
    """What is wrong with an adapter's folder; "" when it is whole, finite, of this base and not the base itself."""
    try:
        done, config = (json.loads((folder / name).read_text()) for name in ("DONE.json", "adapter_config.json"))
        data = (folder / "adapter_model.safetensors").read_bytes()       # a JSON header and its length, then numbers
        start = 8 + int.from_bytes(data[:8], "little")
        tensors = {name: t for name, t in json.loads(data[8:start]).items() if name != "__metadata__"}
        numbers = np.frombuffer(data, "<f4", max(t["data_offsets"][1] for t in tensors.values()) // 4, start)
        b = [t["data_offsets"] for name, t in tensors.items() if "lora_B" in name]       # in bytes
        of = config["base_model_name_or_path"]
        checks = {f"it belongs to {of}, not to {model}": of == model,
                  "no optimiser step was made": done["steps"] > 0,
                  "its numbers are not float32": all(t["dtype"] == "F32" for t in tensors.values()),
                  "it holds numbers that are not finite": np.isfinite(numbers).all(),
                  "B is all zeros: it is the base": any(numbers[i // 4:j // 4].any() for i, j in b)}
        return next((words for words, good in checks.items() if not good), "")
    except (OSError, ValueError, LookupError, TypeError) as e:           # ValueError: cut off, or no JSON
        return f"it can't be read: {type(e).__name__}: {e}"


def spawn(command: list[str], log: Path, env: dict, patience: float) -> str:
    """Run the trainer in a process group of its own. Returns STATUS's word, or hung: `patience` seconds without a line."""
    with open(log, "ab") as out:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=env, start_new_session=True)
    try:
        quiet, size = 0.0, -1
        while child.poll() is None and quiet < patience:
            time.sleep(TICK)
            quiet, size = quiet + TICK if log.stat().st_size == size else 0.0, log.stat().st_size
    finally:                                 # Ctrl-C comes here too. The whole group: a launcher is not its workers
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(child.pid, sign)
                child.wait(GRACE)
        child.stdin.close()
    return "hung" if quiet >= patience else STATUS.get(child.returncode, "error")


def train(shard: Path, out: Path, model: str, python: str, /, mode: str = "soft", patience: float = 1800,
          **changes: object) -> dict | None:
    """Train theta on a shard; the adapter is the folder `out`. Returns its DONE.json; None: no row was worth training on.

    changes: other values for COMMON's and MODES' settings. Out of memory, or killed: again with half the micro-batch; the step
    stays the same. An `out` of the same shard and settings is taken as it is. Raises TrainError, and then nothing is published.
    """
    if unknown := set(changes) - set(COMMON | MODES["sft"]) or {str(mode)} - set(MODES):
        raise BadInput(f"no such setting of the trainer: {min(unknown)}; there are {', '.join(COMMON | MODES['sft'])}")
    work, log, device = out.with_name(out.name + ".part"), out.with_name(out.name + ".log"), gpu()
    base = str(Path(model).resolve()) if Path(model).exists() else model
    config = COMMON | MODES[mode] | changes | {"mode": mode, "model": base}
    id = digest({k: v for k, v in config.items() if k != "batch"}, shard.read_text(encoding="utf-8"))
    config |= {"id": id, "device": "cuda" if device else "cpu", "shard": str(shard.resolve()), "out": str(work.resolve())}
    if out.exists():
        done = json.loads((out / "DONE.json").read_text())
        if done["id"] != id:
            raise TrainError("exists", f"{out} is there and was trained on something else; choose another name")
        return done
    env = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2)), **os.environ,         # waiting threads spin
           "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": device}
    log.unlink(missing_ok=True)
    while True:
        shutil.rmtree(work, ignore_errors=True)          # of a try that was ended
        work.mkdir(parents=True)
        (work / "run.json").write_text(json.dumps(config))
        word = spawn([python, str(TRAINER), str(work / "run.json")], log, env, patience)
        if word not in ("oom", "killed") or config["batch"] == 1:
            break
        config["batch"] //= 2
    why = flaw(work, base) if word == "ok" else log.read_text(errors="replace").strip().rpartition("\n")[2]
    if word == "ok" and not why:
        return json.loads((work.replace(out) / "DONE.json").read_text())
    shutil.rmtree(work)
    if word == "empty":
        return None
    raise TrainError("bad adapter" if word == "ok" else word, f"{why[:2000] or 'it said nothing'}; all of it is in {log}")


# -- the server

def call(method: str, url: str, body: dict | None, read: Callable[[requests.Response], Any], hint: str = "") -> Any:
    """What `read` takes from the server's answer. Raises TrainError: no answer, a refusal, an answer of another shape."""
    key = os.environ.get("OPENAI_API_KEY", "").strip()       # what models/api.py sends to a --base-url
    try:
        answer = requests.request(method, url, json=body, timeout=600, headers={"Authorization": f"Bearer {key}"} if key else {})
        if answer.status_code == 200:
            return read(answer)
        said = f"{answer.status_code}: {answer.text[:300]}"
    except (requests.RequestException, ValueError, LookupError, TypeError, AttributeError) as e:
        said = type(e).__name__ + ("; check --base-url" if isinstance(e, requests.RequestException) else f": {e}")
    raise TrainError("server", f"{method} {url}: {said}{hint}")


def publish(url: str, name: str, folder: Path) -> None:
    """Have a vLLM server load an adapter under a name that is new in every round, so that no cache mixes two policies."""
    if name in call("GET", f"{url}/models", None, lambda answer: [m["id"] for m in answer.json()["data"]]):     # a resumed run
        return
    call("POST", f"{url}/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.resolve())}, lambda answer: None,
         "; vLLM needs --enable-lora, --max-lora-rank, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True")


def canary(url: str, base: dict, theta: dict, prompts: list[list[dict]]) -> float:
    """How far theta's answers are from the base's, in log-probability (inf: another text). Raises TrainError when it is no
    farther than the base is from itself: servers have been seen to load an adapter, answer 200 and serve the base.

    base, theta: the request's fields that select each: {"model": name} at vLLM, {"lora": [{"id": 0, "scale": 1.0}]} at llama.cpp.
    """
    def said(answer: requests.Response) -> tuple[str, list[float]]:
        choice = answer.json()["choices"][0]
        return choice["message"].get("content"), [t["logprob"] for t in (choice.get("logprobs") or {}).get("content") or []]

    def ask(chosen: dict, messages: list[dict]) -> tuple[str, list[float]]:
        body = {"messages": messages, "temperature": 0, "max_tokens": 16, "logprobs": True, "cache_prompt": False} | chosen
        return call("POST", f"{url}/chat/completions", body, said)

    def apart(a: tuple, b: tuple) -> float:
        return math.inf if a[0] != b[0] else max((abs(x - y) for x, y in zip(a[1], b[1])), default=0.0)

    told = [[ask(who, messages) for who in (base, base, theta)] for messages in prompts]
    noise, moved = max(apart(a, b) for a, b, _ in told), max(apart(a, c) for a, _, c in told)
    if not moved > 2 * noise + 1e-6:
        raise TrainError("not applied", f"{url} answers as theta what it answers as the base (apart by {moved:g}, the base "
                         f"from itself by {noise:g})")
    return moved


def advance(shard: Path, out: Path, model: str, python: str, url: str, served: str, /, **more: object) -> str | None:
    """theta_k -> theta_k+1: train, serve, canary. At `url` a vLLM server loads it beside `served`, the base's name there; "": it
    is models/local.py's, whose llama.cpp takes an adapter when it starts. more: train's. Returns the new model's name there,
    that of the folder `out`; None: nothing to train on. Raises TrainError. In both cases theta_k stays."""
    if not url:
        model, more = str(weights()), {"template": str(TEMPLATE)} | more
    if train(shard, out, model, python, **more) is None:
        return None
    prompts = sorted((addressed(row["prompt"], "") for row in read_rows(shard)), key=lambda p: len(str(p)))[:3]      # any will do
    if url:
        publish(url, out.name, out)
        canary(url, {"model": served}, {"model": out.name}, prompts)
    else:
        with contextlib.closing(Local(str(out))) as server:
            canary(server.url.removesuffix("/chat/completions"), *SCALES, prompts)
    return out.name


def do(args: argparse.Namespace) -> None:
    what, more = (args.shard, args.out, args.model, args.trainer_python), {"mode": args.mode, **args.set}
    made = advance(*what, args.base_url, args.served, **more) if args.base_url else train(*what, **more)
    print(json.dumps(made) if made else "no row to train on: theta stays")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.lora", description=__doc__)
    parser.add_argument("shard", type=Path)
    parser.add_argument("--model", required=True, help="the base: a folder, a .gguf file, or a name that transformers can fetch")
    parser.add_argument("--out", type=Path, required=True, help="the adapter's folder; a server calls it by the folder's name")
    parser.add_argument("--trainer-python", default=sys.executable, help="the Python that has torch, transformers and peft")
    parser.add_argument("--mode", choices=sorted(MODES), default="soft")
    parser.add_argument("--base-url", default="", help="a vLLM server that shall load it")
    parser.add_argument("--served", default="base", help="the base's name at that server")
    parser.add_argument("--set", type=lambda text: dict(json.loads(text)), default={}, metavar="JSON",
                        help="other settings: '{\"r\": 16}'")
    return command(parser, argv, do)


if __name__ == "__main__":
    sys.exit(main())
