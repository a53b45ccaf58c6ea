//! Spans: what every line of the log carries, and what a trace consists of. One trace goes from a request through its
//! lease and its exec to the end of the sandbox.
//!
//! A span belongs to whatever was under way when it was made, and so does what goes on in the background afterwards. It
//! ends with its result (`status` of a request, `exit` of an exec), or else when its work is done.

use cubicle_model::{ExecId, Exit, Fault, LeaseId, RequestId, SandboxId, TaskId, TemplateRef};
use tracing::field::{Empty, display};
use tracing::{Span, error_span};

// All have the highest level, so that whatever is logged has its ids, also where only errors are logged.

pub(crate) fn request(id: RequestId, method: &str, route: Option<&str>, traceparent: Option<&str>) -> Span {
    error_span!(
        "request",
        request = %id,
        method,
        route,
        traceparent,
        lease = Empty,
        sandbox = Empty,
        exec = Empty,
        status = Empty
    )
}

/// Whatever a path names is known before anybody has looked for it.
pub(crate) fn named(span: &Span, path: &str) {
    for part in path.split('/') {
        if let Ok(id) = part.parse::<SandboxId>() {
            span.record("sandbox", display(id));
        } else if let Ok(id) = part.parse::<LeaseId>() {
            span.record("lease", display(id));
        } else if let Ok(id) = part.parse::<ExecId>() {
            span.record("exec", display(id));
        }
    }
}

/// What is under way has come to have a lease.
pub(crate) fn leased(lease: LeaseId, sandbox: Option<SandboxId>) {
    let span = Span::current();
    span.record("lease", display(lease));
    if let Some(sandbox) = sandbox {
        span.record("sandbox", display(sandbox));
    }
}

pub(crate) fn acquire(template: &str) -> Span {
    error_span!("acquire", template, lease = Empty, sandbox = Empty, admission = Empty, error = Empty)
}

/// A lease that waited gets its sandbox.
pub(crate) fn promote(lease: LeaseId, sandbox: SandboxId) -> Span {
    error_span!("promote", %lease, %sandbox)
}

pub(crate) fn exec(lease: LeaseId, sandbox: SandboxId, exec: ExecId) -> Span {
    error_span!("exec", %lease, %sandbox, %exec, exit = Empty, error = Empty)
}

/// A task from the moment it has a worker to its end.
pub(crate) fn task(task: TaskId) -> Span {
    error_span!("task", %task, lease = Empty, sandbox = Empty, exec = Empty)
}

/// What is noted and given back after an exec.
pub(crate) fn settle() -> Span {
    error_span!("settle")
}

/// A sandbox is brought from what it is to what it should be.
pub(crate) fn advance(sandbox: SandboxId) -> Span {
    error_span!("advance", %sandbox, lease = Empty, error = Empty)
}

/// A sandbox for the pool.
pub(crate) fn pool(sandbox: SandboxId, template: &TemplateRef) -> Span {
    error_span!("pool", %sandbox, %template)
}

/// A call of the backend that changes something.
pub(crate) fn backend(operation: &'static str, sandbox: SandboxId) -> Span {
    // The name of a span is fixed where it is written.
    match operation {
        "create" => error_span!("create", %sandbox, error = Empty),
        "bind" => error_span!("bind", %sandbox, error = Empty),
        "archive" => error_span!("archive", %sandbox, error = Empty),
        _ => error_span!("destroy", %sandbox, error = Empty),
    }
}

pub(crate) fn failed(span: &Span, fault: &Fault) {
    span.record("error", display(fault));
}

/// An exec has ended; what follows is not its time any more.
pub(crate) fn exited(span: &Span, exit: Exit) {
    let shown = match exit {
        Exit::Code(code) => format!("code {code}"),
        Exit::Signal(number) => format!("signal {number}"),
        Exit::Oom => "oom".into(),
        Exit::TimedOut => "timed_out".into(),
        Exit::Unknown => "unknown".into(),
        Exit::NotStarted => "not_started".into(),
    };
    span.record("exit", shown);
}
