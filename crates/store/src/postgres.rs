//! PostgreSQL: one thread writes, a few connections read.
//!
//! Whatever a server writes waits for the lock of its node, so more writers would only wait for each other. Transactions that
//! arrive while one is being committed are carried out in one, as long as nobody else's locks are in the way.

mod faults;
mod open;
mod pool;
mod writer;

use std::error::Error as _;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use async_trait::async_trait;
use cubicle_model::{Fault, Kind};
use postgres::Config;
use tokio::sync::{Semaphore, oneshot};

use self::pool::Pool;
use crate::Random;
use crate::driver::{Driver, Durability, Job, Work, spawn};
use crate::sql::Sql;
use crate::tls;

/// Connections that read at the same time.
const READERS: usize = 8;
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// How long a transaction waits for its turn before it is refused.
const QUEUE_PATIENCE: Duration = Duration::from_secs(10);
/// How long a write may take, its turn included, before its caller is told that nobody knows.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// After this a silent peer counts as gone.
const NETWORK_PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Postgres {
    pool: Arc<Pool>,
    turns: Arc<Semaphore>,
    writer: Sender<Job>,
}

impl Postgres {
    /// Blocks; for a thread that may.
    pub(crate) fn open(url: &str, random: Random) -> Result<Self, Fault> {
        let mut config: Config = url.parse().map_err(|error: postgres::Error| {
            // The text of the parser names the option that it cannot read, and no value.
            let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            Fault::new(Kind::Invalid, format!("the database's address cannot be read: {cause}")).hint(
                "write it as postgres://user:password@host:5432/database, with sslmode=require or disable",
            )
        })?;
        let tls = tls::settle(&mut config)?;
        config
            .application_name("cubicle")
            .connect_timeout(CONNECT_PATIENCE)
            .tcp_user_timeout(NETWORK_PATIENCE)
            .keepalives_idle(NETWORK_PATIENCE);
        let pool = Arc::new(Pool::new(config, tls, random));
        pool.transact(Durability::PowerLoss, false, &(Arc::new(migrate) as Work))?;
        let (writer, jobs) = channel();
        spawn("store-writer", {
            let pool = Arc::clone(&pool);
            move || writer::serve(&pool, &jobs)
        })?;
        Ok(Self { pool, turns: Arc::new(Semaphore::new(READERS)), writer })
    }
}

fn migrate(sql: &mut dyn Sql) -> Result<(), Fault> {
    // Servers that start together migrate one after the other.
    sql.define("SELECT pg_advisory_xact_lock(7163205)")?;
    crate::migrations::run(sql)
}

#[async_trait]
impl Driver for Postgres {
    async fn write(&self, durability: Durability, work: Work) -> Result<(), Fault> {
        let (done, outcome) = oneshot::channel();
        let gone = || Fault::new(Kind::Internal, "the store has stopped");
        self.writer.send(Job { durability, work, done }).map_err(|_| gone())?;
        match tokio::time::timeout(WRITE_PATIENCE, outcome).await {
            Ok(outcome) => outcome.map_err(|_| gone())?,
            Err(_) => Err(Fault::new(Kind::Unavailable, "the database is too slow to answer now")
                .hint("whether it was done is not known; look, and try again")),
        }
    }

    async fn read(&self, work: Work) -> Result<(), Fault> {
        let turn = tokio::time::timeout(QUEUE_PATIENCE, Arc::clone(&self.turns).acquire_owned()).await;
        let turn = match turn {
            Ok(Ok(turn)) => turn,
            Ok(Err(_)) | Err(_) => {
                return Err(
                    Fault::new(Kind::Unavailable, "the database is too slow to answer now").hint("try again")
                );
            }
        };
        let pool = Arc::clone(&self.pool);
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            pool.transact(Durability::Crash, true, &work)
        });
        done.await.map_err(|error| Fault::new(Kind::Internal, "the store has stopped").because(error))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_read_is_refused_without_its_password() {
        for url in [
            "postgres://cubicle:hunter2@host:port/db",
            "postgres://cubicle:hunter2@host/db?sslmode=hunter2",
            "postgres://cubicle:hunter2@host/db?hunter3=hunter2",
            "nonsense hunter2",
        ] {
            let refusal = Postgres::open(url, Arc::new(|_| {})).map(drop).unwrap_err();
            assert_eq!(refusal.kind(), Kind::Invalid, "{url}");
            let everything = format!("{refusal:?} {refusal}");
            assert!(!everything.contains("hunter2"), "{everything}");
        }
    }
}
