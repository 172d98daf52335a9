"""H as a workspace tree for coding agents, and the tree's specification.

AGENTS.md is p, sub_agents/<name>/AGENT.md a sub-agent, .agents/skills/<name>/SKILL.md a skill, its code the script that it
names first or scripts/<name>.py, memory/NOTES.md the memory, one `## topic` a note (the layout of Continual Harness's evolver
for coding agents). H -> tree -> H loses nothing: what a file or a note does not say by itself stands in it as JSON, under the
key `harness` of the front matter or in a comment. What is written keeps every file, key and line that it need not change; links
are never followed. Not in H: other keys of the front matter and other scripts of a skill, which stay as they are.
"""
import contextlib
import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import ID, PARTS, EditError, imported
from runlog import BadInput, write_atomic

POLICY, NOTES = "AGENTS.md", "memory/NOTES.md"
FILE = {"subagents": ("sub_agents", "AGENT.md"), "skills": (".agents/skills", "SKILL.md")}      # part -> its folder, its file
BODY = {"subagents": "system_instructions", "skills": "instructions", "memory": "content"}      # part -> the field that is text
TITLE = {"subagents": "name", "skills": "name", "memory": "title"}
CAP, SIZE, SHOWN = 8_000, 1 << 20, 1_024                 # characters of AGENTS.md, bytes of a file, characters of a description
DEFAULT = {part: asdict(cls(**{TITLE[part]: ""})) for part, (cls, _) in PARTS.items()}
Files = dict[str, str]                                   # path in the tree -> text


# -- tree -> H

KEY = r"^{}:[ \t]*(.*(?:\n[ \t]+.*)*)\n?"                # a key of the front matter, its value with the lines that go on


def front(text: str) -> tuple[str, str]:
    """The front matter, without its fences, and the text after it."""
    found = re.match(r"---[ \t]*\r?\n(.*?)^---[ \t]*\r?(?:\n|\Z)", text, re.S | re.M)
    return (found[1], text[found.end():]) if found else ("", text)


def value(head: str, key: str) -> Any:
    """A key of the front matter: JSON, or the plain YAML that people write; '' where it is missing."""
    raw = (re.search(KEY.format(key), head, re.M) or ["", ""])[1]
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(raw), (str, dict)):
            return found
    plain = " ".join(re.sub(r"^[|>][-+]?\n", "", raw).split())           # a block's lines become one
    return plain[1:-1].replace("''", "'") if re.fullmatch(r"'.*'", plain) else plain


def own(head: str) -> dict:
    """Our JSON in a front matter."""
    return row if isinstance(row := value(head, "harness"), dict) else {}


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


def notes(text: str) -> tuple[str, list[str]]:
    """NOTES.md -> what stands before the first note, and the notes."""
    head, *chunks = re.split(r"^(?=## )", text, flags=re.M)
    return head, chunks


def read_note(chunk: str) -> tuple[dict, dict]:
    """What a note says, and the JSON of its comment."""
    title, _, body = chunk[3:].partition("\n")
    row, ours = {}, re.match(r"<!-- (\{.*\}) -->\n?", body)
    with contextlib.suppress(ValueError, RecursionError):                # then it is a person's own comment
        row, body = (json.loads(ours[1]), body[ours.end():]) if ours else ({}, body)
    title = title.strip()[:200]
    return {"id": title, "title": title, "source": "orchestrator", "content": body.strip("\r\n")}, row


def script(path: str, text: str) -> str:
    """Where the code of the skill at `path` stands."""
    folder, named = os.path.dirname(path), re.search(r"scripts/[\w-]+\.py", text)
    return f"{folder}/{named[0] if named else f'scripts/{os.path.basename(folder)}.py'}"


def entries(files: Files) -> Iterator[tuple[str, str, dict]]:
    """(part, where it stands: its path, or a note's text; its fields and "id") of each entry of a tree."""
    for part, (top, file) in FILE.items():
        for path in sorted(p for p in files if re.fullmatch(rf"{re.escape(top)}/[^/]+/{file}", p)):
            (head, text), name = front(files[path]), path.split("/")[-2]
            code = {"code": files.get(script(path, text), "").removesuffix("\n")} if part == "skills" else {}
            plain = {"id": name, "name": name, "source": "human", "description": value(head, "description"), **code}
            yield part, path, plain | {BODY[part]: text.removesuffix("\n")} | own(head)
    for chunk in notes(files.get(NOTES, ""))[1]:
        plain, row = read_note(chunk)
        yield "memory", chunk, plain | row


def parse(files: Files) -> tuple[dict, dict, list[str]]:
    """A tree's files -> the row that `harness.imported` takes; (part, id) -> where it stands: its path, or a note's text; and
    what is wrong with the entries that H can't hold: they are not in the row."""
    text = files.get(POLICY, "").removesuffix("\n")
    keyed = re.match(r"---\nharness: (\{.*\})\n---\n", text)
    row = {"prompt": text[keyed.end():] if keyed else text, "tools": own(keyed[0]).get("tools", []) if keyed else []}
    row, where, wrong = row | {part: {} for part in PARTS}, {}, []
    for part, place, entry in entries(files):
        id, prefix = entry["id"], PARTS[part][1] + "-"
        if not isinstance(id, str) or not ID.fullmatch(id) or (part, id) in where:
            id = prefix + slug(str(id), {i.removeprefix(prefix) for _, i in where})
        where[part, id] = place
        try:
            entry = DEFAULT[part] | {k: v for k, v in entry.items() if k in DEFAULT[part]}
            imported({part: {id: entry}})
            row[part][id] = entry
        except EditError as e:
            wrong.append(f"{FILE[part][0] if part in FILE else NOTES}: {e}")
    return row, where, wrong


# -- H -> tree

def unsaid(part: str, id: str, entry: dict, plain: dict, old: dict) -> dict:
    """The fields of an entry that `plain` does not give, and what else the old JSON held."""
    return {k: v for k, v in old.items() if k not in {"id", *DEFAULT[part]}} | {
        k: v for k, v in {"id": id, **entry}.items() if v != plain.get(k, DEFAULT[part].get(k))}


def note(id: str, entry: dict, old: str) -> str:
    """One note. A title and a text that Markdown does not give back as they are stand in the comment."""
    plain = f"## {' '.join(entry['title'].split()) or id}\n{entry['content']}\n\n"
    if len(notes(plain)[1]) > 1 or read_note(plain)[0]["content"] != entry["content"]:
        plain = plain.partition("\n")[0] + "\n\n"
    row = unsaid("memory", id, entry, read_note(plain)[0], read_note(old)[1])
    comment = json.dumps({"id": id} | row, ensure_ascii=False).replace(">", "\\u003e")
    return plain.replace("\n", f"\n<!-- {comment} -->\n", 1)


def document(part: str, id: str, entry: dict, folder: str, old: str) -> str:
    """AGENT.md or SKILL.md. Of the old front matter stays what is not H's, and what has not changed."""
    head, shown = front(old)[0], entry["description"][:SHOWN] or entry["name"]
    placed = {k: entry[k] for k in ("code", BODY[part]) if k in entry}
    row = unsaid(part, id, entry, {"id": folder, "name": folder, "source": "human", "description": shown, **placed}, own(head))
    for key, new in (("name", folder), ("description", shown), ("harness", row)):
        if value(head, key) != new:                      # JSON is YAML, too
            line = f"{key}: {json.dumps(new, ensure_ascii=False)}\n" if new else ""
            head = re.sub(KEY.format(key), "", head, flags=re.M) + line
    return f"---\n{head}---\n{entry[BODY[part]]}\n"


def put(part: str, id: str, entry: dict, path: str, files: Files) -> None:
    """A sub-agent or a skill, with its code, into `files`."""
    old = files.get(path, "")
    code = files.pop(script(path, front(old)[1]), "") if part == "skills" else ""
    files[path] = document(part, id, entry, path.split("/")[-2], old)
    if new := entry.get("code"):
        files[script(path, entry["instructions"])] = code if code.removesuffix("\n") == new else new + "\n"


def to_files(row: dict, old: Files) -> Files:
    """A tree that holds `row`, made of the files that are there: what has not changed, or is none of H's, keeps its text."""
    (before, where, _), files = parse(old), dict(old)
    if (row["prompt"], row["tools"]) != (before["prompt"], before["tools"]):
        keyed = row["tools"] or row["prompt"].startswith("---\nharness: ")
        files[POLICY] = f'---\nharness: {json.dumps({"tools": row["tools"]})}\n---\n' * bool(keyed) + row["prompt"] + "\n"
    for part, (top, file) in FILE.items():
        for id in before[part].keys() - row[part].keys():
            files = {p: t for p, t in files.items() if not p.startswith(os.path.dirname(where[part, id]) + "/")}
        for id, entry in sorted(row[part].items()):
            if before[part].get(id) != entry:
                taken = {p.split("/")[top.count("/") + 1] for p in files if p.startswith(top + "/")}
                new = f"{top}/{slug(entry['name'], taken)}/{file}"
                put(part, id, entry, where[part, id] if id in before[part] else new, files)
    if row["memory"] != before["memory"]:
        texts = [notes(old.get(NOTES, "# Notes\n\n"))[0]]
        for id in dict.fromkeys([*(i for part, i in where if part == "memory"), *row["memory"]]):
            entry, was = row["memory"].get(id), where.get(("memory", id), "")
            if entry == before["memory"].get(id):
                texts.append(was)
            elif entry:
                texts.append(note(id, entry, was))
        files[NOTES] = "".join(t + "\n" * (t != "" and not t.endswith("\n")) for t in texts)
    return files


# -- the specification

def named_paths(base: str, text: str, files: Files) -> list[str]:
    """What is wrong with the paths that a text names: they do not exist in the tree, or lead out of it."""
    found = re.findall(r"(?<![\w/.:-])((?:sub_agents|\.agents/skills|memory|scripts)/[\w./-]*\w)", text)
    out = re.findall(r"(?<![\w.])(?:[\w.-]+/)*\.\./[\w./-]*", text)
    return [f"leaves the tree with {p}" for p in out] + [f"names {p}, which does not exist" for p in found
                                                         if not any(f"{f}/".startswith((f"{p}/", f"{base}/{p}/")) for f in files)]


def compiles(path: str, text: str) -> list[str]:
    try:
        compile(text, path, "exec")
        return []
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        return [f"does not compile: {e}"]


def faults(path: str, files: Files) -> list[str]:
    """What is wrong with one file."""
    text, part = files[path], next((p for p, (top, _) in FILE.items() if path.startswith(top + "/")), "")
    base = "/".join(path.split("/")[:{"subagents": 2, "skills": 3}.get(part, 0)])
    name, main, head = os.path.basename(base), f"{base}/{FILE[part][1]}" if part else "", front(text)[0]
    named = value(head, "name") == name and re.fullmatch(r"(?=.{1,64}$)[a-z0-9]+(-[a-z0-9]+)*", name)
    rules = {
        f"not a part of the harness: {POLICY}, {NOTES}, {FILE['subagents'][0]}, {FILE['skills'][0]}":
            path not in (POLICY, NOTES) and (not part or path == base),
        f"no {os.path.basename(main)} beside it": part and path != base and main not in files,
        "holds half a character; it can't be written as UTF-8": text.encode(errors="replace").decode() != text,
        f"name {value(head, 'name')!r} must be its folder's, 1 to 64 of a-z 0-9 and single hyphens":
            path == main and part == "skills" and not named,
        "harness must be an object, as JSON on one line": path == main and not isinstance(value(head, "harness") or {}, dict),
        f"description must have 1 to {SHOWN} characters; without one an agent never sees the entry":
            path == main and not 1 <= len(value(head, "description")) <= SHOWN}
    more = compiles(path, text) if path.endswith(".py") else named_paths(base, text, files) if path.endswith(".md") else []
    return [fault for fault, broken in rules.items() if broken] + more


def check(files: Files, odd: Iterable[str] = ()) -> list[str]:
    """Every violation of the tree's specification, a line each, with its file."""
    (row, _, wrong), size = parse(files), len(files.get(POLICY, "").strip())
    out = [*odd, *(f"{path}: {fault}" for path in files for fault in faults(path, files)), *wrong]
    if not 0 < size <= CAP:
        out.append(f"{POLICY}: {size} characters; the limit is {CAP}" if size else f"{POLICY}: missing or empty")
    titles = [entry["title"] for entry in row["memory"].values()]
    return list(dict.fromkeys(out + [f"{NOTES}: the topic {t!r} stands there twice" for t in titles if titles.count(t) > 1]))


def changes(old: Files, new: Files) -> list[str]:
    """The paths of the files that differ."""
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
