//! What a sandbox will be, as a value: no file is read and nothing is made here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cubicle_launcher::plan::{
    CgroupLimits, Enforcer, Furnishing, HostFacts, Owner, PlannedLimit, PrivateMount, RootStep, SandboxPlan,
    ScratchDirectory, TemplatePlan, WORKLOAD_ID,
};
use cubicle_model::receipt::{Cgroups, Expected, MountRule};
use cubicle_model::{Fault, Kind, Limit, Medium, Placement, Root};

use crate::host::{EntryKind, HostRoot};

/// What a sandbox of the host's own root shows of it. Everything else of the host is not there.
const SHOWN_OF_HOST: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix", "gnu"];
/// What is made anew in every root.
const MADE: &[&str] = &[
    "dev",
    "etc",
    "home",
    "mnt",
    "proc",
    "run",
    "sys",
    "task",
    "tmp",
    "var",
    "workspace",
    "root",
    ".cubicle",
];
/// Directories of `/etc` that programs do not work without and that tell nothing of the host's users or keys. Each is a
/// mount in every sandbox.
const ETC_DIRECTORIES: &[&str] = &[
    "alternatives",
    "fonts",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "java-25-openjdk",
    "pki",
    "crypto-policies",
];
const ETC_FILES: &[&str] = &[
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "timezone",
    "mime.types",
    "protocols",
    "services",
    "shells",
    "inputrc",
    "bash.bashrc",
    "profile",
    "os-release",
    "debian_version",
    "magic",
    "ethertypes",
    "rpc",
    "login.defs",
    "gai.conf",
    "ca-certificates.conf",
    "wgetrc",
    "nanorc",
];
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
/// Files below `/proc` that tell of the host or act on it and that file permissions alone would show. Each costs a mount
/// in every sandbox; what only the host's root may open is not in the list, because nobody inside is that.
const COVERED_FILES_OF_PROC: &[&str] = &[
    "bootconfig",
    "cmdline",
    "diskstats",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "latency_stats",
    "mdstat",
    "modules",
    "partitions",
    "sched_debug",
    "softirqs",
    "sysrq-trigger",
];
/// The same for directories: devices, file systems and interrupts of the host, and triggers on its load.
const COVERED_DIRECTORIES_OF_PROC: &[&str] =
    &["acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "irq", "pressure", "scsi"];
const READ_ONLY_OF_PROC: &[&str] = &["sys"];

/// Where an unprivileged launcher keeps the host's `/proc` visible while a sandbox is made.
const HOST_PROC: &str = ".cubicle/host-proc";

/// A root filesystem and a name that changes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned<T> {
    pub name: String,
    pub plan: T,
}

/// The read-only root that all sandboxes of this kind share.
pub fn plan_template(root: &Root, host: &HostRoot, facts: &HostFacts) -> Planned<TemplatePlan> {
    let mut steps = Steps::default();
    steps.directory("dev", 0o755);
    if facts.privileged {
        steps.0.push(RootStep::DeviceFilesystem { path: "dev".into() });
    }
    for name in ["dev/pts", "dev/shm", "etc", "home", "home/agent", "proc", "run", "sys"] {
        steps.directory(name, 0o755);
    }
    steps.directory("tmp", 0o1777);
    // What a task is given is mounted on its own directory.
    for name in ["task", "var", "var/cache", "var/lib", "var/log", "workspace", ".cubicle"] {
        steps.directory(name, 0o755);
    }
    steps.link("mnt", "/run/mnt");
    steps.link("var/run", "/run");
    steps.link("var/secrets", "/run/secrets");
    steps.link("var/tmp", "/tmp");
    steps.directory(".cubicle/empty", 0o755);
    steps.directory(".cubicle/empty/directory", 0o755);
    steps.file(".cubicle/empty/file", "");

    for entry in &host.entries {
        let shown = match root {
            Root::Host => SHOWN_OF_HOST.contains(&entry.name.as_str()),
            Root::Directory(_) => !MADE.contains(&entry.name.as_str()),
        };
        match &entry.kind {
            _ if !shown => {}
            EntryKind::Symlink(target) => steps.link(&entry.name, target),
            EntryKind::Directory => {
                steps.directory(&entry.name, 0o755);
                steps.bind(host.base.join(&entry.name), &entry.name);
            }
        }
    }
    plan_etc(&mut steps, host);
    plan_dev(&mut steps, host, facts);
    if !facts.privileged {
        steps.directory(HOST_PROC, 0o755);
        steps.0.push(RootStep::HostProc { path: HOST_PROC.into() });
    }
    let plan = TemplatePlan { steps: steps.0 };
    let text = serde_json::to_string(&plan).expect("a plan is plain data");
    Planned { name: digest(text.as_bytes()), plan }
}

fn plan_etc(steps: &mut Steps, host: &HostRoot) {
    let from = host.base.join("etc");
    let has = |name: &&&str| host.etc.iter().any(|entry| entry == **name);
    for name in ETC_DIRECTORIES.iter().filter(has) {
        steps.directory(&format!("etc/{name}"), 0o755);
        steps.bind(from.join(name), &format!("etc/{name}"));
    }
    if host.etc.iter().any(|name| name == "ssl") {
        // Only the certificates: beside them are the host's private keys.
        steps.directory("etc/ssl", 0o755);
        steps.directory("etc/ssl/certs", 0o755);
        steps.bind(from.join("ssl/certs"), "etc/ssl/certs");
    }
    for name in ETC_FILES.iter().filter(has) {
        steps.0.push(RootStep::Copy { from: from.join(name), path: Path::new("etc").join(name) });
    }
    steps.file("etc/passwd", PASSWD);
    steps.file("etc/group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n");
    steps.file("etc/hosts", "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    steps.file("etc/hostname", "sandbox\n");
    steps.file("etc/host.conf", "multi on\n");
    steps.file("etc/resolv.conf", RESOLV_CONF);
    steps.file(
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    );
    steps.link("etc/mtab", "/proc/self/mounts");
}

const PASSWD: &str = "\
root:x:0:0:root:/nonexistent:/usr/sbin/nologin
agent:x:1000:1000:agent:/home/agent:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
";

/// Where nobody answers names inside, asking is refused at once; where somebody does not answer in time, nobody waits long.
const RESOLV_CONF: &str = "nameserver 127.0.0.1\noptions timeout:1 attempts:2\n";

fn plan_dev(steps: &mut Steps, host: &HostRoot, facts: &HostFacts) {
    for name in DEVICES.iter().filter(|name| host.devices.iter().any(|device| device == **name)) {
        let name = (*name).to_owned();
        // Each mount costs every sandbox; only root can do with one for all devices.
        steps.0.push(if facts.privileged {
            RootStep::DeviceNode { name }
        } else {
            RootStep::Device { name }
        });
    }
    for (name, target) in [
        ("dev/ptmx", "pts/ptmx"),
        ("dev/fd", "/proc/self/fd"),
        ("dev/stdin", "/proc/self/fd/0"),
        ("dev/stdout", "/proc/self/fd/1"),
        ("dev/stderr", "/proc/self/fd/2"),
    ] {
        steps.link(name, target);
    }
}

/// One sandbox on this host and its files, or why it cannot be had here.
pub fn plan_sandbox(
    place: &Placement,
    template: &Planned<TemplatePlan>,
    host: &HostRoot,
    facts: &HostFacts,
    attempts_made_with: Option<String>,
) -> Result<(SandboxPlan, Furnishing), Fault> {
    let limits = plan_limits(place, facts)?;
    let present = |names: &[&str]| -> Vec<String> {
        names
            .iter()
            .filter(|name| host.proc.iter().any(|entry| entry == **name))
            .map(|name| (*name).into())
            .collect()
    };
    let proc = PrivateMount::Proc {
        covered_files: present(COVERED_FILES_OF_PROC),
        covered_directories: present(COVERED_DIRECTORIES_OF_PROC),
        read_only: present(READ_ONLY_OF_PROC),
    };
    let directory = |name: &str, target: Option<&str>, mode, owner| ScratchDirectory {
        name: name.into(),
        target: target.map(Into::into),
        mode,
        owner,
    };
    let scratch = PrivateMount::Scratch {
        size: place.limits.tmp.value,
        inodes: inodes(place.limits.tmp.value),
        directories: vec![
            directory("tmp", Some("/tmp"), 0o1777, Owner::Host),
            directory("shm", Some("/dev/shm"), 0o1777, Owner::Host),
            directory("home", Some("/home/agent"), 0o755, Owner::Workload),
            // Targets of later mounts are made below it.
            directory("mnt", None, 0o755, Owner::Host),
            // What pid 1 puts there, the workload can only read.
            directory("secrets", None, 0o755, Owner::Init),
        ],
    };
    let mut mounts = vec![proc, PrivateMount::Terminals, scratch];
    if place.workspace == Medium::Memory {
        let size = place.limits.workspace.value;
        mounts.push(PrivateMount::Workspace { size, inodes: inodes(size) });
    }
    if !facts.privileged {
        mounts.push(PrivateMount::Remove { path: Path::new("/").join(HOST_PROC) });
    }

    // A core limit of 0 would still start a handler that the host has behind a pipe; 1 byte does not (core(5)).
    let mut rlimits: BTreeMap<String, u64> =
        [("core", 1), ("memlock", 64 * 1024), ("msgqueue", 819_200), ("nice", 0), ("rtprio", 0)]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
    rlimits.insert("nofile".into(), place.limits.open_files.value);
    if limits.iter().any(|limit| limit.by == (Enforcer::Rlimit { name: "nproc".into() })) {
        rlimits.insert("nproc".into(), place.limits.pids.value);
    }

    let in_cgroup = |name: &str, limit: Limit| {
        limits
            .iter()
            .any(|planned| planned.name == name && planned.by == Enforcer::Cgroup)
            .then_some(limit.value)
    };
    let cgroup = CgroupLimits {
        memory: in_cgroup("memory", place.limits.memory),
        millicpus: in_cgroup("cpus", place.limits.millicpus),
        pids: in_cgroup("pids", place.limits.pids),
    };
    let mut env = default_env();
    env.extend(place.env.clone());
    let plan = SandboxPlan {
        id: place.id,
        isolation: place.isolation,
        lifetime: place.lifetime,
        hostname: "sandbox".into(),
        expected: expect(&mounts, &template.plan, &rlimits, facts),
        rlimits,
        cgroup,
        two_uids: facts.privileged,
        env,
        deadline_seconds: place.limits.wall_seconds.value,
        journal_limit: place.limits.journal.value,
        place: serde_json::to_value(place).expect("a placement is plain data"),
        limits,
        attempts_made_with,
    };
    Ok((plan, Furnishing { root: template.name.clone(), mounts }))
}

/// Who enforces what. A limit that was asked for and that nobody can enforce here is refused.
fn plan_limits(place: &Placement, facts: &HostFacts) -> Result<Vec<PlannedLimit>, Fault> {
    let limits = &place.limits;
    let no_cgroup = || Enforcer::Nobody {
        because: facts
            .no_cgroups_because
            .clone()
            .unwrap_or_else(|| "this host has no cgroup controllers".into()),
    };
    let by_cgroup = || if facts.cgroups == Cgroups::None { no_cgroup() } else { Enforcer::Cgroup };
    let pids = match facts.cgroups {
        // From 5.14 on the kernel counts the processes of each user namespace apart.
        Cgroups::None if kernel_at_least(&facts.kernel, 5, 14) => Enforcer::Rlimit { name: "nproc".into() },
        Cgroups::None => no_cgroup(),
        Cgroups::V1 | Cgroups::V2 => Enforcer::Cgroup,
    };
    let workspace = match &place.workspace {
        Medium::Memory => Enforcer::TmpfsSize { target: "/workspace".into() },
        Medium::Directory(path) => Enforcer::Nobody {
            because: format!("{} is a directory of the host, which has no size of its own", path.display()),
        },
    };
    let planned = |name: &str, limit: Limit, by| PlannedLimit {
        name: name.into(),
        value: limit.value,
        asked: limit.asked,
        by,
    };
    let all = vec![
        planned("memory", limits.memory, by_cgroup()),
        planned("cpus", limits.millicpus, by_cgroup()),
        planned("pids", limits.pids, pids),
        planned("workspace", limits.workspace, workspace),
        planned("tmp", limits.tmp, Enforcer::TmpfsSize { target: "/tmp".into() }),
        planned("open_files", limits.open_files, Enforcer::Rlimit { name: "nofile".into() }),
        planned("wall_seconds", limits.wall_seconds, Enforcer::Guest),
        planned("journal", limits.journal, Enforcer::Guest),
    ];
    for limit in &all {
        if let (true, Enforcer::Nobody { because }) = (limit.asked, &limit.by) {
            return Err(Fault::new(
                Kind::Denied,
                format!("the {} limit cannot be enforced here: {because}", limit.name),
            )
            .hint(way_out(&limit.name)));
        }
    }
    Ok(all)
}

fn way_out(limit: &str) -> &'static str {
    match limit {
        "workspace" => "leave the size out, or use a workspace in memory",
        _ => {
            "leave the limit out, run as root, or start in a delegated scope: \
             'systemd-run --user --scope -p Delegate=yes cubicle …'"
        }
    }
}

/// What the receipt is judged by. It follows from the plan alone.
fn expect(
    private: &[PrivateMount],
    template: &TemplatePlan,
    rlimits: &BTreeMap<String, u64>,
    facts: &HostFacts,
) -> Expected {
    let mut mounts = BTreeMap::from([
        ("/".to_owned(), MountRule::ReadOnly),
        // A directory of the host or a file system of its own.
        ("/workspace".to_owned(), MountRule::Writable),
    ]);
    let absolute = |path: &Path| Path::new("/").join(path).display().to_string();
    for step in &template.steps {
        match step {
            RootStep::Bind { path, .. } => _ = mounts.insert(absolute(path), MountRule::ReadOnly),
            RootStep::DeviceFilesystem { path } => _ = mounts.insert(absolute(path), MountRule::ReadOnly),
            RootStep::Device { name } => _ = mounts.insert(format!("/dev/{name}"), MountRule::ReadOnly),
            _ => {}
        }
    }
    for mount in private {
        match mount {
            PrivateMount::Scratch { directories, .. } => {
                mounts.insert("/run".into(), MountRule::Writable);
                let shown = directories.iter().filter_map(|directory| directory.target.as_deref());
                mounts.extend(shown.map(|target| (absolute(target), MountRule::Writable)));
            }
            PrivateMount::Proc { covered_files, covered_directories, read_only } => {
                mounts.insert("/proc".into(), MountRule::Writable);
                for name in covered_files.iter().chain(covered_directories).chain(read_only) {
                    mounts.insert(format!("/proc/{name}"), MountRule::ReadOnly);
                }
            }
            PrivateMount::Terminals => _ = mounts.insert("/dev/pts".into(), MountRule::Writable),
            PrivateMount::Workspace { .. } | PrivateMount::Remove { .. } => {}
        }
    }
    Expected {
        // The launcher fills in its own.
        outside_namespaces: BTreeMap::new(),
        workload_uid: WORKLOAD_ID,
        workload_gid: WORKLOAD_ID,
        two_uids: facts.privileged,
        mounts,
        rlimits: rlimits.clone(),
    }
}

fn default_env() -> BTreeMap<String, String> {
    [
        ("PATH", "/home/agent/.local/bin:/workspace/tools/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/home/agent"),
        ("USER", "agent"),
        ("LOGNAME", "agent"),
        ("SHELL", "/bin/sh"),
        ("LANG", "C.UTF-8"),
        ("TMPDIR", "/tmp"),
        ("XDG_CACHE_HOME", "/workspace/.cache"),
        ("PIP_CACHE_DIR", "/workspace/.cache/pip"),
        ("npm_config_cache", "/workspace/.cache/npm"),
        ("PYTHONUSERBASE", "/home/agent/.local"),
        // The root is read-only, so `pip install` cannot harm what the system's package manager keeps there.
        ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
        ("PIP_USER", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// One inode for each page, with room for many empty files in a small tmpfs.
fn inodes(size: u64) -> u64 {
    (size / 4096).clamp(1024, 1 << 20)
}

fn kernel_at_least(release: &str, major: u32, minor: u32) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

/// A short name for content.
pub(crate) fn digest(bytes: &[u8]) -> String {
    use sha2::Digest;
    cubicle_model::hexadecimal(&sha2::Sha256::digest(bytes)[..16])
}

#[derive(Default)]
struct Steps(Vec<RootStep>);

impl Steps {
    fn directory(&mut self, path: &str, mode: u32) {
        self.0.push(RootStep::Directory { path: path.into(), mode });
    }

    fn file(&mut self, path: &str, text: &str) {
        self.0.push(RootStep::File { path: path.into(), text: text.into() });
    }

    fn link(&mut self, path: &str, target: impl AsRef<Path>) {
        self.0.push(RootStep::Symlink { path: path.into(), target: target.as_ref().into() });
    }

    fn bind(&mut self, from: PathBuf, path: &str) {
        self.0.push(RootStep::Bind { from, path: path.into() });
    }
}

#[cfg(test)]
mod tests;
