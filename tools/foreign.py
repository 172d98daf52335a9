"""Logs of coding agents -> env.Step, and what went wrong in them: the Refiner's signatures and a few of their own.

Read: Codex `exec --json` and rollout files, Claude Code stream-json and session files, OpenAI and Anthropic message lists
(JSONL, or one JSON list), our own trajectory.jsonl. A log is streamed, window by window: memory stays bounded.
Secrets are taken out, by pattern, before anything is kept. Not kept: reasoning, pictures, what is in the middle of long texts.
"""
import hashlib
import json
import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from env import Step
from models import Call, Reply, Usage, digest
from refiner import Signature, signatures
from runlog import BadInput

LINE, LIST = 16 << 20, 32 << 20      # bytes of a line, of a JSON list
TEXT, EDGE, WINDOW = 2_000, 4_000, 200      # characters kept of a text; the longest secret, a private key; steps looked at together
HINTS = ("key", "secret", "token", "passw", "bearer ", "://", "eyj", "sk-", "sk_", "ghp_", "gho_", "ghs_", "github_", "glpat", "xox", "hf_", "aiza", "akia",
         "asia", "npm_", "pypi-")            # a text with none of them holds no secret that SECRET finds; looking for words is 50 times as fast
SECRET = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+"
                    r"|\b(?:sk-|sk_live_|gh[pos]_|github_pat_|glpat-|xox[abprs]-|hf_|AIza|AKIA|ASIA|npm_|pypi-)[\w-]{12,}"
                    r"|(?P<url>://[^/\s:@]+:)[^/\s@]+(?=@)|(?P<name>(?i:bearer |(?:passw(?:or)?d|secret|token|api[_-]?key|access[_-]?key)[\w-]*[\"']?"
                    r"\s*[:=]\s*[\"']?))(?!\[secret\]|\d+\b)[^\s\"',;&]{6,}", re.S)
INVALID = re.compile(r"InputValidationError|invalid (?:tool )?(?:arguments|input|params)|fail(?:ed|ure) to parse .*arguments|missing (?:\d+ )?required"
                     r"|required (?:parameter|propert)|unknown (?:tool|function)|no such tool|not valid under|schema", re.I)
SCRIPT = re.compile(r"<<-?\s*[\"']?\w+|\b(?:python3?|node|ruby|perl|bash|sh) -[ce]\b|\.(?:py|sh|js|rb)[\"']")


def flat(content: Any) -> str:
    """The text of a message's content: a string, or parts of which the texts count."""
    if isinstance(content, list):
        return "\n".join(filter(None, (flat(p) for p in content)))
    if isinstance(content, dict):
        return flat(next((content[k] for k in ("text", "content", "output") if k in content), ""))
    return "" if content is None else str(content)


def number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def spent(u: Any) -> Usage:
    """A usage object of any of the formats, in our terms: input counts the cached tokens, too."""
    u = u if isinstance(u, dict) else {}
    get = lambda *keys: sum(number(u.get(k)) for k in keys)
    apart = get("cache_read_input_tokens", "cache_creation_input_tokens")          # Anthropic's: not in input_tokens
    return Usage(get("input_tokens", "prompt_tokens") + apart, get("cached_input_tokens", "cache_read_input_tokens"),
                 get("cache_creation_input_tokens"), get("output_tokens", "completion_tokens"))


# -- a row of a log -> events: ("user" | "text", s), ("call", id, name, args), ("result", id, output, failed, exit), ("usage", u), ("end" | "error", s)

def message(m: dict) -> list[tuple]:
    """A message in OpenAI's or Anthropic's form, or of a rollout."""
    who, content, out = m.get("role"), m.get("content"), []
    if who == "tool":
        return [("result", m.get("tool_call_id"), flat(content), False, None)]
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else ""
        if kind == "tool_use":
            out.append(("call", part.get("id"), part.get("name"), part.get("input")))
        elif kind == "tool_result":
            out.append(("result", part.get("tool_use_id"), flat(part.get("content")), bool(part.get("is_error")), None))
        elif flat(part) and kind not in ("thinking", "reasoning"):
            out.append(("text" if who == "assistant" else "user", flat(part)))
    for call in m.get("tool_calls") or []:
        f = call.get("function") or {}
        out.append(("call", call.get("id"), f.get("name"), f.get("arguments")))
    return out + ([("usage", spent(m["usage"]))] if m.get("usage") else [])


def item(row: dict) -> list[tuple]:
    """A line of `codex exec --json`. Items are keyed by their id: the last state wins."""
    kind, it = row["type"], row.get("item") or {}
    what, id, over = it.get("type"), it.get("id"), kind == "item.completed"
    if kind.startswith("turn.") or kind == "error":
        failed = flat((row.get("error") or {}).get("message")) if kind == "turn.failed" else flat(row.get("message"))
        return {"turn.completed": [("usage", spent(row.get("usage"))), ("end", "")], "turn.started": [("end", None)]}.get(kind) or [("error" if kind == "error" else "end", failed or kind)]
    if what in ("agent_message", "error"):
        return [("text" if what == "agent_message" else "error", flat(it.get("text") or it.get("message")))] if over else []
    if what in (None, "reasoning", "todo_list"):
        return []
    args = {k: v for k, v in it.items() if k in ("command", "changes", "query", "arguments")}
    name = f"{it.get('server')}.{it.get('tool')}" if what == "mcp_tool_call" else "shell" if what == "command_execution" else what
    failed, output = it.get("status") in ("failed", "declined"), it.get("aggregated_output") or it.get("result") or it.get("error") or ""
    return [("call", id, name, args.get("arguments", args))] + ([("result", id, flat(output) or flat(it.get("status")), failed, it.get("exit_code"))] if over else [])


def response(p: dict) -> list[tuple]:
    """The payload of a rollout's line."""
    kind = str(p.get("type"))
    if kind == "message":
        return message(p) if p.get("role") in ("user", "assistant") else []
    if kind.endswith("_call_output"):
        return [("result", p.get("call_id"), flat(p.get("output")), False, None)]
    if kind.endswith("_call") and p.get("call_id"):
        return [("call", p["call_id"], p.get("name") or kind, p.get("arguments") or p.get("input") or p.get("action"))]
    if kind == "token_count":
        return [("usage", spent((p.get("info") or {}).get("last_token_usage")))]
    return {"task_complete": [("end", "")], "turn_aborted": [("end", f"aborted: {p.get('reason')}")], "error": [("error", flat(p.get("message")))]}.get(kind, [])


def events(row: Any) -> list[tuple] | None:
    """What a row of a log says; None: it is no row of a format that is known."""
    if not isinstance(row, dict):
        return None
    kind = str(row.get("type", ""))
    try:
        if "reply" in row and "results" in row:
            return [("step", Step.from_json(row))]
        if isinstance(row.get("payload"), dict):
            return response(row["payload"])
        if kind.startswith(("thread.", "turn.", "item.")) or kind == "error":
            return item(row)
        if kind in ("user", "assistant") and isinstance(row.get("message"), dict):
            return message(row["message"])
        if kind == "result":
            return [("end", "" if row.get("subtype") == "success" and not row.get("is_error") else str(row.get("subtype")))]
        if row.get("role") in ("system", "developer", "user", "assistant", "tool"):
            return message(row) if row["role"] not in ("system", "developer") else []
        if kind == "system":
            return [("end", None)] if row.get("subtype") == "init" else []
        return response(row) or None
    except (AttributeError, TypeError, KeyError, ValueError):
        return None


# -- events -> steps

@dataclass
class Log:
    """What is kept of one log: its steps pass through, in windows; of their lines the first and the last."""

    name: str
    chars: int = 12_000
    task: str = ""
    final: str = ""                  # the last text, if no call came after it
    end: str | None = ""             # how it ended, "": well; None: it was begun and has no end
    steps: int = 0
    skipped: int = 0                 # lines that are no row
    secrets: int = 0
    found: list[Signature] = field(default_factory=list)
    head: str = ""
    tail: deque = field(default_factory=deque)

    def clip(self, text: str, size: int = TEXT) -> str:
        """Secrets out, then the middle. Both edges are cut wide first: a secret that is cut in two must not show."""
        text = text.encode("utf-8", "replace").decode()      # half a character, from a JSON escape
        if len(text) > 2 * (EDGE + size):
            text = text[:EDGE + size] + " … " + text[-EDGE - size:]
        n, low = 0, text.lower()
        if any(hint in low for hint in HINTS):
            text, n = SECRET.subn(lambda m: (m["url"] or m["name"] or "") + "[secret]", text)
        self.secrets += n
        return text if len(text) <= size else f"{text[:size // 2]} [… {len(text) - size} characters cut …] {text[-size // 2:]}"

    def clean(self, value: Any, depth: int = 6) -> Any:
        if isinstance(value, str):
            return self.clip(value)
        if isinstance(value, (dict, list)) and not depth:
            return "…"
        if isinstance(value, dict):
            return {self.clip(str(k), 80): self.clean(v, depth - 1) for k, v in list(value.items())[:40]}
        return [self.clean(v, depth - 1) for v in value[:40]] if isinstance(value, list) else value

    def add(self, found: list[Signature]) -> None:
        """Three of a kind are enough, over all windows."""
        for s in found:
            if sum(s.name == old.name for old in self.found) < 3:
                self.found.append(s)

    def keep(self, line: str) -> None:
        """A line of the trace: the first half of `chars` and the last half stay."""
        if len(self.head) < self.chars // 2:
            self.head += line[:self.chars // 2] + "\n"
            return
        self.tail.append(line[:self.chars // 2])
        while sum(map(len, self.tail)) > self.chars // 2:
            self.tail.popleft()

    def trace(self) -> str:
        cut = self.steps - self.head.count("\n") - len(self.tail)
        return self.head + (f"[… {cut} steps cut …]\n" if cut > 0 else "") + "\n".join(self.tail)


def rows(path: Path, log: Log) -> Iterator[Any]:
    """The rows of a log file: lines of JSON, or one JSON list (or {"messages": [...]}). Raises BadInput, OSError."""
    with open(path, "rb") as lines:
        start = lines.read(4096).lstrip()
        lines.seek(0)
        if start[:1] == b"[" or start[:1] == b"{" and b'"messages"' in start and b"\n" not in start.split(b'"messages"')[0].strip(b"{ \n"):
            if path.stat().st_size > LIST:
                raise BadInput(f"{path}: a JSON list of more than {LIST >> 20} MiB is not streamed; write one message a line (jq -c '.[]')")
            try:
                whole = json.load(lines)
            except (ValueError, RecursionError) as e:
                raise BadInput(f"{path}: the JSON is damaged: {e}") from None
            yield from whole if isinstance(whole, list) else whole.get("messages") or []
            return
        for line in iter(lambda: lines.readline(LINE), b""):
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):     # a cut last line, a word of a shell, one piece of a line that is too long
                log.skipped += bool(line.strip())


def steps(path: Path, log: Log) -> Iterator[Step]:
    """The steps of a log, one an answer of the model with its calls and their results. Raises BadInput for an unknown format."""
    said, calls, results, usage, key, seen, known = "", {}, {}, Usage(), "start", set(), 0

    def made() -> Step:
        nonlocal key
        log.steps += 1
        got = [results.get(id, {"success": False, "error": "no result: the session was cut here"}) for id in calls]
        new = {digest(c.name, c.args, r) for c, r in zip(calls.values(), got)} - seen
        if len(seen) > 100_000:
            seen.clear()
        seen.update(new)                     # the world counts as changed when something came that had not come before
        key = digest(key, log.steps) if new or not calls else key
        return Step(log.steps, log.name, 0, None, key, "work", "", Reply(said, list(calls.values()), usage), got, 0, [])

    for row in rows(path, log):
        found = events(row)
        known += found is not None
        log.skipped += found is None
        for what, *rest in found or []:
            if what == "step":
                log.steps, log.final = log.steps + 1, "a game has no last word"
                yield replace(rest[0], reply=replace(rest[0].reply, text=log.clip(rest[0].reply.text), message=None,
                              calls=[replace(c, args=log.clean(c.args)) for c in rest[0].reply.calls]), results=log.clean(rest[0].results))
                continue
            id = str(rest[0])
            if what in ("text", "call", "user") and results and not (what == "call" and id in calls):
                yield made()
                said, calls, results, usage = "", {}, {}, Usage()
            if what == "user" and not log.task and not rest[0].lstrip().startswith("<"):
                log.task = log.clip(rest[0], 3_000)
            elif what == "text":
                said, log.final = log.clip(f"{said}\n{rest[0]}".strip()), log.clip(rest[0], 500)
            elif what == "call":
                args, log.final = rest[2], ""
                try:
                    args = json.loads(args) if isinstance(args, str) else args
                except (ValueError, RecursionError):
                    pass
                calls[id] = Call(id, log.clip(str(rest[1]), 80), log.clean(args if isinstance(args, (dict, str)) else {"input": args}))
            elif what == "result":
                results[id] = result(log, *rest[1:])
            elif what == "usage":
                usage = rest[0]
            elif what in ("end", "error"):
                log.end = log.clip(rest[0], 300) if what == "end" and rest[0] else rest[0] if what == "end" else log.end
                if what == "error":
                    log.add([Signature("session_error", 3, [log.steps], log.clip(rest[0], 300))])
    if said or calls:
        yield made()
    if not known:
        raise BadInput(f"{path} is no log of a known format: Codex (exec --json, rollout), Claude Code (stream-json), a message list, or a trajectory.jsonl")


def result(log: Log, output: str, failed: bool, code: Any) -> dict:
    """A call's result in our form. Where the log has no exit code, the tools' own ways to write it are read."""
    if output.startswith("{") and '"exit_code"' in output[-400:]:
        try:
            row = json.loads(output)
            output, code = flat(row.get("output")), row["metadata"]["exit_code"]
        except (ValueError, LookupError, TypeError):
            pass
    told = re.match(r"\s*(?:<[\w-]+>)?(?:Error: )?(?:Process )?[Ee]xit(?:ed with)?[ _]code:? (-?\d+)", output)
    code = int(told[1]) if told and code is None else code
    text, bad = log.clip(output.strip()), failed or code not in (0, None)
    return {"success": not bad, "error" if bad else "output": text or "failed" * bad} | ({"exit": code} if code is not None else {}) \
        | ({"size": len(output)} if len(output) > TEXT else {})


# -- failure signatures of any agent

def paired(window: list[Step]) -> list[tuple[int, Call, dict]]:
    return [(s.t, c, r) for s in window for c, r in zip(s.reply.calls, s.results)]


def told(call: Call) -> str:
    """A call in a few words: its command, if it has one."""
    args = call.args.get("command", call.args) if isinstance(call.args, dict) else call.args
    return f"{call.name} {args if isinstance(args, str) else json.dumps(args, sort_keys=True, ensure_ascii=False)}"[:200]


def nonzero_exit(window: list[Step]) -> list[Signature]:
    bad = [(t, told(c), r) for t, c, r in paired(window) if r.get("exit") not in (0, None)]
    count = Counter(call for _, call, _ in bad)
    last = {call: r for _, call, r in bad}
    return [Signature("nonzero_exit", 2, [t for t, x, _ in bad if x == call], f"{call} exited with {last[call]['exit']}, {n} times: {last[call]['error'][-200:]}")
            for call, n in count.most_common(3)]


def tool_error(window: list[Step]) -> list[Signature]:
    bad = [(t, c, r) for t, c, r in paired(window) if r.get("error") and "exit" not in r]
    return [Signature("invalid_call" if INVALID.search(str(r["error"])) or isinstance(c.args, str) else "tool_error", 2, [t], f"{told(c)}: {str(r['error'])[:200]}")
            for t, c, r in bad[:3]]


def same_result(window: list[Step], least: int = 3) -> list[Signature]:
    """A call that succeeded `least` times and told the same each time (one that fails is the Refiner's own signature)."""
    times: dict[str, list[int]] = {}
    for t, c, r in paired(window):
        if r.get("success") and "output" in r:
            times.setdefault(told(c) + "\0" + str(r["output"]), []).append(t)
    return [Signature("same_result", 2, at, f"{k.partition(chr(0))[0]} gave the same result {len(at)} times") for k, at in times.items() if len(at) >= least][:3]


def cycle(window: list[Step]) -> list[Signature]:
    """A-B-A-B-A-B: two calls in turn, three times, with nothing else in between."""
    calls = [(t, told(c)) for t, c, _ in paired(window)]
    for i in range(len(calls) - 5):
        a, b, *more = [c for _, c in calls[i:i + 6]]
        if a != b and more == [a, b, a, b]:
            return [Signature("cycle", 2, [t for t, _ in calls[i:i + 6]], f"{a} and {b} in turn, three times")]
    return []


def repeated_script(window: list[Step]) -> list[Signature]:
    """A script written by hand three times, up to names of files, numbers and texts, where no skill was used."""
    shapes: dict[str, list[tuple[int, str]]] = {}
    for t, c, _ in paired(window):
        text = c.args if isinstance(c.args, str) else json.dumps(c.args)
        if ".agents/skills" in text:
            return []
        if SCRIPT.search(text) and len(text) >= 80:
            shapes.setdefault(re.sub(r"'[^']*'|\\?\"[^\"]*\"|[\w./-]*[\d/][\w./-]*", "_", " ".join(text.split())[:1_000]), []).append((t, told(c)))
    return [Signature("repeated_script", 1, [t for t, _ in at], f"a script like this was written {len(at)} times, with no skill: {at[0][1]}") for at in shapes.values() if len(at) >= 3][:2]


def token_blowup(window: list[Step]) -> list[Signature]:
    big = [(s.t, r["size"]) for s in window for r in s.results if number(r.get("size")) > 100_000]
    used = [(s.t, s.reply.usage.input) for s in window if s.reply.usage.input]
    middle = sorted(u for _, u in used)[len(used) // 2] if used else 0
    over = [(t, u) for t, u in used if u > 50_000 and (u > 4 * middle and len(used) >= 5 or u > 1_000_000)]
    return [Signature("token_blowup", 2, [t for t, _ in found], f"{text}: {max(n for _, n in found)}") for found, text in
            ((big, "characters of one result"), (over, "input tokens of one turn")) if found]


DETECTORS = (nonzero_exit, tool_error, same_result, cycle, repeated_script, token_blowup)


def read_log(path: Path, chars: int = 12_000) -> Log:
    """One pass over a log. Raises BadInput, OSError."""
    log, window = Log(re.sub(r"[^\w.-]", "_", path.stem)[:60], chars), []

    def look() -> None:
        log.add([s for detect in DETECTORS for s in detect(window)] + signatures(window))
        window.clear()

    for step in steps(path, log):
        log.keep(step.line())
        window.append(step)
        if len(window) == WINDOW:
            look()
    look()
    if log.end is None:
        log.add([Signature("cut_session", 3, [log.steps], "the session has no end: cut, or out of time")])
    elif log.end:
        log.add([Signature("failed_session", 3, [log.steps], f"the session ended with: {log.end}")])
    if not log.final:
        log.add([Signature("no_final_message", 2, [log.steps], "the last thing was a call: no final message")])
    log.found.sort(key=lambda s: -s.severity)
    return log
