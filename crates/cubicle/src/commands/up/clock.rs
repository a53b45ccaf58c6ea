//! The time of a server: steady, over restarts too.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cubicle_model::Timestamp;
use cubicle_model::clock::{Reading, SteadyClock};

use super::home;
use crate::environment::Environment;

#[derive(Debug)]
pub(crate) struct Clock {
    state: Mutex<State>,
    /// Where the next server of this boot finds it.
    file: PathBuf,
    /// Names the time since the host started last.
    boot: String,
    /// In a debug build, a file with the seconds by which a test sets the host's clock.
    set_by: Option<PathBuf>,
}

#[derive(Debug)]
struct State {
    steady: SteadyClock,
    kept: Option<SteadyClock>,
}

impl Clock {
    /// Goes on with the time of the last server, if the host has not been started again since.
    pub(crate) fn start(directory: &Path, environment: &Environment) -> Arc<Self> {
        let set_by = environment.path("CUBICLE_CLOCK_SET_BY").filter(|_| cfg!(debug_assertions));
        let (file, boot) = (directory.join("clock"), boot());
        let kept = std::fs::read_to_string(&file).ok().and_then(|text| parse(&text, &boot));
        let steady = kept.unwrap_or_else(|| SteadyClock::new(reading(set_by.as_deref())));
        let clock = Self { state: Mutex::new(State { steady, kept }), file, boot, set_by };
        clock.keep();
        Arc::new(clock)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Timestamp {
        let mut state = self.state();
        // Within the lock, so that whoever comes later has the later reading.
        let seen = reading(self.set_by.as_deref());
        state.steady.advance(seen)
    }

    pub(crate) fn wall(&self) -> Timestamp {
        reading(self.set_by.as_deref()).wall
    }

    /// Writes it down where it has come to differ from what is written.
    pub(crate) fn keep(&self) {
        self.now();
        let mut state = self.state();
        let steady = state.steady;
        if state.kept.is_some_and(|kept| kept.agrees_with(&steady)) {
            return;
        }
        let text = format!("{} {} {}\n", self.boot, steady.uptime.as_millis(), steady.time.as_millisecond());
        // Without it the next server begins with the host's clock.
        if home::write(&self.file, &text).is_ok() {
            state.kept = Some(steady);
        }
    }
}

fn reading(set_by: Option<&Path>) -> Reading {
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let uptime = Duration::new(boot.tv_sec.unsigned_abs(), boot.tv_nsec.unsigned_abs() as u32);
    let wall = Timestamp::now();
    let set_by = set_by.and_then(|file| std::fs::read_to_string(file).ok()?.trim().parse::<i64>().ok());
    let by = Duration::from_secs(set_by.unwrap_or(0).unsigned_abs());
    let set =
        if set_by.is_some_and(i64::is_negative) { wall.saturating_sub(by) } else { wall.saturating_add(by) };
    Reading { wall: set.unwrap_or(wall), uptime }
}

/// What was kept, unless the host was started again meanwhile: its uptime began anew then.
fn parse(text: &str, boot: &str) -> Option<SteadyClock> {
    let mut words = text.split_whitespace();
    if boot.is_empty() || words.next() != Some(boot) {
        return None;
    }
    let uptime = Duration::from_millis(words.next()?.parse().ok()?);
    let time = Timestamp::from_millisecond(words.next()?.parse().ok()?).ok()?;
    Some(SteadyClock { uptime, time })
}

fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_kept_for_the_next_server_and_not_for_the_next_boot() {
        let directory = tempfile::tempdir().unwrap();
        let environment = Environment::default();
        let first = Clock::start(directory.path(), &environment);
        let kept = std::fs::read_to_string(directory.path().join("clock")).unwrap();
        let (boot, rest) = kept.split_once(' ').unwrap();
        // As if the host's clock had been set forward by an hour, before this server was started.
        let words: Vec<i64> = rest.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let hour_ago = format!("{boot} {} {}\n", words[0], words[1] - 3_600_000);
        std::fs::write(directory.path().join("clock"), hour_ago).unwrap();
        let again = Clock::start(directory.path(), &environment);
        let behind = first.now().duration_since(again.now()).as_secs();
        assert!((3590..=3600).contains(&behind), "{behind}");
        assert_eq!(parse(&kept, "another boot"), None);
        assert_eq!(parse(boot, boot), None);
    }
}
