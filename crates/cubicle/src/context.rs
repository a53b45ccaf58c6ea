//! What every command needs: the settings, the place for sandboxes, and the backend that makes them.

use std::path::PathBuf;
use std::sync::Arc;

use cubicle_backend::{Backend, Seen};
use cubicle_guest::client::Guest;
use cubicle_model::{Fault, Kind, SandboxId};

use crate::args::{Places, ServerOptions};
use crate::environment::Environment;
use crate::settings::{Server, Settings};
use crate::{data_dir, local};

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) environment: Environment,
    pub(crate) settings: Settings,
    data_dir: PathBuf,
    /// Set when the place was named on the command line, so that a later command must name it too.
    named: bool,
}

impl Context {
    pub(crate) fn new(
        places: &Places,
        server: &ServerOptions,
        environment: Environment,
    ) -> Result<Self, Fault> {
        let root = rustix::process::geteuid().is_root();
        let mut settings = Settings::load(places.config.as_deref(), &environment, root)?;
        let asked = Server {
            url: server.server.clone(),
            key: server.key.clone(),
            key_file: server.key_file.clone(),
            ..Server::default()
        };
        settings.server = asked.over(settings.server);
        let asked = places.data_dir.as_deref().or(settings.data_dir.as_deref());
        let data_dir = data_dir::choose(asked, &environment, root)?;
        Ok(Self { environment, settings, data_dir, named: places.data_dir.is_some() })
    }

    pub(crate) fn data_dir(&self) -> &std::path::Path {
        &self.data_dir
    }

    /// Where files that outlive sandboxes are.
    pub(crate) fn shared_dir(&self) -> PathBuf {
        match &self.settings.server.shared_dir {
            // A path that has no absolute form is empty, and says so when it is opened.
            Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
            None => self.data_dir.join("shared"),
        }
    }

    /// What a later command needs on its command line to find the same sandboxes, with a space before it.
    pub(crate) fn flags_to_find_it_again(&self) -> String {
        if self.named { format!(" --data-dir {}", self.data_dir.display()) } else { String::new() }
    }

    /// Opens the backend. As root this is where privileges end, so files of the caller are read before.
    pub(crate) async fn backend(&self) -> Result<Arc<dyn Backend>, Fault> {
        self.backend_with(Vec::new()).await
    }

    /// The same, for sandboxes that are given directories of the caller.
    pub(crate) async fn backend_with(&self, mountable: Vec<PathBuf>) -> Result<Arc<dyn Backend>, Fault> {
        data_dir::prepare(&self.data_dir)?;
        local::local_backend(local::Options { data_dir: self.data_dir.clone(), mountable })
            .await
            .map(Arc::from)
    }
}

/// The sandbox, or a refusal that says where to look.
pub(crate) async fn existing(backend: &dyn Backend, id: SandboxId) -> Result<Seen, Fault> {
    backend.observe(id).await?.ok_or_else(|| {
        Fault::new(Kind::NotFound, format!("there is no sandbox {id}"))
            .hint("'cubicle ls' shows what there is")
    })
}

pub(crate) async fn guest(backend: &Arc<dyn Backend>, id: SandboxId) -> Result<Guest, Fault> {
    cubicle_backend::reach::guest(backend.clone(), id, fill_with_random).await
}

/// 128 bits from the kernel.
pub(crate) fn random_bits() -> [u8; 16] {
    let mut bits = [0; 16];
    fill_with_random(&mut bits);
    bits
}

pub(crate) fn fill_with_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        // Fails only by interruption before the kernel's pool is ready; then it is asked again.
        filled +=
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
    }
}
