//! SQLite in a file. A transaction is carried out by whoever asks for it where a connection is free, because waking a
//! thread takes as long; otherwise one thread writes for all, and a few read. Another one moves what was written from the
//! log into the file.

mod checkpoint;
mod writer;

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use async_trait::async_trait;
use cubicle_model::{Fault, Kind};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql, TransactionBehavior, ffi};
use tokio::sync::oneshot;

use crate::Random;
use crate::driver::{Driver, Durability, Job, Work, carry_out, spawn};
use crate::sql::{Row, Sql, Value};
use writer::Writer;

/// How long another process may hold the lock before a transaction is refused.
const PATIENCE: Duration = Duration::from_secs(5);
const READERS: usize = 2;
/// Statements that a connection keeps prepared: about as many as there are.
const PREPARED: usize = 160;

pub(crate) struct Sqlite {
    writer: Arc<Mutex<Writer>>,
    /// Jobs that wait for the writer's thread; whoever comes later does not overtake them.
    waiting: Arc<AtomicUsize>,
    to_writer: Sender<Job>,
    readers: Vec<Arc<Mutex<Reader>>>,
    to_readers: Sender<Job>,
}

impl Sqlite {
    pub(crate) fn open(path: &Path, random: Random) -> Result<Self, Fault> {
        let mut connection = connect(path)?;
        migrate(&mut connection, &random)?;
        let checkpoints = checkpoint::start(connect(path)?)?;
        let writer = Writer::new(connection, Arc::clone(&random), checkpoints)?;
        let (writer, waiting) = (Arc::new(Mutex::new(writer)), Arc::<AtomicUsize>::default());
        let (to_writer, jobs) = channel::<Job>();
        spawn("store-writer", {
            let (writer, waiting) = (Arc::clone(&writer), Arc::clone(&waiting));
            move || {
                while let Ok(first) = jobs.recv() {
                    let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                    waiting.fetch_sub(writer.catch_up(first, &jobs), Ordering::Relaxed);
                }
            }
        })?;
        let (to_readers, jobs) = channel();
        let jobs = Arc::new(Mutex::new(jobs));
        let mut readers = Vec::new();
        for _ in 0..READERS {
            let reader = Reader { connection: connect(path)?, random: Arc::clone(&random) };
            let reader = Arc::new(Mutex::new(reader));
            readers.push(Arc::clone(&reader));
            let jobs = Arc::clone(&jobs);
            spawn("store-reader", move || read_all(&reader, &jobs))?;
        }
        Ok(Self { writer, waiting, to_writer, readers, to_readers })
    }

    async fn submit(&self, to: &Sender<Job>, durability: Durability, work: Work) -> Result<(), Fault> {
        let (done, outcome) = oneshot::channel();
        let gone = || Fault::new(Kind::Internal, "the store has stopped");
        to.send(Job { durability, work, done }).map_err(|_| gone())?;
        outcome.await.map_err(|_| gone())?
    }
}

#[async_trait]
impl Driver for Sqlite {
    async fn write(&self, durability: Durability, work: Work) -> Result<(), Fault> {
        // Waiting for a disk is not for a caller's thread.
        if durability == Durability::Crash
            && self.waiting.load(Ordering::Relaxed) == 0
            && let Some(mut writer) = free(&self.writer)
            && let Some(outcome) = writer.at_once(&work)
        {
            return outcome;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.submit(&self.to_writer, durability, work).await
    }

    async fn read(&self, work: Work) -> Result<(), Fault> {
        if let Some(reader) = self.readers.iter().find_map(|reader| free(reader)) {
            return reader.carry_out(&work);
        }
        self.submit(&self.to_readers, Durability::Crash, work).await
    }
}

fn connect(path: &Path) -> Result<Connection, Fault> {
    let refused = |error: Box<dyn std::error::Error + Send + Sync>| {
        let text = format!("the database {} cannot be opened: {error}", path.display());
        Fault::new(Kind::Unavailable, text)
            .because(error)
            .hint("the directory must be writable and on a local disk, and nobody else may hold the file")
    };
    for_its_owner_alone(path).map_err(|error| refused(error.into()))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE;
    let open = || {
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(PATIENCE)?;
        connection.set_prepared_statement_cache_capacity(PREPARED);
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.pragma_update(None, "foreign_keys", "ON")?;
        // A few megabytes are enough for every index that is used all the time.
        connection.pragma_update(None, "cache_size", -4096)?;
        connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
        // What a savepoint may have to undo is kept in memory, not in a file.
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        Ok(connection)
    };
    open().map_err(|error: rusqlite::Error| refused(error.into()))
}

/// The log and its index, which SQLite makes itself, get the mode of the file.
fn for_its_owner_alone(path: &Path) -> std::io::Result<()> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// All steps or none.
fn migrate(connection: &mut Connection, random: &Random) -> Result<(), Fault> {
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(|error| fault(&error))?;
    crate::migrations::run(&mut Open { connection: &transaction, random })?;
    transaction.commit().map_err(|error| fault(&error))
}

fn run(connection: &Connection, statement: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(statement)?.execute([]).map(drop)
}

/// One that nobody uses right now.
fn free<T>(shared: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match shared.try_lock() {
        Ok(guard) => Some(guard),
        // A transaction that panics is undone, and leaves the connection as it was.
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

struct Reader {
    connection: Connection,
    random: Random,
}

impl Reader {
    fn carry_out(&self, work: &Work) -> Result<(), Fault> {
        let Self { connection, random } = self;
        let outcome = match run(connection, "BEGIN") {
            Ok(()) => carry_out(work, &mut Open { connection, random }),
            Err(error) => Err(fault(&error)),
        };
        // Before the answer: an open transaction would hold the log.
        let _ = run(connection, "ROLLBACK");
        outcome
    }
}

fn read_all(reader: &Mutex<Reader>, jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let outcome = reader.lock().unwrap_or_else(PoisonError::into_inner).carry_out(&job.work);
        job.answer(outcome);
    }
}

/// One open transaction.
struct Open<'a> {
    connection: &'a Connection,
    random: &'a Random,
}

impl Sql for Open<'_> {
    fn run(&mut self, statement: &str, values: &[Value]) -> Result<u64, Fault> {
        let mut prepared = self.connection.prepare_cached(statement).map_err(|error| fault(&error))?;
        let changed = prepared.execute(rusqlite::params_from_iter(values)).map_err(|error| fault(&error))?;
        Ok(changed as u64)
    }

    fn rows(&mut self, statement: &str, values: &[Value]) -> Result<Vec<Row>, Fault> {
        let query = || {
            let mut prepared = self.connection.prepare_cached(statement)?;
            let columns = prepared.column_count();
            let mut found = Vec::new();
            let mut rows = prepared.query(rusqlite::params_from_iter(values))?;
            while let Some(row) = rows.next()? {
                let cells: Result<Vec<Value>, _> =
                    (0..columns).map(|column| cell(row.get_ref(column)?)).collect();
                found.push(Row(cells?.into_iter()));
            }
            Ok(found)
        };
        query().map_err(|error: rusqlite::Error| fault(&error))
    }

    fn define(&mut self, statement: &str) -> Result<(), Fault> {
        // What counts by itself is written as PostgreSQL has it, and is a row number here.
        const COUNTS: &str = "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY";
        let statement = match statement.contains("CREATE TABLE") {
            true if statement.contains(COUNTS) => {
                statement.replace(COUNTS, "INTEGER PRIMARY KEY AUTOINCREMENT")
            }
            // Every table has a key of its own; a second one that SQLite would add costs a page with every write.
            true => format!("{statement} WITHOUT ROWID"),
            false => statement.into(),
        };
        self.connection.execute_batch(&statement).map_err(|error| fault(&error))
    }

    fn and_lock(&self) -> &'static str {
        // There is one writer.
        ""
    }

    fn and_lock_free_ones(&self) -> &'static str {
        ""
    }

    fn fresh(&mut self) -> [u8; 16] {
        let mut bits = [0; 16];
        (self.random)(&mut bits);
        bits
    }
}

fn cell(value: ValueRef<'_>) -> rusqlite::Result<Value> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Text(_) => Value::Text(value.as_str()?.to_owned()),
        ValueRef::Real(_) | ValueRef::Blob(_) => return Err(rusqlite::Error::InvalidQuery),
    })
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Null => ToSqlOutput::Borrowed(ValueRef::Null),
            Self::Int(number) => ToSqlOutput::Borrowed(ValueRef::Integer(*number)),
            Self::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
        })
    }
}

fn fault(error: &rusqlite::Error) -> Fault {
    let (kind, text, hint) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            Kind::Unavailable,
            "the database is locked by another process",
            Some("nothing was changed; end whatever holds it, and try again"),
        ),
        Some(ErrorCode::DiskFull) => {
            (Kind::Unavailable, "the disk is full", Some("nothing was changed; make room, and try again"))
        }
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::ReadOnly) => {
            (Kind::Unavailable, "the database cannot be reached", Some("is its disk there and writable?"))
        }
        Some(ErrorCode::ConstraintViolation)
            if error
                .sqlite_error()
                .is_some_and(|it| it.extended_code == ffi::SQLITE_CONSTRAINT_FOREIGNKEY) =>
        {
            (Kind::NotFound, "what this belongs to does not exist", None)
        }
        Some(ErrorCode::ConstraintViolation) => {
            (Kind::Conflict, "somebody else made the same at the same time", None)
        }
        _ => (Kind::Internal, "the database refused a statement", None),
    };
    let fault = Fault::new(kind, text).because(error.to_string());
    match hint {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}
