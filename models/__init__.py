"""The seam to a language model: `model(messages, tools) -> Reply`, messages and tools in OpenAI's chat-completions form.

What answers: scripted.py (by rules, offline), student.py (a small theta that learns, offline), api.py (any OpenAI-compatible
server), local.py (one that it starts itself). A new provider is a new file here.
"""
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

Message = dict      # {"role": system|user|assistant|tool, "content": str or parts, "tool_calls"?, "tool_call_id"?, "name"?}
NUDGE = "That reply held no tool call, so nothing happened. Answer with at least one tool call."


class ModelError(Exception):
    """The model can't answer: what the server said, and what to do. run.py saves the run and exits with 2."""


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    args: dict | str                 # the arguments; the raw string when it is no JSON object (never carried out)


@dataclass(frozen=True)
class Usage:
    input: int = 0                   # tokens, cached and written ones included
    cached: int = 0
    written: int = 0                 # tokens put into the cache, where that has a price of its own
    output: int = 0                  # tokens, reasoning included
    reasoning: int = 0
    dollars: float | None = None     # None: the price is unknown
    paper: float | None = None       # the same tokens at the paper's convention: cached input at 25 % of the list price
    unpriced: int = 0                # calls of unknown price; `dollars` is then the sum of the others

    def __add__(self, other: "Usage") -> "Usage":
        total = {}
        for f in fields(self):
            known = [v for v in (getattr(self, f.name), getattr(other, f.name)) if v is not None]
            total[f.name] = sum(known) if known else None
        return Usage(**total)

    def money(self, digits: int = 2) -> str:
        if self.dollars is None:
            return "dollars unknown"
        return f"${self.dollars:.{digits}f}" + (f" and {self.unpriced} calls of unknown price" if self.unpriced else "")


@dataclass(frozen=True)
class Reply:
    text: str                        # for people and parsers: without <think>...</think>
    calls: list[Call] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    note: str = ""                   # why it is not what was asked for, in words for the model: "It was cut off"
    message: Message | None = None   # as the server sent it, its calls repaired; None: made from text and calls
    endpoint: str = ""               # who sent it: fields that only this server knows go back to it and to no other

    def to_json(self) -> dict:
        return asdict(self)

    def as_message(self) -> Message:
        """The reply as a message of the history. A client takes `endpoint` off again, and with it what it can't send."""
        if self.message is not None:
            return {**self.message, "endpoint": self.endpoint}
        args = lambda c: json.dumps(c.args if isinstance(c.args, dict) else {})
        calls = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": args(c)}} for c in self.calls]
        return {"role": "assistant", "content": self.text} | ({"tool_calls": calls} if calls else {})

    @staticmethod
    def from_json(row: dict) -> "Reply":
        return Reply(**{**row, "calls": [Call(**c) for c in row["calls"]], "usage": Usage(**row["usage"])})


def digest(*parts: Any) -> str:
    """A short, stable hash of JSON-able values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def fill(prompt: str, **values: str) -> str:
    """The text of prompts/<prompt>.md with each {name} replaced. A missing or unused name raises KeyError."""
    template = (Path(__file__).parent.parent / "prompts" / f"{prompt}.md").read_text(encoding="utf-8")
    names = set(re.findall(r"\{([a-z_]+)\}", template))
    if names != set(values):
        raise KeyError(f"prompts/{prompt}.md: placeholders {sorted(names)}, values {sorted(values)}")
    return re.sub(r"\{([a-z_]+)\}", lambda m: values[m[1]], template).strip()


Model = Callable[[list[Message], list[dict]], Reply]


def open_model(name: str, seed: int = 0, base_url: str = "", **options: Any) -> Model:
    """The model called `name`: "scripted", "student", "student:FILE.npz", "local", "local:ADAPTER", or a model's name on an
    OpenAI-compatible server. Raises ModelError.

    options: those of api.Api (actions, prices, log).
    """
    if name == "scripted":
        from models.scripted import Scripted
        return Scripted(seed)
    if name.partition(":")[0] == "student":
        from models.student import Student
        return Student(name.partition(":")[2], seed)
    if name.split(":")[0] == "local" and not base_url:
        from models.local import Local
        return Local(name.partition(":")[2], **options)
    from models.api import Api
    return Api(name, base_url, **options)
