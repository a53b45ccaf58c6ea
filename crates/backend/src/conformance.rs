//! What every backend promises, as tests that every backend runs: one function per property, named as a sentence.
//!
//! A test crate implements `Harness` and calls `conformance_tests!`, which makes one test of each property. The suite
//! tries again after `Unavailable`, as every caller of a backend must, so it also runs over `faults::Faulty`.

mod binding;
mod inside;
mod lifecycle;
mod lifetime;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cubicle_model::{Fault, Kind, Lifetime, Placement, SandboxId};

use crate::{Backend, Seen, State};

pub use binding::*;
pub use lifecycle::*;
pub use lifetime::*;

/// One host with a data directory of its own, and the means to look at it from outside.
#[async_trait]
pub trait Harness: Send + Sync {
    /// The backend as one more process on the same data directory would have it. Dropping the last clone is the end of
    /// that process.
    async fn open(&self) -> Arc<dyn Backend>;

    /// A small sandbox with a new id.
    fn placement(&self, lifetime: Lifetime) -> Placement;

    fn random(&self) -> [u8; 16];

    /// Everything that sandboxes have left on the host: processes, mounts, cgroups, directories, sockets.
    async fn leftovers(&self) -> Vec<String>;

    /// Lets time pass: a real host waits, a fake one moves its clock.
    async fn pass(&self, time: Duration);

    /// An empty directory of the host that sandboxes may be given.
    fn scratch(&self) -> &Path;
}

/// How a property turned out; one that does not hold panics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    /// This host cannot show it, and why.
    Skipped(String),
}

/// Makes one test of every property. The expression is an async block's value that is a `Harness`.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::conformance_tests! { @each $harness;
            ensure_is_idempotent
            another_placement_for_the_same_id_conflicts
            what_is_absent_is_a_value_not_an_error
            list_finds_what_another_process_made
            labels_are_kept_with_the_sandbox
            a_sandbox_that_is_returned_is_ready_and_has_a_receipt
            connect_works_often
            connect_to_what_is_absent_is_not_found
            destroy_of_what_is_absent_succeeds
            destroy_leaves_nothing
            destroy_twice_succeeds
            a_destroyed_id_can_be_made_again
            a_bound_sandbox_dies_with_its_owner
            a_durable_sandbox_outlives_its_maker
            a_deadline_ends_a_sandbox
            what_a_sandbox_uses_is_counted_while_it_lives
            a_journal_can_be_read_also_after_its_sandbox_ended
            an_owner_can_extend_the_deadline
            gc_removes_only_what_is_nobodys
            a_dropped_ensure_leaves_nothing_half_made
            a_lost_answer_is_found_by_observing
            bind_gives_environment_variables
            bind_gives_files
            bind_changes_limits_and_amends_the_receipt
            bind_gives_mounts
            bind_gives_listeners
            a_listener_that_is_bound_again_has_what_waited_there
            bind_gives_secrets_that_the_receipt_names_and_no_record_holds
            bind_of_what_cannot_be_bound_late_is_denied
            bind_to_what_is_absent_is_not_found
        }
    };
    (@each $harness:expr; $($property:ident)+) => {
        $(#[tokio::test]
        async fn $property() {
            let harness = $harness;
            match $crate::conformance::$property(&harness).await {
                $crate::conformance::Verdict::Holds => {}
                $crate::conformance::Verdict::Skipped(reason) => {
                    // Not captured by the test runner, so that the skip is seen and counted.
                    let _ = ::std::io::Write::write_fmt(
                        &mut ::std::io::stderr(),
                        format_args!("skipped: {}: {reason}\n", stringify!($property)),
                    );
                }
            }
        })+
    };
}

/// Tries until the outcome is known. Safe because every method is idempotent.
async fn insist<T>(mut call: impl AsyncFnMut() -> Result<T, Fault>) -> Result<T, Fault> {
    const TRIES: usize = 16;
    for _ in 0..TRIES {
        match call().await {
            Err(fault) if fault.kind() == Kind::Unavailable => {}
            known => return known,
        }
    }
    panic!("the outcome is still unknown after {TRIES} tries");
}

/// Waits for a condition, with a bound.
async fn eventually(harness: &dyn Harness, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    const STEP: Duration = Duration::from_millis(20);
    const STEPS: usize = 1000;
    for _ in 0..STEPS {
        if holds().await {
            return;
        }
        harness.pass(STEP).await;
    }
    panic!("{what}: still not so after {:?}", STEP * STEPS as u32);
}

async fn made(backend: &dyn Backend, place: &Placement) -> Seen {
    let seen = insist(async || backend.ensure(place).await).await.expect("a sandbox can be made");
    assert_eq!(seen.state, State::Ready, "ensure returned before the guest answered");
    seen
}

async fn observed(backend: &dyn Backend, id: SandboxId) -> Option<Seen> {
    insist(async || backend.observe(id).await).await.expect("observe works")
}

async fn destroyed(backend: &dyn Backend, id: SandboxId) {
    insist(async || backend.destroy(id).await).await.expect("destroy works");
}

async fn swept(backend: &dyn Backend) -> crate::Swept {
    insist(async || backend.gc().await).await.expect("gc works")
}

/// The sandbox without what may be added to its receipt later: the attempts, which are made once for many sandboxes.
fn settled(mut seen: Seen) -> Seen {
    if let Some(receipt) = &mut seen.receipt {
        receipt.attempts = None;
    }
    seen
}

/// Whether the sandbox can still be used by somebody who looks for it.
async fn runs(backend: &dyn Backend, id: SandboxId) -> bool {
    observed(backend, id).await.is_some_and(|seen| seen.state == State::Ready)
}

async fn nothing_is_left(harness: &dyn Harness) {
    let mut last = Vec::new();
    let mut clean = false;
    for _ in 0..500 {
        last = harness.leftovers().await;
        if last.is_empty() {
            clean = true;
            break;
        }
        harness.pass(Duration::from_millis(20)).await;
    }
    assert!(clean, "left on the host: {last:#?}");
}
