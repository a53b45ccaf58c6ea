"""A model that always does the same: it writes a file with a tool, reads it with another, and says what it has read.

Speaks as much of Anthropic's Messages API, as a stream, as a coding agent needs. Which step is next follows from the number of
tool results in the conversation, so that a request that is repeated gets the same answer. Prints its port.
"""

import http.server
import json
import sys

STEPS = [
    ("mcp__cubicle__write_file", {"path": "made-by-claude", "content": "42"}),
    ("mcp__cubicle__execute", {"command": "cat made-by-claude"}),
]


def results(messages):
    blocks = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    return [block for block in blocks if block.get("type") == "tool_result"]


def text_of(result):
    content = result.get("content", "")
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def events(asked):
    done = results(asked["messages"])
    offered = {tool["name"] for tool in asked.get("tools", [])}
    usage = {"input_tokens": 1, "output_tokens": 1}
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"], "content": []}
    yield "message_start", {"message": start | {"stop_reason": None, "stop_sequence": None, "usage": usage}}
    if len(done) < len(STEPS) and STEPS[len(done)][0] in offered:
        name, arguments = STEPS[len(done)]
        block = {"type": "tool_use", "id": f"toolu_{len(done)}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        reason = "tool_use"
    else:
        found = "42" in text_of(done[-1]) if done else False
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": f"the tool said {'42' if found else 'nothing'}"}
        reason = "end_turn"
    yield "content_block_start", {"index": 0, "content_block": block}
    yield "content_block_delta", {"index": 0, "delta": delta}
    yield "content_block_stop", {"index": 0}
    yield "message_delta", {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    yield "message_stop", {}


class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        if "count_tokens" in self.path:
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"input_tokens": 1}')
            return
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for name, data in events(asked):
            self.wfile.write(f"event: {name}\ndata: {json.dumps({'type': name} | data)}\n\n".encode())

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
print(server.server_port, flush=True)
sys.stdout.close()
server.serve_forever()
