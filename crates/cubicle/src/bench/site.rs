//! Where the measuring is done: a backend of its own, and the steps of a sandbox's life.

use std::fs;
use std::path::{Path, PathBuf};

use cubicle_backend::Backend;
use cubicle_backend_local::{LocalBackend, Options, Readiness};
use cubicle_guest::client::{Guest, OutputLimits};
use cubicle_model::receipt::Cgroups;
use cubicle_model::{
    Command, ExecSpec, Exit, Fault, Isolation, Kind, Lifetime, Limits, Medium, Placement, Root, SandboxId,
    Trust,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::context::random_bits;
use crate::data_dir;

/// A backend that is ready for many sandboxes. Everything made in it is bound, so it goes with this process.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) backend: LocalBackend,
    workspaces: PathBuf,
    truth: ExecSpec,
}

impl Site {
    /// Opens `bench` in the data directory: an instance of its own, which no sandbox of the user shares.
    ///
    /// As root the rights are kept, because the peers need them and nothing but known programs is run; an instance
    /// that is used by root alone may hold files that belong to root.
    pub(crate) async fn open(data_dir: &Path) -> Result<Self, Fault> {
        let place = data_dir.join("bench");
        data_dir::prepare(&place)?;
        let workspaces = place.join("workspaces");
        fs::create_dir_all(&workspaces).map_err(|error| unusable(&workspaces, error))?;
        // The launcher holds two descriptors for each sandbox, and a usual soft limit is 1024.
        let limit = getrlimit(Resource::Nofile);
        _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let options = Options { readiness: Readiness::ManySandboxes, ..Options::new(place) };
        let backend = LocalBackend::open(options).await?;
        let truth = ExecSpec::new(Command::Argv(vec!["/bin/true".into()]));
        Ok(Self { backend, workspaces, truth })
    }

    /// Why limits are not in force here; `None` where they are.
    pub(crate) fn without_limits(&self) -> Option<String> {
        let facts = self.backend.facts();
        let because = || facts.no_cgroups_because.clone().unwrap_or_else(|| "there are no cgroups".into());
        (facts.cgroups == Cgroups::None).then(because)
    }

    /// Makes a sandbox with full isolation and the default limits.
    pub(crate) async fn make(&self) -> Result<SandboxId, Fault> {
        let place = Placement {
            id: SandboxId::from_random(random_bits()),
            lifetime: Lifetime::Bound,
            isolation: Isolation::Namespaces,
            trust: Trust::Medium,
            root: Root::Host,
            workspace: Medium::Memory,
            limits: Limits::default(),
            env: Default::default(),
            labels: [("command".to_owned(), "bench".to_owned())].into(),
        };
        self.backend.ensure(&place).await?;
        Ok(place.id)
    }

    /// Runs `/bin/true` to its end, with its output captured and journalled.
    pub(crate) async fn run_true(&self, id: SandboxId) -> Result<(), Fault> {
        run(&self.backend.guest(id), &self.truth).await
    }

    pub(crate) async fn destroy(&self, id: SandboxId) -> Result<(), Fault> {
        self.backend.destroy(id).await
    }

    /// A directory of the host for `/workspace`, with the one uid that workspaces have on disk.
    pub(crate) fn make_workspace(&self, id: SandboxId) -> Result<Workspace, Fault> {
        let path = self.workspaces.join(id.to_string());
        fs::create_dir(&path).map_err(|error| unusable(&path, error))?;
        let workspace = Workspace { path };
        if self.backend.facts().privileged {
            std::os::unix::fs::chown(&workspace.path, Some(WORKSPACE_UID), Some(WORKSPACE_UID))
                .map_err(|error| unusable(&workspace.path, error))?;
        }
        Ok(workspace)
    }
}

const WORKSPACE_UID: u32 = 1000;

/// Removed when dropped, so that an interrupted run leaves none.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) path: PathBuf,
}

impl Drop for Workspace {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.path);
    }
}

/// Runs a command that must succeed: a figure of a failing command would be worth nothing.
pub(crate) async fn run(guest: &Guest, spec: &ExecSpec) -> Result<(), Fault> {
    let outcome = guest.run(spec, OutputLimits::default()).await?;
    if outcome.exit == Exit::Code(0) {
        return Ok(());
    }
    let message = format!("{:?} ended with {:?} in a sandbox", spec.command, outcome.exit);
    Err(Fault::new(Kind::Internal, message))
}

pub(crate) fn unusable(path: &Path, error: std::io::Error) -> Fault {
    Fault::new(Kind::Denied, format!("{} cannot be used", path.display()))
        .because(error)
        .hint("name a directory that you can write to with --data-dir DIR")
}
