//! What a server is told of AI workers, and the template that their sandboxes are made by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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
use crate::settings::Resources;

const MEMORY: u64 = 2 << 30;
const MILLICPUS: u64 = 2000;
const PIDS: u64 = 1024;
/// Ready sandboxes for workers.
const READY: u32 = 2;

/// To be called when rights were given up: what is unpacked is the server's own.
pub(super) fn settings(args: &Up, context: &Context, listen: SocketAddr) -> Result<WorkerSettings, Fault> {
    let said = &context.settings.workers;
    let usual = WorkerSettings::off(from_here(listen));
    let minutes = |said: Option<u64>, usual: u32| match said {
        Some(said) => u32::try_from(said).map_err(|_| invalid("a timeout has too many minutes")),
        None => Ok(usual),
    };
    let max_timeout_minutes = minutes(said.max_timeout_minutes, usual.max_timeout_minutes)?;
    let default_timeout_minutes =
        minutes(said.default_timeout_minutes, usual.default_timeout_minutes.min(max_timeout_minutes))?;
    let min_timeout_minutes = minutes(said.min_timeout_minutes, usual.min_timeout_minutes)?;
    if !(min_timeout_minutes..=max_timeout_minutes).contains(&default_timeout_minutes) {
        return Err(invalid(
            "ai_worker_config: the default timeout is not between the shortest and the longest",
        )
        .hint(format!(
            "they are {default_timeout_minutes}, {min_timeout_minutes} and {max_timeout_minutes} minutes"
        )));
    }
    let enabled = args.workers || said.enabled.unwrap_or(false);
    let data_dir = context.data_dir().to_owned();
    let hours = |hours: u64| Duration::from_secs(hours.saturating_mul(3600));
    Ok(WorkerSettings {
        enabled,
        min_timeout_minutes,
        default_timeout_minutes,
        max_timeout_minutes,
        max_concurrent_workers: said.max_concurrent_workers.unwrap_or(usual.max_concurrent_workers),
        task_retention: said.task_retention_hours.map_or(usual.task_retention, hours),
        require_gvisor: said.require_gvisor.unwrap_or(usual.require_gvisor),
        program: enabled.then(|| cubicle_agents::worker::unpack(&data_dir)).transpose()?,
        agents: Arc::new(
            move |agent| Ok(cubicle_agents::installed(&data_dir, agent).map(|found| found.path)),
        ),
        ..usual
    })
}

fn invalid(text: &str) -> Fault {
    Fault::new(Kind::Invalid, text)
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
    resources: &Resources,
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
                memory: Some(resources.memory_limit.unwrap_or(MEMORY)),
                millicpus: Some(resources.cpu_limit.unwrap_or(MILLICPUS)),
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
