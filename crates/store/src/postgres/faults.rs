//! What PostgreSQL's errors mean for whoever asked.

use std::error::Error as _;

use cubicle_model::{Fault, Kind};
use postgres::error::SqlState;

use crate::tls;

/// Why one try of a transaction failed.
pub(super) enum Failure {
    /// Two transactions met; the same work may succeed now.
    Raced(Fault),
    /// The connection broke before the commit: nothing happened, and another connection may do better.
    Lost(Fault),
    /// The work itself refused.
    Refused(Fault),
    Final(Fault),
}

impl Failure {
    pub(super) fn into_fault(self) -> Fault {
        match self {
            Self::Raced(fault) | Self::Lost(fault) | Self::Refused(fault) | Self::Final(fault) => fault,
        }
    }
}

pub(super) fn failure(error: &postgres::Error) -> Failure {
    let fault = fault(error);
    if is_race(error) {
        Failure::Raced(fault)
    } else if is_lost(error) {
        Failure::Lost(fault)
    } else {
        Failure::Final(fault)
    }
}

pub(super) fn is_race(error: &postgres::Error) -> bool {
    let races =
        [&SqlState::UNIQUE_VIOLATION, &SqlState::T_R_DEADLOCK_DETECTED, &SqlState::T_R_SERIALIZATION_FAILURE];
    error.code().is_some_and(|code| races.contains(&code))
}

/// Somebody else's locks are.
pub(super) fn is_in_the_way(error: &postgres::Error) -> bool {
    let blocked = [&SqlState::LOCK_NOT_AVAILABLE, &SqlState::T_R_DEADLOCK_DETECTED];
    error.code().is_some_and(|code| blocked.contains(&code))
}

/// The connection is gone, and with it the transaction.
pub(super) fn is_lost(error: &postgres::Error) -> bool {
    let endings = [&SqlState::ADMIN_SHUTDOWN, &SqlState::CRASH_SHUTDOWN];
    match error.code() {
        Some(code) => endings.contains(&code),
        None => error.is_closed() || error.source().is_some_and(|source| source.is::<std::io::Error>()),
    }
}

pub(super) fn fault(error: &postgres::Error) -> Fault {
    // The text of the error itself says only where it happened. None of them carries a password.
    let cause = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    let Some(code) = error.code() else {
        return tls::refusal(error).unwrap_or_else(|| unreachable_database(cause));
    };
    let refusals = [
        &SqlState::INVALID_PASSWORD,
        &SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        &SqlState::INVALID_CATALOG_NAME,
    ];
    let going_away = [
        &SqlState::ADMIN_SHUTDOWN,
        &SqlState::CRASH_SHUTDOWN,
        &SqlState::CANNOT_CONNECT_NOW,
        &SqlState::TOO_MANY_CONNECTIONS,
        &SqlState::DISK_FULL,
        &SqlState::OUT_OF_MEMORY,
        &SqlState::LOCK_NOT_AVAILABLE,
        &SqlState::QUERY_CANCELED,
        &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        &SqlState::READ_ONLY_SQL_TRANSACTION,
        &SqlState::T_R_DEADLOCK_DETECTED,
        &SqlState::T_R_SERIALIZATION_FAILURE,
    ];
    let unstorable = [&SqlState::CHARACTER_NOT_IN_REPERTOIRE, &SqlState::UNTRANSLATABLE_CHARACTER];
    if *code == SqlState::UNIQUE_VIOLATION {
        Fault::new(Kind::Conflict, "somebody else made the same at the same time").because(cause)
    } else if *code == SqlState::FOREIGN_KEY_VIOLATION {
        Fault::new(Kind::NotFound, "what this belongs to does not exist").because(cause)
    } else if going_away.contains(&code) {
        unreachable_database(cause)
    } else if unstorable.contains(&code) {
        Fault::new(Kind::Invalid, "a text has a character that the database cannot keep").because(cause)
    } else if refusals.contains(&code) {
        Fault::new(Kind::Denied, "the database refuses the connection")
            .because(cause)
            .hint("check user, password and database name in DB_URL")
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        Fault::new(Kind::Denied, "the database's user may not do that")
            .because(cause)
            .hint("let the user of DB_URL own the database")
    } else {
        Fault::new(Kind::Internal, "the database refused a statement").because(cause)
    }
}

fn unreachable_database(cause: String) -> Fault {
    Fault::new(Kind::Unavailable, "the database cannot be reached")
        .because(cause)
        .hint("try again in a few seconds")
}
