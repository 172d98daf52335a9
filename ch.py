"""The agent (paper section 3.1): context -> model -> calls -> results, inside a harness that can be edited at any step.

One turn is `Agent.turn`; `step` is a turn of the orchestrator, and a sub-agent is a loop of turns with its own
instructions, tools and history. The context is a pure function of H, the turns before it and the observation.

Departure from the paper: the observation is sent again only after a call that can change the game; a call that only reads
or edits H is answered in the same conversation, so that the line of thought is kept.
"""
import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from env import Env, Observation, Step
from harness import ENTRIES, SCHEMAS, EditError, Edit, Harness, SubAgent, label, problems
from models import NUDGE, Call, Reply, digest, fill
from models.vision import picture
from reuse import overview, placed
from sandbox import Sandbox, ToolRefused, source

MAIN = "orchestrator"
KEEP, BLOCK = 20, 20                 # turns of history sent: at least KEEP, cut in blocks so that the prefix stays the same
SKILL_PRESSES, CALLS, CLIP = 200, 8, 2_000   # presses a skill may make; calls a reply may hold; characters of a result's text
DRY = 50                             # actions of a dry run


STORES = {"process_memory": "memory", "process_skill": "skills", "process_subagent": "subagents"}


def own_tools() -> dict[str, tuple[str, dict]]:
    """The agent's own tools, from prompts/tools.json; the fields of H's entries follow from their dataclasses."""
    fields = lambda tool: ", ".join(f for f in SCHEMAS[STORES[tool]]["properties"] if f != "protected") if tool in STORES else ""
    rows = json.loads((Path(__file__).parent / "prompts" / "tools.json").read_text(encoding="utf-8"))
    return {name: (said.replace("{fields}", fields(name)), rules) for name, (said, rules) in rows.items()}


TOOLS = own_tools()
RETURN = TOOLS.pop("return_control")                     # a sub-agent's
ACTING = {"run_skill", "execute_custom_subagent"}        # beside the environment's own tools these can change the game

# The skill API: what code may look at. With the environment's actions it is all that a skill can call, and what the prompts tell.
LOOK: dict[str, tuple[str, Callable[[Observation], Any]]] = {
    "get_game_state": (
        'a dict with player_position {"x", "y"}, location, context and state_text (the observation)',
        lambda seen: {k: v for k, v in seen.state.items() if k not in ("map", "progress")} | {"state_text": seen.text}),
    "get_map_data": ("a dict with grid (a list of strings, `grid[y][x]`) and more where the game has it: player, warps, signs, "
                     "objects, connections, grid_legend", lambda seen: seen.state.get("map", {})),
}


def skill_api(actions: dict[str, tuple[str, dict]]) -> str:
    """The skill API as the prompts show it, a line a function."""
    lines = [f"- `tools['{n}']({', '.join(s['properties'])})`: {d}" for n, (d, s) in actions.items()]
    return "\n".join(lines + [f"- `tools['{n}']()` returns {d}." for n, (d, _) in LOOK.items()])


def clip(value: Any) -> Any:
    """Long texts in a result, cut in the middle: what is stored is what is sent."""
    if isinstance(value, str) and len(value) > CLIP:
        return f"{value[:CLIP // 2]} [... {len(value) - CLIP} characters cut ...] {value[-CLIP // 2:]}"
    if isinstance(value, dict):
        return {k: clip(v) for k, v in value.items()}
    return [clip(v) for v in value[:60]] if isinstance(value, list) else value


def unfit(call: Call, tools: dict[str, tuple[str, dict]]) -> str:
    """Why a call can't be carried out; "" when its tool exists and its arguments fit the tool's schema."""
    if call.name not in tools:
        return f"no such tool: {call.name[:80]}; the tools are {', '.join(tools)}"
    wrong = problems(call.args, tools[call.name][1]) if isinstance(call.args, dict) else "the arguments are not a JSON object"
    return wrong and f"{call.name} was not carried out: {wrong}"


def tool_list(tools: dict[str, tuple[str, dict]]) -> list[dict]:
    return [{"type": "function", "function": {"name": n, "description": d, "parameters": s}} for n, (d, s) in tools.items()]


def history(thread: list[Step]) -> list[Step]:
    """The turns that are still in the context: at least KEEP, starting with one that carried an observation."""
    start = max(0, (len(thread) - KEEP) // BLOCK * BLOCK)
    while start > 0 and thread[start].obs is None:
        start -= 1
    return thread[start:]


def turn_messages(step: Step) -> list[dict]:
    """One past turn as messages: what was observed, what was answered, what came of each call."""
    messages, reply = [{"role": "user", "content": step.obs}] if step.obs is not None else [], step.reply
    said = reply.as_message()
    if not reply.calls:              # an empty message is refused by some servers: then only the correction is sent
        return messages + [said] * bool(said["content"].strip()) + [{"role": "user", "content": f"{NUDGE} {reply.note}".strip()}]
    return messages + [said] + [
        {"role": "tool", "tool_call_id": c["id"], "name": c["function"]["name"], "content": json.dumps(r, ensure_ascii=False)}
        for c, r in zip(said["tool_calls"], step.results)]


def context(system: str, overview: str, thread: list[Step], obs: str | None, frame: Any) -> list[dict]:
    """What the model is sent: system, history, and, in the last message that is an observation, H's overview and the frame.

    obs: the new observation; None when the last calls could not change the game. frame: None for a model without vision.
    """
    messages = [{"role": "system", "content": system}] + [m for step in history(thread) for m in turn_messages(step)]
    if obs is not None:
        messages.append({"role": "user", "content": obs})
    last = max(i for i, m in enumerate(messages) if m["role"] == "user" and not m["content"].startswith(NUDGE))
    # The overview comes last: all before it is the same in the next request, so a server's prefix cache holds it.
    content = f"{messages[last]['content']}\n\n{overview}" if overview else messages[last]["content"]
    messages[last]["content"] = content if frame is None else [{"type": "text", "text": content}, picture(frame)]
    return messages


def succeeded(out: dict) -> bool:
    """Of a skill's result. It may say itself that it failed: {"success": False, ...} or a text that starts with "error"."""
    said = out.get("result")
    failed = isinstance(said, dict) and said.get("success") is False or str(said).lower().startswith("error")
    return bool(out.get("success")) and not failed


def no(error: str, **more: Any) -> dict:
    """The result of a call that was not carried out."""
    return {"success": False, "error": error, **more}


class Agent:
    """The orchestrator and its sub-agents: one H, one environment, one list of steps."""

    def __init__(self, env: Env, harness: Harness, ask: Callable[[str, list, list], Reply], *, seed: int = 0,
                 vision: bool | None = False,
                 on_step: Callable[[Step], None] = lambda step: None, on_edit: Callable[[Edit], None] = lambda edit: None):
        self.env, self.harness, self.ask, self.seed, self.vision = env, harness, ask, seed, vision
        self.on_step, self.on_edit = on_step, on_edit
        self.sandbox, self.steps, self.t = Sandbox(), [], 0
        self.threads: dict[str, list[Step]] = defaultdict(list)
        self.refine_asked = 0        # steps that evolve_harness wants the refiner to read; 0: it was not called
        self.all_tools = {**env.tools, **TOOLS}

    # -- one turn

    def step(self) -> Step:
        """One turn of the orchestrator: observe, think, act."""
        tools = {n: t for n, t in self.all_tools.items() if not self.harness.tools or n in self.harness.tools}
        return self.turn(MAIN, fill("system", api=skill_api(self.env.tools), policy=self.harness.prompt), tools)

    def turn(self, who: str, system: str, tools: dict[str, tuple[str, dict]], depth: int = 0) -> Step:
        thread, world, h = self.threads[who], self.env.observe(), self.harness
        obs = world.text if self.wants_observation(thread) else None
        listing = f"Your harness\n{overview(h)}" if (ACTING | set(STORES)) & set(tools) else ""
        messages, listed = context(system, listing, thread, obs, world.frame if self.vision else None), tool_list(tools)
        version, reached = h.version, set(world.state["progress"]["reached"])
        reply = self.ask("agent" if who == MAIN else "subagent", messages, listed)
        self.t += 1
        t = self.t
        over = no(f"not carried out: a reply may hold {CALLS} calls")
        results = [clip(self.carry_out(c, tools, t, depth)) if i < CALLS else over for i, c in enumerate(reply.calls)]
        progress, pos = self.env.observe().state["progress"], world.state.get("player_position", {})
        place = f"{world.state.get('location', '')} ({pos.get('x')}, {pos.get('y')})"
        step = Step(t, who, version, obs, world.key, place, digest(messages, listed), reply, results, progress["presses"],
                    [m for m in progress["reached"] if m not in reached])
        thread.append(step)
        self.steps.append(step)
        self.on_step(step)
        return step

    def wants_observation(self, thread: list[Step]) -> bool:
        acted = thread and any(c.name in ACTING or c.name in self.env.tools for c in thread[-1].reply.calls)
        return not thread or acted or all(s.obs is None for s in thread[-10:])

    def carry_out(self, call: Call, tools: dict[str, tuple[str, dict]], t: int, depth: int) -> dict:
        """One call -> its result. A call that does not fit its tool's schema is answered with what was wrong."""
        if wrong := unfit(call, tools):
            return no(wrong, **({"takes": tools[call.name][1]["properties"]} if call.name in tools else {}))
        if call.name in self.env.tools:
            return self.env.act(call.name, call.args)
        if call.name in STORES:
            return self.process(STORES[call.name], call.args, t)
        return getattr(self, call.name)(call.args, t, depth)

    # -- tools: H

    def process(self, part: str, args: dict, t: int) -> dict:
        """process_memory, process_skill, process_subagent: each entry stands alone; one that fails does not stop the others."""
        results, reads = [], args["action"] == "read"
        for entry in args["entries"] or [{}] * reads:
            try:
                results.append(self.read(part, str(entry.get("id", "")), t) if reads else self.edit(part, entry, args, t))
            except EditError as e:
                results.append(no(str(e)))
        return {"success": all(r.get("success", True) is True for r in results), "results": results}

    def read(self, part: str, id: str, t: int) -> dict:
        store = getattr(self.harness, part)
        if not id:
            return {k: label(v) for k, v in list(store.items())[:ENTRIES]}
        if id not in store:
            raise EditError(f"no entry {id[:80]!r} in {part}; there are {', '.join(list(store)[:30]) or 'none'}")
        if part == "memory":
            self.harness.used(id, True, t)
        return {"id": id, **asdict(store[id])}

    def edit(self, part: str, entry: dict, args: dict, t: int) -> dict:
        op, fields = {"add": "create"}.get(args["action"], args["action"]), {k: v for k, v in entry.items() if k != "id"}
        op, id, fields = placed(self.harness, op, part, str(entry.get("id", "")), fields)
        wrong = self.dry_run(str(fields["code"]), {}) if part == "skills" and fields.get("code") else ""
        if re.search("SyntaxError|syntax parser", wrong):        # with the right args the rest may well run
            raise EditError(f"{part} {id}: the code does not parse: {wrong}")
        edit = self.harness.edit(op, part, id, fields, by="agent", step=t, why=args["reasoning"], known_tools=self.all_tools)
        self.on_edit(edit)
        return {"success": True, "id": edit.id, "op": edit.op, "version": edit.version}

    def evolve_harness(self, args: dict, t: int, depth: int) -> dict:
        self.refine_asked = args.get("num_steps", 50)
        return {"success": True, "note": "the refiner reads the trajectory once this step is complete"}

    # -- tools: code

    def game_tools(self, act: Callable[[str, dict], dict]) -> dict[str, Callable]:
        """The skill API; `act(name, args)` carries out an action, or does not."""
        names = lambda tool: self.env.tools[tool][1]["properties"]
        action = lambda n: lambda *values, **args: act(n, {"reasoning": "skill"} | dict(zip(names(n), values)) | args)
        look = lambda read: lambda: read(self.env.observe())
        return {n: action(n) for n in self.env.tools} | {n: look(read) for n, (_, read) in LOOK.items()}

    def dry_run(self, code: str, args: dict) -> str:
        """What is wrong with a skill; "" if nothing. It runs once, here and now, and its actions answer without acting."""
        calls, wrong = [], []

        def act(name: str, given: dict) -> dict:
            if len(calls) == DRY:
                raise ToolRefused("the dry run is over")
            calls.append(name)
            if problem := problems(given, self.env.tools[name][1]):
                wrong.append(f"{name} {str(given)[:200]}: {problem}")
            return {"success": True, "presses": 0, "trace": []}

        done = self.sandbox.run(code, args, self.game_tools(act), seed=self.seed)
        if done.error and len(calls) < DRY:          # code that waits for the game to change may well use up its calls
            said = (done.traceback.strip() or done.error).splitlines()[-1]
            return f"{said} at line {done.line}: {(source(code).splitlines() + [''])[max(done.line, 1) - 1].strip()}"
        return wrong[0] if wrong else ""

    def execute(self, code: str, args: dict, t: int, may_act: bool) -> dict:
        """Run code. What was pressed and seen on the way is reported also when the code fails later."""
        presses, trace = 0, []

        def act(name: str, given: dict) -> dict:
            nonlocal presses
            if not may_act:
                raise ToolRefused(f"run_code may look, not act: {name} was not carried out")
            if presses >= SKILL_PRESSES:
                raise ToolRefused(f"the limit of {SKILL_PRESSES} presses a skill is reached")
            if wrong := problems(given, self.env.tools[name][1]):
                return no(f"{name} was not carried out: {wrong}")
            result = self.env.act(name, given)
            presses += result.get("presses", 0)
            trace.extend(result.get("trace", []))
            return result

        done = self.sandbox.run(code, args, self.game_tools(act), seed=self.seed * 1_000_003 + t)
        end = {"error": done.error, "line": done.line, "traceback": done.traceback} if done.error else {"result": done.result}
        acted = {"presses": presses, "trace": trace[-40:]} if may_act else {}
        return {"success": not done.error, **acted, **({"stdout": done.stdout} if done.stdout else {}), **end}

    def run_skill(self, args: dict, t: int, depth: int) -> dict:
        id, skill = args["skill_id"], self.harness.skills.get(args["skill_id"])
        if skill is None:
            return no(f"no skill {id[:80]!r}; there are {', '.join(self.harness.skills) or 'none'}")
        if not skill.code:
            self.harness.used(id, True, t)
            text = skill.instructions or skill.description
            return {"success": True, "skill_id": id, "result": text, "note": "a text skill: follow it yourself"}
        out = {"skill_id": id} | self.execute(skill.code, args.get("args", {}), t, may_act=True)
        self.skill_used(id, out, t)
        return out

    def skill_used(self, id: str, out: dict, t: int) -> None:
        self.harness.used(id, succeeded(out), t, out.get("error") or str(out.get("result")))

    def run_code(self, args: dict, t: int, depth: int) -> dict:
        return self.execute(args["code"], args.get("args", {}), t, may_act=False)

    # -- tools: sub-agents and history

    def execute_custom_subagent(self, args: dict, t: int, depth: int) -> dict:
        """Run a sub-agent until it returns control, its turns are used up, or, one_step, its single turn is done."""
        id = args.get("subagent_id") or "inline"
        sub, inline = self.harness.subagents.get(id), {"name": "inline", **args.get("config", {})}
        if not args.get("subagent_id"):
            if wrong := problems(inline, SCHEMAS["subagents"]):
                return no(f"config: {wrong}")
            sub = SubAgent(**inline)
        if sub is None:
            return no(f"no sub-agent {id[:80]!r}; there are {', '.join(self.harness.subagents) or 'none'}")
        if depth >= 2:
            return no("a sub-agent's sub-agent may not call another")
        own = {n: s for n, s in self.all_tools.items() if n in (sub.available_tools or self.env.tools)}
        text = "\n".join(filter(None, (sub.system_instructions, sub.directive))) or sub.description or sub.name
        system = fill("subagent", name=sub.name, instructions=text, task=args.get("task") or args["reasoning"],
                      return_condition=sub.return_condition or "the task is done")
        limit = 1 if sub.handler_type == "one_step" else min(int(sub.max_turns), args.get("max_steps", 50))
        who, turns, final = f"{id}@{t}", 0, ""
        while turns < limit and not final:
            step = self.turn(who, system, {**own, "return_control": RETURN}, depth + 1)
            turns += 1
            final = next((c.args["reasoning"] for c, r in zip(step.reply.calls, step.results)
                          if c.name == "return_control" and r["success"]), "")
        if args.get("subagent_id"):
            self.harness.used(id, bool(final) or limit == 1, t, f"used up its {limit} turns")
        del self.threads[who]
        return {"success": True, "subagent_name": sub.name, "turns_taken": turns, "hit_safety_cap": not final and limit > 1,
                "final_reasoning": final or step.reply.text}

    def return_control(self, args: dict, t: int, depth: int) -> dict:
        return {"success": True} if args["reasoning"].strip() else no("say what came of the task")

    def process_trajectory_history(self, args: dict, t: int, depth: int) -> dict:
        first, last = args["window_range"]
        window = [s.line() for s in self.steps if first <= s.t <= last][-100:]
        if not window:
            return no(f"no steps {first} to {last}; there are 1 to {t - 1}")
        text = fill("history", first=str(first), last=str(last), window="\n".join(window), directive=args["directive"])
        return {"success": True, "analysis": self.ask("history", [{"role": "user", "content": text}], []).text}
