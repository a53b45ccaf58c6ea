//! Keys, tenants and the audit log.

use cubicle_model::audit::Head;
use cubicle_model::{KeyId, NodeId, Timestamp};
use hyper::Method;

use super::query::{Query, encoded};
use super::{Call, Client, ClientError};
use crate::{
    AuditEntry, AuditHead, CreateKey, CreateTenant, Health, Key, NewKey, Page, ReplaceTenant, Tenant, WhoAmI,
};

/// Which entries of the audit log are listed.
#[derive(Debug, Clone, Default)]
pub struct AuditQuery {
    pub actor: Option<String>,
    pub action: Option<String>,
    pub subject: Option<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

impl Client {
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.get("/health").await
    }

    pub async fn who_am_i(&self) -> Result<WhoAmI, ClientError> {
        self.get("/api/v1/whoami").await
    }

    /// The answer is the only one that holds the secret.
    pub async fn create_key(&self, asked: &CreateKey) -> Result<NewKey, ClientError> {
        self.answer(Call::json(Method::POST, "/api/v1/keys", asked).repeatable(self.idempotency_key())).await
    }

    pub async fn keys(&self) -> Result<Vec<Key>, ClientError> {
        self.pages("/api/v1/keys", Query::default(), usize::MAX).await
    }

    pub async fn revoke_key(&self, id: KeyId) -> Result<Key, ClientError> {
        self.answer(Call::new(Method::DELETE, format!("/api/v1/keys/{id}"))).await
    }

    pub async fn create_tenant(&self, asked: &CreateTenant) -> Result<Tenant, ClientError> {
        self.answer(Call::json(Method::POST, "/api/v1/tenants", asked)).await
    }

    pub async fn tenants(&self) -> Result<Vec<Tenant>, ClientError> {
        self.pages("/api/v1/tenants", Query::default(), usize::MAX).await
    }

    pub async fn tenant(&self, name: &str) -> Result<Tenant, ClientError> {
        self.get(format!("/api/v1/tenants/{}", encoded(name))).await
    }

    /// `seen` is the version that is replaced.
    pub async fn replace_tenant(
        &self,
        name: &str,
        asked: &ReplaceTenant,
        seen: i64,
    ) -> Result<Tenant, ClientError> {
        let call = Call::json(Method::PUT, format!("/api/v1/tenants/{}", encoded(name)), asked);
        self.answer(call.if_newest(seen)).await
    }

    pub async fn audit(&self, query: &AuditQuery, most: usize) -> Result<Vec<AuditEntry>, ClientError> {
        let query = Query::default()
            .maybe("actor", query.actor.as_ref())
            .maybe("action", query.action.as_ref())
            .maybe("subject", query.subject.as_ref())
            .maybe("since", query.since)
            .maybe("until", query.until);
        self.pages("/api/v1/audit", query, most).await
    }

    /// A part of a node's log in the order of its chain; it goes on after `next`.
    pub async fn audit_chain(
        &self,
        node: NodeId,
        after: Option<&str>,
    ) -> Result<Page<AuditEntry>, ClientError> {
        let query = Query::default().with("node", node).with("limit", 1000).maybe("after", after);
        self.get(query.on("/api/v1/audit")).await
    }

    /// The newest entry of every node.
    pub async fn audit_heads(&self) -> Result<Vec<Head>, ClientError> {
        let heads: Vec<AuditHead> = self.get("/api/v1/audit/heads").await?;
        let read = |head: AuditHead| {
            let node = head.node.parse().map_err(|error| self.not_understood(error))?;
            Ok(Head { node, seq: head.seq, hash: head.hash })
        };
        heads.into_iter().map(read).collect()
    }
}
