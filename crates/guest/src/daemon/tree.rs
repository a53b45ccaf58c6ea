//! The process tree of an exec, found by the tag that every descendant inherits.
//!
//! Process groups, sessions and parents can be changed by the processes themselves; the tag cannot (see
//! `cubicle_sys::spawn::Spawn::tag`), so that also daemonised and re-parented descendants are found.

use std::fs;
use std::io::Read;

use cubicle_sys::signal;

pub(super) const SIGTERM: i32 = 15;
pub(super) const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// The tag of one exec: unique among all daemons of a pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag(pub(super) u64);

impl Tag {
    pub(super) fn of(exec: u32) -> Self {
        Self(u64::from(std::process::id()) << 32 | u64::from(exec))
    }
}

/// The living processes of an exec.
pub(super) fn members(tag: Tag) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut text = String::new();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| has_tag(*pid, tag, &mut text) && is_alive(*pid, &mut text)).collect()
}

/// Sends a signal to every process of an exec and says to how many.
pub(super) fn send(tag: Tag, number: i32) -> usize {
    let members = members(tag);
    for pid in &members {
        // A process that ended meanwhile is no failure, and one that may not be signalled cannot have the tag.
        let _ = signal::send(*pid, number);
    }
    members.len()
}

/// Kills every process of an exec. Whether none was left to kill when it was over; if some were, the caller comes back
/// later, because a process may start others faster than one pass over `/proc` finds them.
pub(super) fn kill(tag: Tag) -> bool {
    const PASSES: usize = 3;
    let mut killed = Vec::new();
    for _ in 0..PASSES {
        let fresh: Vec<i32> = members(tag).into_iter().filter(|pid| !killed.contains(pid)).collect();
        if fresh.is_empty() {
            return killed.is_empty();
        }
        for pid in &fresh {
            let _ = signal::send(*pid, SIGKILL);
        }
        killed.extend(fresh);
    }
    // Nobody forks while everybody is stopped. Only pid 1 can do this; for anybody else it is refused.
    if signal::send_to_everyone(SIGSTOP).is_ok() {
        send(tag, SIGKILL);
        let _ = signal::send_to_everyone(SIGCONT);
    }
    false
}

fn has_tag(pid: i32, tag: Tag, text: &mut String) -> bool {
    // "Max file locks  <soft>  <hard>  locks"
    read(&format!("/proc/{pid}/limits"), text)
        && text.lines().find_map(|line| line.strip_prefix("Max file locks")).is_some_and(|values| {
            values.split_whitespace().nth(1).and_then(|hard| hard.parse().ok()) == Some(tag.0)
        })
}

fn is_alive(pid: i32, text: &mut String) -> bool {
    read(&format!("/proc/{pid}/stat"), text) && tells_of_life(text)
}

/// Whether a line of `/proc/<pid>/stat` is that of a living process. One whose first thread ended is a zombie by its
/// state for as long as other threads of it go on.
fn tells_of_life(stat: &str) -> bool {
    // The state follows the name, which is in parentheses and may contain anything.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let mut fields = rest.split_whitespace();
    let is_dead = matches!(fields.next(), Some("Z" | "X"));
    let threads = fields.nth(16).and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
    !is_dead || threads > 1
}

fn read(path: &str, text: &mut String) -> bool {
    text.clear();
    fs::File::open(path).and_then(|mut file| file.read_to_string(text)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_as_long_as_any_thread_of_it() {
        let stat = |name: &str, state: &str, threads: u32| {
            format!("7 ({name}) {state} 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 {threads} 0 99 0 0")
        };
        let table =
            [("sh", "S", 1, true), ("sh", "Z", 1, false), ("sh", "Z", 2, true), ("a) Z (b", "R", 1, true)];
        for (name, state, threads, expected) in table {
            assert_eq!(tells_of_life(&stat(name, state, threads)), expected, "{name} {state} {threads}");
        }
        assert!(!tells_of_life(""));
    }
}
