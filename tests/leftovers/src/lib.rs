//! What one instance has on this host, looked at from outside: everything that is there and that neither a sandbox that
//! should be there nor a launcher at work accounts for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

/// The numbers that `cubicle` gives to instances as users: the first, and how many each gets.
const FIRST_USER: u32 = 0x7000_0000;
const USERS: u32 = 0x1_0000;
const REGISTRY: &str = "/run/cubicle/users";

/// One data directory and the name that everything made for it carries.
#[derive(Debug, Clone)]
pub struct Instance {
    data: PathBuf,
    name: String,
}

/// Whether this test is the only one on the host that makes sandboxes. Then also processes that nothing else tells
/// apart, those of an ordinary user, can be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    Alone,
    WithOthers,
}

impl Instance {
    /// `None` while the data directory has not been opened by anybody.
    pub fn of(data: &Path) -> Option<Self> {
        let name = fs::read_to_string(data.join("instance")).ok()?.trim().to_owned();
        Some(Self { data: fs::canonicalize(data).ok()?, name })
    }

    /// Processes, mounts, cgroups, directories, links and sockets that belong to none of the kept sandboxes.
    pub fn leftovers(&self, kept: &[String], company: Company) -> Vec<String> {
        // While this is held no launcher takes a slot, so the lists below fit together.
        let _calm = lock_slots(&self.data);
        let mut excused: BTreeSet<u32> = kept.iter().filter_map(|id| self.slot_of(id)).collect();
        let slots = numbers(&self.data.join("slots"));
        excused.extend(slots.iter().filter(|slot| self.is_being_prepared(**slot)));

        let mut found = Vec::new();
        for id in names(&self.data.join("sandboxes")).into_iter().filter(|id| !kept.contains(id)) {
            found.push(format!("link sandboxes/{id}"));
        }
        for slot in slots.iter().filter(|slot| !excused.contains(slot)) {
            let directory = self.data.join("slots").join(slot.to_string());
            found.push(format!("directory slots/{slot} with {}", names(&directory).join(", ")));
        }
        // Those that cannot be found by a data directory that is gone.
        let users = self.users();
        for process in processes().filter(|process| self.slot_of_process(process, users).is_some()) {
            let pid = process.file_name().and_then(|name| name.to_str()?.parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        for cgroup in self.cgroups() {
            for slot in numbers(&cgroup).into_iter().filter(|slot| !excused.contains(slot)) {
                found.push(format!("cgroup {}/{slot}", cgroup.display()));
            }
        }
        self.look_at_processes(&excused, company, &mut found);
        found
    }

    /// Ends what a failed test left and removes the instance's own cgroups, which a killed launcher leaves.
    pub fn forget(&self) {
        for slot in numbers(&self.data.join("slots")) {
            if let Some(pid) = self.pid_1(slot).and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        for cgroup in self.cgroups() {
            for slot in numbers(&cgroup) {
                let _ = fs::remove_dir(cgroup.join(slot.to_string()));
            }
            let _ = fs::remove_dir(cgroup);
        }
    }

    fn look_at_processes(&self, excused: &BTreeSet<u32>, company: Company, found: &mut Vec<String>) {
        let users = self.users();
        let holders: BTreeSet<i32> = excused.iter().filter_map(|slot| self.pid_1(*slot)).collect();
        let host_network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let (mut mount_namespaces, mut networks) = (BTreeSet::new(), BTreeSet::new());
        for process in processes() {
            let name = process.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            match self.slot_of_process(&process, users) {
                Some(slot) if excused.contains(&slot) => {
                    networks.insert(fs::read_link(process.join("ns/net")).unwrap_or_default());
                }
                Some(slot) => {
                    let network = fs::read_link(process.join("ns/net")).unwrap_or_default();
                    found.push(format!("process {name} of slot {slot} in {}", network.display()));
                }
                None if company == Company::Alone && users.is_none() && is_pid_1(&process) => {
                    if name.parse().is_ok_and(|pid: i32| !holders.contains(&pid)) {
                        found.push(format!("process {name}, pid 1 of no sandbox that should be there"));
                    }
                }
                None => {
                    let namespace = fs::read_link(process.join("ns/mnt")).unwrap_or_default();
                    if !is_launcher(&process) && mount_namespaces.insert(namespace) {
                        self.look_at_mounts(&process, found);
                    }
                }
            }
        }
        networks.remove(&host_network);
        if networks.len() > excused.len() {
            found.push(format!("{} network namespaces for {} sandboxes", networks.len(), excused.len()));
        }
    }

    fn look_at_mounts(&self, process: &Path, found: &mut Vec<String>) {
        let below = format!("{}/", self.data.display());
        let text = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
        for line in text.lines() {
            if line.split(' ').skip(3).take(2).any(|path| path.starts_with(&below)) {
                found.push(format!("mount in {}: {line}", process.display()));
            }
        }
    }

    /// The slot that a process belongs to, by its cgroup or its user. The caller's own user has no slot.
    fn slot_of_process(&self, process: &Path, users: Option<u32>) -> Option<u32> {
        let cgroups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        let marker = format!("/cubicle-{}/", self.name);
        if let Some((_, rest)) = cgroups.split_once(&marker) {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            return digits.parse().ok();
        }
        let user = field(process, "Uid:")?.split_whitespace().next()?.parse::<u32>().ok()?;
        let within = user.checked_sub(users?).filter(|within| *within < USERS)?;
        (within >= 2).then_some(within / 2)
    }

    /// The first user of this instance's block, where one is claimed.
    fn users(&self) -> Option<u32> {
        numbers(Path::new(REGISTRY)).into_iter().find_map(|number| {
            let text = fs::read_to_string(Path::new(REGISTRY).join(number.to_string())).ok()?;
            text.starts_with(&self.name).then_some(FIRST_USER + number * USERS)
        })
    }

    fn slot_of(&self, id: &str) -> Option<u32> {
        let link = fs::read_link(self.data.join("sandboxes").join(id)).ok()?;
        link.file_name()?.to_str()?.parse().ok()
    }

    /// Whether a launcher holds the slot for a sandbox that may be asked for next.
    fn is_being_prepared(&self, slot: u32) -> bool {
        let Some(directory) = open_directory(&self.data.join("slots").join(slot.to_string())) else {
            return false;
        };
        flock(&directory, FlockOperation::NonBlockingLockShared).is_err()
    }

    fn pid_1(&self, slot: u32) -> Option<i32> {
        let directory = open_directory(&self.data.join("slots").join(slot.to_string()))?;
        cubicle_launcher::slots::living(&directory).ok()?.map(rustix::process::Pid::as_raw_pid)
    }

    /// The instance's own directory in every hierarchy, at the top or where this process is.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        let own: BTreeMap<String, String> = fs::read_to_string("/proc/self/cgroup")
            .unwrap_or_default()
            .lines()
            .filter_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                Some((fields.next()?.to_owned(), fields.next()?.trim_start_matches('/').to_owned()))
            })
            .collect();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut all = BTreeSet::new();
        for line in mounts.lines() {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let (Some(top), true) = (before.split(' ').nth(4), after.starts_with("cgroup")) else { continue };
            let name = format!("cubicle-{}", self.name);
            all.insert(Path::new(top).join(&name));
            all.extend(own.values().map(|own| Path::new(top).join(own).join(&name)));
        }
        all.into_iter().filter(|path| path.is_dir()).collect()
    }
}

fn lock_slots(data: &Path) -> Option<OwnedFd> {
    let slots = open_directory(&data.join("slots"))?;
    flock(&slots, FlockOperation::LockShared).ok()?;
    Some(slots)
}

fn open_directory(path: &Path) -> Option<OwnedFd> {
    open(path, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()).ok()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

fn numbers(directory: &Path) -> Vec<u32> {
    names(directory).iter().filter_map(|name| name.parse().ok()).collect()
}

fn processes() -> impl Iterator<Item = PathBuf> {
    numbers(Path::new("/proc")).into_iter().map(|pid| Path::new("/proc").join(pid.to_string()))
}

fn field(process: &Path, name: &str) -> Option<String> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
}

fn is_launcher(process: &Path) -> bool {
    fs::read(process.join("cmdline")).is_ok_and(|line| line.starts_with(b"cubicle-launcher\0"))
}

/// Whether this is the first process of some sandbox: made by a launcher, and 1 in the innermost pid namespace.
fn is_pid_1(process: &Path) -> bool {
    let pids = field(process, "NSpid:").unwrap_or_default();
    is_launcher(process) && pids.split_whitespace().skip(1).last() == Some("1")
}
