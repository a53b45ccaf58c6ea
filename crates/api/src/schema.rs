//! What the OpenAPI document says of types that the model owns. The model knows no wire, so that they are described here;
//! tests compare the two.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Command {
    Shell(String),
    Argv(Vec<String>),
}

/// Written by hand, because neither form may be empty.
impl PartialSchema for Command {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        OneOfBuilder::new()
            .description(Some("One string for the shell, or a list: a program and its arguments."))
            .item(text().pattern(Some(r"\S")))
            .item(ArrayBuilder::new().items(text()).min_items(Some(1)))
            .into()
    }
}

impl ToSchema for Command {}

/// Nothing, a text, or what is sent later.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stdin {
    Closed,
    Text(String),
    Stream,
}

/// As the kernel reported it.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
    Oom,
    TimedOut,
    Unknown,
    /// There was no process.
    NotStarted,
}

/// A name with or without `SIG`, or a number.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum SignalName {
    Name(String),
    Number(i32),
}

/// What a sandbox may use; absent takes the default. Sizes are bytes.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    #[schema(minimum = 8388608)]
    memory: Option<u64>,
    /// Thousandths of a core.
    #[schema(minimum = 10)]
    millicpus: Option<u64>,
    #[schema(minimum = 4)]
    pids: Option<u64>,
    #[schema(minimum = 65536)]
    workspace: Option<u64>,
    #[schema(minimum = 65536)]
    tmp: Option<u64>,
    #[schema(minimum = 16)]
    open_files: Option<u64>,
    #[schema(minimum = 1)]
    wall_seconds: Option<u64>,
    #[schema(minimum = 65536)]
    journal: Option<u64>,
}

/// What a tenant may have at one time; absent means as much as there is.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Quota {
    leases: Option<u64>,
    /// Thousandths of a core, of all leases together.
    millicpus: Option<u64>,
    /// Bytes, of all leases together.
    memory: Option<u64>,
    execs: Option<u64>,
}

/// What a tenant has now.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Usage {
    leases: u64,
    millicpus: u64,
    memory: u64,
    execs: u64,
}

/// What a template says. Everything has a default.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Recipe {
    root: Root,
    trust: Trust,
    /// Absent takes what the trust asks for.
    isolation: Option<Isolation>,
    limits: Limits,
    env: BTreeMap<String, String>,
    reuse: Reuse,
    pool: Pool,
    /// The commands of further languages, with `{file}` where the code's file goes.
    #[schema(example = json!({"ruby": ["ruby", "{file}"]}))]
    languages: BTreeMap<String, Vec<String>>,
    /// Python packages that code finds which names none of its own.
    #[schema(example = json!(["numpy", "pandas>=2"]))]
    requirements: Vec<String>,
    /// A policy, see the guide on egress; absent takes what the operator says for a template of this name.
    #[schema(example = "allow @python\nallow https://api.example.org")]
    egress: Option<String>,
}

/// The host's own `/usr`, or a directory that holds a root filesystem.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Root {
    #[default]
    Host,
    Directory(String),
}

/// Trust in the code. High trust is the least isolation.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Trust {
    Low,
    #[default]
    Medium,
    High,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Isolation {
    Landlock,
    Namespaces,
    Gvisor,
}

/// What becomes of a sandbox when its lease ends.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reuse {
    #[default]
    Never,
    SameUser,
    EnvCache,
}

/// Ready sandboxes: when nothing happens, always, and at most.
#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Pool {
    size: u32,
    min_idle: u32,
    ceiling: u32,
}

impl Default for Pool {
    fn default() -> Self {
        let cubicle_model::pool::PoolSpec { size, min_idle, ceiling } = Default::default();
        Self { size, min_idle, ceiling }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TaskStatus {
    Pending,
    Submitted,
    Running,
    Success,
    Failed,
    Timeout,
    Cancelled,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum LeaseStatus {
    Queued,
    Active,
    Expired,
    Released,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Admission {
    Warm,
    Cold,
    Queued,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LeaseEnd {
    Released,
    TimeToLive,
    SandboxEnded,
    CouldNotBeMade,
    Revoked,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SaidBy {
    Template,
    Lease,
    Exec,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    Read,
    Run,
    Manage,
    ActForOthers,
    Admin,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::Value;

    use super::*;
    use cubicle_model as model;

    /// Whatever the model writes is what the document says, and nothing else.
    fn same<Described: Serialize + DeserializeOwned>(values: impl IntoIterator<Item = impl Serialize>) {
        for value in values {
            let written: Value = serde_json::to_value(value).unwrap();
            let read: Described = serde_json::from_value(written.clone())
                .unwrap_or_else(|error| panic!("{written} is not as it is described: {error}"));
            assert_eq!(serde_json::to_value(read).unwrap(), written);
        }
    }

    #[test]
    fn what_the_model_writes_is_what_the_document_says() {
        same::<Command>([model::Command::Shell("a".into()), model::Command::Argv(vec!["a".into()])]);
        same::<Stdin>([model::Stdin::Closed, model::Stdin::Stream, model::Stdin::Text("a".into())]);
        same::<Exit>([model::Exit::Code(1), model::Exit::Signal(9)]);
        same::<Exit>([model::Exit::Oom, model::Exit::TimedOut, model::Exit::Unknown]);
        same::<Limits>([
            model::LimitRequest::default(),
            model::LimitRequest { memory: Some(1), ..Default::default() },
        ]);
        same::<Quota>([model::Quota::default()]);
        same::<Usage>([model::Usage::default()]);
        same::<Recipe>([model::template::Recipe::default()]);
        same::<Root>([model::Root::Host, model::Root::Directory("/x".into())]);
        same::<Trust>([model::Trust::Low, model::Trust::Medium, model::Trust::High]);
        same::<Isolation>(model::Isolation::ALL);
        same::<Reuse>([model::Reuse::Never, model::Reuse::SameUser, model::Reuse::EnvCache]);
        same::<LeaseStatus>(model::LeaseStatus::ALL);
        same::<TaskStatus>(model::task::TaskStatus::ALL);
        same::<Admission>(model::lease::Admission::ALL);
        same::<LeaseEnd>(model::lease::LeaseEnd::ALL);
        same::<SaidBy>(model::egress::SaidBy::ALL);
        same::<Scope>(model::Scope::ALL);
    }

    #[test]
    fn the_least_of_every_limit_is_what_the_document_says() {
        let RefOr::T(schema) = Limits::schema() else {
            panic!("a struct has a schema of its own");
        };
        let schema = serde_json::to_value(schema).unwrap();
        for (name, limit) in schema["properties"].as_object().unwrap() {
            let least = limit["minimum"].as_u64().unwrap();
            let parse = |value: u64| {
                let asked = serde_json::from_value(serde_json::json!({ name.as_str(): value })).unwrap();
                model::Limits::parse(&asked)
            };
            assert!(parse(least).is_ok() && parse(least - 1).is_err(), "{name} {least}");
        }
    }

    #[test]
    fn a_recipe_without_a_word_is_the_same_on_both_sides() {
        let described = serde_json::to_value(Recipe::default()).unwrap();
        assert_eq!(described, serde_json::to_value(model::template::Recipe::default()).unwrap());
    }
}
