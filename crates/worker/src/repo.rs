//! The repository of a task: cloned before the agent starts, and handed over as a patch afterwards. Git runs inside of the sandbox
//! and goes out through the same gateway as everything else.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::process::{Cut, Interruption, Launch, Stream, Watch};

pub(crate) const DIRECTORY: &str = "repo";
pub(crate) const PATCH: &str = "changes.patch";
const LARGEST_PATCH: u64 = 64 << 20;
const DEPTH: &str = "50";

/// `URL` or `URL@REF`.
#[derive(Debug, PartialEq, Eq)]
struct Source<'a> {
    url: &'a str,
    reference: Option<&'a str>,
}

impl<'a> Source<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        // An '@' before the last '/' belongs to the address, as in user@host.
        let path = text.rfind('/').map_or(0, |slash| slash + 1);
        let (url, reference) = match text[path..].rfind('@') {
            Some(at) => (&text[..path + at], Some(&text[path + at + 1..])),
            None => (text, None),
        };
        let known = ["https://", "http://", "file:///"].iter().any(|scheme| url.starts_with(scheme));
        if !known {
            return Err(format!("'{url}' cannot be cloned: give an address with https://"));
        }
        match reference {
            Some(reference) if reference.is_empty() || reference.starts_with('-') => {
                Err(format!("'{reference}' names no branch, tag or commit"))
            }
            _ => Ok(Self { url, reference }),
        }
    }
}

/// Git with what it needs to run.
#[derive(Debug)]
pub(crate) struct Git<'a> {
    pub(crate) task: &'a Path,
    pub(crate) state: &'a Path,
    pub(crate) variables: &'a BTreeMap<String, String>,
    pub(crate) interruption: &'a Interruption,
    pub(crate) deadline: Instant,
}

/// A repository as it was before the agent.
#[derive(Debug)]
pub(crate) struct Repository {
    pub(crate) directory: PathBuf,
    base: String,
}

#[derive(Debug)]
pub(crate) enum NotCloned {
    /// The task is to end for this reason.
    Cut(Cut),
    Failed(String),
}

impl Git<'_> {
    /// The repository that is asked for, or one that is there already.
    pub(crate) fn repository(&self, source: Option<&str>) -> Result<Option<Repository>, NotCloned> {
        let directory = self.task.join(DIRECTORY);
        if let Some(source) = source {
            let source = Source::parse(source).map_err(NotCloned::Failed)?;
            self.fetch(&source, &directory)?;
        } else if !directory.join(".git").exists() {
            return Ok(None);
        }
        let base = self.git(&directory, &["rev-parse", "--verify", "HEAD"])?;
        Ok(Some(Repository { directory, base: base.trim().to_owned() }))
    }

    fn fetch(&self, source: &Source<'_>, directory: &Path) -> Result<(), NotCloned> {
        let made = fs::create_dir_all(directory);
        made.map_err(|error| NotCloned::Failed(format!("cannot make {}: {error}", directory.display())))?;
        self.git(directory, &["init", "--quiet", "--initial-branch", "main"])?;
        self.git(directory, &["remote", "add", "origin", source.url])?;
        let reference = source.reference.unwrap_or("HEAD");
        let shallow =
            self.git(directory, &["fetch", "--quiet", "--no-tags", "--depth", DEPTH, "origin", reference]);
        let commit = match shallow {
            Ok(_) => "FETCH_HEAD".to_owned(),
            Err(NotCloned::Cut(cut)) => return Err(NotCloned::Cut(cut)),
            // Not every server gives a commit by its name; it is then among all the others, or it does not exist.
            Err(NotCloned::Failed(why)) => {
                self.git(directory, &["fetch", "--quiet", "--tags", "origin"])?;
                let named = format!("{reference}^{{commit}}");
                let found = self.git(directory, &["rev-parse", "--verify", "--quiet", &named]);
                found.map_err(|_| NotCloned::Failed(why))?.trim().to_owned()
            }
        };
        let branch = source.reference.filter(|name| is_branch_name(name)).unwrap_or("main");
        self.git(directory, &["checkout", "--quiet", "-B", branch, &commit])?;
        Ok(())
    }

    /// Everything that is different from before, with new files and binary ones, committed or not. The file is written to
    /// `output/`; none when nothing is different.
    pub(crate) fn write_patch(&self, repository: &Repository, output: &Path) -> Result<bool, String> {
        // An index of our own: that of the agent stays as it is.
        let index = self.state.join("patch-index");
        _ = fs::remove_file(&index);
        let said = |trouble| match trouble {
            NotCloned::Cut(_) => "there was no time for it".to_owned(),
            NotCloned::Failed(why) => why,
        };
        let git = |arguments: &[&str]| self.git_with(&repository.directory, arguments, Some(&index));
        git(&["read-tree", &repository.base]).map_err(said)?;
        git(&["add", "--all", "--", "."]).map_err(said)?;
        let path = output.join(PATCH);
        let fresh = self.state.join(PATCH);
        // As one word: git takes a second one for a path and compares two files.
        let target = format!("--output={}", fresh.display());
        let shape = ["--binary", "--no-ext-diff", "--no-textconv", "--no-color"];
        let arguments = [&["diff", "--cached"], &shape[..], &[&target, &repository.base]].concat();
        git(&arguments).map_err(said)?;
        let size = fs::metadata(&fresh).map_err(|error| error.to_string())?.len();
        if size > LARGEST_PATCH {
            return Err(format!("it has {size} bytes, more than {LARGEST_PATCH}"));
        }
        if size == 0 {
            return Ok(false);
        }
        put(&fresh, &path).map_err(|error| error.to_string())?;
        Ok(true)
    }

    fn git(&self, directory: &Path, arguments: &[&str]) -> Result<String, NotCloned> {
        self.git_with(directory, arguments, None)
    }

    fn git_with(
        &self,
        directory: &Path,
        arguments: &[&str],
        index: Option<&Path>,
    ) -> Result<String, NotCloned> {
        let mut variables = self.variables.clone();
        variables.entry("HOME".into()).or_insert_with(|| self.state.display().to_string());
        variables.insert("GIT_TERMINAL_PROMPT".into(), "0".into());
        if let Some(index) = index {
            variables.insert("GIT_INDEX_FILE".into(), index.display().to_string());
        }
        // What the agent configured in its repository is not run for us.
        let fixed =
            ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.directory=*"];
        let launch = Launch {
            program: "git".into(),
            arguments: fixed.iter().chain(arguments).map(|word| (*word).to_owned()).collect(),
            variables,
            directory: directory.to_owned(),
            stdin: None,
        };
        let mut output = String::new();
        let idle = self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
        let watch = Watch { deadline: self.deadline, idle, grace: Duration::from_secs(2) };
        let ran = launch.run(watch, self.interruption, |stream, line| {
            if stream == Stream::Out && output.len() < 4096 {
                output.push_str(&String::from_utf8_lossy(line));
                output.push('\n');
            }
            None
        });
        let verb = arguments.first().copied().unwrap_or_default();
        match ran {
            Ok(ending) if ending.cut.is_some() => Err(NotCloned::Cut(ending.cut.unwrap_or(Cut::Timeout))),
            Ok(ending) if ending.code == Some(0) => Ok(output),
            Ok(ending) => Err(NotCloned::Failed(format!("git {verb}: {}", ending.complaints))),
            Err(error) => Err(NotCloned::Failed(format!("git cannot be started: {error}"))),
        }
    }
}

/// A name that can be a branch here, not a commit.
fn is_branch_name(name: &str) -> bool {
    let is_commit = name.len() >= 7 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    !is_commit && !name.starts_with("refs/") && name != "HEAD"
}

/// Copies into the task's directory, which the agent could write to, without following what it may have put there.
fn put(from: &Path, to: &Path) -> std::io::Result<()> {
    _ = fs::remove_file(to);
    let mut target = fs::OpenOptions::new().write(true).create_new(true).open(to)?;
    std::io::copy(&mut File::open(from)?, &mut target)?;
    target.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read() {
        let table = [
            ("https://a.example/x.git", "https://a.example/x.git", None),
            ("https://a.example/x.git@v1.2", "https://a.example/x.git", Some("v1.2")),
            ("https://me@a.example/x@main", "https://me@a.example/x", Some("main")),
            ("file:///srv/x@abcdef1", "file:///srv/x", Some("abcdef1")),
        ];
        for (text, url, reference) in table {
            assert_eq!(Source::parse(text), Ok(Source { url, reference }));
        }
        for text in
            ["git@a.example:x/y", "ssh://a/x", "https://a/x@", "https://a/x@--upload-pack=sh", "ext::sh"]
        {
            assert!(Source::parse(text).is_err(), "{text}");
        }
    }
}
