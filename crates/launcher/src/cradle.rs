//! From a furnished embryo to a confined guest: pid 1 gives up every right that its making needed, looks at what it has
//! become, and only then serves.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use cubicle_guest::daemon::{self, Daemon, Workload};
use cubicle_guest::hello::Key;
use cubicle_model::receipt::{
    self, Attempts, Enforcement, Host, LimitInForce, Observed, Receipt, SecretsInside, judge,
};
use cubicle_model::{Kind, Lifetime};
use cubicle_sys::children::exit_now;
use cubicle_sys::descriptors::close_all_except;
use cubicle_sys::spawn::Permit;
use rustix::fs::statvfs;
use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, LinkNameSpaceType, move_into_link_name_space,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_res_gid,
    set_thread_res_uid,
};

use crate::error::{Failed, Step};
use crate::plan::{Enforcer, SandboxPlan, WORKLOAD_ID};
use crate::readback;
use crate::wire::{Channel, FromCradle};

/// What stays the same for every sandbox of a launcher.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) namespaces: BTreeMap<String, u64>,
    pub(crate) host: Host,
    pub(crate) filter: Vec<cubicle_sys::seccomp::Instruction>,
    /// What the filter lets pid 1 tag execs with.
    pub(crate) permit: Permit,
}

/// Everything pid 1 brings along.
pub(crate) struct Cradle<'a> {
    pub(crate) plan: SandboxPlan,
    pub(crate) key: Key,
    pub(crate) user_namespace: OwnedFd,
    pub(crate) journal: OwnedFd,
    pub(crate) control: OwnedFd,
    pub(crate) lifeline: Option<OwnedFd>,
    pub(crate) oom_events: Option<OwnedFd>,
    /// The way back in for a launcher that will not be allowed to look for it later.
    pub(crate) own_mounts: Option<OwnedFd>,
    pub(crate) cgroup_limits: Vec<(&'static str, &'static str, u64)>,
    pub(crate) outside: &'a Outside,
}

impl Cradle<'_> {
    /// Returns only when something failed.
    pub(crate) fn grow_up(mut self, launcher: &Channel) -> Failed {
        match self.prepare() {
            Ok(receipt) => self.serve(launcher, receipt),
            Err(failure) => failure,
        }
    }

    fn prepare(&mut self) -> Result<Receipt, Failed> {
        rustix::system::sethostname(self.plan.hostname.as_bytes()).step(|| "set the host name".into())?;
        self.limit_resources()?;
        if !self.plan.two_uids {
            let mounts = std::fs::File::open("/proc/self/ns/mnt").step(|| "open the own mounts".into())?;
            self.own_mounts = Some(mounts.into());
        }
        self.give_up_rights()?;
        rustix::process::chdir("/workspace").step(|| "enter /workspace".into())?;
        // From here on anyone who finds the journal can tell that this sandbox lives, and which process it is.
        cubicle_sys::lock::set_exclusive(self.journal.as_fd()).step(|| "lock the journal".into())?;
        self.write_receipt()
    }

    fn limit_resources(&self) -> Result<(), Failed> {
        for (name, value) in &self.plan.rlimits {
            let resource = resource(name).ok_or_else(|| {
                Failed::new(Kind::Invalid, format!("the plan names an unknown rlimit '{name}'"))
            })?;
            // A limit that is lower already stays: it cannot be raised, and it keeps what was promised.
            let highest = rustix::process::getrlimit(resource).maximum.map_or(*value, |now| now.min(*value));
            let limit = Rlimit { current: Some(highest), maximum: Some(highest) };
            setrlimit(resource, limit).step(|| format!("limit {name} to {value}"))?;
        }
        Ok(())
    }

    /// The user namespace comes last: the others stay owned by the launcher's, so that no capability that could be had
    /// inside has power over mounts, network or processes.
    fn give_up_rights(&self) -> Result<(), Failed> {
        move_into_link_name_space(self.user_namespace.as_fd(), Some(LinkNameSpaceType::User))
            .step(|| "enter the user namespace".into())?;
        let mut kept = CapabilitySet::empty();
        if self.plan.two_uids {
            set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).step(|| "become group 0".into())?;
            set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).step(|| "become user 0".into())?;
            kept = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
        }
        for number in 0..64 {
            match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
                Ok(()) => {}
                // Past the newest capability that this kernel knows.
                Err(rustix::io::Errno::INVAL) => break,
                Err(error) => return Err(error).step(|| "empty the bounding set".into()),
            }
        }
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets).step(|| "give up capabilities".into())?;
        set_no_new_privs(true).step(|| "set no_new_privs".into())?;
        cubicle_sys::seccomp::install(&self.outside.filter)
            .step(|| "install the system call filter".into())?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable).step(|| "hide memory from debuggers".into())
    }

    fn write_receipt(&self) -> Result<Receipt, Failed> {
        let observed = readback::observe(&self.plan)?;
        let expected = receipt::Expected {
            outside_namespaces: self.outside.namespaces.clone(),
            ..self.plan.expected.clone()
        };
        let (limits, missed) = self.limits_in_force(&observed)?;
        let mut contradictions = judge(&expected, &observed);
        contradictions.extend(missed);
        Ok(Receipt {
            version: receipt::VERSION,
            sandbox: self.plan.id,
            isolation: self.plan.isolation,
            host: self.outside.host.clone(),
            limits,
            observed,
            secrets: SecretsInside::default(),
            attempts: self
                .plan
                .attempts_made_with
                .clone()
                .map(|made_with| Attempts { made_with, tried: Vec::new() }),
            contradictions,
        })
    }

    fn limits_in_force(&self, observed: &Observed) -> Result<(Vec<LimitInForce>, Vec<String>), Failed> {
        let mut missed = Vec::new();
        let mut limits = Vec::new();
        for planned in &self.plan.limits {
            let (what, read_back) = match &planned.by {
                Enforcer::Cgroup => {
                    match self.cgroup_limits.iter().find(|(name, ..)| *name == planned.name) {
                        Some((_, file, value)) => ((*file).to_owned(), Some(*value)),
                        None => ("cgroup".into(), None),
                    }
                }
                Enforcer::Rlimit { name } => (format!("rlimit {name}"), observed.rlimits.get(name).copied()),
                Enforcer::TmpfsSize { target } => {
                    let stat =
                        statvfs(target).step(|| format!("look at the size of {}", target.display()))?;
                    (format!("size of {}", target.display()), Some(stat.f_blocks * stat.f_frsize))
                }
                Enforcer::Guest => ("sandboxd".into(), Some(planned.value)),
                Enforcer::Nobody { because } => {
                    limits.push(planned.in_force(Enforcement::No { because: because.clone() }));
                    continue;
                }
            };
            match read_back {
                Some(value) if value <= planned.value.next_multiple_of(PAGE) => {
                    limits.push(planned.in_force(Enforcement::By { what, read_back: value }));
                }
                other => missed.push(format!(
                    "{} should be limited to {} by {what} but reads back {other:?}",
                    planned.name, planned.value
                )),
            }
        }
        Ok((limits, missed))
    }

    fn serve(self, launcher: &Channel, receipt: Receipt) -> Failed {
        let Self { plan, key, journal, control, lifeline, oom_events, own_mounts, outside, .. } = self;
        let body = match serde_json::to_string(&receipt) {
            Ok(body) => body,
            Err(error) => return Failed::new(Kind::Internal, format!("write the receipt: {error}")),
        };
        // What made the sandbox, directories of the host among it, is not for whoever takes over pid 1.
        let kept = [Some(launcher.as_fd()), Some(journal.as_fd()), Some(control.as_fd())]
            .into_iter()
            .chain([&lifeline, &oom_events, &own_mounts].map(|fd| fd.as_ref().map(AsFd::as_fd)))
            .flatten()
            .map(|fd| fd.as_raw_fd())
            .chain([0, 1, 2])
            .collect::<Vec<_>>();
        if let Err(error) = close_all_except(&kept) {
            return Failed::new(Kind::Internal, format!("close what made the sandbox: {error}"));
        }
        let started = Daemon::start(daemon::Config {
            sandbox: plan.id,
            key,
            listener: Some(control),
            connections: Vec::new(),
            journal,
            journal_limit: plan.journal_limit,
            place: plan.place,
            receipt: Some(body.clone()),
            lifeline: lifeline.filter(|_| plan.lifetime == Lifetime::Bound),
            deadline_seconds: plan.deadline_seconds,
            workload: if plan.two_uids {
                Workload::TwoUids { uid: WORKLOAD_ID, gid: WORKLOAD_ID }
            } else {
                Workload::OneUid
            },
            env: plan.env,
            secrets: SECRETS.into(),
            oom_events,
            max_execs: daemon::DEFAULT_MAX_EXECS,
            max_executes: daemon::DEFAULT_MAX_EXECUTES,
            builtin_exe: None,
            permit: outside.permit,
        });
        // From its first moment a published sandbox has a journal that tells what it is.
        let daemon = match started {
            Ok(daemon) => daemon,
            Err(error) => return Failed::new(Kind::Internal, with_cause(&error)),
        };
        // The launcher decides whether the sandbox is handed out.
        let ready = FromCradle::Ready { contradictions: receipt.contradictions };
        let beside: Vec<_> = own_mounts.iter().map(AsFd::as_fd).collect();
        if let Err(error) = launcher.send(&ready, body.as_bytes(), &beside) {
            return Failed::new(Kind::Unavailable, format!("the launcher is gone: {error}"));
        }
        drop(own_mounts);
        // Until the launcher has published the sandbox it is nobody's; when the launcher dies first, so does it.
        match launcher.receive() {
            Ok(Some(_)) => daemon.serve(),
            Ok(None) | Err(_) => exit_now(0),
        }
    }
}

const PAGE: u64 = 4096;
/// Of pid 1's own, in the scratch directory; `/var/secrets` leads there.
const SECRETS: &str = "/run/secrets";

fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

pub(crate) fn resource(name: &str) -> Option<Resource> {
    Some(match name {
        "nofile" => Resource::Nofile,
        "nproc" => Resource::Nproc,
        "core" => Resource::Core,
        "memlock" => Resource::Memlock,
        "msgqueue" => Resource::Msgqueue,
        "nice" => Resource::Nice,
        "rtprio" => Resource::Rtprio,
        "sigpending" => Resource::Sigpending,
        _ => return None,
    })
}
