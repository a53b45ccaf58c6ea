//! The backend: placements in, sandboxes out.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cubicle_backend::{Backend, Bound, Consumption, GuestStream, JournalBytes, Probed, Seen, State, Swept};
use cubicle_guest::client::{Guest, WriteFile};
use cubicle_guest::wire::{BindRequest, MOST_LISTENERS_AT_ONCE, SMALL_FILES, SmallFile};
use cubicle_launcher::embryo::Birth;
use cubicle_launcher::plan::{CgroupLimits, HostFacts, TemplatePlan};
use cubicle_launcher::wire::{Reply, Request, Start};
use cubicle_model::receipt::{
    Amendment, Attempts, Cgroups, Enforcement, LimitInForce, MountSeen, SecretsInside,
};
use cubicle_model::{
    Binding, Fault, FileToWrite, Isolation, Kind, Medium, Placement, Receipt, Root, SandboxId,
};
use tokio::sync::Mutex as AsyncMutex;

use crate::host::HostRoot;
use crate::launcher::{Answer, Launcher};
use crate::plan::{Planned, plan_sandbox, plan_template};
use crate::state::{DataDirectory, absent, random};
use crate::{attempts, probe, state};

/// How a backend is opened.
#[derive(Debug, Clone)]
pub struct Options {
    pub data_dir: PathBuf,
    /// Directories of the host that may be mounted into sandboxes, beside those of the data directory. Fixed when
    /// the launcher starts, because it is what stands between a taken-over caller and the rest of the host.
    pub mountable: Vec<PathBuf>,
    pub readiness: Readiness,
}

impl Options {
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: data_dir.into(), mountable: Vec::new(), readiness: Readiness::ManySandboxes }
    }
}

/// What the launcher prepares for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// One sandbox and then no more, as `cubicle run` wants.
    OneSandbox,
    /// Sandboxes all day.
    ManySandboxes,
}

/// Directories below the data directory that may be mounted into sandboxes: what belongs to sandboxes, Python environments,
/// the programs of AI agents and of their worker, and the workspaces that tenants share with their workers.
const MOUNTABLE: [&str; 5] = ["workspaces", "envs", "agents", "worker", "shared"];

/// How many sandboxes to come wait with a process inside.
const NURSERY: usize = 8;

/// Sandboxes on this host. Dropping it ends what is bound.
#[derive(Debug)]
pub struct LocalBackend {
    data: Arc<DataDirectory>,
    launcher: Launcher,
    facts: HostFacts,
    /// The end of the caller's lifeline that only this process holds.
    _lifeline: OwnedFd,
    templates: AsyncMutex<HashMap<Root, Arc<Template>>>,
    guests: Mutex<HashMap<SandboxId, Guest>>,
}

/// A root that the launcher has built.
#[derive(Debug)]
struct Template {
    host: HostRoot,
    planned: Planned<TemplatePlan>,
    attempts: Attempts,
}

impl LocalBackend {
    /// Opens a data directory and starts a launcher with the rights that this process has now. A process that was
    /// started as root should then give them up: `drop_rights`.
    pub async fn open(options: Options) -> Result<Self, Fault> {
        let data = DataDirectory::open(&options.data_dir)?;
        let (lifeline, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| Fault::new(Kind::Full, format!("make a pipe: {error}")))?;
        let mut mountable: Vec<_> = MOUNTABLE.iter().map(|name| data.path().join(name)).collect();
        for path in options.mountable {
            mountable.push(path.canonicalize().map_err(|error| {
                Fault::new(Kind::Invalid, format!("{} cannot be mounted: {error}", path.display()))
                    .because(error)
            })?);
        }
        let start = Start {
            instance: data.instance,
            nursery: if options.readiness == Readiness::OneSandbox { 1 } else { NURSERY },
            refill: options.readiness == Readiness::ManySandboxes,
            mountable,
            data_directory: data.path().to_owned(),
        };
        let (launcher, facts) = Launcher::start(start, data.directory.as_fd(), lifeline.as_fd())?;
        Ok(Self {
            data: Arc::new(data),
            launcher,
            facts,
            _lifeline: held,
            templates: AsyncMutex::new(HashMap::new()),
            guests: Mutex::new(HashMap::new()),
        })
    }

    /// Makes this whole process an unprivileged user, where it is root. The launcher keeps what it needs.
    pub fn drop_rights(&self) -> Result<(), Fault> {
        let Some(user) = self.facts.service_uid else { return Ok(()) };
        cubicle_sys::credentials::become_user(user, user)
            .map_err(|error| Fault::new(Kind::Denied, format!("become user {user}: {error}")).because(error))
    }

    pub fn facts(&self) -> &HostFacts {
        &self.facts
    }

    /// The launcher's process, for tests that end it.
    pub fn launcher_pid(&self) -> u32 {
        self.launcher.pid()
    }

    /// A client of a sandbox's guest. It connects when it is used.
    pub fn guest(&self, id: SandboxId) -> Guest {
        let mut guests = self.guests.lock().expect("nobody panics with the lock");
        guests.entry(id).or_insert_with(|| self.new_guest(id)).clone()
    }

    fn new_guest(&self, id: SandboxId) -> Guest {
        let data = Arc::clone(&self.data);
        let connect = move || {
            let data = Arc::clone(&data);
            async move { data.connect(id).await.map_err(io::Error::other) }
        };
        let fill = |buffer: &mut [u8]| {
            for part in buffer.chunks_mut(32) {
                let bytes: [u8; 32] = random().expect("the kernel has random bytes");
                part.copy_from_slice(&bytes[..part.len()]);
            }
        };
        Guest::new(connect, self.data.key(id), id, fill)
    }

    /// The root of a placement, built and attacked once.
    async fn template(&self, root: &Root) -> Result<Arc<Template>, Fault> {
        let mut templates = self.templates.lock().await;
        if let Some(template) = templates.get(root) {
            return Ok(Arc::clone(template));
        }
        let host = HostRoot::read(root)?;
        let planned = plan_template(root, &host, &self.facts);
        let Planned { name, plan } = planned.clone();
        self.launcher.ask(|tag| Request::Template { tag, name, plan }, &[]).await?;
        let made_with = attempts::made_with(&planned.name, &self.facts);
        let attempts = match attempts::remembered(self.data.path(), &made_with) {
            Some(attempts) => attempts,
            None => {
                let tried = self.attack(root, &host, &planned).await?;
                let attempts = Attempts { made_with, tried };
                attempts::remember(self.data.path(), &attempts)?;
                attempts
            }
        };
        if let Some(success) = attempts.successes().next() {
            return Err(Fault::new(
                Kind::Denied,
                format!(
                    "sandboxes do not hold on this host: an attempt to {} succeeded ({})",
                    success.name, success.outcome
                ),
            )
            .hint("nothing was run; please report this with the output of 'cubicle doctor --json'"));
        }
        let template = Arc::new(Template { host, planned, attempts });
        templates.insert(root.clone(), Arc::clone(&template));
        Ok(template)
    }

    /// Makes every attempt in a sandbox that is thrown away.
    async fn attack(
        &self,
        root: &Root,
        host: &HostRoot,
        planned: &Planned<TemplatePlan>,
    ) -> Result<Vec<cubicle_model::receipt::Attempt>, Fault> {
        let place = attempts::placement(root, SandboxId::from_random(fresh()?));
        let _thrown_away = self.launcher.destroy_in_the_end(place.id);
        self.create(&place, host, planned, None).await?;
        attempts::make(&self.new_guest(place.id)).await
    }

    async fn create(
        &self,
        place: &Placement,
        host: &HostRoot,
        template: &Planned<TemplatePlan>,
        attempts: Option<&Attempts>,
    ) -> Result<Seen, Fault> {
        let made_with = attempts.map(|attempts| attempts.made_with.clone());
        let (plan, furnishing) = plan_sandbox(place, template, host, &self.facts, made_with)?;
        let body = serde_json::to_vec(&Birth { plan, key: *self.data.key(place.id).expose() })
            .map_err(|error| Fault::new(Kind::Internal, "write the plan").because(error))?;
        let workspace = match &place.workspace {
            Medium::Memory => None,
            Medium::Directory(path) => Some(path.clone()),
        };
        let (id, lifetime) = (place.id, place.lifetime);
        let request = |tag| Request::Create { tag, id, furnishing, lifetime, workspace };
        let Answer { reply, body } = self.launcher.ask(request, &body).await?;
        let Reply::Created { .. } = reply else { return Err(unexpected(&reply)) };
        let mut receipt: Receipt = serde_json::from_slice(&body).map_err(|error| {
            Fault::new(Kind::Internal, format!("the receipt of {id} cannot be read")).because(error)
        })?;
        receipt.attempts = attempts.cloned();
        Ok(Seen { id, lifetime, state: State::Ready, labels: place.labels.clone(), receipt: Some(receipt) })
    }

    /// What the launcher changes, as it reads back afterwards.
    async fn change_limits_and_mounts(&self, id: SandboxId, late: &Binding) -> Result<Amendment, Fault> {
        let mounts = late.mounts.clone();
        let limits = CgroupLimits {
            memory: late.limits.memory,
            millicpus: late.limits.millicpus,
            pids: late.limits.pids,
        };
        if limits == CgroupLimits::default() && mounts.is_empty() {
            return Ok(Amendment::default());
        }
        if limits != CgroupLimits::default() && self.facts.cgroups == Cgroups::None {
            let because = self.facts.no_cgroups_because.clone().unwrap_or_default();
            return Err(Fault::new(Kind::Denied, format!("limits cannot be changed here: {because}")));
        }
        match self.launcher.ask(|tag| Request::Bind { tag, id, limits, mounts }, &[]).await?.reply {
            Reply::Bound { limits, mounts, .. } => Ok(Amendment { limits, mounts, ..Amendment::default() }),
            other => Err(unexpected(&other)),
        }
    }

    /// What the guest changes. The receipt is amended by what is foreseen, so that nobody waits for anybody.
    async fn tell_guest(&self, guest: &Guest, late: &Binding, foreseen: &Amendment) -> Result<(), Fault> {
        if only_listens(late) {
            return Ok(());
        }
        let small = late.files.iter().map(|file| file.bytes.len()).sum::<usize>() <= SMALL_FILES;
        let files = late.files.iter().filter(|_| small).cloned();
        let request = BindRequest {
            env: late.env.clone(),
            files: files.map(|FileToWrite { path, bytes, mode }| SmallFile { path, mode, bytes }).collect(),
            secrets: (&late.secrets).into(),
            deadline_seconds: late.limits.wall_seconds,
            amendment: foreseen.clone(),
        };
        guest.bind(&request).await?;
        for file in late.files.iter().filter(|_| !small) {
            let how = WriteFile { mode: Some(file.mode), parents: true, ..WriteFile::default() };
            guest.write_file(&file.path, &file.bytes, how).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for LocalBackend {
    async fn probe(&self) -> Probed {
        probe::probe(self).await
    }

    async fn ensure(&self, place: &Placement) -> Result<Seen, Fault> {
        if place.isolation != Isolation::Namespaces {
            return Err(probe::unavailable(place.isolation));
        }
        if let Some((seen, before)) = self.data.look(place.id)? {
            return same(seen, &before, place);
        }
        let template = self.template(&place.root).await?;
        match self.create(place, &template.host, &template.planned, Some(&template.attempts)).await {
            // Somebody else asked for the same one in the meantime.
            Err(fault) if fault.kind() == Kind::Conflict => match self.data.look(place.id)? {
                Some((seen, before)) => same(seen, &before, place),
                None => Err(Fault::new(Kind::Unavailable, format!("{} is just being made", place.id))),
            },
            outcome => outcome,
        }
    }

    async fn observe(&self, id: SandboxId) -> Result<Option<Seen>, Fault> {
        Ok(self.data.look(id)?.map(|(seen, _)| seen))
    }

    async fn list(&self) -> Result<Vec<Seen>, Fault> {
        self.data.list()
    }

    async fn bind(&self, id: SandboxId, late: &Binding) -> Result<Bound, Fault> {
        refuse_what_binds_early(late)?;
        self.data.slot(id)?.ok_or_else(|| absent(id))?;
        let guest = self.guest(id);
        let foreseen = foresee(late, &self.facts);
        let changing = self.change_limits_and_mounts(id, late);
        let changed = if covers_a_file(late) {
            let changed = changing.await?;
            self.tell_guest(&guest, late, &foreseen).await?;
            changed
        } else {
            let (changed, told) = tokio::join!(changing, self.tell_guest(&guest, late, &foreseen));
            // A launcher that refuses says why; a guest that is gone can only say that it is.
            let changed = changed?;
            told?;
            changed
        };
        let amendment = with_what_the_guest_does(changed, late, &self.facts);
        if amendment != foreseen {
            guest.bind(&BindRequest { amendment: amendment.clone(), ..BindRequest::default() }).await?;
        }
        let mut listeners = Vec::with_capacity(late.listeners.len());
        for some in late.listeners.chunks(MOST_LISTENERS_AT_ONCE) {
            listeners.extend(guest.listen(some).await?);
        }
        Ok(Bound { amendment, listeners })
    }

    async fn connect(&self, id: SandboxId) -> Result<GuestStream, Fault> {
        Ok(GuestStream { stream: self.data.connect(id).await?, key: self.data.key(id) })
    }

    async fn journal(&self, id: SandboxId) -> Result<Option<JournalBytes>, Fault> {
        let journal = self.data.slot(id)?.and_then(|slot| state::open_journal(&slot));
        Ok(journal.map(|journal| -> JournalBytes { Box::new(std::fs::File::from(journal)) }))
    }

    async fn consumption(&self, id: SandboxId) -> Result<Option<Consumption>, Fault> {
        self.data.consumption(id)
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), Fault> {
        self.guests.lock().expect("nobody panics with the lock").remove(&id);
        match self.launcher.ask(|tag| Request::Destroy { tag, id }, &[]).await?.reply {
            Reply::Done { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn gc(&self) -> Result<Swept, Fault> {
        match self.launcher.ask(|tag| Request::Sweep { tag }, &[]).await?.reply {
            Reply::Swept { sandboxes, cgroups, directories, .. } => {
                Ok(Swept { sandboxes, cgroups, directories })
            }
            other => Err(unexpected(&other)),
        }
    }
}

/// What `bind` accepts.
pub(crate) const BINDS_LATE: &[&str] = &["env", "files", "limits", "mounts", "listeners", "secrets"];

/// Whether nothing is asked for but listeners, which come back with one request to the guest and change nothing.
fn only_listens(late: &Binding) -> bool {
    !late.listeners.is_empty() && *late == Binding { listeners: late.listeners.clone(), ..Binding::default() }
}

/// Sizes of file systems and rlimits are fixed when a sandbox is made.
fn refuse_what_binds_early(late: &Binding) -> Result<(), Fault> {
    let early = [
        ("workspace size", late.limits.workspace),
        ("tmp size", late.limits.tmp),
        ("open file limit", late.limits.open_files),
        ("journal size", late.limits.journal),
    ];
    match early.into_iter().find(|(_, value)| value.is_some()) {
        Some((what, _)) => {
            Err(Fault::new(Kind::Denied, format!("the {what} of a ready sandbox cannot be changed"))
                .hint("make a new sandbox with it"))
        }
        None => cubicle_model::Limits::default()
            .changed_by(&late.limits)
            .map(drop)
            .map_err(|error| Fault::new(Kind::Invalid, error.to_string())),
    }
}

/// What a receipt will say when everything is as it is asked for. The launcher reads back what is in force, and where
/// that is something else the sandbox is told.
fn foresee(late: &Binding, facts: &HostFacts) -> Amendment {
    let [memory, pids, cpus] = match facts.cgroups {
        Cgroups::V1 => ["memory.limit_in_bytes", "pids.max", "cpu.cfs_quota_us"],
        Cgroups::V2 | Cgroups::None => ["memory.max", "pids.max", "cpu.max"],
    };
    let asked = [
        ("memory", memory, late.limits.memory),
        ("pids", pids, late.limits.pids),
        ("cpus", cpus, late.limits.millicpus),
    ];
    let limits =
        asked.into_iter().filter_map(|(name, what, value)| Some(in_force(name, what, value?))).collect();
    let mounts = late.mounts.iter().map(|mount| MountSeen {
        target: mount.target.display().to_string(),
        filesystem: "bind".into(),
        read_only: mount.read_only,
        nosuid: true,
        nodev: true,
    });
    let changed = Amendment { limits, mounts: mounts.collect(), ..Amendment::default() };
    with_what_the_guest_does(changed, late, facts)
}

fn with_what_the_guest_does(mut amendment: Amendment, late: &Binding, facts: &HostFacts) -> Amendment {
    amendment.secrets = SecretsInside::of(&late.secrets, facts.privileged);
    amendment
        .limits
        .extend(late.limits.wall_seconds.map(|value| in_force("wall_seconds", "sandboxd", value)));
    amendment
}

fn in_force(name: &str, what: &str, value: u64) -> LimitInForce {
    let enforced = Enforcement::By { what: what.into(), read_back: value };
    LimitInForce { name: name.into(), value, asked: true, enforced }
}

/// Whether a file would be hidden by a mount that comes after it.
fn covers_a_file(late: &Binding) -> bool {
    let below =
        |file: &FileToWrite| late.mounts.iter().any(|mount| Path::new(&file.path).starts_with(&mount.target));
    // A relative path, or one that climbs, is not looked into further.
    let unclear = |file: &FileToWrite| !file.path.starts_with('/') || file.path.contains("..");
    late.files.iter().any(|file| below(file) || unclear(file))
}

/// A second call finds the sandbox, if it is the one that is meant.
fn same(seen: Seen, before: &Placement, place: &Placement) -> Result<Seen, Fault> {
    if before == place {
        return Ok(seen);
    }
    Err(Fault::new(Kind::Conflict, format!("{} exists and is not what is asked for now", place.id))
        .hint("destroy it first, or use another id"))
}

fn fresh() -> Result<[u8; 16], Fault> {
    random().map_err(|error| Fault::new(Kind::Internal, "the kernel has no random bytes").because(error))
}

fn unexpected(reply: &Reply) -> Fault {
    Fault::new(Kind::Internal, format!("the launcher answered {reply:?}"))
}
