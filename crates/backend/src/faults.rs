//! A backend that fails on purpose, always in the same places.
//!
//! Real backends fail in two ways that look the same from outside: the request never arrived, or the answer got
//! lost. Code that uses a backend must do the right thing after both, and this wrapper makes either happen.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use cubicle_model::{Binding, Fault, Kind, Placement, SandboxId};
use tokio::sync::watch;

use crate::{Backend, Bound, Consumption, GuestStream, JournalBytes, Probed, Seen, Swept};

/// The calls that can be made to fail. `probe` has no failure to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    Ensure,
    Observe,
    List,
    Bind,
    Connect,
    Journal,
    Destroy,
    Gc,
}

impl Call {
    pub const ALL: [Self; 8] = [
        Self::Ensure,
        Self::Observe,
        Self::List,
        Self::Bind,
        Self::Connect,
        Self::Journal,
        Self::Destroy,
        Self::Gc,
    ];
}

/// What goes wrong with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mishap {
    /// `Unavailable`, and nothing happened.
    Before,
    /// `Unavailable`, and it happened.
    After,
    /// Nothing happens until `Faulty::release`, then the call goes on as usual.
    Slow,
}

/// Which call fails how.
#[derive(Debug, Clone)]
pub enum Plan {
    /// The nth call of a kind (the first is 0) has this mishap.
    Script(BTreeMap<(Call, usize), Mishap>),
    /// One call in so many fails, before or after; which ones depends on nothing but the seed. Two calls in a row
    /// never fail, so that whoever tries again gets on.
    Seeded { seed: u64, one_in: u64 },
}

impl Plan {
    pub fn none() -> Self {
        Self::Script(BTreeMap::new())
    }

    pub fn script(mishaps: impl IntoIterator<Item = (Call, usize, Mishap)>) -> Self {
        Self::Script(mishaps.into_iter().map(|(call, nth, mishap)| ((call, nth), mishap)).collect())
    }

    fn decide(&self, call: Call, nth: usize, history: &[(Call, Option<Mishap>)]) -> Option<Mishap> {
        match self {
            Self::Script(mishaps) => mishaps.get(&(call, nth)).copied(),
            Self::Seeded { seed, one_in } => {
                if history.last().is_some_and(|(_, mishap)| mishap.is_some()) {
                    return None;
                }
                let draw = scramble(seed.wrapping_add(history.len() as u64));
                let unlucky = draw.is_multiple_of((*one_in).max(1));
                unlucky.then_some(if draw >> 63 == 0 { Mishap::Before } else { Mishap::After })
            }
        }
    }
}

/// The output function of splitmix64: a well-mixed number for every counter.
fn scramble(counter: u64) -> u64 {
    let z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Wraps a backend and makes some of its calls fail.
#[derive(Debug)]
pub struct Faulty<B> {
    inner: B,
    plan: Plan,
    history: Mutex<Vec<(Call, Option<Mishap>)>>,
    released: watch::Sender<bool>,
}

impl<B: Backend> Faulty<B> {
    pub fn new(inner: B, plan: Plan) -> Self {
        Self { inner, plan, history: Mutex::default(), released: watch::Sender::new(false) }
    }

    /// Lets every slow call go on, now and later.
    pub fn release(&self) {
        self.released.send_replace(true);
    }

    /// Every call so far, and what happened to it.
    pub fn history(&self) -> Vec<(Call, Option<Mishap>)> {
        self.locked().clone()
    }

    fn locked(&self) -> MutexGuard<'_, Vec<(Call, Option<Mishap>)>> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a call with the mishap that the plan has for it.
    async fn attempt<T>(
        &self,
        call: Call,
        carry_out: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let mishap = {
            let mut history = self.locked();
            let nth = history.iter().filter(|(earlier, _)| *earlier == call).count();
            let mishap = self.plan.decide(call, nth, &history);
            history.push((call, mishap));
            mishap
        };
        let lost = || {
            Fault::new(Kind::Unavailable, format!("{call:?} failed on purpose")).hint("observe and try again")
        };
        match mishap {
            None => carry_out.await,
            Some(Mishap::Before) => Err(lost()),
            Some(Mishap::After) => {
                carry_out.await?;
                Err(lost())
            }
            Some(Mishap::Slow) => {
                let mut released = self.released.subscribe();
                // The sender lives as long as `self`, so this only ends when it is released.
                _ = released.wait_for(|released| *released).await;
                carry_out.await
            }
        }
    }
}

#[async_trait]
impl<B: Backend> Backend for Faulty<B> {
    async fn probe(&self) -> Probed {
        self.inner.probe().await
    }

    async fn ensure(&self, place: &Placement) -> Result<Seen, Fault> {
        self.attempt(Call::Ensure, self.inner.ensure(place)).await
    }

    async fn observe(&self, id: SandboxId) -> Result<Option<Seen>, Fault> {
        self.attempt(Call::Observe, self.inner.observe(id)).await
    }

    async fn list(&self) -> Result<Vec<Seen>, Fault> {
        self.attempt(Call::List, self.inner.list()).await
    }

    async fn bind(&self, id: SandboxId, late: &Binding) -> Result<Bound, Fault> {
        self.attempt(Call::Bind, self.inner.bind(id, late)).await
    }

    async fn connect(&self, id: SandboxId) -> Result<GuestStream, Fault> {
        self.attempt(Call::Connect, self.inner.connect(id)).await
    }

    async fn journal(&self, id: SandboxId) -> Result<Option<JournalBytes>, Fault> {
        self.attempt(Call::Journal, self.inner.journal(id)).await
    }

    async fn consumption(&self, id: SandboxId) -> Result<Option<Consumption>, Fault> {
        self.inner.consumption(id).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), Fault> {
        self.attempt(Call::Destroy, self.inner.destroy(id)).await
    }

    async fn gc(&self) -> Result<Swept, Fault> {
        self.attempt(Call::Gc, self.inner.gc()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeHost, placement};
    use cubicle_model::Lifetime;

    fn faulty(plan: Plan) -> Faulty<crate::fake::FakeBackend> {
        Faulty::new(FakeHost::default().open(), plan)
    }

    #[tokio::test]
    async fn a_mishap_before_leaves_nothing_and_one_after_leaves_everything() {
        for (mishap, there) in [(Mishap::Before, false), (Mishap::After, true)] {
            let backend = faulty(Plan::script([(Call::Ensure, 0, mishap)]));
            let place = placement([1; 16], Lifetime::Durable);
            let fault = backend.ensure(&place).await.unwrap_err();
            assert_eq!(fault.kind(), Kind::Unavailable);
            assert_eq!(backend.observe(place.id).await.unwrap().is_some(), there, "{mishap:?}");
            backend.ensure(&place).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_slow_call_waits_until_it_is_released() {
        let backend = faulty(Plan::script([(Call::List, 0, Mishap::Slow)]));
        let mut call = Box::pin(backend.list());
        tokio::select! {
            biased;
            _ = &mut call => panic!("the call did not wait"),
            () = tokio::task::yield_now() => {}
        }
        backend.release();
        assert!(call.await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn the_same_seed_fails_in_the_same_places_and_never_twice_in_a_row() {
        let history = async |seed| {
            let backend = faulty(Plan::Seeded { seed, one_in: 3 });
            for _ in 0..100 {
                _ = backend.list().await;
            }
            backend.history()
        };
        let first = history(7).await;
        assert_eq!(first, history(7).await);
        assert_ne!(first, history(8).await);
        assert!(first.iter().any(|(_, mishap)| mishap.is_some()));
        assert!(first.windows(2).all(|pair| pair[0].1.is_none() || pair[1].1.is_none()));
    }
}
