"""What goes over the wire and comes back, as pure functions: error bodies -> Fault, reply bodies -> Reply, messages -> messages.

Servers agree on the happy path only. Everything here takes any JSON at all and ends in a value or a Fault.
"""
import json
import math
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from models import NUDGE, Call, Message, Reply, Usage, digest

BLOCKED = ("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "image_safety", "refusal")
KNOWN = ("role", "content", "tool_calls", "tool_call_id", "name")      # what every server takes
SENTINEL = {"google": {"thought_signature": "skip_thought_signature_validator"}}     # for calls that Gemini did not make
CALLS, DEPTH = 32, 60                # calls kept of one reply; how deep JSON may be nested


def lines(name: str) -> list[str]:
    """The rows of a table beside this file."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [row for row in text.splitlines() if row and row[0] != "#"]


RULES = [row.split(None, 1) for row in lines("faults.txt")]            # (kind, pattern)


@dataclass(eq=False)
class Fault(Exception):
    """An answer that is no reply: what kind of trouble it is, and the server's own words."""

    kind: str                        # retry, connection, timeout, empty, quota: wait; stop; others: a cause to remove (api.adapt)
    text: str
    status: int = 0                  # 0: there was no answer
    wait: float = 0.0                # seconds that the server asks for
    field: str = ""                  # the request's field that it refuses
    window: int = 0                  # its context, tokens, if it says so
    body: str = ""                   # the start of a body that could not be read


def scrub(value: Any, depth: int = 0) -> Any:
    """Without what can't be written as UTF-8 JSON again: lone surrogates, infinity, bottomless nesting."""
    if depth > DEPTH or isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not JSON that can be sent back")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {scrub(k): scrub(v, depth + 1) for k, v in value.items()}
    return [scrub(v, depth + 1) for v in value] if isinstance(value, list) else value


def loads(text: str) -> Any:
    """json.loads whose only exception is ValueError."""
    try:
        return scrub(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deep") from None


# -- errors

def error_words(raw: bytes) -> tuple[dict, str]:
    """(the error's fields, its text) of {"error": {...}}, [{"error": ...}], {"error": "..."}, {"detail": ...}, HTML, text."""
    text = raw[:20_000].decode("utf-8", "replace")
    try:
        body = loads(text)
    except ValueError:
        return {}, " ".join(re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]*>", " ", text).split())[:300]
    body = body[0] if isinstance(body, list) and body else body
    error = body.get("error") or body.get("detail") or body if isinstance(body, dict) else body
    error = error if isinstance(error, dict) else {"message": error}
    said = error.get("message") or error
    text = said if isinstance(said, str) else json.dumps(said)
    more = error.get("metadata")             # OpenRouter: the provider's own words
    more = more.get("raw") if isinstance(more, dict) else None
    return error, (text[:300] + (f" ({str(more)[:200]})" if more else ""))


def server_wait(headers: Mapping, text: str) -> float:
    """Seconds that the server asks for: a header in (milli)seconds or as a date, Google's RetryInfo, the text. 0: not said."""
    said = re.search(r"(?:retryDelay\W+|try (?:again )?in )([\d.]+) ?(ms|s)\b", text)
    asked = [(headers.get("retry-after-ms"), "ms"), (headers.get("retry-after"), "s"), said.groups() if said else (None, "s")]
    for value, unit in asked:
        with suppress(ValueError, TypeError, OverflowError):
            if re.search("[a-z]", value or ""):
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
            else:
                seconds = float(value) / {"ms": 1000, "s": 1}[unit]
            if 0 < seconds < math.inf:
                return seconds
    return 0.0


def fault(status: int, headers: Mapping, raw: bytes) -> Fault:
    """What an error answer asks for: the first rule of faults.txt. A 200 with an error inside is judged by the code in it."""
    error, text = error_words(raw)
    code = str(error.get("code", ""))
    if status == 200:
        status = int(code) if code.isdigit() and 400 <= int(code) < 600 else 500
    whole = json.dumps(error) if error else text
    asked = f"{status} {headers.get('x-should-retry', '')} {whole}"
    kind, found = next(((kind, m) for kind, rule in RULES if (m := re.search(rule, asked, re.I))), ("stop", None))
    window = re.search(r"(?:context (?:length|size)|maximum)\D{0,30}?(\d{3,8})", text)
    return Fault(kind, text, status, server_wait(headers, whole), found.groupdict().get("field", "") if found else "",
                 int(window[1]) if window else 0, "" if error else raw[:2048].decode("utf-8", "replace"))


# -- replies

def unwrapped(value: Any, kind: type) -> Any:
    """A value that came as its JSON text, perhaps encoded twice, if a `kind` is in it; else as it came."""
    inner = value
    for _ in range(2):
        with suppress(ValueError):
            inner = loads(inner) if isinstance(inner, str) else inner
    return inner if isinstance(inner, kind) else value


def read_args(raw: Any, schema: dict | None = None) -> dict | str:
    """Arguments as servers send them: a JSON string, a dict, "" for none, a string in a string. All else stays text.

    An array or object in them that came as its JSON text is taken for what its schema says it is.
    """
    args = unwrapped(raw if str(raw).strip() else {}, dict)
    if not isinstance(args, dict):
        return raw if isinstance(raw, str) else json.dumps(raw)
    for name, rule in (schema or {}).get("properties", {}).items():
        kind = {"array": list, "object": dict}.get(rule.get("type"))
        if kind and name in args:
            args = args | {name: unwrapped(args[name], kind)}
    return args


def leaked(text: str, schemas: dict[str, dict]) -> list[tuple[str, dict]]:
    """Calls that were left in the text: only when the whole text is calls, and each names a tool and fits its schema."""
    rest, calls = re.sub(r"</?tool_call>|^```(?:json)?|```$", " ", text.strip()).strip(), []
    if tagged := re.fullmatch(r"<function=([\w-]+)>(.*?)(?:</function>)?", rest, re.S):
        given = dict(re.findall(r"<parameter=(\w+)>\s*(.*?)\s*</parameter>", tagged[2], re.S))
        rest = json.dumps({"name": tagged[1], "arguments": given})
    try:
        while rest:
            row, end = json.JSONDecoder().raw_decode(rest)
            row = row.get("call", row)
            name = row.get("tool", row.get("name"))
            args = read_args(scrub(row.get("arguments", row.get("parameters"))), schemas[name])
            if not isinstance(args, dict) or not Draft202012Validator(schemas[name]).is_valid(args):
                return []
            calls.append((name, args))
            rest = rest[end:].lstrip()
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return []
    return calls[:CALLS]


def content_text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return content if isinstance(content, str) else ""


def read_calls(message: dict, schemas: dict[str, dict], used: set[str], seed: int) -> tuple[list[Call], list[dict]]:
    """(calls to carry out, calls as they go back). Ids are unique in the history; arguments that are no object go back as {}."""
    calls, stored = [], []
    listed = message.get("tool_calls") if isinstance(message.get("tool_calls"), list) else []
    if not listed and isinstance(message.get("function_call"), dict):
        listed = [{"function": message["function_call"]}]
    for row in [r for r in listed if isinstance(r, dict) and isinstance(r.get("function"), dict)][:CALLS]:
        given, id = row["function"], row.get("id")
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", str(given.get("name") or "unnamed"))[:64]
        args = read_args("" if given.get("arguments") is None else given["arguments"], schemas.get(name))
        if not isinstance(id, str) or not re.fullmatch(r"[\w:.-]{1,40}", id) or id in used:
            id = next(i for i in (digest(seed, len(calls), n)[:9] for n in range(99)) if i not in used)
        used.add(id)
        calls.append(Call(id, name, args))
        stored.append(row | {"id": id, "type": "function", "function": {
            "name": name, "arguments": json.dumps(args) if isinstance(args, dict) else "{}"}})
    return calls, stored


def read_message(row: dict, messages: list[Message], tools: list[dict], tag: str, full: bool = False) -> Reply:
    """A reply's JSON -> Reply, with no usage yet. full: it has all the tokens it was allowed. Raises Fault: nothing to read."""
    try:
        choice = row["choices"][0]
        message = choice["message"]
        finish = str(choice.get("finish_reason") or "").lower()
    except (LookupError, TypeError, AttributeError):
        raise Fault("empty", "status 200 without a reply", 200, body=json.dumps(row)[:2048]) from None
    if choice.get("error"):
        raise fault(200, {}, json.dumps(choice["error"] if isinstance(choice["error"], dict) else choice).encode())
    message = message if isinstance(message, dict) else {}
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    used = {c["id"] for m in messages for c in m.get("tool_calls", [])}
    said = content_text(message.get("content"))
    text = re.sub(r"(?s)<think>.*?(?:</think>|\Z)", "", said).strip()
    calls, stored = read_calls(message, schemas, used, len(messages))
    if not calls and (found := leaked(text, schemas)):
        row = {"tool_calls": [{"function": {"name": n, "arguments": a}} for n, a in found]}
        (calls, stored), said, text = read_calls(row, schemas, used, len(messages)), "", ""
    if not calls and not text and (finish in BLOCKED or message.get("refusal")):
        raise Fault("blocked", f"blocked: {finish or 'refusal'}", 200)
    whole = calls and all(isinstance(c.args, dict) for c in calls)
    note = "It was cut off: keep it short." if (finish == "length" or full) and not whole else \
        "Your call could not be read." if not calls and ("malformed" in finish or not text) else ""
    extra = {k: v for k, v in message.items() if k not in (*KNOWN, "function_call") and v not in (None, [], "")}
    kept = {"role": "assistant", "content": said} | ({"tool_calls": stored} if calls else {}) | extra
    return Reply(text, calls, note=note, message=kept, endpoint=tag)


# -- messages for one server

def addressed(messages: list[Message], tag: str, google: bool = False) -> list[Message]:
    """Messages for the endpoint `tag`: its own go back as they came; of another's, what every server knows, with ids all take."""
    out, ids = [], {}
    for m in messages:
        if m.get("endpoint", "") == tag != "":
            out.append({k: v for k, v in m.items() if k != "endpoint"})
            continue
        known = {k: v for k, v in m.items() if k in KNOWN}
        if "tool_call_id" in m:
            known["tool_call_id"] = ids.get(m["tool_call_id"], m["tool_call_id"])
        if calls := m.get("tool_calls"):
            ids |= {c["id"]: c["id"] if re.fullmatch(r"[a-zA-Z0-9]{9}", c["id"]) else digest(c["id"])[:9] for c in calls}
            known["tool_calls"] = [{"id": ids[c["id"]], "type": "function", "function": c["function"]} for c in calls]
            if google:
                known["tool_calls"][0]["extra_content"] = SENTINEL
        out.append(known)
    return out


def without_pictures(messages: list[Message]) -> list[Message]:
    return [m | {"content": content_text(m["content"])} if isinstance(m.get("content"), list) else m for m in messages]


def without_text(messages: list[Message]) -> list[Message]:
    """Without the newest text, its picture kept: a prompt that was blocked must change."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=0)
    kept, note = messages[last]["content"], "(The text of this message is left out.)"
    kept = [{"type": "text", "text": note}, *(p for p in kept if p["type"] != "text")] if isinstance(kept, list) else note
    return messages[:last] + [messages[last] | {"content": kept}] + messages[last + 1:]


def size(rows: list[dict]) -> int:
    """Characters of messages and tools; pictures don't count."""
    return len(json.dumps(without_pictures(rows)))


def pictures(messages: list[Message]) -> int:
    return sum(p["type"] == "image_url" for m in messages if isinstance(m["content"], list) for p in m["content"])


def shorter(messages: list[Message]) -> list[Message] | None:
    """The older half of the turns left out, whole; of a single turn, the middle of its longest text. None: nothing left."""
    users = [i for i, m in enumerate(messages) if m["role"] == "user"]
    starts = [i for i in users if i and not content_text(messages[i]["content"]).startswith(NUDGE)]
    if len(starts) > 1:
        return messages[:1] + messages[starts[len(starts) // 2]:]
    last = max(users, key=lambda i: len(content_text(messages[i]["content"])))
    text = content_text(messages[last]["content"])
    if len(text) < 2000 or not isinstance(messages[last]["content"], str):
        return None
    cut = f"{text[:len(text) // 4]}\n[... left out: it was too long ...]\n{text[-len(text) // 4:]}"
    return messages[:last] + [messages[last] | {"content": cut}] + messages[last + 1:]


def call_schema(tools: list[dict]) -> dict:
    """response_format: one call of one tool. For servers that enforce a schema better than they make calls."""
    one = lambda f: {"type": "object", "required": ["tool", "arguments"], "additionalProperties": False,
                     "properties": {"tool": {"type": "string", "enum": [f["name"]]}, "arguments": f["parameters"]}}
    schema = {"type": "object", "required": ["call"], "additionalProperties": False,
              "properties": {"call": {"anyOf": [one(t["function"]) for t in tools]}}}
    return {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}


def flat(messages: list[Message], tools: list[dict]) -> list[Message]:
    """The conversation without tool messages: tools in the first message, calls as JSON text, results as the user's words."""
    out: list[Message] = []
    for i, m in enumerate(messages):
        role, content = m["role"], m["content"]
        if i == 0 and tools:
            how = 'Answer with one JSON object and nothing else: {"call": {"tool": name, "arguments": {...}}}. The tools:'
            content = "\n".join([content, "", how, *(json.dumps(t["function"]) for t in tools)])
        if m.get("tool_calls"):
            calls = [c["function"] for c in m["tool_calls"]]
            content = "\n".join(json.dumps({"call": {"tool": f["name"], "arguments": json.loads(f["arguments"])}}) for f in calls)
        if role == "tool":
            role, content = "user", f"Result of {m['name']}: {content}"
        if out and role == "user" == out[-1]["role"]:        # some chat templates want the two roles in turn
            both = out.pop()["content"], content
            parts = [[{"type": "text", "text": c}] if isinstance(c, str) else c for c in both]
            content = "\n\n".join(both) if all(isinstance(c, str) for c in both) else parts[0] + parts[1]
        out.append({"role": role, "content": content})
    return out


# -- tokens and dollars

def priced(prices: dict, name: str) -> dict | None:
    """The model's row of the price file, its name with or without a date; None: unknown. Dollars for a million tokens."""
    row = prices.get(name) or prices.get(re.sub(r"[-@](\d{8}|\d{4}-\d\d-\d\d|latest|preview)$", "", name))
    return row and {"cached": row["input"], "written": row["input"]} | row


def leaves(value: Any) -> dict[str, float]:
    """The numbers in a JSON object by name, however deep; an outer one hides an inner one of the same name."""
    inner, pairs = {}, value.items() if isinstance(value, dict) else ()
    for _, v in pairs:
        inner |= leaves(v)
    return inner | {k: v for k, v in pairs if isinstance(v, (int, float)) and 0 <= v < 1e12}


def tokens(row: dict, headers: Mapping, price: dict | None) -> Usage:
    """What a reply says that it used. Absent fields count 0; the server's own cost comes before the price file."""
    told = leaves(row.get("timings")) | leaves(row.get("usage"))
    number = lambda *names: next((told[n] for n in names if told.get(n)), 0)
    cached = number("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "cache_n")
    written = number("cache_write_tokens", "cache_creation_input_tokens")
    input = number("prompt_tokens") or (told["input_tokens"] + cached + written if "input_tokens" in told else 0)
    # some leave the reasoning out of completion_tokens
    output = max(number("completion_tokens", "output_tokens"), number("total_tokens") - input)
    cached, written = min(cached, input), min(written, max(0, input - cached))
    with suppress(KeyError, ValueError):
        told.setdefault("cost", float(headers["x-litellm-response-cost"]))
    dollars, paper = told.get("cost"), None
    if dollars is not None and told.get("is_byok"):          # OpenRouter with one's own key: the provider bills the rest
        dollars += number("upstream_inference_cost")
    if price:
        paper = ((input - 0.75 * cached) * price["input"] + output * price["output"]) / 1e6
        listed = ((input - cached - written) * price["input"] + cached * price["cached"] + written * price["written"]
                  + output * price["output"]) / 1e6
        dollars = listed if dollars is None else dollars
    counts = map(int, (input, cached, written, output, number("reasoning_tokens")))
    return Usage(*counts, dollars, paper, int(dollars is None))
