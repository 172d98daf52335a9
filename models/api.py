"""Any OpenAI-compatible chat-completions server, over `requests`: OpenAI, Gemini, OpenRouter, Anthropic, vLLM, llama.cpp ...

    python run.py --model gpt-5-mini                                    key from OPENAI_API_KEY
    python run.py --model qwen3-8b --base-url http://localhost:8000/v1  a local server; key optional (OPENAI_API_KEY)

Covered: tools, one image, usage, one error line. Not covered yet: retries beyond two, prices, per-server adaptations.
"""
import json
import os
import time

import requests

from models import Call, Message, ModelError, Reply, Usage

PROVIDERS = [                        # (prefix of the model's name, base URL, environment variable of the key)
    ("gpt-", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    ("gemini-", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    ("claude-", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
]
OPENROUTER = ("", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY")      # names with a slash: vendor/model
TIMEOUT, TRIES = (10, 300), 3        # seconds to connect, to read; tries of one call


def provider(name: str) -> tuple[str, str, str]:
    found = next((p for p in PROVIDERS if name.startswith(p[0])), OPENROUTER if "/" in name else None)
    if found is None:
        raise ModelError(f"--model {name}: no provider known for this name; give --base-url URL, or use --model scripted")
    return found


def read_args(raw: object) -> dict | str:
    """Arguments as servers send them: a JSON string, a dict, "" for none, now and then a doubly encoded string."""
    for _ in range(2):
        if isinstance(raw, str):
            try:
                raw = json.loads(raw or "{}")
            except ValueError:
                return str(raw)
    return raw if isinstance(raw, dict) else str(raw)


def error_text(response: requests.Response) -> str:
    """The server's own words, whatever the body's shape: {"error": {...}}, [{...}], {"error": "..."}, {"detail": ...}, text."""
    try:
        body = response.json()
    except ValueError:
        return " ".join(response.text.split())[:300]
    body = body[0] if isinstance(body, list) and body else body
    error = body.get("error", body.get("detail", body)) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


class Api:
    def __init__(self, name: str, base_url: str = ""):
        _, url, variable = ("", base_url, "OPENAI_API_KEY") if base_url else provider(name)
        key = os.environ.get(variable, "")
        if not base_url and not key:
            raise ModelError(f"--model {name} needs a key: set {variable}, or use --base-url for a local server, or --model scripted")
        self.name, self.url, self.session = name, url.rstrip("/") + "/chat/completions", requests.Session()
        self.session.trust_env = False       # no .netrc: a stored password must not replace the key
        if key:
            self.session.headers["Authorization"] = f"Bearer {key}"

    def __call__(self, messages: list[Message], tools: list[dict]) -> Reply:
        body = {"model": self.name, "messages": messages, "stream": False} | ({"tools": tools, "tool_choice": "auto"} if tools else {})
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            try:
                response = self.session.post(self.url, json=body, timeout=TIMEOUT)
            except requests.RequestException as e:
                if last:
                    raise ModelError(f"{self.url} does not answer ({type(e).__name__}); check --base-url and the network") from None
            else:
                if response.status_code == 200:
                    return self.read(response)
                if last or response.status_code not in (408, 429, 500, 502, 503, 529):
                    raise ModelError(f"{self.url} answered {response.status_code}: {error_text(response)}")
            time.sleep(2 ** attempt)
        raise AssertionError("unreachable")

    def read(self, response: requests.Response) -> Reply:
        try:
            row = response.json()
            message = row["choices"][0]["message"]
        except (ValueError, LookupError, TypeError):
            raise ModelError(f"{self.url} answered 200 without a reply: {error_text(response)}") from None
        text = message.get("content") or ""
        text = text if isinstance(text, str) else "".join(p.get("text", "") for p in text if isinstance(p, dict))
        calls = [Call(str(c.get("id") or f"call{i}"), str(c["function"].get("name")), read_args(c["function"].get("arguments")))
                 for i, c in enumerate(message.get("tool_calls") or []) if isinstance(c.get("function"), dict)]
        usage = row.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Reply(text, calls, Usage(usage.get("prompt_tokens") or 0, cached, usage.get("completion_tokens") or 0, usage.get("cost")))
