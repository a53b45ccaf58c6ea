//! Code in some language. It is brought its environment, and is then an exec like any other.

pub(crate) mod attached;
mod contexts;
mod environments;
mod made;
mod sdists;
pub(crate) mod warming;

use std::sync::Arc;

use cubicle_envs::Ready;
use cubicle_guest::wire::context::CreateContext;
use cubicle_guest::wire::execute::Execute;
use cubicle_model::egress::{LeaseEgress, Policy};
use cubicle_model::route::{self, Needs};
use cubicle_model::{Command, ExecSpec, Fault, Kind, SandboxId, Scope, Stdin, Template};

pub(crate) use contexts::CellOutputs;
pub(crate) use environments::{Asked as AskedEnvironment, Chosen};
pub(crate) use made::Made;
pub(crate) use sdists::InSandboxes;

use super::execs::{ExecRequest, Program, Told};
use super::leases::{Gifts, LeaseRequest};
use super::{App, Caller};

/// A lease for code that nobody releases, because its server was killed, ends by itself.
const ONE_SHOT_TTL: u32 = 3600;

/// Code on its way into a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Code {
    pub(crate) execute: Execute,
    pub(crate) environment: Option<Arc<Ready>>,
}

impl Code {
    /// What makes it the same when it is asked for again.
    pub(super) fn said(&self) -> serde_json::Value {
        serde_json::to_value(&self.execute).unwrap_or_default()
    }

    pub(super) fn settle(&mut self, spec: &ExecSpec) {
        self.execute.exec_id = spec.exec_id;
        self.execute.timeout_seconds = spec.timeout_seconds;
    }
}

/// An interpreter that keeps its state, on its way into a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct ContextStart {
    pub(crate) asked: CreateContext,
    pub(crate) environment: Option<Arc<Ready>>,
}

impl ContextStart {
    pub(super) fn said(&self) -> serde_json::Value {
        serde_json::to_value(&self.asked).unwrap_or_default()
    }
}

/// Code as it is asked for.
#[derive(Debug)]
pub(crate) struct CodeRequest {
    pub(crate) execute: Execute,
    /// Answer as soon as it has started.
    pub(crate) background: bool,
    pub(crate) output_limit: usize,
}

/// Where code goes that names no sandbox.
#[derive(Debug)]
pub(crate) struct CodePlace {
    pub(crate) template: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) gifts: Gifts,
    pub(crate) egress: LeaseEgress,
}

/// What came of code.
#[derive(Debug)]
pub(crate) struct CodeTold {
    pub(crate) told: Told,
    pub(crate) environment: Option<Chosen>,
}

impl App {
    /// Runs code in a sandbox that the caller has.
    pub(crate) async fn execute(
        self: &Arc<Self>,
        caller: &Caller,
        sandbox: SandboxId,
        asked: CodeRequest,
    ) -> Result<CodeTold, Fault> {
        caller.must(Scope::Run)?;
        let leased = self.in_use(caller, sandbox).await?;
        let policy = self.index_policy(leased.lease, asked.execute.python_index.as_deref()).await?;
        let template = self.find_template(&leased.tenant, leased.template.name.as_str()).await?;
        let wanted = AskedEnvironment::of(&asked.execute).or_of(&template);
        let environment =
            self.environment_for(caller, Some((sandbox, &leased)), policy.as_ref(), wanted).await?;
        self.warming.wanted(&leased.template, ready(environment.as_ref()));
        let request = self.code_request(&template, asked, environment.clone());
        let told = self.create_exec(caller, sandbox, request).await?;
        Ok(CodeTold { told, environment })
    }

    /// Runs code in the sandbox that fits it best: one that is kept and has what it needs, or a fresh one.
    pub(crate) async fn execute_once(
        self: &Arc<Self>,
        caller: &Caller,
        place: CodePlace,
        asked: CodeRequest,
    ) -> Result<CodeTold, Fault> {
        caller.must(Scope::Run)?;
        let name = self.template_for(place.template.as_deref(), asked.execute.tool_name.as_deref());
        let template = self.find_template(caller.tenant(), &name).await?;
        let policy = self.policy_for(caller.tenant(), &template.at, &place.egress).await?;
        // Whatever cannot be had is said before a sandbox is taken for it.
        let wanted = AskedEnvironment::of(&asked.execute).or_of(&template);
        let environment = self.environment_for(caller, None, policy.as_ref(), wanted).await?;
        self.warming.wanted(&template.at, ready(environment.as_ref()));
        let user = caller.user(place.user.as_deref())?;
        let needs = Needs {
            template: template.at.clone(),
            environment: ready(environment.as_ref()).map(|ready| ready.key.to_string()),
        };
        let preferred = route::route(&needs, &self.live.candidates(caller.tenant(), &user));
        let exec_id = asked.execute.exec_id;
        let ttl = asked
            .execute
            .timeout_seconds
            .map_or(ONE_SHOT_TTL, |seconds| (seconds.clamp(0.0, 604_000.0) as u32) + 60);
        let lease = LeaseRequest {
            template: name,
            user: place.user,
            workflow: "execute".into(),
            request: exec_id.map(|id| id.to_string()),
            ttl_seconds: Some(ttl),
            heartbeat_seconds: None,
            gifts: place.gifts,
            egress: place.egress,
            may_wait: false,
            one_shot: true,
            preferred,
        };
        let request = self.code_request(&template, asked, environment.clone());
        let told = self.create_one_shot(caller, lease, template.recipe.reuse, request).await?;
        Ok(CodeTold { told, environment })
    }

    /// The template that is named, or the one for a tool.
    fn template_for(&self, named: Option<&str>, tool: Option<&str>) -> String {
        let templates = &self.settings.code.tool_templates;
        let by_tool = || tool.and_then(|tool| templates.get(tool)).or_else(|| templates.get("default"));
        named.map(str::to_owned).or_else(|| by_tool().cloned()).unwrap_or_else(|| "default".into())
    }

    fn code_request(
        &self,
        template: &Template,
        asked: CodeRequest,
        environment: Option<Chosen>,
    ) -> ExecRequest {
        let CodeRequest { mut execute, background, output_limit } = asked;
        // What it needs is attached by then; only its name goes inside.
        execute.env_name = environment.as_ref().map(|chosen| chosen.name.clone());
        execute.requirements.clear();
        execute.python_index = None;
        execute.host.warm = self.settings.code.warm_interpreters;
        let language = execute.language.clone().unwrap_or_else(|| "python".into());
        execute.host.interpreter = template.recipe.languages.get(&language).cloned();
        let stdin = execute.stdin.clone().map_or(Stdin::Closed, Stdin::Text);
        // For people: what was run, not how.
        let shown = execute.tool_name.clone().unwrap_or_else(|| language.clone());
        let spec = ExecSpec {
            cwd: execute.cwd.clone(),
            stdin,
            timeout_seconds: execute.timeout_seconds,
            exec_id: execute.exec_id,
            ..ExecSpec::new(Command::Argv(vec![shown, execute.code.chars().take(LONGEST_SHOWN).collect()]))
        };
        let environment = environment.and_then(|chosen| chosen.ready);
        ExecRequest {
            spec,
            program: Program::Code(Box::new(Code { execute, environment })),
            policy: None,
            background,
            output_limit,
        }
    }

    /// What decides on an index that a request names; nobody asks the store where it names none.
    async fn index_policy(
        &self,
        lease: cubicle_model::LeaseId,
        index: Option<&str>,
    ) -> Result<Option<Policy>, Fault> {
        if self.egress.is_none() || index.is_none() {
            return Ok(None);
        }
        let lease = self.store.lease(lease).await?;
        let lease = lease.ok_or_else(|| Fault::new(Kind::Conflict, "the lease of this sandbox is over"))?;
        self.policy_for(&lease.tenant, &lease.template, &lease.egress).await
    }
}

/// Of code, in the record of its exec.
const LONGEST_SHOWN: usize = 1000;

fn ready(chosen: Option<&Chosen>) -> Option<&Arc<Ready>> {
    chosen.and_then(|chosen| chosen.ready.as_ref())
}
