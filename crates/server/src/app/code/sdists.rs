//! Packages that have only their sources are built in sandboxes: fresh ones, without network, which end with the server.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use cubicle_envs::{BUILD_PROGRAM, BuiltWheel, SdistBuilder, SdistJob};
use cubicle_guest::client::{Guest, OutputLimits, WriteFile};
use cubicle_model::{Binding, Command, ExecSpec, Exit, Fault, Kind, Lifetime, LimitRequest, SandboxId};
use tracing::{info, warn};

use super::attached::mounts_of;
use crate::app::App;

/// Compilers take their time.
const BUILD_SECONDS: u32 = 600;
const LARGEST_WHEEL: usize = 256 * 1024 * 1024;
const LARGEST_ARCHIVE: u64 = 256 * 1024 * 1024;
/// Of what a failed build printed, so much is shown.
const LAST_WORDS: usize = 2000;

/// Who has sandboxes, for the environments.
#[derive(Debug)]
pub(crate) struct InSandboxes(Weak<App>);

impl InSandboxes {
    pub(crate) fn of(app: &Arc<App>) -> Arc<Self> {
        Arc::new(Self(Arc::downgrade(app)))
    }
}

#[async_trait]
impl SdistBuilder for InSandboxes {
    async fn build(&self, job: &SdistJob) -> Result<BuiltWheel, Fault> {
        let app = self.0.upgrade().ok_or_else(|| Fault::new(Kind::Unavailable, "the server stops"))?;
        app.build_sdist(job).await
    }
}

impl App {
    async fn build_sdist(&self, job: &SdistJob) -> Result<BuiltWheel, Fault> {
        let id = SandboxId::from_random(self.surroundings.bits());
        let template = self.find_template(&job.tenant, "default").await?;
        let limits =
            LimitRequest { wall_seconds: Some(u64::from(BUILD_SECONDS) + 60), ..LimitRequest::default() };
        let labels = BTreeMap::from([("purpose".to_owned(), "build a package".to_owned())]);
        let place = template.recipe.placement(id, &limits, labels);
        let mut place = place.map_err(|bad| Fault::new(Kind::Invalid, bad.to_string()))?;
        // Whatever becomes of this server, it ends.
        place.lifetime = Lifetime::Bound;
        info!(sandbox = %id, package = job.package, version = job.version, "a package is built from its sources");
        self.changing("create", id, self.backend.ensure(&place)).await?;
        let built = self.build_in(id, job).await;
        if let Err(fault) = self.destroy(id).await {
            warn!(sandbox = %id, error = %fault, "the sandbox of a build was not destroyed");
        }
        built
    }

    async fn build_in(&self, id: SandboxId, job: &SdistJob) -> Result<BuiltWheel, Fault> {
        let binding = Binding { mounts: mounts_of(&job.environment), ..Binding::default() };
        self.changing("attach", id, self.backend.bind(id, &binding)).await?;
        let guest = self.guest(id).await?;
        let name = job.archive.file_name().and_then(|name| name.to_str()).unwrap_or("sources").to_owned();
        let archive = format!("/tmp/{name}");
        bring(&guest, &job.archive, &archive).await?;
        let command = ["-c", BUILD_PROGRAM, &archive, "/tmp/wheel"].map(str::to_owned);
        let spec = ExecSpec {
            timeout_seconds: Some(f64::from(BUILD_SECONDS)),
            ..ExecSpec::new(Command::Argv([vec![job.environment.python.clone()], command.to_vec()].concat()))
        };
        let printed = guest.run(&spec, OutputLimits { stdout: 1024 * 1024, stderr: 1024 * 1024 }).await?;
        if printed.exit != Exit::Code(0) {
            return Err(not_built(job, printed.exit, &printed.stderr));
        }
        let said = String::from_utf8_lossy(&printed.stdout);
        // A name out of a sandbox is no path.
        let name = said.lines().last().map(str::trim).filter(|name| is_wheel(name));
        let name = name.ok_or_else(|| not_built(job, printed.exit, &printed.stderr))?.to_owned();
        let bytes = guest.read_file(format!("/tmp/wheel/{name}"), None, LARGEST_WHEEL).await?;
        Ok(BuiltWheel { name, bytes })
    }
}

async fn bring(guest: &Guest, from: &Path, to: &str) -> Result<(), Fault> {
    let unreadable = |error: std::io::Error| {
        Fault::new(Kind::Internal, "the sources of a package cannot be read").because(error)
    };
    let file = tokio::fs::File::open(from).await.map_err(unreadable)?;
    let length = file.metadata().await.map_err(unreadable)?.len();
    if length > LARGEST_ARCHIVE {
        return Err(Fault::new(Kind::Invalid, format!("the sources have {length} bytes, which is too much")));
    }
    let bytes = tokio::fs::read(from).await.map_err(unreadable)?;
    let how = WriteFile { mode: Some(0o644), parents: true, ..WriteFile::default() };
    guest.write_file(to, &bytes, how).await?;
    Ok(())
}

fn is_wheel(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+!".contains(c);
    name.ends_with(".whl") && name.len() <= 255 && !name.starts_with('.') && name.chars().all(plain)
}

fn not_built(job: &SdistJob, exit: Exit, stderr: &[u8]) -> Fault {
    let said = String::from_utf8_lossy(stderr);
    let end = said.char_indices().rev().nth(LAST_WORDS).map_or(0, |(at, _)| at);
    let (package, version) = (&job.package, &job.version);
    Fault::new(
        Kind::Invalid,
        format!(
            "{package} {version} has no wheel for this Python, and building it failed ({exit:?}): {}",
            &said[end..]
        ),
    )
    .hint("choose a version that has a wheel, or a template whose root has the compiler that it needs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sandbox_calls_a_wheel_is_never_a_path() {
        assert!(is_wheel("pandas-2.2.0-cp311-cp311-linux_x86_64.whl"));
        for name in ["../x.whl", "/etc/x.whl", "x.tar.gz", "", ".whl", "a b.whl", "a/b.whl"] {
            assert!(!is_wheel(name), "{name}");
        }
    }
}
