//! Checks for callers that may not have cgroups: what was asked for is refused with a way out, what was not is marked.

use cubicle_backend::Backend;
use cubicle_model::receipt::{Cgroups, Enforcement};
use cubicle_model::{Binding, Exit, Fault, Kind, LimitRequest};

use crate::check::{Verdict, check_all, ensure, report};
use crate::ground::{Ground, MIB, limit, make, output, place, run};

pub(crate) async fn check(ground: &Ground, because: &str) {
    report(
        ground.suite,
        "the_host_says_why_it_has_no_limits",
        the_host_says_why_it_has_no_limits(ground, because),
    )
    .await;
    check_all!(
        *ground,
        a_limit_asked_for_is_refused_with_the_way_to_a_delegated_scope,
        a_default_limit_is_marked_as_not_enforced,
        processes_are_still_limited,
        a_limit_cannot_be_bound_late,
        the_caller_stays_where_it_was,
    );
}

async fn the_host_says_why_it_has_no_limits(ground: &Ground, because: &str) -> Verdict {
    let backend = ground.open().await?;
    let facts = backend.facts();
    ensure!(facts.cgroups == Cgroups::None, "found {:?}", facts.cgroups);
    let said = facts.no_cgroups_because.as_deref().unwrap_or_default();
    ensure!(said.contains(because), "it says '{said}'");
    Ok(())
}

async fn a_limit_asked_for_is_refused_with_the_way_to_a_delegated_scope(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let memory = LimitRequest { memory: Some(64 * MIB), ..LimitRequest::default() };
    let cpus = LimitRequest { millicpus: Some(500), ..LimitRequest::default() };
    for (name, request) in [("memory", memory), ("cpus", cpus)] {
        let place = place(request)?;
        let refusal: Fault = match backend.ensure(&place).await {
            Err(refusal) => refusal,
            Ok(seen) => return Err(format!("it was made: {:?}", seen.receipt).into()),
        };
        ensure!(refusal.kind() == Kind::Denied, "refused as {:?}: {refusal}", refusal.kind());
        ensure!(refusal.to_string().contains(name), "the refusal does not name {name}: {refusal}");
        let way_out = refusal.way_out().unwrap_or_default();
        ensure!(way_out.contains("systemd-run --user --scope -p Delegate=yes"), "the way out is '{way_out}'");
    }
    Ok(())
}

async fn a_default_limit_is_marked_as_not_enforced(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest::default())?;
    let receipt = make(&backend, &place).await?;
    for name in ["memory", "cpus"] {
        let found = limit(&receipt, name)?;
        ensure!(
            matches!(&found.enforced, Enforcement::No { because } if !because.is_empty()),
            "{name}: {found:?}"
        );
    }
    let said = output(&backend, place.id, &["say", "hello"]).await?;
    ensure!(said == "hello", "it wrote '{said}'");
    Ok(())
}

/// Without cgroups the kernel counts the processes of the sandbox's own user namespace.
async fn processes_are_still_limited(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest { pids: Some(24), ..LimitRequest::default() })?;
    let receipt = make(&backend, &place).await?;
    let found = limit(&receipt, "pids")?;
    ensure!(found.enforced == Enforcement::By { what: "rlimit nproc".into(), read_back: 24 }, "{found:?}");
    let bomb = run(&backend, place.id, &["fork", "200"]).await?;
    let started = String::from_utf8_lossy(&bomb.stdout).trim().to_owned();
    ensure!(bomb.exit == Exit::Code(0), "the bomb ended with {:?}", bomb.exit);
    ensure!(
        started.parse::<u32>().is_ok_and(|started| (8..24).contains(&started)),
        "the bomb started {started}"
    );
    Ok(())
}

async fn a_limit_cannot_be_bound_late(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest::default())?;
    make(&backend, &place).await?;
    let limits = LimitRequest { memory: Some(64 * MIB), ..LimitRequest::default() };
    match backend.bind(place.id, &Binding { limits, ..Binding::default() }).await {
        Err(refusal) if refusal.kind() == Kind::Denied => Ok(()),
        Err(other) => Err(format!("refused as {:?}: {other}", other.kind()).into()),
        Ok(bound) => Err(format!("it was bound: {:?}", bound.amendment).into()),
    }
}

/// Nobody is moved for nothing.
async fn the_caller_stays_where_it_was(ground: &Ground) -> Verdict {
    let _backend = ground.open().await?;
    let own = std::fs::read_to_string("/proc/self/cgroup")?;
    let below = ground.base.strip_prefix("/sys/fs/cgroup")?;
    ensure!(own.trim() == format!("0::/{}", below.display()), "the caller is in '{}'", own.trim());
    ensure!(!ground.base.join("cubicle-caller").exists(), "a cgroup for the caller is left");
    Ok(())
}
