//! `POST /v1beta/models/MODEL:streamGenerateContent?alt=sse`, and `:generateContent` for what is not streamed.

use serde_json::{Value, json};

use crate::anthropic::id;
use crate::{Dialect, Message, Reply, Request, Usage};

pub(crate) struct Gemini;

impl Dialect for Gemini {
    fn name(&self) -> &'static str {
        "gemini"
    }

    fn offers_tools(&self, asked: &Value) -> bool {
        let tools = asked["tools"].as_array().into_iter().flatten();
        tools
            .filter_map(|tool| tool["functionDeclarations"].as_array())
            .any(|functions| !functions.is_empty())
    }

    fn messages(&self, asked: &Value) -> Vec<Message> {
        asked["contents"].as_array().into_iter().flatten().map(message).collect()
    }

    fn is_streamed(&self, request: &Request) -> bool {
        request.path.contains(":streamGenerateContent")
    }

    fn events(&self, _: &Request, reply: &Reply, usage: &Usage) -> Vec<String> {
        let parts = parts(reply);
        let last = parts.len().saturating_sub(1);
        let event = |(index, part): (usize, Value)| {
            format!("data: {}\r\n\r\n", answer(&[part], index == last, usage))
        };
        parts.into_iter().enumerate().map(event).collect()
    }

    fn whole(&self, _: &Request, reply: &Reply, usage: &Usage) -> Value {
        answer(&parts(reply), true, usage)
    }

    fn error(&self, status: u16) -> Value {
        let name = match status {
            401 => "UNAUTHENTICATED",
            429 => "RESOURCE_EXHAUSTED",
            503 => "UNAVAILABLE",
            _ => "INTERNAL",
        };
        json!({"error": {"code": status, "message": format!("scripted {status}"), "status": name}})
    }
}

fn message(message: &Value) -> Message {
    let mut seen = Message::default();
    for part in message["parts"].as_array().into_iter().flatten() {
        if part.get("functionResponse").is_some() {
            seen.tool_results += 1;
        } else if message["role"] == "user" {
            seen.user_text.push_str(part["text"].as_str().unwrap_or_default());
        }
    }
    seen
}

fn parts(reply: &Reply) -> Vec<Value> {
    let mut parts = vec![json!({"text": reply.text})];
    for call in &reply.calls {
        parts.push(json!({"functionCall": {"id": id("call"), "name": call.name, "args": call.input}}));
    }
    parts
}

fn answer(parts: &[Value], is_last: bool, usage: &Usage) -> Value {
    let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
    if is_last {
        candidate["finishReason"] = json!("STOP");
    }
    json!({
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": usage.input_tokens, "candidatesTokenCount": usage.output_tokens,
            "totalTokenCount": usage.input_tokens + usage.output_tokens,
        },
        "modelVersion": "scripted",
    })
}
