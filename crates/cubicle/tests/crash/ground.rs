//! A data directory where processes are killed, and what is asked of it afterwards.

use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cubicle_tests_leftovers::{Company, Instance};

use crate::host::{BINARY, Host, wait};
use crate::points::{Named, Random, all_over};
use crate::tracer::{self, GATE, Point, Role, Traced};

/// How many points `make test` tries; `make chaos` says more.
const POINTS: usize = 200;
/// Long enough for any host; only a hang gets there.
const BOUND: Duration = Duration::from_secs(60);

/// One at a time: the processes of an ordinary user cannot be told apart by whose they are.
static ALONE: Mutex<()> = Mutex::new(());

/// Prints a number, one more each time, for ever.
const COUNTING: &str = "i=0; while :; do i=$((i+1)); echo $i > /workspace/count; sleep 0.01; done";

pub(crate) struct Ground {
    host: Host,
    _alone: MutexGuard<'static, ()>,
}

impl Ground {
    /// `None` where the host cannot run sandboxes.
    pub(crate) fn new() -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let host = Host::new()?;
        Some(Self { host, _alone: alone })
    }

    /// Kills at points all over the life of a command, and checks after each. `share` of all points is tried here.
    pub(crate) fn crash_all_over(
        &self,
        share: f64,
        roles: &[Role],
        command: impl Fn(&Self) -> Vec<String>,
        check: impl Fn(&Self, &[String]),
    ) {
        let (seed, points) = (setting("CUBICLE_CHAOS_SEED"), setting("CUBICLE_CHAOS_POINTS"));
        let seed = seed.unwrap_or_else(|| {
            u64::from(std::process::id()) << 16
                | u64::from(rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid() as u32))
        });
        let wanted = (points.map_or(POINTS, |points| points as usize) as f64 * share).ceil() as usize;
        let arguments = command(self);
        let Traced::Ended { calls } = self.trace(&arguments, None) else {
            panic!("nothing was to be killed");
        };
        check(self, &arguments);
        let mut killed = 0;
        for point in all_over(&calls, roles, wanted, &mut Random::new(seed)) {
            let arguments = command(self);
            let noted = Noted { what: format!("{point} of {arguments:?}"), seed };
            // Lives differ a little from run to run; a point past the end is an ordinary end.
            if matches!(self.trace(&arguments, Some(point)), Traced::Killed) {
                killed += 1;
            }
            check(self, &arguments);
            drop(noted);
        }
        assert!(killed * 2 > wanted, "only {killed} of {wanted} points were reached");
        println!("{killed} kills of {roles:?} while {:?} ran", arguments.first());
    }

    pub(crate) fn crash_at(&self, arguments: &[String], named: Named) {
        let noted = Noted { what: named.what.to_owned(), seed: 0 };
        let traced = self.trace(arguments, Some(named.point()));
        assert!(matches!(traced, Traced::Killed), "the step was not reached: {traced:?}");
        drop(noted);
    }

    /// Runs `cubicle` with a killer at its heels, and waits for its end.
    fn trace(&self, arguments: &[String], point: Option<Point>) -> Traced {
        std::thread::scope(|scope| {
            // The tree is let go when this thread ends.
            let tracer = scope.spawn(|| {
                let behind_gate: Vec<&str> = ["-c", GATE, "sh", BINARY]
                    .into_iter()
                    .chain(arguments.iter().map(String::as_str))
                    .collect();
                let mut child = self.host.start_quietly("sh", &behind_gate, Stdio::piped());
                let traced = tracer::trace(&mut child, point);
                (child, traced)
            });
            let (mut child, traced) = tracer.join().expect("the tracer does not panic");
            if matches!(traced, Traced::Killed) {
                wait(&mut child);
            }
            traced
        })
    }

    /// One sweep, as a user would do it.
    pub(crate) fn sweep(&self) {
        let swept = self.host.cubicle(&["gc"]);
        assert!(swept.status.success(), "{swept:?}");
    }

    /// Waits until nothing is left but these sandboxes.
    pub(crate) fn count(&self, kept: &[String]) {
        let instance = Instance::of(&self.host.data_dir()).expect("the data directory has been opened");
        let mut last = Vec::new();
        let clean = eventually(|| {
            last = instance.leftovers(kept, Company::Alone);
            last.is_empty()
        });
        assert!(clean, "left on the host: {last:#?}");
    }

    pub(crate) fn sweep_and_count(&self, kept: &[String]) {
        self.sweep();
        self.count(kept);
    }

    pub(crate) fn listed(&self) -> Vec<String> {
        let output = self.host.cubicle(&["ls", "--json"]);
        let list: Vec<serde_json::Value> =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no list: {output:?}"));
        list.iter().filter_map(|one| Some(one["id"].as_str()?.to_owned())).collect()
    }

    /// A durable sandbox; returns its id.
    pub(crate) fn keep(&self) -> String {
        let output = self.host.run(&["--keep", "--json", "--", "true"]);
        let result: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no result: {output:?}"));
        result["sandbox"].as_str().expect("the result names the sandbox").to_owned()
    }

    pub(crate) fn remove(&self, id: &str) {
        let removed = self.host.cubicle(&["rm", id]);
        let gone = String::from_utf8_lossy(&removed.stderr).contains("there is no sandbox");
        assert!(removed.status.success() || gone, "{removed:?}");
    }

    /// A sandbox that is listed runs commands, unless its pid 1 was what was killed.
    pub(crate) fn answers_or_ended(&self, id: &str) {
        let output = self.host.cubicle(&["ls", "--json"]);
        let list: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("a list");
        let state = list.iter().find(|one| one["id"] == id).map(|one| one["state"].clone());
        if state == Some("ready".into()) {
            let answer = self.host.cubicle(&["exec", id, "--", "echo", "here"]);
            assert_eq!(answer.stdout, b"here\n", "{answer:?}");
        }
    }

    /// Something that runs in a durable sandbox from now on.
    pub(crate) fn start_counting(&self, id: &str) {
        let script = format!("({COUNTING}) > /dev/null 2>&1 &");
        let started = self.host.cubicle(&["exec", id, "--", "sh", "-c", &script]);
        assert!(started.status.success(), "{started:?}");
    }

    /// It still runs: the number grows.
    pub(crate) fn still_counts(&self, id: &str) {
        let read = || {
            let output = self.host.cubicle(&["exec", id, "--", "cat", "count"]);
            String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().ok()
        };
        let mut before = None;
        let grows = eventually(|| {
            let now = read();
            let grown = before.is_some_and(|before| now.is_some_and(|now| now > before));
            before = before.or(now);
            grown
        });
        assert!(grows, "the command in {id} does not go on");
    }

    /// What a killed launcher leaves: a bound sandbox that nobody has any more.
    pub(crate) fn make_a_mess(&self) {
        let point = Named { what: "", role: Role::Launcher, call: crate::calls::PIDFD_SEND_SIGNAL, nth: 1 };
        self.crash_at(&crate::arguments(crate::RUN), point);
    }
}

/// Waits for a condition and says whether it came true within the bound.
fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < BOUND {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// A number from the environment; the Makefile sets how many points.
fn setting(name: &str) -> Option<u64> {
    #[expect(clippy::disallowed_methods, reason = "how much is tried is a setting of this suite")]
    std::env::var(name).ok()?.parse().ok()
}

/// Tells which kill it was when a check after it fails.
struct Noted {
    what: String,
    seed: u64,
}

impl Drop for Noted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("after a kill of {} (CUBICLE_CHAOS_SEED={})", self.what, self.seed);
        }
    }
}
