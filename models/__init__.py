"""The seam to a language model: `model(messages, tools) -> Reply`, messages and tools in OpenAI's chat-completions form.

What answers: scripted.py (by rules, offline), api.py (any OpenAI-compatible server). A new provider is a new file here.
"""
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Message = dict      # {"role": system|user|assistant|tool, "content": str or parts, "tool_calls"?, "tool_call_id"?, "name"?}


class ModelError(Exception):
    """The model can't answer: what the server said, and what to do. run.py saves the run and exits with 2."""


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    args: dict | str                 # the arguments; the raw string when it is no JSON object (never carried out)


@dataclass(frozen=True)
class Usage:
    input: int = 0                   # tokens, cached ones included
    cached: int = 0
    output: int = 0                  # tokens, reasoning included
    dollars: float | None = None     # None: the price is unknown

    def __add__(self, other: "Usage") -> "Usage":
        known = [d for d in (self.dollars, other.dollars) if d is not None]
        return Usage(self.input + other.input, self.cached + other.cached, self.output + other.output,
                     sum(known) if known else None)


@dataclass(frozen=True)
class Reply:
    text: str
    calls: list[Call] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)

    def to_json(self) -> dict:
        return asdict(self)

    @staticmethod
    def from_json(row: dict) -> "Reply":
        return Reply(row["text"], [Call(**c) for c in row["calls"]], Usage(**row["usage"]))


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


def open_model(name: str, seed: int = 0, base_url: str = "") -> Model:
    """The model called `name`: "scripted", or a model's name on an OpenAI-compatible server. Raises ModelError."""
    if name == "scripted":
        from models.scripted import Scripted
        return Scripted(seed)
    from models.api import Api
    return Api(name, base_url)
