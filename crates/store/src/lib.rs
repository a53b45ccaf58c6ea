//! What should be, and what happened: tenants, keys, templates, leases, sandboxes, execs, events, audit, artifacts,
//! secrets, bills, tasks, webhooks.
//!
//! The only SQL of the product. Every method of `Store` is one transaction and one fact; a row and the event that tells of
//! it are written together. The same transactions run on SQLite and on PostgreSQL.

mod artifacts;
mod audit;
mod bills;
mod driver;
mod events;
mod execs;
mod keys;
mod leases;
mod locks;
mod migrations;
mod nodes;
mod page;
mod postgres;
mod queue;
mod repeat;
mod sandboxes;
mod secrets;
mod sql;
mod sqlite;
mod tasks;
mod templates;
mod tenants;
mod tls;
mod webhooks;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use cubicle_model::{Fault, KeyId, Kind, Name, NodeId, RequestId, Timestamp};
use serde::{Deserialize, Serialize};

pub use artifacts::{Artifact, ArtifactKind};
pub use audit::AuditFilter;
pub use bills::KeptBill;
pub use execs::{Begun, Ended, Exec, ExecFilter, Finished, Owner, Planned, Untold};
pub use keys::Key;
pub use leases::{Acquire, Acquired, AfterLease, EndedLease, LeaseFilter, Room, Target};
pub use nodes::Placed;
pub use page::Page;
pub use queue::Promoted;
pub use repeat::Repeat;
pub use sandboxes::{NewSandbox, SandboxFilter};
pub use secrets::{NewSecret, SecretsOfTenant, StoredSecret};
pub use tasks::{CreatedTask, EndedTask, NewTask, Task, TaskEnd, TaskFilter, TaskPlace};
pub use webhooks::{
    Attempt, Claimed, Delivery, DeliveryFilter, Endpoint, EndpointChange, Heard, Listener, NewEndpoint, Told,
};

use crate::driver::{Driver, Durability, Outcome};
use crate::sql::Sql;

/// Fills a buffer with unpredictable bytes.
pub type Random = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// Cheap to clone.
#[derive(Clone)]
pub struct Store {
    driver: Arc<dyn Driver>,
    shared: bool,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

/// When, where and for whom something is done. It becomes a line of the audit log.
#[derive(Debug, Clone)]
pub struct Context {
    pub node: NodeId,
    pub now: Timestamp,
    pub actor: Actor,
}

/// Whoever does something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// Absent for the server itself.
    pub tenant: Option<Name>,
    pub name: String,
    pub key: Option<KeyId>,
    /// The address a request came from.
    pub from: Option<String>,
    pub request: Option<RequestId>,
}

impl Actor {
    /// The server, by itself.
    pub fn system() -> Self {
        Self { tenant: None, name: "system".into(), key: None, from: None, request: None }
    }
}

impl Store {
    /// A file on this host, made and brought forward where needed. Blocks.
    pub fn open_sqlite(path: &Path, random: Random) -> Result<Self, Fault> {
        Ok(Self { driver: Arc::new(sqlite::Sqlite::open(path, random)?), shared: false })
    }

    /// A database that several servers may share. Blocks, and must not be called on an async thread.
    pub fn open_postgres(url: &str, random: Random) -> Result<Self, Fault> {
        Ok(Self { driver: Arc::new(postgres::Postgres::open(url, random)?), shared: true })
    }

    /// Whether other servers may have it too.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&mut dyn Sql) -> Result<T, Fault> + Send + Sync + 'static,
    ) -> Result<T, Fault> {
        let (outcome, work) = Outcome::of(work);
        self.driver.write(Durability::Crash, work).await?;
        outcome.take()
    }

    /// For what nobody could make again.
    async fn write_durably<T: Send + 'static>(
        &self,
        work: impl Fn(&mut dyn Sql) -> Result<T, Fault> + Send + Sync + 'static,
    ) -> Result<T, Fault> {
        let (outcome, work) = Outcome::of(work);
        self.driver.write(Durability::PowerLoss, work).await?;
        outcome.take()
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl Fn(&mut dyn Sql) -> Result<T, Fault> + Send + Sync + 'static,
    ) -> Result<T, Fault> {
        let (outcome, work) = Outcome::of(work);
        self.driver.read(work).await?;
        outcome.take()
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), Fault> {
        self.read(|sql| sql.number("SELECT COUNT(*) FROM schema_steps", &[]).map(drop)).await
    }
}

fn not_found(what: &str) -> Fault {
    Fault::new(Kind::NotFound, format!("there is no such {what}"))
}

/// What a caller believed of a row is no longer so.
fn stale(what: &str) -> Fault {
    Fault::new(Kind::Conflict, format!("the {what} was changed by somebody else in the meantime"))
        .hint("read it again, and repeat what still applies")
}
