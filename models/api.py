"""Any OpenAI-compatible chat-completions server: OpenAI, Gemini, OpenRouter, Anthropic, vLLM, llama.cpp, Ollama, LM Studio ...

    python run.py --model gpt-5-mini                                    key from OPENAI_API_KEY; the others: see providers.txt
    python run.py --model qwen3-8b --base-url http://localhost:8000/v1  a local server; its key, if any, in OPENAI_API_KEY

One call is a loop: post, read; when a cause can be removed (`adapt`), remove it; when waiting helps (`pause`), wait; else
ModelError. What a server refused once is not sent to it again. Everything that is learnt here is about the server, never
about the game: a reply is logged before it is used, so a resumed run does not depend on it.

Not covered: streaming, /v1/responses, cache markers (Anthropic's own cache), silent truncation (it is only warned of).
What a reply's shape means is in models/wire.py.
"""
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import requests

from models import Message, ModelError, Reply, Usage, digest
from models.wire import (Fault, addressed, call_schema, fault, flat, lines, loads, pictures, priced, read_message, shorter, size,
                         tokens, without_pictures, without_text)

PROVIDERS = [(url, variables.split(","), prefixes) for url, variables, *prefixes in map(str.split, lines("providers.txt"))]
CONNECT, READ, DEADLINE = 10, 600, 900           # seconds: to connect, between two bytes, for one call with all its retries
TRIES, CAP = 8, 60                               # tries of one call; longest wait of our own, seconds
LIMIT = {"quota": 2, "timeout": 2, "empty": 2}   # retries of these kinds; all others up to TRIES
OUTPUT = 8192                                    # tokens of a reply, at first; a reply that is cut off doubles it, up to 4x
MUTE = 3                                         # replies in a row without a valid call before the other channel is tried


def provider(name: str, base_url: str) -> tuple[str, list[str]]:
    """(base URL, environment variables of the key). A known host keeps its key's name when it is given as --base-url."""
    if base_url:
        same = (p for p in PROVIDERS if urlsplit(p[0]).hostname == urlsplit(base_url).hostname)
        return base_url.rstrip("/"), next(same, ("", ["OPENAI_API_KEY"]))[1]
    for url, variables, prefixes in PROVIDERS:
        if name.startswith(tuple(prefixes)) or "/" in prefixes and "/" in name:
            return url, variables
    raise ModelError(f"--model {name}: no provider known for this name; give --base-url URL, or use --model scripted")


def read_key(name: str, variables: list[str], needed: bool) -> str:
    key = next(filter(None, (os.environ.get(v, "").strip() for v in variables)), "")
    if needed and not key:
        raise ModelError(f"--model {name} needs a key: set {variables[0]}, or use --base-url for a local server, "
                         "or --model scripted")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ModelError(f"the key in {variables[0]} holds a space or a character that can't be sent; set it again")
    return key


def read_price(path: str, name: str) -> dict | None:
    """The model's row of the price file, its name with or without a date; None: unknown. Dollars for a million tokens."""
    try:
        rows = json.loads(Path(path or Path(__file__).with_name("prices.json")).read_text(encoding="utf-8"))["models"]
        return priced(rows, name)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as e:
        raise ModelError(f"--prices {path}: can't be read ({type(e).__name__}); models/prices.json shows its form") from None


class Api:
    output, longest, keyless = OUTPUT, 4 * OUTPUT, False

    def __init__(self, name: str, base_url: str = "", actions: str = "auto", prices: str = "",
                 log: Callable[[str], None] = lambda line: None,
                 sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic):
        url, self.variables = provider(name, base_url)
        self.key = "" if self.keyless else read_key(name, self.variables, needed=not base_url)
        self.name, self.url, self.tag = name, url + "/chat/completions", f"{urlsplit(url).netloc} {name}"
        self.actions, self.log, self.sleep, self.clock = actions, (lambda line: log(self.redact(line))), sleep, clock
        self.price, self.session = read_price(prices, name), requests.Session()
        self.session.trust_env = False       # no .netrc: a stored password must not replace the key
        if self.key:
            self.session.headers["Authorization"] = f"Bearer {self.key}"
        # What is learnt about this server:
        host = urlsplit(url).hostname or ""
        self.google, self.pictures, self.json, self.answered = "google" in host, True, actions == "json", False
        openai = host == "api.openai.com"
        # ...: the size of a reply, `output`, under the name that the server knows
        self.fields = {"stream": False, "max_completion_tokens" if openai else "max_tokens": ..., "tool_choice": "auto"}
        if openai and name.startswith(("gpt-5.4", "gpt-5.5", "gpt-5.6")):
            self.fields["reasoning_effort"] = "none"     # with any other value these refuse tools on this endpoint
        self.tried, self.mute, self.switches = set(), 0, 0
        self.first, self.room = "", 0        # the first turn that still fits (a hash), characters that fit (0: all)
        self.density = 0.4                   # tokens a character, at most

    def redact(self, text: str) -> str:
        return text.replace(self.key, "[key]") if self.key else text

    def __call__(self, messages: list[Message], tools: list[dict]) -> Reply:
        faults, end, spent, sent = [], self.clock() + DEADLINE, Usage(), self.fit(messages)
        while True:
            try:
                body = self.body(sent, tools)
                row, headers = self.send(body, end)
                spent += (usage := tokens(row, headers, self.price))
                self.watch(usage, body)
                reply = read_message(row, messages, tools, self.tag, usage.output >= self.output)
                return self.learn(reply, spent, tools)
            except Fault as f:
                faults.append(f)
                same = [x for x in faults if x.kind == f.kind]
                if f.status == 500 and f.kind == "retry" and sum(x.text == f.text for x in same) >= 3:
                    f.kind, same = "history", [x for x in faults if x.kind == "history"] + [f]   # asking again won't help
                self.log(f"{f.kind} ({f.status or 'no status'}): {f.text}" + (f"\n{f.body}" if f.body else ""))
                smaller = self.adapt(f, sent, len(same))
                if smaller is None and f.kind in ("blocked", "empty") and len(same) > LIMIT["empty"] - (f.kind == "blocked"):
                    return Reply("", usage=spent, note=f"The server gave no answer ({f.text}).")
                if smaller is None:
                    self.pause(f, len(same), len(faults), end)
                sent = smaller or sent

    # -- what is sent

    def body(self, messages: list[Message], tools: list[dict]) -> dict:
        """The request: messages for this endpoint, tools in every request, or (--actions json) told in the text."""
        kept = addressed(messages, self.tag, self.google)
        kept = kept if self.pictures else without_pictures(kept)
        skipped = None if tools and not self.json else "tool_choice"
        fields = {k: self.output if v is ... else v for k, v in self.fields.items() if k != skipped}
        if self.json:
            kept, schema = flat(kept, tools), {"response_format": call_schema(tools)}
            fields |= schema if tools and "response_format" not in self.tried else {}
        elif tools:
            fields["tools"] = tools
        return {"model": self.name, "messages": kept, **fields}

    def send(self, body: dict, end: float) -> tuple[dict, dict]:
        """POST it -> (the reply's JSON, headers). Raises Fault for anything that is no JSON object of status 200."""
        raw, timeout = bytearray(), (CONNECT, max(1.0, min(READ, end - self.clock())))
        try:
            with self.session.post(self.url, json=body, timeout=timeout, stream=True, allow_redirects=False) as response:
                # subtle: a server that keeps the line warm with blanks resets the read timeout, so the clock is looked at too.
                for piece in response.iter_content(1):
                    raw += piece
                    if self.clock() > end:
                        raise requests.Timeout
        except requests.Timeout:
            raise Fault("timeout", f"no whole answer within {DEADLINE} s") from None
        except (ValueError, requests.exceptions.SSLError) as e:          # a bad URL, a certificate
            raise Fault("stop", f"{type(e).__name__}; check --base-url") from None
        except requests.RequestException as e:
            self.session.close()             # some servers leave a dead connection behind after an error
            raise Fault("connection", type(e).__name__) from None
        clean = bytes(raw).replace(self.key.encode(), b"[key]") if self.key else bytes(raw)
        try:
            row = loads(clean.partition(b"\ndata: [DONE]")[0].decode("utf-8", "replace"))
        except ValueError:
            row = None
        if response.status_code != 200 or isinstance(row, dict) and row.get("error"):
            raise fault(response.status_code, response.headers, clean)
        if not isinstance(row, dict):
            raise Fault("retry", "status 200 without JSON", 200, body=clean[:2048].decode("utf-8", "replace"))
        self.answered = True
        return row, response.headers

    # -- what to do about a fault

    def adapt(self, f: Fault, sent: list[Message], n: int) -> list[Message] | None:
        """What to send after a refusal whose cause can be removed; None: it can't be, or it was already."""
        mine, plain = addressed(sent, self.tag, self.google), addressed(sent, "", self.google)
        if f.kind == "overflow":
            return self.shrink(sent, f.window) if n <= 4 else None
        if f.kind == "blocked":              # the same prompt would be blocked again
            return without_text(sent) if n == 1 else None
        if f.kind == "signature":            # once as it is, then without
            return sent if n == 1 else plain if plain != mine else None
        if f.kind == "history":
            return next((m for m in (plain, without_pictures(plain)) if m != mine), None) if n <= 2 else None
        if f.kind == "image":
            done = self.pictures and pictures(sent) > 0
            self.pictures = self.pictures and not done
        elif f.kind == "cap":
            self.output = self.longest = self.output // 2        # a cut reply must not ask for more than that again
            done = self.output >= 64
        elif f.kind == "tools":              # the other channel, once
            done = self.actions == "auto" and not self.json and "tools" not in self.tried
            self.json = self.json or done
        else:
            done = f.kind == "field" and self.change(f.field)
        self.tried.add(f.kind)
        return sent if done else None

    def change(self, name: str) -> bool:
        """One refused field: renamed, replaced or dropped, each at most once for this server. False: it was not sent."""
        old, new = self.fields.pop(name, None), name not in self.tried
        self.tried.add(name)
        other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}.get(name)
        if old is not None and other and other not in self.tried:
            self.fields[other] = old
        if name == "reasoning_effort" and old is None and new:
            self.fields[name] = "none"
        return old is not None or new and (name == "reasoning_effort" or name == "response_format" and self.json)

    def pause(self, f: Fault, n: int, tries: int, end: float) -> None:
        """Wait before the next try. Raises ModelError when there is no next one."""
        limit = LIMIT.get(f.kind, TRIES - 1) if self.answered or f.kind != "connection" else 2
        wait = max(f.wait, random.uniform(0, min(CAP, 2.0 ** (n - 1)))) + random.uniform(0, 1)      # full jitter
        wait = 0.0 if f.kind == "connection" and n == 1 else wait        # a dead kept-alive connection: at once on a fresh one
        late = self.clock() + wait > end
        if f.kind in ("retry", "connection", *LIMIT) and n <= limit and not late:
            self.log(f"try {tries} failed; the next one in {wait:.1f} s")
            return self.sleep(wait) if wait else None
        said = f"answered {f.status}: {f.text}" if f.status else f"does not answer ({f.text}); check --base-url and the network"
        said += f" (after {tries} tries)" if tries > 1 else ""
        said += f"; it asks to wait {f.wait:.0f} s, more than a call may take" if late and f.wait else ""
        said += f"; check the key in {' or '.join(self.variables)}" if f.status in (401, 403) else ""
        raise ModelError(self.redact(f"{self.url} {said}"))

    # -- a context that is too long

    def fit(self, messages: list[Message]) -> list[Message]:
        """Leave out the turns that did not fit before: cut at the same turn, so that the prefix stays the same."""
        at = next((i for i, m in enumerate(messages) if self.first and digest(messages[i:i + 2]) == self.first), 0)
        messages = messages[:1] + messages[at:] if at else messages
        while self.room and size(messages) > self.room and (less := shorter(messages)):
            messages, self.first = less, digest(less[1:3]) if len(less) > 2 else self.first
        return messages

    def shrink(self, messages: list[Message], window: int) -> list[Message] | None:
        """Half of the oldest turns go; when there is one left, the picture. None: nothing is left to go."""
        if window and self.output > window // 4:         # the room kept for the reply is part of what is too long
            self.output = max(64, window // 4)
            return messages
        self.room = size(messages) * 9 // 10
        less = self.fit(messages)
        self.log(f"the context is too long: {len(messages)} messages became {len(less)}")
        return less if less != messages else without_pictures(messages) if pictures(messages) else None

    # -- what a reply teaches, and what it costs

    def learn(self, reply: Reply, spent: Usage, tools: list[dict]) -> Reply:
        """Count replies without a call: the other channel may work better. A reply that was cut off gets more room next time."""
        self.mute = 0 if reply.calls or not tools else self.mute + 1
        if self.mute >= MUTE and self.actions == "auto" and self.switches < 2:
            self.json, self.mute, self.switches = not self.json, 0, self.switches + 1
            self.log(f"{MUTE} replies without a call: from now on calls go through {'response_format' if self.json else 'tools'}")
        if reply.note.startswith("It was cut off") and self.output < self.longest:
            self.output *= 2
        if reply.note:
            self.log(f"reply with {len(reply.calls)} calls: {reply.note}")
        return replace(reply, usage=spent)

    def watch(self, usage: Usage, body: dict) -> None:
        """Tokens a character, for the estimate; a prompt of which the server read too little was cut in silence."""
        sent = size([*body["messages"], *body.get("tools", [])])
        if usage.input:
            self.density = min(1.0, 1.2 * usage.input / sent)
        if 0 < usage.input < sent / 12 and "short" not in self.tried:
            self.tried.add("short")
            self.log(f"warning: {usage.input} tokens read of {sent} characters: is the prompt cut? (Ollama: num_ctx)")

    def estimate(self, messages: list[Message], tools: list[dict]) -> float | None:
        """Dollars that the next call may cost at most: all of the prompt uncached, and the longest reply. None: unknown."""
        if self.price is None:
            return None
        prompt = size([*messages, *tools]) * self.density + 2000 * pictures(messages)
        return (prompt * max(self.price["input"], self.price["written"]) + self.output * self.price["output"]) / 1e6
