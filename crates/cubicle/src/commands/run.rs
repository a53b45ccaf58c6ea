//! `cubicle run`: one command in a fresh sandbox.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cubicle_backend::{Backend, Seen, State};
use cubicle_guest::client::{Guest, WriteFile};
use cubicle_model::limits::ByteSize;
use cubicle_model::{
    Command, ExecId, ExecSpec, Exit, Fault, FileToWrite, Kind, Lifetime, Medium, Placement, Receipt, Root,
    SandboxId,
};

use super::result::Outcome;
use crate::args::{How, Run, SandboxOptions};
use crate::attend::local::attend;
use crate::attend::{Attended, Passing};
use crate::context::{Context, guest, random_bits};
use crate::environment::Environment;
use crate::failure::{Ending, Failure, OWN_FAILURE, invalid};
use crate::signals::Signals;
use crate::values::FileCopy;

/// A file is held in memory on its way into the sandbox.
const LARGEST_FILE: u64 = 256 * 1024 * 1024;

/// Everything that is decided before anything is made.
struct Plan {
    place: Placement,
    files: Vec<FileToWrite>,
    spec: ExecSpec,
}

impl Plan {
    fn mountable(&self) -> Vec<PathBuf> {
        match &self.place.workspace {
            Medium::Memory => vec![],
            Medium::Directory(path) => vec![path.clone()],
        }
    }
}

pub(crate) async fn run(args: &Run, context: &Context) -> Result<Ending, Failure> {
    let mut signals = Signals::catch()?;
    // The caller's files are read first: opening the backend as root is where privileges end.
    let plan = plan(args, context)?;
    let id = plan.place.id;

    let backend = tokio::select! {
        backend = context.backend_with(plan.mountable()) => backend?,
        // Nothing is made yet.
        signal = signals.next_ending() => return Ok(Ending::Signal(signal)),
    };
    let made = tokio::select! {
        made = make(&backend, &plan) => made,
        // A bound sandbox ends with this process; a durable one is removed here as far as it is made.
        signal = signals.next_ending() => {
            _ = backend.destroy(id).await;
            return Ok(Ending::Signal(signal));
        }
    };
    let ended = match made {
        Ok((seen, guest)) => {
            let ended = attend_in(&seen, &guest, &plan.spec, &args.how, &mut signals).await;
            explain(&*backend, id, ended).await.map(|attended| (seen, attended))
        }
        Err(fault) => Err(fault.into()),
    };
    let keep = args.keep && ended.is_ok();
    if !keep {
        // The command's outcome is known and is not taken back by a failing removal, which gc makes up for.
        _ = backend.destroy(id).await;
    }
    let (seen, attended) = ended?;
    if keep {
        tell_kept(id, context);
    }
    let receipt = seen.receipt.filter(|_| args.receipt);
    if let Some(receipt) = receipt.as_ref().filter(|_| !args.how.json) {
        tell_receipt(receipt)?;
    }
    if attended.exit == Exit::Oom && !args.how.json {
        let limit = ByteSize(plan.place.limits.memory.value);
        crate::failure::note(&format!("the sandbox ran out of memory ({limit}): raise it with --memory"));
    }
    finish(&args.how, id, plan.place.isolation.name(), attended, receipt)
}

/// Runs a command in a sandbox that is there, with everything passed through.
pub(crate) async fn attend_in(
    seen: &Seen,
    guest: &Guest,
    spec: &ExecSpec,
    how: &How,
    signals: &mut Signals,
) -> Result<Attended, Failure> {
    let default_wall = default_wall(seen);
    let passing = Passing { tty: how.tty, input: true, keep_output: how.json };
    attend(guest, spec.clone(), ExecId::from_random(random_bits()), passing, default_wall, signals).await
}

/// A wall time that somebody asked for is kept; the default one only ends what nobody attends.
pub(crate) fn default_wall(seen: &Seen) -> Option<u64> {
    let limits = &seen.receipt.as_ref()?.limits;
    let wall = limits.iter().find(|limit| limit.name == "wall_seconds" && !limit.asked);
    wall.map(|limit| limit.value)
}

/// What is printed after the command ended, and how cubicle ends.
pub(crate) fn finish(
    how: &How,
    sandbox: SandboxId,
    isolation: &'static str,
    attended: Attended,
    receipt: Option<Receipt>,
) -> Result<Ending, Failure> {
    let exit = attended.exit;
    if how.json {
        super::print_json(&Outcome::new(sandbox, isolation, attended, receipt))?;
        return Ok(Ending::Code(exit.shell_code()));
    }
    match exit {
        Exit::Signal(number) => Ok(Ending::Signal(number)),
        Exit::Unknown | Exit::NotStarted => Err(unknown_outcome().into()),
        Exit::Code(_) | Exit::Oom | Exit::TimedOut => Ok(Ending::Code(exit.shell_code())),
    }
}

/// Says what became of the sandbox when it stopped answering.
pub(crate) async fn explain(
    backend: &dyn Backend,
    id: SandboxId,
    ended: Result<Attended, Failure>,
) -> Result<Attended, Failure> {
    let failure = match ended {
        Err(failure) if failure.fault.kind() == Kind::Unavailable => failure,
        known => return known,
    };
    match backend.observe(id).await {
        Ok(None | Some(Seen { state: State::Ended, .. })) => {
            Err(Failure { fault: unknown_outcome().because(failure.fault), code: OWN_FAILURE })
        }
        Ok(Some(_)) | Err(_) => Err(failure),
    }
}

fn unknown_outcome() -> Fault {
    Fault::new(Kind::Unavailable, "the sandbox ended before the command did, so its outcome is not known")
        .hint("it may have run out of memory or reached its wall time")
}

async fn make(backend: &Arc<dyn Backend>, plan: &Plan) -> Result<(Seen, Guest), Fault> {
    let seen = backend.ensure(&plan.place).await?;
    let guest = guest(backend, plan.place.id).await?;
    for file in &plan.files {
        let how = WriteFile { mode: Some(file.mode), parents: true, ..WriteFile::default() };
        guest.write_file(&file.path, &file.bytes, how).await?;
    }
    Ok((seen, guest))
}

fn plan(args: &Run, context: &Context) -> Result<Plan, Fault> {
    let lifetime = if args.keep { Lifetime::Durable } else { Lifetime::Bound };
    let place = placement(&args.sandbox, lifetime, args.argv.argv.join(" "), context)?;
    let files = args.files.iter().map(read_file).collect::<Result<_, _>>()?;
    let spec = spec(&args.how, args.argv.argv.clone(), &context.environment)?;
    Ok(Plan { place, files, spec })
}

/// A sandbox as the command line asks for it.
pub(crate) fn placement(
    options: &SandboxOptions,
    lifetime: Lifetime,
    command: String,
    context: &Context,
) -> Result<Placement, Fault> {
    let sandbox = context.settings.for_sandbox(options)?;
    let workspace = match &options.workspace {
        None => Medium::Memory,
        Some(path) => Medium::Directory(directory(path)?),
    };
    Ok(Placement {
        id: SandboxId::from_random(random_bits()),
        lifetime,
        isolation: sandbox.isolation,
        trust: sandbox.trust,
        root: Root::Host,
        workspace,
        limits: sandbox.limits,
        env: BTreeMap::new(),
        labels: [("command".to_owned(), command)].into(),
    })
}

/// The exec that was asked for on the command line.
pub(crate) fn spec(how: &How, argv: Vec<String>, environment: &Environment) -> Result<ExecSpec, Fault> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(invalid("the command is empty").hint("name a program after '--'"));
    }
    let mut spec = ExecSpec::new(Command::Argv(argv));
    spec.timeout_seconds = how.timeout.map(|span| span.0.as_secs_f64());
    spec.cwd = how.workdir.as_deref().map(|dir| match dir.strip_prefix('/') {
        Some(_) => dir.to_owned(),
        None => format!("/workspace/{dir}"),
    });
    if let Some(term) = environment.text("TERM").filter(|_| how.tty) {
        spec.env.insert("TERM".into(), term);
    }
    for variable in &how.variables {
        // A name alone hands on the caller's value; where the caller has none there is nothing to hand on.
        if let Some(value) = variable.value.clone().or_else(|| environment.text(&variable.name)) {
            spec.env.insert(variable.name.clone(), value);
        }
    }
    Ok(spec)
}

fn directory(path: &Path) -> Result<PathBuf, Fault> {
    let refuse = |why: &str| invalid(format!("{} cannot be the workspace: {why}", path.display()));
    let whole = std::fs::canonicalize(path).map_err(|error| refuse("it is not there").because(error))?;
    if whole.is_dir() {
        Ok(whole)
    } else {
        Err(refuse("it is no directory").hint("use --file for a single file"))
    }
}

fn read_file(copy: &FileCopy) -> Result<FileToWrite, Fault> {
    let shown = copy.source.display();
    let unreadable = |error| invalid(format!("cannot read {shown}")).because(error);
    let about = std::fs::metadata(&copy.source).map_err(unreadable)?;
    if about.is_dir() {
        return Err(invalid(format!("{shown} is a directory")).hint("use --workspace for a directory"));
    }
    if about.len() > LARGEST_FILE {
        return Err(invalid(format!("{shown} is larger than {}", ByteSize(LARGEST_FILE)))
            .hint("use --workspace for large files"));
    }
    let bytes = std::fs::read(&copy.source).map_err(unreadable)?;
    Ok(FileToWrite { path: copy.target.clone(), bytes, mode: about.permissions().mode() & 0o777 })
}

fn tell_kept(id: SandboxId, context: &Context) {
    let flags = context.flags_to_find_it_again();
    crate::failure::note(&format!(
        "kept {id}\n  cubicle{flags} exec {id} -- CMD   runs another command in it\n  cubicle{flags} rm {id}            removes it"
    ));
}

fn tell_receipt(receipt: &Receipt) -> Result<(), Fault> {
    let text = serde_json::to_string_pretty(receipt)
        .map_err(|error| Fault::new(Kind::Internal, "the receipt has no JSON form").because(error))?;
    crate::failure::tell(&format!("{text}\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how() -> How {
        How { timeout: None, variables: vec![], workdir: None, tty: false, json: false }
    }

    #[test]
    fn a_name_alone_hands_on_the_callers_value() {
        let environment = Environment::from([("LANG", "C"), ("TERM", "xterm")]);
        let variables = ["LANG", "ABSENT", "A=1", "A=2"].map(|text| text.parse().unwrap()).into();
        let spec = spec(&How { variables, ..how() }, vec!["env".into()], &environment).unwrap();
        let expected = [("A", "2"), ("LANG", "C")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(spec.env, expected.into());
    }

    #[test]
    fn a_terminal_comes_with_its_name() {
        let environment = Environment::from([("TERM", "xterm")]);
        let spec = spec(&How { tty: true, ..how() }, vec!["sh".into()], &environment).unwrap();
        assert_eq!(spec.env.get("TERM").map(String::as_str), Some("xterm"));
    }

    #[test]
    fn a_relative_working_directory_is_taken_from_the_workspace() {
        for (given, expected) in [("/tmp", "/tmp"), ("src", "/workspace/src")] {
            let how = How { workdir: Some(given.into()), ..how() };
            let spec = spec(&how, vec!["pwd".into()], &Environment::default()).unwrap();
            assert_eq!(spec.cwd.as_deref(), Some(expected));
        }
    }

    #[test]
    fn an_empty_command_is_refused() {
        let fault = spec(&how(), vec![String::new()], &Environment::default()).unwrap_err();
        assert_eq!(fault.kind(), Kind::Invalid);
    }

    #[test]
    fn how_a_command_ended_is_how_cubicle_ends() {
        let table = [
            (Exit::Code(3), false, Some(Ending::Code(3))),
            (Exit::Signal(11), false, Some(Ending::Signal(11))),
            (Exit::Oom, false, Some(Ending::Code(137))),
            (Exit::TimedOut, false, Some(Ending::Code(124))),
            (Exit::Unknown, false, None),
        ];
        for (exit, json, expected) in table {
            let attended = Attended { exit, duration: Default::default(), output: Default::default() };
            let id = SandboxId::from_random([0; 16]);
            let ending = finish(&How { json, ..how() }, id, "namespaces", attended, None).ok();
            assert_eq!(ending, expected, "{exit:?}");
        }
    }

    #[test]
    fn a_directory_is_no_file_and_a_file_no_workspace() {
        let place = tempfile::tempdir().unwrap();
        let copy = FileCopy { source: place.path().into(), target: "/workspace/x".into() };
        assert!(read_file(&copy).unwrap_err().way_out().unwrap().contains("--workspace"));
        let file = place.path().join("a");
        std::fs::write(&file, "a").unwrap();
        assert!(directory(&file).unwrap_err().way_out().unwrap().contains("--file"));
    }
}
