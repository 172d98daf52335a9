"""Reuse (paper section 3.2, "H is edited, not grown"): what H has already, what its facts proved worth, what it gives up.

Pure functions of H and a window of steps. A new entry whose task an old one covers becomes an update of that one; a memory
entry's confidence moves with what was seen since its last change; entries that fail or are of no use are retired, and each
edit says why. Departure from the paper, which leaves all three to the model: here they are rules, and --no-reuse and
--no-retire switch them off.
"""
import copy
import keyword
import re
from collections import Counter, defaultdict
from typing import Any

from env import Step
from harness import PARTS, SCHEMAS, Edit, Harness, Uses, problems

FAILED, IDLE, CHANGES = 8, 200, 5    # failures in a row, steps unused: then an entry is retired; facts that move a refinement
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|'[^'\n]*'|\"[^\"\n]*\"|[^\s\w]")
TOLD = re.compile(r" at '.' \((-?\d+), (-?\d+)\): text: (.*)")
WENT = re.compile(r"\((-?\d+), (-?\d+)\) -> (?:(\w+) )?\((-?\d+), (-?\d+)\)")


# -- near-duplicates

def words(text: str) -> set[str]:
    """walkToDoor, walk_to_door and "Walk to door" are the same words."""
    return set(re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()))


def shape(code: str) -> Counter:
    """3-grams of the tokens: names of variables and long texts blanked, since they are taste; numbers and buttons kept, the task."""
    def plain(token: str) -> str:
        if token[0] in "'\"":
            return token[1:-1] if len(token) < 14 else "text"
        return "name" if token.isidentifier() and not keyword.iskeyword(token) and token not in ("args", "tools", "result") else token

    tokens = [plain(t) for t in TOKEN.findall(re.sub(r"#.*", "", code))]
    return Counter(zip(tokens, tokens[1:], tokens[2:])) if len(tokens) >= 20 else Counter()


def features(part: str, entry: dict) -> tuple[set[str], set[str], Counter]:
    """An entry's name, its arguments (for a fact: its place), and its shape."""
    get = lambda name: entry.get(name) or ""
    if part == "memory":
        return words(get("title")), {get("location"), "".join(get("coordinates").split())} - {""}, Counter(words(get("content")))
    if part == "subagents":
        return words(get("name")), set(get("available_tools")), Counter(words(get("system_instructions") + " " + get("directive")))
    return words(get("name")), set(re.findall(r"args(?:\[|\.get\() *['\"](\w+)", get("code"))), shape(get("code"))


def covered(harness: Harness, part: str, fields: dict) -> str:
    """The id of an entry whose task `fields` repeats: the same name, or the same arguments and (nearly) the same shape; or ""."""
    alike = lambda a, b: sum((a & b).values()) / max(sum((a | b).values()), 1)
    name, args, form = features(part, fields)
    for id, entry in harness.order(part):
        old_name, old_args, old_form = features(part, vars(entry))
        same, close = alike(Counter(name), Counter(old_name)), alike(form, old_form)
        if same == 1 and (args <= old_args or old_args <= args) or args == old_args and (close >= 0.85 or min(same, close) >= 0.5):
            return id
    return ""


def placed(harness: Harness, op: str, part: str, id: str, fields: Any) -> tuple[str, str, Any]:
    """Where a change goes: a create that H covers already is an update of that entry, under its name, by its source."""
    sound = op == "create" and part in PARTS and not problems(fields, SCHEMAS[part])
    known = sound and harness.reuse and covered(harness, part, fields)
    return ("update", known, {k: v for k, v in fields.items() if k not in ("name", "source")}) if known else (op, id, fields)


# -- confidence

def evidence(harness: Harness, window: list[Step]) -> dict[str, list[int]]:
    """Id of a memory entry -> steps that bear it out, or, negative, that speak against it, all since its last change.

    Borne out: the thing at its cell says what it tells, the door beside leads where it says. Against: the thing says
    something else than what is quoted, the cell that should lead away was stood on. One proof outweighs all doubts.
    """
    cells = defaultdict(list)
    for id, entry in harness.memory.items():
        cells[(entry.location, *map(int, re.findall(r"-?\d+", entry.coordinates)[:2]))].append((id, plain(f"{entry.title} {entry.content}")))
    good, bad = defaultdict(list), defaultdict(list)
    for step in window:
        place = step.place.rpartition(" (")[0]
        note = lambda into, id, t=step.t: into[id].append(t) if t > harness.changed.get(id, 0) else None
        for line in (line for result in step.results for line in result.get("trace", [])):
            if told := TOLD.search(line):
                for id, text in cells[(place, int(told[1]), int(told[2]))]:
                    if plain(told[3].partition(" [")[0]) in text:
                        note(good, id)
                    elif " says " in text:
                        note(bad, id)
            if went := WENT.search(line):
                x, y, to = int(went[1]), int(went[2]), went[3]
                for id, text in (e for dx, dy in ((0, 1), (0, -1), (1, 0), (-1, 0)) for e in cells[(place, x + dx, y + dy)] if to):
                    if f" leads to {plain(to)}" in text:
                        note(good, id)
                for id, text in cells[(place, int(went[4]), int(went[5]))] if not to else []:
                    if " leads to " in text:
                        note(bad, id)
                place = to or place
    return {**{id: [-t for t in steps] for id, steps in bad.items()}, **good}


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


# -- what every refinement ends with

def retired(harness: Harness, step: int) -> list[tuple[str, str, str]]:
    """(part, id, why) of the skills and sub-agents to give up; what was inherited or is protected may wait for its moment."""
    out = []
    for part in ("subagents", "skills"):
        for id, entry in getattr(harness, part).items():
            use, age = harness.uses.get(id, Uses()), step - harness.changed.get(id, 0)
            if entry.protected:
                continue
            if use.failed >= FAILED:
                out.append((part, id, f"retired: it failed {use.failed} times in a row; the last error: {use.last_error}"))
            elif not use.calls and age >= IDLE and entry.source not in ("bootstrapped", "human"):
                out.append((part, id, f"retired: not used once in the {age} steps since it was written"))
    return out


def upkeep(harness: Harness, window: list[Step], step: int, retire: bool = True) -> list[Edit]:
    """The edits that follow from the rules above; `harness` is not changed."""
    trial, edits = copy.deepcopy(harness), []
    make = lambda op, part, id, value, why: edits.append(trial.edit(op, part, id, value, by="refiner", step=step, why=why))
    proofs = sorted(evidence(harness, window).items(), key=lambda item: (-len(item[1]), item[0]))
    for id, steps in [(id, steps) for id, steps in proofs if not harness.memory[id].protected][:CHANGES]:
        now, up = harness.memory[id].confidence, steps[0] > 0
        at = ", ".join(str(abs(t)) for t in steps[-5:])
        if 1 <= now + (1 if up else -1) <= 5:
            make("update", "memory", id, {"confidence": now + (1 if up else -1)}, f"{'confirmed' if up else 'contradicted'} at steps {at}")
        elif not up and retire:
            make("delete", "memory", id, None, f"retired: contradicted once more, at steps {at}")
    for part, id, why in retired(harness, step) if retire else []:
        make("delete", part, id, None, why)
    return edits
