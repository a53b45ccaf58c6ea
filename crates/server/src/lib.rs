//! The control plane: leases over a pool of sandboxes, execs whose output cannot be lost, keys, quotas, audit.
//!
//! `http` turns requests into calls of `app`, the use cases. `app` changes what should be, in the store; `reconcile` brings
//! about what should be, through the backend.

mod app;
mod auth;
mod blobs;
mod egress;
mod http;
mod journal;
mod metrics;
mod reconcile;
mod redaction;
mod secrets;
mod settings;
mod spans;
mod surroundings;
mod webhooks;

use std::future::Future;
use std::sync::Arc;

use cubicle_backend::Backend;
use cubicle_model::{Fault, NodeId};
use cubicle_store::Store;
use tokio::net::TcpListener;

pub use auth::secret::{KeySecret, hash_of_secret};
pub use auth::tokens::{TokenRequest, TokenSettings};
pub use egress::{EgressSettings, StartGateway, StartedGateway};
pub use http::openapi;
pub use metrics::SpanCounts;
pub use redaction::LogMasks;
pub use secrets::{NotSealingKeys, SealingKeys};
pub use settings::{CodeSettings, FindAgent, Settings, WorkerSettings};
pub use surroundings::{Surroundings, Variables};
pub use webhooks::WebhookSettings;

use app::App;

/// A server before it serves.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
}

impl Server {
    /// Takes up where an earlier server with the same node and store left off: what is still wanted is adopted, the rest
    /// is destroyed.
    pub async fn start(
        store: Store,
        backend: Arc<dyn Backend>,
        node: NodeId,
        settings: Settings,
        surroundings: Surroundings,
    ) -> Result<Self, Fault> {
        let app = App::new(store, backend, node, settings, surroundings)?;
        app.follow_issuer();
        app.follow_secrets();
        reconcile::start(&app).await?;
        Ok(Self { app })
    }

    /// Serves until `stop`, then finishes what is under way.
    pub async fn serve(&self, listener: TcpListener, stop: impl Future<Output = ()>) {
        http::serve(Arc::clone(&self.app), listener, stop).await;
        self.app.stop().await;
    }

    /// Destroys every sandbox that it has, for a server whose data directory is gone: nobody could adopt them.
    pub async fn abandon(self) {
        reconcile::abandon::abandon(&self.app).await;
    }
}
