//! From a backend and an id to a client of the guest inside.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cubicle_guest::client::Guest;
use cubicle_guest::hello::PATIENCE_SECONDS;
use cubicle_model::{Fault, SandboxId};
use tokio::time::Instant;

use crate::Backend;

/// A client that connects through the backend whenever it needs a new connection. `random` fills a buffer with
/// unpredictable bytes.
pub async fn guest(
    backend: Arc<dyn Backend>,
    id: SandboxId,
    random: impl Fn(&mut [u8]) + Send + Sync + 'static,
) -> Result<Guest, Fault> {
    let opened = backend.connect(id).await?;
    // The key comes with a stream, and the first request uses that stream, unless it comes so late that the guest no
    // longer waits for it.
    let first = Mutex::new(Some(opened.stream));
    let late = Instant::now() + Duration::from_secs(PATIENCE_SECONDS / 2);
    let connector = move || {
        let first =
            first.lock().unwrap_or_else(PoisonError::into_inner).take().filter(|_| Instant::now() < late);
        let backend = backend.clone();
        async move {
            match first {
                Some(stream) => Ok(stream),
                None => backend.connect(id).await.map(|opened| opened.stream).map_err(io::Error::other),
            }
        }
    };
    Ok(Guest::new(connector, opened.key, id, random))
}

#[cfg(test)]
mod tests {
    use cubicle_model::{Kind, Lifetime};

    use super::*;
    use crate::fake::{FakeHost, placement};
    use crate::faults::{Call, Faulty, Plan};

    #[tokio::test]
    async fn the_stream_that_the_key_came_with_is_the_first_to_be_used() {
        let backend = Arc::new(Faulty::new(FakeHost::default().open(), Plan::none()));
        let place = placement([1; 16], Lifetime::Bound);
        backend.ensure(&place).await.unwrap();
        let guest = guest(backend.clone(), place.id, |bytes| bytes.fill(5)).await.unwrap();
        for _ in 0..3 {
            assert_eq!(guest.health().await.unwrap().sandbox, place.id);
        }
        let connects = backend.history().iter().filter(|(call, _)| *call == Call::Connect).count();
        assert_eq!(connects, 1);
    }

    #[tokio::test]
    async fn an_absent_sandbox_has_no_guest() {
        let backend = Arc::new(FakeHost::default().open());
        let fault = guest(backend, placement([1; 16], Lifetime::Bound).id, |_| {}).await.unwrap_err();
        assert_eq!(fault.kind(), Kind::NotFound);
    }
}
