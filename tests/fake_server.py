"""A loopback server for the tests: it answers from a list or with a function, and checks every request like the strictest vendor."""
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HANG_UP, DRIP = object(), object()   # close the connection with no answer; a body of blanks without an end
TOOL = {"type": "function", "function": {"name": "press", "description": "Press a button.", "parameters": {
    "type": "object", "properties": {"button": {"type": "string", "enum": ["a", "b"]}, "times": {"type": "integer"},
                                     "path": {"type": "array", "items": {"type": "string"}}},
    "required": ["button"], "additionalProperties": False}}}


def strict(body: dict) -> list[str]:
    """What a strict server would refuse in a request."""
    wrong, ids, messages = [], set(), body["messages"]
    known = {"model", "messages", "stream", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "response_format", "reasoning_effort"}
    wrong += [f"unknown field {k}" for k in set(body) - known] + ["empty tools"] * (body.get("tools") == []) + ["no messages"] * (not messages)
    i = 0
    while i < len(messages):
        m = messages[i]
        role, content = m["role"], m.get("content")
        if "endpoint" in m:
            wrong.append(f"{i}: the endpoint's name was sent")
        if role == "user":
            parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
            wrong += [f"{i}: empty user text"] * any(p["type"] == "text" and not p["text"].strip() for p in parts)
        elif not isinstance(content, str):
            wrong.append(f"{i}: {role} content is no string")
        if role == "system" and i:
            wrong.append(f"{i}: a second system message")
        if role == "assistant" and not content and not m.get("tool_calls"):
            wrong.append(f"{i}: an empty assistant message")
        if role == "tool":
            wrong.append(f"{i}: a tool message that answers no call")
        for n, call in enumerate(m.get("tool_calls", []), 1):
            if call["id"] in ids or not call["id"]:
                wrong.append(f"{i}: id {call['id']!r} missing or used before")
            ids.add(call["id"])
            try:
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
            except (ValueError, AssertionError, TypeError):
                wrong.append(f"{i}: broken arguments {call['function']['arguments']!r}")
            answer = messages[i + n] if i + n < len(messages) else {}
            if answer.get("role") != "tool" or answer.get("tool_call_id") != call["id"]:
                wrong.append(f"{i}: call {call['id']} is not answered right after")
            elif answer.get("name") != call["function"]["name"] or not isinstance(answer["content"], str):
                wrong.append(f"{i}: the tool message has no name or no string")
        i += 1 + len(m.get("tool_calls", []))
    return wrong


def said(content: object = "", *calls: object, finish: object = "stop", usage: object = None, **more: object) -> dict:
    """A reply's body. calls: (name, arguments) or a whole tool_calls entry."""
    made = [c if not isinstance(c, tuple) else {"id": f"id{i}", "type": "function", "function": {"name": c[0], "arguments": c[1]}} for i, c in enumerate(calls)]
    return {"choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content} | ({"tool_calls": made} if made else {}) | more}],
            "usage": usage or {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}}


class Server:
    """answers: bodies (200), (status, body) or (status, body, headers), HANG_UP; the last one repeats. Or a function of the request."""

    def __init__(self, answers: list | Callable[[dict], object]):
        self.answers, self.requests, self.headers, self.wrong, self.lock = answers, [], [], [], threading.Lock()

    def answer(self, body: dict, headers: dict) -> object:
        with self.lock:
            self.requests.append(body)
            self.headers.append(headers)
            self.wrong += strict(body)
            return self.answers(body) if callable(self.answers) else self.answers[min(len(self.requests), len(self.answers)) - 1]


@contextmanager
def serving(answers: list | Callable[[dict], object]) -> Iterator[Server]:
    server = Server(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version, wbufsize = "HTTP/1.1", 65536     # one packet an answer

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given = server.answer(body, dict(self.headers))
            if given is HANG_UP:
                self.close_connection = True
                return
            given = (200, b"", {"Content-Length": "1000000"}) if given is DRIP else given
            status, data, headers = (*given, {})[:3] if isinstance(given, tuple) else (200, given, {})
            data = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass") if isinstance(data, str) else json.dumps(data).encode()
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(data))} | headers).items():
                self.send_header(name, value() if callable(value) else value)       # a date is made when it is sent
            self.end_headers()
            self.wfile.write(data)
            with suppress(OSError):          # the client hangs up
                while headers.get("Content-Length") == "1000000":
                    self.wfile.write(b" ")
                    self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.handle_error = lambda *_: None                   # a client that hangs up is part of the tests, no news
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def in_5_seconds() -> str:
    import time
    return formatdate(time.time() + 6, usegmt=True)
