//! The conformance suite over the fake host, over one that can do less, and over one whose calls fail.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cubicle_backend::conformance::Harness;
use cubicle_backend::fake::{FakeHost, ManualClock, placement};
use cubicle_backend::faults::{Faulty, Plan};
use cubicle_backend::{Backend, Capabilities};
use cubicle_model::{Lifetime, Placement};

struct Fake {
    host: FakeHost,
    clock: ManualClock,
    drawn: AtomicU64,
    scratch: tempfile::TempDir,
    /// One call in so many fails.
    faults: Option<u64>,
}

impl Fake {
    fn new(capabilities: Capabilities, faults: Option<u64>) -> Self {
        let clock = ManualClock::default();
        let reads = clock.clone();
        Self {
            host: FakeHost::new(move || reads.now(), Arc::new(|_, _| None), capabilities),
            clock,
            drawn: AtomicU64::new(0),
            scratch: tempfile::tempdir().expect("a temporary directory can be made"),
            faults,
        }
    }
}

#[async_trait]
impl Harness for Fake {
    async fn open(&self) -> Arc<dyn Backend> {
        match self.faults {
            None => Arc::new(self.host.open()),
            Some(one_in) => {
                let seed = self.drawn.fetch_add(1, Ordering::Relaxed);
                Arc::new(Faulty::new(self.host.open(), Plan::Seeded { seed, one_in }))
            }
        }
    }

    fn placement(&self, lifetime: Lifetime) -> Placement {
        placement(self.random(), lifetime)
    }

    fn random(&self) -> [u8; 16] {
        u128::from(self.drawn.fetch_add(1, Ordering::Relaxed)).to_be_bytes()
    }

    async fn leftovers(&self) -> Vec<String> {
        self.host.leftovers()
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        tokio::task::yield_now().await;
    }

    fn scratch(&self) -> &Path {
        self.scratch.path()
    }
}

mod fake {
    use super::*;
    cubicle_backend::conformance_tests!(Fake::new(FakeHost::everything(), None));
}

mod fake_that_can_do_little {
    use super::*;

    fn little() -> Capabilities {
        Capabilities { durable: false, binds_late: vec!["env".into()], ..FakeHost::everything() }
    }

    cubicle_backend::conformance_tests!(Fake::new(little(), None));
}

mod fake_whose_calls_sometimes_fail {
    use super::*;
    cubicle_backend::conformance_tests!(Fake::new(FakeHost::everything(), Some(5)));
}

mod fake_whose_calls_fail_often {
    use super::*;
    cubicle_backend::conformance_tests!(Fake::new(FakeHost::everything(), Some(2)));
}
