//! What a server is told of AI workers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cubicle_model::pool::PoolSpec;
use cubicle_model::template::Recipe;
use cubicle_model::{Fault, Kind, LimitRequest};
use cubicle_server::WorkerSettings;

use crate::context::Context;
use crate::settings::Workers;

const MEMORY: u64 = 2 << 30;
const MILLICPUS: u64 = 2000;

/// Whether there are workers, by the flag or by the settings.
pub(super) fn enabled(said: &Workers, flag: bool) -> bool {
    flag || said.enabled.unwrap_or(false)
}

pub(super) fn settings(context: &Context, flag: bool, listen: SocketAddr) -> Result<WorkerSettings, Fault> {
    let said = &context.settings.workers;
    let data_dir = context.data_dir().to_owned();
    let usual = WorkerSettings::off(data_dir.join("shared"), reachable(listen));
    let minutes = |said: Option<u64>, usual: u32| match said {
        Some(said) => u32::try_from(said).map_err(|_| invalid("a timeout has too many minutes")),
        None => Ok(usual),
    };
    let max_timeout_minutes = minutes(said.max_timeout_minutes, usual.max_timeout_minutes)?;
    let default_timeout_minutes =
        minutes(said.default_timeout_minutes, usual.default_timeout_minutes.min(max_timeout_minutes))?;
    let min_timeout_minutes = minutes(said.min_timeout_minutes, usual.min_timeout_minutes)?;
    if !(min_timeout_minutes..=max_timeout_minutes).contains(&default_timeout_minutes) {
        return Err(invalid("ai_worker_config: default_timeout_minutes is not between min_timeout_minutes and max_timeout_minutes")
            .hint(format!("they are {min_timeout_minutes}, {default_timeout_minutes} and {max_timeout_minutes}")));
    }
    let is_enabled = enabled(said, flag);
    Ok(WorkerSettings {
        enabled: is_enabled,
        min_timeout_minutes,
        default_timeout_minutes,
        max_timeout_minutes,
        max_concurrent_workers: said.max_concurrent_workers.unwrap_or(usual.max_concurrent_workers),
        webhook_path: said.webhook_path.clone().unwrap_or(usual.webhook_path),
        webhook_secrets: said
            .webhook_secret
            .iter()
            .flat_map(|secrets| secrets.expose().split_whitespace())
            .map(str::to_owned)
            .collect(),
        task_retention: said
            .task_retention_hours
            .map_or(usual.task_retention, |hours| Duration::from_secs(hours.saturating_mul(3600))),
        require_gvisor: said.require_gvisor.unwrap_or(usual.require_gvisor),
        program: is_enabled.then(|| cubicle_agents::worker::unpack(&data_dir)).transpose()?,
        agents: Arc::new(move |agent| {
            Ok(cubicle_agents::installed(&data_dir, agent)?.map(|installed| installed.path))
        }),
        ..usual
    })
}

/// The recipe of workers' sandboxes, until somebody changes it.
pub(super) fn recipe(said: &Workers) -> Recipe {
    let resources = &said.resources;
    Recipe {
        limits: LimitRequest {
            memory: Some(resources.memory_limit.unwrap_or(MEMORY)),
            millicpus: Some(resources.cpu_limit.unwrap_or(MILLICPUS)),
            ..LimitRequest::default()
        },
        // A task begins at once, and the next one soon after.
        pool: PoolSpec { size: 1, min_idle: 1, ceiling: 4 },
        ..Recipe::default()
    }
}

/// Where the server is reached from its own host.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

fn invalid(text: &str) -> Fault {
    Fault::new(Kind::Invalid, text)
}
