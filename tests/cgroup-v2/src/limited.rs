//! Checks for callers that may have cgroups.

use std::fs;
use std::path::{Path, PathBuf};

use cubicle_backend::Backend;
use cubicle_backend_local::LocalBackend;
use cubicle_model::receipt::{Cgroups, Receipt};
use cubicle_model::{Binding, Exit, Lifetime, LimitRequest, SandboxId};
use rustix::process::{Pid, Signal, kill_process};

use crate::check::{Verdict, Wrong, check_all, ensure, eventually, report};
use crate::ground::{Ground, MIB, is_enforced, make, output, place, run, spec};

/// Sandboxes that live at once.
const MANY: usize = 20;
/// How many cgroups a launcher keeps ready.
const NURSERY: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Root,
    User,
    RootOfContainer,
}

pub(crate) async fn check(ground: &Ground, caller: Caller) {
    let suite = ground.suite;
    report(suite, "cgroups_of_version_2_are_found", cgroups_of_version_2_are_found(ground, caller)).await;
    if caller != Caller::Root {
        check_all!(*ground, the_caller_is_moved_aside_once);
    }
    check_all!(
        *ground,
        a_command_runs_and_sees_no_cgroup_but_its_own,
        pid_1_is_born_in_the_cgroup_of_its_slot,
        the_nursery_waits_in_cgroups_of_its_own,
        limits_asked_for_are_in_force_and_read_back,
        default_limits_are_in_force,
        a_memory_bomb_is_reported_as_out_of_memory,
        a_fork_bomb_stays_within_its_processes,
        a_busy_loop_is_throttled,
        bind_changes_limits_of_a_living_sandbox,
        a_second_launcher_reaches_the_same_cgroup,
        a_launcher_that_finds_a_cgroup_empty_does_not_claim_to_limit_it,
        destroy_leaves_no_cgroup,
        closing_leaves_no_cgroup,
        gc_after_a_killed_launcher_leaves_no_cgroup,
        twenty_sandboxes_have_a_cgroup_each,
    );
}

async fn cgroups_of_version_2_are_found(ground: &Ground, caller: Caller) -> Verdict {
    let backend = ground.open().await?;
    let facts = backend.facts();
    ensure!(facts.cgroups == Cgroups::V2, "found {:?}: {:?}", facts.cgroups, facts.no_cgroups_because);
    ensure!(facts.privileged == (caller != Caller::User), "privileged is {}", facts.privileged);
    Ok(())
}

/// A cgroup with controllers for its children may not hold processes. However often launchers start from where the
/// caller was moved to, they must find the same place.
async fn the_caller_is_moved_aside_once(ground: &Ground) -> Verdict {
    for round in 0..3 {
        let backend = ground.open().await?;
        for process in [std::process::id(), backend.launcher_pid()] {
            let cgroup = cgroup_of(process)?;
            ensure!(
                cgroup == ground.base.join("cubicle-caller"),
                "process {process} is in {} in round {round}",
                cgroup.display()
            );
        }
    }
    let left = fs::read_to_string(ground.base.join("cgroup.procs"))?;
    ensure!(left.is_empty(), "still in {}: {left}", ground.base.display());
    Ok(())
}

async fn a_command_runs_and_sees_no_cgroup_but_its_own(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest::default())?;
    let receipt = make(&backend, &place).await?;
    ensure!(receipt.host.cgroups == Cgroups::V2, "the receipt says {:?}", receipt.host.cgroups);
    ensure!(receipt.contradictions.is_empty(), "contradictions: {:?}", receipt.contradictions);
    let said = output(&backend, place.id, &["say", "hello"]).await?;
    ensure!(said == "hello", "it wrote '{said}'");
    let own = output(&backend, place.id, &["show", "/proc/self/cgroup"]).await?;
    ensure!(own == "0::/", "inside its cgroup is '{own}'");
    let outside = output(&backend, place.id, &["show", "/sys/fs/cgroup/cgroup.controllers"]).await?;
    ensure!(outside.contains("No such file"), "inside /sys/fs/cgroup shows '{outside}'");
    Ok(())
}

/// Nothing ever writes a pid into the cgroup of a slot: a process that is there was cloned into it.
async fn pid_1_is_born_in_the_cgroup_of_its_slot(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest::default())?;
    make(&backend, &place).await?;
    let pid = pid_1(ground, place.id).await?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let inside = status.lines().find(|line| line.starts_with("NSpid:")).unwrap_or_default();
    ensure!(inside.ends_with("\t1"), "process {pid} is not a pid 1: {inside}");
    let (found, slot) = (cgroup_of(pid)?, ground.cgroup(place.id)?);
    ensure!(found == slot, "pid 1 is in {} and not in {}", found.display(), slot.display());
    Ok(())
}

async fn the_nursery_waits_in_cgroups_of_its_own(ground: &Ground) -> Verdict {
    let _backend = ground.open().await?;
    let instance = ground.instance()?;
    let populated = || {
        let Ok(slots) = fs::read_dir(&instance) else { return 0 };
        let waits = |path: PathBuf| {
            fs::read_to_string(path.join("cgroup.procs")).is_ok_and(|pids| pids.lines().count() == 1)
        };
        slots.filter_map(Result::ok).filter(|slot| waits(slot.path())).count()
    };
    eventually("a process in every waiting cgroup", || populated() == NURSERY).await
}

async fn limits_asked_for_are_in_force_and_read_back(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let request = LimitRequest {
        memory: Some(96 * MIB),
        millicpus: Some(500),
        pids: Some(40),
        ..LimitRequest::default()
    };
    let place = place(request)?;
    let receipt = make(&backend, &place).await?;
    is_enforced(&receipt, "memory", "memory.max", 96 * MIB)?;
    is_enforced(&receipt, "cpus", "cpu.max", 500)?;
    is_enforced(&receipt, "pids", "pids.max", 40)?;
    files_say(ground, place.id, &(96 * MIB).to_string(), "50000 100000", "40")
}

async fn default_limits_are_in_force(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest::default())?;
    let receipt = make(&backend, &place).await?;
    let limits = place.limits;
    is_enforced(&receipt, "memory", "memory.max", limits.memory.value)?;
    is_enforced(&receipt, "cpus", "cpu.max", limits.millicpus.value)?;
    is_enforced(&receipt, "pids", "pids.max", limits.pids.value)?;
    let swap = ground.read(place.id, "memory.swap.max");
    // A kernel without swap has no such file, and nothing to limit.
    ensure!(swap.as_ref().map_or(true, |most| most == "0"), "swap is limited to {swap:?}");
    Ok(())
}

async fn a_memory_bomb_is_reported_as_out_of_memory(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest { memory: Some(48 * MIB), ..LimitRequest::default() })?;
    make(&backend, &place).await?;
    let fits = output(&backend, place.id, &["eat", "16"]).await?;
    ensure!(fits == "16", "16 MiB of 48 did not fit: {fits}");
    let bomb = run(&backend, place.id, &["eat", "200"]).await?;
    ensure!(bomb.exit == Exit::Oom, "the bomb ended with {:?}", bomb.exit);
    let events = ground.read(place.id, "memory.events")?;
    ensure!(events.lines().any(|line| line == "oom_kill 1"), "the kernel counted {events}");
    let after = output(&backend, place.id, &["say", "alive"]).await?;
    ensure!(after == "alive", "afterwards it wrote '{after}'");
    Ok(())
}

async fn a_fork_bomb_stays_within_its_processes(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest { pids: Some(24), ..LimitRequest::default() })?;
    make(&backend, &place).await?;
    let started: u64 = output(&backend, place.id, &["fork", "200"]).await?.parse()?;
    ensure!((8..24).contains(&started), "the bomb started {started} processes");
    let events = ground.read(place.id, "pids.events")?;
    ensure!(events.starts_with("max ") && events != "max 0", "the kernel refused nothing: {events}");
    let after = output(&backend, place.id, &["say", "alive"]).await?;
    ensure!(after == "alive", "afterwards it wrote '{after}'");
    Ok(())
}

async fn a_busy_loop_is_throttled(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest { millicpus: Some(100), ..LimitRequest::default() })?;
    make(&backend, &place).await?;
    let guest = backend.guest(place.id);
    guest.exec_in_background(&spec(&["spin"])).await?;
    let throttled = || {
        let stat = ground.read(place.id, "cpu.stat").unwrap_or_else(|_| String::new());
        stat.lines()
            .filter_map(|line| line.strip_prefix("nr_throttled ")?.parse::<u64>().ok())
            .any(|times| times > 2)
    };
    eventually("throttling of a busy loop", throttled).await
}

async fn bind_changes_limits_of_a_living_sandbox(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest { memory: Some(64 * MIB), ..LimitRequest::default() })?;
    make(&backend, &place).await?;
    for (memory, millicpus, pids) in [(128, 1500, 99), (32, 250, 12)] {
        let receipt = bind(&backend, place.id, memory, millicpus, pids).await?;
        is_enforced(&receipt, "memory", "memory.max", memory * MIB)?;
        is_enforced(&receipt, "cpus", "cpu.max", millicpus)?;
        is_enforced(&receipt, "pids", "pids.max", pids)?;
        let quota = format!("{} 100000", millicpus * 100);
        files_say(ground, place.id, &(memory * MIB).to_string(), &quota, &pids.to_string())?;
    }
    let bomb = run(&backend, place.id, &["eat", "100"]).await?;
    ensure!(bomb.exit == Exit::Oom, "a bomb under the lowered limit ended with {:?}", bomb.exit);
    Ok(())
}

/// A receipt of a cgroup that the sandbox is not in would be a lie.
async fn a_second_launcher_reaches_the_same_cgroup(ground: &Ground) -> Verdict {
    let mut place = place(LimitRequest::default())?;
    place.lifetime = Lifetime::Durable;
    let maker = ground.open().await?;
    make(&maker, &place).await?;
    let before = pid_1(ground, place.id).await?;
    drop(maker);

    let finder = ground.open().await?;
    let receipt = bind(&finder, place.id, 64, 700, 33).await?;
    is_enforced(&receipt, "pids", "pids.max", 33)?;
    files_say(ground, place.id, &(64 * MIB).to_string(), "70000 100000", "33")?;
    let after = pid_1(ground, place.id).await?;
    ensure!(before == after, "pid 1 was {before} and is {after}");
    let bomb = run(&finder, place.id, &["eat", "100"]).await?;
    ensure!(bomb.exit == Exit::Oom, "a bomb under the new limit ended with {:?}", bomb.exit);
    finder.destroy(place.id).await?;
    drop(finder);
    ground.no_slot_is_left().await
}

/// A durable sandbox keeps the cgroup of the scope it was made in. Here somebody moved its processes away, which looks
/// the same to a launcher as being in another scope.
async fn a_launcher_that_finds_a_cgroup_empty_does_not_claim_to_limit_it(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest::default())?;
    make(&backend, &place).await?;
    let pid = pid_1(ground, place.id).await?;
    let elsewhere = ground.base.join("elsewhere");
    fs::create_dir(&elsewhere)?;
    fs::write(elsewhere.join("cgroup.procs"), pid.to_string())?;
    let refused = bind(&backend, place.id, 64, 700, 33).await;
    backend.destroy(place.id).await?;
    eventually("the end of the process elsewhere", || fs::remove_dir(&elsewhere).is_ok()).await?;
    match refused {
        Ok(receipt) => Err(format!("the receipt claims {:?}", receipt.limits).into()),
        Err(_) => Ok(()),
    }
}

async fn destroy_leaves_no_cgroup(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest::default())?;
    make(&backend, &place).await?;
    backend.guest(place.id).exec_in_background(&spec(&["wait"])).await?;
    let cgroup = ground.cgroup(place.id)?;
    ensure!(cgroup.exists(), "{} is not there", cgroup.display());
    backend.destroy(place.id).await?;
    ensure!(!cgroup.exists(), "{} is still there", cgroup.display());
    let seen = backend.observe(place.id).await?;
    ensure!(seen.is_none(), "it is still seen: {seen:?}");
    Ok(())
}

async fn closing_leaves_no_cgroup(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    for _ in 0..3 {
        let place = place(LimitRequest::default())?;
        make(&backend, &place).await?;
        backend.guest(place.id).exec_in_background(&spec(&["wait"])).await?;
    }
    drop(backend);
    ground.no_slot_is_left().await
}

async fn gc_after_a_killed_launcher_leaves_no_cgroup(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let place = place(LimitRequest::default())?;
    make(&backend, &place).await?;
    backend.guest(place.id).exec_in_background(&spec(&["wait"])).await?;
    let pid = pid_1(ground, place.id).await?;
    kill_process(pid_of(backend.launcher_pid())?, Signal::KILL)?;
    // The sandbox is bound to its caller, not to the launcher.
    drop(backend);
    eventually("the end of pid 1", || !Path::new(&format!("/proc/{pid}")).exists()).await?;
    ensure!(ground.slots()? > 0, "the killed launcher left nothing to sweep");

    let second = ground.open().await?;
    second.gc().await?;
    drop(second);
    ground.no_slot_is_left().await?;
    let slots = fs::read_dir(ground.data.join("slots"))?.count();
    ensure!(slots == 0, "{slots} slots are left in the data directory");
    Ok(())
}

async fn twenty_sandboxes_have_a_cgroup_each(ground: &Ground) -> Verdict {
    let backend = ground.open().await?;
    let mut cgroups = std::collections::BTreeSet::new();
    let mut places = Vec::new();
    for number in 0..MANY {
        let place = place(LimitRequest { pids: Some(100 + number as u64), ..LimitRequest::default() })?;
        make(&backend, &place).await?;
        cgroups.insert(ground.cgroup(place.id)?);
        places.push(place);
    }
    ensure!(cgroups.len() == MANY, "{} cgroups for {MANY} sandboxes", cgroups.len());
    for (number, place) in places.iter().enumerate() {
        let most = ground.read(place.id, "pids.max")?;
        ensure!(most == (100 + number).to_string(), "sandbox {number} may have {most} processes");
        let said = output(&backend, place.id, &["say", &number.to_string()]).await?;
        ensure!(said == number.to_string(), "sandbox {number} wrote '{said}'");
    }
    for place in &places {
        backend.destroy(place.id).await?;
    }
    ensure!(
        cgroups.iter().all(|cgroup| !cgroup.exists() || is_a_nursery(cgroup)),
        "cgroups are left: {cgroups:?}"
    );
    drop(backend);
    ground.no_slot_is_left().await
}

/// A freed slot may have been taken again by a process that waits for the next sandbox.
fn is_a_nursery(cgroup: &Path) -> bool {
    fs::read_to_string(cgroup.join("cgroup.procs")).is_ok_and(|pids| pids.lines().count() <= 1)
}

async fn bind(
    backend: &LocalBackend,
    id: SandboxId,
    mebibytes: u64,
    millicpus: u64,
    pids: u64,
) -> Result<Receipt, Wrong> {
    let limits = LimitRequest {
        memory: Some(mebibytes * MIB),
        millicpus: Some(millicpus),
        pids: Some(pids),
        ..LimitRequest::default()
    };
    backend.bind(id, &Binding { limits, ..Binding::default() }).await?;
    let seen = backend.observe(id).await?.ok_or("the bound sandbox is gone")?;
    Ok(seen.receipt.ok_or("the bound sandbox has no receipt")?)
}

fn files_say(ground: &Ground, id: SandboxId, memory: &str, cpu: &str, pids: &str) -> Verdict {
    for (file, wanted) in [("memory.max", memory), ("cpu.max", cpu), ("pids.max", pids)] {
        let found = ground.read(id, file)?;
        ensure!(found == wanted, "{file} is '{found}', not '{wanted}'");
    }
    Ok(())
}

/// pid 1 of a sandbox as the machine sees it.
async fn pid_1(ground: &Ground, id: SandboxId) -> Result<u32, Wrong> {
    let procs = ground.cgroup(id)?.join("cgroup.procs");
    let mut found = None;
    let is_there = || {
        let pids = fs::read_to_string(&procs).unwrap_or_else(|_| String::new());
        found = pids.lines().filter_map(|pid| pid.parse().ok()).find(|pid| is_pid_1(*pid));
        found.is_some()
    };
    eventually("pid 1 in its cgroup", is_there).await?;
    Ok(found.ok_or("pid 1 is gone")?)
}

fn is_pid_1(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_else(|_| String::new());
    status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
}

/// The cgroup of a process, below where the hierarchy is mounted.
fn cgroup_of(pid: u32) -> Result<PathBuf, Wrong> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let path = text.trim().strip_prefix("0::").ok_or_else(|| format!("process {pid} is in '{text}'"))?;
    Ok(Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')))
}

fn pid_of(number: u32) -> Result<Pid, Wrong> {
    Ok(Pid::from_raw(number.cast_signed()).ok_or("the launcher has no pid")?)
}
