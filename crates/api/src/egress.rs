//! What sandboxes may reach, and what they have reached.

use std::collections::BTreeMap;

use cubicle_model::egress::{self as model, Policy, SaidBy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;

/// What a lease says of egress; what it does not say is its template's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseEgress {
    /// A policy as text, see the guide on egress. Absent takes the template's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "allow @python\nallow https://api.example.org")]
    pub policy: Option<Policy>,
    /// Allow what no rule denies, and note it: `minimal_policy` says what would have been needed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub record: bool,
}

/// Secrets that are put into a sandbox, by their names: the last resort, for programs that cannot do with what the gateway
/// adds to their requests. The receipt of the sandbox says so. Needs the scope `manage`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GivenSecrets {
    /// As files in `/var/secrets`, which the workload cannot change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(example = json!(["OPENAI_API_KEY"]))]
    pub files: Vec<String>,
    /// As variables of the environment, which whatever runs inside can read: the name of the variable, and of the secret.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// What holds for a lease, and what it has used so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Egress {
    #[schema(value_type = String, example = "allowlist\nallow @python\n")]
    pub policy: Policy,
    /// Whose policy it is. An exec's holds while the exec runs.
    #[schema(value_type = schema::SaidBy)]
    pub said_by: SaidBy,
    pub record: bool,
    pub bill: Bill,
    /// Of a recorded lease: the smallest policy for what it reached. Gone with the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub minimal_policy: Option<Policy>,
}

/// What was reached, and what was refused.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Bill {
    pub lines: Vec<BillLine>,
    pub denials: Vec<Denial>,
    /// Attempts that found no line left, as their number is bounded.
    pub unlisted: u64,
}

/// Traffic with one host and port, by one method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BillLine {
    pub host: String,
    pub port: u16,
    /// Of requests that the gateway reads; a tunnel has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Requests or tunnels.
    pub requests: u64,
    /// Those that came to nothing: no connection, a bad certificate, a broken answer.
    pub failures: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// All of them together.
    pub duration_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Denial {
    /// As the client named it.
    pub target: String,
    /// What refused it.
    pub rule: String,
    pub count: u64,
}

impl From<model::Bill> for Bill {
    fn from(bill: model::Bill) -> Self {
        let line = |line: model::BillLine| BillLine {
            host: line.host.to_string(),
            port: line.port,
            method: line.method,
            requests: line.requests,
            failures: line.failures,
            bytes_sent: line.bytes_sent,
            bytes_received: line.bytes_received,
            duration_ms: line.milliseconds,
        };
        let denial =
            |denial: model::Denial| Denial { target: denial.target, rule: denial.rule, count: denial.count };
        Self {
            lines: bill.lines.into_iter().map(line).collect(),
            denials: bill.denials.into_iter().map(denial).collect(),
            unlisted: bill.unlisted,
        }
    }
}

/// A named list of rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Bundle {
    #[schema(example = "python")]
    pub name: String,
    /// As they would stand in a policy. Without a rule it is an error to use it.
    pub rules: String,
}

/// What to explain: a URL under a policy, or under that of a lease or a template (`default` when none is named).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Explain {
    #[schema(example = "https://api.example.org/v1", max_length = 8192)]
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub policy: Option<Policy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// By name; where a name leads is decided again when it is reached.
    pub allowed: bool,
    /// The rule, and what would change it.
    pub explanation: String,
}
