//! What a server is told of code execution.

use std::sync::{Arc, OnceLock};

use cubicle_envs::{EnvSettings, Environments, ServiceUser};
use cubicle_model::{Fault, Kind, Timestamp};
use cubicle_server::CodeSettings;

use super::clock::Clock;
use crate::context::Context;
use crate::environments;

/// What is known before the server is, and only root can prepare.
pub(super) struct Prepared {
    environments: EnvSettings,
    clock: Arc<OnceLock<Arc<Clock>>>,
}

/// To be called before rights are given up; `owner` is whom the server becomes.
pub(super) async fn prepare(context: &Context, owner: Option<u32>) -> Result<Prepared, Fault> {
    let clock: Arc<OnceLock<Arc<Clock>>> = Arc::default();
    let read = Arc::clone(&clock);
    // Nobody asks for the time before there is a server.
    let now = move || read.get().map_or(Timestamp::UNIX_EPOCH, |clock| clock.wall());
    let (said, environment) = (context.settings.clone(), context.environment.clone());
    let data_dir = context.data_dir().to_owned();
    let found = tokio::task::spawn_blocking(move || {
        environments::settings(&said, &environment, &data_dir, Arc::new(now))
    });
    let mut environments = found.await.map_err(|error| {
        Fault::new(Kind::Internal, "finding out about Python environments panicked").because(error)
    })?;
    if let Some(owner) = owner {
        cubicle_envs::prepare(&mut environments, ServiceUser { uid: owner, gid: owner }).await?;
    }
    Ok(Prepared { environments, clock })
}

pub(super) async fn settings(
    context: &Context,
    prepared: Prepared,
    clock: &Arc<Clock>,
) -> Result<CodeSettings, Fault> {
    // It is set once.
    let _ = prepared.clock.set(Arc::clone(clock));
    let said = &context.settings.sandbox;
    let templates = said.templates.iter().map(|(tool, template)| (tool.clone(), template.to_string()));
    Ok(CodeSettings {
        tool_templates: templates.collect(),
        warm_interpreters: said.warm_interpreters.unwrap_or(true),
        environments: Some(Environments::open(prepared.environments).await?),
    })
}
