//! uv: where it is, and how it is run.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cubicle_model::{Fault, Kind};
use tracing::warn;

use crate::index::Source;
use crate::manifest::Layout;
use crate::program::{NotRun, Ran, Run, installed, is_program};
use crate::trouble::Trouble;
use crate::{EnvSettings, ServiceUser, files};

const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LEAST_ROOM: u64 = 256 << 20;

#[derive(Debug)]
pub(crate) struct Uv {
    program: PathBuf,
    user: Option<ServiceUser>,
    variables: BTreeMap<String, String>,
    pub(crate) cache: PathBuf,
}

impl Uv {
    /// uv as its user can run it. Where that user cannot reach the file, as in root's home, it gets a copy.
    pub(crate) async fn find(
        settings: &EnvSettings,
        layout: &Layout,
        user: Option<ServiceUser>,
    ) -> Result<Self, Fault> {
        let found =
            settings.uv.clone().or_else(|| installed(&settings.path, "uv")).filter(|path| is_program(path));
        let missing = || {
            Fault::new(Kind::Denied, "uv, which makes environments, is not on this host").hint(
                "install it where everybody can run it, as in 'pip install uv', or name it in sandbox.uv",
            )
        };
        let found = found.ok_or_else(missing)?;
        let home = layout.cache().display().to_string();
        let mut variables = settings.variables.clone();
        for (name, value) in [
            ("PATH", "/usr/bin:/bin"),
            ("HOME", home.as_str()),
            ("LANG", "C.UTF-8"),
            ("UV_NO_PROGRESS", "1"),
            ("UV_HTTP_TIMEOUT", "30"),
            ("UV_HTTP_RETRIES", "2"),
        ] {
            variables.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
        let mut uv = Self { program: found.clone(), user, variables, cache: layout.cache() };
        if uv.answers().await {
            return Ok(uv);
        }
        uv.program = copied(&found, &layout.programs())
            .map_err(|error| Fault::new(Kind::Unavailable, "uv cannot be run by its user").because(error))?;
        if uv.answers().await { Ok(uv) } else { Err(missing()) }
    }

    async fn answers(&self) -> bool {
        let ran = self.start(vec!["--version".into()], &[], Path::new("/"), PATIENCE).await;
        ran.is_ok_and(|ran| ran.code == Some(0))
    }

    /// Runs it with what every run has in common.
    pub(crate) async fn run(
        &self,
        arguments: Vec<String>,
        source: &Source,
        directory: &Path,
        timeout: Duration,
    ) -> Result<Ran, Trouble> {
        let common = ["--no-config", "--no-python-downloads", "--color", "never", "--quiet", "--cache-dir"];
        let mut all = arguments;
        all.extend(common.map(str::to_owned));
        all.push(self.cache.display().to_string());
        all.extend(source.arguments());
        let mut own: Vec<(&str, String)> = source.variables();
        own.push(("TMPDIR", directory.display().to_string()));
        let ran = tokio::select! {
            ran = self.start(all, &own, directory, timeout) => ran.map_err(|error| match error {
                NotRun::TimedOut => Trouble::TimedOut,
                NotRun::Start(error) => Trouble::Other(error.to_string()),
            }),
            // A small archive may unpack to more than there is room for. Dropping the run ends it.
            () = disk_is_nearly_full(&self.cache) => Err(Trouble::DiskFull),
        };
        let done = match ran {
            Ok(ran) if ran.code == Some(0) => Ok(ran),
            Ok(ran) => Err(Trouble::read(&ran.stderr)),
            Err(trouble) => Err(trouble),
        };
        if matches!(done, Err(Trouble::DiskFull)) {
            self.forget_downloads().await;
        }
        done
    }

    /// Removes what was downloaded. Others that download at this moment are waited for.
    pub(crate) async fn forget_downloads(&self) {
        let arguments = ["cache", "clean", "--no-config", "--quiet", "--cache-dir"].map(str::to_owned);
        let arguments = arguments.into_iter().chain([self.cache.display().to_string()]).collect();
        let ran = self.start(arguments, &[], Path::new("/"), PATIENCE).await;
        if !ran.as_ref().is_ok_and(|ran| ran.code == Some(0)) {
            warn!(?ran, "what uv has downloaded cannot be removed");
        }
    }

    async fn start(
        &self,
        arguments: Vec<String>,
        own: &[(&str, String)],
        directory: &Path,
        timeout: Duration,
    ) -> Result<Ran, NotRun> {
        let mut variables = self.variables.clone();
        variables.extend(own.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let run = Run {
            program: self.program.clone(),
            arguments,
            variables,
            directory: directory.to_owned(),
            user: self.user,
            timeout,
        };
        run.run().await
    }

    /// The index that is compiled into it.
    pub(crate) async fn built_in_index(&self) -> Option<String> {
        let arguments = ["pip", "install", "--help"].map(str::to_owned).to_vec();
        let ran = self.start(arguments, &[], Path::new("/"), PATIENCE).await.ok()?;
        let after = ran.stdout.split("(by default: ").nth(1)?;
        let address = after.trim_start().trim_start_matches('<').split(['>', ')']).next()?;
        Some(address.split_whitespace().collect())
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The same variables for another program that reaches indexes.
    pub(crate) fn variables(&self) -> &BTreeMap<String, String> {
        &self.variables
    }
}

/// Returns when there is hardly any room left: a twentieth of the disk, or what a server needs at least.
async fn disk_is_nearly_full(path: &Path) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Ok(disk) = rustix::fs::statvfs(path) else { continue };
        let size = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        if size(disk.f_bavail) < (size(disk.f_blocks) / 20).min(LEAST_ROOM) {
            return;
        }
    }
}

/// Where uv is, whoever can run it.
pub(crate) fn located(settings: &EnvSettings) -> Result<PathBuf, Fault> {
    let found = settings.uv.clone().or_else(|| installed(&settings.path, "uv"));
    found.filter(|path| is_program(path)).ok_or_else(missing)
}

fn missing() -> Fault {
    Fault::new(Kind::Denied, "uv, which makes environments, is not on this host")
        .hint("install it where everybody can run it, as in 'pip install uv', or name it in sandbox.uv")
}

/// A copy with a name that changes with the original.
fn copied(original: &Path, directory: &Path) -> std::io::Result<PathBuf> {
    let about = std::fs::metadata(original)?;
    let copy = directory.join(format!("uv-{}-{}", about.len(), about.mtime()));
    // A crash of the host may have left less.
    if !std::fs::metadata(&copy).is_ok_and(|known| known.len() == about.len()) {
        files::write(&copy, &std::fs::read(original)?, 0o755)?;
    }
    Ok(copy)
}
