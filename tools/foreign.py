"""Logs of coding agents -> env.Step, and what went wrong in them: the Refiner's signatures and a few of their own.

Read: Codex `exec --json` and rollout files, Claude Code stream-json and session files, OpenAI and Anthropic message lists
(one message a line, or one JSON list), our own trajectory.jsonl. A log is streamed, window by window, in bounded memory.
Secrets are taken out, by pattern, before anything is kept. Not kept: reasoning, pictures, the middle of long texts.
"""
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from env import Step
from models import Call, Reply, Usage, digest
from runlog import BadInput
from signatures import Signature, calls, signatures

LINE, LIST = 16 << 20, 32 << 20                          # bytes of a line, of a JSON list
TEXT, EDGE, WINDOW = 2_000, 4_000, 200                   # characters kept of a text; a private key's; steps looked at together
# ("user" | "text" | "end" | "error", s), ("call", id, name, args), ("result", id, output, failed, exit), ("usage", Usage)
Event = tuple

# A text with none of these words holds nothing that SECRET finds, and to look for words is 50 times as fast.
HINTS = ("key", "secret", "token", "passw", "bearer ", "://", "eyj", "sk-", "sk_", "ghp_", "gho_", "ghs_", "github_", "glpat",
         "xox", "hf_", "aiza", "akia", "asia", "npm_", "pypi-")
SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+"
    r"|\b(?:sk-|sk_live_|gh[pos]_|github_pat_|glpat-|xox[abprs]-|hf_|AIza|AKIA|ASIA|npm_|pypi-)[\w-]{12,}"
    r"|(?P<url>://[^/\s:@]+:)[^/\s@]+(?=@)"
    r"|(?P<name>(?i:bearer |(?:passw(?:or)?d|secret|token|api[_-]?key|access[_-]?key)[\w-]*[\"']?\s*[:=]\s*[\"']?))"
    r"(?!\[secret\]|\d+\b)[^\s\"',;&]{6,}", re.S)
INVALID = re.compile(r"InputValidationError|invalid (?:tool )?(?:arguments|input|params)|failed to parse .*arguments"
                     r"|missing (?:\d+ )?required|required (?:parameter|propert)|(?:unknown|no such) (?:tool|function)|schema",
                     re.I)
SCRIPT = re.compile(r"<<-?\s*[\"']?\w+|\b(?:python3?|node|ruby|perl|bash|sh) -[ce]\b|\.(?:py|sh|js|rb)[\"']")
EXIT = re.compile(r"\s*(?:<[\w-]+>)?(?:Error: )?(?:Process )?exit(?:ed with)?[ _]code:? (-?\d+)", re.I)


# -- a row of a log -> events

def flat(content: Any) -> str:
    """The text of a message's content: a string, or parts of which the texts count."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(flat, content)))
    if isinstance(content, dict):
        return flat(next((content[k] for k in ("text", "content", "output") if k in content), ""))
    return "" if content is None else str(content)


def spent(row: Any) -> Usage:
    """A usage object of any of the formats in our terms, where the input counts what came from a cache, too."""
    row = row if isinstance(row, dict) else {}
    get = lambda *keys: sum(v for k in keys if isinstance(v := row.get(k), int))
    apart = get("cache_read_input_tokens", "cache_creation_input_tokens")          # Anthropic's are not in input_tokens
    return Usage(get("input_tokens", "prompt_tokens") + apart, get("cached_input_tokens", "cache_read_input_tokens"),
                 get("cache_creation_input_tokens"), get("output_tokens", "completion_tokens"))


def message(row: dict) -> list[Event]:
    """A message in OpenAI's or in Anthropic's form."""
    who, content, out = row.get("role"), row.get("content"), []
    if who == "tool":
        return [("result", row.get("tool_call_id"), flat(content), False, None)]
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else ""
        if kind == "tool_use":
            out.append(("call", part.get("id"), part.get("name"), part.get("input")))
        elif kind == "tool_result":
            out.append(("result", part.get("tool_use_id"), flat(part.get("content")), bool(part.get("is_error")), None))
        elif flat(part) and who in ("assistant", "user"):
            out.append(("text" if who == "assistant" else "user", flat(part)))
    out += [("call", c.get("id"), c["function"].get("name"), c["function"].get("arguments")) for c in row.get("tool_calls") or []]
    return out + [("usage", spent(row.get("usage")))] * ("usage" in row)


def codex(row: dict) -> list[Event]:
    """A line of `codex exec --json`. An item is keyed by its id: the last state wins, and a kind that is new is a call."""
    kind, item = row["type"], row.get("item") or {}
    if kind == "turn.completed":
        return [("usage", spent(row.get("usage"))), ("end", "")]
    if kind in ("turn.failed", "error"):
        return [("error" if kind == "error" else "end", flat((row.get("error") or row).get("message")) or kind)]
    if not item:
        return [("end", None)]                           # begun: without an end it was cut
    what, over = item.get("type"), kind == "item.completed"
    if what in ("agent_message", "error"):
        return [("text" if what == "agent_message" else "error", flat(item.get("text") or item.get("message")))] * over
    if what in ("reasoning", "todo_list"):
        return []
    args = {k: item[k] for k in ("command", "changes", "query") if k in item}
    name = {"command_execution": "shell", "mcp_tool_call": f"{item.get('server')}.{item.get('tool')}"}.get(what, what)
    output = flat(item.get("aggregated_output") or item.get("result") or item.get("error") or item.get("status"))
    result = ("result", item.get("id"), output, item.get("status") in ("failed", "declined"), item.get("exit_code"))
    return [("call", item.get("id"), name, item.get("arguments", args))] + [result] * over


def rollout(row: dict) -> list[Event]:
    """The payload of a line of a Codex rollout file."""
    kind = str(row.get("type"))
    if kind == "message":
        return message(row)
    if kind.endswith("_call_output"):
        return [("result", row.get("call_id"), flat(row.get("output")), False, None)]
    if kind.endswith("_call") and "call_id" in row:
        return [("call", row["call_id"], row.get("name") or kind, row.get("arguments") or row.get("input") or row.get("action"))]
    if kind == "token_count":
        return [("usage", spent((row.get("info") or {}).get("last_token_usage")))]
    return {"task_complete": [("end", "")], "turn_aborted": [("end", f"aborted: {row.get('reason')}")],
            "error": [("error", flat(row.get("message")))]}.get(kind, [])


def ours(step: Step) -> list[Event]:
    """A row of our own trajectory.jsonl."""
    out = [("text", step.reply.text)]
    for n, (call, done) in enumerate(zip(step.reply.calls, step.results)):
        id, told = f"{step.t}.{n}", json.dumps(done, ensure_ascii=False)
        out += [("call", id, call.name, call.args), ("result", id, told, not done.get("success"), None)]
    return out


def events(row: Any) -> list[Event] | None:
    """What a row of a log says; None: it is no row of a known format."""
    if not isinstance(row, dict):
        return None
    kind = str(row.get("type", ""))
    try:
        if "reply" in row and "results" in row:
            return ours(Step.from_json(row))
        if isinstance(row.get("payload"), dict):
            return rollout(row["payload"])
        if kind.startswith(("thread.", "turn.", "item.")) or kind == "error":
            return codex(row)
        if kind in ("user", "assistant") and isinstance(row.get("message"), dict):         # Claude Code, as the next two
            return message(row["message"])
        if kind == "result":
            return [("end", "" if row.get("subtype") == "success" and not row.get("is_error") else str(row.get("subtype")))]
        if kind == "system":
            return [("end", None)] * (row.get("subtype") == "init")
        return message(row) if "role" in row else rollout(row) or None
    except (AttributeError, TypeError, LookupError, ValueError):
        return None


# -- events -> steps

@dataclass
class Log:
    """What is kept of one log: its steps pass by in windows, and of their lines the first and the last stay."""

    name: str
    chars: int = 12_000              # characters kept of the steps' lines
    task: str = ""
    final: str = ""                  # the last text, if no call came after it
    end: str | None = ""             # how it ended, "": well; None: it was begun and has no end
    steps: int = 0
    skipped: int = 0                 # lines that are no row of a known format
    secrets: int = 0                 # taken out
    found: list[Signature] = field(default_factory=list)
    head: list[str] = field(default_factory=list)
    tail: deque = field(default_factory=deque)

    def clip(self, text: str, size: int = TEXT) -> str:
        """A text without secrets and without its middle. First it is cut wide: no half of a secret may stay."""
        if len(text) > 2 * (EDGE + size):
            text = f"{text[:EDGE + size]} … {text[-EDGE - size:]}"
        text, n, low = text.encode(errors="replace").decode(), 0, text.lower()             # half a character: a JSON escape
        if any(hint in low for hint in HINTS):
            text, n = SECRET.subn(lambda m: (m["url"] or m["name"] or "") + "[secret]", text)
        self.secrets += n
        over = len(text) - size
        return text if over <= 0 else f"{text[:size // 2]} [… {over} characters cut …] {text[-size // 2:]}"

    def clean(self, value: Any, depth: int = 6) -> Any:
        """JSON with every text clipped; nothing deep, nothing long."""
        if isinstance(value, str):
            return self.clip(value)
        if not isinstance(value, (dict, list)):
            return value
        if not depth:
            return "…"
        if isinstance(value, list):
            return [self.clean(v, depth - 1) for v in value[:40]]
        return {self.clip(str(k), 80): self.clean(v, depth - 1) for k, v in list(value.items())[:40]}

    def add(self, found: list[Signature]) -> None:
        """Three signatures of a kind are enough."""
        for s in found:
            if sum(s.name == old.name for old in self.found) < 3:
                self.found.append(s)

    def keep(self, line: str) -> None:
        line = line[:self.chars // 2]
        if sum(map(len, self.head)) + len(line) <= self.chars // 2 and not self.tail:
            self.head.append(line)
            return
        self.tail.append(line)
        while sum(map(len, self.tail)) > self.chars // 2:
            self.tail.popleft()

    def trace(self) -> str:
        cut = self.steps - len(self.head) - len(self.tail)
        return "\n".join([*self.head, *[f"[… {cut} steps cut …]"] * (cut > 0), *self.tail])


def rows(path: Path, log: Log) -> Iterator[Any]:
    """The rows of a log: a line each, or one JSON list, or {"messages": [list]}. Raises BadInput, OSError."""
    listed = lambda row: row["messages"] if isinstance(row, dict) and isinstance(row.get("messages"), list) else [row]
    with open(path, "rb") as lines:
        first = lines.readline(LINE).strip()
        lines.seek(0)
        if first[:1] == b"[" or first == b"{":
            if path.stat().st_size > LIST:
                raise BadInput(f"{path}: a JSON list of more than {LIST >> 20} MiB; write one message a line (jq -c '.[]')")
            try:
                whole = json.load(lines)
            except (ValueError, RecursionError) as e:
                raise BadInput(f"{path}: the JSON is damaged: {e}") from None
            yield from whole if isinstance(whole, list) else listed(whole)
            return
        for line in iter(lambda: lines.readline(LINE), b""):
            try:
                yield from listed(json.loads(line))
            except (ValueError, RecursionError):         # a cut last line, a word of a shell, a piece of too long a line
                log.skipped += bool(line.strip())


def result(log: Log, output: str, failed: bool, code: Any) -> dict:
    """A call's result in our form. Where the log has no exit code, the tools' own ways to write it are read."""
    if output.startswith("{") and '"exit_code"' in output[-400:]:
        try:
            row = json.loads(output)
            output, code = flat(row.get("output")), row["metadata"]["exit_code"]
        except (ValueError, LookupError, TypeError):
            pass
    elif code is None and (told := EXIT.match(output)):
        code = int(told[1])
    text, bad = log.clip(output.strip()), failed or code not in (0, None)
    return {"success": not bad, "error" if bad else "output": text or "failed" * bad} \
        | ({"exit": code} if code is not None else {}) | ({"size": len(output)} if len(output) > TEXT else {})


def steps(path: Path, log: Log) -> Iterator[Step]:
    """The steps of a log, one an answer of the model with its calls and their results. Raises BadInput for another format."""
    said, calls, results, usage, key, seen, known = "", {}, {}, Usage(), "", set(), 0

    def made() -> Step:
        nonlocal key, seen
        log.steps += 1
        got = [results.get(id, {"success": False, "error": "no result: the session was cut here"}) for id in calls]
        new = {digest(c.name, c.args, r) for c, r in zip(calls.values(), got)} - seen
        seen = (seen if len(seen) < 100_000 else set()) | new
        key = str(log.steps) if new or not calls else key        # the world has changed when something came that is new
        return Step(log.steps, log.name, 0, None, key, "work", "", Reply(said, list(calls.values()), usage), got, 0, [])

    for row in rows(path, log):
        found = events(row)
        known, log.skipped = known + (found is not None), log.skipped + (found is None)
        for what, *rest in found or []:
            id = str(rest[0])
            if results and (what in ("text", "user") or what == "call" and id not in calls):
                yield made()
                said, calls, results, usage = "", {}, {}, Usage()
            if what == "user" and not log.task and not rest[0].lstrip().startswith(("<", "# AGENTS.md")):      # Codex's own
                log.task = log.clip(rest[0], 3_000)
            elif what == "text":
                said, log.final = log.clip(f"{said}\n{rest[0]}".strip()), log.clip(rest[0], 500)
            elif what == "call":
                calls[id], log.final = Call(id, log.clip(str(rest[1]), 80), arguments(rest[2], log)), ""
            elif what == "result":
                results[id] = result(log, *rest[1:])
            elif what == "usage":
                usage = rest[0]
            elif what == "end":
                log.end = rest[0] and log.clip(rest[0], 300)
            elif what == "error":
                log.add([Signature("session_error", 3, [log.steps], log.clip(rest[0], 300))])
    if said or calls:
        yield made()
    if not known:
        raise BadInput(f"{path} is no log of a known format: Codex (exec --json, rollout), Claude Code (stream-json), "
                       "a message list, a trajectory.jsonl")


def arguments(value: Any, log: Log) -> dict | str:
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return log.clip(value)
    return log.clean(value if isinstance(value, dict) else {"input": value})


# -- failure signatures of any agent

def told(call: Call) -> str:
    """A call in a few words: its command, if it has one."""
    args = call.args.get("command", call.args) if isinstance(call.args, dict) else call.args
    return f"{call.name} {args if isinstance(args, str) else json.dumps(args, sort_keys=True, ensure_ascii=False)}"[:200]


def paired(window: list[Step]) -> list[tuple[int, str, Call, dict]]:
    return [(s.t, told(c), c, r) for s, c, r in calls(window)]


def nonzero_exit(window: list[Step]) -> list[Signature]:
    bad = {(t, call): r for t, call, _, r in paired(window) if r.get("exit") not in (0, None)}
    last = {call: r for (_, call), r in bad.items()}
    return [Signature("nonzero_exit", 2, [t for t, c in bad if c == call], f"{call} exited with {last[call]['exit']}, {n} times: "
                      f"{last[call]['error'][-200:]}") for call, n in Counter(call for _, call in bad).most_common(3)]


def tool_error(window: list[Step]) -> list[Signature]:
    """A call that failed by itself, apart from those that its tool or its schema did not take."""
    kind = lambda c, r: "invalid_call" if INVALID.search(str(r["error"])) or isinstance(c.args, str) else "tool_error"
    return [Signature(kind(c, r), 2, [t], f"{call}: {str(r['error'])[:200]}") for t, call, c, r in paired(window)
            if r.get("error") and "exit" not in r][:3]


def same_result(window: list[Step], least: int = 3) -> list[Signature]:
    """A call that told the same `least` times, well or not: a shell that went well since does not excuse it."""
    times = defaultdict(list)
    for t, call, _, r in paired(window):
        if told := r.get("output") or r.get("error"):
            times[call, str(told)].append(t)
    return [Signature("same_result", 2, at, f"{call} gave the same result {len(at)} times")
            for (call, _), at in times.items() if len(at) >= least][:3]


def cycle(window: list[Step]) -> list[Signature]:
    """Two calls in turn, three times, with nothing else in between."""
    made = [(t, call) for t, call, *_ in paired(window)]
    for i in range(len(made) - 5):
        a, b, *more = [call for _, call in made[i:i + 6]]
        if a != b and more == [a, b, a, b]:
            return [Signature("cycle", 2, [t for t, _ in made[i:i + 6]], f"{a} and {b} in turn, three times")]
    return []


def repeated_script(window: list[Step]) -> list[Signature]:
    """A script that was written by hand three times, up to texts, numbers and names of files, while no skill was used."""
    shapes = defaultdict(list)
    for t, call, c, _ in paired(window):
        text = c.args if isinstance(c.args, str) else json.dumps(c.args)
        if ".agents/skills" in text:
            return []
        if SCRIPT.search(text) and len(text) >= 80:
            shapes[re.sub(r"'[^']*'|\\?\"[^\"]*\"|[\w./-]*[\d/][\w./-]*", "_", " ".join(text.split())[:1_000])].append((t, call))
    return [Signature("repeated_script", 1, [t for t, _ in at], f"a script like this was written {len(at)} times, with no skill: "
                      f"{at[0][1]}") for at in shapes.values() if len(at) >= 3][:2]


def token_blowup(window: list[Step]) -> list[Signature]:
    big = [(s.t, r["size"]) for s in window for r in s.results if isinstance(r.get("size"), int) and r["size"] > 100_000]
    used = [(s.t, s.reply.usage.input) for s in window if s.reply.usage.input]
    middle = sorted(n for _, n in used)[len(used) // 2] if len(used) >= 5 else 250_000
    over = [(t, n) for t, n in used if n > max(50_000, 4 * middle)]
    return [Signature("token_blowup", 2, [t for t, _ in found], f"{max(n for _, n in found)} {what}")
            for found, what in ((big, "characters in one result"), (over, "input tokens in one turn")) if found]


DETECTORS = (nonzero_exit, tool_error, same_result, cycle, repeated_script, token_blowup)


def read_log(path: Path, chars: int = 12_000) -> Log:
    """One pass over a log. Raises BadInput, OSError."""
    log, window = Log(re.sub(r"[^\w.-]", "_", path.stem)[:60], chars), []

    def look() -> None:
        general = [s for s in signatures(window) if s.name != "no_tool_call"]      # to say something is no fault here
        log.add([s for detect in DETECTORS for s in detect(window)] + general)
        window.clear()

    for step in steps(path, log):
        log.keep(step.line())
        window.append(step)
        if len(window) == WINDOW:
            look()
    look()
    ends = [("cut_session", 3, "the session has no end: cut, or out of time")] if log.end is None else \
        [("failed_session", 3, f"the session ended with: {log.end}")] if log.end else []
    ends += [] if log.final else [("no_final_message", 2, "the last thing was a call: there is no final message")]
    log.add([Signature(name, severity, [log.steps], text) for name, severity, text in ends])
    log.found.sort(key=lambda s: -s.severity)
    return log
