//! The one thread that writes.
//!
//! Transactions that arrive while one is being committed are committed together, each in a savepoint of its own. That
//! makes many writers as cheap as one, and none of them can undo another.

use std::sync::mpsc::Receiver;

use cubicle_model::{Fault, Kind};
use rusqlite::Connection;

use super::checkpoint::Checkpoints;
use super::{Open, fault, run};
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

    /// Until nobody can send a job any more.
    pub(super) fn serve(&mut self, jobs: &Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let mut together = vec![first];
            together.extend(jobs.try_iter().take(MOST_TOGETHER - 1));
            if let Err((mut waiting, error)) = self.commit(together) {
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) {
                    // Whoever came meanwhile has waited as long; waiting again for each of them would add up.
                    waiting.extend(jobs.try_iter());
                }
                for job in waiting {
                    job.answer(Err(fault(&error)));
                }
            }
            self.checkpoints.after_commit(&self.connection);
        }
    }

    /// Gives the jobs back where none of them was begun.
    fn commit(&mut self, jobs: Vec<Job>) -> Result<(), (Vec<Job>, rusqlite::Error)> {
        let strictest = |found, job: &Job| match job.durability {
            Durability::PowerLoss => Durability::PowerLoss,
            Durability::Crash => found,
        };
        let wanted = jobs.iter().fold(Durability::Crash, strictest);
        let begun = self.set(wanted).and_then(|()| run(&self.connection, "BEGIN IMMEDIATE"));
        if let Err(error) = begun {
            return Err((jobs, error));
        }
        let mut undone = None;
        let mut outcomes = Vec::with_capacity(jobs.len());
        for job in jobs {
            // A full disk or a failing one may undo everything that is open; nothing more may be added to it then.
            if undone.is_none() {
                let outcome = self.in_savepoint(&job.work);
                if self.connection.is_autocommit() {
                    undone = Some(outcome.as_ref().err().map_or_else(given_up, again));
                }
                outcomes.push((job, outcome));
            } else {
                outcomes.push((job, Ok(())));
            }
        }
        if undone.is_none()
            && let Err(error) = run(&self.connection, "COMMIT")
        {
            // Without the rollback the next transaction would find one open.
            let _ = run(&self.connection, "ROLLBACK");
            undone = Some(fault(&error));
        }
        for (job, outcome) in outcomes {
            job.answer(match &undone {
                Some(reason) => Err(again(reason)),
                None => outcome,
            });
        }
        Ok(())
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

    fn in_savepoint(&self, work: &Work) -> Result<(), Fault> {
        let run = |statement| run(&self.connection, statement).map_err(|error| fault(&error));
        run("SAVEPOINT one")?;
        let outcome = carry_out(work, &mut Open { connection: &self.connection, random: &self.random });
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
            self.writer.serve(&jobs);
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
