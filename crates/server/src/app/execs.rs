//! Run things in sandboxes. An exec goes on whatever becomes of whoever asked for it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, PoisonError};

use cubicle_guest::client::{ClientError, ExecStream, Guest, Outcome, OutputLimits};
use cubicle_guest::wire::SignalName;
use cubicle_model::egress::{Bill, Policy};
use cubicle_model::lease::LeaseEnd;
use cubicle_model::{
    Command, ExecId, ExecSpec, Exit, Fault, Kind, Lease, LeaseId, Reuse, SandboxId, Scope, TtySize,
};
use cubicle_store::{AfterLease, Begun, Context, Ended, Exec, ExecFilter, Finished, Page, Planned};
use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{Instrument, Span, debug, info, warn};

use super::code::{Code, ContextStart, Made};
use super::leases::{Granted, LeaseRequest, fingerprint};
use super::live::Leased;
use super::{App, Caller};
use crate::redaction::Masks;
use crate::spans;

/// The most of each stream that an answer holds.
pub(crate) const LARGEST_OUTPUT: usize = 16 * 1024 * 1024;
/// Of a one-shot whose server is killed again and again before it starts.
const MOST_ATTEMPTS: u32 = 100;
const LONGEST_TIMEOUT: f64 = 7.0 * 24.0 * 3600.0;

/// What is to be run.
#[derive(Debug, Clone)]
pub(crate) struct ExecRequest {
    pub(crate) spec: ExecSpec,
    pub(crate) program: Program,
    /// What the sandbox may reach while it runs.
    pub(crate) policy: Option<Policy>,
    pub(crate) background: bool,
    pub(crate) output_limit: usize,
}

/// How an exec comes to its processes.
#[derive(Debug, Clone)]
pub(crate) enum Program {
    /// Its command is started.
    Command,
    /// Its sandbox runs code; the command is only what people are told.
    Code(Box<Code>),
    /// Its process is an interpreter that keeps its state.
    Context(Box<ContextStart>),
}

/// The same with everything that was left to the server.
#[derive(Debug)]
struct Settled {
    id: ExecId,
    spec: ExecSpec,
    program: Program,
    policy: Option<Policy>,
    background: bool,
    output_limit: usize,
    masks: Arc<Masks>,
}

impl Settled {
    fn fingerprint(&self) -> String {
        let said = match &self.program {
            Program::Command => None,
            Program::Code(code) => Some(code.said()),
            Program::Context(start) => Some(start.said()),
        };
        match (&self.policy, said) {
            (None, None) => fingerprint(&self.spec),
            (Some(policy), None) => fingerprint(&(&self.spec, policy)),
            (policy, Some(said)) => fingerprint(&(&self.spec, policy, said)),
        }
    }

    fn planned(&self) -> Planned {
        // What is noted is for people alone: the command itself goes to the sandbox and nowhere else.
        let mut command = serde_json::to_value(&self.spec.command).unwrap_or_default();
        self.masks.known.json(&mut command);
        Planned { id: self.id, fingerprint: self.fingerprint(), command }
    }

    /// How much of its output is kept: more than is shown, so that a secret across the limit is known for one.
    fn limits(&self) -> OutputLimits {
        let limit = match self.background {
            true => 0,
            false => self.output_limit + self.masks.known.redaction().reach(),
        };
        OutputLimits { stdout: limit, stderr: limit }
    }
}

/// An exec as its caller is told of it.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) exec: Exec,
    /// What it printed, for whoever waited.
    pub(crate) output: Option<Outcome>,
    /// What it reached outside.
    pub(crate) egress: Option<Bill>,
    /// How many places of its output were masked.
    pub(crate) redacted: u64,
    /// The files that code made.
    pub(crate) made: Option<Made>,
}

impl Told {
    fn new(exec: Exec, output: Option<Outcome>, egress: Option<Bill>) -> Self {
        Self { exec, output, egress, redacted: 0, made: None }
    }

    /// As its caller may see it.
    fn masked(mut self, masks: &Masks, limit: usize) -> Self {
        if let Some(output) = &mut self.output {
            let streams = [
                (&mut output.stdout, &mut output.stdout_truncated),
                (&mut output.stderr, &mut output.stderr_truncated),
            ];
            for (bytes, truncated) in streams {
                let is_cut = *truncated;
                *truncated |= bytes.len() > limit;
                self.redacted += masks.known.beginning(bytes, limit, is_cut);
            }
        }
        self
    }
}

impl App {
    pub(crate) async fn create_exec(
        self: &Arc<Self>,
        caller: &Caller,
        sandbox: SandboxId,
        asked: ExecRequest,
    ) -> Result<Told, Fault> {
        caller.must(Scope::Run)?;
        let asked = self.settled(caller, asked).await?;
        let (leased, limit) = (self.in_use(caller, sandbox).await?, asked.output_limit);
        let (app, caller) = (Arc::clone(self), caller.clone());
        let told = self
            .to_its_end(async move { app.start_exec(&caller, &leased, asked, Afterwards::Nothing).await })
            .await?;
        self.as_shown(told, limit).await
    }

    /// A lease, an exec and a release. Asked for again, it is the same exec.
    pub(crate) async fn create_one_shot(
        self: &Arc<Self>,
        caller: &Caller,
        lease: LeaseRequest,
        reuse: Reuse,
        asked: ExecRequest,
    ) -> Result<Told, Fault> {
        let asked = self.settled(caller, asked).await?;
        let limit = asked.output_limit;
        let (app, caller) = (Arc::clone(self), caller.clone());
        let told = self.to_its_end(async move { app.run_once(&caller, lease, reuse, asked).await }).await?;
        self.as_shown(told, limit).await
    }

    /// Without what is masked nothing is shown. It has run, and can be asked for again.
    async fn as_shown(&self, told: Told, limit: usize) -> Result<Told, Fault> {
        let masks = self.masks(&told.exec.tenant).await?;
        Ok(told.masked(&masks, limit))
    }

    async fn run_once(
        self: &Arc<Self>,
        caller: &Caller,
        lease: LeaseRequest,
        reuse: Reuse,
        asked: Settled,
    ) -> Result<Told, Fault> {
        let since = Instant::now();
        let mut attempt = lease.clone();
        for number in 2..=MOST_ATTEMPTS {
            match self.acquire_row(caller, attempt, Some(asked.planned())).await? {
                Granted::Ready { lease, leased, noted } => {
                    let afterwards = match reuse {
                        Reuse::Never => Afterwards::Release { lease: lease.id, since },
                        Reuse::SameUser | Reuse::EnvCache => Afterwards::GiveBack { lease: lease.id, since },
                    };
                    let started = match (noted, leased.guest().await) {
                        (Some(exec), Ok(guest)) => self.run(guest, exec, asked, afterwards).await,
                        (Some(exec), Err(fault)) => {
                            self.did_not_start(exec, Some(fault.to_string()), afterwards);
                            Err(fault)
                        }
                        (None, _) => self.start_exec(caller, &leased, asked, afterwards).await,
                    };
                    if started.is_err() {
                        self.release_soon(lease.id);
                    }
                    return started;
                }
                Granted::Waits { .. } => return Err(self.full(0)),
                Granted::Ended { lease: before } => {
                    let exec = self.store.exec(asked.id).await?.filter(|exec| exec.lease == before.id);
                    if let Some(exec) = exec {
                        if exec.fingerprint != asked.fingerprint() {
                            return Err(Exec::id_is_taken());
                        }
                        return self.told_again(exec, &asked).await;
                    }
                    // The server was killed between the lease and the exec: nothing has run, so that it can run now.
                    let request = lease.request.as_deref().map(|request| format!("{request}/{number}"));
                    attempt = LeaseRequest { request, ..lease.clone() };
                }
            }
        }
        Err(Fault::new(Kind::Unavailable, "this exec was begun very often and never started")
            .hint("use another id"))
    }

    /// What was asked for, checked, with everything that was left to the server.
    async fn settled(&self, caller: &Caller, asked: ExecRequest) -> Result<Settled, Fault> {
        let masks = self.masks(caller.tenant()).await?;
        let ExecRequest { mut spec, mut program, policy, background, output_limit } = asked;
        check(&spec)?;
        self.check_policy(policy.as_ref())?;
        let id = spec.exec_id.unwrap_or_else(|| ExecId::from_random(self.surroundings.bits()));
        spec.exec_id = Some(id);
        if spec.timeout_seconds.is_none() {
            spec.timeout_seconds = self.settings.exec_timeout_seconds;
        }
        match &mut program {
            Program::Command => {}
            Program::Code(code) => code.settle(&spec),
            Program::Context(start) => start.asked.exec_id = Some(id),
        }
        Ok(Settled { id, spec, program, policy, background, output_limit, masks })
    }

    async fn start_exec(
        self: &Arc<Self>,
        caller: &Caller,
        leased: &Arc<Leased>,
        asked: Settled,
        afterwards: Afterwards,
    ) -> Result<Told, Fault> {
        let guest = leased.guest().await?;
        let context = caller.context(self);
        let id = asked.id;
        let exec = asked.planned().in_sandbox(leased.sandbox, leased.owner(), context.now);
        match self.begin(context, &exec).await? {
            Begun::New => {
                self.step("exec_noted");
                self.tidings.has_begun(&exec);
            }
            Begun::Repeated(before) => {
                let turn = self.exec_turn(id);
                let turn = turn.lock().await;
                if !self.never_started(&guest, &before).await? {
                    drop(turn);
                    return self.told_again(before, &asked).await;
                }
                // Noted by a server that was killed before it started it. The guest does not let it run twice.
                return self.run(guest, exec, asked, afterwards).await;
            }
        }
        self.run(guest, exec, asked, afterwards).await
    }

    /// Notes an exec that runs already, and follows it to its end.
    pub(super) async fn note_running(
        self: &Arc<Self>,
        caller: &Caller,
        leased: &Arc<Leased>,
        spec: ExecSpec,
    ) -> Result<(), Fault> {
        let (program, policy) = (Program::Command, None);
        let asked = ExecRequest { spec, program, policy, background: true, output_limit: 0 };
        let asked = self.settled(caller, asked).await?;
        let context = caller.context(self);
        let exec = asked.planned().in_sandbox(leased.sandbox, leased.owner(), context.now);
        if matches!(self.begin(context, &exec).await?, Begun::New) {
            self.tidings.has_begun(&exec);
            let app = Arc::clone(self);
            let span = spans::exec(exec.lease, exec.sandbox, exec.id);
            self.tasks.spawn(async move { app.follow_again(&exec).await }.instrument(span));
        }
        Ok(())
    }

    async fn begin(self: &Arc<Self>, context: Context, exec: &Exec) -> Result<Begun, Fault> {
        match self.store.begin_exec(context.clone(), exec.clone()).await {
            // The store may not know yet that others have ended.
            Err(fault) if fault.kind() == Kind::Full => {
                self.settle().await?;
                self.store.begin_exec(context, exec.clone()).await
            }
            begun => begun,
        }
    }

    /// Whether an exec was noted and then never reached its sandbox.
    async fn never_started(&self, guest: &Guest, exec: &Exec) -> Result<bool, Fault> {
        let now = self.store.exec(exec.id).await?;
        if now.is_none_or(|now| now.ended.is_some()) {
            return Ok(false);
        }
        match guest.exec_status(exec.id).await.map_err(Fault::from) {
            Ok(_) => Ok(false),
            Err(fault) if fault.kind() == Kind::NotFound => Ok(true),
            Err(fault) => Err(fault),
        }
    }

    /// One at a time decides what became of an exec whose server was killed.
    fn exec_turn(&self, id: ExecId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.exec_turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(id).or_default())
    }

    async fn run(
        self: &Arc<Self>,
        guest: Guest,
        exec: Exec,
        asked: Settled,
        afterwards: Afterwards,
    ) -> Result<Told, Fault> {
        let span = spans::exec(exec.lease, exec.sandbox, exec.id);
        let background = asked.background;
        let (started, begun) = oneshot::channel();
        let carry_out = {
            let (app, exec) = (Arc::clone(self), exec.clone());
            async move { app.carry_out(guest, exec, asked, afterwards, started).await }.instrument(span)
        };
        if background {
            self.tasks.spawn(carry_out);
            // Known to run, or known not to.
            begun.await.unwrap_or_else(|_| Err(Fault::new(Kind::Internal, "an exec was lost")))?;
            return Ok(Told::new(exec, None, None));
        }
        let Carried { ended, output, egress, made } = carry_out.await?;
        let told = Told::new(Exec { ended: Some(ended), ..exec }, output, egress);
        Ok(Told { made, ..told })
    }

    /// Starts an exec and follows it to its end.
    async fn carry_out(
        self: Arc<Self>,
        guest: Guest,
        exec: Exec,
        asked: Settled,
        afterwards: Afterwards,
        started: oneshot::Sender<Result<(), Fault>>,
    ) -> Result<Carried, Fault> {
        debug!("exec begins");
        // While its lease lasts.
        let template = self.live.get(exec.sandbox).map(|leased| leased.template.clone());
        let limits = asked.limits();
        let has_policy = asked.policy.is_some();
        let mark = self.mark_egress(exec.sandbox).await;
        let stream = match self.start_in(&guest, &exec, &asked).await {
            Ok(stream) => stream,
            Err((fault, refused)) => {
                info!(error = %fault, "an exec was not started");
                spans::failed(&Span::current(), &fault);
                let why = refused.then(|| fault.to_string());
                self.did_not_start(exec, why, afterwards);
                return match asked.background {
                    // Only one of the two listens.
                    true => {
                        let _ = started.send(Err(fault));
                        Err(Fault::new(Kind::Invalid, "an exec was not started"))
                    }
                    false => Err(fault),
                };
            }
        };
        self.step("exec_started");
        // Whoever does not wait for it has gone.
        let _ = started.send(Ok(()));
        let mut gathering = pin!(guest.gather(stream, limits));
        let outcome = match (&mut gathering).now_or_never() {
            // As short as most: its end tells of its start as well, and gives back what it had.
            Some(outcome) => outcome,
            None => {
                self.goes_on(afterwards);
                gathering.await
            }
        };
        let outcome = match outcome {
            // Its sandbox was destroyed under it, or ended: the rest is in what was kept of it.
            Err(ClientError::Unavailable(_)) => self.gather(&exec, limits).await,
            outcome => outcome.map_err(Fault::from),
        };
        let (ended, outcome) = match outcome {
            Ok(outcome) => {
                self.metrics.exec_ended(template.as_ref(), &outcome);
                (self.ended_by(&outcome), Some(outcome))
            }
            Err(fault) => {
                info!(error = %fault, "an exec has no known end");
                self.metrics.failed("crash");
                (self.unknown_end(), None)
            }
        };
        if let Afterwards::Release { since, .. } | Afterwards::GiveBack { since, .. } = afterwards {
            self.metrics.run_ended(template.as_ref(), since.elapsed());
        }
        spans::exited(&Span::current(), ended.exit);
        self.step("exec_ended");
        let egress = self.egress_since(&exec, &mark).await;
        let made = match &asked.program {
            // While its sandbox is there.
            Program::Code(_) if !asked.background => {
                Some(self.made_by(&guest, &exec, afterwards.lease().is_some()).await)
            }
            _ => None,
        };
        if has_policy {
            self.end_policy(exec.lease, exec.id).await;
        }
        self.has_ended(&exec, ended, afterwards);
        Ok(Carried { ended, output: outcome, egress, made })
    }

    /// Starts an exec under its policy. A failure says whether it is certain that nothing runs.
    async fn start_in(
        self: &Arc<Self>,
        guest: &Guest,
        exec: &Exec,
        asked: &Settled,
    ) -> Result<ExecStream, (Fault, bool)> {
        if let Some(policy) = &asked.policy {
            let begun = self.begin_policy(exec.lease, exec.id, policy.clone()).await;
            begun.map_err(|fault| (fault, true))?;
        }
        let begun = match &asked.program {
            Program::Command if asked.background => guest.exec(&asked.spec).await,
            Program::Command => guest.exec_to_its_end(&asked.spec).await,
            Program::Code(code) => {
                let attached = self.attach(guest, exec.sandbox, code.environment.as_ref()).await;
                attached.map_err(|fault| (fault, true))?;
                match asked.background {
                    true => guest.execute(&code.execute).await,
                    false => guest.execute_to_its_end(&code.execute).await,
                }
            }
            Program::Context(start) => {
                let attached = self.attach(guest, exec.sandbox, start.environment.as_ref()).await;
                attached.map_err(|fault| (fault, true))?;
                match guest.create_context(&start.asked).await {
                    Ok(_) => guest.attach(exec.id, 0).await,
                    Err(error) => Err(error),
                }
            }
        };
        begun.map_err(|error| {
            let refused = matches!(error, ClientError::Refused { .. } | ClientError::Invalid(_));
            (Fault::from(error), refused)
        })
    }

    /// An exec runs and will for a while. Only now others are woken up for it: before, they would take the cores from the
    /// sandbox that starts it.
    fn goes_on(&self, afterwards: Afterwards) {
        self.tidings.soon();
        if let Afterwards::Release { .. } = afterwards {
            self.room_changed.notify_one();
        }
    }

    fn has_ended(self: &Arc<Self>, exec: &Exec, ended: Ended, afterwards: Afterwards) {
        let lease = match afterwards {
            Afterwards::Nothing => None,
            Afterwards::Release { lease, .. } => Some(lease),
            Afterwards::GiveBack { lease, .. } => {
                self.give_back_soon(lease);
                None
            }
        };
        let finished = Finished { exec: exec.id, tenant: exec.tenant.clone(), ended, lease };
        self.tidings.has_ended(finished, spans::settle());
    }

    /// Notes that an exec was refused. Where nobody said so it may run all the same, and its journal knows.
    pub(super) fn did_not_start(self: &Arc<Self>, exec: Exec, why: Option<String>, afterwards: Afterwards) {
        let app = Arc::clone(self);
        let settle = async move {
            match why {
                Some(mut why) => {
                    // Where they cannot be had, whoever reads it gets it masked, or not at all.
                    if let Ok(masks) = app.masks(&exec.tenant).await {
                        masks.known.text(&mut why);
                    }
                    app.note_refusal(exec.id, why).await;
                    app.end_policy(exec.lease, exec.id).await;
                }
                None => app.follow_again(&exec).await,
            }
            if let Some(lease) = afterwards.lease() {
                app.release_one_shot(lease).await;
            }
        };
        self.tasks.spawn(settle.instrument(spans::settle()));
    }

    fn ended_by(&self, outcome: &Outcome) -> Ended {
        Ended {
            at: self.now(),
            exit: outcome.exit,
            stdout_bytes: outcome.written.stdout,
            stderr_bytes: outcome.written.stderr,
            duration_us: u64::try_from(outcome.duration.as_micros()).unwrap_or(u64::MAX),
        }
    }

    /// Of an exec whose sandbox ended under it.
    fn unknown_end(&self) -> Ended {
        Ended { at: self.now(), exit: Exit::Unknown, stdout_bytes: 0, stderr_bytes: 0, duration_us: 0 }
    }

    async fn note_end(&self, id: ExecId, ended: Ended) {
        match self.insist(|| self.store.end_exec(self.own_context(), id, ended)).await {
            Ok(()) => self.tell(),
            // The journal has it; the next start notes it.
            Err(fault) => warn!(exec = %id, error = %fault, "the end of an exec cannot be noted"),
        }
    }

    async fn note_refusal(&self, id: ExecId, why: String) {
        self.metrics.failed("not_started");
        match self.insist(|| self.store.refuse_exec(self.own_context(), id, why.clone())).await {
            Ok(()) => self.tell(),
            // The next start finds that it never started.
            Err(fault) => warn!(exec = %id, error = %fault, "the refusal of an exec cannot be noted"),
        }
    }

    fn release_soon(self: &Arc<Self>, lease: LeaseId) {
        let app = Arc::clone(self);
        self.tasks.spawn(async move { app.release_one_shot(lease).await }.instrument(spans::settle()));
    }

    /// The sandbox may be kept, as its template says.
    fn give_back_soon(self: &Arc<Self>, lease: LeaseId) {
        let app = Arc::clone(self);
        let give_back = async move {
            let after = match app.insist(|| app.store.lease(lease)).await {
                Ok(Some(lease)) => app.after(&lease).await,
                // Its time to live ends it all the same.
                Ok(None) | Err(_) => return,
            };
            let end = || app.end(app.own_context(), lease, LeaseEnd::Released, after);
            if let Err(fault) = app.insist(end).await {
                warn!(%lease, error = %fault, "a lease cannot be given back");
            }
        };
        self.tasks.spawn(give_back.instrument(spans::settle()));
    }

    async fn release_one_shot(self: &Arc<Self>, lease: LeaseId) {
        let release = || self.end(self.own_context(), lease, LeaseEnd::Released, AfterLease::Destroy);
        if let Err(fault) = self.insist(release).await {
            // Its time to live ends it all the same.
            warn!(%lease, error = %fault, "a lease cannot be released");
        }
    }

    /// What came of an exec that was asked for before: as soon as it has ended.
    async fn told_again(self: &Arc<Self>, exec: Exec, asked: &Settled) -> Result<Told, Fault> {
        if asked.background {
            return Ok(Told::new(exec, None, None));
        }
        match self.gather(&exec, asked.limits()).await {
            Ok(output) => {
                let ended = exec.ended.unwrap_or_else(|| self.ended_by(&output));
                let egress = self.kept_bill(exec.id).await?;
                Ok(Told::new(Exec { ended: Some(ended), ..exec }, Some(output), egress))
            }
            // It never ran, or its sandbox ended under it, or its output was kept long enough.
            Err(fault) if fault.kind() == Kind::NotFound => {
                let exec = self.store.exec(exec.id).await?.ok_or(fault)?;
                Ok(Told::new(exec, None, None))
            }
            Err(fault) => Err(fault),
        }
    }

    /// An exec that exists for the caller.
    pub(crate) async fn exec(self: &Arc<Self>, caller: &Caller, id: ExecId) -> Result<Exec, Fault> {
        caller.must(Scope::Read)?;
        self.settle().await?;
        let exec = self.store.exec(id).await?;
        exec.filter(|exec| caller.sees(&exec.tenant, &exec.user)).ok_or_else(|| {
            Fault::new(Kind::NotFound, format!("there is no exec {id}"))
                .hint("GET /api/v1/execs lists what there is")
        })
    }

    pub(crate) async fn execs(
        self: &Arc<Self>,
        caller: &Caller,
        sandbox: Option<SandboxId>,
        running: Option<bool>,
        page: Page,
    ) -> Result<Vec<Exec>, Fault> {
        caller.must(Scope::Read)?;
        if let Some(sandbox) = sandbox {
            self.sandbox(caller, sandbox).await?;
        }
        self.settle().await?;
        let filter = ExecFilter { tenant: Some(caller.tenant().clone()), sandbox, running };
        let execs = self.store.execs(filter, page).await?;
        Ok(execs.into_iter().filter(|exec| caller.sees(&exec.tenant, &exec.user)).collect())
    }

    /// The guest that an exec runs in, for whoever may touch it.
    async fn guest_of_exec(self: &Arc<Self>, caller: &Caller, id: ExecId) -> Result<Guest, Fault> {
        caller.must(Scope::Run)?;
        let exec = self.exec(caller, id).await?;
        if exec.ended.is_some() {
            return Err(Fault::new(Kind::Conflict, format!("{id} has ended")));
        }
        self.guest_of(caller, exec.sandbox).await
    }

    pub(crate) async fn stdin(
        self: &Arc<Self>,
        caller: &Caller,
        id: ExecId,
        bytes: &[u8],
        close: bool,
    ) -> Result<(), Fault> {
        Ok(self.guest_of_exec(caller, id).await?.stdin(id, bytes, close).await?)
    }

    pub(crate) async fn signal(
        self: &Arc<Self>,
        caller: &Caller,
        id: ExecId,
        signal: SignalName,
    ) -> Result<(), Fault> {
        Ok(self.guest_of_exec(caller, id).await?.signal(id, signal).await?)
    }

    pub(crate) async fn resize(
        self: &Arc<Self>,
        caller: &Caller,
        id: ExecId,
        size: TtySize,
    ) -> Result<(), Fault> {
        Ok(self.guest_of_exec(caller, id).await?.resize(id, size).await?)
    }

    /// Ends the whole tree of an exec. One that has ended stays as it is.
    pub(crate) async fn end_exec(
        self: &Arc<Self>,
        caller: &Caller,
        id: ExecId,
        grace: Option<std::time::Duration>,
    ) -> Result<(), Fault> {
        caller.must(Scope::Run)?;
        let exec = self.exec(caller, id).await?;
        if exec.ended.is_some() {
            return Ok(());
        }
        Ok(self.guest_of(caller, exec.sandbox).await?.end(id, grace).await?)
    }

    /// Follows an exec that an earlier server began, and notes its end.
    async fn follow_again(self: &Arc<Self>, exec: &Exec) {
        let nothing = OutputLimits { stdout: 0, stderr: 0 };
        let mut outcome = self.gather(exec, nothing).await;
        let turn = self.exec_turn(exec.id);
        let _turn = turn.lock().await;
        if outcome.is_err() {
            // Somebody may have asked for it again in the meantime, and started it.
            outcome = self.gather(exec, nothing).await;
        }
        let ended = match outcome {
            Ok(outcome) => {
                let template = self.live.get(exec.sandbox).map(|leased| leased.template.clone());
                self.metrics.exec_ended(template.as_ref(), &outcome);
                self.ended_by(&outcome)
            }
            Err(_) if self.was_never_started(exec).await => {
                self.note_refusal(exec.id, "it never reached its sandbox".into()).await;
                self.end_policy(exec.lease, exec.id).await;
                return;
            }
            Err(fault) => {
                info!(error = %fault, "an exec has no known end");
                self.metrics.failed("crash");
                self.unknown_end()
            }
        };
        spans::exited(&Span::current(), ended.exit);
        self.end_policy(exec.lease, exec.id).await;
        self.note_end(exec.id, ended).await;
    }

    /// After a start: execs whose end nobody noted are followed again, or their end is read from the journal.
    pub(crate) async fn follow_running_execs(
        self: &Arc<Self>,
        leases: &BTreeMap<LeaseId, Lease>,
    ) -> Result<(), Fault> {
        let running = self.store.running_execs(self.node).await?;
        // Those that an earlier server noted and did not get to tell of.
        running.iter().for_each(|exec| self.tidings.has_begun(exec));
        self.tidings.soon();
        let busy: std::collections::BTreeSet<LeaseId> = running.iter().map(|exec| exec.lease).collect();
        for exec in running {
            let app = Arc::clone(self);
            let release = leases.get(&exec.lease).filter(|lease| lease.one_shot).map(|lease| lease.id);
            let span = spans::exec(exec.lease, exec.sandbox, exec.id);
            let follow = async move {
                app.follow_again(&exec).await;
                if let Some(lease) = release {
                    app.release_one_shot(lease).await;
                }
            };
            self.tasks.spawn(follow.instrument(span));
        }
        // Made for an exec that never began, or whose end was noted just before the server was killed.
        for lease in leases.values().filter(|lease| lease.one_shot && !busy.contains(&lease.id)) {
            self.release_soon(lease.id);
        }
        Ok(())
    }
}

/// What came of an exec that was followed to its end.
#[derive(Debug)]
struct Carried {
    ended: Ended,
    output: Option<Outcome>,
    egress: Option<Bill>,
    made: Option<Made>,
}

/// What is to be done when an exec has ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Afterwards {
    Nothing,
    /// The end of a one-shot that was asked for then.
    Release {
        lease: LeaseId,
        since: Instant,
    },
    /// The same of one whose sandbox may be kept.
    GiveBack {
        lease: LeaseId,
        since: Instant,
    },
}

impl Afterwards {
    fn lease(self) -> Option<LeaseId> {
        match self {
            Self::Nothing => None,
            Self::Release { lease, .. } | Self::GiveBack { lease, .. } => Some(lease),
        }
    }
}

fn check(spec: &ExecSpec) -> Result<(), Fault> {
    let invalid = |text: &str| Err(Fault::new(Kind::Invalid, text));
    match &spec.command {
        Command::Argv(argv) if argv.is_empty() => return invalid("the command is empty"),
        Command::Shell(text) if text.trim().is_empty() => return invalid("the command is empty"),
        _ => {}
    }
    if spec.cwd.as_deref().is_some_and(|cwd| !cwd.starts_with('/')) {
        return invalid("the working directory is not an absolute path");
    }
    match spec.timeout_seconds {
        Some(seconds) if !(seconds > 0.0 && seconds <= LONGEST_TIMEOUT) => {
            invalid("the timeout is more than 0 and at most 604800 seconds")
        }
        _ => Ok(()),
    }
}
