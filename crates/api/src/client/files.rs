//! Files of a sandbox, streamed in both directions.

use bytes::Bytes;
use cubicle_model::SandboxId;
use futures_util::{TryStreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::Method;
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::connection::RequestBody;
use super::query::Query;
use super::{BYTES, Call, Client, ClientError};
use crate::{Entry, Listing, Unpacked};

const PIECE: usize = 64 * 1024;

impl Client {
    pub async fn stat(&self, sandbox: SandboxId, path: &str) -> Result<Entry, ClientError> {
        self.get(at(sandbox, "/stat", path)).await
    }

    pub async fn list_files(&self, sandbox: SandboxId, path: &str) -> Result<Listing, ClientError> {
        self.get(at(sandbox, "/list", path)).await
    }

    pub async fn make_directory(&self, sandbox: SandboxId, path: &str) -> Result<(), ClientError> {
        self.done(Call::new(Method::POST, at(sandbox, "/directories", path))).await
    }

    pub async fn read_file(&self, sandbox: SandboxId, path: &str) -> Result<Download, ClientError> {
        self.download(at(sandbox, "", path)).await
    }

    /// Replaces what is there in one step, or not at all.
    pub async fn write_file(
        &self,
        sandbox: SandboxId,
        path: &str,
        mode: Option<u32>,
        content: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Entry, ClientError> {
        let mode = mode.map(|mode| format!("{mode:04o}"));
        let query = Query::default().with("path", path).maybe("mode", mode);
        let path = query.on(&format!("/api/v1/sandboxes/{sandbox}/files"));
        self.answer(upload(path, BYTES, content)).await.map_err(from_reader)
    }

    /// A directory as a tar archive. Whoever unpacks it must not trust it.
    pub async fn read_archive(&self, sandbox: SandboxId, path: &str) -> Result<Download, ClientError> {
        self.download(at(sandbox, "/archive", path)).await
    }

    /// Unpacks a tar archive into a directory.
    pub async fn write_archive(
        &self,
        sandbox: SandboxId,
        path: &str,
        archive: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Unpacked, ClientError> {
        self.answer(upload(at(sandbox, "/archive", path), "application/x-tar", archive))
            .await
            .map_err(from_reader)
    }

    pub(super) async fn download(&self, path: String) -> Result<Download, ClientError> {
        let answered = self.send(Call::new(Method::GET, path)).await?;
        let size = answered.response.headers().get(CONTENT_LENGTH);
        let size = size.and_then(|size| size.to_str().ok()).and_then(|size| size.parse().ok());
        Ok(Download { size, client: self.clone(), body: answered.response.into_body() })
    }
}

/// Bytes as they come.
#[derive(Debug)]
pub struct Download {
    /// How many there will be, where the server knows it.
    pub size: Option<u64>,
    client: Client,
    body: Incoming,
}

impl Download {
    /// The next piece; none at the end. A body that broke off is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.client.connections.broken(error)),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

fn at(sandbox: SandboxId, what: &str, path: &str) -> String {
    Query::default().with("path", path).on(&format!("/api/v1/sandboxes/{sandbox}/files{what}"))
}

/// The answer comes when everything was sent, so it is not waited for with a deadline.
pub(super) fn upload(path: String, media: &str, content: impl AsyncRead + Send + Unpin + 'static) -> Call {
    Call { body: streamed(content), deadline: None, ..Call::new(Method::PUT, path) }.with(CONTENT_TYPE, media)
}

fn streamed(content: impl AsyncRead + Send + Unpin + 'static) -> RequestBody {
    let pieces = stream::try_unfold(content, |mut content| async move {
        let mut piece = Vec::with_capacity(PIECE);
        let length = content.read_buf(&mut piece).await?;
        Ok::<_, std::io::Error>((length > 0).then(|| (Bytes::from(piece), content)))
    });
    StreamBody::new(pieces.map_ok(Frame::data)).boxed_unsync()
}

/// A request that broke because its content could not be read is not the connection's fault.
pub(super) fn from_reader(error: ClientError) -> ClientError {
    let ClientError::Broken { address, cause } = error else { return error };
    match cause.downcast::<hyper::Error>() {
        Ok(broken) if broken.is_user() => {
            let cause =
                std::error::Error::source(&*broken).map_or_else(|| broken.to_string(), ToString::to_string);
            ClientError::Input(std::io::Error::other(cause))
        }
        Ok(cause) => ClientError::Broken { address, cause },
        Err(cause) => ClientError::Broken { address, cause },
    }
}
