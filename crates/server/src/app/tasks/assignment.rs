//! What a task's worker is given: a lease with mounts, one exec, and what it is told.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cubicle_model::egress::{LeaseEgress, Statement};
use cubicle_model::{Command, ExecSpec, Fault, Kind, Mount};
use cubicle_store::Task;
use cubicle_worker::Assignment;

use super::asked::{Options, repository};
use super::{WORKFLOW, off};
use crate::app::App;
use crate::app::execs::{ExecRequest, Program};
use crate::app::leases::{Gifts, LeaseRequest};
use crate::webhooks;

/// The base URL under which a worker finds this server's webhook, and nothing else of it.
pub(crate) const WEBHOOK_BASE: &str = "cubicle";

/// Where things are inside.
const TASK: &str = "/task";
const SHARED: &str = "/workspace/shared";
const AGENTS: &str = "/mnt/agents";
const PROGRAM: &str = "/mnt/worker";

/// Its worker ends a task in time; should it not, the sandbox does so much later.
const GRACE_SECONDS: f64 = 45.0;
/// A lease outlives its task by so much, so that its end is never a surprise.
const LEASE_MARGIN_SECONDS: u32 = 900;
/// Without a word of its agent for so long a worker gives up.
const IDLE_SECONDS: u64 = 10 * 60;

/// How an agent reaches its provider: by the gateway, which has the key.
#[derive(Debug)]
pub(super) struct Provider {
    pub(super) base: &'static str,
    pub(super) base_variable: &'static str,
    pub(super) key_variable: &'static str,
}

const PROVIDERS: [(&str, Provider); 2] = [
    (
        "claude",
        Provider {
            base: "anthropic",
            base_variable: "ANTHROPIC_BASE_URL",
            key_variable: "ANTHROPIC_API_KEY",
        },
    ),
    (
        "gemini",
        Provider { base: "google", base_variable: "GOOGLE_GEMINI_BASE_URL", key_variable: "GEMINI_API_KEY" },
    ),
];

/// A custom agent brings its own.
pub(super) fn provider_of(agent: &str) -> Option<&'static Provider> {
    PROVIDERS.iter().find(|(name, _)| *name == agent).map(|(_, provider)| provider)
}

impl App {
    /// The lease of a task. Asked for again it is the same one; a `round` is for another, after one that ended too early.
    pub(super) async fn lease_for(&self, task: &Task, round: u32) -> Result<LeaseRequest, Fault> {
        let options = Options::of(task)?;
        let tree = self.shared.of(&task.tenant);
        let program = self.settings.workers.program.clone().ok_or_else(off)?;
        let mount =
            |source: PathBuf, target: String, read_only| Mount { source, target: target.into(), read_only };
        let mut mounts = vec![
            mount(tree.task_path(task.id), TASK.into(), false),
            mount(tree.shared_path(), SHARED.into(), true),
            mount(program, PROGRAM.into(), true),
        ];
        if provider_of(&task.model).is_some() {
            let missing = || {
                Fault::new(Kind::Denied, format!("the agent '{}' is not installed on this host", task.model))
                    .hint(format!("'cubicle agents install {}' brings it", task.model))
            };
            let agent = (self.settings.workers.agents)(&task.model)?.ok_or_else(missing)?;
            mounts.push(mount(agent, format!("{AGENTS}/{}", task.model), true));
        }
        let policy = match &options.repo {
            None => None,
            Some(repo) => {
                let template = self.find_template(&task.tenant, options.template()).await?.at;
                let usual = self.policy_for(&task.tenant, &template, &LeaseEgress::default()).await?;
                usual.map(|mut policy| {
                    policy.rules.extend(repository(repo).map(|place| Statement::Rule(place.rule(false))));
                    policy
                })
            }
        };
        Ok(LeaseRequest {
            template: options.template().into(),
            user: None,
            workflow: WORKFLOW.into(),
            request: Some(format!("{}/{round}", task.id)),
            ttl_seconds: Some(task.timeout_minutes * 60 + LEASE_MARGIN_SECONDS),
            heartbeat_seconds: None,
            gifts: Gifts { mounts, ..Gifts::default() },
            egress: LeaseEgress { policy, webhook: true, ..LeaseEgress::default() },
            may_wait: true,
            one_shot: false,
            preferred: Vec::new(),
        })
    }

    /// The exec of a task: `run-task` with everything it is told. The same for the same task, so that it runs once.
    pub(super) fn exec_for(&self, task: &Task) -> Result<ExecRequest, Fault> {
        let options = Options::of(task)?;
        let webhooks = &self.settings.webhooks;
        let webhook = self.egress.as_ref().map(|_| {
            let address = format!("http://{WEBHOOK_BASE}.egress.internal");
            webhooks::url(&address, &webhooks.path, &self.settings.link_secret, task.id)
        });
        let assignment = Assignment {
            task_id: task.id,
            prompt: format!("{TASK}/prompt.md"),
            webhook,
            agent: task.model.clone(),
            agent_home: provider_of(&task.model).map(|_| format!("{AGENTS}/{}", task.model)),
            model: options.provider_model.clone(),
            command: options.command.clone(),
            repo: options.repo.clone(),
            timeout_seconds: u64::from(task.timeout_minutes) * 60,
            idle_seconds: IDLE_SECONDS,
            max_turns: options.max_turns,
            max_tokens: options.max_tokens,
            max_cost_usd: options.max_cost_usd,
        };
        let mut env = assignment.variables();
        env.extend(self.access_to_model(&task.model));
        if let Some(secret) = webhooks.secrets.first() {
            // Its own completion can be signed with it, and no other.
            env.insert("WEBHOOK_SECRET".into(), webhooks::task_secret(secret, task.id));
        }
        let argv = std::iter::once(format!("{PROGRAM}/run-task")).chain(assignment.arguments()).collect();
        let spec = ExecSpec {
            cwd: Some(TASK.into()),
            env,
            timeout_seconds: Some(f64::from(task.timeout_minutes) * 60.0 + GRACE_SECONDS),
            exec_id: task.exec,
            ..ExecSpec::new(Command::Argv(argv))
        };
        Ok(ExecRequest { spec, program: Program::Command, policy: None, background: true, output_limit: 0 })
    }

    /// Where the agent finds its provider. The key is a word that says nothing: the gateway puts the real one in its place.
    fn access_to_model(&self, agent: &str) -> BTreeMap<String, String> {
        let Some(provider) = provider_of(agent).filter(|_| self.egress.is_some()) else {
            return BTreeMap::new();
        };
        BTreeMap::from([
            (provider.base_variable.into(), format!("http://{}.egress.internal", provider.base)),
            (provider.key_variable.into(), "set-by-the-gateway".into()),
        ])
    }
}
