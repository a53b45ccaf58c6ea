//! Whoever writes: the caller itself where nobody else does, and otherwise one thread for all.
//!
//! Transactions that arrive while one is being committed are committed together, each in a savepoint of its own. That
//! makes many writers as cheap as one, and none of them can undo another.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use cubicle_model::{Fault, Kind};
use rusqlite::Connection;

use super::checkpoint::Checkpoints;
use super::{Open, PATIENCE, fault, run};
use crate::Random;
use crate::driver::{Durability, Job, Work, again, carry_out};

/// Committed together at most.
const MOST_TOGETHER: usize = 128;

pub(super) struct Writer {
    connection: Connection,
    random: Random,
    checkpoints: Checkpoints,
    /// What the connection is set to.
    durability: Durability,
}

impl Writer {
    pub(super) fn new(
        mut connection: Connection,
        random: Random,
        checkpoints: Checkpoints,
    ) -> Result<Self, Fault> {
        checkpoints.watch(&mut connection).map_err(|error| fault(&error))?;
        Ok(Self { connection, random, checkpoints, durability: Durability::Crash })
    }

    /// Carries out one transaction on the caller's thread, where nothing has to be waited for; otherwise it is not begun.
    pub(super) fn at_once(&mut self, work: &Work) -> Option<Result<(), Fault>> {
        if self.checkpoints.are_due() || self.connection.busy_timeout(Duration::ZERO).is_err() {
            return None;
        }
        let outcome = self.transact(std::slice::from_ref(&work), Durability::Crash).ok()?;
        self.checkpoints.after_commit(&self.connection);
        outcome.into_iter().next()
    }

    /// Carries out what waits, and says how many that were.
    pub(super) fn catch_up(&mut self, first: Job, jobs: &Receiver<Job>) -> usize {
        let mut together = vec![first];
        together.extend(jobs.try_iter().take(MOST_TOGETHER - 1));
        let strictest = |found, job: &Job| match job.durability {
            Durability::PowerLoss => Durability::PowerLoss,
            Durability::Crash => found,
        };
        let durability = together.iter().fold(Durability::Crash, strictest);
        let works: Vec<&Work> = together.iter().map(|job| &job.work).collect();
        let patient = self.connection.busy_timeout(PATIENCE);
        match patient.and_then(|()| self.transact(&works, durability)) {
            Ok(outcomes) => {
                let count = together.len();
                for (job, outcome) in together.into_iter().zip(outcomes) {
                    job.answer(outcome);
                }
                self.checkpoints.after_commit(&self.connection);
                count
            }
            Err(error) => {
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) {
                    // Whoever came meanwhile has waited as long; waiting again for each of them would add up.
                    together.extend(jobs.try_iter());
                }
                let count = together.len();
                for job in together {
                    job.answer(Err(fault(&error)));
                }
                count
            }
        }
    }

    /// What came of each; an error where none of them was begun.
    fn transact(
        &mut self,
        works: &[&Work],
        durability: Durability,
    ) -> rusqlite::Result<Vec<Result<(), Fault>>> {
        self.set(durability)?;
        run(&self.connection, "BEGIN IMMEDIATE")?;
        let mut undone = None;
        let mut outcomes = Vec::with_capacity(works.len());
        for work in works {
            // A full disk or a failing one may undo everything that is open; nothing more may be added to it then.
            if undone.is_some() {
                outcomes.push(Ok(()));
                continue;
            }
            let outcome = match works.len() {
                // Its failure is the failure of the whole.
                1 => self.carry_out(work),
                _ => self.in_savepoint(work),
            };
            if self.connection.is_autocommit() {
                undone = Some(outcome.as_ref().err().map_or_else(given_up, again));
            }
            outcomes.push(outcome);
        }
        let worthless = outcomes.iter().all(Result::is_err);
        if undone.is_none()
            && !worthless
            && let Err(error) = run(&self.connection, "COMMIT")
        {
            undone = Some(fault(&error));
        }
        if !self.connection.is_autocommit() {
            // Without the rollback the next transaction would find one open.
            let _ = run(&self.connection, "ROLLBACK");
        }
        if let Some(reason) = undone {
            outcomes.iter_mut().for_each(|outcome| *outcome = Err(again(&reason)));
        }
        Ok(outcomes)
    }

    fn set(&mut self, wanted: Durability) -> rusqlite::Result<()> {
        if wanted != self.durability {
            let level = match wanted {
                Durability::Crash => "NORMAL",
                Durability::PowerLoss => "FULL",
            };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.durability = wanted;
        }
        Ok(())
    }

    fn carry_out(&self, work: &Work) -> Result<(), Fault> {
        carry_out(work, &mut Open { connection: &self.connection, random: &self.random })
    }

    fn in_savepoint(&self, work: &Work) -> Result<(), Fault> {
        let run = |statement| run(&self.connection, statement).map_err(|error| fault(&error));
        run("SAVEPOINT one")?;
        let outcome = self.carry_out(work);
        if outcome.is_err() {
            // Where everything was undone there is no savepoint any more, and the first failure is the one to tell.
            let _ = run("ROLLBACK TO one");
            let _ = run("RELEASE one");
            return outcome;
        }
        run("RELEASE one")
    }
}

fn given_up() -> Fault {
    Fault::new(Kind::Unavailable, "the database gave up the transaction").hint("try again")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use tokio::sync::oneshot;

    use super::super::{checkpoint, connect};
    use super::*;
    use crate::sql::values;

    type Answer = oneshot::Receiver<Result<(), Fault>>;

    /// A writer whose jobs are all there before it begins, so that they are committed together.
    struct Bench {
        _directory: tempfile::TempDir,
        writer: Writer,
    }

    impl Bench {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("db");
            let connection = connect(&path).unwrap();
            connection.execute_batch("CREATE TABLE t (a TEXT PRIMARY KEY)").unwrap();
            let checkpoints = checkpoint::start(connect(&path).unwrap()).unwrap();
            let writer =
                Writer::new(connection, Arc::new(|bits: &mut [u8]| bits.fill(7)), checkpoints).unwrap();
            Self { _directory: directory, writer }
        }

        fn write(&mut self, works: Vec<Work>) -> Vec<Result<(), Fault>> {
            let (sender, jobs) = channel();
            let send = |work| -> Answer {
                let (done, answer) = oneshot::channel();
                sender.send(Job { durability: Durability::Crash, work, done }).unwrap();
                answer
            };
            let answers: Vec<Answer> = works.into_iter().map(send).collect();
            drop(sender);
            while let Ok(first) = jobs.recv() {
                self.writer.catch_up(first, &jobs);
            }
            answers.into_iter().map(|mut answer| answer.try_recv().expect("everybody is answered")).collect()
        }

        fn rows(&self) -> Vec<String> {
            let mut select =
                self.writer.connection.prepare("SELECT substr(a, 1, 8) FROM t ORDER BY a").unwrap();
            select.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
        }
    }

    fn add(text: impl Into<String>) -> Work {
        let text = text.into();
        Arc::new(move |sql| sql.run("INSERT INTO t VALUES (?1)", values![&text]).map(drop))
    }

    #[test]
    fn transactions_that_are_committed_together_fail_alone() {
        let mut bench = Bench::new();
        let then_refuse: Work = Arc::new(|sql| {
            sql.run("INSERT INTO t VALUES (?1)", values!["half"])?;
            Err(Fault::new(Kind::Denied, "no"))
        });
        let outcomes = bench.write(vec![add("first"), then_refuse, add("first"), add("last")]);
        let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().map_err(Fault::kind)).collect();
        assert_eq!(kinds, [Ok(&()), Err(Kind::Denied), Err(Kind::Conflict), Ok(&())]);
        assert_eq!(bench.rows(), ["first", "last"]);
    }

    #[test]
    fn a_transaction_that_fails_alone_leaves_nothing_open() {
        let mut bench = Bench::new();
        let half: Work = Arc::new(|sql| {
            sql.run("INSERT INTO t VALUES (?1)", values!["half"])?;
            Err(Fault::new(Kind::Denied, "no"))
        });
        assert_eq!(bench.writer.at_once(&half).unwrap().unwrap_err().kind(), Kind::Denied);
        assert!(bench.writer.at_once(&add("whole")).unwrap().is_ok());
        assert_eq!(bench.rows(), ["whole"]);
    }

    #[test]
    fn a_caller_does_not_wait_for_a_locked_database_itself() {
        let mut bench = Bench::new();
        let somebody = connect(&bench._directory.path().join("db")).unwrap();
        somebody.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert!(bench.writer.at_once(&add("early")).is_none());
        somebody.execute_batch("ROLLBACK").unwrap();
        assert!(bench.write(vec![add("early")])[0].is_ok());
        assert_eq!(bench.rows(), ["early"]);
    }

    #[test]
    fn a_transaction_that_panics_is_undone_and_the_writer_goes_on() {
        let mut bench = Bench::new();
        let panics: Work = Arc::new(|sql| {
            sql.run("INSERT INTO t VALUES (?1)", values!["half"])?;
            panic!("on purpose")
        });
        let outcomes = bench.write(vec![add("first"), panics, add("last")]);
        let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().map_err(Fault::kind)).collect();
        assert_eq!(kinds, [Ok(&()), Err(Kind::Internal), Ok(&())]);
        assert_eq!(bench.rows(), ["first", "last"]);
    }

    #[test]
    fn a_full_disk_is_told_changes_nothing_and_is_got_over() {
        let mut bench = Bench::new();
        let pages: i64 =
            bench.writer.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        let limit = |bench: &Bench, pages: i64| {
            let statement = format!("PRAGMA max_page_count = {pages}");
            bench.writer.connection.query_row(&statement, [], |_| Ok(())).unwrap();
        };
        limit(&bench, pages + 4);
        let large = |first: &str| add(format!("{first:8}{}", "x".repeat(100_000)));
        let outcomes = bench.write(vec![add("small"), large("large"), add("other")]);
        let refused = outcomes[1].as_ref().unwrap_err();
        assert_eq!((refused.kind(), refused.message()), (Kind::Unavailable, "the disk is full"));
        // Whoever was told that it was done finds it, and nobody else finds anything.
        let told = |name: &'static str, index: usize| outcomes[index].is_ok().then_some(name);
        let mut expected: Vec<_> = [told("small", 0), told("other", 2)].into_iter().flatten().collect();
        expected.sort_unstable();
        assert_eq!(bench.rows(), expected);
        limit(&bench, pages + 4000);
        assert!(bench.write(vec![large("large")])[0].is_ok());
    }

    /// What a failing disk does: everything that is open is undone.
    #[test]
    fn when_the_database_undoes_everything_nobody_is_told_that_it_was_done() {
        let mut bench = Bench::new();
        let undoes: Work = Arc::new(|sql| {
            sql.define("ROLLBACK")?;
            Err(Fault::new(Kind::Unavailable, "the disk is full"))
        });
        let outcomes = bench.write(vec![add("first"), undoes, add("last")]);
        for outcome in outcomes {
            assert_eq!(outcome.unwrap_err().kind(), Kind::Unavailable);
        }
        assert!(bench.rows().is_empty());
        assert!(bench.write(vec![add("later")])[0].is_ok());
    }

    #[test]
    fn a_log_that_writers_fill_all_the_time_does_not_grow_for_ever() {
        let mut bench = Bench::new();
        let path = bench._directory.path().join("db-wal");
        let mut largest = 0;
        for round in 0..60 {
            let works = (0..64).map(|n| add(format!("{round}-{n}-{}", "x".repeat(16_000)))).collect();
            assert!(bench.write(works).iter().all(Result::is_ok));
            largest = largest.max(std::fs::metadata(&path).unwrap().len());
        }
        // 60 MB were written; one batch may come on top of what is allowed.
        assert!(largest < 48 * 1024 * 1024, "{largest}");
    }
}
