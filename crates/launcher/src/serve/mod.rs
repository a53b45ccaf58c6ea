//! The launcher's loop: requests of its caller, news of sandboxes that are being made, ends of those that live.

mod bind;
mod create;
mod destroy;
mod sweep;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use cubicle_model::receipt::Host;
use cubicle_model::{Kind, SandboxId};
use cubicle_sys::children::{EndedChildren, set_ended_children};
use cubicle_sys::spawn::Permit;
use rustix::event::epoll;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::Timespec;

use crate::cgroup::Hierarchy;
use crate::cradle::Outside;
use crate::error::{Failed, Step};
use crate::plan::{Furnishing, HostFacts};
use crate::slots::Slots;
use crate::uids::{self, Users};
use crate::wire::{Channel, Packet, Reply, Request, Start};
use crate::{readback, seccomp};

/// Where the blocks of users of a host are recorded.
const REGISTRY: &str = "/run/cubicle/users";

/// Serves until the caller hangs up; then what was bound to it ends, too.
pub fn serve(caller: Channel) -> io::Result<()> {
    // A key press in the caller's terminal is for the caller.
    rustix::process::setsid()?;
    set_ended_children(EndedChildren::Vanish)?;
    cubicle_guest::daemon::learn_processor();
    // Two descriptors are held of every sandbox.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let Some(packet) = caller.receive()? else { return Ok(()) };
    let launcher = match Launcher::start(caller, packet) {
        Ok(launcher) => launcher,
        Err((caller, error)) => {
            caller.send(&Reply::Failed { tag: 0, error }, &[], &[])?;
            return Ok(());
        }
    };
    launcher.run()
}

/// A lock that all launchers of a data directory share, on a description of its own.
fn be_present(data: BorrowedFd<'_>) -> Result<OwnedFd, Failed> {
    let locked = || {
        let directory = openat(data, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        flock(&directory, FlockOperation::LockShared)?;
        Ok::<_, rustix::io::Errno>(directory)
    };
    locked().step(|| "lock the data directory".into())
}

struct Launcher {
    caller: Channel,
    poll: OwnedFd,
    start: Start,
    /// The caller's lifeline: whoever holds a copy sees when the caller ends.
    lifeline: OwnedFd,
    /// To come back after a visit to a sandbox's mount namespace.
    own_mounts: OwnedFd,
    /// The data directory, locked together with every other launcher that uses it.
    presence: OwnedFd,
    hierarchy: Hierarchy,
    users: Option<Users>,
    outside: Outside,
    slots: Slots,
    templates: HashMap<String, OwnedFd>,
    /// What the sandbox had that was handed out last: the next one will likely want the same.
    latest_furnishing: Option<Rc<Furnishing>>,
    watched: HashMap<u64, Watched>,
    next_token: u64,
    ready_embryos: VecDeque<u64>,
    preparing_embryos: usize,
    waiting_creates: VecDeque<create::Wanted>,
    sandboxes: HashMap<SandboxId, destroy::Living>,
    waiting_destroys: VecDeque<(u64, destroy::Ending)>,
    ending: usize,
    unremoved: Vec<destroy::Removal>,
}

/// What the loop waits for, by token.
enum Watched {
    Embryo(create::Embryo),
    Birth(create::Birthing),
    /// A sandbox's pid 1; readable when it ended.
    Sandbox(SandboxId),
    Ending(destroy::Ending),
}

impl Watched {
    /// Whether this is on the way to a sandbox that nobody has yet.
    fn is_halfway(&self) -> bool {
        matches!(self, Self::Embryo(_) | Self::Birth(_))
    }
}

const CALLER: u64 = 0;
/// Nobody has asked for anything for so long: a moment to prepare for the next request.
const QUIET_NANOS: i64 = 5_000_000;

impl Launcher {
    fn start(caller: Channel, mut packet: Packet) -> Result<Self, (Channel, Failed)> {
        let descriptors: Vec<OwnedFd> = packet.descriptors.drain(..).collect();
        match Self::prepare(&packet, descriptors) {
            Ok(prepare) => Ok(prepare(caller)),
            Err(error) => Err((caller, error)),
        }
    }

    /// Everything that can fail before the launcher serves.
    fn prepare(packet: &Packet, descriptors: Vec<OwnedFd>) -> Result<impl FnOnce(Channel) -> Self, Failed> {
        let start = match packet.head().step(|| "read the first request".into())? {
            Request::Start(start) => start,
            other => {
                return Err(Failed::new(
                    Kind::Invalid,
                    format!("the first request must be 'start', not {other:?}"),
                ));
            }
        };
        let [data, lifeline]: [OwnedFd; 2] = descriptors
            .try_into()
            .map_err(|_| Failed::new(Kind::Invalid, "'start' comes with a data directory and a lifeline"))?;
        let privileged = enter_own_namespace()?;
        let users = privileged
            .then(|| uids::claim(REGISTRY.as_ref(), start.instance, &start.data_directory))
            .transpose()?;
        if let Some(users) = users {
            let owner = (
                Some(rustix::process::Uid::from_raw(users.service())),
                Some(rustix::process::Gid::from_raw(users.service())),
            );
            rustix::fs::fchown(&data, owner.0, owner.1).step(|| "own the data directory".into())?;
        }
        let slots = Slots::open(data.as_fd(), users.map(Users::service))?;
        let presence = be_present(data.as_fd())?;
        let hierarchy = Hierarchy::open(start.instance, privileged);
        let host = Host {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            privileged,
            cgroups: hierarchy.kind(),
        };
        let permit = random_permit()?;
        let outside =
            Outside { namespaces: readback::namespaces()?, host, filter: seccomp::program(permit), permit };
        let own_mounts =
            std::fs::File::open("/proc/self/ns/mnt").step(|| "open the own mounts".into())?.into();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).step(|| "make a poll".into())?;
        Ok(move |caller| Self {
            caller,
            poll,
            start,
            lifeline,
            own_mounts,
            presence,
            hierarchy,
            users,
            outside,
            slots,
            templates: HashMap::new(),
            latest_furnishing: None,
            watched: HashMap::new(),
            next_token: CALLER + 1,
            ready_embryos: VecDeque::new(),
            preparing_embryos: 0,
            waiting_creates: VecDeque::new(),
            sandboxes: HashMap::new(),
            waiting_destroys: VecDeque::new(),
            ending: 0,
            unremoved: Vec::new(),
        })
    }

    fn run(mut self) -> io::Result<()> {
        let facts = HostFacts {
            kernel: self.outside.host.kernel.clone(),
            privileged: self.outside.host.privileged,
            cgroups: self.outside.host.cgroups,
            no_cgroups_because: self.hierarchy.missing_because().map(str::to_owned),
            service_uid: self.users.map(Users::service),
        };
        self.caller.send(&Reply::Started(facts), &[], &[])?;
        epoll::add(&self.poll, &self.caller, epoll::EventData::new_u64(CALLER), epoll::EventFlags::IN)?;
        self.fill_nursery();
        let mut events = Vec::with_capacity(64);
        let mut abandoned = false;
        loop {
            let patience = self.patience();
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), patience.as_ref()) {
                Ok(0) if self.unremoved.is_empty() => self.fill_nursery(),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            for token in events.drain(..).map(|event: epoll::Event| event.data.u64()) {
                if token != CALLER {
                    self.hear(token);
                } else if !self.obey()? {
                    epoll::delete(&self.poll, &self.caller)?;
                    self.end_what_is_bound();
                    abandoned = true;
                }
            }
            self.retry_removals();
            if abandoned && self.has_nothing_to_end() {
                self.leave();
                return Ok(());
            }
        }
    }

    /// The last one of an instance takes its cgroups along. Whoever starts meanwhile waits for the lock, and makes them anew.
    fn leave(&self) {
        if flock(&self.presence, FlockOperation::NonBlockingLockExclusive).is_ok() {
            self.hierarchy.leave();
        }
    }

    /// How long to wait for events when there is something to do without any.
    fn patience(&self) -> Option<Timespec> {
        let wait = |nanos| Some(Timespec { tv_sec: 0, tv_nsec: nanos });
        if !self.unremoved.is_empty() {
            // Cgroups may stay busy for a moment after their last process ended.
            return wait(500_000);
        }
        let missing = self.ready_embryos.len() + self.preparing_embryos < self.start.nursery;
        if self.start.refill && missing { wait(QUIET_NANOS) } else { None }
    }

    /// Carries out one request. `false` when the caller is gone.
    fn obey(&mut self) -> io::Result<bool> {
        let Some(packet) = self.caller.receive()? else { return Ok(false) };
        match packet.head()? {
            Request::Start(_) => self.reply(&Reply::Failed {
                tag: 0,
                error: Failed::new(Kind::Conflict, "the launcher has been started before"),
            }),
            Request::Template { tag, name, plan } => {
                let built = if self.templates.contains_key(&name) {
                    Ok(())
                } else {
                    let place = self.start.data_directory.join("root");
                    crate::template::build(&plan, &place)
                        .map(|namespace| _ = self.templates.insert(name, namespace))
                };
                self.answer(tag, built);
            }
            Request::Create { tag, id, furnishing, lifetime, workspace } => {
                self.create(create::Wanted { tag, id, furnishing, lifetime, workspace, packet });
            }
            Request::Bind { tag, id, limits, mounts } => match self.bind(id, &limits, &mounts) {
                Ok((limits, mounts)) => self.reply(&Reply::Bound { tag, limits, mounts }),
                Err(error) => self.reply(&Reply::Failed { tag, error }),
            },
            Request::Destroy { tag, id } => self.destroy(tag, id),
            Request::Sweep { tag } => self.sweep(tag),
        }
        Ok(true)
    }

    fn hear(&mut self, token: u64) {
        match self.watched.remove(&token) {
            Some(Watched::Embryo(embryo)) => self.hear_embryo(token, embryo),
            Some(Watched::Birth(birth)) => self.hear_birth(birth),
            Some(Watched::Sandbox(id)) => self.hear_end(id),
            Some(Watched::Ending(ending)) => self.finish(ending),
            // The event was queued before its source was let go.
            None => {}
        }
    }

    /// Watches until the descriptor is closed. The caller says what for, under the token it gets.
    fn watch(&mut self, source: BorrowedFd<'_>) -> io::Result<u64> {
        let token = self.next_token;
        self.next_token += 1;
        epoll::add(&self.poll, source, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        Ok(token)
    }

    fn answer(&self, tag: u64, outcome: Result<(), Failed>) {
        match outcome {
            Ok(()) => self.reply(&Reply::Done { tag }),
            Err(error) => self.reply(&Reply::Failed { tag, error }),
        }
    }

    /// A caller that is gone is noticed when it hangs up; until then there is nobody to tell.
    fn reply(&self, reply: &Reply) {
        self.reply_with(reply, &[]);
    }

    fn reply_with(&self, reply: &Reply, body: &[u8]) {
        let _ = self.caller.send(reply, body, &[]);
    }

    /// The host directory that a mount may come from, opened so that nobody can swap it afterwards.
    fn open_mountable(&self, source: &std::path::Path) -> Result<OwnedFd, Failed> {
        let allowed =
            self.start.mountable.iter().find_map(|root| Some((root, source.strip_prefix(root).ok()?)));
        let Some((root, below)) = allowed else {
            return Err(Failed::new(
                Kind::Denied,
                format!("{} may not be mounted into sandboxes", source.display()),
            )
            .hint(format!("allowed are directories below {}", list(&self.start.mountable))));
        };
        use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
        let say = || format!("open {}", source.display());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(root, flags, Mode::empty()).step(say)?;
        if below.as_os_str().is_empty() {
            return Ok(root);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&root, below, flags, Mode::empty(), resolve).step(say)
    }
}

/// Made anew by every launcher, in memory only.
fn random_permit() -> Result<Permit, Failed> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .step(|| "get random bytes".into())?;
    debug_assert_eq!(filled, bytes.len(), "so few bytes come at once");
    let (first, second) = bytes.split_at(8);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of sixteen is eight"));
    Ok(Permit([number(first), number(second)]))
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Makes sure that this process may make namespaces. Root may; anybody else becomes root of a user namespace of its own
/// first. Returns whether it is the host's root.
fn enter_own_namespace() -> Result<bool, Failed> {
    use cubicle_sys::clone::{Namespaces, unshare};
    use rustix::process::{getegid, geteuid};
    use rustix::thread::{CapabilitySet, capabilities};
    let needed =
        CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN;
    let has = capabilities(None).step(|| "look at the own capabilities".into())?.effective;
    if geteuid().is_root() && has.contains(needed) {
        rustix::thread::set_thread_groups(&[]).step(|| "leave supplementary groups".into())?;
        return Ok(true);
    }
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    unshare(Namespaces::USER.and(Namespaces::MOUNT))
        .step(|| format!("make a user namespace as uid {uid}"))
        .map_err(|error| {
        error.hint(
            "user namespaces are switched off for ordinary users: run as root, or \
                 'sudo sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=100000' \
                 (on recent Ubuntu also 'kernel.apparmor_restrict_unprivileged_userns=0')",
        )
    })?;
    let write = |name: &str, text: String| {
        std::fs::write(format!("/proc/self/{name}"), text).step(|| format!("write {name}"))
    };
    write("setgroups", "deny".into())?;
    write("uid_map", format!("0 {uid} 1\n"))?;
    write("gid_map", format!("0 {gid} 1\n"))?;
    Ok(false)
}
