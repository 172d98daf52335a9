"""Logs of coding agents -> env.Step, and what went wrong in them: the Refiner's signatures and a few of their own.

Read: Codex `exec --json` and rollout files, Claude Code stream-json and session files, OpenAI and Anthropic message lists
(one message a line, or one JSON list), our own trajectory.jsonl. A log is streamed, window by window, in bounded memory.
Secrets are taken out, by pattern, before anything is kept. Not kept: reasoning, pictures, the middle of long texts.
"""
import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from env import Step
from models import Call, Reply, Usage, digest
from runlog import BadInput
from signatures import Signature, calls, common, signatures

LINE, LIST = 16 << 20, 32 << 20                          # bytes of a line, of a JSON list
TEXT, EDGE, WINDOW = 2_000, 4_000, 200                   # characters kept of a text; a private key's; steps looked at together
Event = tuple        # ("user" | "text" | "error" | "end", s), ("call", id, name, args), ("result", id, output, failed, exit),
                     # ("input", tokens), ("over",)

SECRETS = [(words.split(), re.compile(pattern, re.S)) for words, pattern in (
    line.split("\t") for line in Path(__file__).with_name("secrets.txt").read_text().splitlines() if "\t" in line)]
INVALID = re.compile(r"InputValidationError|invalid (?:tool )?(?:arguments|input|params)|failed to parse .*arguments|schema"
                     r"|missing (?:\d+ )?required|required (?:parameter|propert)|(?:unknown|no such) (?:tool|function)", re.I)
SCRIPT = re.compile(r"<<-?\s*[\"']?\w+|\b(?:python3?|node|ruby|perl|bash|sh) -[ce]\b|\.(?:py|sh|js|rb)[\"']")
EXIT = re.compile(r"\s*(?:<[\w-]+>)?(?:Error: )?(?:Process )?exit(?:ed with)?[ _]code:? (-?\d+)", re.I)


# -- a row of a log -> events

def flat(content: Any) -> str:
    """The text of a message's content: a string, or parts of which the texts count."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(flat, content)))
    if isinstance(content, dict):
        return flat(next((content[k] for k in ("text", "content", "output", "message") if k in content), ""))
    return "" if content is None else str(content)


def spent(usage: dict | None) -> list[Event]:
    """Tokens of input; what came from a cache is among them except in Anthropic's count."""
    keys = ("input_tokens", "prompt_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return [("input", sum(usage.get(k) or 0 for k in keys))] if usage else []


def message(row: dict) -> list[Event]:
    """A message in OpenAI's or in Anthropic's form."""
    who, content, out = {"assistant": "text"}.get(row["role"], row["role"]), row.get("content"), []
    if who == "tool":
        return [("result", row.get("tool_call_id"), flat(content), False, None)]
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict) and part.get("type") in ("tool_use", "tool_result"):
            out += READERS[part["type"]](part)
        elif flat(part) and who in ("text", "user"):
            out.append((who, flat(part)))
    out += [("call", c.get("id"), c["function"].get("name"), c["function"].get("arguments")) for c in row.get("tool_calls") or []]
    return out + spent(row.get("usage"))


def item(row: dict) -> list[Event]:
    """An item of `codex exec --json`. It is keyed by its id: the last state wins, and a kind that is new is a call."""
    item, over = row["item"], row["type"] == "item.completed"
    what, id, status = item.get("type"), item.get("id"), item.get("status")
    if what in ("agent_message", "error"):
        return [("text" if what == "agent_message" else "error", flat(item))] * over
    if what in ("reasoning", "todo_list"):
        return []
    name = {"command_execution": "shell", "mcp_tool_call": f"{item.get('server')}.{item.get('tool')}"}.get(what, what)
    args = item.get("arguments", {k: item[k] for k in ("command", "changes", "query") if k in item})
    output = flat(item.get("aggregated_output") or item.get("result") or item.get("error") or status)
    return [("call", id, name, args)] + [("result", id, output, status in ("failed", "declined"), item.get("exit_code"))] * over


def output(row: dict) -> list[Event]:
    """A call's output in a Codex rollout file; some wrap it in JSON, with the exit code."""
    text, code = flat(row.get("output")), None
    with contextlib.suppress(ValueError, LookupError, TypeError):
        text, code = flat((wrapped := json.loads(text))["output"]), wrapped["metadata"]["exit_code"]
    return [("result", row["call_id"], text, False, code)]


def ours(row: dict) -> list[Event]:
    """A row of our own trajectory.jsonl."""
    step = Step.from_json(row)
    out = [("text", step.reply.text)]
    for n, (call, done) in enumerate(zip(step.reply.calls, step.results)):
        id, told = f"{step.t}.{n}", json.dumps(done, ensure_ascii=False)
        out += [("call", id, call.name, call.args), ("result", id, told, not done.get("success"), None)]
    return out


CALL = lambda row: [("call", row["call_id"], row.get("name") or row["type"],
                     row.get("arguments") or row.get("input") or row.get("action"))]
BEGUN = lambda row: [("end", None)]                      # without an end it was cut
READERS = {                                              # "type" of a row or of a part of a message -> its events
    "thread.started": BEGUN, "turn.started": BEGUN, "item.started": item, "item.updated": item, "item.completed": item,
    "turn.completed": lambda row: [*spent(row.get("usage")), ("end", "")],
    "turn.failed": lambda row: [("end", flat(row.get("error")) or "failed")],
    "error": lambda row: [("error", flat(row) or "error")],
    "function_call": CALL, "custom_tool_call": CALL, "local_shell_call": CALL,
    "function_call_output": output, "custom_tool_call_output": output, "local_shell_call_output": output,
    "token_count": lambda row: spent((row.get("info") or {}).get("last_token_usage")),
    "task_complete": lambda row: [("end", "")], "turn_aborted": lambda row: [("end", f"aborted: {row.get('reason')}")],
    "user": lambda row: message(row["message"]), "assistant": lambda row: message(row["message"]),
    "system": lambda row: BEGUN(row) * (row.get("subtype") == "init"),
    "result": lambda row: [("end", str(row["subtype"]) if row.get("is_error") or row["subtype"] != "success" else "")],
    "tool_use": lambda row: [("call", row.get("id"), row.get("name"), row.get("input"))],
    "tool_result": lambda row: [("result", row.get("tool_use_id"), flat(row.get("content")), bool(row.get("is_error")), None)]}


def events(row: Any) -> list[Event] | None:
    """What a row of a log says; None: it is no row of a known format."""
    try:
        if "reply" in row and "results" in row:
            return ours(row)
        if isinstance(row.get("payload"), dict):
            return events(row["payload"]) or []
        return READERS[row["type"]](row) if row.get("type") in READERS else message(row)
    except (AttributeError, TypeError, LookupError, ValueError, RecursionError):
        return None


# -- events -> steps

@dataclass
class Log:
    """What is kept of one log: its steps pass by in windows, and of their lines the first and the last stay."""

    name: str
    chars: int = 12_000              # characters kept of the steps' lines, and of the task
    task_chars: int = 3_000
    task: str = ""
    final: str = ""                  # the last text, if no call came after it
    end: str | None = ""             # how it ended, "": well; None: it was begun and has no end
    steps: int = 0
    skipped: int = 0                 # lines that are no row of a known format
    secrets: int = 0                 # taken out
    found: list[Signature] = field(default_factory=list)
    lines: str = ""                  # of the steps, or their two ends, and how many characters there were in between
    cut: int = 0

    def clip(self, text: str, size: int = TEXT) -> str:
        """A text without secrets and without its middle. First it is cut wide: no half of a secret may stay."""
        if len(text) > 2 * (EDGE + size):
            text = f"{text[:EDGE + size]} … {text[-EDGE - size:]}"
        text, low = text.encode(errors="replace").decode(), text.lower()                   # half a character: a JSON escape
        for words, pattern in SECRETS:
            if any(word in low for word in words):
                text, n = pattern.subn(lambda m: m.groupdict().get("keep", "") + "[secret]", text)
                self.secrets += n
        over = len(text) - size
        return text if over <= 0 else f"{text[:size // 2]} [… {over} characters cut …] {text[-size // 2:]}"

    def args(self, value: Any) -> dict | str:
        """A call's arguments, each clipped; what is nested becomes a text."""
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value) if isinstance(value, str) else value
            short = lambda v: self.clip(v if isinstance(v, str) else json.dumps(v)) if isinstance(v, (str, list, dict)) else v
            row = value if isinstance(value, dict) else {"input": value}
            return {self.clip(str(k), 80): short(v) for k, v in list(row.items())[:40]}
        return self.clip(str(value))

    def result(self, output: str, failed: bool, code: int | None) -> dict:
        """A call's result in our form. Where the log has no exit code, the tools' own ways to write it are read."""
        if code is None and (told := EXIT.match(output)):
            code = int(told[1])
        bad = failed or code not in (0, None)
        if len(output) > 100_000:
            self.add([Signature("token_blowup", 2, [self.steps + 1], f"{len(output)} characters in one result")])
        row = {"success": not bad, "error" if bad else "output": self.clip(output.strip()) or "failed" * bad}
        return row if code is None else row | {"exit": code}

    def add(self, found: list[Signature]) -> None:
        """Three signatures of a kind are enough."""
        for s in found:
            self.found += [s] * (sum(s.name == old.name for old in self.found) < 3)

    def keep(self, line: str) -> None:
        half, self.lines = self.chars // 2, f"{self.lines}{line[:self.chars // 2]}\n"
        over = max(0, len(self.lines) - 2 * half)
        self.lines, self.cut = self.lines[:half] + self.lines[half + over:], self.cut + over

    def trace(self) -> str:
        half = self.chars // 2
        return f"{self.lines[:half]}\n[… {self.cut} characters cut …]\n{self.lines[half:]}" if self.cut else self.lines


def rows(path: Path, log: Log) -> Iterator[Any]:
    """The rows of a log: a line each, or one JSON list, or {"messages": [list]}. Raises BadInput, OSError."""
    with open(path, "rb") as data:
        first = data.readline(LINE).strip()
        whole = first[:1] == b"[" or first == b"{"
        if whole and path.stat().st_size > LIST:
            raise BadInput(f"{path}: a JSON list of more than {LIST >> 20} MiB; write one message a line (jq -c '.[]')")
        data.seek(0)
        for text in [data.read()] if whole else iter(lambda: data.readline(LINE), b""):
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as e:    # a cut last line, a word of a shell
                if whole:
                    raise BadInput(f"{path}: the JSON is damaged: {e}") from None
                log.skipped += bool(text.strip())
                continue
            row = row.get("messages", row) if isinstance(row, dict) else row
            yield from row if isinstance(row, list) else [row]


def stream(path: Path, log: Log) -> Iterator[Event]:
    """The events of a log, and one that says that it is over. Raises BadInput for another format."""
    known = False
    for row in rows(path, log):
        found = events(row)
        known, log.skipped = known or found is not None, log.skipped + (found is None)
        yield from found or []
    if not known:
        raise BadInput(f"{path} is no log of a known format: Codex (exec --json, rollout), Claude Code (stream-json), "
                       "a message list, a trajectory.jsonl")
    yield ("over",)


def steps(path: Path, log: Log) -> Iterator[Step]:
    """The steps of a log, one an answer of the model; what is said of all of it goes into `log`. Raises BadInput, OSError."""
    said, calls, results, tokens, key, seen = "", {}, {}, 0, "", set()
    for event in stream(path, log):
        what, id = event[0], str(event[1]) if len(event) > 2 else ""
        new = what in ("text", "user") or what == "call" and id not in calls
        if results and new or (said or calls) and what == "over":
            log.steps += 1
            got = [results.get(i, {"success": False, "error": "no result: the session was cut here"}) for i in calls]
            news = {digest(c.name, c.args, r) for c, r in zip(calls.values(), got)} - seen
            seen = seen if len(seen) < 100_000 else set()
            seen |= news
            key = str(log.steps) if news or not calls else key       # the world has changed when something came that is new
            reply = Reply(said, list(calls.values()), Usage(tokens))
            yield Step(log.steps, log.name, 0, None, key, "work", "", reply, got, 0, [])
            said, calls, results, tokens = "", {}, {}, 0
        match event:
            case "user", text if not log.task and not text.lstrip().startswith(("<", "# AGENTS.md")):      # these are Codex's own
                log.task = log.clip(text, log.task_chars)
            case "text", text:
                said, log.final = log.clip(f"{said}\n{text}".strip()), log.clip(text, 500)
            case "call", _, name, args:
                calls[id], log.final = Call(id, log.clip(str(name), 80), log.args(args)), ""
            case "result", _, *result:
                results[id] = log.result(*result)
            case "input", tokens:
                pass
            case "end", why:
                log.end = why and log.clip(why, 300)
            case "error", text:
                log.add([Signature("session_error", 3, [log.steps], log.clip(text, 300))])


# -- failure signatures of any agent

def paired(window: list[Step]) -> list[tuple[int, str, Call, dict]]:
    """(step, the call in a few words, call, result) of every call."""
    args = lambda c: c.args.get("command", c.args) if isinstance(c.args, dict) else c.args
    text = lambda value: value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return [(s.t, f"{c.name} {text(args(c))}"[:200], c, r) for s, c, r in calls(window)]


def failed_call(window: list[Step]) -> list[Signature]:
    """A call that failed: by its exit code, or by itself, or one that its tool or its schema did not take."""
    kind = lambda c, r: "nonzero_exit" if r.get("exit") else \
        "invalid_call" if isinstance(c.args, str) or INVALID.search(str(r["error"])) else "tool_error"
    failed = {(t, (kind(c, r), call)): str(r["error"]) for t, call, c, r in paired(window) if r.get("error")}
    last = {what: error for (_, what), error in failed.items()}
    return [Signature(kind, 2, at, f"{call} failed {len(at)} times: {last[kind, call][-200:]}")
            for (kind, call), at in common(failed, 1)]


def same_result(window: list[Step]) -> list[Signature]:
    """A call that told the same three times, well or not: a shell that went well since does not excuse it."""
    told = [(t, (call, str(r.get("output") or r.get("error") or ""))) for t, call, _, r in paired(window)]
    return [Signature("same_result", 2, at, f"{call} gave the same result {len(at)} times")
            for (call, _), at in common([row for row in told if row[1][1]], 3)]


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
    made = [(t, call, " ".join(json.dumps(c.args).split())) for t, call, c, _ in paired(window)]
    shape = lambda text: re.sub(r"'[^']*'|\\?\"[^\"]*\"|[\w./-]*[\d/][\w./-]*", "_", text[:1_000])
    scripts = {(t, shape(text)): call for t, call, text in made if SCRIPT.search(text) and len(text) >= 80}
    shown = {shape: call for (_, shape), call in scripts.items()}
    return [Signature("repeated_script", 1, at, f"a script like this was written {len(at)} times, with no skill: {shown[what]}")
            for what, at in common(scripts, 3) if not any(".agents/skills" in text for *_, text in made)]


def token_blowup(window: list[Step]) -> list[Signature]:
    """Input that is suddenly four times what is usual here, or very long where nothing is usual yet."""
    used = [(s.t, s.reply.usage.input) for s in window if s.reply.usage.input]
    usual = sorted(n for _, n in used)[len(used) // 2] if len(used) >= 5 else 250_000
    over = [(t, n) for t, n in used if n > max(50_000, 4 * usual)]
    return [Signature("token_blowup", 2, [t], f"{n} input tokens in one turn") for t, n in over]


DETECTORS = (failed_call, same_result, cycle, repeated_script, token_blowup)


def read_log(path: Path, *chars: int) -> Log:
    """One pass over a log. chars: see Log. Raises BadInput, OSError."""
    log = Log(re.sub(r"[^\w.-]", "_", path.stem)[:60], *chars)
    walk = steps(path, log)
    while window := list(itertools.islice(walk, WINDOW)):
        for step in window:
            log.keep(step.line())
        log.add([s for detect in DETECTORS for s in detect(window)])
        log.add([s for s in signatures(window) if s.name != "no_tool_call"])       # to say something is no fault here
    ends = {"cut_session": "the session has no end: cut, or out of time"} if log.end is None else {}
    ends |= {"failed_session": f"the session ended with: {log.end}"} if log.end else {}
    ends |= {} if log.final else {"no_final_message": "the last thing was a call: there is no final message"}
    log.add([Signature(name, 3 - (name == "no_final_message"), [log.steps], text) for name, text in ends.items()])
    log.found.sort(key=lambda s: -s.severity)
    return log
