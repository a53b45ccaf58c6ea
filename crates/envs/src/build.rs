//! From a lock to a tree: made in a place of its own, looked at, sealed, and then moved to its name at once.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cubicle_model::{Fault, Kind, Name, Timestamp};

use crate::files::{self, Locked};
use crate::index::Source;
use crate::lock::Lock;
use crate::manifest::{Layout, Manifest, PYTHON, TREE};
use crate::parts::{self, DoNotFit, Parts};
use crate::program::{NotRun, Run};
use crate::tree::{self, SecondNames, Shape};
use crate::trouble::{Trouble, disk_full};
use crate::uv::Uv;
use crate::work::Work;
use crate::{EnvKey, Interpreter, ServiceUser, modules};

/// How often a process looks whether another has finished the same tree.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Directories with tests, as a pattern for the whole path.
const TESTS: &str = "/site-packages(/.*)?/tests?/";

/// What making needs.
#[derive(Debug)]
pub(crate) struct Workshop {
    pub(crate) layout: Layout,
    pub(crate) uv: Uv,
    pub(crate) python: Interpreter,
    pub(crate) user: Option<ServiceUser>,
    pub(crate) resolve_timeout: Duration,
    pub(crate) build_timeout: Duration,
    /// A tree may not be larger.
    pub(crate) largest: u64,
}

/// What a tree is to be made of.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    pub(crate) key: &'a EnvKey,
    pub(crate) lock: &'a Lock,
    pub(crate) source: &'a Source,
    pub(crate) tenant: Option<&'a Name>,
    pub(crate) now: Timestamp,
}

/// Whether the tree was made here or found.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) manifest: Manifest,
    pub(crate) is_new: bool,
}

impl Workshop {
    /// Makes the tree unless it is there. Of several processes one makes it, and the others wait.
    pub(crate) async fn make(&self, order: &Order<'_>) -> Result<Made, Fault> {
        if let Some(manifest) = self.load(order.key).await? {
            return Ok(Made { manifest, is_new: false });
        }
        let _alone = self.alone(order.key).await?;
        if let Some(manifest) = self.load(order.key).await? {
            return Ok(Made { manifest, is_new: false });
        }
        let manifest = self.build(order).await?;
        Ok(Made { manifest, is_new: true })
    }

    /// A tree that is there but not what its manifest says is moved out of the way.
    async fn load(&self, key: &EnvKey) -> Result<Option<Manifest>, Fault> {
        let (path, work) = (self.layout.tree(key), self.layout.work());
        blocking(move || {
            let found = Manifest::load(&path);
            if found.is_none() && path.exists() {
                discard(&path, &work).map_err(io_fault)?;
            }
            Ok(found)
        })
        .await
    }

    async fn alone(&self, key: &EnvKey) -> Result<Locked, Fault> {
        let path = self.layout.making(key);
        self.waited_for(|| Locked::try_exclusive(&path).map_err(io_fault)).await
    }

    async fn build(&self, order: &Order<'_>) -> Result<Manifest, Fault> {
        let built = self.build_of_parts(order).await;
        if built.is_err() {
            // What was made for it is nobody's.
            let layout = self.layout.clone();
            blocking(move || {
                parts::sweep(&layout);
                Ok(())
            })
            .await?;
        }
        built
    }

    async fn build_of_parts(&self, order: &Order<'_>) -> Result<Manifest, Fault> {
        if let Some(parts) = self.parts(order).await?
            && let Some(manifest) = self.put_together(order, parts).await?
        {
            return Ok(manifest);
        }
        self.build_whole(order).await
    }

    /// None where the parts do not make a tree. Nobody else can come into a directory where this happens.
    async fn put_together(&self, order: &Order<'_>, parts: Parts) -> Result<Option<Manifest>, Fault> {
        let layout = self.layout.clone();
        let assembled = blocking(move || {
            let work = Work::begin(&layout.work(), None).map_err(io_fault)?;
            let out = work.directory("out", None).map_err(io_fault)?;
            match parts.assemble(&out.join(TREE))? {
                Ok(shape) => return Ok(Some((work, out, shape, parts))),
                Err(DoNotFit::SameFile) => {}
                Err(DoNotFit::Damaged) => parts.discard(&layout).map_err(io_fault)?,
            }
            Ok(None)
        });
        let Some((work, out, shape, _parts)) = assembled.await? else { return Ok(None) };
        self.finish(order, work, out, shape, SecondNames::OfParts).await.map(Some)
    }

    async fn build_whole(&self, order: &Order<'_>) -> Result<Manifest, Fault> {
        let work = self.begin().await?;
        let out = work.directory("out", self.user).map_err(io_fault)?;
        let root = out.join(TREE);
        let lock = work.path().join("pylock.toml");
        write_for(&lock, &order.lock.text, self.user).map_err(io_fault)?;
        self.make_bare(&root, &work).await?;
        if !order.lock.packages.is_empty() {
            self.install(&root, &lock, order.source, &work).await?;
        }
        self.compile(&root, &order.key.target()).await?;
        let python = self.python.clone();
        let sealed = blocking(move || {
            arrange(&root, &python).map_err(io_fault)?;
            tree::seal(&root, Path::new(PYTHON))
        });
        let shape = sealed.await?;
        self.finish(order, work, out, shape, SecondNames::None).await
    }

    /// Gives a sealed tree its manifest and its name.
    async fn finish(
        &self,
        order: &Order<'_>,
        work: Work,
        out: PathBuf,
        shape: Shape,
        second_names: SecondNames,
    ) -> Result<Manifest, Fault> {
        let (python, key, tenant) = (self.python.clone(), order.key.clone(), order.tenant.cloned());
        let (locked, packages, now) = (order.lock.packages.clone(), order.lock.pinned(), order.now);
        let (largest, layout) = (self.largest, self.layout.clone());
        blocking(move || {
            if shape.bytes > largest {
                return Err(Fault::new(
                    Kind::Invalid,
                    format!(
                        "the environment has {} bytes, more than all environments together may have",
                        shape.bytes
                    ),
                )
                .hint("ask for less, or ask the operator to raise sandbox.env_cache.max_disk_usage"));
            }
            let site = site_packages(&out.join(TREE), &python);
            let modules = locked
                .into_iter()
                .map(|package| {
                    let names = modules::top_level(&site, &package.name);
                    (package.name, names)
                })
                .collect();
            let manifest = Manifest {
                format: Manifest::FORMAT,
                key: key.clone(),
                python,
                packages,
                modules,
                created_at: now,
                tenant,
                shape,
                second_names,
            };
            hand_over(&out).map_err(io_fault)?;
            manifest.write(&out).map_err(io_fault)?;
            std::fs::rename(&out, layout.tree(&key)).map_err(io_fault)?;
            drop(work);
            Ok(manifest)
        })
        .await
    }

    /// An environment without packages.
    pub(crate) async fn make_bare(&self, root: &Path, work: &Work) -> Result<(), Fault> {
        let none = Source::Operator(crate::Indexes::default());
        let venv = ["venv", "--relocatable", "--python", &shown(&self.python.program), &shown(root)];
        let run = self.uv.run(venv.map(str::to_owned).to_vec(), &none, work.path(), self.build_timeout);
        run.await.map(drop).map_err(Trouble::fault)
    }

    /// uv could compile the bytecode too, but with the interpreter of the new environment, which runs what packages want to
    /// have run when an interpreter starts (`.pth`). A link into the cache would lead out of the tree.
    pub(crate) async fn install(
        &self,
        root: &Path,
        lock: &Path,
        source: &Source,
        work: &Work,
    ) -> Result<(), Fault> {
        let install = [
            "pip",
            "install",
            "--no-build",
            "--no-deps",
            "--link-mode",
            "copy",
            "--no-compile-bytecode",
            "--preview-features",
            "pylock",
            "--python",
            &shown(&root.join(PYTHON)),
            "--requirements",
            &shown(lock),
        ];
        let run = self.uv.run(install.map(str::to_owned).to_vec(), source, work.path(), self.build_timeout);
        run.await.map(drop).map_err(Trouble::fault)
    }

    pub(crate) async fn begin(&self) -> Result<Work, Fault> {
        let (parent, user) = (self.layout.work(), self.user);
        blocking(move || Work::begin(&parent, user).map_err(io_fault)).await
    }

    /// Compiles with the interpreter itself, isolated and without `site`, so that nothing of the packages is run. Paths
    /// become those of the sandbox. Files that cannot be compiled are those that nobody imports. Tests of packages are left
    /// out: they are most of the code of large packages, and hardly ever run.
    pub(crate) async fn compile(&self, root: &Path, inside: &str) -> Result<(), Fault> {
        let site = site_packages(root, &self.python).display().to_string();
        let strip = root.display().to_string();
        let arguments =
            ["-I", "-S", "-m", "compileall", "-q", "-j", "0", "-x", TESTS, "-s", &strip, "-p", inside, &site];
        let run = Run {
            program: self.python.program.clone(),
            arguments: arguments.map(str::to_owned).to_vec(),
            variables: [("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("TMPDIR", &strip)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            directory: root.to_owned(),
            user: self.user,
            timeout: self.build_timeout,
        };
        match run.run().await {
            Ok(ran)
                if ran.stderr.contains("No space left on device") || ran.stdout.contains("No space left") =>
            {
                Err(disk_full())
            }
            Ok(ran) if matches!(ran.code, Some(0 | 1)) => Ok(()),
            Ok(ran) => Err(Fault::new(Kind::Internal, "bytecode cannot be compiled").because(ran.stderr)),
            Err(NotRun::TimedOut) => Err(Trouble::TimedOut.fault()),
            Err(NotRun::Start(error)) => {
                Err(Fault::new(Kind::Internal, "the interpreter cannot be started").because(error))
            }
        }
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

pub(crate) fn site_packages(root: &Path, python: &Interpreter) -> PathBuf {
    root.join("lib").join(format!("python{}", python.short_version())).join("site-packages")
}

/// From here on it is the environment of a sandbox: its interpreter is the one there. Packages of the interpreter itself and
/// of the user's own directory come last, so that `pip install` inside of a sandbox still adds what is missing.
pub(crate) fn arrange(root: &Path, python: &Interpreter) -> io::Result<()> {
    for leftover in parts::LEFTOVERS {
        match std::fs::remove_file(root.join(leftover)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let link = root.join(PYTHON);
    std::fs::remove_file(&link)?;
    std::os::unix::fs::symlink(&python.inside, &link)?;
    let home = Path::new(&python.inside).parent().unwrap_or(Path::new("/")).display();
    let configuration = format!(
        "home = {home}\nimplementation = CPython\nversion_info = {}\ninclude-system-site-packages = true\nrelocatable = true\n",
        python.version
    );
    let path = root.join("pyvenv.cfg");
    std::fs::remove_file(&path)?;
    std::fs::write(path, configuration)
}

/// The directory around the tree becomes ours, and stays writable for that it can be moved.
pub(crate) fn hand_over(out: &Path) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(out, Some(0), Some(0))?;
    }
    files::make_directory(out, 0o755)
}

pub(crate) fn write_for(path: &Path, text: &str, user: Option<ServiceUser>) -> io::Result<()> {
    std::fs::write(path, text)?;
    match user {
        Some(user) => std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}

/// Takes a tree out of use at once and then removes it. What a crash leaves is swept.
pub(crate) fn discard(path: &Path, work: &Path) -> io::Result<()> {
    let place = Work::begin(work, None)?;
    match std::fs::rename(path, place.path().join("gone")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn io_fault(error: io::Error) -> Fault {
    let is_full = [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT];
    if is_full.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) {
        return disk_full();
    }
    Fault::new(Kind::Internal, "environments cannot be kept on this host").because(error)
}

/// Files are looked at where nobody waits for them.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Fault::new(Kind::Internal, "making the environment panicked").because(error))
    })
}
