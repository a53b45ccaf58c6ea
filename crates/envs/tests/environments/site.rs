//! A place of one test: a directory with wheels, one with environments, and a uv whose runs are counted.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cubicle_envs::{EnvSettings, Environments, Indexes, Wanted};
use cubicle_model::{Name, Timestamp};

pub(crate) struct Site {
    directory: tempfile::TempDir,
    /// In seconds.
    pub(crate) now: Arc<AtomicI64>,
}

/// Where the day begins on which these tests happen.
pub(crate) const TODAY: i64 = 1_800_000_000;

pub(crate) fn skip(test: &str, reason: &str) {
    _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn given(variable: &str) -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "whoever runs the tests says where uv is")]
    std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl Site {
    /// None, and a line that says so, where there is no uv.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let Some(uv) = given("CUBICLE_TEST_UV").filter(|path| path.exists()) else {
            skip(test, "needs uv: run scripts/setup-ci and set CUBICLE_TEST_UV");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        let site = Self { directory, now: Arc::new(AtomicI64::new(TODAY)) };
        open_to_all(site.path());
        for name in ["wheels", "environments"] {
            std::fs::create_dir(site.path().join(name)).unwrap();
            open_to_all(&site.path().join(name));
        }
        // The user who runs uv cannot look into a home directory.
        let own = site.path().join("uv-itself");
        std::fs::hard_link(&uv, &own).or_else(|_| std::fs::copy(&uv, &own).map(drop)).unwrap();
        std::fs::write(site.log(), "").unwrap();
        std::fs::set_permissions(site.log(), std::fs::Permissions::from_mode(0o666)).unwrap();
        site.wrap("");
        Some(site)
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn wheels(&self) -> PathBuf {
        self.path().join("wheels")
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.path().join("environments")
    }

    fn log(&self) -> PathBuf {
        self.path().join("log")
    }

    /// What is run before uv is, in a shell that has uv's arguments.
    pub(crate) fn wrap(&self, before: &str) {
        let (log, uv) = (self.log(), self.path().join("uv-itself"));
        let text = format!(
            "#!/bin/sh\necho \"$1 $2\" >>{}\n{before}\nexec {} \"$@\"\n",
            log.display(),
            uv.display()
        );
        // A script that is being run cannot be written to.
        let fresh = self.path().join("uv.new");
        std::fs::write(&fresh, text).unwrap();
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(fresh, self.uv()).unwrap();
    }

    pub(crate) fn uv(&self) -> PathBuf {
        self.path().join("uv")
    }

    /// How often uv was run like this.
    pub(crate) fn runs(&self, of: &str) -> usize {
        std::fs::read_to_string(self.log()).unwrap().lines().filter(|line| line.starts_with(of)).count()
    }

    pub(crate) fn settings(&self) -> EnvSettings {
        let now = self.now.clone();
        let clock = move || Timestamp::from_second(now.load(Ordering::SeqCst)).unwrap();
        let mut settings = EnvSettings::new(self.root(), Arc::new(clock));
        settings.uv = Some(self.uv());
        settings.indexes = Indexes { find_links: vec![self.wheels()], no_index: true, ..Indexes::default() };
        settings
    }

    pub(crate) async fn open(&self) -> Arc<Environments> {
        Environments::open(self.settings()).await.unwrap()
    }

    pub(crate) fn later(&self, seconds: i64) {
        self.now.fetch_add(seconds, Ordering::SeqCst);
    }

    /// Directories of finished trees.
    pub(crate) fn trees(&self) -> Vec<PathBuf> {
        entries(&self.root().join("trees"))
    }

    /// Packages that trees have files of.
    pub(crate) fn parts(&self) -> Vec<PathBuf> {
        entries(&self.root().join("parts"))
    }

    /// What is being made, or was left.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        entries(&self.root().join("work"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Sealed directories cannot be emptied by an ordinary user.
        open_all(&self.root());
    }
}

fn open_all(directory: &Path) {
    _ = std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755));
    for path in entries(directory) {
        if path.is_dir() && !path.is_symlink() {
            open_all(&path);
        }
    }
}

pub(crate) fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) fn tenant() -> Name {
    name("acme")
}

pub(crate) fn want(requirements: &[&str]) -> Wanted {
    Wanted { requirements: requirements.iter().map(|text| (*text).to_owned()).collect(), ..Wanted::default() }
}

pub(crate) fn want_as(called: &str, requirements: &[&str]) -> Wanted {
    Wanted { name: Some(name(called)), ..want(requirements) }
}

/// What the interpreter of a tree prints. It is a test that runs this code outside of a sandbox.
pub(crate) fn python(tree: &Path, code: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "the test uses the interpreter of the environment")]
    let ran = std::process::Command::new(tree.join("bin/python"))
        .args(["-c", code])
        .env_clear()
        .current_dir("/")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap().trim_end().to_owned()
}
