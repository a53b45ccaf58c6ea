//! The one place that says which backend the command line uses.

use std::path::PathBuf;

use cubicle_backend::Backend;
use cubicle_backend_local::{LocalBackend, Readiness};
use cubicle_model::Fault;

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) data_dir: PathBuf,
    /// Directories of the caller that the sandbox may be given.
    pub(crate) mountable: Vec<PathBuf>,
}

/// Opens the backend and gives up the rights that only its launcher needs.
pub(crate) async fn local_backend(options: Options) -> Result<Box<dyn Backend>, Fault> {
    let Options { data_dir, mountable } = options;
    let options = cubicle_backend_local::Options { data_dir, mountable, readiness: Readiness::OneSandbox };
    let backend = LocalBackend::open(options).await?;
    backend.drop_rights()?;
    Ok(Box::new(backend))
}
