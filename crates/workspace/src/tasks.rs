//! The directories of tasks. Their workers write to them, and may write anything.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use cubicle_model::{Fault, Kind, TaskId};
use cubicle_worker::{OutputFile, Status};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use crate::beneath::{Directory, is_directory, is_file, size};
use crate::fault;
use crate::kind::kind_of;
use crate::path::{DEEPEST, RelativePath};
use crate::shared::{Piece, content, open_file, piece};
use crate::staging::Staged;
use crate::tree::Tree;
use crate::walk::{Caps, Found, walk};

/// Of tasks that are listed.
const MOST_TASKS: usize = 100_000;
const LONGEST_STATUS: u64 = 1024 * 1024;
/// Of files that a task made. More are left out.
const OUTPUT: Caps = Caps { entries: 10_000, depth: DEEPEST };
/// Of context files, and of files that are saved: a copy is made of each.
const MOST_COPIED_FILES: usize = 10_000;
const MOST_COPIED_BYTES: u64 = 2 * 1024 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    pub directory: PathBuf,
    /// Files that are in `context/` now, by their path there, which is the one in `shared/`.
    pub copied: Vec<String>,
    /// What was asked for and is not in `shared/`, as it was asked for.
    pub missing: Vec<String>,
}

impl Tree {
    /// To be mounted read-write at `/task`.
    pub fn task_path(&self, task: TaskId) -> PathBuf {
        self.path().join("tasks").join(task.to_string())
    }

    /// Makes the directory of a task whole, or not at all. A second call makes nothing and says what is there.
    pub fn create_task(
        &self,
        task: TaskId,
        prompt: &str,
        context_files: &[String],
    ) -> Result<NewTask, Fault> {
        let parts = self.parts()?;
        let name = task.to_string();
        let refuse = |errno| fault::of(errno, &name);
        let (staged, directory) = Staged::directory(&parts.staging).map_err(refuse)?;
        let context = directory.make_directory("context").map_err(refuse)?;
        directory.make_directory("output").map_err(refuse)?;
        write_new(&directory, "prompt.md", &mut prompt.as_bytes(), 0o644)?;
        let mut copies = Copies::default();
        let mut missing = Vec::new();
        for asked in context_files {
            let path = RelativePath::in_shared(asked)?;
            match copies.copy(&parts.shared, path.as_str(), &context, path.as_str()) {
                Ok(()) => {}
                Err(fault) if fault.kind() == Kind::NotFound => missing.push(asked.clone()),
                Err(fault) => return Err(fault),
            }
        }
        copies.files.sort_unstable();
        copies.files.dedup();
        match staged.finish(&parts.tasks, &name, true) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(refuse(errno)),
        }
        Ok(NewTask { directory: self.task_path(task), copied: copies.files, missing })
    }

    /// What the worker says that came of the task. None until it has said it; what it wrote in another form is a fault.
    pub fn status(&self, task: TaskId) -> Result<Option<Status>, Fault> {
        let Some(directory) = self.task(task)? else { return Ok(None) };
        let (file, stat) = match directory.file("status.json") {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::INVAL) => return Err(fault::not_a_file("status.json")),
            Err(errno) => return Err(fault::of(errno, "status.json")),
        };
        if size(&stat) > LONGEST_STATUS {
            return Err(fault::too_large("status.json", size(&stat), LONGEST_STATUS));
        }
        let mut text = Vec::new();
        file.take(LONGEST_STATUS)
            .read_to_end(&mut text)
            .map_err(|error| fault::of_io(error, "status.json"))?;
        let status = serde_json::from_slice(&text)
            .map_err(|error| Fault::new(Kind::Invalid, format!("status.json cannot be read: {error}")))?;
        Ok(Some(status))
    }

    /// The regular files below `output/`, with the sizes and types that they have. At most 10,000; what has a name that is not
    /// UTF-8 is left out.
    pub fn output_files(&self, task: TaskId) -> Result<Vec<OutputFile>, Fault> {
        let Some(output) = self.output(task)? else { return Ok(Vec::new()) };
        let files = files_below(&output)?;
        let told = files.into_iter().filter_map(|found| {
            let (file, stat) = output.file(&found.path).ok()?;
            Some(OutputFile { kind: kind_of(&found.path, &file), size: size(&stat), name: found.path })
        });
        Ok(told.collect())
    }

    /// A file below `output/`.
    pub fn open_output(&self, task: TaskId, name: &str) -> Result<File, Fault> {
        let path = RelativePath::parse(name)?;
        let Some(output) = self.output(task)? else { return Err(fault::not_found(name)) };
        open_file(&output, path.as_str()).map(|(file, _)| file)
    }

    /// A part of any file of the task, as `events.jsonl` or `output/summary.md`.
    pub fn read_task_file(
        &self,
        task: TaskId,
        name: &str,
        offset: u64,
        limit: Option<u64>,
    ) -> Result<Piece, Fault> {
        let path = RelativePath::parse(name)?;
        let Some(directory) = self.task(task)? else { return Err(fault::not_found(name)) };
        let (file, stat) = open_file(&directory, path.as_str())?;
        piece(content(path.as_str(), file, &stat), name, offset, limit)
    }

    /// Copies what the task made to `shared/tasks/<task>/`, all of it or nothing. Says the paths in `shared/`. Repeated, it
    /// replaces what was saved before.
    pub fn save_outputs(&self, task: TaskId) -> Result<Vec<String>, Fault> {
        let Some(output) = self.output(task)? else { return Ok(Vec::new()) };
        let parts = self.parts()?;
        let name = task.to_string();
        let refuse = |errno| fault::of(errno, &name);
        let (staged, saved) = Staged::directory(&parts.staging).map_err(refuse)?;
        let mut copies = Copies::default();
        for found in files_below(&output)? {
            match copies.copy(&output, &found.path, &saved, &found.path) {
                // It was there a moment ago; its maker may still be at it.
                Err(fault) if fault.kind() == Kind::NotFound => {}
                result => result?,
            }
        }
        if copies.files.is_empty() {
            return Ok(Vec::new());
        }
        let _locked = parts.lock()?;
        let tasks = parts.shared.make_directory("tasks").map_err(refuse)?;
        match tasks.stat(&name) {
            Ok(_) => staged.exchange(&tasks, &name).map_err(refuse)?,
            Err(_) => staged.finish(&tasks, &name, true).map_err(refuse)?,
        }
        Ok(copies.files.iter().map(|file| format!("tasks/{name}/{file}")).collect())
    }

    /// The tasks that have a directory. A tree that nobody has used yet has none, and is not made.
    pub fn task_ids(&self) -> Result<Vec<TaskId>, Fault> {
        if !self.shared_path().is_dir() {
            return Ok(Vec::new());
        }
        let (names, _) = self.parts()?.tasks.names(MOST_TASKS).map_err(|errno| fault::of(errno, "tasks"))?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }

    /// Removes the directory of a task, however its worker left it. What was saved stays.
    pub fn remove_task(&self, task: TaskId) -> Result<(), Fault> {
        let parts = self.parts()?;
        let name = task.to_string();
        match Staged::take(&parts.staging, &parts.tasks, &name).and_then(Staged::remove) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(fault::of(errno, &name)),
        }
    }

    fn task(&self, task: TaskId) -> Result<Option<Directory>, Fault> {
        none_if_missing(self.parts()?.tasks.directory(&task.to_string()), &task.to_string())
    }

    fn output(&self, task: TaskId) -> Result<Option<Directory>, Fault> {
        let Some(directory) = self.task(task)? else { return Ok(None) };
        // A worker may have removed it or put something else there. Then it has made nothing.
        match directory.directory("output") {
            Err(Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok(None),
            result => none_if_missing(result, "output"),
        }
    }
}

fn none_if_missing(found: Result<Directory, Errno>, name: &str) -> Result<Option<Directory>, Fault> {
    match found {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(fault::of(errno, name)),
    }
}

fn files_below(directory: &Directory) -> Result<Vec<Found>, Fault> {
    let (found, _) = walk(directory, true, OUTPUT).map_err(|errno| fault::of(errno, "output"))?;
    Ok(found.into_iter().filter(|found| is_file(&found.stat)).collect())
}

/// Copies of files, counted.
#[derive(Default)]
struct Copies {
    files: Vec<String>,
    bytes: u64,
}

impl Copies {
    /// A file, or a directory with everything in it.
    fn copy(&mut self, from: &Directory, path: &str, to: &Directory, as_path: &str) -> Result<(), Fault> {
        let refuse = |errno| fault::of(errno, path);
        let (file, stat) = match from.file(path) {
            Err(Errno::ISDIR) => return self.copy_directory(from, path, to, as_path),
            Err(Errno::INVAL) if path.is_empty() => return self.copy_directory(from, path, to, as_path),
            Err(Errno::INVAL) => return Err(fault::not_a_file(path)),
            found => found.map_err(refuse)?,
        };
        self.bytes += size(&stat);
        if self.bytes > MOST_COPIED_BYTES || self.files.len() >= MOST_COPIED_FILES {
            return Err(Fault::new(
                Kind::Invalid,
                format!("more than {MOST_COPIED_FILES} files or {MOST_COPIED_BYTES} bytes would be copied"),
            )
            .hint("name fewer files; a worker can read all of /workspace/shared without a copy"));
        }
        let (above, name) = as_path.rsplit_once('/').unwrap_or(("", as_path));
        let above = to.make_directory(above).map_err(refuse)?;
        let mode = if stat.st_mode & 0o100 != 0 { 0o755 } else { 0o644 };
        // No more than it had when it was counted.
        match write_new(&above, name, &mut file.take(size(&stat)), mode) {
            // Named twice.
            Err(fault) if fault.kind() == Kind::Conflict => {}
            result => result?,
        }
        self.files.push(as_path.into());
        Ok(())
    }

    fn copy_directory(
        &mut self,
        from: &Directory,
        path: &str,
        to: &Directory,
        as_path: &str,
    ) -> Result<(), Fault> {
        let refuse = |errno| fault::of(errno, path);
        let directory = from.directory(path).map_err(refuse)?;
        to.make_directory(as_path).map_err(refuse)?;
        let caps = Caps { entries: MOST_COPIED_FILES, depth: DEEPEST };
        for found in walk(&directory, true, caps).map_err(refuse)?.0 {
            if is_directory(&found.stat) {
                continue;
            }
            let below =
                if as_path.is_empty() { found.path.clone() } else { format!("{as_path}/{}", found.path) };
            self.copy(&directory, &found.path, to, &below)?;
        }
        Ok(())
    }
}

pub(crate) fn write_new(
    directory: &Directory,
    name: &str,
    bytes: &mut dyn Read,
    mode: u32,
) -> Result<(), Fault> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::openat(directory.fd(), name, flags, Mode::from_raw_mode(mode));
    let mut file = File::from(file.map_err(|errno| fault::of(errno, name))?);
    std::io::copy(bytes, &mut file).map_err(|error| fault::of_io(error, name))?;
    // What it may be is not subject to the mask of this process.
    fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(|errno| fault::of(errno, name))
}
