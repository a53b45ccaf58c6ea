//! Removing what nobody owns any more.

use crate::error::{Failed, Step};
use crate::slots::Holder;
use crate::wire::Reply;

use super::Launcher;

impl Launcher {
    pub(super) fn sweep(&mut self, tag: u64) {
        match self.sweep_all() {
            Ok((sandboxes, cgroups, directories)) => {
                self.reply(&Reply::Swept { tag, sandboxes, cgroups, directories });
            }
            Err(error) => self.reply(&Reply::Failed { tag, error }),
        }
    }

    fn sweep_all(&mut self) -> Result<(usize, usize, usize), Failed> {
        // Nobody may claim a slot between the look at it and its removal.
        let _sole = self.slots.lock_out_sweeps()?;
        let published = self.slots.published().step(|| "list the sandboxes".into())?;
        let numbers = self.slots.numbers().step(|| "list the slots".into())?;
        let (mut sandboxes, mut cgroups, mut directories) = (0, 0, 0);

        for (id, slot) in &published {
            let dangling = slot.is_none_or(|slot| !numbers.contains(&slot));
            if dangling {
                self.slots.unpublish(*id).step(|| format!("forget {id}"))?;
                sandboxes += 1;
            }
        }
        for number in &numbers {
            if self.slots.holder(*number).step(|| format!("look at slot {number}"))? != Holder::Nobody {
                continue;
            }
            let owner = published.iter().find(|(_, slot)| *slot == Some(*number));
            if let Some((id, _)) = owner {
                // A durable sandbox that ended keeps its journal for whoever wants to know how.
                if is_durable(&self.slots, *number) {
                    continue;
                }
                self.slots.unpublish(*id).step(|| format!("forget {id}"))?;
                sandboxes += 1;
            }
            self.kill_processes(*number);
            self.remove_slot(*number);
            directories += 1;
        }
        let left = self.slots.numbers().step(|| "list the slots".into())?;
        for number in self.hierarchy.slots() {
            if !left.contains(&number) && !numbers.contains(&number) {
                self.kill_processes(number);
                self.remove_slot(number);
                cgroups += 1;
            }
        }
        Ok((sandboxes, cgroups, directories))
    }
}

/// Whether the first record of the journal says so. A journal that cannot be read belongs to nobody.
fn is_durable(slots: &crate::slots::Slots, number: u32) -> bool {
    use cubicle_model::{Lifetime, Placement};
    let Ok(directory) = slots.directory(number) else { return false };
    crate::slots::placement(&directory).is_some_and(|place: Placement| place.lifetime == Lifetime::Durable)
}
