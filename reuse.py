"""Reuse (paper section 3.2): what H shows first, what it has already, what its facts proved to be worth, what it gives up.

Pure functions of H and a window of steps. The overview is ranked and bounded. A new entry whose task an old one covers
becomes an update of that one; a memory entry's confidence moves with what was seen since its last change; entries that fail
or are of no use are retired, and each edit says why. Departure from the paper, which leaves all of this to the model: here
they are rules, and --no-reuse and --no-retire switch them off.
"""
import copy
import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from env import Step
from harness import PARTS, SCHEMAS, Edit, Harness, Uses, label, problems

SHOWN = 16_000                       # characters of one store's list in the overview
FAILED, IDLE, CHANGES = 8, 200, 5    # failures in a row, steps unused: then an entry is retired; facts that move a refinement
INHERITED = ("bootstrapped", "human")
API = ("args", "tools", "result")
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|'[^'\n]*'|\"[^\"\n]*\"|[^\s\w]")
TOLD = re.compile(r" at '.' \((-?\d+), (-?\d+)\): text: (.*)")
WENT = re.compile(r"\((-?\d+), (-?\d+)\) -> (?:(\w+) )?\((-?\d+), (-?\d+)\)")
NEVER = "\n"                         # no plain text holds it


# -- what the model sees

def order(harness: Harness, part: str) -> list[tuple[str, Any]]:
    """A store as the overview lists it: inherited and proven entries first, then by importance, then by worth: successes,
    halved for every 200 steps unused; for a fact its confidence."""
    now = max((use.last_step for use in harness.uses.values()), default=0)

    def rank(item: tuple[str, Any]) -> tuple:
        id, entry = item
        use, sure = harness.uses.get(id, Uses()), getattr(entry, "confidence", 0)
        proven = entry.protected or entry.source in INHERITED or 0 < use.calls <= 2 * use.successes or sure > 3
        worth = use.successes * 0.5 ** ((now - use.last_step) / 200) + sure
        return (*((not proven,) * harness.reuse), -entry.importance, -worth * harness.reuse, entry.path, id)

    return sorted(getattr(harness, part).items(), key=rank)


def line(harness: Harness, part: str, id: str, entry: Any) -> str:
    """An entry in the overview: its id, what it is, and how it was used."""
    use, path = harness.uses.get(id), entry.path.strip("/")
    hint = ", ".join(filter(None, (entry.location, entry.coordinates))) if part == "memory" else entry.description
    marks = " (inherited)" * (entry.source == "bootstrapped")
    marks += f" [confidence {entry.confidence}]" if part == "memory" else ""
    marks += f" [used {use.calls}, ok {use.successes}]" if use else ""
    return f"- {path}{'/' * bool(path)}{id}: {label(entry)}" + f": {' '.join(hint.split())[:160]}" * bool(hint) + marks


def overview(harness: Harness) -> str:
    """H without p, as a short list: ids, titles and use counts; contents are read through the tools."""
    out = []
    for part in PARTS:
        lines = [line(harness, part, id, entry) for id, entry in order(harness, part)]
        fit = sum(size <= SHOWN for size in accumulate(map(len, lines)))
        more = [f"- and more that are worth less: read {part} without an id to list them"] * (fit < len(lines))
        out += [f"## {part} ({len(lines)})", *lines[:fit], *more]
    return "\n".join(out)


# -- near-duplicates

def words(text: str) -> set[str]:
    """walkToDoor, walk_to_door and "Walk to door" are the same words."""
    return set(re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()))


def shape(code: str) -> Counter:
    """3-grams of the tokens. Names and long texts are blanked, they are taste; numbers and buttons stay, they are the task."""
    def kept(token: str) -> str:
        if token[0] in "'\"":
            return token[1:-1] if len(token) < 14 else "text"
        return "name" if token.isidentifier() and not keyword.iskeyword(token) and token not in API else token

    tokens = [kept(t) for t in TOKEN.findall(re.sub(r"#.*", "", code))]
    return Counter(zip(tokens, tokens[1:], tokens[2:])) if len(tokens) >= 20 else Counter()


def features(part: str, entry: dict) -> tuple[set[str], set[str], Counter]:
    """An entry's name, its arguments (for a fact: its place), and its shape."""
    get = lambda name: entry.get(name) or ""
    if part == "memory":
        place = {get("location"), "".join(get("coordinates").split())} - {""}
        return words(get("title")), place, Counter(words(get("content")))
    if part == "subagents":
        told = words(f"{get('system_instructions')} {get('directive')}")
        return words(get("name")), set(get("available_tools")), Counter(told)
    return words(get("name")), set(re.findall(r"args(?:\[|\.get\() *['\"](\w+)", get("code"))), shape(get("code"))


def covered(harness: Harness, part: str, fields: dict) -> str:
    """The id of an entry whose task `fields` repeats: the same name, or the same arguments and (nearly) the same shape; or ""."""
    alike = lambda a, b: sum((a & b).values()) / max(sum((a | b).values()), 1)
    name, args, form = features(part, fields)
    for id, entry in order(harness, part):
        old_name, old_args, old_form = features(part, vars(entry))
        same, close = alike(Counter(name), Counter(old_name)), alike(form, old_form)
        related = args <= old_args or old_args <= args
        if same == 1 and related or args == old_args and (close >= 0.85 or min(same, close) >= 0.5):
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
    cells, seen = defaultdict(list), defaultdict(list)
    for id, entry in harness.memory.items():
        at = map(int, re.findall(r"-?\d+", entry.coordinates)[:2])
        cells[(entry.location, *at)].append((id, f" {plain(f'{entry.title} {entry.content}')} "))

    def note(t: int, place: str, x: int, y: int, proof: str, doubt: str) -> None:
        for id, text in cells[place, x, y]:
            if t > harness.changed.get(id, 0) and (proof in text or doubt in text):
                seen[id].append(t if proof in text else -t)

    for step in window:
        place = step.place.rpartition(" (")[0]
        for line in (line for result in step.results for line in result.get("trace", [])):
            if told := TOLD.search(line):
                note(step.t, place, int(told[1]), int(told[2]), plain(told[3].partition(" [")[0]), " says ")
            if not (went := WENT.search(line)):
                continue
            if to := went[3]:
                for dx, dy in ((0, 1), (0, -1), (1, 0), (-1, 0)):
                    note(step.t, place, int(went[1]) + dx, int(went[2]) + dy, f" leads to {plain(to)} ", NEVER)
                place = to
            else:
                note(step.t, place, int(went[4]), int(went[5]), NEVER, " leads to ")
    return {id: [t for t in steps if t > 0] or steps for id, steps in seen.items()}


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


# -- what every refinement ends with

def retired(harness: Harness, step: int) -> Iterator[tuple[str, str, str]]:
    """(part, id, why) of the skills and sub-agents to give up; what was inherited or is protected may wait for its moment."""
    for part, id, entry in ((part, *item) for part in ("subagents", "skills") for item in getattr(harness, part).items()):
        use, age = harness.uses.get(id, Uses()), step - harness.changed.get(id, 0)
        if use.failed >= FAILED and use.failed > use.successes and not entry.protected:     # bad luck takes no proven skill away
            yield part, id, f"retired: it failed {use.failed} times in a row; the last error: {use.last_error}"
        elif not (use.calls or age < IDLE or entry.protected or entry.source in INHERITED):
            yield part, id, f"retired: not used once in the {age} steps since it was written"


def upkeep(harness: Harness, window: list[Step], step: int, retire: bool = True) -> list[Edit]:
    """The edits that follow from the rules above; `harness` is not changed."""
    trial, edits = copy.deepcopy(harness), []
    make = lambda op, part, id, value, why: edits.append(trial.edit(op, part, id, value, by="refiner", step=step, why=why))
    proofs = [(id, steps) for id, steps in evidence(harness, window).items() if not harness.memory[id].protected]
    for id, steps in sorted(proofs, key=lambda item: (-len(item[1]), item[0]))[:CHANGES]:
        up, at = steps[0] > 0, ", ".join(str(abs(t)) for t in steps[-5:])
        sure = harness.memory[id].confidence + (1 if up else -1)
        if 1 <= sure <= 5:
            make("update", "memory", id, {"confidence": sure}, f"{'confirmed' if up else 'contradicted'} at steps {at}")
        elif not up and retire:
            make("delete", "memory", id, None, f"retired: contradicted once more, at steps {at}")
    for part, id, why in retired(harness, step) if retire else ():
        make("delete", part, id, None, why)
    return edits
