//! What a server is told of AI workers, and the template that their sandboxes are made by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cubicle_model::pool::PoolSpec;
use cubicle_model::receipt::Cgroups;
use cubicle_model::template::Recipe;
use cubicle_model::{Fault, Isolation, Kind, LimitRequest, TemplateRef};
use cubicle_server::WorkerSettings;
use cubicle_store::{Context as StoreContext, Store};

use crate::args::Up;
use crate::context::Context;

const MEMORY: u64 = 2 << 30;
const MILLICPUS: u64 = 2000;
const PIDS: u64 = 1024;
/// Ready sandboxes for workers.
const READY: u32 = 2;

/// To be called when rights were given up: what is unpacked is the server's own.
pub(super) fn settings(args: &Up, context: &Context, listen: SocketAddr) -> Result<WorkerSettings, Fault> {
    let data_dir = context.data_dir();
    let mut settings = WorkerSettings::off(from_here(listen));
    let number = |name: &str| -> Result<Option<u32>, Fault> {
        let wrong = |_| Fault::new(Kind::Invalid, format!("{name} is not a number"));
        context.environment.text(name).map(|text| text.trim().parse().map_err(wrong)).transpose()
    };
    settings.enabled = args.workers || is_set(context, "AI_WORKER_ENABLED")?;
    if let Some(minutes) = number("AI_WORKER_DEFAULT_TIMEOUT")? {
        settings.default_timeout_minutes = minutes;
    }
    if let Some(most) = number("AI_WORKER_MAX_CONCURRENT")? {
        settings.max_concurrent_workers = most.into();
    }
    if let Some(hours) = number("AI_WORKER_TASK_RETENTION_HOURS")? {
        settings.task_retention = Duration::from_secs(u64::from(hours) * 3600);
    }
    if settings.enabled {
        settings.program = Some(cubicle_agents::worker::unpack(data_dir)?);
        let data_dir = data_dir.to_owned();
        settings.agents = Arc::new(move |agent| agent_of(&data_dir, agent));
    }
    Ok(settings)
}

fn agent_of(data_dir: &Path, agent: &str) -> Result<Option<std::path::PathBuf>, Fault> {
    Ok(cubicle_agents::installed(data_dir, agent).map(|agent| agent.path))
}

fn is_set(context: &Context, name: &str) -> Result<bool, Fault> {
    match context.environment.text(name).map(|text| text.trim().to_ascii_lowercase()).as_deref() {
        None | Some("" | "0" | "false" | "no" | "off") => Ok(false),
        Some("1" | "true" | "yes" | "on") => Ok(true),
        Some(other) => Err(Fault::new(Kind::Invalid, format!("{name} is 'true' or 'false', not '{other}'"))),
    }
}

/// Where a server that listens there is reached from its own host.
fn from_here(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// The template of workers, where nobody made one. `has_gvisor`: whether this host can run sandboxes under it.
pub(super) async fn ensure_template(
    store: &Store,
    context: StoreContext,
    settings: &WorkerSettings,
    cgroups: Cgroups,
    has_gvisor: bool,
) -> Result<(), Fault> {
    if !settings.enabled {
        return Ok(());
    }
    let name = WorkerSettings::TEMPLATE.parse();
    let name = name.map_err(|error| Fault::new(Kind::Internal, format!("{error}")))?;
    let at = TemplateRef { owner: None, name };
    if store.template(at.clone()).await?.is_some() {
        return Ok(());
    }
    let most = u32::try_from(settings.max_concurrent_workers).unwrap_or(u32::MAX);
    let ready = READY.min(most);
    let recipe = Recipe {
        // A limit that cannot be enforced must not be asked for.
        limits: match cgroups {
            Cgroups::None => LimitRequest::default(),
            _ => LimitRequest {
                memory: Some(MEMORY),
                millicpus: Some(MILLICPUS),
                pids: Some(PIDS),
                ..LimitRequest::default()
            },
        },
        isolation: has_gvisor.then_some(Isolation::Gvisor),
        pool: PoolSpec { size: ready, min_idle: ready.min(1), ceiling: most.max(ready) },
        ..Recipe::default()
    };
    recipe.check().map_err(|bad| Fault::new(Kind::Invalid, bad.to_string()))?;
    store.put_template(context, at, recipe, None).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_every_address_is_reached_at_loopback() {
        let table = [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::]:80", "[::1]:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
        ];
        for (listen, expected) in table {
            assert_eq!(from_here(listen.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
