//! Looking through everything that can be seen.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::Outcome;

pub(crate) fn attack(name: &str, arguments: &[&str]) -> Option<Outcome> {
    Some(match (name, arguments) {
        // The needle comes scrambled, so that it does not find itself.
        ("search-proc", [scrambled]) => Ok(search_proc(&unscramble(scrambled))),
        ("find-name", [name]) => Ok(find(|path, _| path.file_name().is_some_and(|found| found == *name))),
        ("find-control-groups", []) => Ok(find(|path, _| {
            let names = ["release_agent", "notify_on_release", "cgroup.procs", "cgroup.subtree_control"];
            path.file_name().is_some_and(|found| names.iter().any(|name| found == *name))
        })),
        ("find-sockets", []) => Ok(find(|_, metadata| metadata.file_type().is_socket())),
        ("find-devices", []) => Ok(find(|_, metadata| {
            metadata.file_type().is_char_device() || metadata.file_type().is_block_device()
        })),
        ("find-set-id", []) => {
            let count = found(|_, metadata| metadata.is_file() && metadata.mode() & 0o6000 != 0);
            Ok(count.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" "))
        }
        ("find-writable", []) => Ok(find_writable()),
        ("processes", []) => {
            let mut seen: Vec<String> = pids()
                .into_iter()
                .map(|pid| {
                    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                    format!("{pid}:{}", name.trim())
                })
                .collect();
            seen.sort();
            Ok(seen.join(" "))
        }
        ("pid-1-files", []) => Ok(pid_1_files()),
        ("roots-of-processes", []) => {
            let differing: Vec<String> = pids()
                .into_iter()
                .filter_map(|pid| {
                    let entries = fs::read_dir(format!("/proc/{pid}/root/")).ok()?;
                    let own: Vec<_> =
                        fs::read_dir("/").ok()?.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
                    let odd = entries
                        .filter_map(|entry| Some(entry.ok()?.file_name()))
                        .any(|name| !own.contains(&name));
                    odd.then(|| pid.to_string())
                })
                .collect();
            Ok(differing.join(" "))
        }
        ("environment", []) => {
            let mut names: Vec<String> =
                std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
            names.sort();
            Ok(names.join(" "))
        }
        _ => return None,
    })
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn unscramble(text: &str) -> Vec<u8> {
    text.bytes().map(|byte| byte ^ 1).collect()
}

/// Everything below the root but `/proc`, without following links.
fn found(wanted: impl Fn(&Path, &fs::Metadata) -> bool) -> Vec<PathBuf> {
    let mut pending = vec![PathBuf::from("/")];
    let mut found = Vec::new();
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok) {
            let path = entry.path();
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if wanted(&path, &metadata) {
                found.push(path.clone());
            }
            if metadata.is_dir() && path != Path::new("/proc") {
                pending.push(path);
            }
        }
    }
    found.sort();
    found
}

fn find(wanted: impl Fn(&Path, &fs::Metadata) -> bool) -> String {
    let paths = found(wanted);
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// Directories in which this user can make a file. Those below one that is writable are not looked at.
fn find_writable() -> String {
    let mut pending = vec![PathBuf::from("/")];
    let mut found = Vec::new();
    while let Some(directory) = pending.pop() {
        let probe = directory.join(".intruder-probe");
        if fs::write(&probe, "").is_ok() {
            let _ = fs::remove_file(&probe);
            found.push(directory.display().to_string());
            continue;
        }
        for entry in fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.path() != Path::new("/proc") {
                pending.push(entry.path());
            }
        }
    }
    found.sort();
    found.join(" ")
}

fn contents(path: &Path) -> Option<Vec<u8>> {
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
    let mut bytes = Vec::new();
    // What was read before an error counts, too.
    let _ = file.take(1 << 20).read_to_end(&mut bytes);
    Some(bytes)
}

/// Reads everything below `/proc` that can be read, of all processes, and says where the needle is.
fn search_proc(needle: &[u8]) -> String {
    let own = [
        PathBuf::from(format!("/proc/{}", std::process::id())),
        "/proc/self".into(),
        "/proc/thread-self".into(),
    ];
    let mut pending = vec![PathBuf::from("/proc")];
    let (mut hits, mut looked_at) = (Vec::new(), 0);
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok) {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            // The own memory holds the needle by now.
            if own.contains(&path) {
                continue;
            }
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap_or_default();
                if contains(target.as_os_str().as_encoded_bytes(), needle) {
                    hits.push(path.display().to_string());
                }
            } else if let Some(bytes) = contents(&path) {
                looked_at += 1;
                if contains(&bytes, needle) {
                    hits.push(path.display().to_string());
                }
            }
        }
    }
    for name in ["environ", "cmdline", "mountinfo", "cgroup"] {
        if contents(&Path::new("/proc/self").join(name)).is_some_and(|bytes| contains(&bytes, needle)) {
            hits.push(format!("/proc/self/{name}"));
        }
    }
    format!("{looked_at} files; found in: {}", hits.join(" "))
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// What of pid 1 can be read that says more than `ps` would.
fn pid_1_files() -> String {
    let readable = [
        "mem",
        "environ",
        "maps",
        "smaps",
        "pagemap",
        "auxv",
        "syscall",
        "stack",
        "io",
        "numa_maps",
        "clear_refs",
    ]
    .into_iter()
    .filter(|name| contents(&Path::new("/proc/1").join(name)).is_some_and(|bytes| !bytes.is_empty()))
    .map(str::to_owned);
    let listable = ["fd", "fdinfo", "map_files", "root", "cwd", "root/", "cwd/"]
        .into_iter()
        .filter(|name| fs::read_dir(Path::new("/proc/1").join(name)).is_ok_and(|entries| entries.count() > 0))
        .map(str::to_owned);
    let links = ["exe", "cwd", "root", "ns/mnt", "ns/user", "ns/net", "ns/pid"]
        .into_iter()
        .filter(|name| fs::read_link(Path::new("/proc/1").join(name)).is_ok())
        .map(|name| format!("{name}→"));
    let writable =
        ["mem", "oom_score_adj", "comm", "coredump_filter", "uid_map", "timerslack_ns", "loginuid"]
            .into_iter()
            .filter(|name| fs::write(Path::new("/proc/1").join(name), "1").is_ok())
            .map(|name| format!("{name} (writable)"));
    readable.chain(listable).chain(links).chain(writable).collect::<Vec<_>>().join(" ")
}
