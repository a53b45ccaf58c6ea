//! `cubicle receipt`: what a sandbox was promised and what was found inside it.

use cubicle_model::limits::ByteSize;
use cubicle_model::receipt::{Enforcement, LimitInForce};
use cubicle_model::{Fault, Kind, Receipt};

use crate::args::OneSandbox;
use crate::context::{Context, existing};
use crate::failure::Ending;

pub(crate) async fn receipt(args: &OneSandbox, context: &Context) -> Result<Ending, Fault> {
    let backend = context.backend().await?;
    let seen = existing(&*backend, args.id).await?;
    let receipt = seen.receipt.ok_or_else(|| {
        Fault::new(Kind::NotFound, format!("{} ended before it had a receipt", args.id))
            .hint(format!("'cubicle rm {}' removes it", args.id))
    })?;
    super::print_json(&receipt)?;
    Ok(super::DONE)
}

/// The receipt for people: what is in force, and what an attacker's attempts came to.
pub(crate) fn summary(receipt: &Receipt) -> String {
    let observed = &receipt.observed;
    let mut lines = vec![
        format!("receipt of {}", receipt.sandbox),
        format!("  isolation    {} on kernel {}", receipt.isolation, receipt.host.kernel),
        format!("  namespaces   {}", observed.namespaces.keys().cloned().collect::<Vec<_>>().join(", ")),
        format!(
            "  commands     uid {}, gid {}, capabilities {:x}, no_new_privs {}, seccomp {}",
            observed.workload.uid,
            observed.workload.gid,
            observed.workload.capabilities.union(),
            if observed.workload.no_new_privs { "on" } else { "off" },
            if observed.workload.seccomp_mode == 2 { "on" } else { "off" },
        ),
        format!("  network      {}", observed.interfaces.join(", ")),
        format!(
            "  writable     {}",
            observed
                .mounts
                .iter()
                .filter(|mount| !mount.read_only)
                .map(|mount| mount.target.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        ),
    ];
    lines.extend(receipt.limits.iter().map(limit));
    lines.push(match &receipt.attempts {
        None => "  attempts     not made yet".into(),
        Some(attempts) => {
            let failed = attempts.tried.iter().filter(|attempt| attempt.failed).count();
            format!("  attempts     {failed} of {} attacks failed", attempts.tried.len())
        }
    });
    lines.push(match receipt.contradictions.as_slice() {
        [] => "  verdict      as promised".into(),
        found => format!("  verdict      contradictions: {}", found.join("; ")),
    });
    lines.join("\n") + "\n"
}

fn limit(limit: &LimitInForce) -> String {
    let enforced = match &limit.enforced {
        Enforcement::By { what, .. } => format!("by {what}"),
        Enforcement::No { because } => format!("not enforced: {because}"),
    };
    let value = match limit.name.as_str() {
        "memory" | "workspace" | "tmp" | "journal" => ByteSize(limit.value).to_string(),
        "cpus" => format!("{} cores", limit.value as f64 / 1000.0),
        _ => limit.value.to_string(),
    };
    format!("  {:<12} {value} ({enforced})", limit.name)
}
