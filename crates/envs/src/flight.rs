//! Who wants what somebody is making already waits for that.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use cubicle_model::{Fault, Kind};
use tokio::sync::watch;

type Outcome<T> = Option<Result<T, Told>>;

/// One thing at a time per key. What began is done to its end, whether or not anybody still waits.
#[derive(Debug)]
pub(crate) struct Flights<K, T> {
    under_way: Arc<Mutex<HashMap<K, watch::Receiver<Outcome<T>>>>>,
}

/// A fault that several are told.
#[derive(Debug, Clone)]
struct Told {
    kind: Kind,
    message: String,
    hint: Option<String>,
    cause: Option<String>,
}

impl From<Fault> for Told {
    fn from(fault: Fault) -> Self {
        Self {
            kind: fault.kind(),
            message: fault.message().to_owned(),
            hint: fault.way_out().map(str::to_owned),
            cause: std::error::Error::source(&fault).map(ToString::to_string),
        }
    }
}

impl From<Told> for Fault {
    fn from(told: Told) -> Self {
        let mut fault = Self::new(told.kind, told.message);
        if let Some(hint) = told.hint {
            fault = fault.hint(hint);
        }
        match told.cause {
            Some(cause) => fault.because(cause),
            None => fault,
        }
    }
}

impl<K, T> Default for Flights<K, T> {
    fn default() -> Self {
        Self { under_way: Arc::default() }
    }
}

impl<K, T> Flights<K, T>
where
    K: Eq + Hash + Clone + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// Makes it, unless it is being made.
    pub(crate) async fn join<F>(&self, key: &K, make: impl FnOnce() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        let mut outcome = {
            let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = under_way.get(key) {
                known.clone()
            } else {
                let (tell, told) = watch::channel(None);
                under_way.insert(key.clone(), told.clone());
                let (ending, work) = (Landing { flights: self.under_way.clone(), key: key.clone() }, make());
                // It ends by itself: every step of making has a timeout.
                tokio::spawn(async move {
                    let result = work.await.map_err(Told::from);
                    drop(ending);
                    tell.send_replace(Some(result));
                });
                told
            }
        };
        let settled = outcome.wait_for(Option::is_some).await;
        match settled.ok().and_then(|outcome| outcome.clone()) {
            Some(result) => result.map_err(Fault::from),
            None => Err(Fault::new(Kind::Internal, "making the environment ended without a result")),
        }
    }
}

/// Takes the flight off the list, also when its maker panicked.
struct Landing<K: Eq + Hash, T> {
    flights: Arc<Mutex<HashMap<K, watch::Receiver<Outcome<T>>>>>,
    key: K,
}

impl<K: Eq + Hash, T> Drop for Landing<K, T> {
    fn drop(&mut self) {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn many_who_want_the_same_have_it_made_once_and_learn_of_its_failure() {
        let flights: Arc<Flights<&str, usize>> = Arc::default();
        let made = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let mut waiting = Vec::new();
        for _ in 0..50 {
            let (flights, made, gate) = (flights.clone(), made.clone(), gate.clone());
            waiting.push(tokio::spawn(async move {
                let make = || async move {
                    made.fetch_add(1, Ordering::SeqCst);
                    _ = gate.acquire().await;
                    Err(Fault::new(Kind::Invalid, "no").hint("way out"))
                };
                flights.join(&"key", make).await
            }));
        }
        // All of them run up to their waiting before the gate opens.
        while made.load(Ordering::SeqCst) == 0 || flights.under_way.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        gate.add_permits(1);
        for waiter in waiting {
            let fault = waiter.await.unwrap().unwrap_err();
            assert_eq!((fault.kind(), fault.way_out()), (Kind::Invalid, Some("way out")));
        }
        assert_eq!(made.load(Ordering::SeqCst), 1);
        assert_eq!(flights.join(&"key", || async { Ok(7) }).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn one_that_panics_is_an_error_and_stands_in_nobodys_way() {
        let flights: Flights<&str, usize> = Flights::default();
        let fault = flights.join(&"key", || async { panic!("expected") }).await.unwrap_err();
        assert_eq!(fault.kind(), Kind::Internal);
        assert_eq!(flights.join(&"key", || async { Ok(1) }).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn what_began_is_done_although_nobody_waits() {
        let flights: Arc<Flights<&str, usize>> = Arc::default();
        let (done, told) = tokio::sync::oneshot::channel();
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let (joined, opened) = (flights.clone(), gate.clone());
        let waiter = tokio::spawn(async move {
            let make = || async move {
                _ = opened.acquire().await;
                _ = done.send(());
                Ok(1)
            };
            joined.join(&"key", make).await
        });
        while flights.under_way.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        waiter.abort();
        gate.add_permits(1);
        told.await.unwrap();
    }
}
