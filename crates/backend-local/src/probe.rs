//! What this host can do, from carrying out the whole plan.

use std::collections::BTreeMap;

use cubicle_backend::{Backend, Capabilities, Level, Met, Probed, Unmet};
use cubicle_model::receipt::{Cgroups, Enforcement, Receipt};
use cubicle_model::{Fault, Isolation, Kind, Root, SandboxId};

use crate::backend::{BINDS_LATE, LocalBackend};
use crate::{attempts, state};

pub(crate) async fn probe(backend: &LocalBackend) -> Probed {
    let tried = try_namespaces(backend).await;
    let limits = match &tried {
        Ok(receipt) => limits(receipt),
        Err(_) => BTreeMap::new(),
    };
    let namespaces = match tried {
        Ok(receipt) => {
            Level { isolation: Isolation::Namespaces, met: met(backend, &receipt), unmet: Vec::new() }
        }
        Err(fault) => Level {
            isolation: Isolation::Namespaces,
            met: Vec::new(),
            unmet: vec![Unmet {
                check: "make a sandbox".into(),
                because: fault.to_string(),
                fix: fault.way_out().unwrap_or("run as root").into(),
            }],
        },
    };
    let later = |isolation| Level { isolation, met: Vec::new(), unmet: vec![missing(isolation)] };
    Probed {
        levels: vec![later(Isolation::Gvisor), namespaces, later(Isolation::Landlock)],
        capabilities: Capabilities {
            durable: true,
            binds_late: BINDS_LATE.iter().map(|name| (*name).to_owned()).collect(),
            limits,
        },
    }
}

async fn try_namespaces(backend: &LocalBackend) -> Result<Receipt, Fault> {
    let bits =
        state::random().map_err(|error| Fault::new(Kind::Internal, "no random bytes").because(error))?;
    let place = attempts::placement(&Root::Host, SandboxId::from_random(bits));
    let seen = backend.ensure(&place).await;
    backend.destroy(place.id).await?;
    seen?.receipt.ok_or_else(|| Fault::new(Kind::Internal, "the sandbox has no receipt"))
}

fn met(backend: &LocalBackend, receipt: &Receipt) -> Vec<Met> {
    let facts = backend.facts();
    let say = |check: &str, found: String| Met { check: check.into(), found };
    let cgroups = match facts.cgroups {
        Cgroups::V1 => "version 1: memory, pids, cpu".into(),
        Cgroups::V2 => "version 2: memory, pids, cpu".into(),
        Cgroups::None => {
            format!(
                "none ({}): memory and CPU limits are not enforced",
                facts.no_cgroups_because.as_deref().unwrap_or("?")
            )
        }
    };
    let who = if facts.privileged {
        "root: each sandbox has two users of its own"
    } else {
        "an ordinary user: one user for pid 1 and commands"
    };
    let held =
        receipt.attempts.as_ref().map_or(0, |attempts| attempts.tried.iter().filter(|it| it.failed).count());
    vec![
        say("kernel", facts.kernel.clone()),
        say("launcher", who.into()),
        say("namespaces", receipt.observed.namespaces.keys().cloned().collect::<Vec<_>>().join(", ")),
        say("system call filter", format!("{} filter", receipt.observed.workload.seccomp_filters)),
        say("cgroups", cgroups),
        say("attempts from inside", format!("{held} made, all failed")),
    ]
}

fn limits(receipt: &Receipt) -> BTreeMap<String, Result<String, String>> {
    let enforced = |limit: &Enforcement| match limit {
        Enforcement::By { what, .. } => Ok(what.clone()),
        Enforcement::No { because } => Err(because.clone()),
    };
    receipt.limits.iter().map(|limit| (limit.name.clone(), enforced(&limit.enforced))).collect()
}

fn missing(isolation: Isolation) -> Unmet {
    let (because, fix) = match isolation {
        Isolation::Gvisor => (
            "this version does not run sandboxes inside gVisor",
            "nothing mends it in this version; code of medium or high trust runs in 'namespaces'",
        ),
        Isolation::Landlock => (
            "this version has no isolation without namespaces",
            "run as root, or allow user namespaces, and use 'namespaces'",
        ),
        Isolation::Namespaces => ("", ""),
    };
    Unmet { check: format!("isolation '{isolation}'"), because: because.into(), fix: fix.into() }
}

/// The refusal for a level that this backend does not have.
pub(crate) fn unavailable(isolation: Isolation) -> Fault {
    let unmet = missing(isolation);
    Fault::new(Kind::Denied, format!("isolation '{isolation}' cannot be had here: {}", unmet.because))
        .hint(unmet.fix)
}
