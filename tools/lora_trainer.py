"""The trainer's own process: weighted ("soft") LoRA fine-tuning and offline GRPO of a language model (paper section 4).

    TRAINER_PYTHON tools/lora_trainer.py run.json      started by tools/lora.py, in an environment of its own with torch,
                                                       transformers and peft (and gguf for a .gguf base)

A row of the shard is one decision: {"prompt": [messages], "completion": [the answer], "tools": [...], "images": [paths],
"weight": 0..1}; for GRPO it also has "group" (the state) and "reward". Only the completion's tokens carry loss.

    soft SFT   sum_i w_i sum_t -log p(y_it) / target tokens of the step       weights scaled to mean 1 over the shard
    GRPO       clipped ratio x group-normalised advantage, minus beta x KL (k3) to the policy that it starts from

Departures: candidates come from a log, not from the live policy, so "old" is also the KL's reference. A row that is longer
than the context is dropped and counted, never cut; one with pictures is dropped too. One GPU, or the CPU in float32.
Exit status: 0 done | 3 no row to train on | 4 not finite | 5 out of memory | 6 no usable GPU.
"""
import json
import math
import os
import random
import re
import sys
import threading
import time
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import fmean, pstdev
from typing import Any

EMPTY, NAN, OOM, NO_GPU = 3, 4, 5, 6
LANGUAGE = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"      # not the eyes of a VLM


def watch_parent() -> None:
    """End when the caller's end of stdin is closed, however that happens."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()


def encode(row: dict, tokenizer: Any) -> dict:
    """The row with its text, its number of tokens and how many of them, at the end, are the completion's."""
    messages = json.loads(json.dumps(row["prompt"] + row["completion"]))
    for call in [c for m in messages for c in m.get("tool_calls") or []]:
        if isinstance(call["function"]["arguments"], str):               # several templates want an object here
            call["function"]["arguments"] = json.loads(call["function"]["arguments"] or "{}")
    render = lambda part, **more: tokenizer.apply_chat_template(part, tools=row.get("tools") or None, tokenize=False, **more)
    full, prompt = render(messages), render(messages[:len(row["prompt"])], add_generation_prompt=True)
    ids, before = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (full, prompt))
    return {"weight": 1.0, **row, "text": full, "n": len(ids), "target": len(ids) - len(os.path.commonprefix([ids, before]))}


def select(rows: list[dict], mode: str, longest: int) -> tuple[list[list[dict]], dict]:
    """(units, counts of what was dropped). A unit is trained on in one step: a row, or in GRPO all candidates of a state."""
    grpo, units = mode == "grpo", {}
    drop = {"pictures": 0, "zero_weight": 0, "too_long": 0, "no_target": 0, "flat_group": 0}
    for i, r in enumerate(rows):
        faults = r.get("images"), not grpo and r["weight"] <= 0, r["n"] > longest, not r["target"]       # in drop's order
        if why := next((why for why, found in zip(drop, faults) if found), ""):
            drop[why] += 1
        else:
            units.setdefault(r["group"] if grpo else i, []).append(r)
    if not grpo:
        mean = fmean([u[0]["weight"] for u in units.values()] or [1])
        return [[{**r, "weight": r["weight"] / mean}] for [r] in units.values()], drop     # mean 1: lr keeps its meaning
    kept = []
    for unit in units.values():
        rewards = [r["reward"] for r in unit]
        if pstdev(rewards) < 1e-6:           # all candidates are equally good: there is nothing to learn from them
            drop["flat_group"] += 1
        else:
            kept.append([{**r, "weight": (r["reward"] - fmean(rewards)) / (pstdev(rewards) + 1e-4)} for r in unit])
    return kept, drop


def log_probs(model: Any, tokenizer: Any, rows: list[dict]) -> tuple[Any, Any]:
    """(log p of each target token, mask), both (rows, longest target); padded on the left, so targets are aligned at the end."""
    import torch
    x = tokenizer([r["text"] for r in rows], add_special_tokens=False, padding=True, return_tensors="pt").to(model.device)
    k = max(r["target"] for r in rows)
    with torch.autocast("cuda", torch.bfloat16, enabled=model.device.type == "cuda"):
        out = model(input_ids=x["input_ids"], attention_mask=x["attention_mask"], use_cache=False, logits_to_keep=k + 1)
    nll = torch.nn.functional.cross_entropy(out.logits[:, :-1].float().transpose(1, 2), x["input_ids"][:, -k:], reduction="none")
    mask = torch.arange(k, device=model.device) >= k - torch.tensor([[r["target"]] for r in rows], device=model.device)
    return -nll.masked_fill(~mask, 0.0), mask


def loss_of(model: Any, tokenizer: Any, rows: list[dict], c: dict) -> Any:
    """The summed loss of some rows; the caller divides it by the step's target tokens."""
    import torch
    lp, mask = log_probs(model, tokenizer, rows)
    w = torch.tensor([[r["weight"]] for r in rows], device=lp.device)
    if c["mode"] != "grpo":
        return -(w * lp).sum()
    old = torch.zeros_like(lp)
    old[mask] = torch.cat([r["old"] for r in rows])
    ratio, away = (lp - old).exp(), old - lp
    gain = torch.minimum(ratio * w, ratio.clamp(1 - c["clip"], 1 + c["clip"]) * w)
    return ((c["beta"] * (away.exp() - away - 1) - gain) * mask).sum()


def open_base(c: dict, cuda: bool) -> tuple[Any, Any]:
    """(model with a LoRA, tokenizer)."""
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
    base, file = os.path.split(c["model"]) if c["model"].endswith(".gguf") else (c["model"], None)
    tokenizer = AutoTokenizer.from_pretrained(base, gguf_file=file, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if c["template"]:
        tokenizer.chat_template = Path(c["template"]).read_text(encoding="utf-8")
    config = AutoConfig.from_pretrained(base, gguf_file=file)
    if file and config.model_type != "llama":
        raise SystemExit(f"a .gguf base of the family {config.model_type}: only Llama's adapters can be written as GGUF")
    # subtle: a model that sees is opened as what it is served as, or the server finds none of the adapter's names.
    sees = getattr(config, "vision_config", None) is not None
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    model = kind.from_pretrained(base, gguf_file=file, dtype=torch.bfloat16 if cuda else torch.float32)
    if c["init"]:
        model = PeftModel.from_pretrained(model, c["init"], is_trainable=True)       # theta_k -> theta_k+1
    else:
        targets = c["targets"] or (LANGUAGE if sees else "all-linear")
        model = get_peft_model(model, LoraConfig(r=c["r"], lora_alpha=c["alpha"], target_modules=targets, task_type="CAUSAL_LM"))
    if cuda:
        model.cuda().enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.peft_config["default"].base_model_name_or_path = c["model"]
    return model, tokenizer


def fit(model: Any, tokenizer: Any, units: list[list[dict]], c: dict) -> list[float]:
    """AdamW, warm-up then cosine, `per_step` units a step in micro-batches of `batch` rows. Returns the losses."""
    import torch
    params = [p for p in model.parameters() if p.requires_grad]
    an_epoch = math.ceil(len(units) / c["per_step"])
    steps = c["steps"] or math.ceil(an_epoch * c["epochs"])
    warm, losses = max(1, math.ceil(c["warmup"] * steps)), []
    optimiser = torch.optim.AdamW(params, betas=(0.9, c["beta2"]), weight_decay=0.0)
    for s in range(steps):
        order = random.Random(f"{c['seed']} {s // an_epoch}").sample(units, len(units))
        rows = [r for unit in order[s % an_epoch * c["per_step"]:][:c["per_step"]] for r in unit]
        tokens, total = sum(r["target"] for r in rows), 0.0
        lr = c["lr"] * ((s + 1) / warm if s < warm else (1 + math.cos(math.pi * (s - warm) / max(1, steps - warm))) / 2)
        optimiser.param_groups[0]["lr"] = lr
        for i in range(0, len(rows), c["batch"]):
            loss = loss_of(model, tokenizer, rows[i:i + c["batch"]], c) / tokens
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0).item()
        print(json.dumps({"step": s + 1, "of": steps, "loss": total, "lr": lr}), flush=True)
        if not math.isfinite(total + norm):
            sys.exit(NAN)
        losses.append(total)
        optimiser.step()
        optimiser.zero_grad()
    return losses


def write_gguf(model: Any, path: Path) -> None:
    """The LoRA as llama.cpp reads it, for a base of the Llama family."""
    import gguf
    from peft import get_peft_model_state_dict
    cfg, out = model.config, gguf.GGUFWriter(path, "llama")
    out.add_type("adapter")
    out.add_string("adapter.type", "lora")
    out.add_float32("adapter.lora.alpha", float(model.peft_config["default"].lora_alpha))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, cfg.num_hidden_layers)
    for key, x in get_peft_model_state_dict(model).items():
        module, _, which = key.removeprefix("base_model.model.").partition(".lora_")       # which: A.weight, B.weight
        heads = {"q_proj": cfg.num_attention_heads, "k_proj": cfg.num_key_value_heads}.get(module.rpartition(".")[2])
        if heads and which[0] == "B":        # subtle: llama.cpp keeps the rotary halves of Q and K interleaved
            x = x.reshape(heads, 2, -1, x.shape[1]).transpose(1, 2).reshape(x.shape)
        out.add_tensor(f"{names.get_name(module)}.weight.lora_{which[0].lower()}", x.float().cpu().contiguous().numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def train(c: dict) -> None:
    import torch
    cuda, out, start = c["device"] == "cuda", Path(c["out"]), time.monotonic()
    if cuda and not torch.cuda.is_available():
        print(f"torch {torch.__version__} can't use the GPU")
        sys.exit(NO_GPU)
    torch.manual_seed(c["seed"])
    model, tokenizer = open_base(c, cuda)
    with open(c["shard"], encoding="utf-8") as lines:
        rows = [encode(json.loads(line), tokenizer) for line in lines if line.strip()]
    units, dropped = select(rows, c["mode"], c["max_length"])
    count = {"rows": sum(map(len, units)), "dropped": dropped}
    print(json.dumps(count), flush=True)
    if not units:
        sys.exit(EMPTY)
    with torch.no_grad():
        for r in [r for unit in units for r in unit if c["mode"] == "grpo"]:
            r["old"] = log_probs(model, tokenizer, [r])[0][0]
    model.train()
    losses = fit(model, tokenizer, units, c)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    if c["model"].endswith(".gguf"):
        write_gguf(model, out / "adapter.gguf")
    quarter = max(1, len(losses) // 4)
    peak = torch.cuda.max_memory_allocated() if cuda else getrusage(RUSAGE_SELF).ru_maxrss * 1024 ** (sys.platform != "darwin")
    done = count | {"id": c["id"], "steps": len(losses), "batch": c["batch"], "loss_first": fmean(losses[:quarter]),
                    "loss_last": fmean(losses[-quarter:]), "peak_gb": round(peak / 1e9, 2),
                    "seconds": round(time.monotonic() - start, 1)}
    (out / "DONE.json").write_text(json.dumps(done))         # the last file: without it the folder does not count


if __name__ == "__main__":
    watch_parent()
    try:
        train(json.loads(Path(sys.argv[1]).read_text()))
    except (RuntimeError, MemoryError) as e:
        if isinstance(e, RuntimeError) and not re.search("out of memory|allocate memory", str(e)):
            raise
        print(f"out of memory: {str(e)[:300]}")
        sys.exit(OOM)
