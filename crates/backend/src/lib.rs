//! The seam between what should run and where it can run: a backend makes places, the guest runs things.

pub mod conformance;
pub mod fake;
pub mod faults;
pub mod reach;
mod shared;

use std::collections::BTreeMap;

use async_trait::async_trait;
use cubicle_guest::client::Listening;
use cubicle_model::receipt::Amendment;
use cubicle_model::{Binding, Fault, Isolation, Lifetime, Placement, Receipt, SandboxId};
use serde::Serialize;

/// Somewhere that can hold sandboxes.
///
/// Every method is idempotent and safe to drop. After an error of kind `Unavailable` the outcome is unknown and the
/// caller observes. `conformance` runs against every implementation and the fake.
#[async_trait]
pub trait Backend: Send + Sync {
    /// What this host can do, from probes that carry out the whole plan, not single calls.
    async fn probe(&self) -> Probed;

    /// Makes the sandbox unless it is there. A second call with the same placement finds it; with another one for the
    /// same id it is a `Conflict`. When this returns, the guest answered and its receipt has no contradiction.
    async fn ensure(&self, place: &Placement) -> Result<Seen, Fault>;

    /// What is there now. Absence is a value, not an error.
    async fn observe(&self, id: SandboxId) -> Result<Option<Seen>, Fault>;

    /// Everything of this instance, also what an earlier process made.
    async fn list(&self) -> Result<Vec<Seen>, Fault>;

    /// Gives a ready sandbox what its user brings. What `Capabilities::binds_late` does not name is `Denied` and needs a
    /// new sandbox. A failure leaves the sandbox unfit for use; destroy it.
    ///
    /// A listener that is bound again is the same socket, with whatever waits there: that is how whoever comes back after
    /// a crash gets it. Until then nobody inside can have its port.
    async fn bind(&self, id: SandboxId, late: &Binding) -> Result<Bound, Fault>;

    /// A new byte stream to the guest, before its greeting. May be called often.
    async fn connect(&self, id: SandboxId) -> Result<GuestStream, Fault>;

    /// Every record of the sandbox's journal so far, also after it ended; none where it is absent. What comes out is the
    /// sandbox's word: it may end within a record.
    async fn journal(&self, id: SandboxId) -> Result<Option<JournalBytes>, Fault>;

    /// What a sandbox that lives uses now; none where it is absent or has ended. A backend that cannot tell says nothing.
    async fn consumption(&self, id: SandboxId) -> Result<Option<Consumption>, Fault> {
        let _ = id;
        Ok(None)
    }

    /// Ends the sandbox and removes everything it had on the host. Absent succeeds.
    async fn destroy(&self, id: SandboxId) -> Result<(), Fault>;

    /// Removes what nobody owns any more: half-made sandboxes, ended bound ones, leftovers of killed processes.
    async fn gc(&self) -> Result<Swept, Fault>;
}

/// Read by a thread that may block.
pub type JournalBytes = Box<dyn std::io::Read + Send>;

/// A stream to the guest and the key that proves the right to use it.
#[derive(Debug)]
pub struct GuestStream {
    pub stream: tokio::net::UnixStream,
    pub key: cubicle_guest::hello::Key,
}

/// A sandbox as its backend sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    pub id: SandboxId,
    pub lifetime: Lifetime,
    pub state: State,
    pub labels: BTreeMap<String, String>,
    /// Absent only where the sandbox ended before it was ready.
    pub receipt: Option<Receipt>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The guest answers.
    Ready,
    /// The sandbox ended (deadline, crash, out of memory). Its journal can be read until `destroy`.
    Ended,
}

/// What a sandbox uses, as the host counts it. What this host does not count is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Consumption {
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Of everything that ran in it so far.
    pub cpu_us: Option<u64>,
    pub journal_bytes: Option<u64>,
}

/// What `bind` changed of the receipt, and the listeners it made, in the order in which they were asked for.
#[derive(Debug)]
pub struct Bound {
    pub amendment: Amendment,
    pub listeners: Vec<Listening>,
}

/// What the host can do, level by level.
#[derive(Debug, Clone, Serialize)]
pub struct Probed {
    pub levels: Vec<Level>,
    pub capabilities: Capabilities,
}

impl Probed {
    pub fn level(&self, isolation: Isolation) -> Option<&Level> {
        self.levels.iter().find(|level| level.isolation == isolation)
    }

    /// The strongest level that works here.
    pub fn strongest(&self) -> Option<Isolation> {
        self.levels.iter().filter(|level| level.unmet.is_empty()).map(|level| level.isolation).max()
    }
}

/// One isolation level; it works when nothing is unmet.
#[derive(Debug, Clone, Serialize)]
pub struct Level {
    pub isolation: Isolation,
    pub met: Vec<Met>,
    pub unmet: Vec<Unmet>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Met {
    pub check: String,
    pub found: String,
}

/// A check that failed, why, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unmet {
    pub check: String,
    pub because: String,
    pub fix: String,
}

/// What this backend can do on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    pub durable: bool,
    /// What `bind` accepts: of `env`, `files`, `limits`, `mounts`, `listeners`, `secrets`.
    pub binds_late: Vec<String>,
    /// Limits that this host enforces by name, and for the others why not.
    pub limits: BTreeMap<String, Result<String, String>>,
}

/// What `gc` removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Swept {
    pub sandboxes: usize,
    pub cgroups: usize,
    pub directories: usize,
}
