//! Bytes that outlive sandboxes: a directory of this host, behind the interface that object stores share.

use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use cubicle_backend::JournalBytes;
use cubicle_guest::client::Body;
use cubicle_model::{Fault, Kind, hexadecimal};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, WriteMultipart};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

const PIECE: usize = 256 * 1024;
/// Read at once, by whoever keeps it.
const SHORT: u64 = 64 * 1024;
/// Written in one piece; larger ones in parts.
const SMALL: usize = 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Blobs {
    store: Arc<dyn ObjectStore>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) size: u64,
    /// In hexadecimal.
    pub(crate) sha256: String,
}

impl Blobs {
    pub(crate) fn open(directory: &Path) -> Result<Self, Fault> {
        let unusable = |error: String| {
            Fault::new(Kind::Denied, format!("artifacts cannot be kept in {}: {error}", directory.display()))
                .hint("name a data directory that can be written to")
        };
        std::fs::create_dir_all(directory).map_err(|error| unusable(error.to_string()))?;
        let store =
            LocalFileSystem::new_with_prefix(directory).map_err(|error| unusable(error.to_string()))?;
        Ok(Self { store: Arc::new(store) })
    }

    /// Keeps everything that a reader gives. Nothing is at the location until all of it is.
    pub(crate) async fn keep(&self, location: &str, mut from: JournalBytes) -> Result<Written, Fault> {
        // Most journals are short, and reading those takes less time than asking a thread to.
        let mut first = Vec::new();
        from.by_ref()
            .take(SHORT)
            .read_to_end(&mut first)
            .map_err(|error| Fault::new(Kind::Internal, "a journal cannot be read").because(error))?;
        if (first.len() as u64) < SHORT {
            let written = Written { size: first.len() as u64, sha256: hexadecimal(&Sha256::digest(&first)) };
            self.store.put(&Location::from(location), Bytes::from(first).into()).await.map_err(fault)?;
            return Ok(written);
        }
        self.keep_long(location, Box::new(std::io::Cursor::new(first).chain(from))).await
    }

    async fn keep_long(&self, location: &str, from: JournalBytes) -> Result<Written, Fault> {
        let (pieces, received) = mpsc::channel::<std::io::Result<Bytes>>(4);
        let reading = tokio::task::spawn_blocking(move || read_pieces(from, &pieces));
        let written = self.keep_pieces(location, received).await?;
        reading
            .await
            .map_err(|error| Fault::new(Kind::Internal, "reading a journal panicked").because(error))?;
        Ok(written)
    }

    /// Keeps a file of a sandbox. Nothing is at the location until all of it is.
    pub(crate) async fn keep_body(&self, location: &str, mut body: Body) -> Result<Written, Fault> {
        let (pieces, received) = mpsc::channel::<std::io::Result<Bytes>>(4);
        let reading = async move {
            loop {
                let piece = match body.next().await {
                    Ok(Some(piece)) => Ok(Bytes::copy_from_slice(piece)),
                    Ok(None) => return,
                    Err(error) => Err(std::io::Error::other(error)),
                };
                let is_last = piece.is_err();
                if pieces.send(piece).await.is_err() || is_last {
                    return;
                }
            }
        };
        tokio::join!(self.keep_pieces(location, received), reading).0
    }

    async fn keep_pieces(
        &self,
        location: &str,
        mut received: mpsc::Receiver<std::io::Result<Bytes>>,
    ) -> Result<Written, Fault> {
        let mut hasher = Sha256::new();
        let mut size = 0;
        let mut first = Vec::new();
        let at = Location::from(location);
        let mut upload: Option<WriteMultipart> = None;
        while let Some(piece) = received.recv().await {
            let piece = piece.map_err(|error| {
                Fault::new(Kind::Internal, "what is to be kept cannot be read").because(error)
            })?;
            hasher.update(&piece);
            size += piece.len() as u64;
            match &mut upload {
                Some(upload) => upload.put(piece),
                None if first.len() + piece.len() <= SMALL => first.extend_from_slice(&piece),
                None => {
                    let mut parts = WriteMultipart::new(self.store.put_multipart(&at).await.map_err(fault)?);
                    parts.put(Bytes::from(std::mem::take(&mut first)));
                    parts.put(piece);
                    upload = Some(parts);
                }
            }
        }
        match upload {
            Some(upload) => upload.finish().await.map_err(fault)?,
            None => self.store.put(&at, Bytes::from(first).into()).await.map_err(fault)?,
        };
        Ok(Written { size, sha256: hexadecimal(&hasher.finalize()) })
    }

    /// The bytes at a location, or a part of them.
    pub(crate) async fn read(
        &self,
        location: &str,
        range: Option<Range<u64>>,
    ) -> Result<BoxStream<'static, Result<Bytes, Fault>>, Fault> {
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let found = self.store.get_opts(&Location::from(location), options).await.map_err(fault)?;
        Ok(found.into_stream().map(|piece| piece.map_err(fault)).boxed())
    }

    /// What is not there is removed already.
    pub(crate) async fn remove(&self, location: &str) -> Result<(), Fault> {
        match self.store.delete(&Location::from(location)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(fault(error)),
        }
    }
}

fn read_pieces(mut from: JournalBytes, to: &mpsc::Sender<std::io::Result<Bytes>>) {
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        let read = from.by_ref().take(PIECE as u64).read_to_end(&mut piece);
        let end = piece.is_empty();
        let sent = match read {
            Ok(_) if end => return,
            Ok(_) => to.blocking_send(Ok(piece.into())),
            Err(error) => {
                // The last word, heard or not.
                let _ = to.blocking_send(Err(error));
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

fn fault(error: object_store::Error) -> Fault {
    match error {
        object_store::Error::NotFound { .. } => Fault::new(Kind::NotFound, "the bytes are not kept any more"),
        error => Fault::new(Kind::Unavailable, "the object store cannot be reached").because(error),
    }
}
