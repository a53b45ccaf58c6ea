//! The cgroups of an instance: where they are, what is written to them, and how they go.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use cubicle_model::InstanceId;
use cubicle_model::receipt::Cgroups;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, open, openat, unlinkat};
use rustix::process::Pid;

use crate::error::{Failed, Step};
use crate::plan::CgroupLimits;

/// Length of a CPU accounting period; a limit of two cores is 200 ms in each.
const PERIOD_US: u64 = 100_000;
/// What a cgroup must offer for limits to be possible.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// The leaf that processes of a subtree are moved into, to make room for sandboxes beside them.
const CALLERS: &str = "cubicle-caller";
/// How often a subtree is looked through for processes that were forked while others were moved.
const MOST_LOOKS: u32 = 16;

/// Where this instance may make cgroups.
#[derive(Debug)]
pub enum Hierarchy {
    /// One directory per controller.
    V1 {
        memory: OwnedFd,
        pids: OwnedFd,
        cpu: OwnedFd,
    },
    V2 {
        directory: OwnedFd,
    },
    None {
        because: String,
    },
}

/// The cgroups of one sandbox, by the number of its slot.
#[derive(Debug)]
pub enum Cgroup {
    V1 { memory: OwnedFd, pids: OwnedFd, cpu: OwnedFd },
    V2 { directory: OwnedFd },
    None,
}

impl Hierarchy {
    /// Finds the hierarchy and makes the instance's own directories in it.
    pub fn open(instance: InstanceId, privileged: bool) -> Self {
        let (mounts, own) =
            match (fs::read_to_string("/proc/self/mountinfo"), fs::read_to_string("/proc/self/cgroup")) {
                (Ok(mounts), Ok(own)) => (mounts, own),
                _ => return Self::None { because: "/proc cannot be read".into() },
            };
        let found = locate(&mounts, &own);
        match found.open(instance, privileged) {
            Ok(hierarchy) => hierarchy,
            Err(because) => Self::None { because },
        }
    }

    pub fn kind(&self) -> Cgroups {
        match self {
            Self::V1 { .. } => Cgroups::V1,
            Self::V2 { .. } => Cgroups::V2,
            Self::None { .. } => Cgroups::None,
        }
    }

    pub fn missing_because(&self) -> Option<&str> {
        match self {
            Self::None { because } => Some(because),
            _ => None,
        }
    }

    /// Makes the cgroups of a slot. They may be there already, empty, after a crash.
    pub fn make(&self, slot: u32) -> Result<Cgroup, Failed> {
        let make = || {
            for parent in self.directories() {
                match mkdirat(parent, slot.to_string(), Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.open_slot(slot)
        };
        make().step(|| format!("make cgroup {slot}"))
    }

    /// The cgroups of a slot, if they hold this process. They do not when it was moved, or when its sandbox was made
    /// from another scope; what is written to them then limits nobody.
    pub fn holding(&self, slot: u32, process: Pid) -> io::Result<Option<Cgroup>> {
        for parent in self.directories() {
            match read_at(parent.as_fd(), &format!("{slot}/cgroup.procs")) {
                Ok(text) if pids(&text).any(|pid| pid == process.as_raw_pid()) => {}
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        match self {
            Self::None { .. } => Ok(None),
            Self::V1 { .. } | Self::V2 { .. } => self.open_slot(slot).map(Some),
        }
    }

    fn open_slot(&self, slot: u32) -> io::Result<Cgroup> {
        let open = |parent: &OwnedFd| {
            openat(parent, slot.to_string(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        };
        Ok(match self {
            Self::V1 { memory, pids, cpu } => {
                Cgroup::V1 { memory: open(memory)?, pids: open(pids)?, cpu: open(cpu)? }
            }
            Self::V2 { directory } => Cgroup::V2 { directory: open(directory)? },
            Self::None { .. } => Cgroup::None,
        })
    }

    /// Removes the cgroups of a slot. `Ok(false)` means that processes are still in them.
    pub fn remove(&self, slot: u32) -> io::Result<bool> {
        let name = slot.to_string();
        for parent in self.directories() {
            match unlinkat(parent, &name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(rustix::io::Errno::BUSY) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Every process in the cgroups of a slot, for ending what a crash left behind.
    pub fn processes(&self, slot: u32) -> Vec<i32> {
        let mut all: Vec<i32> = self
            .directories()
            .filter_map(|parent| read_at(parent.as_fd(), &format!("{slot}/cgroup.procs")).ok())
            .flat_map(|text| pids(&text).collect::<Vec<_>>())
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The slots that have a cgroup.
    pub fn slots(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self
            .directories()
            .filter_map(|parent| rustix::fs::Dir::read_from(parent).ok())
            .flat_map(|directory| {
                directory
                    .filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok())
                    .collect::<Vec<u32>>()
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Removes the instance's own directories, unless a sandbox is in them. Nobody else may be about to use them.
    pub fn leave(&self) {
        for directory in self.directories() {
            let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
            // A directory that stays is empty, and the next launcher of this instance finds it.
            if let Ok(path) = fs::read_link(link) {
                let _ = fs::remove_dir(path);
            }
        }
    }

    fn directories(&self) -> impl Iterator<Item = &OwnedFd> {
        let (first, second, third) = match self {
            Self::V1 { memory, pids, cpu } => (Some(memory), Some(pids), Some(cpu)),
            Self::V2 { directory } => (Some(directory), None, None),
            Self::None { .. } => (None, None, None),
        };
        [first, second, third].into_iter().flatten()
    }
}

impl Cgroup {
    /// Moves the calling process in, where it was not made inside.
    pub fn enter(&self) -> Result<(), Failed> {
        if let Self::V1 { memory, pids, cpu } = self {
            for directory in [memory, pids, cpu] {
                // A thread that moves only itself needs no lock against forks elsewhere; through `cgroup.procs` the same
                // move stops every fork on the host for a grace period of 5 to 13 ms.
                write_at(directory.as_fd(), "tasks", "0").step(|| "enter the cgroup".into())?;
            }
        }
        Ok(())
    }

    /// The directory that a process can be made in.
    pub fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::V2 { directory } => Some(directory.as_fd()),
            _ => None,
        }
    }

    /// A file that counts how often the kernel killed for memory.
    pub fn oom_events(&self) -> Option<OwnedFd> {
        let (directory, name) = match self {
            Self::V1 { memory, .. } => (memory, "memory.oom_control"),
            Self::V2 { directory } => (directory, "memory.events"),
            Self::None => return None,
        };
        openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Puts limits in force and reads each back: name, file, value.
    pub fn limit(&self, limits: &CgroupLimits) -> Result<Vec<(&'static str, &'static str, u64)>, Failed> {
        let mut in_force = Vec::new();
        let mut put = |name, directory: &OwnedFd, file: &'static str, text: String, unit: u64| {
            let back = write_and_read(directory.as_fd(), file, &text)
                .step(|| format!("set {file} to {text}"))
                .map_err(|error| error.hint("it may be less than the sandbox needs already: ask for more"))?;
            let first = back.split_whitespace().next().unwrap_or_default();
            let value: u64 = first.parse().map_err(|_| {
                Failed::new(cubicle_model::Kind::Internal, format!("{file} reads back as '{}'", back.trim()))
            })?;
            in_force.push((name, file, value / unit));
            Ok::<(), Failed>(())
        };
        // In microseconds of each period; a thousandth of a core is a hundred of them.
        let quota = |millicpus: u64| millicpus.saturating_mul(PERIOD_US) / 1000;
        match self {
            Self::V1 { memory, pids, cpu } => {
                if let Some(bytes) = limits.memory {
                    // Swap would let a workload have more than its limit. With swap included it may never be less than
                    // without, so a limit that is raised needs the other order.
                    let with_swap =
                        || write_at(memory.as_fd(), "memory.memsw.limit_in_bytes", &bytes.to_string());
                    let mut set = || put("memory", memory, "memory.limit_in_bytes", bytes.to_string(), 1);
                    if set().is_err() {
                        let _ = with_swap();
                        set()?;
                    }
                    let _ = with_swap();
                }
                if let Some(count) = limits.pids {
                    put("pids", pids, "pids.max", count.to_string(), 1)?;
                }
                if let Some(millicpus) = limits.millicpus {
                    put("cpus", cpu, "cpu.cfs_quota_us", quota(millicpus).to_string(), PERIOD_US / 1000)?;
                }
            }
            Self::V2 { directory } => {
                if let Some(bytes) = limits.memory {
                    let _ = write_at(directory.as_fd(), "memory.swap.max", "0");
                    put("memory", directory, "memory.max", bytes.to_string(), 1)?;
                }
                if let Some(count) = limits.pids {
                    put("pids", directory, "pids.max", count.to_string(), 1)?;
                }
                if let Some(millicpus) = limits.millicpus {
                    put(
                        "cpus",
                        directory,
                        "cpu.max",
                        format!("{} {PERIOD_US}", quota(millicpus)),
                        PERIOD_US / 1000,
                    )?;
                }
            }
            Self::None => {}
        }
        Ok(in_force)
    }
}

/// Where the controllers are mounted and which cgroup this process is in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Located {
    V1 { memory: Position, pids: Position, cpu: Position },
    V2(Position),
    Nowhere { because: String },
}

/// The top of a hierarchy as this process sees it, and the cgroup that it is in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) top: PathBuf,
    pub(crate) own: PathBuf,
}

impl Position {
    /// Root makes its cgroups at the top: they outlive whatever started the launcher, and a later launcher finds them
    /// from wherever it is started. A user owns at most the subtree it is in. When an earlier launcher moved the caller
    /// aside, that subtree begins one above.
    fn base(self, privileged: bool) -> PathBuf {
        if privileged {
            return self.top;
        }
        match self.own.parent() {
            Some(scope) if self.own.ends_with(CALLERS) => scope.into(),
            _ => self.own,
        }
    }
}

/// Reads `/proc/self/mountinfo` and the `/proc/…/cgroup` of a process.
pub(crate) fn locate(mounts: &str, own: &str) -> Located {
    let own_path = |controller: &str| -> Option<&str> {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            controllers.split(',').any(|name| name == controller).then_some(path)
        })
    };
    // Mount point, root within the hierarchy, type and super options of each cgroup mount.
    let hierarchies: Vec<(&str, &str, &str, &str)> = mounts
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut before = before.split(' ').skip(3);
            let (root, point) = (before.next()?, before.next()?);
            let mut after = after.split(' ');
            let kind = after.next()?;
            let options = after.nth(1).unwrap_or_default();
            matches!(kind, "cgroup" | "cgroup2").then_some((point, root, kind, options))
        })
        .collect();
    let inside = |point: &str, root: &str, path: &str| {
        let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
        Path::new(point).join(below.trim_start_matches('/'))
    };
    let v1 = |controller: &str| -> Option<Position> {
        let (point, root, ..) = hierarchies.iter().find(|(_, _, kind, options)| {
            *kind == "cgroup" && options.split(',').any(|name| name == controller)
        })?;
        Some(Position { top: point.into(), own: inside(point, root, own_path(controller)?) })
    };
    if let (Some(memory), Some(pids), Some(cpu)) = (v1("memory"), v1("pids"), v1("cpu")) {
        return Located::V1 { memory, pids, cpu };
    }
    if let Some((point, root, ..)) = hierarchies.iter().find(|(_, _, kind, _)| *kind == "cgroup2") {
        let own = inside(point, root, own_path("").unwrap_or("/"));
        return Located::V2(Position { top: PathBuf::from(point), own });
    }
    Located::Nowhere { because: "no cgroup hierarchy is mounted".into() }
}

impl Located {
    fn open(self, instance: InstanceId, privileged: bool) -> Result<Hierarchy, String> {
        let name = directory_name(instance);
        match self {
            Self::V1 { memory, pids, cpu } => {
                let enter = |position: Position| make_directory(&position.base(privileged).join(&name));
                Ok(Hierarchy::V1 { memory: enter(memory)?, pids: enter(pids)?, cpu: enter(cpu)? })
            }
            Self::V2(position) => {
                let base = position.base(privileged);
                // Nobody is moved for controllers that are not there.
                must_offer_controllers(&base)?;
                if !is_top_of_host(&base) {
                    step_aside(&base)?;
                }
                enable_controllers(&base)?;
                let path = base.join(&name);
                let directory = make_directory(&path)?;
                enable_controllers(&path)?;
                Ok(Hierarchy::V2 { directory })
            }
            Self::Nowhere { because } => Err(because),
        }
    }
}

/// The instance's own directory in each hierarchy.
pub fn directory_name(instance: InstanceId) -> String {
    format!("cubicle-{instance}")
}

fn make_directory(path: &Path) -> Result<OwnedFd, String> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(format!("cgroup {} cannot be made: {error}", path.display())),
    }
    open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| format!("cgroup {} cannot be opened: {error}", path.display()))
}

fn must_offer_controllers(path: &Path) -> Result<(), String> {
    let offered = fs::read_to_string(path.join("cgroup.controllers"))
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    match missing_controller(&offered) {
        Some(missing) => Err(format!("cgroup {} does not offer the {missing} controller", path.display())),
        None => Ok(()),
    }
}

fn missing_controller(offered: &str) -> Option<&'static str> {
    CONTROLLERS.into_iter().find(|wanted| offered.split_whitespace().all(|name| name != *wanted))
}

fn enable_controllers(path: &Path) -> Result<(), String> {
    let all = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
    fs::write(path.join("cgroup.subtree_control"), all)
        .map_err(|error| format!("controllers of {} cannot be switched on: {error}", path.display()))
}

/// Whether this is the one cgroup that may hold processes beside other cgroups. It has no type; what root of a container
/// sees as the top has one.
fn is_top_of_host(path: &Path) -> bool {
    !path.join("cgroup.type").exists()
}

/// Moves every process of a cgroup into a leaf of it, because a cgroup with controllers for its children may not hold
/// processes itself.
fn step_aside(path: &Path) -> Result<(), String> {
    let leaf = path.join(CALLERS);
    for _ in 0..MOST_LOOKS {
        let processes = fs::read_to_string(path.join("cgroup.procs"))
            .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        if processes.is_empty() {
            return Ok(());
        }
        drop(make_directory(&leaf)?);
        for process in processes.lines() {
            match fs::write(leaf.join("cgroup.procs"), process) {
                Ok(()) => {}
                // It ended before it was its turn.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => {
                    let _ = fs::remove_dir(&leaf);
                    return Err(format!("processes of cgroup {} cannot be moved: {error}", path.display()));
                }
            }
        }
    }
    Err(format!("cgroup {} does not become free of processes", path.display()))
}

/// The processes that a `cgroup.procs` lists. One that this process cannot see is listed as 0.
fn pids(text: &str) -> impl Iterator<Item = i32> {
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0)
}

fn write_at(directory: BorrowedFd<'_>, name: &str, text: &str) -> io::Result<()> {
    let file = openat(directory, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text.as_bytes())?;
    Ok(())
}

fn write_and_read(directory: BorrowedFd<'_>, name: &str, text: &str) -> io::Result<String> {
    let file = openat(directory, name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text.as_bytes())?;
    let mut back = [0; 64];
    let length = rustix::io::pread(&file, &mut back, 0)?;
    Ok(String::from_utf8_lossy(&back[..length]).into_owned())
}

fn read_at(directory: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    let file = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::read_to_string(fs::File::from(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 22 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
34 30 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
38 30 0:34 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 30 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";

    fn at(top: &str, own: &str) -> Position {
        Position { top: top.into(), own: own.into() }
    }

    #[test]
    fn controllers_of_version_1_are_found_beside_an_empty_version_2() {
        let own = "8:pids:/\n4:memory:/jobs/7\n1:cpu,cpuacct:/\n0::/";
        assert_eq!(
            locate(HYBRID, own),
            Located::V1 {
                memory: at("/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/jobs/7"),
                pids: at("/sys/fs/cgroup/pids", "/sys/fs/cgroup/pids/"),
                cpu: at("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu/"),
            }
        );
    }

    #[test]
    fn version_2_is_found_with_the_own_cgroup() {
        let mounts = "25 20 0:23 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        let own = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope";
        assert_eq!(
            locate(mounts, own),
            Located::V2(at(
                "/sys/fs/cgroup",
                "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope"
            ))
        );
    }

    #[test]
    fn a_mount_of_a_subtree_is_taken_into_account() {
        let mounts = "25 20 0:23 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw";
        let Located::V2(position) = locate(mounts, "0::/docker/abc/inner") else { panic!("not version 2") };
        assert_eq!(position.own, Path::new("/sys/fs/cgroup/inner"));
    }

    #[test]
    fn a_launcher_started_by_a_caller_that_was_moved_aside_finds_the_same_base() {
        let base = |own: &str, privileged| at("/sys/fs/cgroup", own).base(privileged);
        let scope = "/sys/fs/cgroup/user.slice/cubicle.scope";
        for own in [scope, "/sys/fs/cgroup/user.slice/cubicle.scope/cubicle-caller"] {
            assert_eq!(base(own, false), Path::new(scope), "{own}");
            assert_eq!(base(own, true), Path::new("/sys/fs/cgroup"), "{own}");
        }
        let similar = "/sys/fs/cgroup/user.slice/not-cubicle-caller";
        assert_eq!(base(similar, false), Path::new(similar));
    }

    #[test]
    fn a_controller_that_is_not_offered_is_named() {
        assert_eq!(missing_controller("cpuset cpu io memory pids\n"), None);
        assert_eq!(missing_controller("cpuset memory pids\n"), Some("cpu"));
        assert_eq!(missing_controller(""), Some("memory"));
    }

    #[test]
    fn processes_that_cannot_be_seen_from_here_are_not_listed() {
        assert_eq!(pids("0\n17\n0\n4711\n").collect::<Vec<_>>(), [17, 4711]);
        assert_eq!(pids("").count(), 0);
    }

    #[test]
    fn without_cgroups_no_process_is_held_by_one() {
        let nowhere = Hierarchy::None { because: "this is a test".into() };
        let this = rustix::process::getpid();
        assert!(nowhere.holding(1, this).expect("nothing is read").is_none());
    }

    #[test]
    fn a_host_without_cgroups_says_so() {
        let Located::Nowhere { because } = locate("", "") else { panic!("found something") };
        assert_eq!(because, "no cgroup hierarchy is mounted");
    }
}
