//! Applying a unified diff: all of it, or nothing.

mod fit;
mod parse;

use std::collections::BTreeMap;

use rustix::fs::AtFlags;

use super::super::failure::Failure;
use super::super::list::shown;
use super::super::path::SandboxPath;
use super::super::root::Root;
use super::text;
use super::write::{Staged, Target};
use crate::wire::tools::{ApplyPatch, MOST_PATCHED_FILES, PatchApplied, PatchedFile};
use parse::{Change, FileDiff};

/// Refused hunks that are told of.
const TOLD: usize = 3;

pub(super) fn apply(root: &Root, asked: &ApplyPatch) -> Result<PatchApplied, Failure> {
    let diffs = parse::parse(&asked.patch)?;
    if diffs.len() > MOST_PATCHED_FILES {
        return Err(Failure::invalid_argument(format!("a patch changes at most {MOST_PATCHED_FILES} files")));
    }
    let mut plan = Plan { root, states: BTreeMap::new(), order: Vec::new() };
    let (mut files, mut refused) = (Vec::new(), Vec::new());
    for diff in &diffs {
        match plan.take(diff, asked) {
            Ok(file) => files.push(file),
            Err(Refused::Hunks(hunks)) => refused.extend(hunks),
            Err(Refused::Else(failure)) => return Err(failure),
        }
    }
    if !refused.is_empty() {
        let told = refused.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; ");
        let more = refused.len().saturating_sub(TOLD);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        return Err(Failure::new(422, "patch_rejected", format!("nothing was changed: {told}{more}"))
            .hint("read the lines that are named and make the patch from what they are now"));
    }
    if !asked.dry_run {
        plan.carry_out()?;
    }
    Ok(PatchApplied { files, dry_run: asked.dry_run })
}

/// What a patch makes of a text that is the first file it is about.
pub(super) fn of_text(before: &str, patch: &str) -> Option<String> {
    let diffs = parse::parse(patch).ok()?;
    fit::fit(before, &diffs.first()?.hunks).ok().map(|fitted| fitted.text)
}

/// Why a part of a patch cannot be applied.
enum Refused {
    Hunks(Vec<String>),
    Else(Failure),
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Else(failure)
    }
}

/// A file before and after the whole patch. Absent contents are an absent file.
struct State {
    path: SandboxPath,
    before: Option<String>,
    after: Option<String>,
    mode: Option<u32>,
}

struct Plan<'a> {
    root: &'a Root,
    states: BTreeMap<Vec<u8>, State>,
    /// By which the files are written.
    order: Vec<Vec<u8>>,
}

impl Plan<'_> {
    fn take(&mut self, diff: &FileDiff, asked: &ApplyPatch) -> Result<PatchedFile, Refused> {
        let place = |name: &str| named(name, asked);
        let (from, to) = match &diff.change {
            Change::Modify(name) => (Some(place(name)?), Some(place(name)?)),
            Change::Create(name) => (None, Some(place(name)?)),
            Change::Delete(name) => (Some(place(name)?), None),
            Change::Rename { from, to } => (Some(place(from)?), Some(place(to)?)),
        };
        let before = match &from {
            Some(path) => Some(self.now(path)?.ok_or_else(|| Failure::of(rustix::io::Errno::NOENT, path))?),
            None => None,
        };
        let is_new_name = from.as_ref().map(SandboxPath::as_bytes) != to.as_ref().map(SandboxPath::as_bytes);
        if let Some(path) = to.as_ref().filter(|_| is_new_name)
            && self.now(path)?.is_some()
        {
            let why = format!("the patch makes {path}, which is there already");
            return Err(Failure::new(409, "exists", why).into());
        }
        let name = to.as_ref().or(from.as_ref()).map(ToString::to_string).unwrap_or_default();
        let fitted = fit::fit(before.as_deref().unwrap_or_default(), &diff.hunks).map_err(|hunks| {
            Refused::Hunks(hunks.into_iter().map(|hunk| format!("{name}: {hunk}")).collect())
        })?;
        if to.is_none() && !fitted.text.is_empty() {
            let why = format!("{name}: the patch deletes the file, but leaves some of its lines");
            return Err(Refused::Hunks(vec![why]));
        }
        let renamed_from =
            from.as_ref().filter(|_| is_new_name && to.is_some()).map(|path| shown(path.as_bytes()));
        let path = to.as_ref().or(from.as_ref()).map(|path| shown(path.as_bytes())).unwrap_or_default();
        if let Some(from) = from.filter(|_| is_new_name) {
            self.set(&from, None, None)?;
        }
        if let Some(to) = to {
            self.set(&to, Some(fitted.text), diff.mode)?;
        }
        Ok(PatchedFile {
            path,
            action: diff.change.name().into(),
            renamed_from,
            added: fitted.added,
            removed: fitted.removed,
            moved_hunks: fitted.moved,
        })
    }

    /// What a file has after what the patch has done to it so far.
    fn now(&mut self, path: &SandboxPath) -> Result<Option<String>, Failure> {
        Ok(self.state(path)?.after.clone())
    }

    fn set(&mut self, path: &SandboxPath, after: Option<String>, mode: Option<u32>) -> Result<(), Failure> {
        let state = self.state(path)?;
        state.after = after;
        state.mode = mode.or(state.mode);
        Ok(())
    }

    fn state(&mut self, path: &SandboxPath) -> Result<&mut State, Failure> {
        let key = path.as_bytes().to_vec();
        if !self.states.contains_key(&key) {
            let before = match text::whole_text(self.root, path) {
                Ok(text) => Some(text),
                Err(failure) if failure.code == "not_found" => None,
                Err(failure) => return Err(failure),
            };
            let state = State { path: path.clone(), after: before.clone(), before, mode: None };
            self.states.insert(key.clone(), state);
            self.order.push(key.clone());
        }
        self.states.get_mut(&key).ok_or_else(|| Failure::new(500, "io_error", "a file of the patch was lost"))
    }

    /// Everything that can fail for want of room or rights is done before the first file changes. What fails after that is
    /// taken back.
    fn carry_out(mut self) -> Result<(), Failure> {
        let mut staged = Vec::new();
        let mut deleted = Vec::new();
        for key in std::mem::take(&mut self.order) {
            let Some(state) = self.states.remove(&key) else { continue };
            match &state.after {
                Some(after) if state.before.as_ref() != Some(after) || state.mode.is_some() => {
                    let target = Target::find(self.root, state.path.clone())?;
                    let file = target.stage(after.as_bytes(), state.mode)?;
                    staged.push((file, state));
                }
                None if state.before.is_some() => deleted.push(state),
                _ => {}
            }
        }
        let mut done = Vec::new();
        for (file, state) in staged {
            self.step(&mut done, state, |_, _| Staged::finish(file, false))?;
        }
        for state in deleted {
            self.step(&mut done, state, remove)?;
        }
        Ok(())
    }

    fn step(
        &self,
        done: &mut Vec<State>,
        state: State,
        act: impl FnOnce(&Root, &SandboxPath) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match act(self.root, &state.path) {
            Ok(()) => {
                done.push(state);
                Ok(())
            }
            Err(failure) => {
                for state in done.drain(..).rev() {
                    // What cannot be taken back either is in the refusal of the step that failed.
                    let _ = match &state.before {
                        Some(before) => Target::find(self.root, state.path)
                            .and_then(|target| target.stage(before.as_bytes(), None)?.finish(false)),
                        None => remove(self.root, &state.path),
                    };
                }
                Err(failure)
            }
        }
    }
}

fn remove(root: &Root, path: &SandboxPath) -> Result<(), Failure> {
    let place = root.place(path)?;
    rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::empty()).map_err(|errno| Failure::of(errno, path))
}

/// The path that a name of the patch means.
fn named(name: &str, asked: &ApplyPatch) -> Result<SandboxPath, Failure> {
    let name = match asked.strip {
        Some(count) => {
            let mut rest = name;
            for _ in 0..count {
                let (_, behind) = rest.split_once('/').ok_or_else(|| {
                    let shown = text::shortened(name, 100);
                    Failure::invalid_argument(format!(
                        "'{shown}' has fewer than {count} directories to strip"
                    ))
                })?;
                rest = behind;
            }
            rest
        }
        None => name.strip_prefix("a/").or_else(|| name.strip_prefix("b/")).unwrap_or(name),
    };
    let base = super::path(&asked.path)?;
    let path = if name.starts_with('/') { name.as_bytes().to_vec() } else { base.join(name.as_bytes()) };
    if name.split('/').any(|part| part == "..") {
        return Err(Failure::invalid_path("a name in a patch has '..' in it"));
    }
    SandboxPath::from_bytes(&path)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn a_patch_that_fails_half_way_is_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let fd = rustix::fs::open(directory.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let root = Root::new(fd).unwrap();
        std::fs::write(directory.path().join("changed"), "old").unwrap();
        let state = |path: &str, before: Option<&str>, after: Option<&str>| State {
            path: SandboxPath::from_bytes(path.as_bytes()).unwrap(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
            mode: None,
        };
        let states = [
            state("/changed", Some("old"), Some("new")),
            state("/made", None, Some("new")),
            // Somebody else has removed it meanwhile.
            state("/gone", Some("x"), None),
        ];
        let order: Vec<_> = states.iter().map(|state| state.path.as_bytes().to_vec()).collect();
        let states = order.iter().cloned().zip(states).collect();
        assert_eq!(Plan { root: &root, states, order }.carry_out().unwrap_err().code, "not_found");
        let left: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["changed"]);
        assert_eq!(std::fs::read_to_string(directory.path().join("changed")).unwrap(), "old");
    }
}
