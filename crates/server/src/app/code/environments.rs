//! Environments: which one code asks for, and those that a tenant has.

use std::sync::Arc;

use cubicle_envs::{AllowedIndex, AllowedPackages, Cache, Environments, Listed, Ready, Requirements, Wanted};
use cubicle_guest::wire::execute::{Environment, Execute};
use cubicle_model::egress::{Host, Policy, WebAddress};
use cubicle_model::{Fault, Kind, Name, SandboxId, Scope, Template};

use crate::app::live::Leased;
use crate::app::{App, Caller};

/// What is said of an environment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) language: Option<&'a str>,
    pub(crate) requirements: &'a [String],
    pub(crate) name: Option<&'a str>,
    pub(crate) index: Option<&'a str>,
}

impl<'a> Asked<'a> {
    pub(crate) fn of(execute: &'a Execute) -> Self {
        Self {
            language: execute.language.as_deref(),
            requirements: &execute.requirements,
            name: execute.env_name.as_deref(),
            index: execute.python_index.as_deref(),
        }
    }

    /// Where nothing is said, the template's packages are meant.
    pub(super) fn or_of(self, template: &'a Template) -> Self {
        let is_python = self.language.is_none_or(|language| language == "python");
        let says_nothing = self.requirements.is_empty() && self.name.is_none() && self.index.is_none();
        match is_python && says_nothing {
            true => Self { requirements: &template.recipe.requirements, ..self },
            false => self,
        }
    }
}

/// The environment that code runs in.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    pub(crate) name: String,
    /// Absent where its sandbox has it already.
    pub(crate) ready: Option<Arc<Ready>>,
}

impl Chosen {
    fn ready(ready: Arc<Ready>) -> Self {
        Self { name: ready.name.to_string(), ready: Some(ready) }
    }

    pub(crate) fn is_hit(&self) -> bool {
        self.ready.as_ref().is_none_or(|ready| ready.cache == Cache::Hit)
    }
}

impl App {
    pub(super) fn environments(&self) -> Result<&Arc<Environments>, Fault> {
        self.environments.as_ref().ok_or_else(|| {
            Fault::new(Kind::Denied, "this server makes no Python environments")
                .hint("leave the requirements out")
        })
    }

    /// The environment that is asked for, made where it is not there. None is asked for where the template's own will do.
    pub(super) async fn environment_for(
        &self,
        caller: &Caller,
        sandbox: Option<(SandboxId, &Arc<Leased>)>,
        policy: Option<&Policy>,
        asked: Asked<'_>,
    ) -> Result<Option<Chosen>, Fault> {
        let Asked { language, requirements, name, index } = asked;
        if requirements.is_empty() && name.is_none() {
            return match index {
                None => Ok(None),
                Some(_) => {
                    Err(Fault::new(Kind::Invalid, "'python_index' says where 'requirements' come from")
                        .hint("name requirements, or leave it out"))
                }
            };
        }
        if language.is_some_and(|language| language != "python") {
            return Err(Fault::new(Kind::Invalid, "'requirements' and 'env_name' are for Python")
                .hint("leave them out for other languages"));
        }
        if !requirements.is_empty() {
            let ready = self.ensure_environment(caller, policy, requirements, name, index).await?;
            return Ok(Some(Chosen::ready(ready)));
        }
        let name = parse_name(name.unwrap_or_default())?;
        if let Some((id, leased)) = sandbox {
            self.learn_attached(&leased.guest().await?, id).await?;
            if self.live.attached(id).knows(name.as_str()) {
                return Ok(Some(Chosen { name: name.to_string(), ready: None }));
            }
        }
        let found = self.environments.as_ref().and_then(|all| all.find(caller.tenant(), &name));
        match found {
            Some(ready) => Ok(Some(Chosen::ready(Arc::new(ready)))),
            // A sandbox may have made one of this name itself; it says so if it has not.
            None if sandbox.is_some() => Ok(Some(Chosen { name: name.to_string(), ready: None })),
            None => Err(Fault::new(Kind::NotFound, format!("there is no environment '{name}'"))
                .hint("name its requirements, or make it with POST /api/v1/envs")),
        }
    }

    async fn ensure_environment(
        &self,
        caller: &Caller,
        policy: Option<&Policy>,
        requirements: &[String],
        name: Option<&str>,
        index: Option<&str>,
    ) -> Result<Arc<Ready>, Fault> {
        // What cannot be read is said first, wherever this is.
        Requirements::parse(requirements, &AllowedPackages::default())?;
        let environments = self.environments()?;
        let wanted = Wanted {
            name: name.map(parse_name).transpose()?,
            requirements: requirements.to_vec(),
            index: match index {
                Some(index) => self.allowed_index(environments, policy, index).await?,
                None => None,
            },
        };
        let ready = environments.ensure(caller.tenant(), &wanted).await?;
        let builds = environments.counts().builds;
        self.metrics.environment(ready.cache == Cache::Hit, ready.build, builds);
        Ok(Arc::new(ready))
    }

    /// An index that the server uses anyway, or one that the sandbox could reach by itself.
    async fn allowed_index(
        &self,
        environments: &Environments,
        policy: Option<&Policy>,
        index: &str,
    ) -> Result<Option<AllowedIndex>, Fault> {
        let address: WebAddress = index.parse().map_err(|error| {
            Fault::new(Kind::Invalid, format!("'python_index' is not the address of an index: {error}"))
                .hint("write https://host/path")
        })?;
        if environments.has_index(&address).await {
            return Ok(None);
        }
        let (Some(egress), Some(policy)) = (&self.egress, policy) else {
            return Err(Fault::new(Kind::Denied, "this server uses only its own package indexes")
                .hint("leave 'python_index' out, or ask whoever runs the server to configure this index"));
        };
        let rules = egress.resolve(policy)?;
        let leads_to = addresses(&address).await?;
        AllowedIndex::decide(&address, &rules, &leads_to).map(Some)
    }

    /// Lets go of environments whose time is over. What is attached anywhere stays.
    pub(crate) async fn sweep_environments(&self) -> Result<(), Fault> {
        let Some(environments) = &self.environments else { return Ok(()) };
        // Sandboxes that an earlier server left may have some that nobody here knows of yet.
        for (id, _) in self.live.all() {
            if let Some(guest) = self.live.get(id).and_then(|leased| leased.last_guest()) {
                self.learn_attached(&guest, id).await?;
            }
        }
        let keys = self.live.attached_keys().into_iter().filter_map(|key| key.parse().ok()).collect();
        environments.sweep(&keys).await.map(drop)
    }

    /// What the tenant has.
    pub(crate) async fn list_environments(&self, caller: &Caller) -> Result<Vec<Listed>, Fault> {
        caller.must(Scope::Read)?;
        match &self.environments {
            Some(environments) => Ok(environments.list(caller.tenant())),
            None => Ok(Vec::new()),
        }
    }

    /// Makes an environment by name, for whoever comes later.
    pub(crate) async fn create_environment(
        self: &Arc<Self>,
        caller: &Caller,
        name: String,
        requirements: Vec<String>,
        index: Option<String>,
    ) -> Result<Arc<Ready>, Fault> {
        caller.must(Scope::Run)?;
        let template = self.find_template(caller.tenant(), "default").await?;
        let policy = self.policy_for(caller.tenant(), &template.at, &Default::default()).await?;
        let (app, caller) = (Arc::clone(self), caller.clone());
        self.to_its_end(async move {
            app.ensure_environment(&caller, policy.as_ref(), &requirements, Some(&name), index.as_deref())
                .await
        })
        .await
    }

    pub(crate) async fn delete_environment(&self, caller: &Caller, name: &str) -> Result<(), Fault> {
        caller.must(Scope::Run)?;
        self.environments()?.delete(caller.tenant(), &parse_name(name)?).await
    }

    /// What a sandbox has.
    pub(crate) async fn environments_of(
        &self,
        caller: &Caller,
        sandbox: SandboxId,
    ) -> Result<Vec<Environment>, Fault> {
        caller.must(Scope::Read)?;
        Ok(self.guest_of(caller, sandbox).await?.envs().await?)
    }

    /// Makes an environment and attaches it to a sandbox, so that code that names it finds it there.
    pub(crate) async fn attach_environment(
        self: &Arc<Self>,
        caller: &Caller,
        sandbox: SandboxId,
        name: String,
        requirements: Vec<String>,
        index: Option<String>,
    ) -> Result<Arc<Ready>, Fault> {
        caller.must(Scope::Run)?;
        let leased = self.in_use(caller, sandbox).await?;
        let guest = leased.guest().await?;
        let policy = self.index_policy(leased.lease, index.as_deref()).await?;
        let (app, caller) = (Arc::clone(self), caller.clone());
        self.to_its_end(async move {
            let index = index.as_deref();
            let ready =
                app.ensure_environment(&caller, policy.as_ref(), &requirements, Some(&name), index).await?;
            app.attach(&guest, sandbox, Some(&ready)).await?;
            Ok(ready)
        })
        .await
    }

    pub(crate) async fn detach_environment(
        &self,
        caller: &Caller,
        sandbox: SandboxId,
        name: &str,
    ) -> Result<(), Fault> {
        caller.must(Scope::Run)?;
        self.guest_of(caller, sandbox).await?.detach_env(name).await?;
        self.live.attached(sandbox).detached(name);
        Ok(())
    }
}

fn parse_name(name: &str) -> Result<Name, Fault> {
    name.parse()
        .map_err(|error| Fault::new(Kind::Invalid, format!("the environment cannot be called so: {error}")))
}

/// Where the name of an index leads.
async fn addresses(index: &WebAddress) -> Result<Vec<std::net::IpAddr>, Fault> {
    let name = match &index.host {
        Host::Address(address) => return Ok(vec![*address]),
        Host::Name(name) => name.to_string(),
    };
    let found = tokio::net::lookup_host((name.as_str(), index.port)).await.map_err(|error| {
        Fault::new(Kind::Unavailable, format!("the index {name} cannot be found: {error}"))
    })?;
    Ok(found.map(|address| address.ip()).collect())
}
