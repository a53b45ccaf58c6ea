//! What the cgroups of a sandbox count. Anybody may read it, so that nobody has to ask the launcher.

use std::fs;
use std::path::{Path, PathBuf};

use cubicle_model::InstanceId;
use rustix::process::Pid;

use crate::cgroup::{Located, directory_name, locate};

/// What this host does not count for each sandbox is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Caches included.
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    pub cpu_us: Option<u64>,
}

/// What the cgroups of a process count, where they are those of a sandbox of this instance. The cgroup of anything larger
/// would count others, too.
pub fn counted(process: Pid, instance: InstanceId) -> Counted {
    let own = format!("/proc/{}/cgroup", process.as_raw_nonzero());
    match (fs::read_to_string("/proc/self/mountinfo"), fs::read_to_string(own)) {
        (Ok(mounts), Ok(own)) => read(locate(&mounts, &own), instance),
        // It has ended meanwhile.
        _ => Counted::default(),
    }
}

fn read(located: Located, instance: InstanceId) -> Counted {
    let name = directory_name(instance);
    let number = |directory: &Path, file: &str| -> Option<u64> { text(directory, file)?.trim().parse().ok() };
    let own = |directory: PathBuf| -> Option<PathBuf> {
        directory.parent().is_some_and(|parent| parent.ends_with(&name)).then_some(directory)
    };
    match located {
        Located::V1 { memory, pids, cpu } => Counted {
            memory_bytes: own(memory.own).and_then(|at| number(&at, "memory.usage_in_bytes")),
            processes: own(pids.own).and_then(|at| number(&at, "pids.current")),
            // There only where the two CPU controllers are mounted together, as they usually are.
            cpu_us: own(cpu.own)
                .and_then(|at| number(&at, "cpuacct.usage"))
                .map(|nanoseconds| nanoseconds / 1000),
        },
        Located::V2(position) => match own(position.own) {
            None => Counted::default(),
            Some(at) => Counted {
                memory_bytes: number(&at, "memory.current"),
                processes: number(&at, "pids.current"),
                cpu_us: text(&at, "cpu.stat").and_then(|stat| usage(&stat)),
            },
        },
        Located::Nowhere { .. } => Counted::default(),
    }
}

fn text(directory: &Path, file: &str) -> Option<String> {
    fs::read_to_string(directory.join(file)).ok()
}

fn usage(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Position;

    fn directory_of(instance: InstanceId, files: &[(&str, &str)]) -> (tempfile::TempDir, Position) {
        let top = tempfile::tempdir().unwrap();
        let own = top.path().join(directory_name(instance)).join("7");
        fs::create_dir_all(&own).unwrap();
        for (name, text) in files {
            fs::write(own.join(name), text).unwrap();
        }
        let position = Position { top: top.path().into(), own };
        (top, position)
    }

    #[test]
    fn what_a_sandbox_uses_is_read_from_its_own_cgroup() {
        let instance = InstanceId::from_random([1; 16]);
        let files = [
            ("memory.current", "4096\n"),
            ("pids.current", "3\n"),
            ("cpu.stat", "usage_usec 1500\nuser_usec 1000\n"),
        ];
        let (_top, position) = directory_of(instance, &files);
        let expected = Counted { memory_bytes: Some(4096), processes: Some(3), cpu_us: Some(1500) };
        assert_eq!(read(Located::V2(position), instance), expected);
    }

    #[test]
    fn what_others_use_too_is_not_told() {
        let (instance, other) = (InstanceId::from_random([1; 16]), InstanceId::from_random([2; 16]));
        let (_top, position) = directory_of(other, &[("memory.current", "4096\n")]);
        assert_eq!(read(Located::V2(position), instance), Counted::default());
    }

    #[test]
    fn a_controller_that_is_mounted_apart_counts_nothing() {
        let instance = InstanceId::from_random([1; 16]);
        let (_memory, memory) = directory_of(instance, &[("memory.usage_in_bytes", "8192\n")]);
        let (_pids, pids) = directory_of(instance, &[("pids.current", "1\n")]);
        let (_cpu, cpu) = directory_of(instance, &[("cpu.stat", "nr_periods 0\n")]);
        let expected = Counted { memory_bytes: Some(8192), processes: Some(1), cpu_us: None };
        assert_eq!(read(Located::V1 { memory, pids, cpu }, instance), expected);
    }
}
