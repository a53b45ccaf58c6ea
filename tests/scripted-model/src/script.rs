//! What the model is to say, and where it is to fail.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Message, Reply};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// In order. A step with tools ends in their calls, one without ends the turn; the last one is said again and again.
    pub steps: Vec<Step>,
    /// Other steps for what is asked later in the same conversation.
    #[serde(default)]
    pub conversations: Vec<Conversation>,
    /// What the first requests get instead of an answer.
    #[serde(default)]
    pub faults: Vec<Fault>,
    #[serde(default)]
    pub usage: Usage,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    #[serde(default)]
    pub text: String,
    /// Each by the name of a dialect: `claude`, `gemini`.
    #[serde(default)]
    pub tools: Vec<BTreeMap<String, Call>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub name: String,
    pub input: Value,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conversation {
    /// What the user's message contains that begins it.
    pub if_asked: String,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// An answer with this status.
    Status {
        status: u16,
        #[serde(default = "one")]
        times: usize,
        #[serde(default)]
        retry_after: u64,
    },
    /// A stream that begins and goes on no more.
    Hang {
        #[serde(default = "one")]
        times: usize,
    },
    /// A stream that ends in the middle.
    Cut {
        #[serde(default = "one")]
        times: usize,
    },
    /// A stream with an event that is not JSON.
    WrongJson {
        #[serde(default = "one")]
        times: usize,
    },
}

fn one() -> usize {
    1
}

impl Fault {
    pub(crate) fn times(&self) -> usize {
        match self {
            Self::Status { times, .. }
            | Self::Hang { times }
            | Self::Cut { times }
            | Self::WrongJson { times } => *times,
        }
    }
}

/// What each answer says that it used.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Self { input_tokens: 100, output_tokens: 20 }
    }
}

impl Script {
    pub(crate) fn reply(&self, dialect: &str, messages: &[Message]) -> Reply {
        let results = |from: usize| messages[from..].iter().map(|message| message.tool_results).sum();
        let begun = self.conversations.iter().find_map(|conversation| {
            let asked = |message: &Message| message.user_text.contains(&conversation.if_asked);
            Some((&conversation.steps, messages.iter().rposition(asked)?))
        });
        match begun {
            Some((steps, at)) => reply(steps, dialect, results(at)),
            None => reply(&self.steps, dialect, results(0)),
        }
    }
}

/// The step after so many tool results.
fn reply(steps: &[Step], dialect: &str, mut results: usize) -> Reply {
    for step in steps {
        let calls: Vec<_> = step.tools.iter().filter_map(|tool| tool.get(dialect)).cloned().collect();
        if !calls.is_empty() && results >= calls.len() {
            results -= calls.len();
            continue;
        }
        return Reply { text: step.text.clone(), calls };
    }
    Reply { text: "there is no more in the script".into(), calls: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_is_seen_from_the_conversation() {
        let script: Script = serde_json::from_str(
            r#"{"steps": [
                {"text": "one", "tools": [{"claude": {"name": "Bash", "input": {}}}, {"claude": {"name": "Bash", "input": {}}}]},
                {"text": "two"}],
              "conversations": [{"if_asked": "again", "steps": [{"text": "three"}]}]}"#,
        )
        .unwrap();
        let user = |text: &str| Message { user_text: text.into(), tool_results: 0 };
        let result = || Message { user_text: String::new(), tool_results: 1 };
        let said = |messages: &[Message]| script.reply("claude", messages).text;
        assert_eq!(said(&[user("go")]), "one");
        assert_eq!(said(&[user("go"), result()]), "one");
        assert_eq!(said(&[user("go"), result(), result()]), "two");
        assert_eq!(said(&[user("go"), result(), result(), user("and again")]), "three");
        assert_eq!(script.reply("gemini", &[user("go")]).text, "one");
    }
}
