//! Any other HTTP server, reached as this API's servers are.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::header::{HOST, USER_AGENT};
pub use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request};

use super::connection::{Answered, Connections};
use super::{Address, ClientError, body};

/// Keeps a connection between requests.
pub struct Peer {
    connections: Connections,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("address", &self.connections.address).finish_non_exhaustive()
    }
}

impl Peer {
    /// Connects when the first request is made.
    pub fn new(address: Address) -> Self {
        Self { connections: Connections::new(address) }
    }

    /// The status of the answer, which is read to its end as long as it is short.
    pub async fn post(
        &self,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        bytes: impl Into<Bytes>,
        deadline: Duration,
    ) -> Result<u16, ClientError> {
        const LONGEST_ANSWER: usize = 1024 * 1024;
        let address = &self.connections.address;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", address.prefix))
            .header(HOST, address.authority())
            .header(USER_AGENT, concat!("cubicle/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(body(bytes)).map_err(|error| self.connections.broken(error))?;
        let exchange = async {
            let Answered { response, connection } = self.connections.send(request).await?;
            let status = response.status().as_u16();
            let answer = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await;
            answer.map_err(|error| self.connections.broken(error))?;
            self.connections.keep(connection);
            Ok(status)
        };
        let late = |_| self.connections.broken("the server does not answer");
        tokio::time::timeout(deadline, exchange).await.map_err(late)?
    }
}
