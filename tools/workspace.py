"""H as a workspace tree for coding agents, and the tree's specification.

AGENTS.md is p, sub_agents/<name>/AGENT.md a sub-agent, .agents/skills/<name>/SKILL.md a skill, its code the script that it
names first or scripts/<name>.py, memory/NOTES.md the memory, one `## topic` a note (the layout of Continual Harness's evolver
for coding agents). H -> tree -> H loses nothing: a field with no place of its own stands in the front matter, a note's in a
comment. What is written keeps every file, key and line that it need not change; links are never followed. Not in H: other
scripts of a skill, which stay as they are.
"""
import contextlib
import difflib
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import ID, PARTS, SCHEMAS, EditError, imported
from runlog import BadInput, write_atomic

POLICY, NOTES, TOOLS = "AGENTS.md", "memory/NOTES.md", "harness_tools"       # TOOLS: its front matter, where H limits them
FILE = {"subagents": ("sub_agents", "AGENT.md"), "skills": (".agents/skills", "SKILL.md")}      # part -> its folder, its file
BODY = {"subagents": "system_instructions", "skills": "instructions", "memory": "content"}      # part -> the field that is text
TITLE = {"subagents": "name", "skills": "name", "memory": "title"}
CAP, SIZE, SHOWN = 8_000, 1 << 20, 1_024                 # characters of AGENTS.md, bytes of a file, characters of a description
DEFAULT = {part: asdict(cls(**{TITLE[part]: ""})) for part, (cls, _) in PARTS.items()}
Files = dict[str, str]                                   # path in the tree -> text


# -- tree -> H

def front(text: str) -> tuple[dict[str, str], str]:
    """The front matter, key -> raw value (lines that go on included), and the text after it."""
    found, keys, last = re.match(r"---[ \t]*\r?\n(.*?)^---[ \t]*\r?(?:\n|\Z)", text, re.S | re.M), {}, ""
    for line in found[1].rstrip("\r\n").split("\n") if found else []:
        if key := re.match(r"([\w-]+):(?:[ \t]+(.*))?$", line.rstrip("\r")):
            last = key[1]
            keys[last] = key[2] or ""
        elif last:
            keys[last] += "\n" + line
    return keys, text[found.end():] if found else text


def decode(raw: str, kind: str = "string") -> Any:
    """A raw value of the front matter as a field of that JSON Schema type: JSON, or the plain YAML that people write."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(raw)
        if {str: "string", int: "integer", list: "array", bool: "boolean"}.get(type(value)) == kind:
            return value
    if kind == "array":
        return [w for w in (w.strip(" '\"-") for w in re.split(r"[,\n]", raw.strip().strip("[]"))) if w]
    plain = " ".join(re.sub(r"^[|>][-+]?\n", "", raw).split())           # a block's lines become one
    return plain[1:-1].replace("''", "'") if re.fullmatch(r"'.*'", plain) else plain


def read_tree(root: Path) -> tuple[Files, list[str]]:
    """The files of a tree that are H's, and a line for each that is not readable as one. Raises BadInput."""
    if not root.is_dir():
        raise BadInput(f"{root} is no folder; give a workspace with {POLICY} in it")
    files, odd = {}, []
    for top in (POLICY, "sub_agents", ".agents", "memory"):
        inside = [] if (root / top).is_symlink() else sorted((root / top).rglob("*"))        # which follows no links
        for path in [root / top, *inside]:
            rel = path.relative_to(root).as_posix()
            if path.is_symlink():
                odd.append(f"{rel}: a link; links are not followed")
            elif path.is_file() and path.stat().st_size > SIZE:
                odd.append(f"{rel}: more than {SIZE >> 20} MiB; it is not read")
            elif path.is_file():
                try:
                    files[rel] = path.read_bytes().decode()
                except UnicodeDecodeError:
                    odd.append(f"{rel}: not UTF-8; it is not read")
    return files, odd


def slug(name: str, taken: Iterable[str] = ()) -> str:
    """A name of a-z 0-9 and single hyphens that is not taken yet: for a folder, for an id."""
    base = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-") or "entry"
    return next(s for s in [base, *(f"{base}-{n}" for n in range(2, 999))] if s not in taken)


def notes(text: str) -> tuple[str, list[tuple[dict, str]]]:
    """NOTES.md -> what stands before the first note, and each note: its fields (with "id", if it has one) and its own text."""
    head, *chunks = re.split(r"^(?=## )", text, flags=re.M)
    out = []
    for chunk in chunks:
        title, _, body = chunk[3:].partition("\n")
        keys, ours = {}, re.match(r"<!-- (\{.*\}) -->\n?", body)
        with contextlib.suppress(ValueError, RecursionError):            # then it is a person's own comment
            keys, body = (json.loads(ours[1]), body[ours.end():]) if ours else ({}, body)
        out.append(({"title": title.strip()[:200], "source": "orchestrator", "content": body.strip("\r\n")} | keys, chunk))
    return head, out


def script(path: str, text: str) -> str:
    """Where the code of the skill at `path` stands."""
    folder, named = os.path.dirname(path), re.search(r"scripts/[\w-]+\.py", text)
    return f"{folder}/{named[0] if named else f'scripts/{os.path.basename(folder)}.py'}"


def entries(files: Files) -> Iterator[tuple[str, str, Any, dict]]:
    """(part, where it stands: its path, or a note's text; its id or name, its fields) of each entry of a tree."""
    for part, (top, file) in FILE.items():
        rules = SCHEMAS[part]["properties"]
        for path in sorted(p for p in files if re.fullmatch(rf"{re.escape(top)}/[^/]+/{file}", p)):
            keys, text = front(files[path])
            name = path.split("/")[-2]
            entry = {"source": "human"} | {k: decode(v, rules[k]["type"]) for k, v in keys.items() if k in rules}
            entry |= {"name": decode(keys.get("title", name)), BODY[part]: text.removesuffix("\n"),
                      "description": decode(keys.get("full_description", keys.get("description", "")))}
            if part == "skills" and (code := files.get(script(path, text))):
                entry["code"] = code.removesuffix("\n")
            yield part, path, decode(keys.get("id", name)), entry
    for entry, chunk in notes(files.get(NOTES, ""))[1]:
        id = entry.pop("id", entry["title"])
        yield "memory", chunk, id, {k: v for k, v in entry.items() if k in SCHEMAS["memory"]["properties"]}


def parse(files: Files) -> tuple[dict, dict]:
    """A tree's files -> the row that `harness.imported` takes, and (part, id) -> where it stands: its path, or a note's text."""
    row, where = {"prompt": files.get(POLICY, "").removesuffix("\n"), "tools": [], **{part: {} for part in PARTS}}, {}
    keys, text = front(files.get(POLICY, ""))
    if list(keys) == [TOOLS]:
        row |= {"prompt": text.removesuffix("\n"), "tools": decode(keys[TOOLS], "array")}
    for part, place, id, entry in entries(files):
        if not isinstance(id, str) or not ID.fullmatch(id) or id in row[part]:
            prefix = PARTS[part][1] + "-"
            id = prefix + slug(str(id), {i.removeprefix(prefix) for i in row[part]})
        row[part][id], where[part, id] = entry, place
    return row, where


def clean(row: dict) -> dict:
    """A row with all fields of all entries, in order of the ids: the rows of two equal H are equal."""
    return {"prompt": row.get("prompt", ""), "tools": row.get("tools", []),
            **{part: {id: DEFAULT[part] | entry for id, entry in sorted(row.get(part, {}).items())} for part in PARTS}}


# -- H -> tree

def extra(part: str, id: str, entry: dict, *placed: str) -> dict:
    """The fields of an entry that have no place of their own, where they are not the default."""
    return {"id": id} | {k: v for k, v in entry.items() if k not in placed and (v != DEFAULT[part][k] or k == "source")}


def note(id: str, entry: dict, old: str) -> str:
    """One note. A title and a text that Markdown does not give back as they are stand in the comment."""
    keys = extra("memory", id, entry, "title", "content")
    keys |= {k: v for k, v in (notes(old)[1][0][0] if old else {}).items() if k not in DEFAULT["memory"] and k != "id"}

    def made(keys: dict, body: str) -> str:
        comment = json.dumps(keys, ensure_ascii=False).replace(">", "\\u003e")
        return f"## {' '.join(entry['title'].split()) or id}\n<!-- {comment} -->\n{body}\n\n"

    own = {k: entry[k] for k in ("title", "content")}
    plain = made(keys, entry["content"])
    return plain if [{k: e[k] for k in own} for e, _ in notes(plain)[1]] == [own] else made(keys | own, "")


def document(part: str, id: str, entry: dict, folder: str, old: str) -> str:
    """AGENT.md or SKILL.md. Of the old front matter stays what is not H's, and what has not changed."""
    shown = entry["description"][:SHOWN] or entry["name"]
    keys = {"name": folder, "description": shown} | extra(part, id, entry, "name", "description", "code", BODY[part])
    keys |= {"title": entry["name"]} if entry["name"] != folder else {}
    keys |= {"full_description": entry["description"]} if shown != entry["description"] else {}
    kind = lambda k: SCHEMAS[part]["properties"].get(k, {}).get("type", "string")
    raw = {k: v for k, v in front(old)[0].items() if k not in {*DEFAULT[part], "id", "title", "full_description"}
           or k in keys and decode(v, kind(k)) == keys[k]}
    raw |= {k: json.dumps(v, ensure_ascii=False) for k, v in keys.items() if k not in raw}           # JSON is YAML, too
    return "---\n" + "".join(f"{k}: {v}\n" for k, v in raw.items()) + f"---\n{entry[BODY[part]]}\n"


def put(part: str, id: str, entry: dict, path: str, files: Files) -> None:
    """A sub-agent or a skill, with its code, into `files`."""
    old = files.get(path, "")
    files[path] = document(part, id, entry, path.split("/")[-2], old)
    if part == "skills":
        code = files.pop(script(path, front(old)[1]), "")
        if entry["code"]:
            same = code.removesuffix("\n") == entry["code"]
            files[script(path, entry["instructions"])] = code if same else entry["code"] + "\n"


def to_files(row: dict, old: Files) -> Files:
    """A tree that holds `row`, made of the files that are there: what has not changed keeps its text."""
    before, where = parse(old)
    before, row, files = clean(before), clean(row), dict(old)
    if (row["prompt"], row["tools"]) != (before["prompt"], before["tools"]):
        keyed = row["tools"] or list(front(row["prompt"])[0]) == [TOOLS]
        files[POLICY] = f"---\n{TOOLS}: {json.dumps(row['tools'])}\n---\n" * bool(keyed) + row["prompt"] + "\n"
    for part, (top, file) in FILE.items():
        for id in before[part].keys() - row[part].keys():
            files = {p: t for p, t in files.items() if not p.startswith(os.path.dirname(where[part, id]) + "/")}
        for id, entry in row[part].items():
            if before[part].get(id) != entry:
                taken = {p.split("/")[top.count("/") + 1] for p in files if p.startswith(top + "/")}
                put(part, id, entry, where.get((part, id)) or f"{top}/{slug(entry['name'], taken)}/{file}", files)
    if row["memory"] != before["memory"]:
        ids = [i for i in dict.fromkeys([*(i for part, i in where if part == "memory"), *row["memory"]]) if i in row["memory"]]
        chunk = lambda i, was: was if before["memory"].get(i) == row["memory"][i] else note(i, row["memory"][i], was)
        texts = [notes(old.get(NOTES, "# Notes\n\n"))[0], *(chunk(i, where.get(("memory", i), "")) for i in ids)]
        files[NOTES] = "".join(t + "\n" * (t != "" and not t.endswith("\n")) for t in texts)
    return files


# -- the specification

def named_paths(base: str, text: str, files: Files) -> list[str]:
    """What is wrong with the paths that a text names: they do not exist in the tree, or lead out of it."""
    found = re.findall(r"(?<![\w/.:-])((?:sub_agents|\.agents/skills|memory|scripts)/[\w./-]*\w)", text)
    out = re.findall(r"(?<![\w.])(?:[\w.-]+/)*\.\./[\w./-]*", text)
    return [f"leaves the tree with {p}" for p in out] + [f"names {p}, which does not exist" for p in found
                                                         if not any(f"{f}/".startswith((f"{p}/", f"{base}/{p}/")) for f in files)]


def compiles(text: str) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "", "exec")
        return []
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        return [f"does not compile: {e}"]


def faults(path: str, files: Files) -> list[str]:
    """What is wrong with one file."""
    text, part = files[path], next((p for p, (top, _) in FILE.items() if path.startswith(top + "/")), "")
    base = "/".join(path.split("/")[:{"subagents": 2, "skills": 3}.get(part, 0)])
    name, main, out = os.path.basename(base), f"{base}/{FILE[part][1]}" if part else "", []
    if path not in (POLICY, NOTES) and (not part or path == base):
        out.append(f"not a part of the harness: {POLICY}, {NOTES}, {FILE['subagents'][0]}, {FILE['skills'][0]}")
    elif part and main not in files:
        out.append(f"no {FILE[part][1]} beside it")
    if text.encode(errors="replace").decode() != text:
        out.append("holds half a character; it can't be written as UTF-8")
    elif path.endswith((".py", ".md")):
        out += compiles(text) if path.endswith(".py") else named_paths(base, text, files)
    if path == main:
        keys = {k: decode(v) for k, v in front(text)[0].items()}
        if part == "skills" and (keys.get("name") != name or not re.fullmatch(r"(?=.{1,64}$)[a-z0-9]+(-[a-z0-9]+)*", name)):
            out.append(f"name {keys.get('name', '')!r} must be its folder's, 1 to 64 of a-z 0-9 and single hyphens")
        if not 1 <= len(keys.get("description", "")) <= SHOWN:
            out.append(f"description must have 1 to {SHOWN} characters; without one an agent never sees the entry")
    return out


def check(files: Files, odd: Iterable[str] = ()) -> list[str]:
    """Every violation of the tree's specification, a line each, with its file."""
    row, size = parse(files)[0], len(files.get(POLICY, "").strip())
    out = [*odd, *(f"{path}: {fault}" for path in files for fault in faults(path, files))]
    if not 0 < size <= CAP:
        out.append(f"{POLICY}: {size} characters; the limit is {CAP}" if size else f"{POLICY}: missing or empty")
    titles = [entry["title"] for entry in row["memory"].values()]
    out += [f"{NOTES}: the topic {t!r} stands there twice" for t in titles if titles.count(t) > 1]
    for part, id, entry in ((part, id, entry) for part in PARTS for id, entry in row[part].items()):
        try:
            imported({part: {id: entry}})
        except EditError as e:
            out.append(f"{FILE[part][0] if part in FILE else NOTES}: {e}")
    return list(dict.fromkeys(out))


def changes(old: Files, new: Files) -> list[str]:
    return sorted(p for p in {*old, *new} if old.get(p) != new.get(p))


def diff(old: Files, new: Files) -> str:
    """The change as a patch."""
    lines, out = lambda files, p: files.get(p, "").splitlines(keepends=True), ""
    for p in changes(old, new):
        names = f"a/{p}" if p in old else "/dev/null", f"b/{p}" if p in new else "/dev/null"
        for line in difflib.unified_diff(lines(old, p), lines(new, p), *names):
            out += line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
    return out


def write_tree(root: Path, new: Files, old: Files) -> list[str]:
    """Write what differs from `old`, and nothing when a file is not as it is in `old`. Returns the paths. Raises BadInput."""
    for p in changes(old, new):
        if (root / p).resolve() != root.resolve() / p:
            raise BadInput(f"{root / p}: a link is in the way; nothing was written")
        if ((root / p).read_bytes() if (root / p).exists() else None) != (old[p].encode() if p in old else None):
            raise BadInput(f"{root / p} is not ours to overwrite: it was there or has changed meanwhile; nothing was written")
    for p in changes(old, new):
        if p in new:
            (root / p).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(root / p, new[p].encode())
        else:
            (root / p).unlink()
    return changes(old, new)
