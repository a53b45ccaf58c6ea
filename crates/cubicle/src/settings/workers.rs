//! What is said about AI workers: whether there are any, how many at once, and for how long.
//!
//! Keys and variables are those of assistants that know such a section already.

use std::path::PathBuf;

use cubicle_model::limits::ByteSize;
use cubicle_model::{Fault, Kind};

use super::{number, parse};
use crate::values::Cores;

pub(super) const SECTION: &str = "ai_worker_config";
/// True or false.
pub(super) const ENABLED: &str = "ai_worker_config.enabled";
pub(super) const REQUIRE_GVISOR: &str = "ai_worker_config.require_gvisor";
/// May be a list. It is of `webhooks`, as is the path.
pub(super) const SECRETS: &str = "ai_worker_config.webhook_secret";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Workers {
    pub(crate) enabled: Option<bool>,
    pub(crate) min_timeout_minutes: Option<u64>,
    pub(crate) default_timeout_minutes: Option<u64>,
    pub(crate) max_timeout_minutes: Option<u64>,
    pub(crate) max_concurrent_workers: Option<u64>,
    pub(crate) resources: Resources,
    pub(crate) task_retention_hours: Option<u64>,
    pub(crate) require_gvisor: Option<bool>,
    pub(crate) jobs: Jobs,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) memory_request: Option<u64>,
    pub(crate) memory_limit: Option<u64>,
    pub(crate) cpu_request: Option<u64>,
    pub(crate) cpu_limit: Option<u64>,
}

/// What only a cluster needs to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Jobs {
    pub(crate) namespace: Option<String>,
    pub(crate) ai_coder_image: Option<String>,
    pub(crate) service_account: Option<String>,
    pub(crate) runtime_class: Option<String>,
    pub(crate) workspace_pvc: Option<String>,
    pub(crate) workspace_mount_path: Option<PathBuf>,
    pub(crate) job_ttl_seconds: Option<u64>,
}

impl Workers {
    pub(super) fn over(self, below: Self) -> Self {
        let (resources, resources_below) = (self.resources, below.resources);
        let (jobs, jobs_below) = (self.jobs, below.jobs);
        Self {
            enabled: self.enabled.or(below.enabled),
            min_timeout_minutes: self.min_timeout_minutes.or(below.min_timeout_minutes),
            default_timeout_minutes: self.default_timeout_minutes.or(below.default_timeout_minutes),
            max_timeout_minutes: self.max_timeout_minutes.or(below.max_timeout_minutes),
            max_concurrent_workers: self.max_concurrent_workers.or(below.max_concurrent_workers),
            resources: Resources {
                memory_request: resources.memory_request.or(resources_below.memory_request),
                memory_limit: resources.memory_limit.or(resources_below.memory_limit),
                cpu_request: resources.cpu_request.or(resources_below.cpu_request),
                cpu_limit: resources.cpu_limit.or(resources_below.cpu_limit),
            },
            task_retention_hours: self.task_retention_hours.or(below.task_retention_hours),
            require_gvisor: self.require_gvisor.or(below.require_gvisor),
            jobs: Jobs {
                namespace: jobs.namespace.or(jobs_below.namespace),
                ai_coder_image: jobs.ai_coder_image.or(jobs_below.ai_coder_image),
                service_account: jobs.service_account.or(jobs_below.service_account),
                runtime_class: jobs.runtime_class.or(jobs_below.runtime_class),
                workspace_pvc: jobs.workspace_pvc.or(jobs_below.workspace_pvc),
                workspace_mount_path: jobs.workspace_mount_path.or(jobs_below.workspace_mount_path),
                job_ttl_seconds: jobs.job_ttl_seconds.or(jobs_below.job_ttl_seconds),
            },
        }
    }

    /// Sets the key, when it is one of this section.
    pub(super) fn set(&mut self, key: &str, text: &str, at: &str) -> Option<Result<(), Fault>> {
        let name = key.strip_prefix(SECTION)?.strip_prefix('.')?;
        let (resources, jobs) = (&mut self.resources, &mut self.jobs);
        let set = match name {
            "enabled" => flag(text, at).map(|flag| self.enabled = Some(flag)),
            "require_gvisor" => flag(text, at).map(|flag| self.require_gvisor = Some(flag)),
            "min_timeout_minutes" => positive(text, at).map(|most| self.min_timeout_minutes = Some(most)),
            "default_timeout_minutes" => {
                positive(text, at).map(|usual| self.default_timeout_minutes = Some(usual))
            }
            "max_timeout_minutes" => positive(text, at).map(|most| self.max_timeout_minutes = Some(most)),
            "max_concurrent_workers" => {
                positive(text, at).map(|most| self.max_concurrent_workers = Some(most))
            }
            "task_retention_hours" => positive(text, at).map(|hours| self.task_retention_hours = Some(hours)),
            "resources.memory_request" => size(text, at).map(|size| resources.memory_request = Some(size)),
            "resources.memory_limit" => size(text, at).map(|size| resources.memory_limit = Some(size)),
            "resources.cpu_request" => cpus(text, at).map(|cpus| resources.cpu_request = Some(cpus)),
            "resources.cpu_limit" => cpus(text, at).map(|cpus| resources.cpu_limit = Some(cpus)),
            "namespace" => label(text, at).map(|name| jobs.namespace = Some(name)),
            "service_account" => label(text, at).map(|name| jobs.service_account = Some(name)),
            "runtime_class" => label(text, at).map(|name| jobs.runtime_class = Some(name)),
            "workspace_pvc" => label(text, at).map(|name| jobs.workspace_pvc = Some(name)),
            "workspace_mount_path" => {
                path(text, at).map(|path| jobs.workspace_mount_path = Some(path.into()))
            }
            "ai_coder_image" => {
                jobs.ai_coder_image = Some(text.to_owned());
                Ok(())
            }
            "job_ttl_seconds" => number(text, at).map(|seconds| jobs.job_ttl_seconds = Some(seconds)),
            _ => return None,
        };
        Some(set)
    }
}

/// As programs that read such variables take it.
fn flag(text: &str, at: &str) -> Result<bool, Fault> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(Fault::new(Kind::Invalid, format!("{at}: '{text}' is neither true nor false"))),
    }
}

fn positive(text: &str, at: &str) -> Result<u64, Fault> {
    match number(text, at)? {
        0 => Err(Fault::new(Kind::Invalid, format!("{at}: expected at least 1"))),
        number => Ok(number),
    }
}

fn size(text: &str, at: &str) -> Result<u64, Fault> {
    Ok(parse::<ByteSize>(text, at)?.0)
}

/// In thousandths: `2`, `0.5`, or `500m` as in a cluster.
fn cpus(text: &str, at: &str) -> Result<u64, Fault> {
    match text.strip_suffix('m') {
        Some(thousandths) => positive(thousandths, at),
        None => Ok(parse::<Cores>(text, at)?.millicpus),
    }
}

fn path(text: &str, at: &str) -> Result<String, Fault> {
    if text.starts_with('/') && !text.contains(char::is_whitespace) {
        Ok(text.to_owned())
    } else {
        Err(Fault::new(Kind::Invalid, format!("{at}: '{text}' is not a path that begins with '/'")))
    }
}

/// A name as a cluster takes it.
fn label(text: &str, at: &str) -> Result<String, Fault> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if !text.is_empty() && text.len() <= 253 && text.bytes().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err(Fault::new(
            Kind::Invalid,
            format!("{at}: '{text}' is not a name: expected a-z, 0-9, '-' and '.', as in ai-worker"),
        ))
    }
}
