//! Templates.

use hyper::Method;

use super::query::{Query, encoded};
use super::{Call, Client, ClientError};
use crate::{PutTemplate, Template};

impl Client {
    pub async fn templates(&self) -> Result<Vec<Template>, ClientError> {
        self.pages("/api/v1/templates", Query::default(), usize::MAX).await
    }

    pub async fn template(&self, name: &str) -> Result<Template, ClientError> {
        self.get(path(name)).await
    }

    /// Makes or replaces a template: the tenant's own, or everybody's. `seen` is the version that may be replaced.
    pub async fn put_template(
        &self,
        name: &str,
        shared: bool,
        recipe: &PutTemplate,
        seen: Option<i64>,
    ) -> Result<Template, ClientError> {
        let path = Query::default().with("shared", shared).on(&path(name));
        let call = Call::json(Method::PUT, path, recipe);
        self.answer(match seen {
            Some(version) => call.if_newest(version),
            None => call,
        })
        .await
    }

    pub async fn delete_template(&self, name: &str, shared: bool) -> Result<(), ClientError> {
        let path = Query::default().with("shared", shared).on(&path(name));
        self.done(Call::new(Method::DELETE, path)).await
    }
}

fn path(name: &str) -> String {
    format!("/api/v1/templates/{}", encoded(name))
}
