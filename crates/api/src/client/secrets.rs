//! Secrets.

use cubicle_model::SecretName;
use hyper::Method;

use super::query::{Query, encoded};
use super::{Call, Client, ClientError};
use crate::{PutSecret, Secret};

impl Client {
    /// Those of the tenant, without their values.
    pub async fn secrets(&self) -> Result<Vec<Secret>, ClientError> {
        self.pages("/api/v1/secrets", Query::default(), usize::MAX).await
    }

    pub async fn secret(&self, name: &SecretName) -> Result<Secret, ClientError> {
        self.get(path(name)).await
    }

    /// Sets or replaces a secret. `seen` is the version that may be replaced.
    pub async fn put_secret(
        &self,
        name: &SecretName,
        asked: &PutSecret,
        seen: Option<i64>,
    ) -> Result<Secret, ClientError> {
        let call = Call::json(Method::PUT, path(name), asked);
        self.answer(match seen {
            Some(version) => call.if_newest(version),
            None => call,
        })
        .await
    }

    pub async fn delete_secret(&self, name: &SecretName) -> Result<(), ClientError> {
        self.done(Call::new(Method::DELETE, path(name))).await
    }
}

fn path(name: &SecretName) -> String {
    format!("/api/v1/secrets/{}", encoded(name.as_str()))
}
