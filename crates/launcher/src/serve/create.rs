//! Making a sandbox: an embryo that waits, a birth that is under way, a sandbox that is published.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use cubicle_model::{Kind, Lifetime, SandboxId};
use cubicle_sys::mount::{Attributes, Depth, set_attributes};
use rustix::mount::{OpenTreeFlags, open_tree};

use super::destroy::{Ending, Living, Owed};
use super::{Launcher, Watched};
use crate::embryo::{Brought, Inherited, fork_embryo};
use crate::error::{Failed, Step};
use crate::idmap::{Pair, user_namespace};
use crate::plan::{Furnishing, WORKLOAD_ID};
use crate::slots::Slot;
use crate::wire::{Channel, FromCradle, Packet, Reply};

/// A request that waits for an embryo.
pub(super) struct Wanted {
    pub(super) tag: u64,
    pub(super) id: SandboxId,
    pub(super) furnishing: Furnishing,
    pub(super) lifetime: Lifetime,
    pub(super) workspace: Option<PathBuf>,
    pub(super) packet: Packet,
}

pub(super) struct Embryo {
    slot: Slot,
    channel: Channel,
    process: OwnedFd,
    /// What it was told to begin with.
    furnishing: Option<Rc<Furnishing>>,
    /// There once the embryo is prepared.
    user_namespace: Option<OwnedFd>,
}

/// A sandbox that has been asked for and is not ready yet.
pub(super) struct Birthing {
    tag: u64,
    id: SandboxId,
    furnishing: Furnishing,
    lifetime: Lifetime,
    slot: Slot,
    channel: Channel,
    process: OwnedFd,
    user_namespace: OwnedFd,
}

impl Launcher {
    /// Keeps as many embryos as the caller wants. A failure is told to whoever needs one next.
    pub(super) fn fill_nursery(&mut self) {
        while self.ready_embryos.len() + self.preparing_embryos < self.start.nursery {
            if self.add_embryo().is_err() {
                break;
            }
        }
    }

    fn add_embryo(&mut self) -> Result<(), Failed> {
        let slot = self.slots.claim()?;
        let furnishing = self.latest_furnishing.clone();
        let likely = furnishing.as_deref().and_then(|Furnishing { root, mounts }| {
            Some((self.templates.get(root)?.as_fd(), mounts.as_slice()))
        });
        let inherited =
            Inherited { hierarchy: &self.hierarchy, users: self.users, outside: &self.outside, likely };
        let (channel, process) = match fork_embryo(inherited, &slot) {
            Ok(forked) => forked,
            Err(error) => {
                self.remove_slot(slot.number);
                return Err(error);
            }
        };
        let token = self.watch(channel.as_fd()).step(|| "watch an embryo".into())?;
        let embryo = Embryo { slot, channel, process, furnishing, user_namespace: None };
        self.watched.insert(token, Watched::Embryo(embryo));
        self.preparing_embryos += 1;
        Ok(())
    }

    pub(super) fn create(&mut self, wanted: Wanted) {
        if let Err(error) = self.check(&wanted) {
            return self.reply(&Reply::Failed { tag: wanted.tag, error });
        }
        if self.ready_embryos.is_empty()
            && self.preparing_embryos <= self.waiting_creates.len()
            && let Err(error) = self.add_embryo()
        {
            return self.reply(&Reply::Failed { tag: wanted.tag, error });
        }
        self.waiting_creates.push_back(wanted);
        self.match_embryos();
    }

    fn check(&self, wanted: &Wanted) -> Result<(), Failed> {
        let root = &wanted.furnishing.root;
        if !self.templates.contains_key(root) {
            return Err(Failed::new(Kind::NotFound, format!("there is no root called '{root}'")));
        }
        let taken = self.slots.slot_of(wanted.id).step(|| "look for the sandbox".into())?.is_some();
        let wanted_before = self.waiting_creates.iter().any(|other| other.id == wanted.id);
        if taken || wanted_before || self.is_being_born(wanted.id) {
            return Err(exists_already(wanted.id));
        }
        Ok(())
    }

    fn match_embryos(&mut self) {
        while !self.waiting_creates.is_empty() {
            let Some(token) = self.ready_embryos.pop_front() else { break };
            let Some(Watched::Embryo(embryo)) = self.watched.remove(&token) else { continue };
            let Some(wanted) = self.waiting_creates.pop_front() else { break };
            self.begin(token, embryo, wanted);
        }
        // Much of the work of a sandbox is in its embryo. While one is being born the next ones wait for a quiet moment,
        // unless the nursery is about to be empty.
        if self.start.refill && self.ready_embryos.len() + self.preparing_embryos <= self.start.nursery / 4 {
            self.fill_nursery();
        }
    }

    fn begin(&mut self, token: u64, mut embryo: Embryo, wanted: Wanted) {
        let handed_over = match embryo.user_namespace.take() {
            Some(namespace) => self.hand_over(&embryo, &namespace, &wanted).map(|()| namespace),
            None => Err(Failed::new(Kind::Internal, "the embryo has no user namespace")),
        };
        match handed_over {
            Ok(user_namespace) => {
                let Embryo { slot, channel, process, .. } = embryo;
                let Wanted { tag, id, furnishing, lifetime, .. } = wanted;
                let birth =
                    Birthing { tag, id, furnishing, lifetime, slot, channel, process, user_namespace };
                self.watched.insert(token, Watched::Birth(birth));
            }
            Err(failure) => self.give_up(embryo, Owed::Failure { tag: wanted.tag, failure }),
        }
    }

    fn hand_over(&self, embryo: &Embryo, namespace: &OwnedFd, wanted: &Wanted) -> Result<(), Failed> {
        let tree = |source: &PathBuf| self.mountable_tree(source, Some(namespace), embryo.slot.number, false);
        let workspace = wanted.workspace.as_ref().map(tree).transpose()?;
        let Furnishing { root, mounts } = &wanted.furnishing;
        let furnished = embryo.furnishing.as_deref() == Some(&wanted.furnishing);
        let bound = wanted.lifetime == Lifetime::Bound;
        let brought = Brought {
            mounts: (!furnished).then(|| mounts.clone()),
            lifeline: bound,
            workspace: workspace.is_some(),
        };
        let descriptors: Vec<_> = [
            (!furnished).then(|| self.templates[root].as_fd()),
            bound.then(|| self.lifeline.as_fd()),
            workspace.as_ref().map(AsFd::as_fd),
        ]
        .into_iter()
        .flatten()
        .collect();
        embryo.channel.send(&brought, wanted.packet.body(), &descriptors).step(|| "hand over the plan".into())
    }

    /// A directory of the host as a mount of its own, in which the workload's user is the owner on disk.
    ///
    /// Files that belong to the canonical user (1000) need only the sandbox's own namespace. A directory that belongs to
    /// somebody else keeps its owner, too: that user becomes the workload's. An ordinary user has no one to map.
    pub(super) fn mountable_tree(
        &self,
        source: &std::path::Path,
        namespace: Option<&OwnedFd>,
        slot: u32,
        read_only: bool,
    ) -> Result<OwnedFd, Failed> {
        let say = || format!("mount {}", source.display());
        let directory = self.open_mountable(source)?;
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let recursive =
            if self.users.is_some() { OpenTreeFlags::empty() } else { OpenTreeFlags::AT_RECURSIVE };
        let tree = open_tree(&directory, "", flags | recursive).step(say)?;
        let mut attributes = Attributes::NOSUID.and(Attributes::NODEV);
        if read_only {
            attributes = attributes.and(Attributes::READ_ONLY);
        }
        let (Some(users), Some(namespace)) = (self.users, namespace) else {
            set_attributes(&tree, Depth::WithEverythingBelow, attributes, None).step(say)?;
            return Ok(tree);
        };
        let owner = rustix::fs::fstat(&directory).step(say)?.st_uid;
        let special = match owner {
            WORKLOAD_ID => None,
            0 if !read_only => {
                return Err(Failed::new(Kind::Denied, format!("{} belongs to root", source.display()))
                    .hint(format!("a sandbox must not write root's files: chown -R {WORKLOAD_ID}:{WORKLOAD_ID} it, or mount it read-only")));
            }
            owner => Some(user_namespace(&[Pair { inside: owner, outside: users.of_slot(slot).1 }], true)?),
        };
        let map = special.as_ref().unwrap_or(namespace);
        set_attributes(&tree, Depth::This, attributes, Some(map.as_fd())).step(say).map_err(|error| {
            error.hint(
                "the file system must support id-mapped mounts (ext4, xfs, btrfs, tmpfs from Linux 6.3)",
            )
        })?;
        Ok(tree)
    }

    pub(super) fn hear_embryo(&mut self, token: u64, mut embryo: Embryo) {
        if embryo.user_namespace.is_none() {
            self.preparing_embryos -= 1;
        } else {
            self.ready_embryos.retain(|ready| *ready != token);
        }
        let failure = match receive(&embryo.channel) {
            Ok((FromCradle::Prepared, mut packet)) => {
                embryo.user_namespace = packet.descriptors.pop();
                self.watched.insert(token, Watched::Embryo(embryo));
                self.ready_embryos.push_back(token);
                return self.match_embryos();
            }
            Ok((FromCradle::Failed { error }, _)) => error,
            Ok(_) => Failed::new(Kind::Internal, "the embryo spoke out of turn"),
            Err(error) => error,
        };
        self.give_up(embryo, Owed::Nothing);
        if let Some(wanted) = self.waiting_creates.pop_front() {
            self.reply(&Reply::Failed { tag: wanted.tag, error: failure });
        }
    }

    pub(super) fn hear_birth(&mut self, birth: Birthing) {
        let failure = match receive(&birth.channel) {
            Ok((FromCradle::Ready { contradictions }, packet)) => {
                return self.hand_out(birth, &contradictions, packet);
            }
            Ok((FromCradle::Failed { error }, _)) => error,
            Ok(_) => Failed::new(Kind::Internal, "the sandbox spoke out of turn"),
            Err(error) => error,
        };
        let owed = Owed::Failure { tag: birth.tag, failure };
        self.abort(birth, owed);
    }

    fn hand_out(&mut self, birth: Birthing, contradictions: &[String], mut packet: Packet) {
        let tag = birth.tag;
        let mounts = packet.descriptors.pop();
        let published = if contradictions.is_empty() {
            self.publish(&birth)
        } else {
            let found = contradictions.join("; ");
            Err(Failed::new(Kind::Internal, format!("the sandbox is not what was planned: {found}"))
                .hint("it was destroyed; please report this with the output of 'cubicle doctor --json'"))
        };
        match published {
            Ok(token) => {
                let Birthing { id, furnishing, lifetime, slot, process, user_namespace, .. } = birth;
                // Only what has worked is made ahead.
                if self.latest_furnishing.as_deref() != Some(&furnishing) {
                    self.latest_furnishing = Some(Rc::new(furnishing));
                }
                let slot = slot.number;
                let living = Living { slot, process, token, lifetime, user_namespace, mounts };
                self.sandboxes.insert(id, living);
                self.reply_with(&Reply::Created { tag }, packet.body());
            }
            Err(failure) => self.abort(birth, Owed::Failure { tag, failure }),
        }
    }

    /// Gives the sandbox its name and lets it begin. Returns the token under which its end is heard.
    fn publish(&mut self, birth: &Birthing) -> Result<u64, Failed> {
        match self.slots.publish(birth.id, birth.slot.number) {
            // Another launcher was first; the name is its sandbox's.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(exists_already(birth.id));
            }
            published => published.step(|| format!("publish {}", birth.id))?,
        }
        let told = birth.channel.send(&(), &[], &[]).step(|| "tell the sandbox that it is published".into());
        let watched =
            told.and_then(|()| self.watch(birth.process.as_fd()).step(|| "watch the sandbox".into()));
        let token = watched.inspect_err(|_| _ = self.slots.unpublish(birth.id))?;
        self.watched.insert(token, Watched::Sandbox(birth.id));
        Ok(token)
    }

    fn is_being_born(&self, id: SandboxId) -> bool {
        self.watched.values().any(|watched| matches!(watched, Watched::Birth(birth) if birth.id == id))
    }

    /// Ends what is on its way to becoming a sandbox, because it is to be destroyed. `false` when there is no such.
    pub(super) fn destroy_unborn(&mut self, id: SandboxId, tag: u64) -> bool {
        let failure = || Failed::new(Kind::Unavailable, format!("{id} was destroyed while it was made"));
        if let Some(at) = self.waiting_creates.iter().position(|wanted| wanted.id == id)
            && let Some(wanted) = self.waiting_creates.remove(at)
        {
            self.reply(&Reply::Failed { tag: wanted.tag, error: failure() });
            self.reply(&Reply::Done { tag });
            return true;
        }
        let born = |watched: &Watched| matches!(watched, Watched::Birth(birth) if birth.id == id);
        let Some((_, Watched::Birth(birth))) = self.watched.extract_if(|_, watched| born(watched)).next()
        else {
            return false;
        };
        self.reply(&Reply::Failed { tag: birth.tag, error: failure() });
        self.abort(birth, Owed::Done { tag });
        true
    }

    /// Ends whatever is on its way to a sandbox that nobody will have.
    pub(super) fn end_halfway(&mut self, halfway: Watched) {
        match halfway {
            Watched::Embryo(embryo) => self.give_up(embryo, Owed::Nothing),
            Watched::Birth(birth) => self.abort(birth, Owed::Nothing),
            Watched::Sandbox(_) | Watched::Ending(_) => {}
        }
    }

    fn give_up(&mut self, embryo: Embryo, owed: Owed) {
        let Embryo { slot, process, .. } = embryo;
        self.end(Ending { id: None, slot: slot.number, process, owed });
    }

    fn abort(&mut self, birth: Birthing, owed: Owed) {
        let Birthing { slot, process, .. } = birth;
        self.end(Ending { id: None, slot: slot.number, process, owed });
    }
}

fn exists_already(id: SandboxId) -> Failed {
    Failed::new(Kind::Conflict, format!("{id} exists already"))
}

fn receive(channel: &Channel) -> Result<(FromCradle, Packet), Failed> {
    let packet = channel.receive().step(|| "hear from the sandbox".into())?;
    let packet = packet.ok_or_else(|| {
        Failed::new(Kind::Internal, "the sandbox ended before it was ready")
            .hint("it may have been out of memory: try a higher memory limit")
    })?;
    let message = packet.head().step(|| "understand the sandbox".into())?;
    Ok((message, packet))
}
