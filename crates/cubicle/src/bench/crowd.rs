//! Many sandboxes at once: what an idle one costs, and whether a warm exec notices the others.

use std::fs;
use std::time::Duration;

use cubicle_model::{Fault, SandboxId};

use super::progress::Progress;
use super::race::exec_warm;
use super::row::{Goal, Row};
use super::samples::Samples;
use super::site::Site;

const MEMORY_GOAL: Goal = Goal::AtMost(0.7);
const EXEC_GOAL: Goal = Goal::AtMost(1.2);
/// The crowd that the goals are for.
pub(crate) const CROWD: usize = 1000;
/// How long the kernel gets to settle before memory is read.
const SETTLE: Duration = Duration::from_secs(2);

/// How many sandboxes, and how many samples with and without them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) alive: usize,
    pub(crate) execs: usize,
}

struct Measured {
    memory: Memory,
    alone: Samples,
    among_many: Samples,
}

pub(crate) async fn measure(site: &Site, size: Size, wanted: &[&str], progress: &Progress) -> Vec<Row> {
    let alive = size.alive;
    let memory_text = format!("memory per idle sandbox at {alive} alive, kernel and user together");
    let exec_text = format!("warm exec with {alive} alive");
    let mut rows = Vec::new();
    match gather(site, size, progress).await {
        Ok(measured) => {
            let each = |bytes: i64| {
                let mut samples = Samples::default();
                samples.push(bytes as f64 / (alive - 1).max(1) as f64 / 1e6);
                samples
            };
            let Memory { held, available } = measured.memory;
            let seen = each(available).p50().unwrap_or_default();
            let text = format!("{memory_text}; MemAvailable says {seen:.3} MB, with page cache");
            rows.push(judge(Row::measured("memory.idle", text, &each(held), "MB"), MEMORY_GOAL, alive));
            let row = Row::measured("exec.warm.1000", exec_text, &measured.among_many, "ms");
            rows.push(judge(row.over("1 alive", &measured.alone), EXEC_GOAL, alive));
        }
        Err(fault) => {
            rows.push(Row::failed("memory.idle", &memory_text, "MB", Some(MEMORY_GOAL), &fault));
            rows.push(Row::failed("exec.warm.1000", &exec_text, "ms", Some(EXEC_GOAL), &fault));
        }
    }
    rows.retain(|row| wanted.contains(&row.id));
    rows
}

fn judge(row: Row, goal: Goal, alive: usize) -> Row {
    if alive == CROWD { row.judged(goal) } else { row.unjudged(goal, &format!("it is for {CROWD} alive")) }
}

async fn gather(site: &Site, size: Size, progress: &Progress) -> Result<Measured, Fault> {
    let warm = site.make().await?;
    let mut crowd = Vec::new();
    let measured = gather_around(site, warm, &mut crowd, size, progress).await;
    progress.say("destroying the crowd");
    // One after the other: thousands of endings at once can lock up the kernel.
    for id in crowd.into_iter().chain([warm]) {
        site.destroy(id).await?;
    }
    measured
}

async fn gather_around(
    site: &Site,
    warm: SandboxId,
    crowd: &mut Vec<SandboxId>,
    size: Size,
    progress: &Progress,
) -> Result<Measured, Fault> {
    let (mut alone, mut among_many) = (Samples::default(), Samples::default());
    progress.say("warm exec with 1 alive");
    // Half of the comparison before the crowd and half after it, so that a drift of the host shows on both sides.
    sample(site, warm, size.execs / 2, &mut alone).await?;
    tokio::time::sleep(SETTLE).await;
    let before = Memory::now();
    while crowd.len() + 1 < size.alive {
        crowd.push(site.make().await?);
        progress.say(&format!("{} of {} alive", crowd.len() + 1, size.alive));
    }
    tokio::time::sleep(SETTLE).await;
    let memory = Memory::now().since(before);
    progress.say(&format!("warm exec with {} alive", size.alive));
    sample(site, warm, size.execs, &mut among_many).await?;
    progress.say("destroying the crowd");
    for id in crowd.drain(..) {
        site.destroy(id).await?;
    }
    tokio::time::sleep(SETTLE).await;
    sample(site, warm, size.execs - size.execs / 2, &mut alone).await?;
    Ok(Measured { memory, alone, among_many })
}

async fn sample(site: &Site, id: SandboxId, count: usize, into: &mut Samples) -> Result<(), Fault> {
    exec_warm(site, id).await?;
    for _ in 0..count {
        into.push_time(exec_warm(site, id).await?);
    }
    Ok(())
}

/// Memory of the whole host in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Memory {
    /// What the kernel and programs hold and cannot give back.
    held: i64,
    /// What is gone from `MemAvailable`.
    available: i64,
}

impl Memory {
    fn now() -> Self {
        Self::read(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }

    fn read(meminfo: &str) -> Self {
        let bytes = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            kilobytes.unwrap_or(0_i64) * 1024
        };
        let held = ["Slab", "Percpu", "KernelStack", "PageTables", "AnonPages"].into_iter().map(bytes).sum();
        Self { held, available: -bytes("MemAvailable") }
    }

    fn since(self, before: Self) -> Self {
        Self { held: self.held - before.held, available: self.available - before.available }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "MemTotal: 9 kB\nMemAvailable:  500 kB\nSlab: 10 kB\nPercpu: 1 kB\nKernelStack: 2 kB\n\
                          PageTables: 3 kB\nAnonPages: 4 kB\nSReclaimable: 7 kB\n";

    #[test]
    fn memory_is_what_the_kernel_and_programs_took_in_between() {
        let after =
            BEFORE.replace(" 500 ", " 440 ").replace("Slab: 10", "Slab: 30").replace("Pages: 4", "Pages: 9");
        let taken = Memory::read(&after).since(Memory::read(BEFORE));
        assert_eq!(taken, Memory { held: 25 * 1024, available: 60 * 1024 });
    }

    #[test]
    fn a_smaller_crowd_gets_no_verdict() {
        let mut samples = Samples::default();
        samples.push(0.5);
        let row = Row::measured("memory.idle", "", &samples, "MB");
        assert_eq!(judge(row.clone(), MEMORY_GOAL, 100).met, None);
        assert_eq!(judge(row, MEMORY_GOAL, CROWD).met, Some(true));
    }
}
