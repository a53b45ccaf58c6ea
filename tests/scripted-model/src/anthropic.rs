//! Messages: `POST /v1/messages`, as events or whole.

use serde_json::{Value, json};

use crate::{Dialect, Message, Reply, Request, Usage};

pub(crate) struct Anthropic;

impl Dialect for Anthropic {
    fn name(&self) -> &'static str {
        "claude"
    }

    fn offers_tools(&self, asked: &Value) -> bool {
        asked["tools"].as_array().is_some_and(|tools| !tools.is_empty())
    }

    fn messages(&self, asked: &Value) -> Vec<Message> {
        asked["messages"].as_array().into_iter().flatten().map(message).collect()
    }

    fn is_streamed(&self, request: &Request) -> bool {
        request.body["stream"].as_bool() == Some(true)
    }

    fn events(&self, request: &Request, reply: &Reply, usage: &Usage) -> Vec<String> {
        let event = |kind: &str, mut data: Value| {
            data["type"] = json!(kind);
            format!("event: {kind}\ndata: {data}\n\n")
        };
        let mut head = answer(request, reply, usage);
        head["content"] = json!([]);
        head["stop_reason"] = Value::Null;
        let mut events = vec![event("message_start", json!({"message": head}))];
        for (index, block) in blocks(reply).into_iter().enumerate() {
            let (start, delta) = match block["type"].as_str() {
                Some("text") => (
                    json!({"type": "text", "text": ""}),
                    json!({"type": "text_delta", "text": block["text"]}),
                ),
                _ => {
                    let mut start = block.clone();
                    start["input"] = json!({});
                    (start, json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}))
                }
            };
            events.push(event("content_block_start", json!({"index": index, "content_block": start})));
            events.push(event("content_block_delta", json!({"index": index, "delta": delta})));
            events.push(event("content_block_stop", json!({"index": index})));
        }
        let stop = json!({"stop_reason": stop_reason(reply), "stop_sequence": null});
        let used = json!({"output_tokens": usage.output_tokens});
        events.push(event("message_delta", json!({"delta": stop, "usage": used})));
        events.push(event("message_stop", json!({})));
        events
    }

    fn whole(&self, request: &Request, reply: &Reply, usage: &Usage) -> Value {
        answer(request, reply, usage)
    }

    fn error(&self, status: u16) -> Value {
        let kind = match status {
            401 => "authentication_error",
            429 => "rate_limit_error",
            529 => "overloaded_error",
            _ => "api_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": format!("scripted {status}")}})
    }
}

fn message(message: &Value) -> Message {
    let mut seen = Message::default();
    if message["role"] != "user" {
        return seen;
    }
    if let Some(text) = message["content"].as_str() {
        seen.user_text = text.into();
    }
    for part in message["content"].as_array().into_iter().flatten() {
        match part["type"].as_str() {
            Some("tool_result") => seen.tool_results += 1,
            Some("text") => seen.user_text.push_str(part["text"].as_str().unwrap_or_default()),
            _ => {}
        }
    }
    seen
}

fn blocks(reply: &Reply) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !reply.text.is_empty() {
        blocks.push(json!({"type": "text", "text": reply.text}));
    }
    for call in &reply.calls {
        blocks.push(json!({"type": "tool_use", "id": id("toolu"), "name": call.name, "input": call.input}));
    }
    blocks
}

fn stop_reason(reply: &Reply) -> &'static str {
    if reply.calls.is_empty() { "end_turn" } else { "tool_use" }
}

fn answer(request: &Request, reply: &Reply, usage: &Usage) -> Value {
    json!({
        "id": id("msg"), "type": "message", "role": "assistant", "model": request.body["model"],
        "content": blocks(reply), "stop_reason": stop_reason(reply), "stop_sequence": null,
        "usage": {
            "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        },
    })
}

/// Different each time.
pub(crate) fn id(kind: &str) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{kind}_scripted_{:08}", NEXT.fetch_add(1, Ordering::Relaxed))
}
