"""Every way in which servers fail, in the shapes of their own bodies, and what the client must do about it."""
import json

from fake_server import HANG_UP, in_5_seconds, said

PRESS = said("", ("press", '{"button": "a"}'))


def sizes(t) -> list[int]:
    """How long each request's messages were."""
    return [len(json.dumps(b["messages"])) for b in t.sent]


def gemini(message: str, details: list | None = None, status: int = 429) -> tuple:
    return status, [{"error": {"code": status, "message": message, "status": "RESOURCE_EXHAUSTED", **({"details": details} if details else {})}}]


def oai(status: int, message: str, **more: object) -> tuple:
    return status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **more}}


INFO = [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "PerMinute"}]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36.429760048s"}]
DAY = [{"@type": "x.QuotaFailure", "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}, *INFO[1:]]
LONG = [("OpenAI", oai(400, "This model's maximum context length is 128000 tokens.", code="context_length_exceeded")),
        ("OpenAI, new text", oai(400, "Your input exceeds the context window of this model")),
        ("Anthropic", (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 213462 tokens > 200000 maximum"}})),
        ("Anthropic, 413 in HTML", (413, "<html><body>request_too_large</body></html>")),
        ("Gemini", gemini("The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)", status=400)),
        ("vLLM", (400, {"error": {"message": "This model's maximum context length is 400000 tokens. However, your prompt contains at least 400001 input tokens", "type": "BadRequestError", "param": "input_tokens", "code": 400}})),
        ("llama.cpp", (400, {"error": {"code": 400, "message": "request (40031 tokens) exceeds the available context size (40960 tokens), try increasing it", "type": "exceed_context_size_error", "n_ctx": 40960}})),
        ("LM Studio", (400, {"error": "tokens to keep from the initial prompt is greater than the context length"})),
        ("litellm", (400, {"error": {"message": "litellm.ContextWindowExceededError: context window exceeded", "code": "400"}})),
        ("Groq", oai(400, "Please reduce the length of the messages or completion.")), ("xAI", oai(400, "maximum prompt length is 131072")),
        ("Cerebras, no body", (400, b""))]

# (what the server answers, the answers, requests expected, how it ends: calls, or the start of the error, and what else must hold)
CASES = [
    ("429, Retry-After 2", [(429, {"error": {"message": "slow", "code": "rate_limit_exceeded"}}, {"Retry-After": "2"}), PRESS], 2, 1, lambda t: 2 <= t.slept[0] <= 3),
    ("429, retry-after-ms 1500", [(429, {"error": {"message": "slow"}}, {"retry-after-ms": "1500"}), PRESS], 2, 1, lambda t: 1.5 <= t.slept[0] <= 2.5),
    ("429, Retry-After as a date", [(429, {"error": "slow"}, {"Retry-After": in_5_seconds}), PRESS], 2, 1, lambda t: 3 <= t.slept[0] <= 8),
    ("429, Retry-After 3600", [(429, {"error": "slow"}, {"Retry-After": "3600"})], 1, "asks to wait 3600 s", lambda t: not t.slept),
    ("429, Gemini's array with RetryInfo", [gemini("Quota exceeded", INFO), PRESS], 2, 1, lambda t: 36.4 < t.slept[0] < 37.5),
    ("429, Gemini, delay in the text only", [gemini("Please retry in 7.5s."), PRESS], 2, 1, lambda t: 7.5 <= t.slept[0] <= 8.5),
    ("429, Gemini, a day's quota", [gemini("Quota exceeded", DAY)], 3, "Quota exceeded", lambda t: len(t.slept) == 2),
    ("429, insufficient_quota", [(429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}})], 1, "You exceeded", lambda t: not t.slept),
    ("429, credit_balance_exhausted", [(429, {"error": {"message": "no", "type": "insufficient_quota", "code": "credit_balance_exhausted"}})], 1, "no", None),
    ("402", [(402, {"error": {"code": 402, "message": "Insufficient credits"}})], 1, "Insufficient credits", None),
    ("401 that echoes the key", [(401, {"error": {"message": "Incorrect API key provided: sk-planted-0123456789"}})], 1, "Incorrect API key provided: [key]", None),
    ("404, FastAPI", [(404, {"detail": "Not Found"})], 1, "Not Found", None),
    ("400, LM Studio's string", [(400, {"error": "something is odd"})], 1, "something is odd", None),
    ("422, a list of details", [(422, {"detail": [{"loc": ["body"], "msg": "field required"}]})], 1, "field required", None),
    ("500, text/plain", [(500, "Internal Server Error"), PRESS], 2, 1, None),
    ("500 for ever, the same body", [(500, {"error": {"message": "boom"}})], 3, "boom", lambda t: len(t.slept) == 2),
    ("502, an HTML page", [(502, "<html><head><style>x{}</style></head><h1>Bad gateway</h1></html>"), PRESS], 2, 1, lambda t: "Bad gateway" in t.log[0]),
    ("503, loading, three times", [(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})] * 3 + [PRESS], 4, 1, None),
    ("529, overloaded", [(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}), PRESS], 2, 1, None),
    ("524, Cloudflare, for ever", [(524, "timeout")], 8, "timeout", lambda t: max(t.slept) <= 61),
    ("503, x-should-retry: false", [(503, {"error": "no"}, {"x-should-retry": "false"})], 1, "no", None),
    ("302", [(302, "", {"Location": "http://127.0.0.1:1/"})], 1, "302", None),
    ("the connection is closed once", [HANG_UP, PRESS], 2, 1, lambda t: not t.slept),
    ("the connection is closed, always", [HANG_UP], 3, "does not answer", None),
    ("500, unparsable arguments in the history", [oai(500, "Failed to parse tool call arguments as JSON"), PRESS], 2, 1, lambda t: not t.slept),
    ("500, the same for ever", [oai(500, "Failed to parse tool call arguments as JSON")], 2, "Failed to parse", lambda t: not t.slept),
    ("500, pydantic", [(500, {"error": {"message": "1 validation error for ..."}}), PRESS], 2, 1, lambda t: not t.slept),
    ("500, no mmproj", [oai(500, "image input is not supported - hint: provide the mmproj"), PRESS], 2, 1, lambda t: not t.slept and "image_url" not in json.dumps(t.sent[1])),
    ("400, not a multimodal model", [oai(400, "smol is not a multimodal model"), PRESS], 2, 1, lambda t: not t.api.pictures),
    ("200, OpenRouter: error, choices null", [{"choices": None, "error": {"message": "Provider returned error", "code": 429, "metadata": {"raw": "Too Many Requests"}}}, PRESS], 2, 1, lambda t: "Too Many" in t.log[0]),
    ("200, OpenRouter: error, no choices", [{"error": {"code": 502, "message": "bad"}}, PRESS], 2, 1, None),
    ("200, error with a billing code", [{"error": {"code": 402, "message": "Insufficient credits"}}], 1, "Insufficient credits", None),
    ("200, error inside the choice", [{"choices": [{"finish_reason": "error", "error": {"code": 503, "message": "gone"}, "message": {"content": ""}}]}, PRESS], 2, 1, None),
    ("200, an HTML page", ["<html>hi</html>", PRESS], 2, 1, None),
    ("200, blanks before the JSON", [b"\n \n  " + json.dumps(PRESS).encode(), PRESS], 1, 1, None),
    ("200, data: [DONE] glued on", [json.dumps(PRESS) + "\ndata: [DONE]"], 1, 1, None),
    ("200, no choices, for ever", [{"id": "x", "choices": []}], 3, 0, lambda t: "no answer" in t.reply.note),
    ("200, content_filter", [said(None, finish="content_filter"), PRESS], 2, 1, lambda t: "left out" in json.dumps(t.sent[1]) and "observation" in json.dumps(t.sent[1])),
    ("200, SAFETY, for ever", [said(None, finish="SAFETY")], 2, 0, lambda t: "blocked" in t.reply.note),
    ("200, MALFORMED_FUNCTION_CALL", [said(None, finish="MALFORMED_FUNCTION_CALL")], 1, 0, lambda t: "could not be read" in t.reply.note),
    ("200, empty, 40 tokens used", [said("")], 1, 0, lambda t: "could not be read" in t.reply.note),
    ("200, cut off in a call", [said("", ("press", '{"'), finish="length")], 1, 1, lambda t: t.reply.calls[0].args == '{"' and t.reply.message["tool_calls"][0]["function"]["arguments"] == "{}"),
    ("200, cut off in the text", [said("I think", finish="length")], 1, 0, lambda t: "cut off" in t.reply.note and t.api.output == 16384),
    ("400, max_tokens refused", [oai(400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", param="max_tokens"), PRESS], 2, 1, lambda t: "max_completion_tokens" in t.sent[1] and "max_tokens" not in t.sent[1]),
    ("400, both names refused", [oai(400, "x", param="max_tokens"), oai(400, "x", param="max_completion_tokens"), PRESS], 3, 1, lambda t: not [k for k in t.sent[2] if k.startswith("max_")]),
    ("400, refused for ever", [oai(400, "x", param="max_tokens")], 2, "x", None),
    ("400, tools want reasoning_effort none", [oai(400, "Function tools with reasoning_effort are not supported", param="reasoning_effort"), PRESS], 2, 1, lambda t: t.sent[1]["reasoning_effort"] == "none"),
    ("400, Gemini: Unknown name", [gemini('Invalid JSON payload. Unknown name "stream": Cannot find field.', status=400), PRESS], 2, 1, lambda t: "stream" not in t.sent[1]),
    ("400, max_tokens too large", [oai(400, "max_tokens is too large: 8192. This model supports at most 4096 completion tokens"), PRESS], 2, 1, lambda t: t.sent[1]["max_tokens"] == 4096),
    ("400, more than vLLM's context", [oai(400, "max_completion_tokens=8192 cannot be greater than max_model_len=4096. Please request fewer output tokens."), PRESS], 2, 1, lambda t: t.sent[1]["max_tokens"] == 4096),
    ("400, more than its context, then cut off", [oai(400, "max_completion_tokens=8192 cannot be greater than max_model_len=4096. Please request fewer output tokens."), said("I think", finish="length")], 2, 0, lambda t: t.sent[1]["max_tokens"] == t.api.output == 4096),
    ("400, vLLM without a tool parser", [oai(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'), said('{"call": {"tool": "press", "arguments": {"button": "b"}}}')], 2, 1, lambda t: "response_format" in t.sent[1] and "tools" not in t.sent[1]),
    ("400, thought_signature", [gemini("Function call is missing a thought_signature in functionCall parts", status=400)] * 2 + [PRESS], 3, 1, None),
    ("400, overflow for ever", [LONG[0][1]], 4, "maximum context length", lambda t: sizes(t)[-1] < sizes(t)[0]),
    *[(f"overflow: {who}", [answer, PRESS], 2, 1, lambda t: sizes(t)[1] < 0.7 * sizes(t)[0]) for who, answer in LONG],
]
