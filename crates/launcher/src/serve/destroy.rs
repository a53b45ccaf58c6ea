//! Ending sandboxes: pid 1 is killed, the kernel ends everything in its pid namespace, and what is left on the host is
//! removed.

use std::os::fd::{AsFd, OwnedFd};

use cubicle_model::{Kind, Lifetime, SandboxId};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::{Launcher, Watched};
use crate::error::{Failed, Step};
use crate::slots::Holder;
use crate::wire::Reply;

/// Each ended sandbox frees a system call filter in the kernel's work queue. Thousands at once can lock that up, so
/// only so many end at a time.
const MOST_AT_ONCE: usize = 128;
/// How often a busy cgroup is tried again before its processes are looked at.
const PATIENCE: u32 = 2000;

/// A sandbox that this launcher made.
pub(super) struct Living {
    pub(super) slot: u32,
    pub(super) process: OwnedFd,
    pub(super) token: u64,
    pub(super) lifetime: Lifetime,
    pub(super) user_namespace: OwnedFd,
    /// The mounts inside, where this launcher may not look for them itself.
    pub(super) mounts: Option<OwnedFd>,
}

/// A sandbox that must go, and who is told.
pub(super) struct Ending {
    pub(super) id: Option<SandboxId>,
    pub(super) slot: u32,
    pub(super) process: OwnedFd,
    pub(super) owed: Owed,
}

pub(super) enum Owed {
    Nothing,
    Done { tag: u64 },
    Failure { tag: u64, failure: Failed },
}

/// A slot whose cgroup was still busy.
pub(super) struct Removal {
    slot: u32,
    owed: Owed,
    tries: u32,
}

impl Launcher {
    pub(super) fn destroy(&mut self, tag: u64, id: SandboxId) {
        if let Some(living) = self.sandboxes.remove(&id) {
            self.watched.remove(&living.token);
            let ending =
                Ending { id: Some(id), slot: living.slot, process: living.process, owed: Owed::Done { tag } };
            return self.end_watched(living.token, ending);
        }
        if self.destroy_unborn(id, tag) {
            return;
        }
        match self.find(id) {
            Ok(Found::Absent) => self.reply(&Reply::Done { tag }),
            Ok(Found::Ended { slot }) => {
                let _ = self.slots.unpublish(id);
                self.remove_slot_for(slot, Owed::Done { tag });
            }
            Ok(Found::Living { slot, process }) => {
                self.end(Ending { id: Some(id), slot, process, owed: Owed::Done { tag } });
            }
            Err(error) => self.reply(&Reply::Failed { tag, error }),
        }
    }

    /// A sandbox that another launcher made.
    pub(super) fn find(&self, id: SandboxId) -> Result<Found, Failed> {
        let Some(slot) = self.slots.slot_of(id).step(|| format!("look for {id}"))? else {
            return Ok(Found::Absent);
        };
        match self.slots.holder(slot).step(|| format!("look at slot {slot}"))? {
            Holder::Sandbox(pid) => match self.open_process(slot, pid)? {
                Some(process) => Ok(Found::Living { slot, process }),
                None => Ok(Found::Ended { slot }),
            },
            Holder::Nobody => Ok(Found::Ended { slot }),
            Holder::Launcher => Err(Failed::new(Kind::Unavailable, format!("{id} is just being made"))),
        }
    }

    /// A descriptor of pid 1. It is asked twice who holds the journal, because the pid may be another process's by the
    /// time it is opened.
    fn open_process(&self, slot: u32, pid: Pid) -> Result<Option<OwnedFd>, Failed> {
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error).step(|| format!("reach process {pid:?}")),
        };
        let again = self.slots.holder(slot).step(|| format!("look at slot {slot}"))?;
        Ok((again == Holder::Sandbox(pid)).then_some(process))
    }

    pub(super) fn end(&mut self, ending: Ending) {
        match self.watch(ending.process.as_fd()) {
            Ok(token) => self.end_watched(token, ending),
            // Nobody will say when it is gone, but its slot is not free before.
            Err(_) => {
                let _ = pidfd_send_signal(&ending.process, Signal::KILL);
                if let Some(id) = ending.id {
                    let _ = self.slots.unpublish(id);
                }
                self.remove_slot_for(ending.slot, ending.owed);
            }
        }
    }

    fn end_watched(&mut self, token: u64, ending: Ending) {
        if self.ending >= MOST_AT_ONCE {
            self.waiting_destroys.push_back((token, ending));
            return;
        }
        self.ending += 1;
        let _ = pidfd_send_signal(&ending.process, Signal::KILL);
        // Names and files can go while the kernel tears down the rest.
        if let Some(id) = ending.id {
            let _ = self.slots.unpublish(id);
        }
        let _ = self.slots.empty(ending.slot);
        self.watched.insert(token, Watched::Ending(ending));
    }

    /// pid 1 is gone, and with it everything in its pid namespace.
    pub(super) fn finish(&mut self, ending: Ending) {
        self.ending -= 1;
        let Ending { slot, process, owed, .. } = ending;
        drop(process);
        self.remove_slot_for(slot, owed);
        if let Some((token, next)) = self.waiting_destroys.pop_front() {
            self.end_watched(token, next);
        }
    }

    /// A sandbox ended by itself. A durable one keeps its journal until it is destroyed.
    pub(super) fn hear_end(&mut self, id: SandboxId) {
        let Some(living) = self.sandboxes.remove(&id) else { return };
        // Dropping what is held of it lets the kernel take down its mounts.
        drop((living.mounts, living.user_namespace, living.process));
        if living.lifetime == Lifetime::Bound {
            let _ = self.slots.unpublish(id);
            self.remove_slot(living.slot);
        }
    }

    pub(super) fn remove_slot(&mut self, slot: u32) {
        self.remove_slot_for(slot, Owed::Nothing);
    }

    pub(super) fn remove_slot_for(&mut self, slot: u32, owed: Owed) {
        self.try_removal(Removal { slot, owed, tries: 0 });
    }

    pub(super) fn retry_removals(&mut self) {
        for removal in std::mem::take(&mut self.unremoved) {
            self.try_removal(removal);
        }
    }

    fn try_removal(&mut self, mut removal: Removal) {
        match self.hierarchy.remove(removal.slot) {
            // The number is free for others only now, when nothing can be mistaken for theirs any more.
            Ok(true) => match self.slots.remove(removal.slot) {
                Ok(()) => self.settle(removal.owed),
                Err(error) => {
                    let failure =
                        Failed::new(Kind::Internal, format!("remove slot {}: {error}", removal.slot));
                    self.settle(Owed::failed(&removal.owed, failure));
                }
            },
            Ok(false) if removal.tries < PATIENCE => {
                removal.tries += 1;
                // What a crash left behind may still be there.
                if removal.tries.is_power_of_two() && removal.tries > 8 {
                    self.kill_processes(removal.slot);
                }
                self.unremoved.push(removal);
            }
            Ok(false) => {
                let failure =
                    Failed::new(Kind::Unavailable, format!("the cgroup of slot {} stays busy", removal.slot))
                        .hint("'cubicle gc' tries again");
                self.settle(Owed::failed(&removal.owed, failure));
            }
            Err(error) => {
                let failure = Failed::new(
                    Kind::Internal,
                    format!("remove the cgroup of slot {}: {error}", removal.slot),
                );
                self.settle(Owed::failed(&removal.owed, failure));
            }
        }
    }

    pub(super) fn kill_processes(&self, slot: u32) {
        for pid in self.hierarchy.processes(slot) {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    fn settle(&self, owed: Owed) {
        match owed {
            Owed::Nothing => {}
            Owed::Done { tag } => self.reply(&Reply::Done { tag }),
            Owed::Failure { tag, failure } => self.reply(&Reply::Failed { tag, error: failure }),
        }
    }

    /// The caller is gone. What was bound to it goes, too; what is durable stays.
    pub(super) fn end_what_is_bound(&mut self) {
        let bound: Vec<SandboxId> = self
            .sandboxes
            .iter()
            .filter(|(_, it)| it.lifetime == Lifetime::Bound)
            .map(|(id, _)| *id)
            .collect();
        for id in bound {
            self.destroy(0, id);
        }
        let halfway: Vec<Watched> =
            self.watched.extract_if(|_, it| it.is_halfway()).map(|(_, it)| it).collect();
        for watched in halfway {
            self.end_halfway(watched);
        }
        self.start.nursery = 0;
    }

    pub(super) fn has_nothing_to_end(&self) -> bool {
        self.ending == 0 && self.unremoved.is_empty() && self.waiting_destroys.is_empty()
    }
}

impl Owed {
    fn failed(before: &Self, failure: Failed) -> Self {
        match before {
            Self::Nothing => Self::Nothing,
            Self::Done { tag } | Self::Failure { tag, .. } => Self::Failure { tag: *tag, failure },
        }
    }
}

/// Where a sandbox of another launcher is.
pub(super) enum Found {
    Absent,
    Ended { slot: u32 },
    Living { slot: u32, process: OwnedFd },
}
