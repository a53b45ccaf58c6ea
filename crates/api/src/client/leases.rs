//! Leases and their sandboxes.

use cubicle_model::{ExecId, LeaseId, LeaseStatus, SandboxId};
use hyper::Method;

use super::query::Query;
use super::{Call, Client, ClientError};
use crate::{Bill, CreateLease, Egress, Lease, LeaseEgress, Sandbox, SandboxMetrics};

/// Which leases are listed.
#[derive(Debug, Clone, Default)]
pub struct LeaseQuery {
    pub status: Option<LeaseStatus>,
    pub workflow: Option<String>,
}

impl Client {
    pub async fn create_lease(&self, asked: &CreateLease) -> Result<Lease, ClientError> {
        // A request that the caller named is what makes the call repeatable, and must not be made unique here.
        let call = Call::json(Method::POST, "/api/v1/leases", asked);
        self.answer(match asked.request {
            Some(_) => call,
            None => call.repeatable(self.idempotency_key()),
        })
        .await
    }

    pub async fn leases(&self, query: &LeaseQuery, most: usize) -> Result<Vec<Lease>, ClientError> {
        let query = Query::default()
            .maybe("status", query.status.map(LeaseStatus::name))
            .maybe("workflow", query.workflow.as_ref());
        self.pages("/api/v1/leases", query, most).await
    }

    pub async fn lease(&self, id: LeaseId) -> Result<Lease, ClientError> {
        self.get(format!("/api/v1/leases/{id}")).await
    }

    pub async fn heartbeat(&self, id: LeaseId) -> Result<Lease, ClientError> {
        self.answer(Call::new(Method::POST, format!("/api/v1/leases/{id}/heartbeat"))).await
    }

    pub async fn release(&self, id: LeaseId) -> Result<Lease, ClientError> {
        self.answer(Call::new(Method::DELETE, format!("/api/v1/leases/{id}"))).await
    }

    pub async fn lease_egress(&self, id: LeaseId) -> Result<Egress, ClientError> {
        self.get(format!("/api/v1/leases/{id}/egress")).await
    }

    pub async fn change_lease_egress(&self, id: LeaseId, asked: &LeaseEgress) -> Result<Egress, ClientError> {
        self.answer(Call::json(Method::PUT, format!("/api/v1/leases/{id}/egress"), asked)).await
    }

    pub async fn exec_egress(&self, id: ExecId) -> Result<Bill, ClientError> {
        self.get(format!("/api/v1/execs/{id}/egress")).await
    }

    pub async fn sandboxes(&self, most: usize) -> Result<Vec<Sandbox>, ClientError> {
        self.pages("/api/v1/sandboxes", Query::default(), most).await
    }

    pub async fn sandbox(&self, id: SandboxId) -> Result<Sandbox, ClientError> {
        self.get(format!("/api/v1/sandboxes/{id}")).await
    }

    pub async fn sandbox_metrics(&self, id: SandboxId) -> Result<SandboxMetrics, ClientError> {
        self.get(format!("/api/v1/sandboxes/{id}/metrics")).await
    }
}
