//! A backend that several parts of a program hold is a backend.

use std::sync::Arc;

use async_trait::async_trait;
use cubicle_model::{Binding, Fault, Placement, SandboxId};

use crate::{Backend, Bound, Consumption, GuestStream, JournalBytes, Probed, Seen, Swept};

#[async_trait]
impl<B: Backend + ?Sized> Backend for Arc<B> {
    async fn probe(&self) -> Probed {
        (**self).probe().await
    }

    async fn ensure(&self, place: &Placement) -> Result<Seen, Fault> {
        (**self).ensure(place).await
    }

    async fn observe(&self, id: SandboxId) -> Result<Option<Seen>, Fault> {
        (**self).observe(id).await
    }

    async fn list(&self) -> Result<Vec<Seen>, Fault> {
        (**self).list().await
    }

    async fn bind(&self, id: SandboxId, late: &Binding) -> Result<Bound, Fault> {
        (**self).bind(id, late).await
    }

    async fn connect(&self, id: SandboxId) -> Result<GuestStream, Fault> {
        (**self).connect(id).await
    }

    async fn journal(&self, id: SandboxId) -> Result<Option<JournalBytes>, Fault> {
        (**self).journal(id).await
    }

    async fn consumption(&self, id: SandboxId) -> Result<Option<Consumption>, Fault> {
        (**self).consumption(id).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), Fault> {
        (**self).destroy(id).await
    }

    async fn gc(&self) -> Result<Swept, Fault> {
        (**self).gc().await
    }
}
