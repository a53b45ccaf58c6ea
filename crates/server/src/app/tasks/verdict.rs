//! What came of a task: from how its worker ended, as the kernel reported it, and from what the worker wrote. Neither alone
//! is believed.

use cubicle_model::Exit;
use cubicle_model::task::TaskStatus;
use cubicle_worker::Status;

/// What `status.json` holds.
#[derive(Debug)]
pub(super) enum Word<'a> {
    None,
    Told(&'a Status),
    /// It cannot be read, and why.
    Nonsense(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) status: TaskStatus,
    pub(super) error_message: Option<String>,
}

/// `cancelled`: somebody asked for its end.
pub(super) fn verdict(exit: Exit, word: &Word<'_>, cancelled: bool) -> Verdict {
    let success = Verdict { status: TaskStatus::Success, error_message: None };
    let not = |status, why: String| Verdict { status, error_message: Some(why) };
    let told = match word {
        Word::Told(told) => Some(*told),
        Word::None | Word::Nonsense(_) => None,
    };
    let said = told.map(|told| told.status);
    let why = told.and_then(|told| told.error_message.clone()).filter(|why| !why.trim().is_empty());
    if exit == Exit::Code(0) && said == Some(TaskStatus::Success) {
        // Also where its end was asked for: it was faster.
        return success;
    }
    if cancelled {
        return not(TaskStatus::Cancelled, "it was cancelled".into());
    }
    if exit == Exit::TimedOut {
        return not(TaskStatus::Timeout, "it was ended because its time was over".into());
    }
    let ended = describe(exit);
    match (word, said) {
        (Word::Nonsense(what), _) => not(TaskStatus::Failed, format!("its worker {ended}, and {what}")),
        (_, None) => not(TaskStatus::Failed, format!("its worker {ended} without a word")),
        (_, Some(TaskStatus::Success)) => {
            not(TaskStatus::Failed, format!("its worker told of a success, but {ended}"))
        }
        (_, Some(said @ (TaskStatus::Failed | TaskStatus::Timeout | TaskStatus::Cancelled))) => {
            let unsaid = || format!("its worker {ended} and did not say why it is '{}'", said.name());
            not(said, why.unwrap_or_else(unsaid))
        }
        (_, Some(said)) => {
            not(TaskStatus::Failed, format!("its worker {ended}, and left the task as '{}'", said.name()))
        }
    }
}

fn describe(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("ended with exit code {code}"),
        Exit::Signal(signal) => format!("was killed by signal {signal}"),
        Exit::Oom => "was killed because the sandbox was out of memory".into(),
        Exit::TimedOut => "was ended because its time was over".into(),
        Exit::Unknown => "ended with its sandbox".into(),
        Exit::NotStarted => "was never started".into(),
    }
}

#[cfg(test)]
mod tests {
    use cubicle_model::Timestamp;

    use super::*;

    fn status(status: TaskStatus, error_message: Option<&str>) -> Status {
        Status {
            status,
            started_at: Timestamp::UNIX_EPOCH,
            completed_at: Timestamp::UNIX_EPOCH,
            duration_seconds: 0,
            exit_code: Some(0),
            output_files: Vec::new(),
            summary: String::new(),
            error_message: error_message.map(Into::into),
            logs_truncated: false,
            usage: None,
        }
    }

    #[test]
    fn only_an_exit_of_0_and_the_word_of_success_are_a_success() {
        use TaskStatus::{Cancelled, Failed, Running, Success, Timeout};
        let table = [
            (Exit::Code(0), Some(Success), false, Success, ""),
            (Exit::Code(0), Some(Success), true, Success, ""),
            (Exit::Code(1), Some(Success), false, Failed, "told of a success, but ended with exit code 1"),
            (Exit::Signal(9), Some(Success), false, Failed, "told of a success, but was killed by signal 9"),
            (Exit::Oom, Some(Success), false, Failed, "out of memory"),
            (Exit::Unknown, Some(Success), false, Failed, "ended with its sandbox"),
            (Exit::TimedOut, Some(Success), false, Timeout, "time was over"),
            (Exit::Code(0), None, false, Failed, "exit code 0 without a word"),
            (Exit::Signal(9), None, false, Failed, "signal 9 without a word"),
            (Exit::NotStarted, None, false, Failed, "never started"),
            (Exit::TimedOut, None, false, Timeout, "time was over"),
            (Exit::Code(1), Some(Failed), false, Failed, "because"),
            (Exit::Code(0), Some(Failed), false, Failed, "because"),
            (Exit::Code(124), Some(Timeout), false, Timeout, "because"),
            (Exit::Code(130), Some(Cancelled), false, Cancelled, "because"),
            (Exit::Code(0), Some(Running), false, Failed, "left the task as 'running'"),
            (Exit::Code(130), Some(Cancelled), true, Cancelled, "it was cancelled"),
            (Exit::Signal(9), None, true, Cancelled, "it was cancelled"),
            (Exit::Code(1), Some(Failed), true, Cancelled, "it was cancelled"),
        ];
        for (exit, said, cancelled, expected, words) in table {
            let told = said.map(|said| status(said, Some("because")));
            let word = told.as_ref().map_or(Word::None, Word::Told);
            let found = verdict(exit, &word, cancelled);
            let message = found.error_message.clone().unwrap_or_default();
            assert_eq!(found.status, expected, "{exit:?} {said:?} {cancelled}");
            assert!(message.contains(words), "{exit:?} {said:?} {cancelled}: {message}");
            assert_eq!(found.error_message.is_none(), expected == Success);
        }
        let nonsense = verdict(Exit::Code(0), &Word::Nonsense("status.json is a pipe".into()), false);
        assert_eq!(nonsense.status, Failed);
        assert!(nonsense.error_message.unwrap().contains("status.json is a pipe"));
        let silent = verdict(Exit::Code(1), &Word::Told(&status(Failed, Some(" "))), false);
        assert!(silent.error_message.unwrap().contains("did not say why"));
    }
}
