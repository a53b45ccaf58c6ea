//! Connections: a few, kept while they work, made again when they break.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cubicle_model::Fault;
use postgres::{Client, Config, IsolationLevel, Statement};

use super::faults::{Failure, failure, fault, is_in_the_way, is_lost, is_race};
use super::open::Open;
use crate::Random;
use crate::driver::{Durability, Work, carry_out};
use crate::tls::Tls;

/// A deadlock, a lost race or a lost connection is tried again; more often it is somebody's defect.
const MOST_TRIES: usize = 5;
/// Nothing of ours takes that long; a database that hangs must not hang its callers. Every statement finds its rows by an
/// index, so that one plan does for all values, also before the tables have been looked at.
const SESSION: &str = "SET lock_timeout = '10s'; SET statement_timeout = '30s'; \
    SET idle_in_transaction_session_timeout = '60s'; \
    SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off";

pub(super) struct Pool {
    config: Config,
    tls: Tls,
    idle: Mutex<Vec<Connected>>,
    random: Random,
}

pub(super) struct Connected {
    client: Client,
    prepared: HashMap<String, Statement>,
}

impl Pool {
    pub(super) fn new(config: Config, tls: Tls, random: Random) -> Self {
        Self { config, tls, idle: Mutex::default(), random }
    }

    pub(super) fn transact(&self, durability: Durability, read_only: bool, work: &Work) -> Result<(), Fault> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.attempt(durability, read_only, work) {
                Ok(()) => return Ok(()),
                Err(Failure::Raced(_)) if tries < MOST_TRIES => {}
                Err(Failure::Lost(_)) if tries < MOST_TRIES => {
                    // What broke one connection has most likely broken them all.
                    self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
                }
                Err(failure) => return Err(failure.into_fault()),
            }
        }
    }

    fn attempt(&self, durability: Durability, read_only: bool, work: &Work) -> Result<(), Failure> {
        let mut connected = self.connection().map_err(|error| Failure::Final(fault(&error)))?;
        let outcome = self.transact_on(&mut connected, durability, read_only, work);
        match &outcome {
            Ok(()) | Err(Failure::Raced(_) | Failure::Refused(_)) => self.keep(connected),
            // Whatever else it was, a fresh connection is the safer one.
            Err(Failure::Lost(_) | Failure::Final(_)) => {}
        }
        outcome
    }

    fn transact_on(
        &self,
        connected: &mut Connected,
        durability: Durability,
        read_only: bool,
        work: &Work,
    ) -> Result<(), Failure> {
        let Connected { client, prepared } = connected;
        let mut transaction = client
            .build_transaction()
            .isolation_level(IsolationLevel::ReadCommitted)
            .read_only(read_only)
            .start()
            .map_err(|error| failure(&error))?;
        if durability == Durability::PowerLoss {
            // Whatever the database's default is.
            transaction
                .batch_execute("SET LOCAL synchronous_commit = on")
                .map_err(|error| failure(&error))?;
        }
        let mut open = Open::new(transaction, prepared, &self.random);
        // What is dropped without a commit is rolled back.
        carry_out(work, &mut open).map_err(|refusal| match open.failed.take() {
            Some(error) if is_race(&error) => Failure::Raced(refusal),
            Some(error) if is_lost(&error) => Failure::Lost(refusal),
            Some(_) => Failure::Final(refusal),
            None => Failure::Refused(refusal),
        })?;
        commit(open)
    }

    /// Several works in one transaction, with the outcome of each. It gives up, and nothing has happened, where one of them
    /// meets somebody else's lock for long, or fails after it has changed something.
    pub(super) fn transact_together<'a>(
        &self,
        durability: Durability,
        works: impl Iterator<Item = &'a Work>,
    ) -> Result<Vec<Result<(), Fault>>, Failure> {
        let mut connected = self.connection().map_err(|error| Failure::Final(fault(&error)))?;
        let Connected { client, prepared } = &mut connected;
        let start = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start();
        let mut transaction = start.map_err(|error| failure(&error))?;
        transaction.batch_execute(together(durability)).map_err(|error| failure(&error))?;
        let mut open = Open::new(transaction, prepared, &self.random);
        let mut outcomes = Vec::new();
        for work in works {
            open.dirty = false;
            let outcome = carry_out(work, &mut open);
            if let Err(refusal) = outcome {
                match open.failed.take() {
                    Some(error) if is_lost(&error) => return Err(Failure::Lost(refusal)),
                    Some(error) if is_in_the_way(&error) => return Err(Failure::Raced(refusal)),
                    Some(_) => return Err(Failure::Refused(refusal)),
                    None if open.dirty => return Err(Failure::Refused(refusal)),
                    None => outcomes.push(Err(refusal)),
                }
            } else {
                outcomes.push(outcome);
            }
        }
        commit(open)?;
        self.keep(connected);
        Ok(outcomes)
    }

    /// Whether the database can be reached at all.
    pub(super) fn try_to_connect(&self) -> Result<(), Fault> {
        let connected = self.connection().map_err(|error| fault(&error))?;
        self.keep(connected);
        Ok(())
    }

    fn connection(&self) -> Result<Connected, postgres::Error> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(connected) if connected.client.is_closed() => {}
                Some(connected) => return Ok(connected),
                None => break,
            }
        }
        let mut client = self.config.connect(self.tls.clone())?;
        client.batch_execute(SESSION)?;
        Ok(Connected { client, prepared: HashMap::new() })
    }

    fn keep(&self, connected: Connected) {
        if !connected.client.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connected);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let idle = std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner));
        // Each client waits for its connection to close, which must not happen on a thread of the async runtime.
        let goodbye = std::thread::Builder::new().name("store-goodbye".into());
        let _ = goodbye.spawn(move || drop(idle));
    }
}

/// Settings of a transaction that carries several works.
fn together(durability: Durability) -> &'static str {
    match durability {
        Durability::Crash => "SET LOCAL lock_timeout = '100ms'",
        Durability::PowerLoss => "SET LOCAL lock_timeout = '100ms'; SET LOCAL synchronous_commit = on",
    }
}

/// Whether a commit happened whose answer did not come is unknown, so it is not tried again.
fn commit(open: Open<'_>) -> Result<(), Failure> {
    open.transaction.commit().map_err(|error| match failure(&error) {
        Failure::Lost(fault) => {
            Failure::Final(fault.hint("whether it was done is not known; look, and try again"))
        }
        other => other,
    })
}
