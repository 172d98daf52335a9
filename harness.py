"""The harness H = (p, G, K, M): prompt, sub-agents, skills, memory, and the edits that change it (paper section 3.1).

    python harness.py log RUN              every edit: version, step, by whom, what, why
    python harness.py show RUN [ENTRY]     H as it is now, or one entry whole
    python harness.py diff RUN V1 V2       what changed between two versions
    python harness.py undo RUN VERSION     take one edit back; the undo is an edit too
    python harness.py export H DIR         H (a run, or any form that --bootstrap takes) as a workspace tree
    python harness.py import RUN H         bring such an H into a run that is stopped

Every change, whoever makes it, is an `Edit` that passed `Harness.edit`. H at any version is the fold of the edits up to
it; harness.json is that fold, written for people. Departure from the paper: edits can be listed, compared and undone.
"""
import copy
import difflib
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from runlog import BadInput, read_rows, write_atomic

PROMPT_CAP, TEXT_CAP, ENTRIES = 24_000, 12_000, 200      # characters of p; of a long text; entries of one store


def text(cap: int, default: str = "", **rules: Any) -> Any:
    return field(default=default, metadata={"type": "string", "maxLength": cap, **rules})


def scale(default: int, low: int, high: int) -> Any:
    return field(default=default, metadata={"type": "integer", "minimum": low, "maximum": high})


def words() -> Any:
    return field(default_factory=list, metadata={"type": "array", "items": {"type": "string", "maxLength": 80}, "maxItems": 40})


SOURCE = {"enum": ["orchestrator", "evolved", "bootstrapped", "human"]}


@dataclass
class Memory:
    """M: one fact. Field names are those of the released reference, so that its stores can be read."""

    title: str = field(metadata={"type": "string", "minLength": 1, "maxLength": 200})
    content: str = text(TEXT_CAP)
    path: str = text(200)
    location: str = text(200)
    coordinates: str = text(80)
    tags: list[str] = words()
    confidence: int = scale(2, 1, 5)     # 1 an untested guess ... 5 confirmed again and again; evidence moves it (reuse.py)
    importance: int = scale(3, 1, 5)
    source: str = text(20, "orchestrator", **SOURCE)
    protected: bool = field(default=False, metadata={"type": "boolean"})


@dataclass
class Skill:
    """K: executable Python (run in the sandbox), or, with no code, a text that says how to do something."""

    name: str = field(metadata={"type": "string", "minLength": 1, "maxLength": 200})
    description: str = text(2_000)
    instructions: str = text(TEXT_CAP)
    code: str = text(TEXT_CAP)
    path: str = text(200)
    effectiveness: str = text(10, "medium", enum=["low", "medium", "high"])
    importance: int = scale(3, 1, 5)
    source: str = text(20, "orchestrator", **SOURCE)
    protected: bool = field(default=False, metadata={"type": "boolean"})


@dataclass
class SubAgent:
    """G: a model call with its own instructions, tools and small context. `looping` runs until it returns control."""

    name: str = field(metadata={"type": "string", "minLength": 1, "maxLength": 200})
    description: str = text(2_000)
    handler_type: str = text(10, "looping", enum=["looping", "one_step"])
    max_turns: int = scale(25, 1, 50)
    available_tools: list[str] = words()
    system_instructions: str = text(TEXT_CAP)
    directive: str = text(TEXT_CAP)
    return_condition: str = text(2_000)
    path: str = text(200)
    importance: int = scale(3, 1, 5)
    source: str = text(20, "orchestrator", **SOURCE)
    protected: bool = field(default=False, metadata={"type": "boolean"})


def label(entry: Memory | Skill | SubAgent) -> str:
    """The one line that stands for an entry."""
    return getattr(entry, "title", None) or entry.name


PARTS = {"subagents": (SubAgent, "sa"), "skills": (Skill, "skill"), "memory": (Memory, "mem")}
ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def schema(cls: type) -> dict:
    """The JSON Schema of one entry: the dataclass is the only place where its fields and limits are written."""
    return {"type": "object", "additionalProperties": False, "properties": {f.name: dict(f.metadata) for f in fields(cls)},
            "required": [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]}


SCHEMAS = {part: schema(cls) for part, (cls, _) in PARTS.items()}


class EditError(BadInput):
    """An edit that H does not accept; the message names the field and the limit. Nothing has changed."""


def problems(instance: Any, rules: dict) -> str:
    """What `instance` breaks of a JSON Schema, in one line; '' when it is valid."""
    errors = sorted(Draft202012Validator(rules).iter_errors(instance), key=lambda e: list(map(str, e.absolute_path)))
    short = lambda text: text if len(text) <= 300 else f"{text[:100]} … {text[-100:]}"       # what is wrong stands at the end
    return "; ".join(f"{'.'.join(map(str, e.absolute_path)) or 'arguments'}: {short(e.message)}" for e in errors[:4])


@dataclass(frozen=True)
class Edit:
    """One change of H: a row of edits.jsonl. `before` and `after` hold the fields that changed (all, on create/delete)."""

    version: int                     # H's version once this edit is applied
    step: int                        # the step at which it was made
    by: str                          # agent, refiner, review (a person's version of the refiner's), human, guard, import, undo
    op: str                          # create, update, delete
    part: str                        # prompt, subagents, skills, memory
    id: str
    before: Any
    after: Any
    why: str


@dataclass
class Uses:
    """How often an entry was used: evidence for the Refiner. Not part of H; derived from the trajectory."""

    calls: int = 0
    successes: int = 0
    last_step: int = 0
    last_error: str = ""
    failed: int = 0                  # times in a row since the last success or change


@dataclass
class Harness:
    prompt: str = ""
    subagents: dict[str, SubAgent] = field(default_factory=dict)
    skills: dict[str, Skill] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    tools: list[str] = field(default_factory=list)       # the agent's tools, fixed for a run; empty: all of them
    version: int = 0
    counts: dict[str, int] = field(default_factory=dict)  # highest number given per part: ids are never used twice
    uses: dict[str, Uses] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)  # step of each entry's last edit
    reuse: bool = True               # --no-reuse: no ranking by worth, a near-duplicate is a new entry

    # -- H (+) delta

    def edit(self, op: str, part: str, id: str = "", value: Any = None, *, by: str, step: int, why: str = "",
             known_tools: Iterable[str] = ()) -> Edit:
        """Check one change against H as it is now and apply it. Raises EditError; then nothing has changed.

        value: the new prompt (str), or the fields of an entry (dict; on update only those that change).
        """
        if part not in ("prompt", *PARTS):
            raise EditError(f"no such part of H: {part!r}; the parts are prompt, {', '.join(PARTS)}")
        if part != "prompt":
            id, before, after = self._entry(op, part, id, value, set(known_tools), by in ("agent", "refiner"))
        elif op != "update" or not isinstance(value, str) or not value.strip():
            raise EditError("prompt: it can only be updated, with a text that is not empty")
        elif len(value) > PROMPT_CAP:
            raise EditError(f"prompt: {len(value)} characters; the limit is {PROMPT_CAP}")
        else:
            before, after = self.prompt, value
        if op == "update" and before == after:
            raise EditError(f"{part} {id}: nothing would change".replace("  ", " "))
        edit = Edit(self.version + 1, step, by, op, part, id, before, after, str(why)[:500])
        self.apply(edit)
        return edit

    def _entry(self, op: str, part: str, id: str, value: Any, known: set[str], model: bool) -> tuple[str, Any, Any]:
        (cls, prefix), store = PARTS[part], getattr(self, part)
        if model and getattr(store.get(id), "protected", False):
            raise EditError(f"{part} {id} is protected: only a person may change it")
        if model and isinstance(value, dict) and value.get("protected"):
            raise EditError(f"{part} {id}: only a person may set protected")
        if op == "create":
            id = id or f"{prefix}_{self.counts.get(part, 0) + 1:04d}"
            if not ID.fullmatch(id):
                raise EditError(f"{part}: id {id[:80]!r} must start with a letter and hold only letters, digits, _ and -")
            if id in store:
                raise EditError(f"{part}: {id} exists already; update it")
            if len(store) >= ENTRIES:
                raise EditError(f"{part}: {ENTRIES} entries are the limit; delete one first")
        elif id not in store:
            raise EditError(f"{part}: no entry {id[:80]!r}; there are {', '.join(list(store)[:30]) or 'none'}")
        if op == "delete":
            return id, asdict(store[id]), None
        if not isinstance(value, dict) or op not in ("create", "update"):
            raise EditError(f"{part}: {op} needs an object of fields")
        old = asdict(store[id]) if op == "update" else {}
        new = {**old, **value}
        if wrong := problems(new, SCHEMAS[part]):
            raise EditError(f"{part} {id}: {wrong}")
        if part == "subagents" and known and (odd := sorted(set(new.get("available_tools", [])) - known)):
            raise EditError(f"{part} {id}: unknown tools {', '.join(odd)}; the tools are {', '.join(sorted(known))}")
        new = asdict(cls(**{k: int(v) if isinstance(v, float) else v for k, v in new.items()}))
        if op == "create":
            return id, None, new
        changed = [k for k in new if new[k] != old[k]]
        return id, {k: old[k] for k in changed}, {k: new[k] for k in changed}

    def apply(self, edit: Edit) -> None:
        """H <- H (+) edit. The edit was checked when it was made; folding a log repeats exactly what happened."""
        if edit.part == "prompt":
            self.prompt = edit.after
        else:
            (cls, prefix), store = PARTS[edit.part], getattr(self, edit.part)
            self.changed[edit.id] = edit.step
            self.uses.get(edit.id, Uses()).failed = 0
            if edit.op == "delete":
                store.pop(edit.id, None)
            else:
                store[edit.id] = cls(**(vars(store[edit.id]) if edit.op == "update" else {}) | edit.after)
            if number := re.fullmatch(rf"{prefix}_(\d+)", edit.id):
                self.counts[edit.part] = max(self.counts.get(edit.part, 0), int(number[1]))
        self.version = edit.version

    def undo(self, edits: list[Edit], version: int, step: int, by: str = "undo") -> Edit:
        """Take the edit that made `version` back. Later changes to other fields of the same entry stay. Raises EditError."""
        old = next((e for e in edits if e.version == version), None)
        if old is None:
            raise EditError(f"there is no edit {version}; there are {edits[0].version if edits else 0} to {self.version}")
        op, value = {"create": "delete", "delete": "create"}.get(old.op, old.op), old.before
        if old.part == "prompt" and self.prompt != old.after:
            raise EditError(f"the prompt has been rewritten since edit {version}; undo the later edit first")
        if old.part != "prompt" and old.op == "update":
            now = getattr(self, old.part).get(old.id)
            value = {k: v for k, v in old.before.items() if getattr(now, k, ...) == old.after[k]}
            if not value:
                raise EditError(f"nothing of edit {version} is left: {old.part} {old.id} has changed since")
        return self.edit(op, old.part, old.id, value, by=by, step=step, why=f"undo of edit {version} ({old.by}: {old.why})")

    # -- use counts

    def used(self, id: str, ok: bool, step: int, error: str = "") -> None:
        use = self.uses.setdefault(id, Uses())
        use.calls, use.successes, use.last_step = use.calls + 1, use.successes + ok, step
        use.last_error, use.failed = ("", 0) if ok else (error[:500], use.failed + 1)

    # -- files

    def to_json(self) -> dict:
        """H alone: what the fold of edits.jsonl must equal."""
        return {"version": self.version, "tools": self.tools, "prompt": self.prompt,
                **{part: {k: asdict(v) for k, v in getattr(self, part).items()} for part in PARTS}}

    def save(self, path: Path) -> None:
        write_atomic(path, json.dumps(self.to_json() | {"uses": {k: asdict(v) for k, v in self.uses.items()}},
                                      indent=1, ensure_ascii=False).encode())


def fold(edits: Iterable[Edit], tools: Iterable[str] = ()) -> Harness:
    """H at the end of `edits`, from nothing."""
    harness = Harness(tools=list(tools))
    for edit in edits:
        harness.apply(edit)
    return harness


def changes(row: dict, old: Harness, now: Harness, *, by: str, step: int, why: str) -> list[Edit]:
    """Where `row`, a harness.json, differs from `old`: the edits that bring it into `now`, not yet applied. Raises EditError."""
    was, trial, edits = old.to_json(), copy.deepcopy(now), []
    make = lambda *what: edits.append(trial.edit(*what, by=by, step=step, why=why))
    if unknown := set(row) - {*was, "uses"}:
        raise EditError(f"unknown part of a harness: {', '.join(sorted(unknown))}")
    if row.get("prompt", was["prompt"]) not in (was["prompt"], now.prompt):
        make("update", "prompt", "", row["prompt"])
    for part in PARTS:
        before, after, store = was[part], row.get(part, was[part]), getattr(trial, part)
        if not isinstance(after, dict) or not all(isinstance(entry, dict) for entry in after.values()):
            raise EditError(f"{part}: it must be an object of entries")
        for id in [id for id in before if id not in after and id in store]:
            make("delete", part, id)
        for id, entry in after.items():
            changed = {k: v for k, v in entry.items() if before.get(id, {}).get(k, ...) != v}
            if id not in before and id not in store:
                make("create", part, id, entry)
            elif id in store and any(getattr(store[id], k, ...) != v for k, v in changed.items()):
                make("update", part, id, changed)
    return edits


def imported(row: dict) -> tuple[list[Edit], list[str]]:
    """A harness.json -> the edits by "import" that make it, and its tools. Every entry is validated. Raises EditError."""
    why = "the harness that the run starts with"
    return changes(row, Harness(), Harness(), by="import", step=0, why=why), list(row.get("tools", []))


def read_edits(path: Path) -> list[Edit]:
    return [Edit(**row) for row in read_rows(path)]


def diff(old: Harness, new: Harness) -> str:
    def lines(h: Harness) -> list[str]:
        return json.dumps({**h.to_json(), "version": ""}, indent=1, ensure_ascii=False).replace("\\n", "\n").splitlines()

    names = f"version {old.version}", f"version {new.version}"
    return "\n".join(difflib.unified_diff(lines(old), lines(new), *names, lineterm="", n=2))


def main(argv: list[str] | None = None) -> int:
    from people import main as command       # an entry point may look up
    return command(argv)


if __name__ == "__main__":
    sys.exit(main())
